package namespace

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/namespace/record"
	"github.com/hearthfs/hearth/namespace/store"
)

// quiet is the key of a context that Quiet made.
type quiet struct{}

// Quiet returns a context for look-ups and walks that ask no origin. They return the last known name,
// with a TTL of 0 where it is not believed any more, or *Absent.
func Quiet(ctx context.Context) context.Context { return context.WithValue(ctx, quiet{}, true) }

// Lookup finds a name in a directory. The error *Absent means that there is no such name.
func (t *Tree) Lookup(ctx context.Context, dir uint64, name string) (Node, error) {
	t.stats.lookups.Add(1)
	d, err := t.dirs.get(t, dir)
	if err != nil {
		return Node{}, err
	}
	defer d.release()
	if p, ok := t.links.Load().below[d.hash][name]; ok {
		return t.placeNode(p, name)
	}
	m, ok := record.ParseName(name)
	if !ok || d.link == nil || !m.Hashed && !record.Representable(d.prefix()+m.Segment+"/") {
		return Node{}, &Absent{TTL: defaultBound}
	}
	if m.Hashed {
		return t.lookupHashed(ctx, d, name)
	}
	return t.lookup(ctx, d, m)
}

// lookupHashed finds a shortened name. Only a listing tells which segment it stands for.
func (t *Tree) lookupHashed(ctx context.Context, d *directory, name string) (Node, error) {
	listed := int64(-1)
	for range maxRebuilt {
		ttl, gen := d.listingLeft(t), t.db.Generation()
		v, ok, err := t.db.Get(nil, record.NameKey(nil, record.KindHashed, d.hash, name))
		if err != nil {
			return Node{}, err
		}
		if ok {
			e, _, err := d.entry(t, string(v))
			if err != nil {
				return Node{}, err
			}
			if gen != t.db.Generation() {
				continue
			}
			return t.lookup(ctx, d, record.Meaning{Segment: record.Segment(string(v)), File: e.Beside})
		}
		if (ttl > 0 || gen == listed || ctx.Value(quiet{}) != nil) && gen == t.db.Generation() {
			return Node{}, &Absent{TTL: ttl}
		}
		l, err := t.listUnless(ctx, d, t.since(d), nil, func() bool { return d.listingLeft(t) > 0 })
		if err == nil && l == nil {
			continue
		}
		if err == nil {
			err = l.Wait(ctx)
		}
		if err == nil {
			err = l.Err()
		}
		if err == nil && l.believed() {
			listed = l.age
		}
		if err != nil && !errors.Is(err, store.ErrRebuilt) {
			return Node{}, err
		}
	}
	return Node{}, store.ErrRebuilt
}

// placeNode is the node of a directory that the links make.
func (t *Tree) placeNode(p place, name string) (Node, error) {
	id, err := t.placeID(p)
	if err != nil {
		return Node{}, err
	}
	return Node{ID: id, Dir: true, Name: name, ModTime: t.dirs.seen(t, id), TTL: defaultBound}, nil
}

// lookup finds what a name stands for: from the database where that is known and believed, else at the
// origin.
func (t *Tree) lookup(ctx context.Context, d *directory, m record.Meaning) (Node, error) {
	k, sure, err := t.last(d, m)
	if err != nil {
		return Node{}, err
	}
	if ctx.Value(quiet{}) != nil {
		return k.answer(t, d, k.ttl)
	}
	if ttl := k.ttl; ttl > 0 {
		left := ttl
		if k.found && !k.Dir && d.link.differs.Load() != nil {
			left = max(left, d.listingLeft(t)) // a listing cannot confirm a version of this link
		}
		t.renew(d, left)
		return k.answer(t, d, ttl)
	}
	down := d.link.down.Load() != nil && d.link.believes()
	if down && sure && !k.Doubted {
		t.stats.stale.Add(1)
		t.askQuietly(d, m)
		return k.answer(t, d, 0)
	}
	gen := t.db.Generation()
	asked, err := t.ask(ctx, d, m, func() bool {
		k, err := t.known(d, m)
		return err == nil && k.ttl > 0
	})
	if err != nil {
		if ctx.Err() == nil && d.link.believes() && !denied(err) {
			if k, sure, known := t.last(d, m); known == nil && sure && !k.Doubted { // others may have asked meanwhile
				t.stats.stale.Add(1)
				return k.answer(t, d, 0)
			}
		}
		return Node{}, err
	}
	k, err = t.known(d, m)
	for range 3 { // a question that was joined may have ended with a listing's word too
		if err != nil || !k.found || !d.link.word(&k.Entry) || d.link.Freshness.Mode == Strict {
			break
		}
		// A listing answered first, and its word is not enough.
		if asked, err = t.ask(ctx, d, m, nil); err != nil {
			return Node{}, err
		}
		k, err = t.known(d, m)
	}
	if !k.found && err == nil && (asked != gen || t.db.Generation() != gen) {
		// The answer was written, and then lost with all names, since the database
		// was corrupt. That happens a few times at most: then names live in memory.
		return t.lookup(ctx, d, m)
	}
	if err != nil {
		return Node{}, err
	}
	return k.answer(t, d, k.ttl)
}

