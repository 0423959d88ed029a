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

// What a listing says of a file is its version, as what a HEAD says is. Some servers list other ETags
// or sizes than they answer HEADs and reads with, or none. Then each listing would name versions that
// nobody can read, and take away those that somebody can.
//
// Once a key shows that, of which Compare makes sure, its link differs: a listing tells what names
// there are, and HEADs alone what they mean. What it says of a file that no HEAD told of is kept as a word
// that is doubted from the start, with the size for who reads the directory, and asked for at a look-up; what
// a HEAD told it leaves alone. That is kept over a restart, and looked at again then.
//
// A word that cannot be true by itself is doubted wherever it comes from: see hearth.Object.Vague.

// differs is that a link's listings and HEADs do not agree.
type differs struct {
	key   string // that showed it
	says  string // in which way
	since int64  // Unix ms, from 1 on; what is known from before a listing elsewhere may have told
}

// Compare makes sure whether an origin's listings and HEADs tell the same version of an object that
// nobody changes, and says in which way they do not; "": they do, or it changed meanwhile. listed and told
// are what a listing and a HEAD said just now; nil: nobody has asked.
func Compare(ctx context.Context, o Origin, key string, listed, told *hearth.Object) (says string, err error) {
	if listed == nil {
		if listed, err = listedAs(ctx, o, key); listed == nil {
			return "", err
		}
	}
	// A change falls between two questions. One that is made again and again would have to keep step
	// with all of these.
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

// differ says in which way a listing and a HEAD name two versions.
func differ(listed, told *hearth.Object) string {
	switch {
	case listed.ETag != told.ETag:
		return fmt.Sprintf("ETag %q, and %q by HEAD", listed.ETag, told.ETag)
	case listed.Size != told.Size:
		return fmt.Sprintf("size %d, and %d by HEAD", listed.Size, told.Size)
	}
	return ""
}

// listedAs is what a listing says of a key; nil: it has none.
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

// Differs has versions of a link's files come from HEADs from now on: a listing and a HEAD were found
// to differ at a key, in a way that says tells.
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

// setDiffers makes it so, tells of it and keeps it; nil: they agree again.
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
	_ = w.Commit(false) // else the next start finds it again
	if t.o.Events.Differs != nil && (before == nil) != (d == nil) {
		t.o.Events.Differs(l.Name, says)
	}
}

// differed has a link be as it was found before, or as it was made, and looks at that again.
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
			return // as it was
		}
		told, err := l.Origin.Head(t.ctx, d.key)
		same := err == nil && listed != nil && differ(listed, &told) == ""
		if (same || errors.Is(err, fs.ErrNotExist)) && l.differs.Load() == d { // of what is gone nobody knows
			t.setDiffers(l, nil)
		}
	})
	return nil
}

// suspect looks at what a listing said of a version that a reader found gone, where a HEAD tells of
// another one: nobody may have changed anything. Of a link one is looked at at a time.
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

// unlearn tells mounts of names that listings told of, of which kernels believe what nobody
// can read; those that are told of none, beyond what they take, find out by their reads.
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

// maxUnlearnt names are told, as many as a mount has room for.
const maxUnlearnt = 8192

// word reports whether an entry is what a listing said, which is not to be believed.
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

// setWord makes a file be there, of which a listing says what is not sure; was is what the database had,
// nil: nothing. checked is 0, or for a listing in no order, which tells at its end what is gone, when
// it came to the name.
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
		default: // a HEAD knows better, or the same is said again
			e.refine(sort, was, o)
			return nil
		}
	}
	return e.setEntry(sort, x)
}
