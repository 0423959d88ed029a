package namespace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/namespace/record"
	"github.com/hearthfs/hearth/namespace/store"
)

// A file's version comes from a listing as well as from a HEAD. Some servers list other ETags
// or sizes than they answer HEADs and reads with, or none. Then each listing would name versions that
// nobody can read, and remove those that can be read.
//
// Once a key shows that, and Compare has confirmed it, its link differs: a listing tells which names
// there are, and only HEADs tell their versions. A listed version that no HEAD has confirmed is kept as a
// word. It is doubted from the start: readers of the directory see its size, and a look-up asks the origin.
// A listing does not change what a HEAD told. The finding outlives a restart, and is checked again then.
//
// A word that cannot be true by itself is doubted wherever it comes from: see hearth.Object.Vague.

// differs says that a link's listings and HEADs name different versions.
type differs struct {
	key   string // that showed it
	says  string // in which way
	since int64  // Unix ms, at least 1; an entry from before that may be a listing's word
}

// Compare checks whether an origin's listings and HEADs tell the same version of an object that nobody
// changes. It says in which way they differ; "" means that they agree, or that the object changed
// meanwhile. listed and told are what a listing and a HEAD said just now; nil means that Compare is to
// ask.
func Compare(ctx context.Context, o Origin, key string, listed, told *hearth.Object) (says string, err error) {
	if listed == nil {
		if listed, err = listedAs(ctx, o, key); listed == nil {
			return "", err
		}
	}
	// A change falls between two questions. A series of changes would have to alternate in step
	// with all of these to be taken for a difference.
	for _, head := range []bool{true, true, true, false, true, false} {
		var x *hearth.Object
		if head {
			h, failed := o.Head(ctx, key)
			x, err = &h, failed
			told = cmp.Or(told, x)
		} else {
			x, err = listedAs(ctx, o, key)
		}
		switch {
		case err != nil:
			return "", fmt.Errorf("compare %s: %w", key, err)
		case x == nil, head && differ(told, x) != "", !head && differ(listed, x) != "":
			return "", nil // it changes
		}
		if says = differ(listed, told); says == "" || listed.Vague() && listed.ETag == told.ETag && told.ETag != "" {
			return "", nil
		}
	}
	return says, nil
}

// differ says in which way a listing and a HEAD name two versions; "" means that they name one.
func differ(listed, told *hearth.Object) string {
	switch {
	case listed.ETag != told.ETag:
		return fmt.Sprintf("ETag %q, and %q by HEAD", listed.ETag, told.ETag)
	case listed.Size != told.Size:
		return fmt.Sprintf("size %d, and %d by HEAD", listed.Size, told.Size)
	}
	return ""
}

