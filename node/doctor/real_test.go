package doctor

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/internal/faultproxy"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/node/config"
	"github.com/hearthfs/hearth/node/machine"
)

func newListener() (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") }

// looked returns what a look at a real directory finds.
func looked(t *testing.T, path string) []Finding {
	t.Helper()
	d := &directory{disk: machine.Disk{Path: path, Size: machine.Size{Bytes: 16 << 20}}, floor: machine.Size{Bytes: 1 << 20},
		memory: 1 << 30, limits: machine.Limits{Memory: 8 << 30}}
	return look{"cache directory", path, diskBound, d.look}.run(t.Context())
}

// names returns the names of all files below a directory. A look must leave them as they are.
func names(t *testing.T, dir string) string {
	t.Helper()
	var all []string
	if err := filepath.WalkDir(dir, func(p string, _ os.DirEntry, err error) error {
		all = append(all, p)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return strings.Join(all, "\n")
}

func TestRealDirectories(t *testing.T) {
	// A directory is written to and left as it was. A directory that does not exist is not made.
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	before := names(t, dir)
	for _, path := range []string{dir, filepath.Join(dir, "not", "there")} {
		found := looked(t, path)
		if len(found) < 3 || Failed(found) || found[0].Verdict != OK {
			t.Errorf("%s: %+v", path, found)
		}
	}
	if after := names(t, dir); after != before {
		t.Errorf("it left %s", after)
	}
	small := hearthtest.Tmpfs(t, "size=24m,mode=700")
	found := looked(t, small)
	if after := names(t, small); after != small {
		t.Errorf("it left %s", after)
	}
	for _, f := range found {
		if f.Check == "cache file system" && f.Verdict == Warn && strings.Contains(f.Found, "tmpfs") {
			return
		}
	}
	t.Errorf("a tmpfs: %+v", found)
}

func TestRealDirectoriesThatAreOfNoUse(t *testing.T) {
	// A directory may be read-only, a file, full, somebody else's, or in use by another process.
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	foreign, busy := t.TempDir(), t.TempDir()
	for _, name := range []string{filepath.Join(foreign, "holiday.jpg"), filepath.Join(busy, "lock")} {
		if err := os.WriteFile(name, []byte("1 pid:[1]\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	lock, err := os.Open(filepath.Join(busy, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Close() }()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"/proc/x":                             "cannot be written",
		file:                                  "is no directory",
		filepath.Join(file, "below"):          "not a directory",
		hearthtest.Tmpfs(t, "ro,size=1m"):     "cannot be written: read-only file system",
		hearthtest.Tmpfs(t, "size=1m"):        "can be cached",
		foreign:                               `it holds "holiday.jpg"`,
		busy:                                  "in use by process 1",
		filepath.Join("/dev/null", "nothing"): "not a directory",
	} {
		found, hit := looked(t, path), false
		for _, f := range found {
			hit = hit || f.Verdict == Fail && strings.Contains(f.Found, want) && f.Cure != ""
		}
		if !hit {
			t.Errorf("%s: %+v, want FAIL with %q", path, found, want)
		}
	}
}

// server starts a real S3 server behind the fault proxy, with one object in the bucket "data", and sets the
// environment that reaches it.
func server(t *testing.T) (*hearthtest.Server, *faultproxy.Proxy) {
	t.Helper()
	s := hearthtest.StartS3(t)
	if _, err := s.PutBytes(t.Context(), s.Bucket(t, "data"), "p/a", []byte("abc")); err != nil {
		t.Fatal(err)
	}
	s.Client.CloseIdleConnections()
	for _, v := range s.Env() {
		name, value, _ := strings.Cut(v, "=")
		t.Setenv(name, value)
	}
	proxy, err := faultproxy.Start(faultproxy.Options{Target: s.Endpoint})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	return s, proxy
}

func TestRealOrigins(t *testing.T) {
	// A real S3 server is looked at as it is, with another clock, without rights, without the bucket, and
	// silent.
	_, proxy := server(t)
	date := func(ahead time.Duration) faultproxy.Rule {
		return faultproxy.Rule{Header: map[string]string{"Date": time.Now().Add(-ahead).UTC().Format(http.TimeFormat)}}
	}
	const url = "s3://data/p"
	fine := []verdict{{"credentials", OK, "AWS_ACCESS_KEY_ID", ""}, {"clock", OK, "the same as the origin's", ""}}
	for _, c := range []struct {
		name, url string
		rule      *faultproxy.Rule
		env       map[string]string
		want      []verdict
	}{
		{"well", url, nil, nil, append(fine[:2:2], verdict{"origin", OK, "ranges, If-Match, strong ETags", ""})},
		{"ahead", url, ptr(date(5 * time.Minute)), nil, []verdict{fine[0], {"clock", Warn, "ahead of the origin", "timedatectl"}, {"origin", OK, "", ""}}},
		{"far behind", url, ptr(date(-time.Hour)), nil, []verdict{fine[0], {"clock", Fail, "behind the origin", "timedatectl"}, {"origin", OK, "", ""}}},
		{"skewed", url, ptr(faultproxy.Skewed()), nil, []verdict{fine[0], {"clock", OK, "not compared", ""}, {"origin", Fail, "differ by more than 15 minutes", "timedatectl"}}},
		{"wrong secret", url, nil, map[string]string{"AWS_SECRET_ACCESS_KEY": "not this"}, append(fine[:2:2], verdict{"origin", Fail, "does not fit the access key", "AWS_SECRET_ACCESS_KEY"})},
		{"no bucket", "s3://nosuch", nil, nil, append(fine[:2:2], verdict{"origin", Fail, "there is no bucket nosuch", "check the bucket's name"})},
		{"empty", "s3://data/nothing", nil, nil, append(fine[:2:2], verdict{"origin", Warn, "no object", "check the prefix"})},
		{"no keys", url, nil, map[string]string{"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, []verdict{{"credentials", Fail, "no credentials were found", "AWS_PROFILE"}}},
		{"half of the keys", url, nil, map[string]string{"AWS_ACCESS_KEY_ID": ""}, []verdict{{"credentials", Fail, "AWS_SECRET_ACCESS_KEY is set without AWS_ACCESS_KEY_ID", "set both"}}},
		{"no If-Match", url, &faultproxy.Rule{Strip: "If-Match"}, nil, append(fine[:2:2], verdict{"origin", Warn, "ignores If-Match", "knows If-Match"})},
		{"no ranges", url, &faultproxy.Rule{Verb: faultproxy.Get, Whole: true}, nil, append(fine[:2:2], verdict{"origin", Fail, "ranged reads", "supports Range"})},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.rule != nil {
				proxy.AddRule(*c.rule)
				defer proxy.ClearRules()
			}
			secret := strings.ToLower(os.Getenv("AWS_SECRET_ACCESS_KEY"))
			for name, value := range c.env {
				t.Setenv(name, value)
			}
			l := config.Link{Path: "/", Origin: config.Origin{URL: c.url, Endpoint: proxy.URL()}}
			found, err := Run(t.Context(), Options{Alone: true, Links: []config.Link{l}})
			if err != nil {
				t.Fatal(err)
			}
			compare(t, c.name, found, c.want...)
			if text := strings.ToLower(found[0].Found); strings.Contains(text, secret) {
				t.Error("a secret is shown")
			}
		})
	}
}

func ptr[T any](v T) *T { return &v }

func TestADeadOriginCostsItsBound(t *testing.T) {
	// A silent origin, an address where nobody listens and a directory that is gone are findings within
	// their bounds.
	_, proxy := server(t)
	proxy.AddRule(faultproxy.Rule{Delay: faultproxy.Duration(time.Hour)})
	nobody, err := newListener()
	if err != nil {
		t.Fatal(err)
	}
	nobody.Close()
	silent := config.Origin{URL: "s3://data", Endpoint: proxy.URL(), Timeout: 200 * time.Millisecond}
	found, err := Run(t.Context(), Options{Alone: true, Links: []config.Link{{Path: "/silent", Origin: silent},
		{Path: "/nobody", Origin: config.Origin{URL: "s3://data", Endpoint: "http://" + nobody.Addr().String()}},
		{Path: "/gone", Origin: config.Origin{URL: "file:///nowhere/at/all"}}}})
	if err != nil { // and it came, though an answer takes an hour; how soon, TestWhatDoesNotAnswerCostsItsBound tests
		t.Error(err)
	}
	if !Failed(found) || len(found) != 5 {
		t.Fatalf("%+v", found)
	}
	compare(t, "all", found, verdict{"credentials", OK, "", ""}, verdict{"origin", Fail, "does not answer", "firewalls"},
		verdict{"credentials", OK, "", ""}, verdict{"origin", Fail, "nobody listens", "the server runs"},
		verdict{"origin", Fail, "nowhere", "check the origin's name"})
}

func TestALookThatIsInterrupted(t *testing.T) {
	// The caller cancels: Run returns with the cause.
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(os.ErrDeadlineExceeded)
	if _, err := Run(ctx, Options{Alone: true}); err != os.ErrDeadlineExceeded {
		t.Error(err)
	}
	found, err := Run(t.Context(), Options{Alone: true})
	compare(t, "no origin", found, verdict{"origin", Warn, "none is configured", "hearth doctor s3://"})
	if err != nil {
		t.Error(err)
	}
}

func TestRightsToWrite(t *testing.T) {
	// Of a link that is written doctor tries whether it may be: all is well; an upload may not be begun; it may not be aborted,
	// and is named; unfinished uploads may not be listed, or the server lists none; nothing may be deleted. Other links are not
	// tried, and nothing is left where it may be taken away.
	server, proxy := server(t)
	denied := func(verb, match string) *faultproxy.Rule {
		return &faultproxy.Rule{Verb: verb, Match: match, Status: 403, Code: "AccessDenied"}
	}
	for name, c := range map[string]struct {
		write string
		rule  *faultproxy.Rule
		want  []verdict
	}{
		"not written": {"", denied(faultproxy.Other, ""), nil},
		"well":        {"through", nil, []verdict{{"writes", OK, "begun and aborted", ""}}},
		"no upload":   {"through", denied(faultproxy.Other, "?uploads"), []verdict{{"writes", Fail, "writing is denied", "s3:PutObject"}}},
		"no abort":    {"through", denied(faultproxy.Other, "uploadId"), []verdict{{"writes", Fail, "p/.hearth-probe-", "s3:AbortMultipartUpload"}}},
		"no list":     {"through", denied(faultproxy.List, "max-uploads"), []verdict{{"writes", Fail, "listing unfinished uploads is denied", "s3:ListBucketMultipartUploads"}}},
		"none listed": {"through", &faultproxy.Rule{Verb: faultproxy.List, Match: "max-uploads", Status: 501, Code: "NotImplemented"}, []verdict{{"writes", OK, "begun and aborted", ""}}},
		"no delete":   {"through", &faultproxy.Rule{Verb: faultproxy.Other, Match: ".hearth-probe-", Skip: 2, Status: 403, Code: "AccessDenied"}, []verdict{{"writes", Fail, "writing is denied", "s3:DeleteObject"}}},
	} {
		t.Run(name, func(t *testing.T) {
			if c.rule != nil {
				proxy.AddRule(*c.rule)
				defer proxy.ClearRules()
			}
			l := config.Link{Path: "/", Write: c.write, Origin: config.Origin{URL: "s3://data/p", Endpoint: proxy.URL()}}
			found, err := Run(t.Context(), Options{Alone: true, Links: []config.Link{l}})
			if err != nil {
				t.Fatal(err)
			}
			compare(t, name, found[3:], c.want...)
		})
	}
	if left, err := os.ReadDir(filepath.Join(server.Dir, "data", "p")); err != nil || len(left) != 1 {
		t.Errorf("%v, %v", left, err)
	}
}
