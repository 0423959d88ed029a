package namespace

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/namespace/age"
	"github.com/hearthfs/hearth/namespace/record"
	"github.com/hearthfs/hearth/namespace/store"
)

const (
	// pageNames is what a listing holds in memory: S3's page.
	pageNames = 1000
	// listRetry is how long a listing that failed is left alone, unless somebody
	// waits for it.
	listRetry = 2 * time.Second
	// maxRebuilt is how often a request begins anew when the names are given up
	// meanwhile: one directory may be more than the memory that they have.
	maxRebuilt = 4
)

// listing is one pass over a directory at its origin, shared by all who want one.
// Pages come in the order of sort names, and each is merged with what the
// database has in its range: what is not in the page is gone. So everything up to
// the cursor is as the origin has it, and readers follow the cursor.
type listing struct {
	t     *Tree
	d     *directory
	began int64
	age   int64           // generation of the database at the beginning
	gate  <-chan struct{} // the second page waits for it, or for a reader
	hurry chan struct{}
	once  sync.Once // closes hurry

	// Of the goroutine that runs it:
	page      []listed
	last      string // of the last page
	starts    [2]int64
	names     int
	stopped   int64 // ms that it waited for its turn, and at the gate
	refused   uint64
	marker    bool // the directory's own key exists
	unordered bool // pages are in no order: nothing is known before the end
	rows      store.Rows

	progress
}

// progress is how far a listing is.
type progress struct {
	mu    sync.Mutex // guards the rest
	any   bool       // upTo is valid
	upTo  string     // the cursor: a sort name
	done  bool
	err   error
	moved chan struct{} // closed when the cursor moved or the listing ended
}

type listed struct {
	sort   string
	object hearth.Object
}

// list returns the directory's running listing, or begins one. One that began
// before since does not do. gate, which may be nil, holds back its second page.
func (t *Tree) list(ctx context.Context, d *directory, since int64, gate <-chan struct{}) (*listing, error) {
	for {
		d.mu.Lock()
		l := d.running.Load()
		if l == nil {
			l = t.beginListing(d, gate)
			d.mu.Unlock()
			if !t.behind(l.run) {
				l.finish(context.Cause(t.ctx))
			}
			return l, nil
		}
		d.mu.Unlock()
		if l.began >= since {
			return l, nil
		}
		l.hurryUp()
		if err := l.wait(ctx); err != nil {
			return nil, err
		}
	}
}

// since is when a listing must have begun at the earliest for one who asks now.
func (t *Tree) since(d *directory) int64 {
	if d.link.Freshness.Mode == Strict {
		return t.clock.Now() + 1 // none that runs already will do
	}
	return 0
}

// beginListing makes the directory's running listing; the directory's lock is held.
func (t *Tree) beginListing(d *directory, gate <-chan struct{}) *listing {
	now := t.clock.Now()
	l := &listing{t: t, d: d.retain(), began: now, age: t.db.Generation(), gate: gate, hurry: make(chan struct{}),
		starts: [2]int64{now, now}, progress: progress{moved: make(chan struct{})}}
	if gate == nil {
		l.hurryUp()
	}
	d.running.Store(l)
	return l
}

// kick begins a listing that nobody waits for.
func (t *Tree) kick(d *directory) {
	if d.link == nil || d.running.Load() != nil || t.clock.Now()-d.state.Load().failed < listRetry.Milliseconds() {
		return
	}
	_, _ = t.list(t.ctx, d, 0, nil) // it does not wait
}

// renew kicks when what is left of the listing's word is little, unless many run.
func (t *Tree) renew(d *directory, left time.Duration) {
	if 4*left < d.link.Freshness.ListingLife(d.state.Load().took) && len(t.tokens.listings) < quietAsks {
		t.kick(d)
	}
}

func (l *listing) hurryUp() { l.once.Do(func() { close(l.hurry) }) }