// last is what the database has for a name, and whether that is certain. It is certain when the
// database has the name, or had all of the directory before it was asked.
func (t *Tree) last(d *directory, m record.Meaning) (k knowledge, sure bool, err error) {
	gen, whole := t.db.Generation(), d.whole(t)
	k, err = t.known(d, m)
	return k, err == nil && (k.found && !d.link.word(&k.Entry) || !k.found && whole) && gen == t.db.Generation(), err
}

// knowledge is what the database has for a name.
type knowledge struct {
	record.Entry
	sort  string
	found bool
	ttl   time.Duration // how long that may be believed
}

func (k *knowledge) answer(t *Tree, d *directory, ttl time.Duration) (Node, error) {
	if !k.found || marks(k.sort, &k.Entry) {
		return Node{}, &Absent{TTL: ttl}
	}
	return d.node(t, k.sort, &k.Entry, ttl), nil
}

// marks reports whether an entry is an empty object at the directory's own key. Such a marker is a key
// of the bucket, but no name in a mount: there it is the directory itself.
func marks(sort string, e *record.Entry) bool { return sort == "" && !e.Dir && e.Size == 0 }

// known looks a name up in the database. When a file and a directory have the same name, the directory
// comes first, and the file has a name of its own.
func (t *Tree) known(d *directory, m record.Meaning) (knowledge, error) {
	b := d.belief(t)
	file, ok, err := d.entry(t, m.Segment)
	if err != nil {
		return knowledge{}, err
	}
	if ok {
		_, linked := t.links.Load().below[d.hash][record.Escape(m.Segment)]
		if (file.Beside || linked) == m.File {
			return knowledge{file, m.Segment, true, b.name(m.Segment, &file)}, nil
		}
	}
	if !m.File {
		sort := m.Segment + "/"
		dir, ok, err := d.entry(t, sort)
		if ok || err != nil {
			return knowledge{dir, sort, ok, b.name(sort, &dir)}, err
		}
	}
	return knowledge{ttl: b.absence(d, m)}, nil
}

// asks are the questions about single names that are in flight (singleflight): all who ask for a name
// at the same time share one.
type asks struct {
	mu     sync.Mutex // guards byName
	byName map[askKey]*ask
	newest answered // of all that have ended
}

type askKey struct {
	dir     [16]byte
	segment string
	file    bool // a directory is no answer
}

type ask struct {
	gen  int64 // generation of the database at the beginning
	done chan struct{}
	// Valid once done is closed:
	err  error
	void bool // the origin was not asked: the database knew the name by then
}

// ask asks the origin for a name and waits until the answer is in the database. It also returns the
// generation of the database that the question began with.
//
// For a strict link each caller asks by itself: a question that began earlier may have been answered
// before the change that the caller must see. known reports whether what the database has by now is
// enough: a question that ended since the caller read it has written there.
func (t *Tree) ask(ctx context.Context, d *directory, m record.Meaning, known func() bool) (gen int64, err error) {
	if d.link.Freshness.Mode == Strict {
		gen = t.db.Generation()
		return gen, t.inquire(ctx, d, m, nil)
	}
	for {
		a, began := t.askBehind(d, m, known)
		select {
		case <-a.done:
		case <-ctx.Done():
			return a.gen, context.Cause(ctx)
		}
		if began || !a.void {
			return a.gen, a.err
		}
	}
}

// askQuietly asks in the background, unless many questions are in flight. Nobody waits for the answer.
func (t *Tree) askQuietly(d *directory, m record.Meaning) {
	t.asks.mu.Lock()
	busy := len(t.asks.byName) >= quietAsks
	t.asks.mu.Unlock()
	if !busy {
		t.askBehind(d, m, nil)
	}
}

// askBehind joins the question for a name that is in flight, or begins one. A question that begins asks
// nobody when known reports that the database has the answer by then; a nil known never does.
func (t *Tree) askBehind(d *directory, m record.Meaning, known func() bool) (a *ask, began bool) {
	key := askKey{d.hash, m.Segment, m.File}
	s := &t.asks
	s.mu.Lock()
	defer s.mu.Unlock()
	if a := s.byName[key]; a != nil {
		return a, false
	}
	a = &ask{gen: t.db.Generation(), done: make(chan struct{})}
	s.byName[key] = a
	d.retain()
	run := func() {
		defer d.release()
		a.err = errors.New("the question ended early") // unless it ends well
		defer func() {
			s.mu.Lock()
			delete(s.byName, key)
			s.mu.Unlock()
			close(a.done)
		}()
		if a.void = known != nil && known(); a.void {
			a.err = nil
			return
		}
		a.err = t.inquire(t.ctx, d, m, a.done)
	}
	if !t.behind(run) {
		a.err = context.Cause(t.ctx)
		delete(s.byName, key)
		close(a.done)
		d.release()
	}
	return a, true
}

