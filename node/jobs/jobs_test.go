package jobs

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/namespace"
	"github.com/hearthfs/hearth/warmup"
)

// fakeOrigin lists these keys, in order.
type fakeOrigin []string

func (fakeOrigin) object(key string) hearth.Object {
	return hearth.Object{Link: "l", Key: key, ETag: "e", Size: 3, Version: hearth.VersionOf("id", key, "e", 3)}
}

// Head implements namespace.Origin.
func (o fakeOrigin) Head(_ context.Context, key string) (hearth.Object, error) {
	if !slices.Contains(o, key) {
		return hearth.Object{}, fs.ErrNotExist
	}
	return o.object(key), nil
}

// List implements namespace.Origin.
func (o fakeOrigin) List(_ context.Context, q hearth.Listing, each func(hearth.Object) error) error {
	last := ""
	for _, key := range o {
		rest, ok := strings.CutPrefix(key, q.Prefix)
		x := o.object(key)
		if group, _, in := strings.Cut(rest, "/"); in && !q.Recursive {
			x = hearth.Object{Key: q.Prefix + group + "/", Size: hearth.PrefixSize}
		}
		if !ok || x.Key == last {
			continue
		}
		if last = x.Key; each(x) != nil {
			return nil
		}
	}
	return nil
}

func TestAFileIsAFileAndADirectoryIsOne(t *testing.T) {
	// A name may be a file's, a directory's, or both. Each is found as what was asked for, by the name from
	// before or after the other came, and a listing goes on behind it.
	for _, c := range []struct {
		keys                    fakeOrigin
		file, dir               bool
		behindFile, behindThere string
	}{
		{fakeOrigin{"a", "a-1", "z"}, true, false, "a-1 z", "z"},
		{fakeOrigin{"a-1", "a/b", "z"}, false, true, "a-1 a/ z", "z"},
		{fakeOrigin{"a", "a-1", "a/b", "z"}, true, true, "a-1 a/ z", "z"},
	} {
		tree, err := namespace.Open(namespace.Options{Links: []namespace.Link{{Path: "/", Name: "l", Identity: "id", Origin: c.keys}}})
		if err != nil {
			t.Fatal(err)
		}
		n := names{Parts{Tree: tree}}
		root, err := tree.Resolve(t.Context(), "/")
		if err != nil {
			t.Fatal(err)
		}
		finds := func(name string, dir, want bool) {
			x, err := n.Lookup(t.Context(), root.ID, name)
			if want && (err != nil || x.Dir != dir) || !want && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%q: %s: %+v, %v", c.keys, name, x, err)
			}
		}
		finds("a", false, c.file)
		finds("a%F", false, c.file)
		finds("a/", true, c.dir)
		for after, want := range map[string]string{"a": c.behindFile, "a%F": c.behindFile, "a/": c.behindThere} {
			var got []string
			err := n.ReadSince(t.Context(), root.ID, 0, after, func(e warmup.Entry) bool {
				name := strings.TrimSuffix(e.Name, "%F")
				if e.Dir {
					name += "/"
				}
				got = append(got, name)
				return true
			})
			if strings.Join(got, " ") != want || err != nil {
				t.Errorf("%q behind %s: %q, want %q, %v", c.keys, after, got, want, err)
			}
		}
		if err := tree.Close(); err != nil {
			t.Error(err)
		}
	}
}
