package warmup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"

	"github.com/hearthfs/hearth"
)

// Checker is what a job that checks needs beside the Keeper.
type Checker interface {
	// Verify reads blocks [first, first+n) of an object from the disk tier's device and
	// compares checksums. It calls pace before it reads bytes.
	Verify(ctx context.Context, o *hearth.Object, first, n int64, pace Pace) Verdict
	// Files reads the files of the disk tier that belong to no object. It calls bad for
	// each that is not as it was written.
	Files(ctx context.Context, pace Pace, bad func(file, cause string)) error
	// Refresh asks the origin for a directory's names, unless that was done after since
	// (Unix ms).
	Refresh(ctx context.Context, dir uint64, since int64) error
	// Parent is the directory in which a target that is a file lies.
	Parent(ctx context.Context, target string) (Entry, error)
	// Changes calls each when a name means another thing than was known. each must not
	// block. was tells what the name meant; nil means that it meant nothing.
	Changes(each func(dir uint64, name string, was func() (Entry, error))) (cancel func())
}

// These are a check's verdicts on a path.
const (
	isMissing  = "missing"
	isCorrupt  = "corrupt"
	isChanged  = "changed"
	isVanished = "vanished"
	isUnread   = "unread"
	isDamaged  = "damaged"
)

const (
	changesSuffix  = ".changes"
	findingsSuffix = ".found"
)

// checking is a job that checks, at work.
type checking struct {
	checker  Checker
	changes  *changeNotes
	findings *findings
}

// check is the run of a job that checks: one walk, with fresh names.
func (j *job) check(ctx context.Context) error {
	r, o := &j.rec, j.o
	name := filepath.Join(o.Files.Dir, r.ID)
	if r.Checked == nil { // it begins, perhaps not for the first time
		r.Checked = &Checked{}
		if err := removeFiles(name+changesSuffix, name+findingsSuffix); err != nil {
			return err
		}
	}
	var err error
	c := &checking{checker: o.Checker}
	if c.changes, err = openChanges(name + changesSuffix); err != nil {
		return err
	}
	defer c.changes.Close()
	if c.findings, err = openFindings(name+findingsSuffix, r.Checked.Logged); err != nil {
		return err
	}
	defer func() { _ = c.findings.Close() }() // findings that a record counts were flushed before it
	defer o.Checker.Changes(func(dir uint64, name string, was func() (Entry, error)) {
		if was == nil {
			return
		}
		c.changes.Heard(dir, name, func() (Was, error) {
			n, err := was()
			return Was{Dir: n.Dir, Bytes: max(0, n.Object.Size), Version: n.Object.Version}, err
		})
	})()
	j.checking = c
	if err := j.loader.keeper.Flush(ctx); err != nil && ctx.Err() == nil { // to be read, a block must be on the device
		j.engine.told("a check cannot flush "+o.words.tier, fmt.Errorf("job %s: %w", r.ID, err))
	}
	if err := j.pass(ctx); err != nil {
		return err
	}
	return j.checkFiles(ctx)
}

// checkFiles looks at files that belong to no path, and ends the check.
func (j *job) checkFiles(ctx context.Context) error {
	r := &j.rec
	r.Checked.Damaged = 0
	err := j.checking.checker.Files(ctx, j.pace, func(file, cause string) {
		r.Checked.Damaged++
		j.found(file, isDamaged, cause)
	})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if n := j.checking.changes.Lost(); n > 0 {
		j.engine.told("more names changed than a check keeps: the others are called missing, or not named where they vanished",
			fmt.Errorf("job %s: %d more", r.ID, n))
	}
	j.save()
	return err
}

// pace waits until the rate lets n bytes be read.
func (j *job) pace(ctx context.Context, n int64) error {
	for l := j.loader.rate; l != nil && n > 0; n -= int64(l.Burst()) {
		if err := l.WaitN(ctx, int(min(n, int64(l.Burst())))); err != nil {
			return err
		}
	}
	return nil
}

// refresh has a directory listed, and notes what that changed.
func (j *job) refresh(ctx context.Context, dir uint64) error {
	if err := j.checking.checker.Refresh(ctx, dir, j.rec.Since); err != nil {
		return err
	}
	j.settle()
	return nil
}

func (j *job) settle() {
	if err := j.checking.changes.Settle(); err != nil {
		j.engine.told("what a check learns of names cannot be kept", fmt.Errorf("job %s: %w", j.rec.ID, err))
	}
}

