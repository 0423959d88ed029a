package origin

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// The fates of a request on its way to a server.
const (
	lost   = "lost"   // the server does it, and its answer does not come
	cut    = "cut"    // the server never sees it
	harmed = "harmed" // a bit of the body is another
)

// road is the way to a real server, on which writes meet their fates.
type road struct {
	*S3
	server *hearthtest.Server
	proxy  *httptest.Server

	mu    sync.Mutex // guards the rest
	fates map[string][]string
	asked []string
	then  func() // is called before the second write of an operation that had a fate
}

// newRoad leads to a bucket "road" of versitygw. Writes are known by word: put, begin, part, copy, complete,
// abort, delete.
func newRoad(t *testing.T, c Config) *road {
	t.Helper()
	r := &road{server: hearthtest.StartS3(t), fates: map[string][]string{}}
	r.server.Bucket(t, "road")
	account(t, &r.server.S3)
	r.proxy = httptest.NewServer(r)
	t.Cleanup(r.proxy.Close)
	c.URL, c.Link, c.Endpoint = "s3://road", "/l", r.proxy.URL
	c.Retry.First = time.Millisecond
	r.S3 = open(t, c).(*S3)
	if _, err := r.WriteAbilities(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.asked = nil
	return r
}

func opOf(r *http.Request) string {
	q := r.URL.Query()
	switch {
	case r.Method == http.MethodDelete && q.Has("uploadId"):
		return "abort"
	case r.Method == http.MethodDelete:
		return "delete"
	case r.Method == http.MethodPost && q.Has("uploads"):
		return "begin"
	case r.Method == http.MethodPost:
		return "complete"
	case r.Method == http.MethodPut && r.Header.Get("X-Amz-Copy-Source") != "":
		return "copy"
	case r.Method == http.MethodPut && q.Has("partNumber"):
		return "part"
	}
	return strings.ToLower(r.Method)
}

// ServeHTTP sends a request on, or does to it what its fate is: a word, or "status code message".
func (r *road) ServeHTTP(w http.ResponseWriter, in *http.Request) {
	body, err := io.ReadAll(in.Body)
	if err != nil {
		return
	}
	op, fate := opOf(in), ""
	r.mu.Lock()
	r.asked = append(r.asked, op)
	if then := r.then; then != nil && len(r.fates[op]) == 0 && op != "head" {
		r.then = nil
		then()
	}
	if all := r.fates[op]; len(all) > 0 {
		fate, r.fates[op] = all[0], all[1:]
	}
	r.mu.Unlock()
	switch fate {
	case "", lost:
	case harmed:
		body[len(body)/2] ^= 1
	case cut:
		panic(http.ErrAbortHandler)
	default:
		var status int
		var code, message string
		_, _ = fmt.Sscan(fate, &status, &code, &message)
		w.Header().Set("Retry-After", "0")
		w.WriteHeader(status)
		_, _ = fmt.Fprintf(w, "<?xml version=\"1.0\"?>\n<Error><Code>%s</Code><Message>%s</Message></Error>", code, message)
		return
	}
	out, _ := http.NewRequestWithContext(in.Context(), in.Method, r.server.Endpoint+in.URL.RequestURI(), bytes.NewReader(body))
	out.Header, out.Host = in.Header, in.Host
	resp, err := r.server.Client.Do(out)
	if err != nil || fate == lost {
		panic(http.ErrAbortHandler)
	}
	defer resp.Body.Close()
	for name, values := range resp.Header {
		w.Header()[name] = values
	}
	w.WriteHeader(resp.StatusCode)
	_, _ = io.Copy(w, resp.Body)
}

// meets gives the next writes of an operation fates, and tells afterwards which requests were made.
func (r *road) meets(op string, fates ...string) (asked func() string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fates, r.asked = map[string][]string{op: fates}, nil
	return func() string {
		r.mu.Lock()
		defer r.mu.Unlock()
		return strings.Join(r.asked, " ")
	}
}

func TestALostAnswerIsSettled(t *testing.T) {
	// A put whose answer is lost is asked for, or sent again under its condition: it is done once, and the
	// caller is told so. What nobody can know is unanswered; what was not done is done, or said.
	data := []byte("what is put")
	for _, c := range []struct {
		name     string
		u        hearth.Upload
		fates    []string
		asked    string // requests
		err      error
		isThere  bool
		rival    bool // somebody else writes after the first
		rivalHas bool
	}{
		{name: "done", u: hearth.Upload{Draft: "d"}, fates: []string{lost}, asked: "put head", isThere: true},
		{name: "done, new", u: hearth.Upload{Draft: "d", IfNone: true}, fates: []string{lost}, asked: "put put head", isThere: true},
		{name: "done twice", u: hearth.Upload{Draft: "d", IfNone: true}, fates: []string{lost, lost}, asked: "put put put head", isThere: true},
		{name: "nobody knows", u: hearth.Upload{}, fates: []string{lost}, asked: "put", err: hearth.ErrUnanswered, isThere: true},
		{name: "nobody knows, new", u: hearth.Upload{IfNone: true}, fates: []string{lost}, asked: "put put", err: hearth.ErrUnanswered, isThere: true},
		{name: "cut", u: hearth.Upload{Draft: "d"}, fates: []string{cut}, asked: "put head", err: hearth.ErrUnanswered},
		{name: "cut, new", u: hearth.Upload{Draft: "d", IfNone: true}, fates: []string{cut, cut}, asked: "put put put", isThere: true},
		{name: "failed", u: hearth.Upload{Draft: "d"}, fates: []string{"500 InternalError"}, asked: "put head put", isThere: true},
		{name: "failed, nobody knows", u: hearth.Upload{}, fates: []string{"500 InternalError"}, asked: "put", err: hearth.ErrUnanswered},
		{name: "gateway", u: hearth.Upload{Draft: "d"}, fates: []string{"504 GatewayTimeout"}, asked: "put head", err: hearth.ErrUnanswered},
		{name: "slow down", u: hearth.Upload{}, fates: []string{"503 SlowDown", "503 SlowDown"}, asked: "put put put", isThere: true},
		{name: "lost, then denied", u: hearth.Upload{Draft: "d", IfNone: true}, fates: []string{cut, "403 AccessDenied"}, asked: "put put head", err: hearth.ErrUnanswered},
		{name: "a rival", u: hearth.Upload{Draft: "d", IfNone: true}, fates: []string{cut}, asked: "put put head", err: hearth.ErrConflict, isThere: true, rival: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRoad(t, Config{})
			asked, want := r.meets("put", c.fates...), data
			if c.rival {
				want = []byte("what a rival put")
				r.then = func() { _, _ = r.server.PutBytes(t.Context(), "road", "k", want) }
			}
			c.u.Key, c.u.Size = "k", int64(len(data))
			o, err := r.Put(t.Context(), &c.u, bytes.NewReader(data))
			if got := asked(); got != c.asked {
				t.Errorf("asked %s, not %s", got, c.asked)
			}
			if !errors.Is(err, c.err) || (err == nil) != (c.err == nil) {
				t.Errorf("%v, not %v", err, c.err)
			}
			_, err = r.Head(t.Context(), "k")
			if !c.isThere {
				if !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("it is there: %v", err)
				}
				return
			}
			if got, now := stored(t, r.S3, "k"); !bytes.Equal(got, want) || c.err == nil && now.Version != o.Version {
				t.Errorf("%q %+v %+v", got, now, o)
			}
		})
	}
}

