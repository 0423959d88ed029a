package warmup

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hearthfs/hearth/warmup/pins"
)

// failure ends a job early.
type failure struct{ kind, text string }

func (f *failure) Error() string { return f.text }

// These are causes of the end of a job's context.
var (
	errCancelled = errors.New("the job was cancelled")
	errClosed    = errors.New("the node ends")
)

// lastPass only looks. Pass 1 loads again what was evicted meanwhile. If not all was
// kept, pass 1 is skipped: it would try all of that once more.
const lastPass = 2

// job is a Record at work.
type job struct {
	engine *Engine
	o      *Options // what it works with
	loader *loader
	share  *GateShare
	claim  *pins.Claim   // of what it loads; nil means that it loads nothing
	others []*pins.Claim // of jobs that began before it
	spare  *pins.Spare   // what it may load before the count has ended; nil means no limit
	pinned bool          // this run has begun to pin and claim all that was asked for
	began  time.Time     // when this run began; before is the seconds worked in earlier runs
	before float64

	checking *checking // nil means that it loads, or only counts

	rec Record // belongs to the goroutine that runs the job; the engine shows what was saved of it

	plan struct {
		sync.Mutex // guards the rest
		Plan
		absent  []Sample // what does not exist or cannot be listed; absents is how many
		absents int64
		inARow  int // of them, how many errors came in a row, with nothing found between
	}
}

// run works on the job until it is over or the context ends, and returns why it ended.
// nil means that all its passes have ended.
func (j *job) run(ctx context.Context) error {
	r := &j.rec
	if r.Started == nil {
		now := j.o.Now()
		r.Started = &now
	}
	if r.State == Queued {
		r.State = Listing
	}
	j.began, j.before = time.Now(), r.Worked
	j.plan.Plan = r.Plan
	if !r.Plan.Counted {
		j.plan.Plan = Plan{}
	}
	j.share.Large(streams(j.plan.Total.Bytes))
	j.save()
	if err := j.learn(ctx); err != nil {
		return err
	}
	switch {
	case r.Check:
		return j.check(ctx)
	case !r.Loads():
		return j.onlyCount(ctx)
	}
	for r.Pass <= lastPass {
		if err := j.pass(ctx); err != nil {
			return err
		}
		never := r.Counters.Never()
		if r.Pass == 0 {
			r.Plan.Total = r.Counters.Sum()
		}
		if r.Pass == lastPass || r.Pass == 1 && r.Reloaded == 0 { // it has looked at everything
			r.Lost, r.Missing = max(0, r.Missing-never.Bytes), 0
			return nil
		}
		if r.Pass++; never.Files > 0 {
			r.Pass = lastPass
		}
		r.Cursor, r.Missing = Cursor{}, 0
		j.save()
	}
	return nil
}

// learn waits until it is known what is held. Otherwise a job would load all of that again.
func (j *job) learn(ctx context.Context) error {
	if j.o.known == nil || j.rec.MetadataOnly {
		return nil
	}
	err := j.o.known(ctx)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil && j.rec.Check:
		return &failure{kindRefused, "the volumes cannot be checked: " + err.Error()}
	case err != nil:
		return &failure{kindRefused, "nothing can be kept on volumes: " + err.Error()}
	}
	return nil
}

// onlyCount is the run of a job that loads nothing.
func (j *job) onlyCount(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var saving sync.WaitGroup
	defer saving.Wait()
	defer stop()
	ended := make(chan error, 1)
	saving.Go(func() { ended <- guarded(func() error { return j.count(ctx) }) })
	tick := time.NewTicker(j.engine.o.checkpoint)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			j.save()
		case err := <-ended:
			if err == nil && j.rec.MetadataOnly {
				j.rec.Counters.Done.Files = j.plan.Total.Files - j.plan.absents
				j.rec.Counters.Failed.Files = j.plan.absents
			}
			j.rec.Samples = j.plan.absent
			return err
		}
	}
}

