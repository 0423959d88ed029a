package origin

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/faultproxy"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/origin/sign"
	"github.com/minio/minio-go/v7/pkg/credentials"
	minio "github.com/minio/minio-go/v7/pkg/signer"
)

// faulty is a real server with one object of a size, behind a proxy.
type faulty struct {
	*S3
	server *hearthtest.Server
	proxy  *faultproxy.Proxy
	object hearth.Object
	size   int64
}

func newFaulty(t *testing.T, c Config) *faulty {
	s := hearthtest.StartS3(t)
	s.Bucket(t, "faulty")
	f := &faulty{server: s, size: 2*hearth.BlockSize + 99}
	var err error
	if f.proxy, err = faultproxy.Start(faultproxy.Options{Target: s.Endpoint}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.proxy.Close)
	account(t, &s.S3)
	c.URL, c.Endpoint = "s3://faulty", f.proxy.URL()
	if c.Retry.First == 0 {
		c.Retry.First = time.Millisecond
	}
	f.S3 = open(t, c).(*S3)
	if _, err := s.PutBytes(t.Context(), "faulty", "k", content("k", int(f.size), 1)); err != nil {
		t.Fatal(err)
	}
	if f.object, err = f.Head(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	return f
}

// read reads the whole object under a rule.
func (f *faulty) read(t *testing.T, r faultproxy.Rule) error {
	t.Helper()
	r.Verb = faultproxy.Get
	f.proxy.AddRule(r)
	defer f.proxy.ClearRules()
	return readCheck(t.Context(), f, &f.object, 0, f.size, 1)
}

func TestWhatPassesByItselfIsRetried(t *testing.T) {
	// Each passing fault, twice in a row and then gone, costs time and no byte.
	f := newFaulty(t, Config{Timeout: 500 * time.Millisecond, Retry: Retry{Within: 10 * time.Second}})
	for name, r := range map[string]faultproxy.Rule{
		"500":            {Status: 500, Code: "InternalError"},
		"502":            {Status: 502},
		"slow down":      {Status: 503, Code: "SlowDown"},
		"429":            {Status: 429},
		"timed out":      {Status: 400, Code: "RequestTimeout"},
		"reset":          {Refuse: true},
		"reset at 1 MB":  {Body: faultproxy.Reset, At: 1_000_000},
		"cut off at 0":   {Body: faultproxy.Truncate},
		"cut off at 777": {Body: faultproxy.Truncate, At: 777},
		"stall at 70000": {Body: faultproxy.Stall, At: 70_000},
		"silence":        {Delay: faultproxy.Duration(time.Second)},
	} {
		r.Times = 2
		before := f.Stats()
		if err := f.read(t, r); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		after := f.Stats()
		// The transport itself asks again when a kept connection ends unanswered.
		if n := after.Retries - before.Retries; n < 2 && !(r.Refuse && n == 1) {
			t.Errorf("%s: %d retries", name, n)
		}
		if n := after.Resumed - before.Resumed; (n > 0) != (r.Body != "") {
			t.Errorf("%s: %d resumed", name, n)
		}
		if after.InFlight != 0 {
			t.Errorf("%s: %d in flight", name, after.InFlight)
		}
	}
	if n := f.Stats().Throttled; n != 4 {
		t.Errorf("throttled %d times, not 4", n)
	}
}

func TestAResumedBodyAsksForWhatIsLeftOnly(t *testing.T) {
	// A body that is reset twice is fetched once and little more.
	f := newFaulty(t, Config{})
	f.proxy.Reset()
	if err := f.read(t, faultproxy.Rule{Body: faultproxy.Truncate, At: 900_000, Times: 2}); err != nil {
		t.Fatal(err)
	}
	if !hearthtest.Eventually(t.Context(), time.Second, func() bool { return f.proxy.Stats().Get.Bytes == f.size }) {
		t.Errorf("%d bytes passed for %d", f.proxy.Stats().Get.Bytes, f.size)
	}
}

func TestTheBudgetEnds(t *testing.T) {
	// A fault that stays is an *Error after as many attempts as the budget has; a
	// body that makes progress each time pays from the same budget.
	f := newFaulty(t, Config{Retry: Retry{Attempts: 4, First: time.Millisecond}})
	for name, r := range map[string]faultproxy.Rule{"500": {Status: 500}, "reset": {Body: faultproxy.Truncate, At: 1000}} {
		f.proxy.Reset()
		err := f.read(t, r)
		var e *Error
		if !errors.As(err, &e) || e.Op != "get" || e.Where != "s3://faulty/k" {
			t.Errorf("%s: %v", name, err)
		}
		if n := f.proxy.Stats().Get.Requests; n != 4 {
			t.Errorf("%s: %d requests", name, n)
		}
	}
	if n := f.Stats().InFlight; n != 0 {
		t.Errorf("%d in flight", n)
	}
}

func TestWhatAskingAgainDoesNotCureIsAskedOnce(t *testing.T) {
	// Refusals and lies fail at the first answer; a lie about the version is stale.
	f := newFaulty(t, Config{})
	for name, c := range map[string]struct {
		rule faultproxy.Rule
		want error
	}{
		"denied":           {faultproxy.Denied(""), os.ErrPermission},
		"skewed":           {faultproxy.Skewed(), os.ErrPermission},
		"gone":             {faultproxy.Rule{Status: 404, Code: "NoSuchKey"}, hearth.ErrStale},
		"precondition":     {faultproxy.Rule{Status: 412, Code: "PreconditionFailed"}, hearth.ErrStale},
		"another range":    {faultproxy.Rule{Header: map[string]string{"Content-Range": "bytes 1-2097251/2097251"}}, errLied},
		"no Content-Range": {faultproxy.Rule{Header: map[string]string{"Content-Range": ""}}, errLied},
		"unreadable range": {faultproxy.Rule{Header: map[string]string{"Content-Range": "bytes */5"}}, errLied},
	} {
		f.proxy.Reset()
		err := f.read(t, c.rule)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, not %v", name, err, c.want)
		}
		if n := f.proxy.Stats().Get.Requests; n != 1 {
			t.Errorf("%s: asked %d times", name, n)
		}
	}
	f.proxy.AddRule(faultproxy.Rule{Verb: faultproxy.Get, Whole: true})
	if err := readCheck(t.Context(), f, &f.object, 0, f.size, 1); err != nil {
		t.Errorf("200 for the whole object: %v", err)
	}
	if err := readCheck(t.Context(), f, &f.object, 1, f.size-1, 1); !errors.Is(err, errLied) {
		t.Errorf("200 for a part: %v", err)
	}
}

