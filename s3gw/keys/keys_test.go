package keys

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// write writes a file of keys, last changed a minute ago so that it counts as settled.
func write(t testing.TB, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	at := time.Now().Add(-time.Minute)
	if err := os.Chtimes(name, at, at); err != nil {
		t.Fatal(err)
	}
}

func file(t testing.TB, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "keys")
	write(t, name, text)
	return name
}

const example = "\ufeff# who may what\n\n" +
	"READER  reader-secret ro data photos/2024/,photos/2025/ # and a word\n" +
	"WRITER\twriter#secret\trw scratch, odd/a%20b%2Cc%2A%25%FF\r\n" +
	"WRITER writer#secret ro data\n" +
	"ADMIN/1 admin+secret/= rw *\n" +
	"#OLD old-secret rw *\n"

func TestMay(t *testing.T) {
	// Each key may what its lines say: whole buckets, prefixes as bytes, everything; and nobody may what was not switched on.
	k, err := Open(Options{File: file(t, example), Access: "ENV", Secret: "env-secret", Rights: "ro env", Anonymous: "ro public/open/"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		access, bucket, key string
		read, write         bool
	}{
		{"READER", "data", "", true, false}, {"READER", "data", "x", true, false}, {"READER", "data2", "x", false, false}, {"READER", "dat", "a", false, false},
		{"READER", "photos", "2024/a", true, false}, {"READER", "photos", "2025/", true, false}, {"READER", "photos", "2025", false, false},
		{"READER", "photos", "", false, false}, {"READER", "photos", "2026/a", false, false}, {"READER", "photos", "/2024/a", false, false},
		{"WRITER", "scratch", "a", true, true}, {"WRITER", "data", "a", true, false}, {"WRITER", "odd", "a b,c*%\xff/x", true, true}, {"WRITER", "odd", "a b", false, false},
		{"ADMIN/1", "any", "thing", true, true}, {"ADMIN/1", "", "", true, true},
		{"ENV", "env", "a", true, false}, {"ENV", "data", "a", false, false},
		{"", "public", "open/a", true, false}, {"", "public", "closed", false, false}, {"", "data", "", false, false},
		{"OLD", "data", "x", false, false}, {"reader", "data", "x", false, false},
	} {
		if got := k.May(c.access, false, c.bucket, c.key); got != c.read {
			t.Errorf("read %+v: %v", c, got)
		}
		if got := k.May(c.access, true, c.bucket, c.key); got != c.write {
			t.Errorf("write %+v: %v", c, got)
		}
	}
	for access, want := range map[string]string{"READER": "reader-secret", "WRITER": "writer#secret", "ADMIN/1": "admin+secret/=", "ENV": "env-secret", "": "", "OLD": ""} {
		if got, ok := k.Secret(access); got != want || ok != (want != "") {
			t.Errorf("the secret of %q: %v", access, ok)
		}
	}
	for access, want := range map[string]bool{"READER": true, "WRITER": false, "ADMIN/1": true, "": false, "none": false} {
		if got := k.Sees(access, "photos"); got != want {
			t.Errorf("%q sees photos: %v", access, got)
		}
	}
	if s := k.Stats(); s.Keys != 4 || s.Err != nil {
		t.Errorf("%+v", s)
	}
}

func TestNobody(t *testing.T) {
	// Without any options nobody may anything; with one key of an environment that may everything.
	k, err := Open(Options{})
	if err != nil || k.May("", false, "b", "k") || k.May("A", false, "b", "k") || k.Sees("", "b") {
		t.Errorf("nobody: %v", err)
	}
	if k, err = Open(Options{Access: "ABC", Secret: "12345678"}); err != nil || !k.May("ABC", true, "b", "k") || k.May("", false, "b", "k") {
		t.Errorf("one key: %v", err)
	}
}

func TestRefused(t *testing.T) {
	// A wrong line is named by its number and never repeated: it may be a secret that stands in the wrong place.
	const hidden = "HIDDENsecret"
	for name, c := range map[string]struct{ text, want string }{
		"few fields":      {"\n\nABC " + hidden + " ro\n", "line 3"},
		"swapped":         {hidden + " ABC ro data", "line 1"},
		"right":           {"ABC " + hidden + " wr data", "neither ro nor rw"},
		"no target":       {"ABC " + hidden + " ro ,", "no TARGET"},
		"pattern":         {"ABC " + hidden + " ro data/*", "no pattern"},
		"no bucket":       {"ABC " + hidden + " ro /data", "no bucket"},
		"escape":          {"ABC " + hidden + " ro data/%2", "%XX"},
		"bad escape":      {"ABC " + hidden + " ro da%g0ta", "%XX"},
		"short access":    {"AB " + hidden + " ro data", "access key"},
		"long access":     {strings.Repeat("A", 129) + " " + hidden + " ro data", "access key"},
		"comma":           {"A,BC " + hidden + " ro data", "access key"},
		"short secret":    {"ABC HIDDENs ro data", "secret"},
		"long secret":     {"ABC " + strings.Repeat(hidden, 30) + " ro data", "secret"},
		"not ASCII":       {"ABC " + hidden + "ü ro data", "secret"},
		"two secrets":     {"ABC " + hidden + " ro data\nABC " + hidden + "2 rw data", "line 2"},
		"long line":       {"# ok\nABC " + hidden + " ro " + strings.Repeat("data ", 1000), "line 2"},
		"many keys":       {lines(maxKeys+1, "%d "+hidden+" ro data"), "line 10001"},
		"many lines":      {strings.Repeat("\n", maxLines+1), "lines"},
		"many targets":    {lines(3, "ABC "+hidden+" ro "+strings.Repeat("d,", 400)+" # %d"), "targets"},
		"comment at last": {"ABC " + hidden + " ro # data", "line 1"},
	} {
		_, err := Open(Options{File: file(t, c.text)})
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "HIDDEN") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, o := range []Options{{Access: "ABC"}, {Secret: hidden}, {Access: "A", Secret: hidden}, {Access: "ABC", Secret: hidden, Rights: "rw"}, {Anonymous: "*"}, {Anonymous: "ro data/*"}} {
		if _, err := Open(o); err == nil || strings.Contains(err.Error(), hidden) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if _, err := Open(Options{File: file(t, lines(maxKeys, "KEY%d "+hidden+" ro data"))}); err != nil {
		t.Error("as many keys as there may be:", err)
	}
}

func lines(n int, format string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, format+"\n", 1000000+i)
	}
	return b.String()
}