func TestACompleteIsDoneOnce(t *testing.T) {
	// Whatever comes between, the parts become an object once, and its caller is told so: a lost answer, a
	// request that was cut, a 200 with an error. A refusal in a 200 is a refusal.
	data := content("k", 2*leastPart+99, 1)
	r := newRoad(t, Config{})
	for i, c := range []struct {
		fates []string
		asked string
		err   error
	}{
		{fates: []string{lost}, asked: "complete complete head"}, // versitygw says again that it is done
		{fates: []string{lost, "404 NoSuchUpload"}, asked: "complete complete head"},
		{fates: []string{cut}, asked: "complete complete head"},
		{fates: []string{"200 InternalError", "200 SlowDown", "503 SlowDown", "500 InternalError"}, asked: "complete complete complete complete complete head"},
		{fates: []string{"200 AccessDenied"}, asked: "complete", err: fs.ErrPermission},
		{fates: []string{lost, "403 AccessDenied"}, asked: "complete complete head"},
		{fates: []string{cut, "403 AccessDenied"}, asked: "complete complete head", err: hearth.ErrUnanswered},
		{fates: []string{cut, "404 NoSuchUpload"}, asked: "complete complete head", err: fs.ErrNotExist},
	} {
		u := &hearth.Upload{Key: fmt.Sprint("k", i), Size: int64(len(data)), Draft: "d"}
		id, parts := inParts(t, r.S3, u, data)
		asked := r.meets("complete", c.fates...)
		o, err := r.Complete(t.Context(), u, id, parts)
		if got := asked(); got != c.asked {
			t.Errorf("%v: asked %s, not %s", c.fates, got, c.asked)
		}
		if !errors.Is(err, c.err) || (err == nil) != (c.err == nil) {
			t.Errorf("%v: %v, not %v", c.fates, err, c.err)
		}
		if err == nil {
			same(t, r.S3, o, data)
			continue
		}
		if err := r.Abort(t.Context(), u, id); err != nil {
			t.Error(err)
		}
		if _, err := r.Head(t.Context(), u.Key); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v: it is there: %v", c.fates, err)
		}
	}
}

