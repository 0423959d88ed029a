package warmup

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"sync"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/warmup/pins"
)

// Options are what an Engine works with.
type Options struct {
	// Source is the node's shared attempts (singleflight). It has Keeper keep what it
	// fetches.
	Source Loader
	// Keeper is the disk tier. nil means that there is none; then a job can load only
	// names.
	Keeper hearth.Store
	// Owners keep most blocks in a ring. nil means that this node keeps all.
	Owners Owners
	// Pins learn what belongs to the jobs at work. nil means that nobody asks for that.
	Pins *Pins
	// Durable pins outlive the job that made them. nil means that there are none.
	Durable Durable
	// Ready is closed once jobs may begin. nil means at once.
	Ready <-chan struct{}
	// Checker reads what Keeper holds. nil means that there are no checks.
	Checker Checker
	// Room says what fits. nil means that everything fits.
	Room Room
	// Volumes are in the place of the disk tier for jobs whose request says so. nil means that there are none.
	Volumes *Volumes
	Names   Names
	// Records keep jobs; nil means that Files keep them. Files keep lists.
	Records Records
	Files   *Files
	// Readers counts the requests of readers so far. Throttled counts the answers in
	// which origins asked to slow down. Connections is how many connections warm-up may
	// use.
	Readers, Throttled func() int64
	Connections        func() int
	// Explain turns an error into a line for people. nil means its text.
	Explain func(error) string
	// Now is the wall clock for the times of jobs. nil means time.Now.
	Now func() time.Time
	// Log hears of errors that should be known and stop nothing.
	Log func(what string, err error)

	checkpoint time.Duration // 0 means checkpointEvery; tests are in a hurry

	claims *pins.Claims // of the jobs at work
	// known waits until the Keeper knows what it holds. nil means that it knows.
	known func(ctx context.Context) error
	words words
}

// Volumes are what jobs that keep blocks on volumes have in the place of the Options' fields of the same names.
type Volumes struct {
	Source  Loader
	Keeper  hearth.Store
	Owners  Owners
	Pins    *Pins
	Checker Checker
	Room    Room
	// Known waits until it is known what the volumes hold. Until then Keeper misses blocks that it has. An error says
	// why none can be used. Waits says what it would wait for now; "" means for nothing.
	Known func(ctx context.Context) error
	Waits func() string
}

// words are how people call what keeps the blocks of a job.
type words struct{ tier, unsafe, declined, full string }

func (o *Options) nameDisk() {
	o.claims = &pins.Claims{}
	o.words = words{tier: "the disk tier", unsafe: "it could not be flushed to the disk: ", declined: "the disk tier took it and did not keep it",
		full: "the cache has no room for it beside what else is read"}
}

// onVolumes makes these the Options of jobs that keep blocks on volumes.
func (o *Options) onVolumes(v *Volumes) {
	o.Source, o.Keeper, o.Owners, o.Pins, o.Checker, o.Room, o.known = v.Source, v.Keeper, v.Owners, v.Pins, v.Checker, v.Room, v.Known
	o.claims = &pins.Claims{}
	o.words = words{tier: "volumes", unsafe: "it could not be flushed to its volume: ", declined: "a volume took it and did not keep it",
		full: "the volumes have no room for it beside what else comes there"}
}

// Durable hears of jobs, for the pins that they make.
type Durable interface {
	// Begin is called before a job with PinS begins. An error refuses the job.
	Begin(r *Record) error
	// End is called when a job has ended, before anybody can see that. Its own objects
	// are still pinned then.
	End(r *Record)
}

// mostJobs are at work at a time; the others are queued. Each may hold some megabytes of
// names.
const mostJobs = 8

// Engine runs jobs.
type Engine struct {
	o, vol Options // of jobs that keep blocks in the disk tier, and on volumes
	gate   *Gate
	ctx    context.Context
	cancel context.CancelCauseFunc
	work   sync.WaitGroup

	mu      sync.Mutex // guards the rest
	line    *line      // of mostJobs
	last    int64      // the highest Number of a job
	closed  bool
	total   Counters // of all jobs since Open
	shown   map[string]*shown
	changed chan struct{} // closed and replaced when a shown record changes
}

// shown is a job as it was last saved.
type shown struct {
	record Record
	stop   context.CancelCauseFunc // nil means that it does not run
	pace   growth
	// unsaved is why the record of its end could not be saved.
	unsaved error
}

