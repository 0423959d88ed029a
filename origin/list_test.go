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
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hearthfs/hearth"
)

// pages is an S3 server that lists a sorted set of keys and counts its requests.
type pages struct {
	keys     []string
	requests atomic.Int64
	busy     sync.Mutex // guards now and max
	now, max int
	once     sync.Once
	// two is closed when two requests are under way. Until then a page waits for it,
	// where a walk that splits must ask for another: behind the first page and its
	// groups, which nothing can be beside. nil: nothing waits.
	two chan struct{}
}

func (p *pages) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.requests.Add(1)
	p.busy.Lock()
	p.now++
	if p.max = max(p.max, p.now); p.now == 2 && p.two != nil {
		p.once.Do(func() { close(p.two) })
	}
	p.busy.Unlock()
	defer func() { p.busy.Lock(); p.now--; p.busy.Unlock() }()
	q := r.URL.Query()
	prefix, after, delimiter := q.Get("prefix"), max(q.Get("start-after"), q.Get("continuation-token")), q.Get("delimiter")
	if p.two != nil && after != "" && delimiter == "" {
		select {
		case <-p.two:
		case <-time.After(10 * time.Second): // it does not split: let it end, the test says so
			p.once.Do(func() { close(p.two) })
		}
	}
	i, _ := slices.BinarySearch(p.keys, after+"\x00")
	var b strings.Builder
	count, last, group := 0, "", ""
	for ; i < len(p.keys) && count < pageKeys; i++ {
		key := p.keys[i]
		if !strings.HasPrefix(key, prefix) || group != "" && strings.HasPrefix(key, group) {
			continue
		}
		if cut := strings.Index(key[len(prefix):], "/"); delimiter != "" && cut >= 0 {
			group = key[:len(prefix)+cut+1]
			fmt.Fprintf(&b, "<CommonPrefixes><Prefix>%s</Prefix></CommonPrefixes>", group)
			last = group + "\xff"
		} else {
			fmt.Fprintf(&b, "<Contents><Key>%s</Key><ETag>\"e\"</ETag><Size>1</Size></Contents>", key)
			last = key
		}
		count++
	}
	fmt.Fprintf(w, "<ListBucketResult><IsTruncated>%v</IsTruncated><NextContinuationToken>%s</NextContinuationToken>%s</ListBucketResult>", i < len(p.keys), last, b.String())
}

func TestAWalkSplitsWhatIsWideAndLeavesWhatIsNarrow(t *testing.T) {
	// Every key comes once whatever the shape of the bucket; a wide one is listed in
	// parallel, and none costs many more requests than pages.
	shapes := map[string]func(i int) string{
		"flat":         func(i int) string { return fmt.Sprintf("k%06d", i) },
		"wide":         func(i int) string { return fmt.Sprintf("d%03d/%06d", i%300, i) },
		"deep":         func(i int) string { return fmt.Sprintf("a/b/c/d%02d/%06d", i%40, i) },
		"a file each":  func(i int) string { return fmt.Sprintf("d%06d/f", i) },
		"dots between": func(i int) string { return fmt.Sprintf("d%03d%s%06d", i%100, []string{"/", ".x/", "."}[i%3], i) },
	}
	for name, shape := range shapes {
		p := &pages{}
		if name != "flat" {
			p.two = make(chan struct{})
		}
		const n = 12_000
		for i := range n {
			p.keys = append(p.keys, shape(i))
		}
		slices.Sort(p.keys)
		server := httptest.NewServer(p)
		o := open(t, Config{URL: "s3://b", Endpoint: server.URL, Anonymous: true})
		got := map[string]int{}
		if err := Walk(t.Context(), o, "", 8, func(o hearth.Object) error { got[o.Key]++; return nil }); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		twice := 0
		for _, count := range got {
			if count > 1 {
				twice++
			}
		}
		if len(got) != n || twice > 0 {
			t.Errorf("%s: %d keys of %d, %d of them twice", name, len(got), n, twice)
		}
		if r := p.requests.Load(); r > 3*n/pageKeys {
			t.Errorf("%s: %d requests for %d pages", name, r, n/pageKeys)
		}
		if name != "flat" && p.max < 2 {
			t.Errorf("%s: %d requests at once", name, p.max)
		}
		server.Close()
	}
}

func TestAListingThatLeadsNowhereEnds(t *testing.T) {
	// A server that says "truncated" for ever, without a token, is an error.
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "<ListBucketResult><IsTruncated>true</IsTruncated><Contents><Key>a</Key><ETag>e</ETag><Size>1</Size></Contents></ListBucketResult>")
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
		fmt.Fprintf(w, "<ListBucketResult>"+part+part+"</ListBucketResult>", "a", ".000", "b", second)
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
	defer f.Close()
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