func TestPartsAndRemovalsAreSentAgain(t *testing.T) {
	// What can do no harm twice is sent until it is answered.
	r := newRoad(t, Config{})
	data := content("k", 2*leastPart+99, 1)
	u := &hearth.Upload{Key: "k", Size: int64(len(data)), Draft: "d"}
	for _, fates := range [][]string{{lost, cut}, {"503 SlowDown", "500 InternalError"}, {harmed}} {
		asked := r.meets("part", fates...)
		id, parts := inParts(t, r.S3, u, data)
		if got, want := asked(), "begin"+strings.Repeat(" part", 3+len(fates)); got != want {
			t.Errorf("%v: asked %s, not %s", fates, got, want)
		}
		r.meets("abort", lost, "404 NoSuchUpload")
		o, err := r.Complete(t.Context(), u, id, parts)
		if err == nil {
			err = r.Abort(t.Context(), u, id)
		}
		if err != nil {
			t.Error(err)
		}
		same(t, r.S3, o, data)
		asked = r.meets("delete", lost)
		if err := r.Delete(t.Context(), "k", o.ETag); err != nil {
			t.Errorf("%v: %v", fates, err)
		}
		if got := asked(); !strings.HasPrefix(got, "delete delete") {
			t.Errorf("asked %s", got)
		}
	}
}

func TestWhatIsHarmedOnItsWayIsRefused(t *testing.T) {
	// Of each checksum: a body with another bit is not stored, and not an object's part. It is sent again,
	// and when that does not help the caller is told.
	r := newRoad(t, Config{Retry: Retry{Attempts: 2}})
	data := content("k", 100_000, 1)
	for _, sum := range []checksum{tryCRC64, crc64, tryCRC32C, crc32c, onlyMD5} {
		r.out.sum.Store(int32(sum))
		u := &hearth.Upload{Key: fmt.Sprint("k", sum), Size: int64(len(data)), Draft: "d"}
		r.meets("put", harmed, harmed)
		var e *Error
		if _, err := r.Put(t.Context(), u, bytes.NewReader(data)); !errors.As(err, &e) || e.Code != "BadDigest" || errors.Is(err, hearth.ErrUnanswered) {
			t.Errorf("%d: %v", sum, err)
		}
		if _, err := r.Head(t.Context(), u.Key); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%d: it is there: %v", sum, err)
		}
		r.meets("put", harmed)
		if o, err := r.Put(t.Context(), u, bytes.NewReader(data)); err != nil {
			t.Errorf("%d: %v", sum, err)
		} else {
			same(t, r.S3, o, data)
		}
		r.out.sum.Store(int32(sum))
		id, err := r.Begin(t.Context(), u)
		if err != nil {
			t.Errorf("%d: %v", sum, err)
			continue
		}
		r.meets("part", harmed, harmed)
		if _, err := r.PutPart(t.Context(), u, id, 1, bytes.NewReader(data), u.Size); !errors.As(err, &e) || e.Code != "BadDigest" {
			t.Errorf("%d: a part: %v", sum, err)
		}
		if parts, err := r.Parts(t.Context(), u, id); err != nil || len(parts) > 0 {
			t.Errorf("%d: %v %v", sum, parts, err)
		}
	}
}