func TestANameThatAnOriginCannotHaveIsNoFailure(t *testing.T) {
	// MinIO refuses names of two slashes by a code of its own, in a header where the answer has no body: that is an answer about the name.
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Minio-Error-Code", "XMinioInvalidObjectName")
		w.WriteHeader(http.StatusBadRequest)
		if r.Method != http.MethodHead {
			_, _ = io.WriteString(w, "<Error><Code>XMinioInvalidObjectName</Code></Error>")
		}
	}))
	t.Cleanup(s.Close)
	t.Setenv("AWS_ACCESS_KEY_ID", "a")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "b")
	o := open(t, Config{URL: "s3://b", Endpoint: s.URL, PathStyle: "on", Region: "us-east-1"})
	_, head := o.Head(t.Context(), "d//")
	list := o.List(t.Context(), hearth.Listing{Prefix: "d//", Limit: 1, Recursive: true}, func(hearth.Object) error { return nil })
	for _, err := range []error{head, list} {
		if !errors.Is(err, fs.ErrInvalid) || Away(err) {
			t.Errorf("%v", err)
		}
	}
}

func TestAnotherVersionIsStaleUnlessTheOriginContradictsItself(t *testing.T) {
	// An answer names another version. HEAD says so, too: stale at the first answer.
	// HEAD still has ours: once, and asking again gives the right bytes; always, and
	// it is an error that says so, but never stale.
	f := newFaulty(t, Config{Retry: Retry{Attempts: 4, First: time.Millisecond}})
	for name, header := range map[string]map[string]string{
		"ETag":  {"ETag": `"other"`},
		"total": {"Content-Range": "bytes 0-2097250/3000000"},
	} {
		head := map[string]string{"ETag": `"other"`}
		if name == "total" {
			head = map[string]string{"Content-Length": "3000000"}
		}
		f.proxy.AddRule(faultproxy.Rule{Verb: faultproxy.Head, Header: head})
		f.proxy.Reset()
		if err := f.read(t, faultproxy.Rule{Header: header}); !errors.Is(err, hearth.ErrStale) || f.proxy.Stats().Get.Requests != 1 {
			t.Errorf("another %s, and HEAD agrees: %v after %d requests", name, err, f.proxy.Stats().Get.Requests)
		}
		if err := f.read(t, faultproxy.Rule{Header: header, Times: 1}); err != nil {
			t.Errorf("another %s, once: %v", name, err)
		}
		f.proxy.Reset()
		err := f.read(t, faultproxy.Rule{Header: header})
		var e *Error
		if !errors.Is(err, errContradiction) || errors.Is(err, hearth.ErrStale) || !errors.As(err, &e) || e.Where != "s3://faulty/k" {
			t.Errorf("another %s, always: %v", name, err)
		}
		if n := f.proxy.Stats().Get.Requests; n != 4 {
			t.Errorf("another %s, always: %d requests", name, n)
		}
	}
}

