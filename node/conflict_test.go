package node

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/draft"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/namespace"
)

func TestTheNameOfAConflict(t *testing.T) {
	// A conflict has the name of its file, this node and the time. It is one that a mount can show and a key can have, however long
	// the file's is.
	_, _, c := outage(t, "immutable")
	n := start(t, "", func(o *Config) {
		c.with(o)
		o.Clock = func() time.Time { return time.Date(2026, 11, 28, 11, 15, 0, 0, time.FixedZone("", 3600)) }
	})
	n.config.Ring.Name = "rack 1/nöde"
	const tag = ".conflict-rack_1_n_de-20261128T101500Z"
	for key, want := range map[string]string{
		"a":                                     "a" + tag,
		"dir/a.bin":                             "dir/a.bin" + tag,
		strings.Repeat("x", 255):                strings.Repeat("x", 255-len(tag)-4) + tag,
		strings.Repeat("é", 127):                strings.Repeat("é", (255-len(tag)-4)/2) + tag,
		strings.Repeat("d/", 485) + "xxxxxxxxx": strings.Repeat("d/", 485) + "xxxxxxxxx" + tag,
		strings.Repeat("d/", 490) + "xxxxxxxxx": strings.Repeat("d/", 490) + "x" + tag,
		strings.Repeat("d/", 505) + "xxxxxxxxx": strings.Repeat("d/", 505) + "xxxxxxxxx",
	} {
		got := n.conflictName(draft.Name{Link: "link", Key: key})
		if got != (draft.Name{Link: "link", Key: want}) {
			t.Errorf("%q:\n%q, want\n%q", key, got.Key, want)
		}
		dir, last := got.Key[:strings.LastIndexByte(got.Key, '/')+1], got.Key[strings.LastIndexByte(got.Key, '/')+1:]
		if back, err := namespace.KeyIn(dir, namespace.MountName(last)); err != nil || back != got.Key {
			t.Errorf("%q: %v", got.Key, err)
		}
	}
	n.config.Ring.Name = ""
	if got := n.conflictName(draft.Name{Key: "a"}).Key; !strings.HasPrefix(got, "a.conflict-") || strings.HasPrefix(got, "a.conflict--") {
		t.Errorf("without a ring: %q", got)
	}
}

func TestAConflictIsListedPublishedAndDropped(t *testing.T) {
	// Somebody else makes the object of a file that is written here. The draft is listed under its new name with what can be done,
	// over a restart, and the name is the other's object. Published it is an object of its own; dropped it is gone.
	s, _, c := outage(t, "immutable")
	n := start(t, "", c.with)
	all := client(t, n)
	for _, key := range []string{"dir/a", "dir/b"} {
		store, err := n.openDrafts()
		if err != nil {
			t.Fatal(err)
		}
		id, err := n.tree.NewID()
		if err != nil {
			t.Fatal(err)
		}
		d, err := store.Create(draft.Name{Link: n.links.list()[0].name, Key: key}, id, draft.Attr{Mode: 0o644, New: true})
		if err == nil {
			err = d.Hold()
		}
		if err == nil {
			_, err = d.WriteAt([]byte("mine"), 0)
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.PutBytes(t.Context(), "data", key, []byte("theirs")); err != nil {
			t.Fatal(err)
		}
		conflict(t, n, d)
		closed(n, d)
	}
	for range 2 {
		got := draftsOf(t, all)
		for name, d := range got {
			if d.State != "failed" || !strings.HasPrefix(name, "/dir/"+name[5:6]+".conflict-") || !strings.Contains(d.Why, "mv it over the other one") {
				t.Errorf("%+v", d)
			}
		}
		if len(got) != 2 {
			t.Fatalf("%+v", got)
		}
		var out bytes.Buffer
		if err := all.Cat(t.Context(), "/dir/a", 0, -1, &out); err != nil || out.String() != "theirs" {
			t.Errorf("%q, %v", out.String(), err)
		}
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
		n = start(t, "", c.with)
		all = client(t, n)
		if !hearthtest.Eventually(t.Context(), time.Minute, func() bool {
			for _, d := range draftsOf(t, all) {
				if !strings.Contains(d.Why, "mv it over") {
					return false
				}
			}
			return true
		}) {
			t.Fatalf("%+v", draftsOf(t, all))
		}
	}
	for name := range draftsOf(t, all) {
		if strings.HasPrefix(name, "/dir/a") {
			results, err := all.PublishDrafts(t.Context(), []string{name})
			if err != nil || len(results) != 1 || results[0].Failed != nil {
				t.Errorf("%+v, %v", results, err)
			}
		} else if _, err := all.DropDraft(t.Context(), name, false); err != nil {
			t.Error(err)
		}
	}
	if got := keysOf(t, s); !strings.HasPrefix(got, "dir/a dir/a.conflict-") || !strings.HasSuffix(got, "Z dir/b dir/known") {
		t.Errorf("the bucket has %q", got)
	}
	if got := draftsOf(t, all); len(got) != 0 {
		t.Errorf("%+v", got)
	}
}

// conflict publishes a draft whose name another object has.
func conflict(t *testing.T, n *Node, d *draft.Draft) {
	t.Helper()
	if _, err := d.Publish(t.Context()); !errors.Is(err, hearth.ErrConflict) {
		t.Fatal(err)
	}
}
