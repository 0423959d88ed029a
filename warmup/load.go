package warmup

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"golang.org/x/time/rate"

	"github.com/hearthfs/hearth"
)

// outcome is what became of a step, in bytes.
type outcome struct {
	held     int64 // held before the step
	loaded   int64
	notKept  int64
	failed   int64
	archived int64
	// stale: the version is gone, and what the name means now is not known yet. changed:
	// all of the new version, object, was loaded instead. vanished: the name means
	// nothing any more.
	stale, changed, vanished bool
	object                   *hearth.Object // whose blocks [first, first+n) these are
	first                    int64
	n                        int64
	buffered                 int64  // blocks that a check read through the page cache
	cause                    string // why bytes were not kept or failed
	unread                   int64  // could not be looked at by a check
	unable                   string // why
}

// well reports whether all blocks should be held now.
func (o *outcome) well() bool {
	return !o.stale && !o.vanished && o.notKept == 0 && o.failed == 0 && o.archived == 0 && o.object != nil
}

// add adds what became of a further part of the same object.
func (o *outcome) add(x outcome) {
	o.held, o.loaded, o.notKept, o.failed, o.archived = o.held+x.held, o.loaded+x.loaded, o.notKept+x.notKept, o.failed+x.failed, o.archived+x.archived
	o.stale = o.stale || x.stale
	if o.cause == "" {
		o.cause = x.cause
	}
}

// lost is how many bytes of its blocks are not held.
func (o *outcome) lost(has func(hearth.ID) bool) int64 {
	return o.sum(func(b hearth.Block) bool { return !has(b.ID()) })
}

// sum is how many bytes the blocks have for which of is true.
func (o *outcome) sum(of func(hearth.Block) bool) (bytes int64) {
	for i := range o.n {
		if b := o.object.Block(o.first + i); of(b) {
			bytes += int64(b.Len())
		}
	}
	return bytes
}

// lose moves bytes from what is held to what is not kept.
func (o *outcome) lose(bytes int64, cause string) {
	if bytes == 0 {
		return
	}
	taken := min(bytes, o.loaded)
	o.loaded -= taken
	o.held -= bytes - taken
	o.notKept, o.cause = o.notKept+bytes, cause
}

// loader makes blocks present.
type loader struct {
	*Options
	keeper hearth.Store
	rate   *rate.Limiter // nil means no limit
	run    int           // how many blocks one request asks for at most
	pins   *Set
	meter  meter
}

// mostRun is how many blocks one request asks for. On any link worth using, 4 MiB take
// longer than the first byte. Of a longer answer a kill would lose what waits in buffers.
const mostRun = 4

// streams is how many such requests a job of so many bytes has in flight: together they
// are 3/4 of a percent of the job. A kill loses half of that, the blocks that were not
// kept yet.
func streams(bytes int64) int { return int(bytes / 400 * 3 / (mostRun * hearth.BlockSize)) }

// newLoader makes a loader. limit is in bytes per second, 0 for none. A request is at
// most what the limit lets through in a quarter of a second, so that the flow is even.
func newLoader(o *Options, limit int64) *loader {
	l := &loader{Options: o, keeper: o.Keeper, run: mostRun}
	if limit > 0 {
		l.rate = rate.NewLimiter(rate.Limit(limit), hearth.BlockSize)
		l.run = int(max(1, min(limit/4/hearth.BlockSize, mostRun)))
	}
	return l
}

const (
	causeWeak     = "it has no strong ETag, so that no tier keeps it"
	causeChanging = "it changes while it is loaded"
)

// load makes the blocks of a step present. It is idempotent: a block that is held costs
// nothing. has tells which blocks are held, if that was asked just now; nil means that
// load asks.
func (l *loader) load(ctx context.Context, p *GatePass, out outcome, has func(hearth.ID) bool) outcome {
	o, first, n, most := out.object, out.first, out.n, l.run
	if !o.Cacheable() {
		for i := range n {
			out.notKept += int64(o.Block(first + i).Len())
		}
		out.cause = causeWeak
		return out
	}
	if has == nil {
		has = l.has(ctx, &out)
	}
	if l.Owners != nil && l.rate == nil && !l.Owners.Here(o.Block(first)) {
		most = hearth.ExtentBlocks // a kill of this process loses nothing that is on its way to its owner
	}
	for from := first; ; {
		at, run, held := NextRun(holds(o, has), from, first+n, most)
		if out.held += held; run == 0 {
			return out
		}
		if err := l.fetch(ctx, p, o.Block(at), int(run), &out); err != nil {
			out.stale = errors.Is(err, hearth.ErrStale)
			out.cause = l.cause(err)
			missing := max(0, out.lost(l.has(ctx, &out))-out.notKept)
			out.held = out.bytes() - out.loaded - out.notKept - missing
			if errors.Is(err, hearth.ErrArchived) {
				out.archived = missing
			} else {
				out.failed = missing
			}
			return out
		}
		if from = at + run; from < first+n {
			p.Rest(ctx)
		}
	}
}