func TestRefusalsOfWritesAreNamed(t *testing.T) {
	// Each refusal has its error and a line with its cure, and is asked once.
	r := newRoad(t, Config{})
	for fate, want := range map[string]struct {
		err  error
		line string
	}{
		"403 AccessDenied":                        {fs.ErrPermission, "writing is denied; grant s3:PutObject, s3:AbortMultipartUpload, s3:ListMultipartUploadParts and s3:DeleteObject on arn:aws:s3:::road/*, and s3:ListBucketMultipartUploads on arn:aws:s3:::road, to these credentials"},
		"403 QuotaExceeded":                       {syscall.EDQUOT, "the quota is used up (403 QuotaExceeded); raise"},
		"400 XMinioAdminBucketQuotaExceeded Full": {syscall.EDQUOT, "the quota is used up (400 XMinioAdminBucketQuotaExceeded: Full)"},
		"400 EntityTooLarge":                      {syscall.EFBIG, "set write.part_size"},
		"507 XMinioStorageFull":                   {syscall.ENOSPC, "the origin's disks are full"},
		"507":                                     {syscall.ENOSPC, "the origin's disks are full"},
	} {
		for _, op := range []string{"put", "begin", "part", "copy", "complete", "abort", "delete"} {
			asked, u := r.meets(op, fate, fate), &hearth.Upload{Key: "k", Size: 1, Draft: "d"}
			part := hearth.Part{Number: 1, Size: 1, ETag: "e"}
			var err error
			switch op {
			case "put":
				_, err = r.Put(t.Context(), u, strings.NewReader("x"))
			case "begin":
				_, err = r.Begin(t.Context(), u)
			case "part":
				_, err = r.PutPart(t.Context(), u, "id", 1, strings.NewReader("x"), 1)
			case "copy":
				_, err = r.CopyPart(t.Context(), u, "id", 1, &hearth.Object{Key: "o", ETag: "e"}, 0, 1)
			case "complete":
				_, err = r.Complete(t.Context(), u, "id", []hearth.Part{part})
			case "abort":
				err = r.Abort(t.Context(), u, "id")
			case "delete":
				err = r.Delete(t.Context(), "k", "")
			}
			var e *Error
			if !errors.Is(err, want.err) || !errors.As(err, &e) || e.Op != op || !strings.Contains(Explain(err), want.line) {
				t.Errorf("%s, %s: %v\n%s", op, fate, err, Explain(err))
			}
			if op == "copy" && fate == "403 AccessDenied" && !strings.HasSuffix(Explain(err), "of an object with tags s3:GetObjectTagging and s3:PutObjectTagging") {
				t.Errorf("a copy: %s", Explain(err))
			}
			if errors.Is(err, hearth.ErrUnanswered) || asked() != op {
				t.Errorf("%s, %s: %v after %s", op, fate, err, asked())
			}
		}
	}
}

// unread is a body that cannot be read from an offset on.
type unread int64

func (u unread) ReadAt(p []byte, off int64) (int, error) {
	if off+int64(len(p)) > int64(u) {
		return 0, syscall.EIO
	}
	return len(p), nil
}

func TestABodyThatCannotBeReadIsNotWritten(t *testing.T) {
	// The error of the file is the caller's, whether it shows at the checksum or when the body is sent; the
	// origin has nothing of it, and is not blamed.
	r := newRoad(t, Config{})
	before := r.Stats().Errors
	u := &hearth.Upload{Key: "k", Size: 1 << 20, Draft: "d"}
	asked := r.meets("put")
	if _, err := r.Put(t.Context(), u, unread(100_000)); !errors.Is(err, syscall.EIO) || asked() != "" {
		t.Errorf("%v after %q", err, asked())
	}
	later := &laterUnread{unread: 500_000}
	if _, err := r.Put(t.Context(), u, later); !errors.Is(err, syscall.EIO) || errors.Is(err, hearth.ErrUnanswered) {
		t.Errorf("%v", err)
	}
	if _, err := r.Head(t.Context(), "k"); !errors.Is(err, fs.ErrNotExist) || r.Stats().Errors != before {
		t.Errorf("%v, %+v", err, r.Stats())
	}
}

// laterUnread is unread after it was read once.
type laterUnread struct {
	unread
	whole bool
}

func (u *laterUnread) ReadAt(p []byte, off int64) (int, error) {
	if u.whole {
		return u.unread.ReadAt(p, off)
	}
	u.whole = off+int64(len(p)) >= 1<<20
	return len(p), nil
}
