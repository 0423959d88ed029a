package node

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"path/filepath"
	"strings"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/check"
	"github.com/hearthfs/hearth/cache/disk"
	"github.com/hearthfs/hearth/fuse"
	"github.com/hearthfs/hearth/internal/device"
	"github.com/hearthfs/hearth/namespace"
	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/node/fsck"
	"github.com/hearthfs/hearth/node/jobs"
	"github.com/hearthfs/hearth/node/watch"
	"github.com/hearthfs/hearth/origin"
	"github.com/hearthfs/hearth/warmup"
	"github.com/hearthfs/hearth/warmup/prefetch"
)

// warmUps are the node's jobs and pins, and its prefetch. The disk tier asks pins what it must not evict, which
// is known once ready is closed. ahead is nil if there is no disk tier to fill.
type warmUps struct {
	*jobs.Jobs
	pins   *warmup.Pins
	ready  chan struct{}
	keeper *jobs.Keeper
	ahead  *prefetch.Prefetch
}

// prefetched returns the counters of prefetch.
func (w *warmUps) prefetched() (s prefetch.Stats) {
	if w.ahead != nil {
		s = w.ahead.Stats()
	}
	return s
}

// close ends all of them. The next node goes on with the jobs and pins.
func (w *warmUps) close() {
	if w.ahead != nil {
		w.ahead.Close()
	}
	if w.Jobs != nil {
		w.keeper.Close()
		w.Jobs.Close()
	}
}

// pinsUnknown reports whether the node does not know yet what its pins hold.
func (w *warmUps) pinsUnknown() bool {
	select {
	case <-w.ready:
		return false
	default:
		return true
	}
}

// openJobs goes on with the warm-ups that are not over, and starts the keeper of pins.
func (n *Node) openJobs() (err error) {
	p := jobs.Parts{Source: watch.WarmUp{Loader: n.tiers.Own}, Tree: n.tree.Tree, Rooms: n.rooms, Find: n.find, Canonical: n.canonical, Paths: n.pathsOf, Ready: n.jobs.ready,
		Check:   n.isThere,
		Readers: n.readers, Throttled: n.ring.throttled(n.throttled), Connections: n.forWarmUp,
		Explain: func(err error) string { return watch.Explained(err).Error() }, Now: n.now,
		Log: func(what string, err error) { n.events.Trouble(what, what, "cause", err) }}
	k := jobs.PinParts{Short: n.links.short, Tree: n.tree.Tree, Sieves: n.jobs.pins, RAM: n.mem, Link: n.links.path, PathOf: n.pathOf, Paths: n.pathsOf, Now: n.now, Log: p.Log,
		Load: func(targets []string) (string, error) { return n.jobs.Load(targets) },
		Job:  func(id string) (warmup.Record, error) { return n.jobs.Job(id) }}
	if n.disk != nil {
		k.Disk = n.disk
		p.Disk, p.Pins, p.Dir, p.Small = n.disk, n.jobs.pins, filepath.Join(n.dirs.First(), disk.JobsDir), n.checkSmall
		if n.ring != nil {
			p.Owners = n.ring.owners
		}
	}
	p.Volumes = &jobs.Volumes{Set: n.volumes, Source: n.toVolumes(), Known: n.volumesKnown, Pins: &warmup.Pins{Reserve: n.pool.Reserve, Unreserve: n.pool.Unreserve}}
	if n.ring != nil {
		p.Volumes.Owners = n.ring.volumes
	}
	if n.jobs.keeper, err = jobs.OpenPins(k, n.jobs.ready); err != nil {
		return err
	}
	p.Durable = n.jobs.keeper
	if n.jobs.Jobs, err = jobs.Open(p); err == nil {
		n.jobs.keeper.Start()
	}
	return err
}

// pathsOf returns the paths in the tree of what a caller asks for. A URL may mean a file, a directory, or both.
func (n *Node) pathsOf(ctx context.Context, asked string) ([]string, error) {
	if !isURL(asked) {
		p, _, err := n.resolve(ctx, asked)
		return []string{p}, err
	}
	found, err := n.find(ctx, asked)
	if err != nil {
		return nil, err
	}
	dir := n.pathOf(asked)
	var all []string
	for _, x := range found {
		switch {
		case x.Dir:
			all = append(all, dir)
		case x.ID == 0:
			return nil, &admin.Error{Kind: admin.KindRefused, Message: asked + " has no name in the tree, by which it could be known"}
		default:
			all = append(all, cleanPath(path.Dir(dir)+"/"+x.Name))
		}
	}
	return all, nil
}

// pathOf returns the path in the tree that asked means. For a URL it is the path of the keys below it. It is
// empty if no link leads there.
func (n *Node) pathOf(asked string) string {
	if !isURL(asked) {
		return n.treePath(asked)
	}
	l, key, err := n.links.holding(asked)
	if err != nil {
		return ""
	}
	return jobs.Path(l.Path, strings.TrimPrefix(key, l.prefix))
}