// part is load for one step of a file. The first step that finds the file archived notes
// that for all its steps: a file in an archive may have a hundred thousand of them.
func (l *loader) part(ctx context.Context, p *GatePass, r *ref, out outcome) outcome {
	if r.archived == nil {
		return l.load(ctx, p, out, r.has)
	}
	if why := r.archived.Load(); why != nil {
		out.archived, out.cause = out.lost(l.has(ctx, &out)), *why
		out.held = out.bytes() - out.archived
		return out
	}
	if out = l.load(ctx, p, out, r.has); out.archived > 0 {
		r.archived.Store(&out.cause)
	}
	return out
}

// bytes is how many bytes its blocks have.
func (o *outcome) bytes() int64 { return o.sum(func(hearth.Block) bool { return true }) }

// fetch brings a run of missing blocks. It has each kept before it takes the next.
func (l *loader) fetch(ctx context.Context, p *GatePass, first hearth.Block, n int, out *outcome) error {
	if err := l.wait(ctx, p, first, n); err != nil {
		return err
	}
	l.meter.Begin()
	before := out.loaded
	defer func() { l.meter.End(out.loaded - before) }()
	if l.Owners != nil && !l.Owners.Here(first) {
		var failed error
		at := 0
		theirs := l.Owners.Load(ctx, first, n, func(b hearth.Block, err error) {
			at++
			if kept := new(hearth.NotKept); err == nil || errors.As(err, kept) {
				out.kept(b, err)
			} else if failed == nil {
				failed = err
			}
		})
		if theirs || at == n {
			return failed
		}
		first, n = first.Object.Block(first.Index+int64(at)), n-at
	}
	return l.bring(ctx, first, n, out)
}

// kept counts a block that was read. err is why it was not kept, nil if it was.
func (o *outcome) kept(b hearth.Block, err error) {
	if err == nil {
		o.loaded += int64(b.Len())
		return
	}
	o.notKept += int64(b.Len())
	if o.cause == "" {
		o.cause = err.Error()
	}
}

// bring is fetch for blocks that this node keeps itself.
func (l *loader) bring(ctx context.Context, first hearth.Block, n int, out *outcome) (failed error) {
	l.Source.Load(ctx, first, n, func(b hearth.Block, err error) bool {
		if kept := new(hearth.NotKept); err != nil && !errors.As(err, kept) {
			failed = err
			return false
		}
		out.kept(b, err)
		return true
	})
	return failed
}

// wait holds a run back until the rate lets it through. Other steps go on meanwhile.
func (l *loader) wait(ctx context.Context, p *GatePass, first hearth.Block, n int) error {
	if l.rate == nil {
		return nil
	}
	var delay time.Duration
	for i := range n {
		delay = l.rate.ReserveN(time.Now(), first.Object.Block(first.Index+int64(i)).Len()).Delay()
	}
	if delay == 0 {
		return nil
	}
	return p.Aside(ctx, func() error { return rest(ctx, delay) })
}

// changes is how often in a row a file may change before the job gives it up.
const changes = 3

// replaced loads all of the version that a file's name means now.
func (l *loader) replaced(ctx context.Context, p *GatePass, r *ref) outcome {
	for range changes {
		o, err := r.again(ctx, l.Names)
		if errors.Is(err, fs.ErrNotExist) {
			return outcome{vanished: true, cause: l.cause(err)}
		}
		if err != nil {
			return outcome{changed: true, object: &r.object, failed: r.object.Size, cause: l.cause(err)}
		}
		l.pins.Add(o.Version)
		out := outcome{object: &o, n: o.Blocks()}
		for first := int64(0); first < o.Blocks() && !out.stale; first += hearth.ExtentBlocks {
			part := outcome{object: &o, first: first, n: min(hearth.ExtentBlocks, o.Blocks()-first)}
			out.add(l.load(ctx, p, part, nil))
		}
		if !out.stale {
			out.changed = true
			return out
		}
	}
	return outcome{changed: true, object: &r.object, failed: r.object.Size, cause: causeChanging}
}

// held tells what of an object is held, and how many requests the rest takes. has is as
// in load.
func (l *loader) held(ctx context.Context, o *hearth.Object, has func(hearth.ID) bool) (t Tally, requests int64) {
	if l.keeper == nil || !o.Cacheable() {
		return t, 0
	}
	if has == nil {
		has = l.along(ctx, o)
	}
	if t.Bytes, requests = CountRuns(holds(o, has), o.Blocks(), hearth.ExtentBlocks, l.run); t.Bytes == o.Size {
		t.Files = 1
	}
	return t, requests
}

// holds tells how many bytes of each of an object's blocks are held.
func holds(o *hearth.Object, has func(hearth.ID) bool) HeldBytes {
	return func(i int64) int64 {
		if b := o.Block(i); has(b.ID()) {
			return int64(b.Len())
		}
		return 0
	}
}