func TestFile(t *testing.T) {
	// A file that others may read is refused with the cure, and so is what is no file; a group may read it.
	name := file(t, "ABC 12345678 ro data\n")
	for mode, ok := range map[fs.FileMode]bool{0o600: true, 0o640: true, 0o400: true, 0o644: false, 0o602: false, 0o601: false} {
		if err := os.Chmod(name, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(Options{File: name}); (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "chmod 600 "+name) {
			t.Errorf("%v: %v", mode, err)
		}
	}
	if _, err := Open(Options{File: filepath.Dir(name)}); err == nil {
		t.Error("a directory is taken for a file")
	}
	if _, err := Open(Options{File: name + "x"}); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

func TestReload(t *testing.T) {
	// A changed file counts within a second of use; one that is broken, readable by others or gone keeps the old keys, is told once, and counts again once
	// it is right.
	var clock atomic.Int64
	var told []error
	name := file(t, "ABC 12345678 ro data\n")
	k, err := Open(Options{File: name, Now: func() time.Time { return time.Unix(0, clock.Load()) }, Report: func(err error) { told = append(told, err) }})
	if err != nil {
		t.Fatal(err)
	}
	has := func(want string, reports int) {
		t.Helper()
		for range 3 {
			clock.Add(int64(time.Second))
			for access := range strings.SplitSeq("ABC NEW", " ") {
				if _, ok := k.Secret(access); ok != strings.Contains(want, access) {
					t.Errorf("%s: %v, want %q", access, ok, want)
				}
			}
		}
		if len(told) != reports {
			t.Errorf("%d reports, want %d: %v", len(told), reports, told)
		}
	}
	write(t, name, "NEW 12345678 ro data\nABC 12345678 ro data\n")
	if _, ok := k.Secret("NEW"); ok {
		t.Error("the file was looked at again at once")
	}
	has("ABC NEW", 0)
	write(t, name, "NEW 12345678 xx data\n")
	has("ABC NEW", 1)
	if !strings.Contains(told[0].Error(), "line 1") || k.Stats().Err == nil {
		t.Error(told[0], k.Stats())
	}
	write(t, name, "NEW 12345678 yy data \n")
	has("ABC NEW", 2)
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	has("ABC NEW", 3)
	write(t, name, "NEW 12345678 ro data\n")
	has("NEW", 3)
	if err := os.Chmod(name, 0o644); err != nil {
		t.Fatal(err)
	}
	has("NEW", 4)
	if err := os.Chmod(name, 0o600); err != nil {
		t.Fatal(err)
	}
	has("NEW", 4)
	other := name + ".new"
	write(t, other, "ABC 12345678 ro data\n") // as long and as old, another file
	info, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(other, info.ModTime(), info.ModTime()); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(other, name); err != nil {
		t.Fatal(err)
	}
	has("ABC", 4)
	if err := os.WriteFile(name, []byte("broken\n"), 0o600); err != nil { // just written: it is read again each second, and told once
		t.Fatal(err)
	}
	has("ABC", 5)
	write(t, name, "NEW 12345678 ro data\n")
	if err := k.Reload(); err != nil {
		t.Error(err)
	}
	if _, ok := k.Secret("NEW"); !ok {
		t.Error("Reload did not take the file over")
	}
}

func TestUnsettled(t *testing.T) {
	// A file that was changed twice within a tick of its clock, with the same length, counts as it is at last.
	var clock atomic.Int64
	name := file(t, "ABC 12345678 ro data\n")
	at := time.Now()
	if err := os.Chtimes(name, at, at); err != nil {
		t.Fatal(err)
	}
	k, err := Open(Options{File: name, Now: func() time.Time { return time.Unix(0, clock.Load()) }})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte("NEW 12345678 ro data\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(name, at, at); err != nil {
		t.Fatal(err)
	}
	clock.Add(int64(time.Second))
	if _, ok := k.Secret("NEW"); !ok {
		t.Error("the second change was not seen")
	}
}

func TestAFileThatIsBeingWritten(t *testing.T) {
	// Whoever writes the file in its place empties it first: the keys of before count for that moment,
	// and no key does once it has stayed empty.
	name := file(t, "OLD 12345678 ro data\n")
	var clock atomic.Int64
	k, err := Open(Options{File: name, Now: func() time.Time { return time.Unix(0, clock.Add(int64(pollEach))) }})
	if err != nil {
		t.Fatal(err)
	}
	was, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	// Cut already, and its time not set yet, as a look may find it; then both.
	for _, at := range []time.Time{was.ModTime(), time.Now()} {
		if err := errors.Join(os.Truncate(name, 0), os.Chtimes(name, at, at)); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if !k.May("OLD", false, "data", "x") {
				t.Errorf("a file that was emptied just now took a key away, its time %v", at)
			}
		}
	}
	write(t, name, "NEW 12345678 ro data\n")
	if !k.May("NEW", false, "data", "x") || k.May("OLD", false, "data", "x") {
		t.Error("what was written then does not count")
	}
	write(t, name, "") // a minute ago
	if k.May("NEW", false, "data", "x") {
		t.Error("a file that is empty has a key")
	}
}

func TestTogether(t *testing.T) {
	// Many ask while the file changes: each is answered from the old keys or the new ones, whole.
	name := file(t, lines(100, "KEY%d 12345678 ro old"))
	var clock atomic.Int64
	k, err := Open(Options{File: name, Now: func() time.Time { return time.Unix(0, clock.Add(int64(time.Second/3))) }})
	if err != nil {
		t.Fatal(err)
	}
	var wait sync.WaitGroup
	for range 4 {
		wait.Go(func() {
			for range 200 {
				if k.May("KEY1000000", false, "old", "x") == k.May("KEY1000000", false, "new", "x") && k.Stats().Keys != 100 {
					t.Error("neither the old keys nor the new ones")
				}
			}
		})
	}
	write(t, name, lines(100, "KEY%d 12345678 ro new"))
	wait.Wait()
	if err := k.Reload(); err != nil || !k.May("KEY1000000", false, "new", "x") || k.May("KEY1000000", false, "old", "x") {
		t.Error("the new keys do not count", err)
	}
}

func FuzzParse(f *testing.F) {
	// Whatever is in a file, what is taken from it is within its limits, and an error says nothing of it.
	f.Add(example)
	f.Add("ABC 12345678 ro b/%zz,*")
	f.Add("ABC 12345678 rw a,b c/d\x00\nABC 12345678 ro *")
	f.Fuzz(func(t *testing.T, text string) {
		const hidden = "HIDDENsecret"
		table := &table{keys: map[string]*owner{}}
		if err := table.parse(strings.NewReader(strings.ReplaceAll(text, "12345678", hidden))); err != nil && strings.Contains(err.Error(), hidden) {
			t.Errorf("%v", err)
		}
		for access, o := range table.keys {
			if len(access) < minAccess || len(access) > maxAccess || len(o.secret) < minSecret || len(o.targets) > maxTargets {
				t.Errorf("%q has %d targets", access, len(o.targets))
			}
			for _, at := range o.targets {
				if at.all != (at.bucket == "") {
					t.Errorf("%q: %+v", access, at)
				}
			}
		}
	})
}

func BenchmarkMay(b *testing.B) {
	k, err := Open(Options{File: file(b, lines(1000, "KEY%d 12345678 ro data photos/2024/ photos/2025/"))})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := k.Secret("KEY1000500"); !ok || !k.May("KEY1000500", false, "photos", "2025/some/key") {
			b.Fatal("refused")
		}
	}
}
