package namespace

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/namespace/record"
	"github.com/hearthfs/hearth/namespace/store"
)

const (
	// pageNames is how many names a listing holds in memory: one page of S3.
	pageNames = 1000
	// listRetry is how long a listing that failed is left alone, unless somebody
	// waits for it.
	listRetry = 2 * time.Second
	// maxRebuilt is how often a request begins anew when all names are dropped
	// meanwhile: one directory may exceed the memory for names.
	maxRebuilt = 4
)

// listing is one pass over a directory at its origin, shared by all who want one. Pages come in the
// order of sort names. Each is merged with what the database has in its range: what is not in the page
// is gone. So everything up to the cursor is as the origin has it, and readers follow the cursor.
type listing struct {
	t     *Tree
	d     *directory
	began int64
	watch stopwatch       // since then
	age   int64           // generation of the database at the beginning
	gate  <-chan struct{} // the second page waits until it is closed, or for a reader (hurry)
	hurry chan struct{}
	once  sync.Once // closes hurry
	away  *away     // the owner, which is asked first; nil means that the origin is

	// The goroutine that runs the listing owns these:
	page      []listed
	last      string // of the last page
	starts    [2]int64
	names     int
	copied    bool          // the owner told all names, or those of this page
	tookThere time.Duration // how long the owner's listing took
	marker    bool          // the directory's own key exists
	unordered bool          // pages are in no order: nothing is known before the end
	rows      store.Rows

	asking  asking       // of a page, at the origin
	unkept  bool         // the database would not take a page
	refused atomic.Int64 // keys that cannot be shown, so far
	progress
}

type listed struct {
	sort   string
	object hearth.Object
	alone  int64 // when it was asked for by itself, in Unix ms; 0 means that it was not
}

// list returns the directory's running listing, or begins one. A listing that began before since is not
// enough; with a since, a copy is not either. gate, which may be nil, holds back the second page.
func (t *Tree) list(ctx context.Context, d *directory, since int64, gate <-chan struct{}) (*listing, error) {
	return t.listUnless(ctx, d, since, gate, func() bool { return false })
}

// listExpired is list for a caller who found that no listing is believed any more. Another listing may
// have begun and ended since: then it returns nil, as the database has the names.
func (t *Tree) listExpired(ctx context.Context, d *directory, gate <-chan struct{}) (*listing, error) {
	return t.listUnless(ctx, d, 0, gate, func() bool { return d.listingLeft(t) > 0 })
}

// listUnless is list for a caller that may have been overtaken. Where no listing runs, it returns nil
// if enough reports that the last one is new enough.
func (t *Tree) listUnless(ctx context.Context, d *directory, since int64, gate <-chan struct{}, enough func() bool) (*listing, error) {
	for {
		d.mu.Lock()
		l := d.running.Load()
		if l == nil && enough() {
			d.mu.Unlock()
			return nil, nil
		}
		if l == nil {
			l = t.beginListing(d, since, gate)
			d.mu.Unlock()
			if !t.behind(l.run) {
				l.finish(context.Cause(t.ctx))
			}
			return l, nil
		}
		d.mu.Unlock()
		if l.began >= since && (since == 0 || l.away == nil) {
			return l, nil
		}
		l.hurryUp()
		if err := l.Wait(ctx); err != nil {
			return nil, err
		}
	}
}

// since is when a listing must have begun at the earliest for a reader that asks now.
func (t *Tree) since(d *directory) int64 {
	if d.link.Freshness.Mode == Strict {
		return t.clock.Now() + 1 // a listing that runs already is too old
	}
	return 0
}

// beginListing makes the directory's running listing; the directory's lock is held.
func (t *Tree) beginListing(d *directory, since int64, gate <-chan struct{}) *listing {
	now := t.clock.Now()
	l := &listing{t: t, d: d.retain(), began: now, age: t.db.Generation(), gate: gate, hurry: make(chan struct{}), starts: [2]int64{now, now}}
	l.watch = stopwatch{now: t.o.monotonic, start: t.o.monotonic()}
	l.Start(now)
	if since == 0 {
		l.away = d.elsewhere()
	}
	if gate == nil {
		l.hurryUp()
	}
	d.running.Store(l)
	return l
}

// kick begins a listing in the background, unless another one ended just before.
func (t *Tree) kick(d *directory) {
	if d.link == nil || d.running.Load() != nil || t.clock.Now()-d.state.Load().failed < listRetry.Milliseconds() {
		return
	}
	_, _ = t.listUnless(t.ctx, d, 0, nil, func() bool { return !d.due(d.listingLeft(t)) }) // it does not wait
}

