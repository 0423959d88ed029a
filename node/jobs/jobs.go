// Package jobs connects warm-up to a node: what the engine sees of the node's parts, its records in a cache
// directory, its API and its figures. It also keeps the node's pins.
package jobs

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/check"
	"github.com/hearthfs/hearth/cache/segment"
	"github.com/hearthfs/hearth/cache/sparse"
	"github.com/hearthfs/hearth/namespace"
	"github.com/hearthfs/hearth/namespace/record"
	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/warmup"
)

// Parts are the parts of a node that warm-up works with.
type Parts struct {
	// Source is the tier of the node's own blocks, and Disk its store. A nil Disk means that there is no disk
	// tier.
	Source warmup.Loader
	Disk   Disk
	Tree   *namespace.Tree
	// Pins tells Disk what it must not evict. Durable are the pins that outlive jobs. Ready is closed once it
	// is known what these hold.
	Pins    *warmup.Pins
	Durable Durable
	Ready   <-chan struct{}
	// Small checks the small files of the node's cache directories. nil means that there are none.
	Small func(r *check.Run) error
	// Rooms is as in warmup.Room.
	Rooms func() []int64
	// Dir is the directory of the job records. Empty means that no record is kept.
	Dir string
	// Find returns what a canonical target means, which is a path of the tree or a URL made by Canonical. Check
	// returns, in words, why nothing is at what a user asked for.
	Find      func(ctx context.Context, target string) ([]namespace.Node, error)
	Check     func(ctx context.Context, asked string) error
	Canonical func(asked string) string
	// Paths returns the paths in the tree that a user's words mean.
	Paths func(ctx context.Context, asked string) ([]string, error)
	// Readers, Throttled and Connections are as in warmup.Options.
	Readers, Throttled func() int64
	Connections        func() int
	// Owners are the other nodes of the ring. nil means that there are none.
	Owners Owners
	// Volumes keep the blocks of jobs that say so. nil means that there are none.
	Volumes *Volumes
	// Explain turns an error into one line with its cure.
	Explain func(error) string
	// Now is as in warmup.Options.
	Now func() time.Time
	Log func(what string, err error)
}

// Disk is a disk tier.
type Disk interface {
	hearth.Store
	Needs(o *hearth.Object) (dir int, bytes int64)
	// Free is as in warmup.Room.
	Free() []int64
	// Inside is as in disk.Store.
	Inside(ctx context.Context, r *check.Run, b *hearth.Block, do func(*segment.Log, *sparse.Files) error) error
}

// Owners are the nodes of a ring that keep most of the blocks.
type Owners interface {
	warmup.Owners
	// Join is given the Checker and the Room of this node, and returns those of all nodes together.
	Join(warmup.Checker, warmup.Room) (warmup.Checker, warmup.Room)
}

// Durable are pins that outlive the jobs that make them.
type Durable interface {
	warmup.Durable
	// Claimed returns the bytes of each cache directory that pins need, without the pins at and below some
	// targets. Covered and Within are as in warmup.Room.
	Claimed(targets []string) []int64
	Covered(target string, targets []string) bool
	Within(targets []string) []*warmup.Set
}

// Jobs are the warm-ups and checks of a node.
type Jobs struct {
	parts  Parts
	engine *warmup.Engine
	begun  atomic.Int64 // jobs that are being begun
}

// Open makes the Jobs of a node, and goes on with the jobs that are not over.
func Open(p Parts) (*Jobs, error) {
	files := &warmup.Files{Dir: p.Dir, Log: p.Log}
	o := warmup.Options{Source: p.Source, Names: names{p}, Files: files, Readers: p.Readers, Throttled: p.Throttled, Connections: p.Connections,
		Explain: p.Explain, Now: p.Now, Log: p.Log}
	if p.Disk != nil {
		o.Keeper, o.Checker, o.Room = p.Disk, checker{p}, room{p.Disk, p.Durable, p.Rooms}
		o.Pins, o.Durable, o.Ready = p.Pins, p.Durable, p.Ready
		if p.Owners != nil {
			o.Owners = p.Owners
			o.Checker, o.Room = p.Owners.Join(o.Checker, o.Room)
		}
	}
	if p.Volumes != nil {
		o.Volumes = p.Volumes.of(checker{p})
	}
	engine, err := warmup.Open(o)
	if err != nil {
		return nil, err
	}
	return &Jobs{parts: p, engine: engine}, nil
}

