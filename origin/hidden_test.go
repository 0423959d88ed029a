package origin

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// listing is what a listing gives, and what it tells as hidden.
func listing(t *testing.T, o Origin, q hearth.Listing) (keys, hidden []string) {
	t.Helper()
	q.Hidden = func(key string) { hidden = append(hidden, key) }
	err := o.List(t.Context(), q, func(x hearth.Object) error {
		if x.IsPrefix() != strings.HasSuffix(x.Key, "/") && x.Key != q.Prefix {
			t.Errorf("%q has size %d", x.Key, x.Size)
		}
		keys = append(keys, x.Key)
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	return keys, hidden
}

func TestAServerThatGroupsWronglyHidesNothing(t *testing.T) {
	// gofakes3 groups "/lead" as "lead" and lists keys that lie elsewhere: what comes
	// out is what S3 would say, and a group of 2,500 keys costs no page for each.
	s := hearthtest.StartFakeS3(t)
	bucket := s.Bucket(t, "groups")
	account(t, &s.S3)
	keys := []string{"/lead", "//two", "a", "a/b", "t/", "u/", "u/v", "x//y", "x/z", "zz", "bell\x07"}
	for i := range 2500 {
		keys = append(keys, fmt.Sprintf("big/%05d", i))
	}
	for _, key := range keys {
		if _, err := s.PutBytes(t.Context(), bucket, key, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	o := open(t, Config{URL: "s3://" + bucket, Endpoint: s.Endpoint})
	for _, v := range []struct {
		q    hearth.Listing
		want []string
	}{
		{hearth.Listing{}, []string{"/", "a", "a/", "big/", "t/", "u/", "x/", "zz"}},
		{hearth.Listing{Limit: 3}, []string{"/", "a", "a/"}},
		{hearth.Listing{After: "a/", Limit: 2}, []string{"big/", "t/"}},
		{hearth.Listing{Prefix: "/"}, []string{"//", "/lead"}},
		{hearth.Listing{Prefix: "//"}, []string{"//two"}},
		{hearth.Listing{Prefix: "x/"}, []string{"x//", "x/z"}},
		{hearth.Listing{Prefix: "u/"}, []string{"u/", "u/v"}},
		{hearth.Listing{Prefix: "t/", Recursive: true}, []string{"t/"}},
	} {
		before := o.Stats().Lists
		got, hidden := listing(t, o, v.q)
		if !slices.Equal(got, v.want) {
			t.Errorf("%+v: %q, want %q", v.q, got, v.want)
		}
		if v.q.Prefix == "" && v.q.Limit == 0 && (len(hidden) != 1 || o.Stats().Lists-before > 3) {
			t.Errorf("hidden: %q; %d requests", hidden, o.Stats().Lists-before)
		}
	}
}

func TestWhatIsNoFileIsTold(t *testing.T) {
	// Links that lead to no file of the directory, pipes and sockets are no objects;
	// each is told, and nothing else.
	dir := t.TempDir()
	for name, target := range map[string]string{"in": "sub/a", "out": "/etc/passwd", "up": "../x", "loop": "loop", "dangling": "nothing", "dir": "sub"} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "sub", "a"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "sub", "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := open(t, Config{URL: "file://" + dir})
	got, hidden := listing(t, o, hearth.Listing{})
	if strings.Join(got, " ") != "in sub/" || strings.Join(hidden, " ") != "dangling dir loop out up" {
		t.Errorf("listed %q, hidden %q", got, hidden)
	}
	if got, hidden := listing(t, o, hearth.Listing{Prefix: "sub/"}); strings.Join(got, " ") != "sub/a" || strings.Join(hidden, " ") != "sub/pipe" {
		t.Errorf("listed %q, hidden %q", got, hidden)
	}
}