// Open returns an Engine, which goes on with the jobs that are not over.
func Open(o Options) (*Engine, error) {
	if o.Records == nil {
		o.Records = o.Files
	}
	if o.checkpoint == 0 {
		o.checkpoint = checkpointEvery
	}
	if o.Explain == nil {
		o.Explain = error.Error
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	e := &Engine{o: o, vol: o, gate: NewGate(), line: newLine(mostJobs), shown: map[string]*shown{}, changed: make(chan struct{})}
	e.o.nameDisk()
	volumes := o.Volumes
	if volumes == nil { // for a job of a node that had some
		volumes = &Volumes{Known: func(context.Context) error { return errors.New("this node has none") }}
	}
	e.vol.onVolumes(volumes)
	e.ctx, e.cancel = context.WithCancelCause(context.Background())
	all, err := o.Records.Load()
	if err != nil {
		return nil, err
	}
	e.work.Go(func() {
		e.gate.Run(e.ctx, Pressure{Readers: o.Readers, Throttled: o.Throttled, Most: o.Connections})
	})
	e.mu.Lock()
	defer e.mu.Unlock()
	slices.SortFunc(all, older) // jobs go on in the order in which they began, and the first owns what is shared
	for _, r := range all {
		e.shown[r.ID], e.last = &shown{record: r}, r.Number
		if !r.State.Over() {
			e.startLocked(r)
		}
	}
	return e, nil
}

// Close stops the work on all jobs. The next Engine goes on with them.
func (e *Engine) Close() {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	e.cancel(errClosed)
	e.work.Wait()
}

// Submit begins a job. If the request has a list, paths is the list, separated by NUL if
// nul is set. canonical rewrites a path so that it means the same after a restart.
func (e *Engine) Submit(q Request, paths io.Reader, nul bool, canonical func(string) string) (Record, error) {
	if err := e.refuses(&q); err != nil {
		return Record{}, err
	}
	r := Record{ID: newID(), Request: q, State: Queued, Times: Times{Created: e.o.Now()}, Since: e.o.Names.Now()}
	r.Targets, r.As = nil, nil
	as := map[string]string{}
	for i, t := range q.Targets {
		target := canonical(t)
		r.Targets = append(r.Targets, target)
		as[target] = q.Shown()[i]
	}
	if r.PinS == 0 { // else each is a pin
		r.Targets = outermost(r.Targets)
	}
	for _, t := range r.Targets {
		r.As = append(r.As, as[t])
	}
	if slices.Equal(r.As, r.Targets) {
		r.As = nil
	}
	if q.List != "" {
		if err := e.o.Files.Spool(r.ID, paths, nul, canonical); err != nil {
			return Record{}, err
		}
	}
	s := &shown{}
	e.mu.Lock()
	err := e.beginLocked(s, r)
	begun := s.record
	e.mu.Unlock()
	if err != nil {
		e.o.Files.remove(r.ID + listSuffix)
		return Record{}, err
	}
	e.forget()
	return begun, nil
}

// of returns what a job works with.
func (e *Engine) of(q *Request) *Options {
	if q.ToVolume {
		return &e.vol
	}
	return &e.o
}

// refuses says why a job of this kind cannot do anything at this node.
func (e *Engine) refuses(q *Request) error {
	switch {
	case q.ToVolume && (e.o.Volumes == nil || q.PinS != 0):
		return Refusal("nothing can be kept on volumes here, and pins hold what disks have: " +
			"attach a volume by hearth volume attach, or volumes: in the configuration, and leave out --pin")
	case q.ToVolume && q.Check && e.o.Files.Dir == "":
		return Refusal("what a check finds is kept on disk, and this node has no disk tier: start it with --cache-disks PATH=SIZE")
	case e.of(q).Keeper == nil && !q.MetadataOnly:
		return Refusal("this node has no disk tier, so that nothing can be kept for later: start it with --cache-disks PATH=SIZE, " +
			"or warm up names alone with --metadata-only")
	}
	return nil
}

// beginLocked lets a job begin once its record is saved. It saves without the lock. A
// caller that learns of the job finds it again, however the process ends.
func (e *Engine) beginLocked(s *shown, r Record) error {
	if e.closed {
		return errClosed
	}
	e.work.Add(1) // Close waits for this, or the next Engine begins what was saved
	defer e.work.Done()
	s.stop = func(error) {} // nobody else begins it
	before := s.record
	e.last++
	r.Number = e.last
	e.mu.Unlock()
	err := e.note(&r, &before)
	e.mu.Lock()
	if s.stop = nil; err != nil {
		return err
	}
	s.record, s.pace, s.unsaved = r, growth{}, nil
	e.shown[r.ID] = s
	e.startLocked(r)
	return nil
}

// note saves the record of a job that begins, and tells Durable of the pins that it
// makes. If Durable refuses them, the record becomes what it was before, or is dropped. A
// Records store that cannot drop a record has the job as refused.
func (e *Engine) note(r, before *Record) error {
	if err := e.o.Records.Save(*r); err != nil || e.o.Durable == nil || r.PinS == 0 {
		return err
	}
	err := e.o.Durable.Begin(r)
	switch {
	case err == nil:
	case before.ID == "":
		r.State, r.Kind, r.Error = Failed, kindRefused, err.Error()
		err = errors.Join(err, e.o.Records.Save(*r))
		e.o.Files.drop(r.ID)
	default:
		err = errors.Join(err, e.o.Records.Save(*before))
	}
	return err
}

// newID is 8 hex digits, few enough to type.
func newID() string {
	var b [4]byte
	_, _ = rand.Read(b[:]) // it never fails
	return hex.EncodeToString(b[:])
}

// forget drops the oldest ended jobs beyond the history, with their files. It also drops
// jobs whose lists take more than MaxList together, since the disk is for blocks.
func (e *Engine) forget() {
	lists := listSizes(e.o.Files.Dir, listSuffix) // a list that cannot be read now is asked for again with the next job
	e.mu.Lock()
	var ended []*shown
	for _, s := range e.shown {
		if s.record.State.Over() && s.stop == nil {
			ended = append(ended, s)
		}
	}
	slices.SortFunc(ended, func(a, b *shown) int { return older(b.record, a.record) })
	kept, bytes := history{}, int64(0)
	var gone []string
	for _, s := range ended {
		id := s.record.ID
		bytes += lists[id]
		if kept.beyond(&s.record) || lists[id] > 0 && bytes > MaxList {
			delete(e.shown, id)
			gone = append(gone, id)
		}
	}
	e.mu.Unlock()
	for _, id := range gone {
		e.o.Files.drop(id)
	}
}

// startLocked runs a job on a goroutine of its own.
func (e *Engine) startLocked(r Record) {
	place := e.line.Join()
	ctx, stop := context.WithCancelCause(e.ctx)
	e.shown[r.ID].stop = stop
	o := e.of(&r.Request)
	j := &job{engine: e, o: o, rec: r, loader: newLoader(o, r.Rate), began: time.Now(), before: r.Worked}
	j.loader.meter.Start(r.Measured)
	e.work.Go(func() {
		defer stop(nil)
		defer place.Leave()
		if e.o.Ready != nil {
			select {
			case <-e.o.Ready:
			case <-ctx.Done():
			}
		}
		if err := place.Enter(ctx, j.open); err != nil { // until then it is queued
			j.end(err)
			return
		}
		j.share = e.gate.Join()
		defer j.share.Leave()
		defer j.loader.pins.Close()
		defer o.claims.Close(j.claim)
		j.end(guarded(func() error { return j.run(ctx) }))
	})
}

// open opens the job's set of pins and its claim, so that jobs let in later see them.
func (j *job) open() {
	j.loader.pins = j.o.Pins.Open()
	if j.o.Room != nil {
		j.claim, j.others = j.o.claims.Open(j.loader.pins, len(j.o.Room.Rooms(nil)), j.rec.Loads())
	}
}

// end notes how a run ended. A run that Close broke off has not ended.
func (j *job) end(err error) {
	r := &j.rec
	var f *failure
	switch {
	case errors.Is(err, errClosed):
		j.engine.stopped(r.ID)
		return
	case errors.Is(err, errCancelled):
		r.State = Cancelled
	case errors.As(err, &f):
		r.State, r.Kind, r.Error = Failed, f.kind, f.text
	case err != nil:
		r.State, r.Kind, r.Error = Failed, kindFailed, j.engine.o.cause(err)
	case r.Counters.Never().Files > 0 || r.Lost > 0 || r.Checked.Bad():
		r.State = Partly
	default:
		r.State = Done
	}
	now := j.engine.o.Now()
	r.Ended = &now
	r.Counters, r.Cursor.File = r.counted(), nil
	j.plan.Lock()
	if !r.Plan.Counted {
		r.Plan = j.plan.Plan
	}
	j.plan.Unlock()
	if d := j.engine.o.Durable; d != nil {
		d.End(r)
	}
	j.o.claims.Close(j.claim) // the durable pins claim what they hold by now
	j.engine.stopped(r.ID)
	j.save()
}

// stopped notes that nobody works on a job any more.
func (e *Engine) stopped(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := e.shown[id]; s != nil {
		s.stop = nil
	}
}

// keep saves a record. It shows the record once that is saved, or once the job is over.
func (e *Engine) keep(r *Record) {
	saved := r.clone()
	err := e.o.Records.Save(saved)
	if err != nil {
		e.told("a job's progress cannot be saved", err)
		if !saved.State.Over() {
			return // the next checkpoint tries again
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := e.shown[saved.ID]; s != nil {
		before, now := s.record.counted(), saved.counted()
		for v := range verdicts {
			if saved.Check {
				break // a check makes nothing present
			}
			was, is := before.Of(v), now.Of(v)
			e.total.Of(v).Add(Tally{Files: max(0, is.Files-was.Files), Bytes: max(0, is.Bytes-was.Bytes)})
		}
		s.record, s.unsaved = saved, err
		brought := now.Done.Bytes + now.Changed.Bytes
		if saved.Check {
			brought = saved.through().Bytes
		}
		s.pace.Note(time.Now(), brought)
	}
	close(e.changed)
	e.changed = make(chan struct{})
}

func (e *Engine) told(what string, err error) {
	if e.o.Log != nil {
		e.o.Log(what, err)
	}
}

// cause is an error in words.
func (o *Options) cause(err error) string {
	if errors.Is(err, fs.ErrNotExist) {
		return "no such file or directory"
	}
	return o.Explain(err)
}

func unknown(id string) error { return Unknown("there is no job " + id + " (hearth jobs lists them)") }

// Get returns a job as it was last saved, and a channel that is closed at the next change
// of any job.
func (e *Engine) Get(id string) (View, <-chan struct{}, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.shown[id]
	if s == nil {
		return View{}, nil, unknown(id)
	}
	return e.view(s), e.changed, nil
}

// view is how a job is shown, with what it waits for.
func (e *Engine) view(s *shown) View {
	v := s.view()
	if v.ToVolume && !v.State.Over() && e.o.Volumes != nil && e.o.Volumes.Waits != nil {
		v.Waits = e.o.Volumes.Waits()
	}
	return v
}

// Done is closed when the Engine ends.
func (e *Engine) Done() <-chan struct{} { return e.ctx.Done() }

// Total is what became of all jobs' files since Open.
func (e *Engine) Total() Counters {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.total
}

// List returns all jobs, the latest first.
func (e *Engine) List() []View {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := make([]View, 0, len(e.shown))
	for _, s := range e.shown {
		all = append(all, e.view(s))
	}
	slices.SortFunc(all, func(a, b View) int { return older(b.Record, a.Record) })
	return all
}

// Cancel ends a job; what it loaded stays. It returns once the end is saved, or with an
// error if the context ends before that.
func (e *Engine) Cancel(ctx context.Context, id string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.shown[id]
	over := func() error { return Refusal("the job " + id + " is over: " + string(s.record.State)) }
	switch {
	case s == nil:
		return unknown(id)
	case s.record.State.Over():
		return over()
	case s.stop != nil: // otherwise its end is being saved
		s.stop(errCancelled)
	}
	for !s.record.State.Over() {
		changed := e.changed
		e.mu.Unlock()
		var err error
		select {
		case <-changed:
		case <-ctx.Done():
			err = context.Cause(ctx)
		case <-e.ctx.Done():
			err = errClosed
		}
		e.mu.Lock()
		if err != nil && !s.record.State.Over() {
			return fmt.Errorf("the job %s is not cancelled yet: %w", id, err)
		}
	}
	switch {
	case s.record.State != Cancelled:
		return over()
	case s.unsaved != nil:
		return fmt.Errorf("the end of the job %s cannot be saved, so that it goes on after a restart of the node: %w", id, s.unsaved)
	}
	return nil
}

// Retry begins a job that is over once more, under its id. What is held costs nothing.
func (e *Engine) Retry(id string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.shown[id]
	switch {
	case s == nil:
		return unknown(id)
	case s.stop != nil || !s.record.State.Over():
		return Refusal("the job " + id + " is not over")
	}
	return e.beginLocked(s, Record{ID: id, Request: s.record.Request, State: Queued, Times: Times{Created: e.o.Now()}, Since: e.o.Names.Now()})
}