// quietAsks bounds background questions and renewals of listings. So many are enough to find out whether
// an origin is back.
const quietAsks = 8

// due reports whether a listing of which that much life is left is to be renewed: less than a quarter.
func (d *directory) due(left time.Duration) bool {
	return 4*left < d.link.Freshness.ListingLife(d.state.Load().took)
}

// renew begins a listing in the background when one is due, unless many run.
func (t *Tree) renew(d *directory, left time.Duration) {
	if d.due(left) && len(t.tokens.listings) < quietAsks {
		t.kick(d)
	}
}

func (l *listing) hurryUp() { l.once.Do(func() { close(l.hurry) }) }

// finish ends the listing for all who follow it.
func (l *listing) finish(err error) {
	if l.away != nil {
		l.away.end()
	}
	l.d.mu.Lock()
	if err != nil {
		s := *l.d.state.Load()
		s.failed = l.t.clock.Now()
		l.d.state.Store(&s)
	}
	l.d.running.Store(nil)
	l.d.doubted = nil
	l.d.mu.Unlock()
	l.End(err)
	l.d.release()
}

func (l *listing) run() {
	t, d := l.t, l.d
	err := l.ask()
	switch {
	case err == nil:
		t.stats.listings.Add(1)
	case !l.unkept && t.ctx.Err() == nil:
		err = t.failed(t.ctx, d.link, &l.asking, err)
	}
	l.finish(err)
	if err == nil && l.names == 0 && !l.marker && !l.copied && d.path != "" {
		t.vanished(d, l.began)
	}
}

