package namespace

import (
	"time"

	"github.com/hearthfs/hearth/namespace/record"
)

// belief is how long what the database says of a directory may be believed. It
// must be formed before the database is read: a listing that ends in between
// vouches for what it wrote, not for what was read.
type belief struct {
	t       *Tree
	f       Freshness
	age     int64
	now     int64
	listing time.Duration // what is left of the last whole listing
	began   int64         // of the running listing
	any     bool          // that is past upTo
	upTo    string
	differs *differs // listings say nothing of versions; nil: they do
}

func (d *directory) belief(t *Tree) belief {
	b := belief{t: t, f: d.link.Freshness, age: t.db.Generation(), now: t.clock.Now(), differs: d.link.differs.Load()}
	if l := d.running.Load(); l != nil && l.age == b.age {
		b.upTo, b.any, _, _ = l.Snapshot()
		b.began = l.Began() // after the cursor, of which it tells
	}
	b.listing = d.listingLeft(t)
	return b
}

// name is how long an entry may be believed: what the best of listing, running
// listing and question about the name alone gives.
func (b *belief) name(sort string, e *record.Entry) time.Duration {
	switch {
	case e.Doubted || b.f.Mode == Strict || b.age != b.t.db.Generation():
		return 0
	case b.differs != nil && !e.Dir && e.Checked < b.differs.since:
		return 0
	case b.f.Mode == Immutable:
		return Forever
	case b.differs != nil && !e.Dir:
		return left(b.t.clock.Trusted(e.Checked), b.now, b.f.Life())
	}
	return max(b.listed(sort), left(b.t.clock.Trusted(e.Checked), b.now, b.f.Life()))
}

// listed is how long the listings' word on a sort name may be believed.
func (b *belief) listed(sort string) time.Duration {
	if b.any && sort <= b.upTo {
		return max(b.listing, left(b.began, b.now, b.f.Life()))
	}
	return b.listing
}

// absence is how long it may be believed that what a name can stand for is not
// there.
func (b *belief) absence(d *directory, m record.Meaning) time.Duration {
	if b.f.Mode == Strict || b.age != b.t.db.Generation() {
		return 0
	}
	since := b.t.neg.Since(absence{Dir: d.hash, Sort: m.Segment})
	if !m.File {
		since = min(since, b.t.neg.Since(absence{Dir: d.hash, Sort: m.Segment + "/"}))
	}
	return max(b.listed(m.Segment+"/"), left(since, b.now, b.f.Life()))
}

// believed reports whether what the listing brings, or has just brought, is new enough for one who
// found it running: it may have begun long ago, before the machine slept, for one.
func (l *listing) believed() bool {
	return left(l.Began(), l.t.clock.Now(), l.d.link.Freshness.ListingLife(l.watch.ran())) > 0
}
