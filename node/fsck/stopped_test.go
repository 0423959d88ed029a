package fsck

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/cache/check"
	"github.com/hearthfs/hearth/cache/disk"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/namespace/record"
	"github.com/hearthfs/hearth/namespace/store"
)

// keepNames makes names that this version cannot read: a record in an unknown format.
func keepNames(t *testing.T, format byte) (dir string) {
	t.Helper()
	dir = t.TempDir()
	db, err := store.Open(store.Options{Dir: filepath.Join(dir, disk.NamesDir)})
	if err != nil {
		t.Fatal(err)
	}
	e := db.Edit()
	e.Set([]byte(record.FormatKey), []byte{format})
	e.Set(record.NameKey(nil, record.KindEntry, [16]byte{1}, "name"), []byte{0xff})
	if err := errors.Join(e.Commit(true), db.Close()); err != nil {
		t.Fatal(err)
	}
	return dir
}

// repaired checks the names with repair.
func repaired(t *testing.T, dir string) (all []check.Finding) {
	t.Helper()
	r := &check.Run{Repair: true, Found: func(f check.Finding) { all = append(all, f) }}
	if err := checkNames(t.Context(), dir, r); err != nil {
		t.Fatal(err)
	}
	return all
}

func TestNamesOfANewerVersionAreNotTouched(t *testing.T) {
	// A newer version wrote the records, or a newer Pebble the database. A repair refuses them and sets
	// nothing aside, and neither does a start.
	records, database := keepNames(t, record.Format+1), keepNames(t, record.Format)
	markers, err := filepath.Glob(filepath.Join(database, disk.NamesDir, "marker.format-version.*"))
	if err != nil || len(markers) != 1 {
		t.Fatal(markers, err)
	}
	if err := os.Rename(markers[0], filepath.Join(database, disk.NamesDir, "marker.format-version.999999.999")); err != nil {
		t.Fatal(err)
	}
	if db, err := store.Open(store.Options{Dir: filepath.Join(database, disk.NamesDir)}); !errors.Is(err, store.ErrNewer) {
		t.Errorf("a start: %v", err)
		if err == nil {
			_ = db.Close()
		}
	}
	for what, dir := range map[string]string{"records": records, "database": database} {
		if all := repaired(t, dir); len(all) != 1 || all[0].Kind != check.Refused || all[0].Repaired {
			t.Errorf("%s: %v", what, all)
		}
		if names, err := os.ReadDir(dir); err != nil || len(names) != 1 || names[0].Name() != disk.NamesDir {
			t.Errorf("%s: %v, %v", what, names, err)
		}
	}
	ours := keepNames(t, record.Format)
	if all := repaired(t, ours); len(all) != 1 || all[0].Kind != check.Damaged || !all[0].Repaired {
		t.Errorf("damaged: %v", all)
	}
}

func TestAClockThatWentBackIsNoDamage(t *testing.T) {
	// The scrub noted a time in the future.
	dir := cache(t)
	write(t, filepath.Join(dir, "scrub.json"), `{"now":{"begun":99999999999},"object":"00000000000000000000000000000000"}`)
	r := &check.Run{Found: func(f check.Finding) { t.Errorf("%s", f) }}
	if err := Stopped(t.Context(), dir, r); err != nil {
		t.Error(err)
	}
}

func TestACheckShortOfDescriptorsDropsNothing(t *testing.T) {
	// A repair of a sound cache may open no file, then one, then two, and so on. It ends with an error
	// until there are enough, and never finds damage.
	dir := cache(t)
	write(t, filepath.Join(dir, "scrub.json"), `{"object":"00000000000000000000000000000000"}`)
	limit, lift := hearthtest.OpenFiles(t)
	defer lift()
	failed := 0
	for n := uint64(0); ; n++ {
		r := &check.Run{Repair: true, Found: func(f check.Finding) { t.Errorf("with descriptors up to %d: %s", n, f) }}
		limit(n)
		err := Stopped(t.Context(), dir, r)
		lift()
		if err == nil {
			if r.Blocks.Load() != 3 {
				t.Errorf("with descriptors up to %d: %d blocks", n, r.Blocks.Load())
			}
			break
		}
		if failed++; !errors.Is(err, unix.EMFILE) {
			t.Errorf("with descriptors up to %d: %v", n, err)
		}
	}
	if failed < 3 {
		t.Errorf("only %d checks failed", failed)
	}
}