// take acquires a place of a semaphore.
func (l *listing) take(places chan struct{}) error {
	defer l.watch.stop()()
	select {
	case places <- struct{}{}:
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
	if l.away != nil {
		l.copied, err = l.copy()
	}
	if err == nil && !l.copied {
		err = l.askOrigin()
	}
	if err != nil {
		return fmt.Errorf("list %s: %w", l.d.prefix(), err)
	}
	return l.flush(true)
}

// askOrigin lists what comes after the last name.
func (l *listing) askOrigin() error {
	if err := l.take(l.t.tokens.listings); err != nil {
		return err
	}
	defer func() { <-l.t.tokens.listings }()
	q := hearth.Listing{Prefix: l.d.prefix(), Hidden: l.refuse}
	if l.names > 0 {
		q.After = q.Prefix + l.last
	}
	l.asking = l.t.asking(l.d.link)
	err := l.d.link.Origin.List(l.t.ctx, q, l.each)
	l.answered(err)
	return err
}

// answered notes that the question for a page has ended.
func (l *listing) answered(err error) {
	l.asking.end()
	if err == nil {
		l.t.answered(l.d.link, question{l.d.prefix(), true})
	}
}

// drift is how far, in ms, two clocks come apart while a listing is believed.
const drift = 100

// copy takes names from the directory's owner, as far as the owner tells them. Names may be older by the
// time that this listing has worked: a listing that takes longer is believed for longer by more than
// that. Time spent waiting, or while the machine sleeps, does not count.
func (l *listing) copy() (whole bool, err error) {
	t := l.t
	defer l.away.end()
	if err := l.take(t.tokens.copies); err != nil {
		return false, err
	}
	defer func() { <-t.tokens.copies }()
	l.copied = true
	s, newest := l.d.state.Load(), int64(0)
	old := l.d.link.Freshness.CopyAge(s.took)
	if l.d.whole(t) {
		newest = t.clock.Trusted(s.listed)
		old = min(old, since(l.began, newest)) // else names could become older
	}
	for {
		asked, known := t.clock.Now(), l.names
		told, err := l.away.Names(t.ctx, l.away.dir, l.last, max(old, old+l.watch.busy()), func(o *hearth.Object) bool {
			l.add(*o)
			return true
		})
		got := t.clock.Now()
		older := got-told.Age.Milliseconds() < newest-drift || // the owner may believe it for longer than this node
			!l.d.link.Freshness.Copies(max(old, old+l.watch.busy()+drift*time.Millisecond), told.Age+since(got, asked), told.Took)
		if err != nil || older || l.unordered || len(l.page) == 0 && !told.Last {
			l.names, l.page, l.unordered = known, l.page[:0], false
			now := t.clock.Now()
			l.starts = [2]int64{now, now}
			return false, context.Cause(t.ctx)
		}
		l.Dated(max(1, asked-told.Age.Milliseconds()))
		l.starts = [2]int64{l.Began(), l.Began()}
		if told.Last {
			l.tookThere = told.Took
			l.refused.Store(told.Hidden)
			return true, nil
		}
		if err := l.flush(false); err != nil {
			return false, err
		}
		if err := l.pause(); err != nil {
			return false, err
		}
	}
}

func (l *listing) each(o hearth.Object) error {
	l.add(o)
	if len(l.page) < pageNames {
		return nil
	}
	l.answered(nil)
	if err := l.flush(false); err != nil {
		return err
	}
	err := l.pause()
	l.asking = l.t.asking(l.d.link)
	return err
}

// pause runs between two pages. It waits for the gate or a hurried reader.
func (l *listing) pause() error {
	defer l.watch.stop()()
	select {
	case <-l.gate:
		if l.names == pageNames { // the look-up's answer goes out first
			<-time.After(answerFirst)
		}
	case <-l.hurry:
	case <-l.t.ctx.Done():
		return context.Cause(l.t.ctx)
	}
	return nil
}

// add makes a name part of the page.
func (l *listing) add(o hearth.Object) {
	sort, ok := strings.CutPrefix(o.Key, l.d.prefix())
	switch {
	case !ok || strings.IndexByte(record.Segment(sort), '/') >= 0 || record.IsDir(sort) != o.IsPrefix():
		return // not what was asked for
	case !record.Representable(o.Key):
		l.refuse(o.Key)
		return
	case sort == "":
		l.marker = true
	}
	x := listed{sort: sort, object: o}
	if sort == "" && l.d.link.unsure(&o) {
		// Its size decides whether it is shown: an empty one is the directory itself.
		at := l.t.clock.Now()
		if h, err := l.d.link.Origin.Head(l.t.ctx, o.Key); err == nil {
			x.object, x.alone = h, at
		}
	}
	if n := len(l.page); n > 0 && sort <= l.page[n-1].sort || l.names > n && n == 0 && sort <= l.last {
		l.unordered = true
	}
	l.page = append(l.page, x)
	l.names++
}

// answerFirst is how long a listing's second page is held back so that a look-up's answer goes out
// first.
const answerFirst = 10 * time.Millisecond

// refuse counts a key that cannot be shown.
func (l *listing) refuse(key string) {
	l.refused.Add(1)
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
	if err == nil && l.copied {
		e.told = l.starts[0]
	} else if err == nil {
		e.asked = l.starts[0]
	}
	if err == nil {
		err = l.merge(e, last)
	}
	if err == nil && last {
		now := t.clock.Now()
		s := *d.state.Load()
		s.listed, s.took, s.refused, s.age = l.Began(), max(l.watch.busy(), l.tookThere), uint64(l.refused.Load()), l.age
		if d.doubted == l {
			s.listed = listedDoubted
		}
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
	if l.unkept = err != nil; l.unkept {
		return fmt.Errorf("keep the listing of %s: %w", d.prefix(), err)
	}
	t.stats.entries.Add(int64(len(l.page)))
	if n := len(l.page); n > 0 {
		l.last = l.page[n-1].sort
	}
	if !last && !l.unordered {
		l.Advance(l.last)
	}
	// The page after the next is asked for after now, whatever the size of the origin's pages.
	l.starts = [2]int64{l.starts[1], t.clock.Now()}
	clear(l.page)
	l.page = l.page[:0]
	t.after(e)
	return nil
}

// merge makes the database's range of a page equal to the page.
func (l *listing) merge(e *edit, last bool) error {
	if l.unordered {
		return l.mergeUnordered(e, last)
	}
	lower := record.NameKey(nil, record.KindEntry, l.d.hash, l.last)
	if l.names > len(l.page) {
		lower = append(lower, 0) // after it
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
				_, err = e.dropAsOf(sort, l.starts[0])
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

// set writes one name of the page, unless the name was asked for alone after the page was.
func (l *listing) set(e *edit, x *listed) error {
	if was, ok := e.old[x.sort]; ok {
		if was.Checked >= l.starts[0] && !x.object.IsPrefix() {
			e.refine(x.sort, &was, &x.object)
			return nil
		}
	} else if l.t.neg.Since(absence{Dir: l.d.hash, Sort: x.sort}) >= l.starts[0] {
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
	if x.alone > 0 {
		checked = x.alone
	} else if l.d.link.unsure(&x.object) {
		if was, ok := e.old[x.sort]; ok && !was.Dir {
			return e.setWord(x.sort, &x.object, &was, checked)
		}
		return e.setWord(x.sort, &x.object, nil, checked)
	}
	return e.setFile(x.sort, &x.object, checked)
}

// mergeUnordered is for origins whose pages are in no order. Only the end of the listing tells which
// names are gone.
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
			if err == nil && ok && x.Checked < l.Began() {
				_, err = e.dropAsOf(sort, l.Began())
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