func TestAVersionThatChangesWithinABodyIsStale(t *testing.T) {
	// The object is replaced while its body is cut off: the rest is not fetched
	// from the new version.
	f := newFaulty(t, Config{})
	f.proxy.AddRule(faultproxy.Rule{Verb: faultproxy.Get, Body: faultproxy.Truncate, At: 1000, Times: 1})
	body, err := f.Read(t.Context(), &f.object, 0, f.size)
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	if _, err := f.server.PutBytes(t.Context(), "faulty", "k", content("k", int(f.size), 2)); err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(body)
	if !errors.Is(err, hearth.ErrStale) || len(data) != 1000 {
		t.Errorf("%d bytes, %v", len(data), err)
	}
}

func TestListAndHeadAreRetriedToo(t *testing.T) {
	// A page that is cut off is asked for again, and a HEAD that is throttled.
	f := newFaulty(t, Config{})
	f.proxy.AddRule(faultproxy.Rule{Verb: faultproxy.List, Body: faultproxy.Truncate, At: 300, Times: 2})
	f.proxy.AddRule(faultproxy.Rule{Verb: faultproxy.Head, Status: 503, Times: 2})
	if got := len(listedKeys(t, f)); got != 1 {
		t.Errorf("%d keys", got)
	}
	if _, err := f.Head(t.Context(), "k"); err != nil {
		t.Error(err)
	}
}

func listedKeys(t *testing.T, o Origin) (keys []string) {
	t.Helper()
	err := o.List(t.Context(), hearth.Listing{}, func(o hearth.Object) error { keys = append(keys, o.Key); return nil })
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

func TestAnOriginThatIsDownIsRefusedQuicklyAndBackAfterwards(t *testing.T) {
	// Connecting is refused: three attempts, an *Error, and service again when it
	// is up.
	f := newFaulty(t, Config{})
	f.proxy.Down()
	_, err := f.Head(t.Context(), "k")
	if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("down: %v", err)
	}
	if err := f.proxy.Up(); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Head(t.Context(), "k"); err != nil {
		t.Errorf("up: %v", err)
	}
}

