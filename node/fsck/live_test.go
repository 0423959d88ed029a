package fsck

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hearthfs/hearth/cache/check"
	"github.com/hearthfs/hearth/cache/disk"
	"github.com/hearthfs/hearth/namespace/record"
	"github.com/hearthfs/hearth/namespace/store"
)

func TestACheckOfARunningNodeSetsNothingAside(t *testing.T) {
	// A byte of the names' database rots under a running node. A check reports it and changes nothing. A
	// check with repair has the node set the database aside, as a reader of the name would.
	dir := t.TempDir()
	names := filepath.Join(dir, disk.NamesDir)
	db := openNames(t, names)
	e := db.Edit()
	for i := range 2000 {
		e.Set(record.NameKey(nil, record.KindEntry, [16]byte{1}, fmt.Sprintf("name%08d", i)), fmt.Appendf(nil, "what stands there %d", i*i))
	}
	if err := errors.Join(e.Commit(true), db.Flush(), db.Compact(), db.Close()); err != nil {
		t.Fatal(err)
	}
	tables, err := filepath.Glob(filepath.Join(names, "*.sst"))
	if err != nil || len(tables) == 0 {
		t.Fatal(tables, err)
	}
	for _, name := range tables {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		text[len(text)/4] ^= 0x40
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	db = openNames(t, names)
	defer func() { _ = db.Close() }()
	n := Node{Names: db}
	for _, repair := range []bool{false, false, true} {
		var all []check.Finding
		r := &check.Run{Repair: repair, Found: func(f check.Finding) { all = append(all, f) }}
		before := db.Generation()
		if err := n.names(t.Context(), names, r); err != nil {
			t.Fatal(err)
		}
		if len(all) != 1 || all[0].Kind != check.Damaged || all[0].Repaired != repair || !strings.Contains(all[0].Cause, "--repair") {
			t.Errorf("repair %v: %v", repair, all)
		}
		aside, err := filepath.Glob(names + ".corrupt-*")
		if want := len(aside) == 1; err != nil || want != repair || (db.Generation() != before) != repair {
			t.Errorf("repair %v: set aside %v, generation %d and %d, %v", repair, aside, before, db.Generation(), err)
		}
	}
	var all []check.Finding
	if err := n.names(t.Context(), names, &check.Run{Found: func(f check.Finding) { all = append(all, f) }}); err != nil || len(all) > 0 {
		t.Errorf("after the repair: %v, %v", all, err)
	}
}

func openNames(t *testing.T, dir string) *store.Store {
	t.Helper()
	db, err := store.Open(store.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	return db
}
