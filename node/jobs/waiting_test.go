package jobs

import (
	"context"
	"errors"
	"io/fs"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hearthfs/hearth/namespace"
	"github.com/hearthfs/hearth/warmup"
)

func TestJobsThatWaitAreBounded(t *testing.T) {
	// A prolog runs in a loop. Beyond the bound a job is refused, new or again, with the number and the cure,
	// and leaves no list. A job with a list beyond the bound on lists is refused, too. A cancelled job makes
	// room.
	dir := t.TempDir()
	tree, err := namespace.Open(namespace.Options{Links: []namespace.Link{{Path: "/", Name: "l", Identity: "id", Origin: fakeOrigin{"a"}}}})
	if err != nil {
		t.Fatal(err)
	}
	j, err := Open(Parts{Tree: tree, Dir: dir, Canonical: func(p string) string { return p }, Explain: error.Error,
		Readers: func() int64 { return 0 }, Throttled: func() int64 { return 0 }, Connections: func() int { return 1 },
		Find: func(ctx context.Context, _ string) ([]namespace.Node, error) {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		},
		Log: func(what string, err error) { t.Log(what, err) }})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { j.Close(); _ = tree.Close() }()
	submit := func() (warmup.View, error) {
		v, err := j.submit(httptest.NewRequest("POST", "/v1/jobs?list=-&metadata_only=true", strings.NewReader("/a\n")))
		if err != nil {
			return warmup.View{}, err
		}
		return v.(warmup.View), nil
	}
	lists := func() int { all, _ := filepath.Glob(filepath.Join(dir, "*.list")); return len(all) }
	again := func(id string) func() error { return func() error { return j.retry(id) } }
	another := func() error { _, err := submit(); return err }
	refused := func(do func() error, text string) {
		t.Helper()
		before := lists()
		if err := do(); !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), text) || !strings.Contains(err.Error(), "hearth jobs cancel ID") || lists() != before {
			t.Fatalf("with %d jobs, %d lists and then %d: %v", len(j.Lines()), before, lists(), err)
		}
	}
	var ids []string
	for len(ids) < mostWaiting {
		v, err := submit()
		if err != nil {
			t.Fatalf("job %d: %v", len(ids), err)
		}
		ids = append(ids, v.ID)
	}
	refused(another, "256 warm-ups are at work or queued")
	if err := j.engine.Cancel(t.Context(), ids[0]); err != nil {
		t.Fatal(err)
	}
	if err := j.retry(ids[0]); err != nil {
		t.Fatalf("retry of the one that was cancelled: %v", err)
	}
	for _, id := range ids[1:3] {
		if err := j.engine.Cancel(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Truncate(filepath.Join(dir, ids[9]+".list"), 5<<30); err != nil {
		t.Fatal(err)
	}
	refused(another, "take 5.0 GiB, and 4.0 GiB is the most")
	refused(again(ids[1]), "take 5.0 GiB")
	if err := os.Truncate(filepath.Join(dir, ids[9]+".list"), 5); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := submit(); err != nil {
			t.Fatal(err)
		}
	}
	refused(again(ids[1]), "256 warm-ups")
}
