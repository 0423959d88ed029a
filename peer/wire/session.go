package wire

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"runtime/debug"
	"sync"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/piece"
)

// session is one connection at the side that answers. One goroutine reads, one writes.
// Each item has a goroutine while it is worked on, unless the reader does that itself.
type session struct {
	server *Server
	guest  *guest
	in     input
	out    *output
	seed   uint64         // of answers
	last   uint64         // number of the last request; only the reader uses it
	held   int64          // bytes of answers held back to go out together; only the reader uses it
	wants  [MaxItems]Want // what is asked for; only the reader uses it
	asked  seen           // only the reader uses it
	end    context.CancelCauseFunc

	over    chan error     // the reader's error, at the end
	working sync.WaitGroup // items; Add by the reader
	workers *workers       // for items

	mu       sync.Mutex // guards the rest, and the fields of requests marked so; locked before output's, never after
	requests map[uint64]*request
	open     int       // items that are not written
	since    time.Time // when the first of these came
	watched  bool      // the writer will look for silence by itself
}

// request is in flight until its last item is about to be written.
type request struct {
	id, question uint64
	ctx          context.Context
	cancel       context.CancelCauseFunc
	left         int  // guarded by the session's lock
	cancelled    bool // guarded by it, too
	tasks        []task
	one          [1]task // backs tasks, most often
}

// task is an item: what is asked, and its answer on the way out.
type task struct {
	session *session
	of      *request
	want    Want
	item    uint16
	kind    kind         // of the answer; set before it is queued
	view    *hearth.View // the body of a Call, then the answer
	held    int64        // bytes taken of the guest's room
	queued  int64        // bytes, for the figures
	head    []byte
	room    [headerSize + maxSums + sealSize]byte // backs head, most often
}

func newSession(s *Server, g *guest, conn net.Conn, asker, answerer hello) *session {
	x := &session{server: s, guest: g, requests: map[uint64]*request{}, over: make(chan error, 1), out: newOutput(conn, &s.counters, s.o.Pool)}
	asked, answered := seeds(asker, answerer)
	x.in, x.seed = newInput(conn, &s.counters, nil, asked), answered
	x.out.idle = x.idle
	x.workers = newWorkers(&s.idle)
	return x
}

// run returns when the connection is over and only readers that were replaced may be
// left. It returns the first error.
func (s *session) run(ctx context.Context, cancel context.CancelCauseFunc) error {
	s.end = cancel
	var writer sync.WaitGroup
	writer.Go(func() {
		if err := s.out.run(); err != nil {
			cancel(err) // closes the connection, which ends the reader
		}
	})
	go s.reads(ctx)
	err := <-s.over
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	cancel(err)
	s.working.Wait()
	s.workers.End()
	s.out.close()
	writer.Wait()
	s.server.counters.inFlight.Add(int64(-s.open)) // these will not be written
	return err
}

func (s *session) read(ctx context.Context) error {
	for {
		if s.held >= heldMost || !s.in.whole() {
			if err := s.release(); err != nil {
				return err
			}
		}
		h, sum, meta, err := s.in.next()
		if err != nil {
			return err
		}
		if err := s.take(ctx, h, sum, meta); err != nil {
			return fmt.Errorf("request %d: %w", h.id, err)
		}
	}
}

// take takes a request or a cancellation.
func (s *session) take(ctx context.Context, h header, sum uint64, meta []byte) error {
	switch {
	case !h.kind.isRequest():
		return fmt.Errorf("%w: an answer to a question that nobody asked", ErrProtocol)
	case h.kind == kindCancel && h.id > s.last:
		return fmt.Errorf("%w: cancelled before it was asked", ErrProtocol)
	case h.kind == kindCancel:
		s.cancel(h.id)
		return nil
	case h.id != s.last+1:
		return fmt.Errorf("%w: replayed or lost, the last one was %d", ErrProtocol, s.last)
	}
	s.last = h.id
	inner, own, err := unseal(meta, sum, 0)
	if err != nil {
		return err
	}
	if h.kind == kindCall {
		if err := s.release(); err != nil { // the body may take long to come
			return err
		}
		return s.takeCall(ctx, &request{id: h.id, question: own}, h, inner)
	}
	left, items, err := parseCount(inner)
	if err != nil {
		return err
	}
	wants := s.wants[:items]
	if err := parseWants(inner[requestFixed:], wants, &s.asked); err != nil {
		return err
	}
	if items == 1 && s.ready(h, own, wants[0]) {
		return nil
	}
	r := &request{id: h.id, question: own}
	if r.tasks = r.one[:]; items > 1 {
		r.tasks = make([]task, items)
	}
	if err := s.begin(ctx, r, left); err != nil {
		return err
	}
	for i := range wants {
		r.tasks[i].want = wants[i]
	}
	if items == 1 && h.kind == kindFill {
		if done, err := s.here(ctx, &r.tasks[0]); done || err != nil {
			return err
		}
	}
	for i := 0; i < len(wants); {
		n := 1
		if h.kind == kindFill && s.server.o.Handler.Run != nil {
			n = runOf(wants[i:])
		}
		s.startItems(r.tasks[i:i+n], h.kind)
		i += n
	}
	return nil
}