func TestACancelledReadEnds(t *testing.T) {
	// The caller goes away while the body stalls: it ends with the caller's cause,
	// is not retried, and gives its connection back.
	f := newFaulty(t, Config{Connections: 1})
	f.proxy.AddRule(faultproxy.Rule{Verb: faultproxy.Get, Body: faultproxy.Stall, At: 5, Times: 1})
	ctx, cancel := context.WithCancelCause(t.Context())
	body, err := f.Read(ctx, &f.object, 0, f.size)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(body, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	gone := errors.New("gone")
	cancel(gone)
	if _, err := io.ReadAll(body); !errors.Is(err, gone) {
		t.Errorf("%v", err)
	}
	body.Close()
	body.Close() // twice is no harm
	if err := readCheck(t.Context(), f, &f.object, 0, 10, 1); err != nil {
		t.Error(err)
	}
}

func TestRetryAfterIsHonoured(t *testing.T) {
	// A Retry-After within the budget is waited for in full; one beyond it ends the
	// request at once; without one the wait is jittered and grows.
	synctest.Test(t, func(t *testing.T) {
		b := budget{Retry: Retry{Attempts: 8, Within: time.Minute, First: 100 * time.Millisecond}}
		start := time.Now()
		busy := &Error{Status: 503, Code: "SlowDown", after: 7 * time.Second, Err: errLied}
		if err := b.spend(t.Context(), busy); err != nil || time.Since(start) < 7*time.Second || time.Since(start) > 7100*time.Millisecond {
			t.Errorf("7 s: %v after %v", err, time.Since(start))
		}
		busy.after = 2 * time.Minute
		if err := b.spend(t.Context(), busy); !errors.Is(err, busy) {
			t.Errorf("beyond the budget: %v", err)
		}
		var longest time.Duration
		for range 200 {
			b := budget{Retry: Retry{}.withDefaults(DefaultTimeout), used: 3}
			start := time.Now()
			if err := b.spend(t.Context(), io.ErrUnexpectedEOF); err != nil {
				t.Fatal(err)
			}
			longest = max(longest, time.Since(start))
		}
		if longest > 800*time.Millisecond || longest < 400*time.Millisecond {
			t.Errorf("the longest fourth wait of 200 is %v", longest)
		}
	})
	if d := retryAfter(time.Now().Add(10 * time.Second).UTC().Format(http.TimeFormat)); d < 8*time.Second || d > 10*time.Second {
		t.Errorf("a date: %v", d)
	}
}

func TestConnectionsAndBandwidthAreLimited(t *testing.T) {
	// Forty readers of an origin with eight connections never use more, names
	// included, and a limit of 2 MB/s lets a burst and then 2 MB/s through.
	f := newFaulty(t, Config{Connections: 8})
	f.proxy.SetFirstByte(2 * time.Millisecond)
	f.proxy.Reset()
	var wait sync.WaitGroup
	for i := range 40 {
		wait.Go(func() {
			var err error
			if i%4 == 0 {
				_, err = f.Head(t.Context(), "k")
			} else {
				err = readCheck(t.Context(), f, &f.object, int64(i)*1000, 50_000, 1)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	if most := f.proxy.Stats().Most; most > 8 || most < 2 {
		t.Errorf("%d connections at once", most)
	}
	slow := open(t, Config{URL: "s3://faulty", Endpoint: f.proxy.URL(), Bandwidth: 2 << 20})
	start := time.Now()
	if err := readCheck(t.Context(), slow, &f.object, 0, f.size, 1); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(start); d < 480*time.Millisecond {
		t.Errorf("2 MiB at 2 MiB/s with a burst of 1 MiB took %v", d)
	}
}

func TestALargeRangeIsReadInParallelParts(t *testing.T) {
	// Twenty blocks of an origin whose first byte is late: two to four requests are
	// under way at once, never more, and every byte comes in its place.
	const blocks = 20
	f := newFaulty(t, Config{})
	data := content("large", blocks*hearth.BlockSize, 1)
	if _, err := f.server.PutBytes(t.Context(), "faulty", "large", data); err != nil {
		t.Fatal(err)
	}
	object, err := f.Head(t.Context(), "large")
	if err != nil {
		t.Fatal(err)
	}
	f.proxy.SetFirstByte(300 * time.Millisecond)
	f.proxy.Reset()
	source := NewBucket(hearthtest.Pool(t, 2*blocks*hearth.BlockSize), func(string) Origin { return f })
	next := int64(0)
	source.GetMany(t.Context(), object.Block(0), blocks, func(b hearth.Block, v *hearth.View, err error) bool {
		if err != nil {
			t.Errorf("block %d: %v", next, err)
			return false
		}
		defer v.Release()
		if b.Index != next || !bytes.Equal(v.Bytes(), data[b.Offset():][:b.Len()]) {
			t.Errorf("block %d is not what was asked for as block %d", b.Index, next)
		}
		next++
		return true
	})
	if next != blocks {
		t.Errorf("%d blocks of %d", next, blocks)
	}
	if most := f.proxy.Stats().Most; most < 2 || most > 4 {
		t.Errorf("%d requests at once", most)
	}
}

func TestRequestsAreSignedAsMinioSigns(t *testing.T) {
	// The same request, time and credentials give minio-go's signature, for odd
	// keys, queries and session tokens.
	var own sign.Signer
	for _, v := range []credentials.Value{{AccessKeyID: "AK", SecretAccessKey: "secret"}, {AccessKeyID: "AK", SecretAccessKey: "secret", SessionToken: "tok/en=="}} {
		for _, c := range []call{{key: "a/b"}, {key: "sp ace/ü+%41/☃"}, {query: query(hearth.Listing{Prefix: "p q/ü", After: "x+y"}, cursor{token: "t/+="}, 7)}} {
			c.method = http.MethodGet
			s := &S3{anonymous: true, bucket: "b", says: said{agent: []string{"x"}}}
			s.pathStyle = true
			s.place.Store(s.at("eu-west-3", "http", "127.0.0.1:9000"))
			ours, err := s.request(t.Context(), &c, &credentials.Value{})
			if err != nil {
				t.Fatal(err)
			}
			theirs := ours.Clone(t.Context())
			now := time.Now()
			own.Read(ours, v, "eu-west-3", now)
			theirs.Header.Set("X-Amz-Content-Sha256", sign.EmptyHash)
			signed := minio.SignV4(*theirs, v.AccessKeyID, v.SecretAccessKey, v.SessionToken, "eu-west-3")
			if signed.Header.Get("X-Amz-Date") != ours.Header.Get("X-Amz-Date") {
				own.Read(ours, v, "eu-west-3", time.Now()) // a second began between the two
			}
			if got, want := ours.Header.Get("Authorization"), signed.Header.Get("Authorization"); got != want {
				t.Errorf("%+v:\n got %s\nwant %s", c, got, want)
			}
			if got, want := ours.URL.RequestURI(), signed.URL.RequestURI(); got != want {
				t.Errorf("%s is sent as %s", want, got)
			}
		}
	}
}

func TestRequestsSayWhoAsks(t *testing.T) {
	// User-Agent is the program's, anonymous requests carry no signature, keys go
	// over the wire as S3 encodes them, and buckets stand where the style says.
	var seen atomic.Pointer[http.Request]
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen.Store(r)
		w.Header().Set("ETag", `W/"x"`)
		w.Header().Set("Content-Length", "3")
	}))
	defer server.Close()
	o := open(t, Config{URL: "s3://bucket/p", Endpoint: server.URL, Anonymous: true, UserAgent: "hearth/9.9"})
	got, err := o.Head(t.Context(), "p/a b+c")
	if err != nil || got.ETag != "W/x" || got.Cacheable() {
		t.Errorf("%+v %v", got, err)
	}
	r := seen.Load()
	if r.UserAgent() != "hearth/9.9" || r.Header.Get("Authorization") != "" || r.RequestURI != "/bucket/p/a%20b%2Bc" {
		t.Errorf("%+v", r)
	}
	for style, want := range map[string]string{"on": "/bucket/k s3.eu-west-1.amazonaws.com", "auto": "/k bucket.s3.eu-west-1.amazonaws.com"} {
		s, err := Open(t.Context(), Config{URL: "s3://bucket", Endpoint: "", Region: "eu-west-1", PathStyle: style, Anonymous: true})
		if err != nil {
			t.Fatal(err)
		}
		req, err := s.(*S3).request(t.Context(), &call{method: "GET", key: "k"}, &credentials.Value{})
		if err != nil || req.URL.RequestURI()+" "+req.Host != want {
			t.Errorf("style %s: %v %v", style, req.URL, err)
		}
	}
}

func TestARegionThatWasGuessedIsLearnt(t *testing.T) {
	// Nobody named the region: the origin's answer does, and the request that
	// learnt it succeeds.
	s := hearthtest.Start(t, hearthtest.ServerOptions{Dir: t.TempDir(), Region: "eu-north-1"})
	bucket := s.Bucket(t, "north")
	account(t, &s.S3)
	t.Setenv("AWS_REGION", "")
	t.Setenv("AWS_DEFAULT_REGION", "")
	o := open(t, Config{URL: "s3://" + bucket})
	a, err := o.Probe(t.Context())
	if err != nil || a.Region != "eu-north-1" {
		t.Errorf("%+v %v", a, err)
	}
	if s := o.Stats(); s.Errors != 0 || s.Last != nil { // the first answer told the region: a healthy start has no errors
		t.Errorf("%d errors, the last %v", s.Errors, s.Last)
	}
}

func TestTheProfileOfTheSharedConfigIsUsed(t *testing.T) {
	// Keys, region and endpoint come from the named profile when no variable says
	// otherwise.
	s := hearthtest.Start(t, hearthtest.ServerOptions{Dir: t.TempDir(), Region: "eu-north-1"})
	bucket := s.Bucket(t, "profile")
	account(t, &s.S3)
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL"} {
		t.Setenv(name, "")
	}
	path := filepath.Join(t.TempDir(), "config")
	text := "[default]\nregion = nowhere\n[profile lab]\nregion = eu-north-1\nendpoint_url = " + s.Endpoint +
		"\naws_access_key_id = " + s.AccessKey + "\naws_secret_access_key = " + s.SecretKey + "\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("AWS_CONFIG_FILE", path)
	t.Setenv("AWS_PROFILE", "lab")
	if _, err := open(t, Config{URL: "s3://" + bucket}).Probe(t.Context()); err != nil {
		t.Error(Explain(err))
	}
}

func TestWrongConfigurationsAreNamed(t *testing.T) {
	// What cannot be an origin is refused when it is opened, with its own name.
	for _, c := range []Config{{URL: "http://x"}, {URL: "s3://"}, {URL: "file://relative"}, {URL: "file:///does/not/exist"}, {URL: "s3://b", Endpoint: "ftp://x"},
		{URL: "s3://b", PathStyle: "maybe"}, {URL: "s3://b", CAFile: "/does/not/exist"}, {URL: "s3://b?x"}} {
		if _, err := Open(t.Context(), c); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: %v", c, err)
		}
	}
	for raw, want := range map[string]string{"s3://b": "", "s3://b/": "", "s3://b/p": "p/", "s3://b/p/q/": "p/q/", "s3://b/100%/x": "100%/x/", "file:///d": ""} {
		if got, err := Prefix(raw); err != nil || got != want {
			t.Errorf("prefix of %s: %q %v", raw, got, err)
		}
	}
}

