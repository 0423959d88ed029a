package namespace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/hearthfs/hearth"
)

// slashes is an origin that refuses to list after two slashes, as MinIO does.
type slashes struct{ *bucket }

func (o *slashes) List(ctx context.Context, q hearth.Listing, each func(hearth.Object) error) error {
	if strings.HasSuffix(q.Prefix, "//") {
		return fmt.Errorf("list %s: %w", q.Prefix, fs.ErrInvalid)
	}
	return o.bucket.List(ctx, q, each)
}

func TestMarkersAreKeysAndNoNames(t *testing.T) {
	// S3A and consoles write an empty object at a directory's own key. It is one of the bucket's keys, and
	// no name in a mount. A write of it is known at once.
	o := &slashes{}
	w := open(t, func(x *Options) { o.bucket, _ = x.Links[0].Origin.(*bucket); x.Links[0].Origin = o })
	keys := func(prefix string) (all []string) {
		_, err := w.tree.Keys(context.Background(), "/", prefix, "", func(o *hearth.Object) bool { all = append(all, o.Key); return true })
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
		return all
	}
	w.b.put("d/", "e", 0)
	w.b.put("d/a", "e", 3)
	w.b.put("x/", "e", 0)
	if got, alone := keys("d/"), keys("x/"); !slices.Equal(got, []string{"d/", "d/a"}) || !slices.Equal(alone, []string{"x/"}) {
		t.Errorf("keys %q and %q", got, alone)
	}
	names := []string(nil)
	if err := w.tree.ReadDir(context.Background(), w.resolve("/d").ID, "", func(n Node) bool { names = append(names, n.Name); return true }); err != nil || !slices.Equal(names, []string{"a"}) {
		t.Errorf("names %q, %v", names, err)
	}
	if n, err := w.tree.Lookup(context.Background(), w.resolve("/d").ID, "%_"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the marker is a file in the mount: %+v, %v", n, err)
	}
	w.b.remove("d/")
	w.tree.Written(context.Background(), "/", "d/")
	w.b.remove("x/")
	w.tree.Written(context.Background(), "/", "x/")
	w.b.put("new/", "e", 0)
	w.tree.Written(context.Background(), "/", "new/")
	if got := keys(""); !slices.Equal(got, []string{"d/", "new/"}) {
		t.Errorf("at the top after writes: %q", got)
	}
	if got, alone := keys("d/"), keys("new/"); !slices.Equal(got, []string{"d/a"}) || !slices.Equal(alone, []string{"new/"}) {
		t.Errorf("after writes: keys %q and %q", got, alone)
	}
	w.b.put("d/", "e", 0)
	w.tree.Written(context.Background(), "/", "d/")
	if got := keys("d/"); !slices.Equal(got, []string{"d/", "d/a"}) {
		t.Errorf("written anew: %q", got)
	}
}

func TestARefusedNameIsAnAnswer(t *testing.T) {
	// An origin that refuses a name with two slashes has answered: there is no such name, and the origin is
	// reachable. The directory before the slashes stays what it is, however it is asked for.
	for _, mode := range []Freshness{{Mode: Bounded, Bound: defaultBound}, {Mode: Strict}} {
		o, away := &slashes{}, []error(nil)
		w := open(t, func(x *Options) {
			o.bucket, _ = x.Links[0].Origin.(*bucket)
			x.Links[0].Origin, x.Links[0].Freshness = o, mode
			x.Events.Origin = func(_ string, err error) { away = append(away, err) }
		})
		w.b.put("d/a", "e", 3)
		held := make(chan struct{})
		d := w.resolve("/d")
		w.settle()
		w.b.mu.Lock()
		w.b.onPage = func(prefix string, _ int) { // the listing beside a question is no help
			if prefix == "d/" && mode.Mode != Strict {
				<-held
			}
		}
		w.b.mu.Unlock()
		if _, err := w.tree.File(context.Background(), "/", "d/"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v: the marker: %v", mode, err)
		}
		if n, err := w.tree.Lookup(context.Background(), d.ID, "%_"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v: the name between two slashes: %+v, %v", mode, n, err)
		}
		close(held)
		w.tree.Written(context.Background(), "/", "d//x")
		if got := w.names("/d"); !slices.Equal(got, []string{"a"}) {
			t.Errorf("%v: names %q", mode, got)
		}
		if n := w.resolve("/d"); n.ID != d.ID || len(away) > 0 {
			t.Errorf("%v: the directory is %d and was %d; away: %v", mode, n.ID, d.ID, away)
		}
	}
}