// pass walks over everything behind the cursor. It counts beside that, if the count is
// not done.
func (j *job) pass(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel(nil) // before that
	counted := make(chan struct{})
	if j.plan.Counted {
		close(counted)
		if !j.pinned && j.rec.Loads() { // what was loaded before a restart must stay, too
			startPart(&work, cancel, func() error { j.pinAll(ctx); return nil })
		}
	} else {
		startPart(&work, cancel, func() error {
			err := j.count(ctx)
			if err == nil { // otherwise nobody goes on
				close(counted)
			}
			return err
		})
	}
	if room := j.o.Room; room != nil && !j.rec.Check {
		j.spare = &pins.Spare{Free: room.Free, Fits: counted}
	}
	j.pinned = true
	order := make(chan *item, window)
	from := j.rec.Cursor
	work.Go(func() {
		defer close(order) // once the context has the walk's error; else the close looks like the end of the walk
		tryPart(cancel, func() error {
			if len(j.others) > 0 { // this job may not fit beside others, and must not take their room
				select {
				case <-counted:
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			}
			return j.walk(ctx, from, order, func(it *item, p *GatePass) {
				startPart(&work, cancel, func() error { j.step(ctx, it, p); return nil })
			})
		})
	})
	c := &commit{job: j}
	if err := c.run(ctx, order); err != nil {
		return firstCause(ctx, err)
	}
	// The channel is closed by a walk that failed, too.
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	select {
	case <-counted:
	case <-ctx.Done():
	}
	j.save()
	return context.Cause(ctx)
}

// walk begins the steps in order.
func (j *job) walk(ctx context.Context, from Cursor, order chan<- *item, begin func(*item, *GatePass)) error {
	w := j.over()
	w.start = from
	if !j.rec.Check {
		w.ahead = j.loader.ahead
	}
	w.each = func(r ref) error {
		began := time.Now()
		j.pin(&r)
		if j.rec.Check {
			j.known(&r)
		}
		w.breathe(ctx, time.Since(began))
		return steps(&r, func(it *item) error {
			select {
			case order <- it:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			began := time.Now()
			present := j.present(ctx, it)
			if present {
				close(it.done)
			}
			w.breathe(ctx, time.Since(began))
			if present {
				return nil
			}
			if err := j.begin(ctx, it); err != nil {
				return err
			}
			pass, err := j.share.Enter(ctx, it.n > 1 || it.renewed)
			if err != nil {
				return err
			}
			begin(it, pass)
			return nil
		})
	}
	return w.from(ctx, from)
}

// over makes the walk over what the job was asked for.
func (j *job) over() walk {
	w := walk{Options: j.o, since: j.rec.Since, targets: j.targets, breathe: j.engine.gate.Breathe,
		goesOn: j.rec.Pass == 0 || j.rec.Counters.Failed.Files > 0, single: j.rec.List == "" && len(j.rec.Targets) == 1}
	if j.rec.Check {
		w.refresh, w.gone = j.refresh, j.gone
		w.goesOn = j.rec.List != "" // a path that cannot be listed is not known to be missing
	}
	return w
}

// targets calls each for what the job was asked for, from a cursor on.
func (j *job) targets(from Cursor, each func(target string, at, next Cursor) error) error {
	if j.rec.List == "" {
		all := outermost(j.rec.Targets)
		for i := from.Target; i < len(all); i++ {
			if err := each(all[i], Cursor{Target: i}, Cursor{Target: i + 1}); err != nil {
				return err
			}
		}
		return nil
	}
	i := from.Target
	return readList(j.engine.o.Files.list(j.rec.ID), from.Offset, func(path string, at, next int64) error {
		i++
		return each(path, Cursor{Target: i - 1, Offset: at}, Cursor{Target: i, Offset: next})
	})
}

// present reports whether a step needs no request, and so is over.
func (j *job) present(ctx context.Context, it *item) bool {
	o := &it.ref.object
	if it.ref.absent != "" || it.n == 0 && !it.renewed && !it.ref.changed {
		return true
	}
	if it.renewed || j.rec.Check || !o.Cacheable() {
		return false
	}
	it.out = outcome{object: o, first: it.first, n: it.n}
	has := it.ref.has
	if has == nil {
		has = j.loader.has(ctx, &it.out)
	}
	if it.out.lost(has) == 0 {
		it.out.held = it.out.bytes()
		return true
	}
	if j.rec.Pass == lastPass {
		it.out.notKept, it.out.cause = it.out.lost(has), j.o.words.full
		return true
	}
	return false
}

// begin waits until there is free room for what a step loads, or until all is known to
// fit.
func (j *job) begin(ctx context.Context, it *item) (err error) {
	dir, bytes, o := 0, int64(0), &it.ref.object
	if j.spare != nil {
		dir, bytes = j.o.Room.Needs(o)
	}
	it.end, err = j.spare.Begin(ctx, dir, bytes*it.n/max(1, o.Blocks()))
	return err
}

// step loads the blocks of one item, or checks them.
func (j *job) step(ctx context.Context, it *item, p *GatePass) {
	if j.rec.Check {
		out, read := j.verify(ctx, it, p)
		it.out = out
		close(it.done)
		p.Exit(ctx, read)
		return
	}
	if !it.renewed {
		it.out = j.loader.part(ctx, p, it.ref, outcome{object: &it.ref.object, first: it.first, n: it.n})
	}
	if it.renewed || it.out.stale && it.first == 0 && it.last {
		it.out = j.loader.replaced(ctx, p, it.ref)
	}
	loaded := it.out.loaded
	it.end()
	close(it.done) // the commit has it from here on
	p.Exit(ctx, loaded)
}

// pin keeps an object from being evicted while the job runs.
func (j *job) pin(r *ref) {
	if r.absent == "" && j.rec.Loads() && !j.loader.pins.Add(r.object.Version) {
		j.engine.told("a warm-up has no memory to keep what it loads from being evicted", errors.New("raise --cache-ram"))
	}
}

// pinAll pins everything that the job was asked for, as far as it is known, and claims
// its room.
func (j *job) pinAll(ctx context.Context) {
	defer j.claim.Whole()
	fit := newFit(j.o.Room, j.rec.Targets, j.claim, j.others)
	var mu sync.Mutex
	c := &count{walk: j.over(), listed: func(int64, int64) {}}
	c.each = func(r ref) error {
		if j.pin(&r); r.absent == "" {
			mu.Lock()
			defer mu.Unlock()
			fit.add(r.target, &r.object)
		}
		return nil
	}
	_ = c.all(ctx) // the walk gets the same error
}

// count sums up what there is, and refuses what cannot fit.
func (j *job) count(ctx context.Context) error {
	defer j.claim.Whole()
	fit := newFit(j.o.Room, j.rec.Targets, j.claim, j.others)
	c := &count{walk: j.over()}
	if j.rec.DryRun {
		c.ahead = j.loader.ahead
	}
	c.listed = func(names, hidden int64) {
		j.plan.Lock()
		defer j.plan.Unlock()
		j.plan.Hidden += hidden
		if j.rec.DryRun {
			j.plan.Lists += max(1, (names+hidden+listPage-1)/listPage)
		}
	}
	c.each = func(r ref) error {
		j.pin(&r)
		found := j.finds(ctx, &r)
		j.plan.Lock()
		defer j.plan.Unlock()
		j.plan.Total.Add(found.Total)
		j.share.Large(streams(j.plan.Total.Bytes))
		j.plan.Held.Add(found.Held)
		j.plan.Requests += found.Requests
		j.plan.Archived.Add(found.Archived)
		if r.absent != "" {
			return j.missesLocked(&r)
		}
		j.plan.inARow = 0
		if j.rec.MetadataOnly || j.rec.Check {
			return nil
		}
		j.plan.Needs = fit.add(r.target, &r.object)
		if j.rec.DryRun {
			return nil
		}
		return fit.refusal(false)
	}
	if err := c.all(ctx); err != nil {
		return firstCause(ctx, err)
	}
	var lacks error
	if !j.rec.MetadataOnly && !j.rec.Check {
		if lacks = j.besides(ctx, fit); lacks != nil && !j.rec.DryRun {
			return lacks
		}
	}
	j.plan.Lock()
	defer j.plan.Unlock()
	_, j.plan.Room, j.plan.Claimed = fit.Sums()
	j.plan.Missing, j.plan.Counted = j.plan.absents, true
	if lacks != nil {
		j.plan.Lacks = lacks.Error()
	}
	return nil
}

// finds is what one file adds to the plan. A dry run also looks at what of it is held.
func (j *job) finds(ctx context.Context, r *ref) Plan {
	found := Plan{Total: Tally{Files: 1, Bytes: r.object.Size}}
	if !j.rec.DryRun || r.absent != "" {
		return found
	}
	found.Held, found.Requests = j.loader.held(ctx, &r.object, r.has)
	if r.object.Archived() && found.Held.Files == 0 {
		found.Archived, found.Requests = Tally{Files: 1, Bytes: r.object.Size - found.Held.Bytes}, 0
	}
	return found
}

// missesLocked notes a path that does not exist or cannot be listed.
func (j *job) missesLocked(r *ref) error {
	p := &j.plan
	if p.absents++; len(p.absent) < maxSamples {
		p.absent = append(p.absent, Sample{Path: r.path(), Cause: r.absent})
	}
	if p.inARow++; !r.broken {
		p.inARow = 0
	}
	if p.inARow == brokenAfter {
		return brokenOff(r.absent)
	}
	return nil
}

// besides says why what was counted does not fit beside the jobs that began before. It
// waits until those have counted, since only then is it known what they take and what is
// shared.
func (j *job) besides(ctx context.Context, f *fit) error {
	for _, c := range j.others {
		select {
		case <-c.Counted():
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	err := f.refusal(true)
	if err == nil || len(j.others) == 0 {
		return err
	}
	again := newFit(f.of, f.targets, nil, j.others)
	var mu sync.Mutex
	c := &count{walk: j.over(), listed: func(int64, int64) {}}
	c.each = func(r ref) error {
		if r.absent == "" {
			mu.Lock()
			defer mu.Unlock()
			again.add(r.target, &r.object)
		}
		return nil
	}
	if err := c.all(ctx); err != nil {
		return firstCause(ctx, err)
	}
	f.Again(again.Fit) // a pin may have come into force meanwhile
	return f.refusal(true)
}

// save saves and shows what was counted.
func (j *job) save() {
	r := &j.rec
	j.plan.Lock()
	total := r.Plan.Total
	if r.Pass == 0 && !r.Plan.Counted {
		r.Plan = j.plan.Plan
		if !r.Plan.Counted && total.Files > r.Plan.Total.Files {
			r.Plan.Total = total // after a restart it is counted again
		}
	}
	if r.State == Listing && r.Plan.Counted {
		r.State = Loading
	}
	j.plan.Unlock()
	j.saveCheck()
	r.Reached = max(r.Reached, r.through().Bytes)
	r.Measured = j.loader.meter.Sum()
	r.Worked = j.before + time.Since(j.began).Seconds()
	j.engine.keep(r)
}