// wait returns when the listing has ended, with ctx's cause if that ended first.
func (l *listing) wait(ctx context.Context) error {
	for {
		_, _, done, moved := l.snapshot()
		if done {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// snapshot is how far the listing is; moved is closed when that has changed.
func (l *progress) snapshot() (upTo string, any, done bool, moved <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.upTo, l.any, l.done, l.moved
}

// passed reports whether the database of the listing's beginning has a sort name as
// the listing found it.
func (l *progress) passed(sort string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.done && l.err == nil || l.any && sort <= l.upTo
}

func (l *progress) advance(upTo string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.any, l.upTo = true, upTo
	close(l.moved)
	l.moved = make(chan struct{})
}

// finish ends the listing for all who follow it.
func (l *listing) finish(err error) {
	l.d.mu.Lock()
	if err != nil {
		s := *l.d.state.Load()
		s.failed = l.t.clock.Now()
		l.d.state.Store(&s)
	}
	l.d.running.Store(nil)
	l.d.mu.Unlock()
	l.mu.Lock()
	l.done, l.err = true, err
	close(l.moved)
	l.moved = make(chan struct{})
	l.mu.Unlock()
	l.d.release()
}

func (l *progress) failure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

func (l *listing) run() {
	t, d := l.t, l.d
	err := l.take()
	if err == nil {
		err = l.ask()
		<-t.tokens.listings
	}
	ours := t.ctx.Err() != nil || errors.Is(err, store.ErrRebuilt)
	switch {
	case err == nil:
		t.answered(d.link)
		t.stats.listings.Add(1)
	case !ours:
		t.failed(d.link, l.began, err)
	}
	l.finish(err)
	if err == nil && l.names == 0 && !l.marker && d.path != "" {
		t.vanished(d)
	}
}

func (l *listing) take() error {
	select {
	case l.t.tokens.listings <- struct{}{}:
		l.stopped = l.t.clock.Now() - l.began
		return nil
	case <-l.t.ctx.Done():
		return context.Cause(l.t.ctx)
	}
}

func (l *listing) ask() (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("list %s: panic: %v", l.d.prefix(), r)
		}
	}()
	err = l.d.link.Origin.List(l.t.ctx, hearth.Listing{Prefix: l.d.prefix(), Hidden: l.refuse}, l.each)
	if err != nil {
		return fmt.Errorf("list %s: %w", l.d.prefix(), err)
	}
	return l.flush(true)
}

func (l *listing) each(o hearth.Object) error {
	sort, ok := strings.CutPrefix(o.Key, l.d.prefix())
	switch {
	case !ok || strings.IndexByte(record.Segment(sort), '/') >= 0 || record.IsDir(sort) != o.IsPrefix():
		return nil // not what was asked for
	case !record.Representable(o.Key):
		l.refuse(o.Key)
		return nil
	case sort == "":
		l.marker = true
		if o.Size == 0 {
			return nil // it is the directory
		}
	}
	if n := len(l.page); n > 0 && sort <= l.page[n-1].sort || l.names > n && n == 0 && sort <= l.last {
		l.unordered = true
	}
	l.page = append(l.page, listed{sort, o})
	l.names++
	if len(l.page) < pageNames {
		return nil
	}
	if err := l.flush(false); err != nil {
		return err
	}
	stopped := l.t.clock.Now()
	defer func() { l.stopped += l.t.clock.Now() - stopped }()
	select {
	case <-l.gate:
		if l.names == pageNames { // the answer goes out first
			<-time.After(answerFirst)
		}
	case <-l.hurry:
	case <-l.t.ctx.Done():
		return context.Cause(l.t.ctx)
	}
	return nil
}

// answerFirst is how long a listing's second page lets a look-up's answer go ahead.
const answerFirst = 10 * time.Millisecond

// refuse counts a key that cannot be shown.
func (l *listing) refuse(key string) {
	l.refused++
	if told := l.t.o.Events.Refused; told != nil {
		told(l.d.link.Name, key)
	}
}

func (l *listing) flush(last bool) error {
	t, d := l.t, l.d
	d.mu.Lock()
	e, err := t.beginLocked(d)
	if err == nil && e.w.Generation() != l.age {
		err = store.ErrRebuilt
	}
	if err == nil {
		err = l.merge(e, last)
	}
	if err == nil && last {
		now := t.clock.Now()
		s := *d.state.Load()
		s.listed, s.took, s.refused, s.age = l.began, time.Duration(now-l.began-l.stopped)*time.Millisecond, l.refused, l.age
		t.stats.slowest.Store(max(t.stats.slowest.Load(), s.took.Milliseconds())) // two at once may lose one
		if e.first {
			s.seen = max(s.seen+1, now*int64(time.Millisecond))
		}
		e.setState(s)
	}
	if err == nil {
		err = e.commitLocked()
	}
	d.mu.Unlock()
	if err != nil {
		return fmt.Errorf("keep the listing of %s: %w", d.prefix(), err)
	}
	t.stats.entries.Add(int64(len(l.page)))
	if n := len(l.page); n > 0 {
		l.last = l.page[n-1].sort
	}
	if !last && !l.unordered {
		l.advance(l.last)
	}
	// The page after the next was asked for after now, whatever the origin's pages are.
	l.starts = [2]int64{l.starts[1], t.clock.Now()}
	clear(l.page)
	l.page = l.page[:0]
	t.after(e)
	return nil
}

// merge makes the database's range of a page what the page says.
func (l *listing) merge(e *edit, last bool) error {
	if l.unordered {
		return l.mergeUnordered(e, last)
	}
	lower := record.NameKey(nil, record.KindEntry, l.d.hash, l.last)
	if l.names > len(l.page) {
		lower = append(lower, 0) // behind it
	}
	upper := record.DirectoryEnd(l.d.hash)
	if !last {
		upper = append(record.NameKey(nil, record.KindEntry, l.d.hash, l.page[len(l.page)-1].sort), 0)
	}
	next := 0
	for {
		if err := l.t.db.Scan(&l.rows, lower, upper, pageNames); err != nil {
			return err
		}
		for i := range l.rows.Len() {
			sort := string(l.rows.Key(i)[17:])
			x, err := record.ParseEntry(l.rows.Value(i))
			if err == nil {
				e.old[sort] = x
			}
			for ; next < len(l.page) && l.page[next].sort < sort; next++ {
				if err := l.set(e, &l.page[next]); err != nil {
					return err
				}
			}
			if next < len(l.page) && l.page[next].sort == sort {
				err = l.set(e, &l.page[next])
				next++
			} else if x.Checked < l.starts[0] {
				err = e.drop(sort)
			} else {
				err = nil // found after the page was asked for
			}
			if err != nil {
				return err
			}
		}
		if l.rows.Len() < pageNames {
			break
		}
		lower = append(append(lower[:0], l.rows.Key(l.rows.Len()-1)...), 0)
	}
	for ; next < len(l.page); next++ {
		if err := l.set(e, &l.page[next]); err != nil {
			return err
		}
	}
	return nil
}

// set makes one name what the page says, unless somebody who asked for it alone
// knows better.
func (l *listing) set(e *edit, x *listed) error {
	if was, ok := e.old[x.sort]; ok {
		if was.Checked >= l.starts[0] && !x.object.IsPrefix() {
			return nil
		}
	} else if l.t.neg.Since(age.Absence{Dir: l.d.hash, Sort: x.sort}) >= l.starts[0] {
		return nil
	} else if !l.unordered {
		e.miss = x.sort
	}
	checked := int64(0)
	if l.unordered {
		checked = l.t.clock.Now()
	}
	if x.object.IsPrefix() {
		return e.setDir(x.sort, checked)
	}
	return e.setFile(x.sort, &x.object, checked)
}

// mergeUnordered is for origins whose pages are in no order: what a listing did
// not find is gone, but that is known at its end only.
func (l *listing) mergeUnordered(e *edit, last bool) error {
	for i := range l.page {
		if _, _, err := e.get(l.page[i].sort); err != nil {
			return err
		}
		if err := l.set(e, &l.page[i]); err != nil {
			return err
		}
	}
	if !last {
		return nil
	}
	lower := record.NameKey(nil, record.KindEntry, l.d.hash, "")
	for {
		if err := l.t.db.Scan(&l.rows, lower, record.DirectoryEnd(l.d.hash), pageNames); err != nil {
			return err
		}
		for i := range l.rows.Len() {
			sort := string(l.rows.Key(i)[17:])
			x, ok, err := e.get(sort)
			if err == nil && ok && x.Checked < l.began {
				err = e.drop(sort)
			}
			if err != nil {
				return err
			}
		}
		if l.rows.Len() < pageNames {
			return nil
		}
		lower = append(append(lower[:0], l.rows.Key(l.rows.Len()-1)...), 0)
	}
}
