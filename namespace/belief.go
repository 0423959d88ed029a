package namespace

import (
	"time"

	"github.com/hearthfs/hearth/namespace/record"
)

// belief says how long the database's entries of a directory may be believed. It must be formed before
// the database is read: a listing that ends in between vouches for what it wrote, not for what was
// read.
type belief struct {
	t       *Tree
	f       Freshness
	age     int64
	now     int64
	listing time.Duration // what is left of the last whole listing
	began   int64         // of the running listing
	any     bool          // the running listing has passed upTo
	upTo    string
	differs *differs // not nil: only HEADs tell versions
}

func (d *directory) belief(t *Tree) belief {
	b := belief{t: t, f: d.link.Freshness, age: t.db.Generation(), now: t.clock.Now(), differs: d.link.differs.Load()}
	if l := d.running.Load(); l != nil && l.age == b.age {
		b.upTo, b.any, _, _ = l.Snapshot()
		b.began = l.Began() // read after the cursor, whose age it is
	}
	b.listing = d.listingLeft(t)
	return b
}

// name is how long an entry may be believed. Of the last listing, the running one and the question
// about the name alone, the one that vouches longest counts.
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

// listed is how long what the listings say of a sort name may be believed.
func (b *belief) listed(sort string) time.Duration {
	if b.any && sort <= b.upTo {
		return max(b.listing, left(b.began, b.now, b.f.Life()))
	}
	return b.listing
}

// absence is how long it may be believed that a name does not exist.
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

// believed reports whether what the listing brings is new enough for a reader that joined it. The
// listing may have begun long ago, for example before the machine slept.
func (l *listing) believed() bool {
	return left(l.Began(), l.t.clock.Now(), l.d.link.Freshness.ListingLife(l.watch.ran())) > 0
}