// gone passes on the names of a directory that a fresh listing no longer has.
func (j *job) gone(ctx context.Context, w *walk, h here) error {
	after := ""
	if h.at.Target == w.start.Target && h.at.Root == w.start.Root && h.path == w.start.Path {
		after = w.start.Gone
	}
	for _, name := range j.checking.changes.In(h.dir, after) {
		was, _ := j.checking.changes.Was(h.dir, name)
		now := name
		if was.Dir {
			now += "/"
		}
		_, err := w.Names.Lookup(ctx, h.dir, now)
		if err == nil {
			continue
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		r := ref{at: h.at, target: h.target, dir: h.dir, name: name, gone: &was, absent: "it is not at the origin any more"}
		r.at.Path, r.at.Gone = h.path, name
		if err := w.each(r); err != nil {
			return err
		}
	}
	return nil
}

// known notes whether a file's name was known to mean another version. If the file does
// not exist, it notes what the name was known to mean.
func (j *job) known(r *ref) {
	in := r.dir
	if in == 0 {
		in = r.parent
	}
	was, ok := j.checking.changes.Was(in, r.name)
	switch {
	case !ok || r.gone != nil:
	case r.absent != "":
		r.gone = &was
	default:
		r.changed = !was.Dir && was.Version != r.object.Version
	}
}

// verify reads the blocks of a step.
func (j *job) verify(ctx context.Context, it *item, p *GatePass) (out outcome, read int64) {
	o := &it.ref.object
	out = outcome{object: o, first: it.first, n: it.n}
	if it.ref.changed || it.renewed {
		out.changed, out.cause = true, "the origin has another version than the one that was known here"
		return out, 0
	}
	pace := func(ctx context.Context, n int64) error {
		if p.Rest(ctx); j.loader.rate == nil {
			return nil
		}
		return p.Aside(ctx, func() error { return j.pace(ctx, n) }) // others go on meanwhile
	}
	v := j.checking.checker.Verify(ctx, o, it.first, it.n, pace)
	out.held, out.notKept, out.failed, out.cause, out.buffered = v.Whole, v.Missing, v.Corrupt, v.Cause, v.Buffered
	out.unread, out.unable = v.Unread, v.Unable
	return out, v.Read
}

// tally adds a step of a check to the counters. A file is reported again only for
// something worse than what was reported before.
func (c *commit) tally(it *item) {
	r, out := &c.job.rec, &it.out
	if it.ref.gone != nil {
		r.Counters.Vanished.Add(Tally{Files: 1, Bytes: it.ref.gone.Bytes})
		path := it.ref.path() + it.ref.at.Gone
		if it.ref.dir == 0 {
			path = it.ref.target
		}
		if it.ref.gone.Dir {
			path += "/"
		}
		c.job.found(path, isVanished, it.ref.absent)
		return
	}
	part := r.Cursor.part(it)
	add := func(verdict int, bytes int64, what, cause string) {
		part.Bytes.Of(verdict).Bytes += bytes
		if worse(verdict, part.Verdict) {
			part.Verdict = verdict
			c.job.found(it.ref.path(), what, cause)
		}
	}
	r.Checked.Buffered += out.buffered
	switch {
	case part.Replaced:
	case it.ref.absent != "":
		part.Bytes, part.Replaced = Counters{}, true
		add(wasNotKept, 0, isMissing, it.ref.absent)
	case out.changed:
		part.Bytes, part.Replaced = Counters{}, true
		add(wasChanged, it.ref.object.Size, isChanged, out.cause)
	default:
		part.Bytes.Present.Bytes += out.held
		if out.failed > 0 {
			add(wasFailed, out.failed, isCorrupt, out.cause)
		}
		if out.notKept > 0 {
			add(wasNotKept, out.notKept, isMissing, out.cause)
		}
		if out.unread > 0 {
			add(wasUnread, out.unread, isUnread, out.unable)
		}
	}
	if it.last {
		r.whole(part)
	}
}

// found records a verdict on a path.
func (j *job) found(path, what, cause string) {
	r := &j.rec
	s := Sample{Path: path, Cause: cause, What: what}
	if !j.checking.findings.Add(s) {
		r.Checked.Unlogged++
	}
	n := 0
	for _, x := range r.Samples {
		if x.What == what {
			n++
		}
	}
	if n < maxSamples {
		r.Samples = append(r.Samples, s)
	}
}

// saveCheck brings what a check found so far to disk.
func (j *job) saveCheck() {
	r := &j.rec
	if j.checking == nil {
		return
	}
	j.settle()
	size, err := j.checking.findings.Flush()
	if err != nil {
		j.engine.told("what a check finds cannot be kept", fmt.Errorf("job %s: %w", r.ID, err))
	}
	c, k := r.Checked, &r.Counters
	r.Checked = &Checked{Whole: k.Present, Missing: k.NotKept, Corrupt: k.Failed, Changed: k.Changed, Vanished: k.Vanished, Unread: k.Unread,
		Damaged: c.Damaged, Buffered: c.Buffered, Logged: size, Unlogged: c.Unlogged}
}

// Findings returns all paths that a check has found not to be whole so far. Each is a
// line of JSON, as Sample has it.
func (e *Engine) Findings(id string) (io.ReadCloser, error) {
	v, _, err := e.Get(id)
	if err != nil {
		return nil, err
	}
	if v.Checked == nil {
		return nil, Unknown("the job " + id + " is no check")
	}
	return ReadFindings(filepath.Join(e.o.Files.Dir, id)+findingsSuffix, v.Checked.Logged)
}
