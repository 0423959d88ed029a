package warmup

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hearthfs/hearth"
)

const (
	// checkpointEvery is how often what has ended is flushed, asked for again and
	// counted.
	checkpointEvery = time.Second
	// window bounds the steps that have begun and are not counted yet: while one waits
	// for an origin 10 s away, others go on. It is about 4 MiB of names.
	window = 8192
	// brokenAfter failures in a row mean that the origin is broken, not the objects. The
	// job fails rather than go on through all of them.
	brokenAfter = 64
)

// item is a step of the walk: some blocks of a file, or the reason why there are none to
// load.
type item struct {
	ref      *ref
	first, n int64
	last     bool // the last step of its file
	renewed  bool // the file was begun with another version: all of this one is loaded
	out      outcome
	done     chan struct{} // closed once out is complete
	end      func()        // gives back the free room that it takes
}

// commit counts the steps that have ended, in order.
type commit struct {
	job     *job
	pending []*item // ended and not counted
	failed  int     // how many in a row
}

// run takes steps in order until the channel is closed or the context ends.
func (c *commit) run(ctx context.Context, order <-chan *item) error {
	tick := time.NewTicker(c.job.engine.o.checkpoint)
	defer tick.Stop()
	for {
		var next *item
		select {
		case it, more := <-order:
			if !more {
				return c.checkpoint(ctx)
			}
			next = it
		case <-tick.C:
			if err := c.checkpoint(ctx); err != nil {
				return err
			}
			continue
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		for ended := false; !ended; {
			select {
			case <-next.done:
				ended = true
			case <-tick.C:
				if err := c.checkpoint(ctx); err != nil {
					return err
				}
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		if err := c.take(ctx, next); err != nil {
			return err
		}
	}
}

// take notes a step that has ended.
func (c *commit) take(ctx context.Context, it *item) error {
	if ctx.Err() != nil {
		return context.Cause(ctx) // the step was cut short, and is repeated
	}
	c.pending = append(c.pending, it)
	broken := it.out.failed > 0 && !it.out.stale
	if c.job.rec.Check { // what is corrupt is a finding
		broken = it.out.unread > 0
	}
	if !it.ref.broken && !broken {
		c.failed = 0
	} else if c.failed++; c.failed == brokenAfter {
		c.pending = c.pending[:max(0, len(c.pending)-brokenAfter)]
		if err := c.checkpoint(ctx); err != nil {
			return err
		}
		if it.out.unread > 0 {
			return &failure{kindFailed, "64 times in a row the check could not look: " + it.out.unable}
		}
		return brokenOff(it.out.cause + it.ref.absent)
	}
	if len(c.pending) >= window/2 {
		return c.checkpoint(ctx)
	}
	return nil
}

func brokenOff(cause string) error {
	return &failure{kindFailed, "the last 64 files or directories could not be loaded or listed, one after the other: " + cause}
}

// checkpoint makes sure of the pending steps, counts them and saves the record.
func (c *commit) checkpoint(ctx context.Context) error {
	j := c.job
	defer func(began time.Time) { j.engine.gate.Breathe(ctx, time.Since(began)) }(time.Now())
	var stale []*item
	for _, it := range c.pending {
		if it.out.stale && !c.skips(it) { // the first such step of a file that has several
			stale = append(stale, it)
		}
	}
	if !j.rec.Check { // a check loads nothing
		err := c.again(ctx, stale, func(it *item, p *GatePass) int64 {
			it.out = j.loader.replaced(ctx, p, it.ref)
			return it.out.loaded
		})
		if err == nil {
			err = c.ensure(ctx)
		}
		if err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	for _, it := range c.pending {
		switch {
		case j.rec.Check:
			c.tally(it)
		case j.rec.Pass == 0:
			c.count(it)
		default:
			c.review(it)
		}
		j.rec.Cursor.at(it)
	}
	clear(c.pending)
	c.pending = c.pending[:0]
	j.save()
	return nil
}

// skips reports whether an earlier step of the file has found it replaced.
func (c *commit) skips(it *item) bool {
	for _, x := range c.pending {
		if x == it {
			break
		}
		if x.ref == it.ref && (x.out.changed || x.out.vanished || x.out.stale) {
			return true
		}
	}
	part := c.job.rec.Cursor.File
	return it.first > 0 && part != nil && part.Replaced
}

// ensure flushes what was loaded to the device and asks for each block of it. What was
// lost is loaded once more, and the outcome of that counts.
func (c *commit) ensure(ctx context.Context) error {
	j := c.job
	loaded := int64(0)
	for _, it := range c.pending {
		loaded += it.out.loaded + it.out.held // the write of another may be under way
	}
	if loaded > 0 {
		_ = c.flush(ctx) // what is lost by that is loaded again, or was counted
	}
	var well []*outcome
	for _, it := range c.pending {
		if it.out.well() {
			well = append(well, &it.out)
		}
	}
	has := j.loader.has(ctx, well...)
	var again []*item
	for _, it := range c.pending {
		if it.out.well() && it.out.lost(has) > 0 {
			again = append(again, it)
		}
	}
	if len(again) == 0 {
		return nil
	}
	err := c.again(ctx, again, func(it *item, p *GatePass) int64 {
		x := j.loader.load(ctx, p, outcome{object: it.out.object, first: it.out.first, n: it.out.n}, nil)
		if x.stale {
			it.out = j.loader.replaced(ctx, p, it.ref)
			return it.out.loaded
		}
		it.out.lose(x.notKept+x.failed+x.archived, x.cause)
		it.out.notKept, it.out.failed, it.out.archived = x.notKept, x.failed, x.archived
		return x.loaded
	})
	if err != nil {
		return err
	}
	why := j.o.words.declined
	if err := c.flush(ctx); err != nil { // a volume forgets what it could not flush
		why = j.o.words.unsafe + err.Error()
	}
	has = j.loader.has(ctx, outcomes(again)...)
	for _, it := range again { // what is gone again, beyond that
		lost := it.out.lost(has) - it.out.notKept - it.out.failed - it.out.archived
		it.out.lose(max(0, lost), cmp.Or(it.out.cause, why))
	}
	return nil
}

// flush brings what was loaded to the device. If that fails twice, it returns why, and the
// blocks that the error concerns are not kept, though they can be read.
func (c *commit) flush(ctx context.Context) error {
	j := c.job
	err := j.loader.flush(ctx)
	if err != nil && ctx.Err() == nil {
		err = j.loader.flush(ctx)
	}
	if err == nil || ctx.Err() != nil {
		return nil
	}
	concerns, has, lost := atRisk(err), j.loader.has(ctx, outcomes(c.pending)...), int64(0)
	for _, it := range c.pending {
		if it.out.object == nil || j.rec.Pass > 0 && it.out.loaded == 0 { // an earlier pass flushed it
			continue
		}
		n := it.out.sum(func(b hearth.Block) bool { return concerns(b) && has(b.ID()) })
		n = min(n, it.out.loaded+it.out.held)
		it.out.lose(n, j.o.words.unsafe+err.Error())
		lost += n
	}
	if lost > 0 {
		j.engine.told("warm-up cannot flush "+j.o.words.tier, fmt.Errorf("job %s: %w", j.rec.ID, err))
	}
	return err
}

func outcomes(items []*item) (all []*outcome) {
	for _, it := range items {
		all = append(all, &it.out)
	}
	return all
}

// again repeats steps that have ended, through the gate as before. load returns how many
// bytes it fetched.
func (c *commit) again(ctx context.Context, all []*item, load func(*item, *GatePass) int64) error {
	var work sync.WaitGroup
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	for _, it := range all {
		p, err := c.job.share.Enter(ctx, it.n > 1 || it.renewed)
		if err != nil {
			break
		}
		startPart(&work, cancel, func() error {
			p.Exit(ctx, load(it, p))
			return nil
		})
	}
	work.Wait()
	return context.Cause(ctx)
}

// count adds a step to the counters.
func (c *commit) count(it *item) {
	r := &c.job.rec
	part := r.Cursor.part(it)
	add := func(verdict int, bytes int64) {
		if bytes > 0 {
			part.Bytes.Of(verdict).Bytes += bytes
			part.Verdict = max(part.Verdict, verdict)
		}
	}
	out := &it.out
	if out.cause != "" && out.notKept+out.failed+out.archived > 0 && !part.Replaced {
		r.sample(it.ref.path(), out.cause)
	}
	switch {
	case part.Replaced:
	case it.ref.broken, it.ref.absent != "" && it.ref.part == nil:
		part.Verdict = wasFailed
		r.sample(it.ref.path(), it.ref.absent)
	case out.vanished || it.ref.absent != "":
		bytes := max(it.ref.object.Size, part.Bytes.Sum().Bytes)
		part.Replace(wasVanished)
		add(wasVanished, bytes)
		r.sample(it.ref.path(), "it vanished from the origin")
	case out.changed:
		part.Replace(wasChanged)
		add(wasFailed, out.failed)
		add(wasNotKept, out.notKept)
		add(wasArchived, out.archived)
		add(wasChanged, out.object.Size-out.failed-out.notKept-out.archived)
	default:
		add(wasPresent, out.held)
		add(wasDone, out.loaded)
		add(wasNotKept, out.notKept)
		add(wasFailed, out.failed)
		add(wasArchived, out.archived)
	}
	if it.last {
		r.whole(part)
	}
}

// whole counts a file once it is whole.
func (r *Record) whole(p *Part) {
	p.Bytes.Of(p.Verdict).Files++
	r.Counters.Add(&p.Bytes)
}

// review notes what a later pass found: blocks that had been evicted and are back, or are
// lost.
func (c *commit) review(it *item) {
	r, out := &c.job.rec, &it.out
	r.Reloaded += out.loaded
	if lost := out.notKept + out.failed + out.archived; lost > 0 && !out.vanished {
		r.Missing += lost
		r.sample(it.ref.path(), "it was evicted before the job's end: "+out.cause)
	}
}

// part is what was counted so far of the file of a step.
func (c *Cursor) part(it *item) *Part {
	if c.File == nil || it.ref.part == nil && it.first == 0 { // otherwise it belongs to a file that is gone
		c.File = &Part{Version: versionText(&it.ref.object)}
	}
	return c.File
}

// at moves the cursor behind a step.
func (c *Cursor) at(it *item) {
	part := c.File
	*c = it.ref.at
	if it.last {
		return
	}
	if part == nil {
		part = &Part{Version: versionText(&it.ref.object)}
	}
	part.Blocks = it.first + it.n
	c.File = part
	if it.ref.dir == 0 {
		c.Root-- // the target's file is not whole yet
	}
}

// steps cuts a file into steps.
func steps(r *ref, each func(*item) error) error {
	one := func(it item) error {
		it.ref, it.done = r, make(chan struct{})
		return each(&it)
	}
	blocks := r.object.Blocks()
	switch {
	case r.absent != "" || blocks == 0:
		return one(item{last: true, renewed: r.absent == "" && r.part != nil})
	case r.part != nil && r.part.Replaced:
		return one(item{first: blocks, last: true})
	case r.part != nil && r.part.Version != versionText(&r.object):
		return one(item{n: blocks, last: true, renewed: true})
	}
	first := int64(0)
	if r.part != nil {
		first = r.part.Blocks
	}
	if blocks-first > hearth.ExtentBlocks {
		r.archived = new(atomic.Pointer[string])
	}
	for {
		n := min(hearth.ExtentBlocks-first%hearth.ExtentBlocks, blocks-first)
		if err := one(item{first: first, n: n, last: first+n >= blocks}); err != nil {
			return err
		}
		if first += n; first >= blocks {
			return nil
		}
	}
}