// Close ends the work. The next node goes on with it.
func (j *Jobs) Close() { j.engine.Close() }

// names is the tree as warm-up sees it.
type names struct{ parts Parts }

func entry(n namespace.Node) warmup.Entry {
	return warmup.Entry{ID: n.ID, Dir: n.Dir, Name: n.Name, Object: n.Object, Unsure: !n.Dir && n.Unsure}
}

// Find implements warmup.Names.
func (n names) Find(ctx context.Context, target string) (all []warmup.Entry, err error) {
	nodes, err := n.parts.Find(ctx, target)
	for _, x := range nodes {
		all = append(all, entry(x))
	}
	if kind := admin.KindOf(err); err != nil && (kind == admin.KindNotFound || kind == admin.KindNoLink) {
		err = warmup.Unknown(err.Error())
	}
	return all, err
}

// ReadSince implements warmup.Names.
func (n names) ReadSince(ctx context.Context, dir uint64, since int64, after string, each func(warmup.Entry) bool) error {
	if after != "" && !strings.HasSuffix(after, "/") {
		after = record.AsFile(after)
	}
	return n.parts.Tree.ReadSince(ctx, dir, since, after, func(x namespace.Node) bool { return each(entry(x)) })
}

// Lookup implements warmup.Names. A file's name depends on whether a directory of the same name stands beside
// it.
func (n names) Lookup(ctx context.Context, dir uint64, name string) (warmup.Entry, error) {
	find := func(name string) (namespace.Node, error) { return n.parts.Tree.Lookup(ctx, dir, name) }
	name, wantsDir := strings.CutSuffix(name, "/")
	x, err := find(name)
	alone, beside := strings.CutSuffix(name, record.BesideTag)
	switch {
	case wantsDir:
	case err == nil && x.Dir:
		x, err = find(record.AsFile(name))
	case beside && errors.Is(err, fs.ErrNotExist):
		x, err = find(alone)
	}
	if err == nil && x.Dir != wantsDir {
		err = fs.ErrNotExist
	}
	return entry(x), err
}

// Now implements warmup.Names.
func (n names) Now() int64 { return n.parts.Tree.Now() }

// Hidden implements warmup.Names.
func (n names) Hidden(dir uint64) (int64, error) { return n.parts.Tree.Hidden(dir) }

// room is warmup.Room for the disk tier.
type room struct {
	Disk
	Durable
	rooms func() []int64
}

// Rooms implements warmup.Room.
func (r room) Rooms(targets []string) []int64 {
	rooms := r.rooms()
	for dir, n := range r.Claimed(targets) {
		rooms[dir] = max(0, rooms[dir]-n)
	}
	return rooms
}

// Load begins a warm-up of paths of the tree.
func (j *Jobs) Load(targets []string) (id string, err error) {
	r, err := j.engine.Submit(warmup.Request{Targets: targets}, nil, false, func(path string) string { return path })
	return r.ID, err
}

// Job returns a job's record as it was saved last.
func (j *Jobs) Job(id string) (warmup.Record, error) {
	v, _, err := j.engine.Get(id)
	return v.Record, err
}

// Lines returns a line for each job that is not over.
func (j *Jobs) Lines() []warmup.Line {
	lines := []warmup.Line{}
	for _, v := range j.engine.List() {
		if !v.State.Over() {
			lines = append(lines, warmup.Line{What: v.What(), DryRun: v.DryRun, Progress: v.Progress})
		}
	}
	return lines
}

// Total returns what has become of the files of all jobs since the node started.
func (j *Jobs) Total() warmup.Counters { return j.engine.Total() }