// openPrefetch starts prefetch, which brings the siblings of small files into the cache in the background.
func (n *Node) openPrefetch() {
	if n.disk == nil {
		return
	}
	var store prefetch.Store = siblingStore{siblingTier: n.tiers.Own, siblingDisk: n.disk, near: n.volumes}
	if n.ring != nil {
		store = n.ring.owners.Siblings(store)
	}
	n.jobs.ahead = prefetch.New(prefetch.Options{Store: store, Names: siblingNames{Tree: n.tree.Tree},
		Memory: n.pool.Stats().Budget, Reserve: n.pool.Reserve, Unreserve: n.pool.Unreserve,
		Connections: n.connections, Throttled: n.ring.throttled(n.throttled)})
}

// small adds prefetch to a mount's events, so that it hears of READs of small objects.
func (n *Node) small(m Mount, e fuse.Events) fuse.Events {
	if n.jobs.ahead == nil {
		return e
	}
	e.Came = n.jobs.ahead.Came
	e.Read = func(o *hearth.Object, size int, held bool) {
		// A volume does not let wait as the origin does. With All it may have just got what came from there.
		n.jobs.ahead.Read(o, size, held || !n.config.Volumes.All && n.volumes.Has(o.Block(0).ID()))
	}
	if m.NoPrefetch {
		e.Read = func(o *hearth.Object, _ int, held bool) { n.jobs.ahead.Used(o, held) }
	}
	return e
}

// connections returns how many connections of a link are in use, and how many objects may use.
func (n *Node) connections(name string) (inUse, most int) {
	l := n.links.named(name)
	if l == nil {
		return 0, 0
	}
	return int(l.origin.Stats().InFlight), l.forObjects()
}

// checkSmall checks the small files of the cache directories that are in use.
func (n *Node) checkSmall(r *check.Run) error {
	for _, name := range n.disk.Samples() {
		if err := errors.Join(disk.CheckLabel(filepath.Dir(name), false, r), fsck.Small(filepath.Dir(name), true, r)); err != nil {
			return err
		}
	}
	return nil
}

// canonical returns what asked means in words that do not depend on the present mounts.
func (n *Node) canonical(asked string) string {
	if isURL(asked) {
		return asked
	}
	return n.treePath(asked)
}

// find returns what a canonical path or a URL means: a file, a directory, or one of each.
func (n *Node) find(ctx context.Context, target string) ([]namespace.Node, error) {
	if !isURL(target) {
		x, err := n.tree.Resolve(ctx, target)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, &admin.Error{Kind: admin.KindNotFound, Message: target + ": no such file or directory"}
		}
		if err != nil {
			return nil, watch.Explained(err)
		}
		return []namespace.Node{x}, nil
	}
	k, err := n.keyed(ctx, target, true)
	if err != nil {
		return nil, err
	}
	var all []namespace.Node
	if k.file != nil && (k.dir == nil || !strings.HasSuffix(k.key, "/")) { // otherwise the file lies in the directory
		all = append(all, *k.file)
	}
	if k.dir != nil {
		all = append(all, *k.dir)
	}
	return all, nil
}

// isThere reports whether what is asked for can be found. Its error uses the name that was asked for.
func (n *Node) isThere(ctx context.Context, asked string) error {
	target := n.canonical(asked)
	_, err := n.find(ctx, target)
	if target != asked && admin.KindOf(err) == admin.KindNotFound {
		return &admin.Error{Kind: admin.KindNotFound, Message: asked + ": no such file or directory" + n.links.hint(asked, target)}
	}
	return err
}

// rooms returns the bytes that each cache directory may hold besides names and jobs.
func (n *Node) rooms() (all []int64) {
	names := n.tree.Stats()
	for _, d := range n.disk.Stats().Dirs {
		beside := int64(0)
		if !d.Ejected { // the device of an ejected one may not answer
			beside = device.Usage(filepath.Join(d.Path, disk.JobsDir))
		}
		if strings.HasPrefix(names.Where, d.Path+"/") {
			beside += names.DiskBytes
		}
		all = append(all, mayHold(&d, beside))
	}
	return all
}

// mayHold returns how many bytes of blocks a directory may hold. One that is out of use takes none.
func mayHold(d *disk.DirStats, beside int64) int64 {
	if d.Ejected {
		return 0
	}
	return max(0, d.Limit-beside)
}

// readers counts the requests of the kernel so far for which readers wait.
func (n *Node) readers() (sum int64) {
	for _, x := range n.mounts.served() {
		sum += asked(x.server.Stats().Requests)
	}
	return sum
}

// asked counts the requests that readers wait for, walks among them. For a file that is lent to the kernel
// these are only the look-up and the open, since the kernel reads it by itself.
func asked(requests map[string]int64) int64 {
	return requests["read"] + requests["lookup"] + requests["open"] + requests["readdir"]
}

// throttled counts the answers in which origins asked to slow down.
func (n *Node) throttled() (sum int64) {
	for _, l := range n.links.list() {
		sum += l.origin.Stats().Throttled
	}
	return sum
}

// forWarmUp returns how many connections a warm-up may use: those of the link that has the fewest, less the
// eighth that is kept for names.
func (n *Node) forWarmUp() int {
	most := 0
	for _, l := range n.links.list() {
		if c := l.forObjects(); most == 0 || c < most {
			most = c
		}
	}
	return max(1, most)
}

// forObjects returns how many of a link's connections objects may use.
func (l *link) forObjects() int {
	c := l.Origin.Connections
	if c <= 0 {
		c = origin.DefaultConnections
	}
	if c >= 4 { // fewer than 4 serve objects and names alike
		c -= max(1, c/8)
	}
	return c
}