func TestIdentitiesAreOfTheEndpointAndNotOfTheRoad(t *testing.T) {
	// One bucket by two endpoints is two identities unless one is given; AWS has one
	// whatever the region.
	version := func(c Config) [16]byte {
		c.URL, c.Anonymous = "s3://bucket", true
		o, err := Open(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		return o.(*S3).object("k", "e", 1, time.Time{}).Version
	}
	t.Setenv("AWS_ENDPOINT_URL", "")
	if version(Config{Region: "eu-west-1"}) != version(Config{Region: "us-east-2"}) || version(Config{}) != version(Config{Endpoint: "https://s3.eu-west-1.amazonaws.com"}) {
		t.Error("AWS has several identities")
	}
	if version(Config{Endpoint: "http://a:1"}) == version(Config{Endpoint: "http://b:1"}) {
		t.Error("two endpoints have one identity")
	}
	if version(Config{Endpoint: "http://a:1", Identity: "one"}) != version(Config{Endpoint: "http://b:1", Identity: "one"}) {
		t.Error("a given identity is not used")
	}
}

func TestASilentOriginIsGivenUpWithinThreeTimesItsTimeout(t *testing.T) {
	// Nothing but the timeout is configured: the budget follows it, and is spent on
	// more than one attempt.
	f := newFaulty(t, Config{Timeout: 300 * time.Millisecond})
	f.proxy.Reset()
	ctx, cancel := context.WithTimeout(t.Context(), 9*time.Second) // far beyond, for a busy machine; 10 s was the budget before
	defer cancel()
	f.proxy.AddRule(faultproxy.Rule{Body: faultproxy.Stall, At: 10})
	defer f.proxy.ClearRules()
	if err := readCheck(ctx, f, &f.object, 0, f.size, 1); !errors.Is(err, errStalled) {
		t.Errorf("a read: %v", err)
	}
	if n := f.proxy.Stats().Get.Requests; n < 2 {
		t.Errorf("asked %d times", n)
	}
	if got := (Retry{}).withDefaults(7 * time.Second).Within; got != 7*time.Second {
		t.Errorf("the budget is %v for a timeout of 7 s", got)
	}
}

func TestAnOriginThatTricklesIsSlowAndNotSick(t *testing.T) {
	// A body that takes ten times the timeout and is never silent for as long is read to its end, by one request; one that is, is given up.
	trickle := func(pause time.Duration) (requests int, took time.Duration, err error) {
		synctest.Test(t, func(t *testing.T) {
			s, e := Open(t.Context(), Config{URL: "s3://b", Endpoint: "http://trickles.invalid", Anonymous: true, Timeout: time.Second})
			if e != nil {
				t.Fatal(e)
			}
			var servers sync.WaitGroup
			s.(*S3).transport.DialContext = func(context.Context, string, string) (net.Conn, error) {
				here, there := net.Pipe()
				servers.Go(func() {
					defer there.Close()
					if _, err := http.ReadRequest(bufio.NewReader(there)); err != nil {
						return
					}
					requests++
					_, err := fmt.Fprint(there, "HTTP/1.1 206 Partial Content\r\nETag: \"e\"\r\nContent-Range: bytes 0-9/10\r\nContent-Length: 10\r\nConnection: close\r\n\r\n")
					for i := 0; i < 10 && err == nil; i++ {
						time.Sleep(pause)
						_, err = fmt.Fprint(there, i)
					}
				})
				return here, nil
			}
			o, began := s.(*S3).object("k", "e", 10, time.Time{}), time.Now()
			body, e := s.Read(t.Context(), &o, 0, 10)
			if e != nil {
				t.Fatal(e)
			}
			text, e := io.ReadAll(body)
			took, err = time.Since(began), e
			body.Close()
			if err == nil && string(text) != "0123456789" {
				t.Errorf("read %q", text)
			}
			hearthtest.Close(t, s.(*S3))
			servers.Wait()
		})
		return requests, took, err
	}
	if n, took, err := trickle(999 * time.Millisecond); n != 1 || took != 9990*time.Millisecond || err != nil {
		t.Errorf("ten bytes in ten seconds: %d requests, %v, %v", n, took, err)
	}
	if _, took, err := trickle(1001 * time.Millisecond); !errors.Is(err, errStalled) || took > 3*time.Second {
		t.Errorf("a silence of more than the timeout: %v after %v", err, took)
	}
}

func TestAnEighthOfTheConnectionsIsForNames(t *testing.T) {
	// Of 64 connections 56 are for files: one more reader waits until another has ended, and names do not.
	synctest.Test(t, func(t *testing.T) {
		s := &S3{}
		s.slots(64)
		var ends []func()
		for range 56 {
			release, err := acquire(t.Context(), s.data)
			if err != nil {
				t.Fatal(err)
			}
			ends = append(ends, release)
		}
		began := time.Now()
		time.AfterFunc(30*time.Second, ends[0])
		if _, err := acquire(t.Context(), s.meta); err != nil || time.Since(began) != 0 {
			t.Errorf("a look-up beside 56 readers: %v after %v", err, time.Since(began))
		}
		if _, err := acquire(t.Context(), s.data); err != nil || time.Since(began) != 30*time.Second {
			t.Errorf("the 57th reader: %v after %v", err, time.Since(began))
		}
	})
}

func TestAPageThatNeverEndsIsALie(t *testing.T) {
	// A listing's body goes on for ever, or claims to be larger than any memory: an
	// error at once, and no more is read than a page can be.
	f := newFaulty(t, Config{})
	for name, r := range map[string]faultproxy.Rule{
		"endless": {Verb: faultproxy.List, Body: faultproxy.Endless},
		"claimed": {Verb: faultproxy.List, Header: map[string]string{"Content-Length": "4611686018427387904"}, Body: faultproxy.Endless},
	} {
		f.proxy.AddRule(r)
		before := f.Stats().Bytes
		err := f.List(t.Context(), hearth.Listing{}, func(hearth.Object) error { return nil })
		if !errors.Is(err, errLied) {
			t.Errorf("%s: %v", name, err)
		}
		if n := f.Stats().Bytes - before; n > 2*pageBytes {
			t.Errorf("%s: %d bytes were read", name, n)
		}
		f.proxy.ClearRules()
	}
}

func TestABodyThatNeverEndsIsReadToItsEnd(t *testing.T) {
	// The origin sends more than was asked for, without end: the bytes asked for are
	// right, and the connection is given up.
	f := newFaulty(t, Config{})
	if err := f.read(t, faultproxy.Rule{Body: faultproxy.Endless}); err != nil {
		t.Error(err)
	}
	if n := f.Stats().InFlight; n != 0 {
		t.Errorf("%d in flight", n)
	}
}

func TestKeysReplacedInTheirFileAreFound(t *testing.T) {
	// The key is revoked and the file names another: the next request uses it,
	// without a restart. (HEAD is left out: versitygw answers 404 to an unknown key.)
	f := newFaulty(t, Config{})
	name := filepath.Join(t.TempDir(), "credentials")
	write := func(access, secret string) {
		t.Helper()
		text := "[default]\naws_access_key_id = " + access + "\naws_secret_access_key = " + secret + "\n"
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", name)
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "")
	write("REVOKED", "secret")
	if err := f.Reread(t.Context()); err != nil { // else those of the environment are good
		t.Fatal(err)
	}
	for what, ask := range map[string]func() error{
		"get":  func() error { return f.read(t, faultproxy.Rule{}) },
		"list": func() error { return f.List(t.Context(), hearth.Listing{}, func(hearth.Object) error { return nil }) },
	} {
		write("REVOKED", "secret")
		if err := ask(); !errors.Is(err, os.ErrPermission) {
			t.Errorf("%s with a key that nobody knows: %v", what, err)
		}
		write(f.server.AccessKey, f.server.SecretKey)
		if err := ask(); err != nil {
			t.Errorf("%s with the new key: %v", what, err)
		}
	}
}

func TestAnothersCancellationIsALostConnection(t *testing.T) {
	// net/http tells a request of the cancellation of the one before it on the same
	// connection: that is asked again. Its own cancellation, and its watch's, stay.
	theirs := fmt.Errorf("round trip: %w", context.Canceled)
	a := &answer{}
	a.ctx, a.cancel = context.WithCancelCause(t.Context())
	if err := a.cause(theirs); classify(err) != transient || errors.Is(err, context.Canceled) {
		t.Errorf("another's: %v", err)
	}
	a.cancel(errStalled)
	if err := a.cause(theirs); !errors.Is(err, errStalled) {
		t.Errorf("the watch's: %v", err)
	}
	a.ctx, a.cancel = context.WithCancelCause(t.Context())
	if a.cancel(nil); classify(a.cause(theirs)) != final {
		t.Error("its own is asked again")
	}
}

func TestAConnectionThatWaitsIsInUse(t *testing.T) {
	// A connection is in use from the request on, not from its answer; who left frees it.
	f := newFaulty(t, Config{})
	f.proxy.AddRule(faultproxy.Rule{Verb: faultproxy.Get, Delay: faultproxy.Duration(time.Minute)})
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() { left <- readCheck(ctx, f, &f.object, 0, f.size, 1) }()
	if !hearthtest.Eventually(t.Context(), 10*time.Second, func() bool { return f.proxy.Stats().Get.Requests > 0 }) {
		t.Error("the origin was not asked")
	}
	if n := f.Stats().InFlight; n != 1 {
		t.Errorf("%d in flight, want 1", n)
	}
	cancel()
	if err := <-left; err == nil || f.Stats().InFlight != 0 {
		t.Errorf("%v, %d in flight", err, f.Stats().InFlight)
	}
}
