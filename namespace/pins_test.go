package namespace

import (
	"encoding/binary"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/hearthfs/hearth/namespace/record"
	"github.com/hearthfs/hearth/namespace/store"
)

func openPins(t *testing.T, o store.Options) (*store.Store, *PinTable) {
	t.Helper()
	db, err := store.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	table, err := OpenPins(db)
	if err != nil {
		t.Fatal(err)
	}
	return db, table
}

func paths(t *PinTable) (all []string) {
	for _, p := range t.All() {
		all = append(all, p.Path)
	}
	return all
}

func TestPinsLast(t *testing.T) {
	// A pin is there after a restart, with its maker, its end and the bytes of its path. A deleted pin is
	// not, and a record that cannot be read is no pin.
	dir := filepath.Join(t.TempDir(), "names")
	db, table := openPins(t, store.Options{Dir: dir})
	end := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	for _, p := range []Pin{{Path: "/a"}, {Path: "/a/b\xff", Expires: &end, Job: "7", UID: 1001}, {Path: "/c"}} {
		if err := table.Set(p); err != nil {
			t.Fatal(err)
		}
	}
	if err := table.Delete("/c"); err != nil {
		t.Fatal(err)
	}
	e := db.Edit()
	e.Set(append([]byte{record.KindPin}, "/damaged"...), []byte("{"))
	if err := e.Commit(true); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	_, table = openPins(t, store.Options{Dir: dir})
	all := table.All()
	if len(all) != 2 || all[0].Path != "/a" || all[0].Expires != nil || all[0].UID != 0 || all[1].UID != 1001 || all[1].Path != "/a/b\xff" || all[1].Job != "7" || !all[1].Expires.Equal(end) {
		t.Errorf("%+v", all)
	}
}

func TestPinsOutliveTheirDatabase(t *testing.T) {
	// The names outgrow their memory and start anew. The next Keep, or the next change of a pin, writes the
	// pins into the new database.
	for _, change := range []bool{false, true} {
		db, table := openPins(t, store.Options{MemoryBytes: 8 << 20})
		want := []string{"/a", "/b"}
		for _, path := range want {
			if err := table.Set(Pin{Path: path}); err != nil {
				t.Fatal(err)
			}
		}
		text := make([]byte, 1<<16)
		random := rand.NewChaCha8([32]byte{1})
		for i := uint64(0); db.Generation() == table.gen && i < 1000; i++ {
			_, _ = random.Read(text)
			e := db.Edit()
			e.Set(binary.BigEndian.AppendUint64([]byte{'e'}, i), text)
			_ = e.Commit(false)
		}
		if again, err := OpenPins(db); err != nil || len(again.All()) != 0 {
			t.Fatalf("the names did not begin anew: %v, %v", again.All(), err)
		}
		var err error
		if change {
			want = append(want, "/c")
			err = table.Set(Pin{Path: "/c"})
		} else {
			err = table.Keep()
		}
		again, err2 := OpenPins(db)
		if err != nil || err2 != nil || !slices.Equal(paths(again), want) {
			t.Errorf("%v, %v, %v", paths(again), err, err2)
		}
	}
}
