package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/hearthfs/hearth/node/admin"
)

// in is a current directory with these names, of a node with these mounts.
func in(mounts []string, dirs ...string) *place {
	return &place{dirs: func() []string { return dirs }, mounts: func() []string { return mounts }}
}

func TestRelativePathsBelowAMount(t *testing.T) {
	// A relative path becomes absolute if that lies below a mount, by the kernel's name of the
	// current directory or the shell's. Otherwise it stays, as other paths and URLs do.
	mounts := []string{"/mnt/d", "/data"}
	for _, c := range []struct {
		place      *place
		path, want string
	}{
		{in(mounts, "/mnt/d/train"), "a/b.jpg", "/mnt/d/train/a/b.jpg"},
		{in(mounts, "/mnt/d/train"), "./a", "/mnt/d/train/a"},
		{in(mounts, "/mnt/d/train"), ".", "/mnt/d/train"},
		{in(mounts, "/mnt/d/train"), "../val", "/mnt/d/val"},
		{in(mounts, "/mnt/d"), "..", ".."},
		{in(mounts, "/mnt/d"), "../dd/x", "../dd/x"},
		{in(mounts, "/mnt"), "d/x", "/mnt/d/x"},
		{in(mounts, "/home/me"), "train", "train"},
		{in(mounts, "/raid/d", "/data/train"), "x", "/data/train/x"},
		{in(mounts, "/mnt/d/train"), "/train/x", "/train/x"},
		{in(mounts, "/mnt/d/train"), "s3://b/x", "s3://b/x"},
		{in(mounts, "/mnt/d/train"), "file:///x", "file:///x"},
		{in(mounts, "/mnt/d/train"), "", ""},
		{in([]string{"/"}, "/train"), "x", "/train/x"},
		{in(nil, "/mnt/d/train"), "x", "x"},
		{in(mounts), "x", "x"},
	} {
		if got := c.place.Absolute(c.path); got != c.want {
			t.Errorf("%q is %q, not %q", c.path, got, c.want)
		}
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err == nil {
		err = os.Symlink(dir, dir+".link")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(dir + ".link") })
	t.Chdir(dir)
	t.Setenv("PWD", dir+".link")
	for mount, want := range map[string]string{dir: dir + "/x", dir + ".link": dir + ".link/x", dir + "x": "x"} {
		asked := 0
		p := currentPlace(func() []string { asked++; return []string{mount} })
		if p.Absolute("/x"); asked != 0 {
			t.Error("an absolute path asks for the mounts")
		}
		if got, again := p.Absolute("x"), p.Absolute("x"); got != want || again != want || asked != 1 {
			t.Errorf("below %s: %q, %q, not %q, asked %d times", mount, got, again, want, asked)
		}
	}
}

func TestListsOfRelativePaths(t *testing.T) {
	// Each item of a list is resolved by itself, however its bytes arrive. One that is too long for
	// a path is passed on byte for byte.
	p := in([]string{"/m"}, "/m/d")
	long := strings.Repeat("x", 3*longest+7)
	for _, c := range []struct {
		separator  byte
		list, want string
	}{
		{'\n', "a\n/b\n\ns3://b/c\n./d e", "/m/d/a\n/b\n\ns3://b/c\n/m/d/d e"},
		{'\n', "a\r\nb\r\n", "/m/d/a\r\n/m/d/b\r\n"},
		{0, "a\nb\x00c\x00", "/m/d/a\nb\x00/m/d/c\x00"},
		{'\n', long + "\na\n", long + "\n/m/d/a\n"},
		{'\n', "a\n" + long, "/m/d/a\n" + long},
		{'\n', "", ""},
	} {
		for _, source := range []func(io.Reader) io.Reader{func(r io.Reader) io.Reader { return r }, iotest.OneByteReader, iotest.DataErrReader} {
			got, err := io.ReadAll(p.List(source(strings.NewReader(c.list)), c.separator))
			if err != nil || string(got) != c.want {
				t.Errorf("%.40q: %.60q, %v", c.list, got, err)
			}
		}
	}
	if got, err := io.ReadAll(p.List(io.MultiReader(strings.NewReader("a\nb"), iotest.ErrReader(os.ErrClosed)), '\n')); string(got) != "/m/d/a\n/m/d/b" || err != os.ErrClosed {
		t.Errorf("a list that breaks off: %q, %v", got, err)
	}
}

func TestPathsAreShownAsTheyWereTyped(t *testing.T) {
	// The absolute form of a relative path, and anything below it, is shown as it was typed, also at
	// the beginning of an error. Nothing else is changed.
	p := in([]string{"/mnt/d"}, "/mnt/d/train")
	p.All([]string{"a", "/x", "../val"})
	for text, want := range map[string]string{"/mnt/d/train/a": "a", "/mnt/d/train/a/b": "a/b", "/mnt/d/train/ab": "/mnt/d/train/ab", "/mnt/d/val: no such file": "../val: no such file",
		"/x": "/x", "/mnt/d/train": "/mnt/d/train"} {
		if got := p.Typed(text); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
	err := p.Said(fmt.Errorf("asked: %w", &admin.Error{Kind: admin.KindNotFound, Message: "/mnt/d/train/a: no such file or directory"}))
	if err.Error() != "a: no such file or directory" || admin.KindOf(err) != admin.KindNotFound {
		t.Errorf("%v", err)
	}
	err = p.Said(&admin.Error{Message: "read /mnt/d/train/a at 0: archived (hearth unpin /mnt/d/train/a), /mnt/d/train/ab is not, x/mnt/d/train/a neither"})
	if err.Error() != "read a at 0: archived (hearth unpin a), /mnt/d/train/ab is not, x/mnt/d/train/a neither" {
		t.Errorf("%v", err)
	}
	if err := p.Said(io.EOF); err != io.EOF {
		t.Errorf("%v", err)
	}
}
