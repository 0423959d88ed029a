package namespace

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hearthfs/hearth/namespace/record"
	"github.com/hearthfs/hearth/namespace/store"
)

func key(kind byte, dir byte, name string) []byte {
	return append(append([]byte{kind}, make([]byte, 15)...), append([]byte{dir}, name...)...)
}

func idKey(id uint64) []byte { return binary.BigEndian.AppendUint64([]byte{record.KindReverse}, id) }

// found runs a check.
func found(t *testing.T, db RecordsDB) (all []string) {
	t.Helper()
	err := CheckRecords(t.Context(), db, func(key, why string) { all = append(all, why) }, func(_, _ int64) {})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestRecordsThatDoNotFitAreTold(t *testing.T) {
	// Names lead to their node ids and back. A check reports a name whose id is gone, one whose id is
	// another's, and a record that cannot be read. So does a check of a database that a Look opens.
	dir := filepath.Join(t.TempDir(), "names")
	s, err := store.Open(store.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	put := func(k, v []byte) {
		e := s.Edit()
		e.Set(k, v)
		if err := e.Commit(true); err != nil {
			t.Fatal(err)
		}
	}
	file := func(name string, id uint64) {
		put(key(record.KindEntry, 1, name), (&record.Entry{ID: id, Size: 5, ETag: "e"}).Append(nil))
		put(idKey(id), (&record.Reverse{Parent: 2, Sort: name}).Append(nil))
	}
	for i := range 2500 {
		file("file"+strings.Repeat("x", i%50)+string(rune('a'+i%26))+string(rune(0x4e00+i)), uint64(100+i))
	}
	put(key(record.KindDirectory, 1, ""), (&record.Directory{ID: 2}).Append(nil))
	put(idKey(2), (&record.Reverse{Dir: true, Path: "x"}).Append(nil))
	put(append([]byte{record.KindPin}, "/a"...), []byte("{}"))
	if all := found(t, s); len(all) > 0 {
		t.Fatalf("a sound database: %v", all)
	}
	put(key(record.KindEntry, 1, "gone"), (&record.Entry{ID: 9001, Size: 5}).Append(nil))
	file("other", 9002)
	put(key(record.KindEntry, 1, "same"), (&record.Entry{ID: 9002, Size: 5}).Append(nil))
	put(key(record.KindEntry, 1, "unreadable"), []byte{0xff})
	put(key(record.KindDirectory, 3, ""), (&record.Directory{ID: 9003}).Append(nil))
	put(append([]byte{record.KindPin}, "/b"...), []byte("{"))
	want := "node id 9003 of a directory leads nowhere|node id 9001 leads nowhere|node id 9002 leads to something else|a record of the namespace cannot be read|a pin that cannot be read"
	if all := strings.Join(found(t, s), "|"); all != want {
		t.Errorf("in use: %s", all)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	look, err := store.OpenLook(dir)
	if err != nil {
		t.Fatal(err)
	}
	if all := strings.Join(found(t, look), "|"); all != want {
		t.Errorf("looked at: %s", all)
	}
	if err := look.Close(); err != nil {
		t.Error(err)
	}
}

func TestADatabaseWithAChangedByteIsTold(t *testing.T) {
	// A byte of a table is changed on the disk: the look fails and says so.
	dir := filepath.Join(t.TempDir(), "names")
	s, err := store.Open(store.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	e := s.Edit()
	for i := range 5000 {
		e.Set(idKey(uint64(i)), (&record.Reverse{Parent: 2, Sort: strings.Repeat("name", 1+i%9)}).Append(nil))
	}
	if err := e.Commit(true); err != nil {
		t.Fatal(err)
	}
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	tables, err := filepath.Glob(filepath.Join(dir, "*.sst"))
	if err != nil || len(tables) == 0 {
		t.Fatalf("no table: %v", err)
	}
	text, err := os.ReadFile(tables[0])
	if err != nil {
		t.Fatal(err)
	}
	text[len(text)/3] ^= 8
	if err := os.WriteFile(tables[0], text, 0o600); err != nil {
		t.Fatal(err)
	}
	look, err := store.OpenLook(dir)
	if err == nil {
		err = CheckRecords(t.Context(), look, func(_, _ string) {}, func(_, _ int64) {})
		_ = look.Close()
	}
	if err == nil {
		t.Fatal("nothing was said")
	}
}