// inquire asks the origin, or the directory's owner, for a name and writes down the answer.
func (t *Tree) inquire(ctx context.Context, d *directory, m record.Meaning, gate <-chan struct{}) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	q := &inquiry{t: t, d: d, segment: m.Segment, beside: m.File}
	q.begin()
	k, err := t.known(d, m)
	if err != nil {
		return err
	}
	if !(k.found && q.listed(ctx, &k)) && (q.beside || !q.askElsewhere(ctx, &k, gate)) {
		err = q.askOrigin(ctx, &k, gate)
	}
	switch {
	case err == nil:
		return q.keep()
	case ctx.Err() == nil:
		return t.failed(ctx, d.link, &q.asking, err)
	}
	return err
}

// inquiry is what is found out about one segment of a directory.
type inquiry struct {
	t       *Tree
	d       *directory
	segment string
	beside  bool // the file is asked for that stands beside a directory; the directory is no answer
	began   int64
	asked   int64 // the same, as Clock.Nano tells it
	file    finding
	dir     finding
	object  hearth.Object // of the file
	copied  bool          // another node answered: began and asked are as it says
	heard   int64         // an answer that is older is not enough; 0 means that no news came
	asking  asking        // at the origin
}

// begin notes when the question is asked.
func (q *inquiry) begin() {
	q.asked = q.t.clock.Nano()
	q.began = q.asked / 1e6
}

type finding struct{ known, found bool }

// briefListing bounds the time of a listing that is asked for in place of one name, as it took last and
// as it may take now. A pass over a directory's files then costs one request.
const briefListing = 500 * time.Millisecond

// listed reports whether such a brief listing answered. A doubted name is asked for by itself.
func (q *inquiry) listed(ctx context.Context, k *knowledge) bool {
	s, quiet := q.d.state.Load(), listRetry.Milliseconds()
	if q.d.link.Freshness.Mode != Bounded || k.Doubted || !k.Dir && q.d.link.differs.Load() != nil || !q.d.whole(q.t) || s.took > briefListing || q.t.clock.Now()-s.failed < quiet {
		return false
	}
	l, _ := q.t.listUnless(ctx, q.d, 0, nil, func() bool { // does not wait: any running listing is enough
		return q.d.state.Load().listed != s.listed && q.d.listingLeft(q.t) > 0
	})
	if l == nil {
		return true // one ended just now
	}
	ctx, cancel := context.WithTimeout(ctx, briefListing)
	defer cancel()
	return l.Wait(ctx) == nil && l.Err() == nil && l.believed()
}

// askOrigin asks the origin. It asks first for what the name was last known as, a file or a directory.
func (q *inquiry) askOrigin(ctx context.Context, k *knowledge, gate <-chan struct{}) (err error) {
	if q.d.link.Freshness.Mode != Strict {
		release, err := q.t.turn(ctx, q.t.tokens.asks)
		if err != nil {
			return err
		}
		defer release()
	}
	q.asking = q.t.asking(q.d.link)
	defer q.asking.end()
	switch {
	case k.found && !k.Dir:
		err = q.fileFirst(ctx)
	case k.found:
		if err = q.note(q.askList(ctx)); err == nil && !q.dir.found {
			err = q.note(q.askHead(ctx))
		}
	case q.d.sharer() != nil:
		err = q.patiently(ctx, gate)
	default:
		err = q.both(ctx, gate)
	}
	return err
}

// fileFirst asks for the file, and for the directory where there is none.
func (q *inquiry) fileFirst(ctx context.Context) error {
	err := q.note(q.askHead(ctx))
	if err == nil && !q.file.found {
		err = q.note(q.askList(ctx))
	}
	return err
}

// besideWait is how long a file that was found waits for the other answer: a directory of the same name
// would take the name.
const besideWait = 100 * time.Millisecond

// answer is the origin's to one of the two questions of both.
type answer struct {
	file   bool
	found  bool
	object hearth.Object
	err    error
}

// both asks for the file and the directory at once, and begins to list the parent beside them. The
// first answer wins.
func (q *inquiry) both(ctx context.Context, gate <-chan struct{}) error {
	answers := make(chan answer, 2)
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wg.Go(func() { answers <- q.askHead(ctx) })
	wg.Go(func() { answers <- q.askList(ctx) })
	var l *listing
	if q.d.link.Freshness.Mode != Strict {
		l = q.listBeside(ctx, gate)
	}
	var late <-chan time.Time
	var failed error
	for n := 0; n < 2 && (q.beside || !q.dir.found); {
		var moved <-chan struct{}
		if l != nil {
			_, _, _, moved = l.Snapshot()
			if q.passed(l) {
				return nil
			}
		}
		select {
		case a := <-answers:
			n++
			if err := q.note(a); err != nil {
				failed = err
			} else if a.found && a.file {
				late = time.After(besideWait)
			}
		case <-moved:
		case <-late:
			return nil
		}
	}
	if q.file.found || q.dir.found || l != nil && q.passed(l) { // the listing may have passed it at the same time
		return nil
	}
	return failed
}

// note takes over an answer, or returns its error.
func (q *inquiry) note(a answer) error {
	switch {
	case a.err != nil:
	case a.file:
		q.object, q.file = a.object, finding{true, a.found}
	default:
		q.dir = finding{true, a.found}
	}
	return a.err
}