// startItems has one item worked on, or a run of items.
func (s *session) startItems(tasks []task, k kind) {
	handler := s.server.o.Handler
	if len(tasks) > 1 {
		s.startRun(tasks, handler)
		return
	}
	get := handler.Fill
	if k == kindPeek {
		get = handler.Peek
	}
	t := &tasks[0]
	s.start(t, get != nil, func() error { return t.get(get) })
}

// begin opens a request of some tasks.
func (s *session) begin(ctx context.Context, r *request, left time.Duration) error {
	if left > 0 {
		// At its end, the request is cancelled with the cause of a deadline.
		deadline, stop := context.WithTimeout(ctx, left)
		r.ctx, r.cancel = context.WithCancelCause(deadline)
		cancel := r.cancel
		r.cancel = func(cause error) { cancel(cause); stop() }
	} else {
		r.ctx, r.cancel = context.WithCancelCause(ctx)
	}
	n := len(r.tasks)
	r.left = n
	for i := range r.tasks {
		r.tasks[i].session, r.tasks[i].of, r.tasks[i].item = s, r, uint16(i)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open+n > s.server.o.Requests {
		r.cancel(errMissed)
		return fmt.Errorf("%w: %d items unanswered and %d more, at most %d", ErrProtocol, s.open, n, s.server.o.Requests)
	}
	if s.open == 0 {
		s.since = time.Now()
	}
	s.open += n
	s.requests[r.id] = r
	s.server.counters.inFlight.Add(int64(n))
	s.server.counters.requests.Add(int64(n))
	if !s.watched {
		s.watched = true
		s.out.nudge()
	}
	return nil
}

// start has a task worked on, or refuses it.
func (s *session) start(t *task, can bool, work func() error) {
	if !can {
		t.answer(hearth.ErrRefused)
		return
	}
	if s.guest.working.Add(1) > int64(s.server.o.Requests) {
		s.guest.working.Add(-1)
		t.answer(hearth.ErrRefused)
		return
	}
	s.working.Add(1)
	s.workers.Do(func() {
		defer s.working.Done()
		s.reply(t, guard(work))
	})
}

// guard turns a panic into an error, so that no request can kill a node.
func guard(work func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return work()
}

// get has the handler answer. If the peer already has as many bytes to take as it may,
// get releases the View and asks again once there is room. If it kept the View while
// waiting, a slow peer would hold memory for each of its requests. If it waited for room
// first, blocks from a slow origin would hold up those in RAM.
func (t *task) get(get Get) error {
	if err := t.ask(get); err != nil || t.view == nil {
		return err
	}
	n, room := int64(t.want.N), t.session.guest.room
	if !room.TryAcquire(n) {
		t.release()
		if err := room.Acquire(t.of.ctx, n); err != nil {
			return context.Cause(t.of.ctx)
		}
		t.held = n
		return t.ask(get)
	}
	t.held = n
	return nil
}

func (t *task) ask(get Get) error {
	v, err := get(t.of.ctx, t.want.Block, t.want.Off, t.want.N)
	if err != nil {
		return err
	}
	if t.view = v; size(v) != t.want.N {
		return t.wrong()
	}
	return nil
}

func (t *task) wrong() error {
	return fmt.Errorf("the handler returned %d bytes instead of %d", size(t.view), t.want.N)
}

// takeCall reads the body of a Call before anything else is read.
func (s *session) takeCall(ctx context.Context, r *request, h header, meta []byte) error {
	left := time.Duration(binary.LittleEndian.Uint32(meta)) * time.Millisecond
	var room [maxSums]byte
	sums := room[:copy(room[:], meta[callFixed:])]
	r.tasks = r.one[:]
	if err := s.begin(ctx, r, left); err != nil {
		return err
	}
	t := &r.tasks[0]
	answer := s.server.o.Handler.Calls[h.item]
	if err := t.body(ctx, h.payload, answer != nil); err != nil {
		return err
	}
	var body []byte
	if t.view != nil {
		body = t.view.Bytes()
	}
	switch {
	case answer == nil || len(body) != h.payload:
		t.answer(hearth.ErrRefused)
		return nil
	case t.view != nil && !piece.Match(body, sums, t.view.Sums()):
		t.release()
		return fmt.Errorf("body of call %d: %w", h.item, ErrChecksum)
	}
	s.start(t, true, func() error { return t.call(answer, h.item, body) })
	return nil
}

// body reads the body of a Call into memory of the task. If there is no room or no memory
// for it, it drops the body.
func (t *task) body(ctx context.Context, n int, wanted bool) error {
	s := t.session
	if n == 0 {
		return nil
	}
	if !wanted || !s.guest.room.TryAcquire(int64(n)) {
		return s.in.discard(n)
	}
	t.held = int64(n)
	if t.view = take(ctx, s.server.o.Pool, n); t.view == nil {
		t.release() // the room
		return s.in.discard(n)
	}
	// Memory must not be held for ever for a body that does not come.
	err := s.out.conn.SetReadDeadline(time.Now().Add(stallAfter))
	if err == nil {
		err = s.in.payload(t.view.Bytes())
	}
	if err == nil {
		err = s.out.conn.SetReadDeadline(time.Time{})
	}
	if err != nil {
		t.release()
		return fmt.Errorf("body of %d bytes: %w", n, err)
	}
	return nil
}

func (t *task) call(answer Answer, number uint16, body []byte) error {
	v, err := answer(t.of.ctx, body)
	t.release() // the body
	if err != nil {
		return err
	}
	t.view = v
	n := size(v)
	if n > MaxBody {
		return fmt.Errorf("call %d: its answer has %d bytes, at most %d", number, n, MaxBody)
	}
	if !t.session.guest.room.TryAcquire(int64(n)) {
		return hearth.ErrRefused
	}
	t.held = int64(n)
	return nil
}

// cancel ends a request's work, if that is not over.
func (s *session) cancel(id uint64) {
	s.mu.Lock()
	r := s.requests[id]
	if r != nil {
		r.cancelled = true
	}
	s.mu.Unlock()
	if r != nil {
		r.cancel(errCancelled)
	}
}

// answer queues the answer of a task: its View, or an error.
func (t *task) answer(err error) {
	t.prepare(err)
	t.send()
}

// prepare makes an answer.
func (t *task) prepare(err error) {
	s := t.session
	if errors.Is(context.Cause(t.of.ctx), errCancelled) {
		err = errCancelled
	}
	if err != nil {
		t.release()
	}
	if t.view != nil {
		t.queued = int64(t.view.Len())
		s.server.counters.queued.Add(t.queued)
	}
	t.encode(err)
}

// send queues an answer.
func (t *task) send() {
	if !t.session.out.put(t) {
		t.gone()
	}
}

// encode makes the answer's head.
func (t *task) encode(err error) {
	t.kind = kindOf(err)
	h := header{id: t.of.id, kind: t.kind, item: t.item}
	head := t.room[:headerSize]
	switch t.kind {
	case kindData:
		if t.view != nil {
			h.payload = t.view.Len()
			head = piece.Append(head, t.view.Bytes(), t.view.Sums())
		}
	case kindError:
		e := errorOf(err)
		h.code = uint8(min(e.Class, classes-1))
		head = append(head, e.Text[:min(len(e.Text), MaxText)]...)
	}
	t.head, _ = seal(head, h, t.session.seed, t.of.question)
}

// parts is outgoing's. An answer that was cancelled while it waited is not sent.
func (t *task) parts() (head []byte, v *hearth.View) {
	s, r := t.session, t.of
	s.mu.Lock()
	cancelled := r.cancelled
	s.open--
	if r.left--; r.left == 0 {
		delete(s.requests, r.id)
	}
	over := r.left == 0
	s.mu.Unlock()
	if over {
		r.cancel(errMissed) // frees the context; the work is over
	}
	if cancelled && t.kind != kindCancelled {
		t.encode(errCancelled)
	}
	s.server.counters.inFlight.Add(-1)
	s.server.counters.answers[t.kind].Add(1)
	if t.kind != kindData {
		return t.head, nil
	}
	return t.head, t.view
}

// gone is outgoing's.
func (t *task) gone() {
	t.session.server.counters.queued.Add(-t.queued)
	t.release()
}

// release releases the task's bytes and their room.
func (t *task) release() {
	if t.view != nil {
		t.view.Release()
		t.view = nil
	}
	if t.held > 0 {
		t.session.guest.room.Release(t.held)
		t.held = 0
	}
}

// idle is asked by the writer. If answers are owed and nothing has been sent for a while,
// it returns a "filling" frame in the name of the oldest request.
func (s *session) idle(now, sent time.Time) (plain, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.requests) == 0 { // an answer that is ready is owed only until it is written
		s.watched = false
		return nil, 0
	}
	if s.since.After(sent) {
		sent = s.since
	}
	if left := fillingAfter - now.Sub(sent); left > 0 {
		return nil, left
	}
	first := uint64(math.MaxUint64)
	for id := range s.requests {
		first = min(first, id)
	}
	s.server.counters.answers[kindFilling].Add(1)
	frame, _ := seal(make([]byte, headerSize), header{id: first, kind: kindFilling}, s.seed, 0)
	return frame, 0
}
