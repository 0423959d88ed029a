package namespace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"strings"
	"testing"

	"github.com/hearthfs/hearth/namespace/record"
)

func TestKeysAreFoundByteForByte(t *testing.T) {
	// Every key is found as it is, whatever its name in the mount; a prefix is the
	// directory of the keys below it.
	w := open(t, nil)
	keys := []string{"a", "a/b", "x//y", "/lead", "//two", "./p", "../etc/passwd", "t/", strings.Repeat("n", 300), "a%2Fb", "%_", "new\nline", "..", "a%F"}
	for _, k := range keys {
		w.b.put(k, "e"+k, 3)
	}
	for _, warm := range []bool{false, true} {
		for _, k := range keys {
			if n, err := w.tree.File(context.Background(), "/", k); err != nil || n.Object.Key != k {
				t.Errorf("warm %v: %q is %q, %v", warm, k, n.Object.Key, err)
			}
		}
		for _, k := range []string{"", "a/", "x/", "x//", "/", "//", "../", "../etc/", "t/"} {
			if n, err := w.tree.Prefix(context.Background(), "/", k); err != nil || !n.Dir || k != "" && n.Object.Key != k {
				t.Errorf("warm %v: prefix %q: %+v, %v", warm, k, n, err)
			}
		}
		for _, k := range []string{"b", "x/y", "a/", "p", "etc/passwd", "lead", "a//b", "%2E%2E/etc/passwd", "%_/lead", "\xff", strings.Repeat("n", 299)} {
			if n, err := w.tree.File(context.Background(), "/", k); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("warm %v: %q, which there is not, is %+v, %v", warm, k, n, err)
			}
		}
		if n, err := w.tree.Below(context.Background(), rootID, func(string, Node) error { return nil }); n != 0 || err != nil {
			t.Errorf("%d hidden, %v", n, err)
		}
	}
}

func TestTheFileBesideADirectoryIsWaitedFor(t *testing.T) {
	// Who asks for the file a beside a/, cold, gets it although the directory's
	// answer comes first.
	w := open(t, func(o *Options) { o.Links[0].Freshness = Freshness{Mode: Strict} })
	for i := range 30 {
		key := fmt.Sprint("a", i)
		w.b.put(key, "e", 3)
		w.b.put(key+"/b", "e", 3)
		listed := make(chan struct{})
		w.b.onPage = func(prefix string, _ int) {
			if prefix == key+"/" {
				close(listed)
			}
		}
		w.b.onHead = func(string) {
			<-listed
			for range 100 {
				runtime.Gosched() // the directory's answer goes first
			}
		}
		if n, err := w.tree.Lookup(context.Background(), rootID, key+"%F"); err != nil || n.Dir || n.Object.Key != key {
			t.Fatalf("%+v, %v", n, err)
		}
	}
}

func TestGoingOnBehindWhatANameWas(t *testing.T) {
	// A reader goes on behind a file or a directory, although the name is the other kind's by
	// now: names that sort between a and a/ come once, and are not left out.
	for _, is := range []string{"a", "a/b"} {
		w := open(t, nil)
		for _, key := range []string{is, "a-1", "z"} {
			w.b.put(key, "e", 3)
		}
		behind := func(after string) (names string) {
			err := w.tree.ReadSince(context.Background(), rootID, 0, after, func(n Node) bool { names += n.Name + " "; return true })
			if err != nil {
				t.Error(err)
			}
			return names
		}
		all := behind("")
		want := map[string]string{"a": "a-1 z ", "a/b": "a-1 a z "}[is]
		if got := behind(record.AsFile("a")); got != want {
			t.Errorf("%q of %q: behind the file %q, want %q", is, all, got, want)
		}
		if got := behind("a/"); got != "z " {
			t.Errorf("%q of %q: behind the directory %q", is, all, got)
		}
	}
	long := strings.Repeat("x", record.MaxName-1)
	if record.AsFile(long) != long || record.AsFile("a%F") != "a%F" {
		t.Error("names that stay as they are")
	}
}