// listedAs is what a listing says of a key. Nil means that the listing does not have the key.
func listedAs(ctx context.Context, o Origin, key string) (found *hearth.Object, err error) {
	err = o.List(ctx, hearth.Listing{Prefix: key, Limit: 1, Recursive: true}, func(x hearth.Object) error {
		if x.Key == key {
			found = &x
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("compare %s: %w", key, err)
	}
	return found, nil
}

// Differs says that a listing and a HEAD were found to differ at a key, in the way that says tells.
// From now on only HEADs tell the versions of the link's files.
func (t *Tree) Differs(name, key, says string) {
	if l := t.links.Load().named(name); l != nil {
		t.setDiffers(l, &differs{key, says, max(1, t.clock.Now())})
	}
}

const keyDiffers = "mdiffers"

func (l *link) differsKey() []byte {
	hash := place{link: l}.hash()
	return append([]byte(keyDiffers), hash[:]...)
}

// setDiffers sets, keeps and tells that a link differs. Nil means that its listings and HEADs agree
// again.
func (t *Tree) setDiffers(l *link, d *differs) {
	before := l.differs.Swap(d)
	w := t.db.Edit()
	says := ""
	if d == nil {
		w.Delete(l.differsKey())
	} else {
		w.Set(l.differsKey(), []byte(d.key))
		says = fmt.Sprintf("%s: %s", d.key, d.says)
	}
	_ = w.Commit(false) // if it is lost, the next start finds it out again
	if t.o.Events.Differs != nil && (before == nil) != (d == nil) {
		t.o.Events.Differs(l.Name, says)
	}
}

// differed restores what was found about a link before a restart, and checks it again in the
// background.
func (t *Tree) differed(l *link) error {
	key, ok, err := t.db.Get(nil, l.differsKey())
	if err != nil || !ok || l.differs.Load() != nil {
		return err
	}
	d := &differs{string(key), "as was found before", 1}
	l.differs.Store(d)
	if t.o.Events.Differs != nil {
		t.o.Events.Differs(l.Name, fmt.Sprintf("%s: %s", d.key, d.says))
	}
	t.behind(func() {
		listed, err := listedAs(t.ctx, l.Origin, d.key)
		if err != nil {
			return // the finding stays
		}
		told, err := l.Origin.Head(t.ctx, d.key)
		same := err == nil && listed != nil && differ(listed, &told) == ""
		if (same || errors.Is(err, fs.ErrNotExist)) && l.differs.Load() == d { // a key that is gone shows nothing
			t.setDiffers(l, nil)
		}
	})
	return nil
}

// suspect checks a listing's word when a reader found that version gone and a HEAD tells of another
// one. Perhaps nobody changed anything, and the link differs. One check runs at a time per link.
func (t *Tree) suspect(l *link, was, told *hearth.Object) {
	if l.differs.Load() != nil || !l.comparing.CompareAndSwap(false, true) {
		return
	}
	defer l.comparing.Store(false)
	listed, err := listedAs(t.ctx, l.Origin, was.Key)
	if err != nil || listed == nil || differ(listed, told) == "" {
		return
	}
	if says, err := Compare(t.ctx, l.Origin, was.Key, listed, told); err == nil && says != "" {
		t.setDiffers(l, &differs{was.Key, says, max(1, t.clock.Now())})
		t.unlearn(l)
	}
}

// unlearn tells mounts of the names whose versions only listings told: kernels cache versions that
// nobody can read. It tells maxUnlearnt at most; the rest are found out by reads that fail.
func (t *Tree) unlearn(l *link) {
	var rows store.Rows
	left := maxUnlearnt
	for d := range t.dirs.of(l) {
		if err := t.db.Scan(&rows, record.NameKey(nil, record.KindEntry, d.hash, ""), record.DirectoryEnd(d.hash), left); err != nil {
			d.release()
			continue
		}
		var changes []Change
		for i := range rows.Len() {
			sort := string(rows.Key(i)[17:])
			if e, err := record.ParseEntry(rows.Value(i)); err == nil && l.word(&e) {
				changes = append(changes, Change{Dir: d.id, Name: d.mountName(t, sort, &e), Old: e.ID})
			}
		}
		d.release()
		t.news.Tell(changes)
		if left -= rows.Len(); left <= 0 {
			return
		}
	}
}

// maxUnlearnt is how many names unlearn tells, as many as a mount has room for.
const maxUnlearnt = 8192

// word reports whether an entry is a listing's word, which is not to be believed.
func (l *link) word(e *record.Entry) bool {
	if e.Dir {
		return false
	}
	d := l.differs.Load()
	return e.Doubted && e.Checked == 0 || d != nil && e.Checked < d.since
}

// unsure reports whether what a listing says of a file is to be doubted.
func (l *link) unsure(o *hearth.Object) bool {
	return !o.IsPrefix() && !hearth.IsLocal(l.Identity) && (l.differs.Load() != nil || o.Vague())
}

// setWord keeps a listing's unsure word of a file. was is what the database had; nil means nothing.
// checked is 0, except for a listing in no order: there it is when the listing came to the name, since
// only the end of such a listing tells what is gone.
func (e *edit) setWord(sort string, o *hearth.Object, was *record.Entry, checked int64) error {
	x := fileEntry(e.d.link, o)
	x.Doubted, x.Checked = true, checked
	if was != nil && (was.Checked > 0 || was.Doubted) {
		again := was.ETag == o.ETag && o.ETag != "" && (was.Checked > 0 || was.Same(&x))
		switch {
		case !again && (was.Checked == 0 || e.d.link.differs.Load() == nil):
		case checked > 0:
			was.Doubted, was.Checked = true, checked
			e.put(sort, *was)
			return nil
		default: // a HEAD knows better, or the listing repeats its word
			e.refine(sort, was, o)
			return nil
		}
	}
	return e.setEntry(sort, x)
}
