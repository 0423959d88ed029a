package origin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hearthfs/hearth"
)

func TestAListingThatLeadsNowhereEnds(t *testing.T) {
	// A server that says "truncated" for ever, without a token, is an error.
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "<ListBucketResult><IsTruncated>true</IsTruncated><Contents><Key>a</Key><ETag>e</ETag><Size>1</Size></Contents></ListBucketResult>")
	}))
	defer server.Close()
	o := open(t, Config{URL: "s3://b", Endpoint: server.URL, Anonymous: true})
	if err := o.List(t.Context(), hearth.Listing{}, func(hearth.Object) error { return nil }); !errors.Is(err, errLied) {
		t.Error(err)
	}
}

func TestTimesInWholeSeconds(t *testing.T) {
	// A server that tells a fraction once tells all there are; of one that never does, and of a
	// HEAD, nobody knows.
	const part = "<Contents><Key>%s</Key><LastModified>2026-01-02T03:04:05%sZ</LastModified><ETag>e</ETag><Size>1</Size></Contents>"
	fractions := false
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodHead {
			w.Header().Set("Last-Modified", "Fri, 02 Jan 2026 03:04:05 GMT")
			w.Header().Set("Content-Length", "1")
			return
		}
		second := ".000"
		if fractions {
			second = ".678"
		}
		_, _ = fmt.Fprintf(w, "<ListBucketResult>"+part+part+"</ListBucketResult>", "a", ".000", "b", second)
	}))
	defer server.Close()
	o := open(t, Config{URL: "s3://b", Endpoint: server.URL, Anonymous: true})
	for i, want := range []bool{false, true, true} {
		fractions = i == 1
		err := o.List(t.Context(), hearth.Listing{}, func(x hearth.Object) error {
			if x.Exact != (want && x.ModTime.Nanosecond() == 0) {
				t.Errorf("%d: %+v", i, x)
			}
			return nil
		})
		x, failed := o.Head(t.Context(), "a")
		if err != nil || failed != nil || x.Exact {
			t.Errorf("%d: %v, %v, %+v", i, err, failed, x)
		}
	}
}

func TestADirectoryKeepsAwayFromWhatJustChanged(t *testing.T) {
	// A file's ETag is weak for two seconds after a change and strong then, for the
	// same bytes; links leave the directory for nobody.
	dir := t.TempDir()
	d := open(t, Config{URL: "file://" + dir}).(*Dir)
	if err := os.WriteFile(filepath.Join(dir, "a"), content("a", 1000, 1), 0o644); err != nil {
		t.Fatal(err)
	}
	young, err := d.Head(t.Context(), "a")
	if err != nil || young.Cacheable() {
		t.Errorf("just written: %+v %v", young, err)
	}
	d.now = func() time.Time { return time.Now().Add(3 * time.Second) }
	old, err := d.Head(t.Context(), "a")
	if err != nil || !old.Cacheable() || "W/"+old.ETag != young.ETag || old.Version == young.Version {
		t.Errorf("three seconds later: %+v %v", old, err)
	}
	for _, o := range []*hearth.Object{&young, &old} {
		if err := readCheck(t.Context(), d, o, 0, 1000, 1); err != nil {
			t.Error(err)
		}
	}
	for name, target := range map[string]string{"in": "a", "out": "/etc/passwd", "up": "../x", "loop": "loop"} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if got := strings.Join(listedKeys(t, d), " "); got != "a in" {
		t.Errorf("listed %s", got)
	}
	if _, err := d.Head(t.Context(), "out"); err == nil {
		t.Error("a link out of the directory was followed")
	}
}

func TestAFileThatChangesWhileItIsReadIsStale(t *testing.T) {
	// The file is written in place between two reads of one body.
	dir := t.TempDir()
	d := open(t, Config{URL: "file://" + dir}).(*Dir)
	path := filepath.Join(dir, "a")
	if err := os.WriteFile(path, content("a", 100_000, 1), 0o644); err != nil {
		t.Fatal(err)
	}
	o, err := d.Head(context.Background(), "a")
	if err != nil {
		t.Fatal(err)
	}
	body, err := d.Read(t.Context(), &o, 0, 100_000)
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	if _, err := io.ReadFull(body, make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if _, err := f.WriteAt([]byte("x"), 50_000); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, time.Now(), time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(body); !errors.Is(err, hearth.ErrStale) {
		t.Errorf("%v", err)
	}
}
