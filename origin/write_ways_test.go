package origin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearthfs/hearth"
)

func TestADirectoryIsNoUploader(t *testing.T) {
	// file:// is read only: its origin does not have the methods.
	if _, ok := open(t, Config{URL: "file://" + t.TempDir()}).(hearth.Uploader); ok {
		t.Error("a directory is an Uploader")
	}
}

func TestPartsGrowWithTheObject(t *testing.T) {
	// Parts are as configured until 10,000 of them are too few, and then whole MiB, up to 5 TiB.
	key(t)
	for _, c := range []struct{ configured, size, want int64 }{
		{0, 0, 16 << 20},
		{0, 10_000 * 16 << 20, 16 << 20},
		{0, 10_000*16<<20 + 1, 17 << 20},
		{0, 5 << 40, 525 << 20},
		{5 << 20, 1 << 30, 5 << 20},
		{5 << 30, 5 << 40, 5 << 30},
	} {
		s := open(t, Config{URL: "s3://bucket", Write: Write{PartSize: c.configured}}).(*S3)
		if got := s.PartSize(c.size); got != c.want || got*mostParts < c.size {
			t.Errorf("of %d, configured %d: %d, not %d", c.size, c.configured, got, c.want)
		}
	}
}

func TestWrongWriteSettingsAreNamed(t *testing.T) {
	// Each setting that cannot be is refused in words that name its key; connections are half at most.
	key(t)
	for want, w := range map[string]Write{
		"write.connections is -1":  {Connections: -1},
		"write.connections is 6":   {Connections: 6},
		"write.bandwidth is -5":    {Bandwidth: -5},
		"write.part_size is 1000 ": {PartSize: 1000},
		"write.part_size is 53687": {PartSize: 5<<30 + 1},
		`write.sse "rot13"`:        {SSE: "rot13"},
		"write.kms_key is for":     {KMSKey: "k"},
		"write.kms_key is for w":   {KMSKey: "k", SSE: "AES256"},
	} {
		if _, err := Open(t.Context(), Config{URL: "s3://bucket", Connections: 10, Write: w}); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%+v: %v", w, err)
		}
	}
	for connections, want := range map[int]int{0: 32, 1: 1, 10: 5, 40: 20, 400: 32} {
		if s := open(t, Config{URL: "s3://bucket", Connections: connections}).(*S3); cap(s.out.slots) != want {
			t.Errorf("of %d: %d", connections, cap(s.out.slots))
		}
	}
}

// taking is a server that takes every write, and keeps what it was asked.
type taking struct {
	mu    sync.Mutex // guards the rest
	asked []*http.Request
	odd   func(w http.ResponseWriter, r *http.Request) bool
}

func (k *taking) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asked = append(k.asked, r.Clone(r.Context()))
	if k.odd != nil && k.odd(w, r) {
		return
	}
	w.Header().Set("ETag", `"e"`)
	w.Header().Set("X-Amz-Checksum-Crc64nvme", r.Header.Get("X-Amz-Checksum-Crc64nvme"))
	switch op := opOf(r); {
	case op == "begin":
		_, _ = io.WriteString(w, "<InitiateMultipartUploadResult><UploadId>id</UploadId></InitiateMultipartUploadResult>")
	case op == "complete":
		_, _ = io.WriteString(w, "<CompleteMultipartUploadResult><Bucket>b</Bucket><ETag>e</ETag></CompleteMultipartUploadResult>")
	case op == "copy":
		_, _ = io.WriteString(w, "<CopyPartResult><ETag>e</ETag></CopyPartResult>")
	case op == "get":
		_, _ = io.WriteString(w, "<ListPartsResult></ListPartsResult>")
	case op == "put" && int64(len(body)) != r.ContentLength:
		w.WriteHeader(http.StatusBadRequest)
	case op == "delete" || op == "abort":
		w.WriteHeader(http.StatusNoContent)
	}
}

// everyWrite makes one write of each kind.
func everyWrite(t *testing.T, s *S3) {
	t.Helper()
	u := &hearth.Upload{Key: "d/k +%", Size: 3, Draft: "d"}
	_, err1 := s.Put(t.Context(), u, strings.NewReader("abc"))
	id, err2 := s.Begin(t.Context(), u)
	part, err3 := s.PutPart(t.Context(), u, id, 1, strings.NewReader("abc"), 3)
	_, err4 := s.CopyPart(t.Context(), u, id, 2, &hearth.Object{Key: "x/y z", ETag: "e"}, 1, 2)
	_, err5 := s.Parts(t.Context(), u, id)
	_, err6 := s.Complete(t.Context(), u, id, []hearth.Part{part})
	err7, err8 := s.Abort(t.Context(), u, id), s.Delete(t.Context(), u.Key, "")
	if err := errors.Join(err1, err2, err3, err4, err5, err6, err7, err8); err != nil {
		t.Error(err)
	}
}

func TestEachWriteSaysWhoAsksAndIsSigned(t *testing.T) {
	// Every write has the program's name, who pays, no cookie and a signature; what begins an object has
	// its draft, its encryption and its class. An endpoint's path stands before the bucket.
	key(t)
	k := &taking{}
	server := httptest.NewServer(k)
	defer server.Close()
	k.odd = func(w http.ResponseWriter, r *http.Request) bool {
		http.SetCookie(w, &http.Cookie{Name: "a", Value: "b"})
		return false
	}
	s := open(t, Config{URL: "s3://b", Endpoint: server.URL + "/storage/s3", UserAgent: "hearth/1", RequesterPays: true,
		Write: Write{SSE: "aws:kms", KMSKey: "arn", StorageClass: "ONEZONE_IA"}}).(*S3)
	everyWrite(t, s)
	for _, r := range k.asked {
		op, h := opOf(r), r.Header
		if op == "head" {
			continue
		}
		if r.URL.Path != "/storage/s3/b/d/k +%" || h.Get("User-Agent") != "hearth/1" || h.Get("X-Amz-Request-Payer") != "requester" || h.Get("Cookie") != "" ||
			!strings.Contains(h.Get("Authorization"), "x-amz-request-payer") {
			t.Errorf("%s %s %v", op, r.URL, h)
		}
		begins := op == "put" || op == "begin"
		for name, value := range map[string]string{draftHeader: "d", "X-Amz-Server-Side-Encryption": "aws:kms", "X-Amz-Storage-Class": "ONEZONE_IA",
			"X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id": "arn"} {
			if got := h.Get(name); begins && got != value || !begins && got != "" {
				t.Errorf("%s: %s is %q", op, name, got)
			}
		}
		if op == "copy" && (h.Get("X-Amz-Copy-Source") != "b/x/y%20z" || h.Get("X-Amz-Copy-Source-If-Match") != `"e"` || h.Get("X-Amz-Copy-Source-Range") != "bytes=1-2") {
			t.Errorf("%v", h)
		}
	}
	if len(k.asked) != 9 {
		t.Errorf("%d requests", len(k.asked))
	}
}

func TestAWriteIsSentOn(t *testing.T) {
	// A redirect is followed with the body, under a signature for the other place; a region that the origin
	// names is learnt.
	key(t)
	there := &taking{}
	other := httptest.NewServer(there)
	defer other.Close()
	here := &taking{odd: func(w http.ResponseWriter, r *http.Request) bool {
		w.Header().Set("Location", other.URL+r.URL.RequestURI())
		return fakeError(w, http.StatusTemporaryRedirect, "TemporaryRedirect", "")
	}}
	server := httptest.NewServer(here)
	defer server.Close()
	s := open(t, Config{URL: "s3://b", Endpoint: server.URL}).(*S3)
	everyWrite(t, s)
	if len(there.asked) != 9 {
		t.Errorf("%d requests there", len(there.asked))
	}
	there.odd = func(w http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.Header.Get("Authorization"), "/eu-west-7/") {
			return false
		}
		w.Header().Set("X-Amz-Bucket-Region", "eu-west-7")
		return fakeError(w, http.StatusBadRequest, "AuthorizationHeaderMalformed", "")
	}
	s = open(t, Config{URL: "s3://b", Endpoint: other.URL}).(*S3)
	everyWrite(t, s)
	if s.Region() != "eu-west-7" || s.Stats().Errors != 0 {
		t.Errorf("%s %+v", s.Region(), s.Stats())
	}
}

func TestAWriteWithASessionThatExpiredIsSignedAnew(t *testing.T) {
	// The server finds the session expired: the same write is sent under another one, with its body.
	f := newFakeAWS(t, "pod")
	k, refused := &taking{}, ""
	k.odd = func(w http.ResponseWriter, r *http.Request) bool {
		token := r.Header.Get("X-Amz-Security-Token")
		if refused == "" {
			refused = token
		}
		return refused == token && fakeError(w, http.StatusBadRequest, "ExpiredToken", "")
	}
	server := httptest.NewServer(k)
	defer server.Close()
	everyWrite(t, reader(t, "b", server.URL))
	if f.Given() != 2 || len(k.asked) != 10 {
		t.Errorf("%d sessions, %d requests", f.Given(), len(k.asked))
	}
}

func TestAServerWithoutConditionsIsAskedBefore(t *testing.T) {
	// One that ignores conditions, or refuses them, is found out once, and a HEAD goes before each write
	// that has one. The caller can see that. The object that it was tried with is removed.
	for name, refuses := range map[string]bool{"ignores": false, "refuses": true} {
		t.Run(name, func(t *testing.T) {
			b := newFakeBucket(t, "k") // its PUT looks at no condition
			b.odd = func(w http.ResponseWriter, r *http.Request, key string) bool {
				if r.Method == http.MethodDelete {
					delete(b.objects, key)
					w.WriteHeader(http.StatusNoContent)
					return true
				}
				return refuses && r.Method != http.MethodGet && (r.Header.Get("If-Match") != "" || r.Header.Get("If-None-Match") != "") &&
					fakeError(w, http.StatusNotImplemented, "NotImplemented", "A header you provided implies functionality that is not implemented")
			}
			s := b.open(t, Config{})
			able, err := s.WriteAbilities(t.Context())
			if err != nil || able.IfMatch || able.IfNone || able.IfMatchDelete || able.refuses != refuses || len(b.objects) != 1 {
				t.Errorf("%+v %v, %d objects", able, err, len(b.objects))
			}
			if says := s.Unheeded(); says != "If-None-Match, If-Match" {
				t.Errorf("it says %q", says)
			}
			b.forget()
			old, err := s.Head(t.Context(), "k")
			if err != nil {
				t.Fatal(err)
			}
			put := func(u hearth.Upload) error {
				u.Key, u.Size = "k", 3
				_, err := s.Put(t.Context(), &u, strings.NewReader("abc"))
				return err
			}
			if err := put(hearth.Upload{IfNone: true}); !errors.Is(err, hearth.ErrConflict) {
				t.Error(err)
			}
			if err := put(hearth.Upload{IfMatch: "other"}); !errors.Is(err, hearth.ErrConflict) {
				t.Error(err)
			}
			if err := put(hearth.Upload{IfMatch: old.ETag}); err != nil {
				t.Error(err)
			}
			if err := s.Delete(t.Context(), "k", old.ETag); !errors.Is(err, hearth.ErrConflict) {
				t.Error(err)
			}
			if got := strings.Join(b.requests("None"), ", "); got != "HEAD k, HEAD k, HEAD k, HEAD k, PUT k, HEAD k, HEAD k" {
				t.Error(got) // PUT has no ETag in its answer here: it is asked for
			}
		})
	}
}

func TestWritesHaveABandwidth(t *testing.T) {
	// 5 MiB at 1 MiB/s, after a burst of one, take four seconds, and all bytes are counted.
	synctest.Test(t, func(t *testing.T) {
		k := &taking{}
		s := piped(t, Config{Write: Write{Bandwidth: 1 << 20}}, k.ServeHTTP)
		began := time.Now()
		_, err := s.Put(t.Context(), &hearth.Upload{Key: "k", Size: 5 << 20}, bytes.NewReader(make([]byte, 5<<20)))
		if took := time.Since(began).Round(100 * time.Millisecond); err != nil || took != 4*time.Second {
			t.Errorf("%v, %v", took, err)
		}
		if got := s.Stats(); got.Written != 5<<20 || got.Puts != 1 {
			t.Errorf("%+v", got)
		}
	})
}

func TestAWriteWaitsAsItIsTold(t *testing.T) {
	// Retry-After is obeyed for writes, and the origin is counted as throttling.
	synctest.Test(t, func(t *testing.T) {
		k, told := &taking{}, false
		k.odd = func(w http.ResponseWriter, r *http.Request) bool {
			if told {
				return false
			}
			told = true
			w.Header().Set("Retry-After", "7")
			return fakeError(w, http.StatusServiceUnavailable, "SlowDown", "")
		}
		s := piped(t, Config{}, k.ServeHTTP)
		began := time.Now()
		_, err := s.Put(t.Context(), &hearth.Upload{Key: "k", Size: 1}, strings.NewReader("x"))
		if took := time.Since(began); err != nil || took < 7*time.Second || took > 8*time.Second || s.Stats().Throttled != 1 {
			t.Errorf("%v, %v, %+v", took, err, s.Stats())
		}
	})
}

func TestAWriteThatIsCancelled(t *testing.T) {
	// Once the origin has the whole body nobody knows whether it is done; before that it is not.
	synctest.Test(t, func(t *testing.T) {
		s := piped(t, Config{Write: Write{Bandwidth: 1 << 20}}, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
		})
		for within, unanswered := range map[time.Duration]bool{time.Second: false, 10 * time.Second: true} {
			ctx, cancel := context.WithTimeout(t.Context(), within)
			_, err := s.Put(ctx, &hearth.Upload{Key: "k", Size: 4 << 20, Draft: "d"}, bytes.NewReader(make([]byte, 4<<20)))
			if cancel(); errors.Is(err, hearth.ErrUnanswered) != unanswered || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("within %v: %v", within, err)
			}
			<-time.After(time.Minute) // virtual: the burst is full again
		}
	})
}

func TestTheProbeOutlastsWhoNeedsIt(t *testing.T) {
	// A write is cancelled while the origin is tried: what that has put there is removed all the same, and the next write need not begin again.
	b := newFakeBucket(t, "k")
	ctx, cancel := context.WithCancel(t.Context())
	probes, removed := 0, false
	b.odd = func(_ http.ResponseWriter, r *http.Request, key string) bool {
		if !strings.HasPrefix(key, ".hearth-probe-") {
			return false
		}
		probes++
		cancel()
		removed = r.Method == http.MethodDelete && r.Header.Get("If-Match") == ""
		return removed
	}
	s := b.open(t, Config{})
	u := &hearth.Upload{Key: "new", Size: 1, IfNone: true}
	if _, err := s.Put(ctx, u, strings.NewReader("x")); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	before := probes
	if _, err := s.Put(t.Context(), u, strings.NewReader("x")); err != nil || probes != before {
		t.Errorf("%v, after %d more requests", err, probes-before)
	}
	if !removed {
		t.Error("what was put there is left")
	}
}

func TestTheNextProcessRemovesWhatAProbeHasLeft(t *testing.T) {
	// A node is killed within the probe. Its next process removes what is left of that. Other nodes and links have names of their own, since
	// they may probe at the same time.
	b := newFakeBucket(t, "k")
	probed := map[string]bool{}
	killed := true
	b.odd = func(w http.ResponseWriter, r *http.Request, key string) bool {
		if strings.HasPrefix(key, ".hearth-probe-") {
			probed[key] = true
		}
		if r.Method != http.MethodDelete || r.Header.Get("If-Match") != "" {
			return false
		}
		if killed { // none arrives
			return fakeError(w, http.StatusForbidden, "AccessDenied", "")
		}
		delete(b.objects, key)
		return true
	}
	for i, c := range []struct {
		node, link string
		left       int
	}{{"a", "/", 1}, {"b", "/", 1}, {"a", "/other", 1}, {"", "/", 1}, {"a", "/", 0}} {
		killed = i == 0
		s := b.open(t, Config{Node: c.node, Link: c.link})
		if _, err := s.WriteAbilities(t.Context()); err != nil {
			t.Fatal(err)
		}
		if left := len(b.objects) - 1; left != c.left {
			t.Errorf("%+v: %d objects are left", c, left)
		}
	}
	if len(probed) != 5 {
		t.Errorf("probed %v", probed)
	}
}

func TestWhereTheProbeIsDeniedNoConditionIsReliedOn(t *testing.T) {
	// Rights below a part of the prefix are enough to write there: a HEAD goes before each write that has
	// a condition.
	b := newFakeBucket(t, "k")
	b.odd = func(w http.ResponseWriter, r *http.Request, key string) bool {
		return strings.HasPrefix(key, ".hearth-probe-") && fakeError(w, http.StatusForbidden, "AccessDenied", "")
	}
	s := b.open(t, Config{})
	for i, want := range []error{hearth.ErrConflict, nil} {
		u := &hearth.Upload{Key: []string{"k", "new"}[i], Size: 1, IfNone: true}
		if _, err := s.Put(t.Context(), u, strings.NewReader("x")); !errors.Is(err, want) {
			t.Errorf("%s: %v", u.Key, err)
		}
	}
	if able, err := s.WriteAbilities(t.Context()); err != nil || able.IfNone || able.IfMatch || able.IfMatchDelete {
		t.Errorf("%+v %v", able, err)
	}
}

func TestARemovedNameIsMadeAgainInABucketOfVersions(t *testing.T) {
	// An origin takes a marker of deletion for an object. Twice a HEAD says that there is none, so the name is made without the
	// condition. One that somebody has made meanwhile is not replaced. Where no versions are kept, the origin is believed.
	for _, c := range []struct{ rival, versions bool }{{false, true}, {true, true}, {false, false}} {
		b := newFakeBucket(t, "k")
		asked := ""
		b.odd = func(w http.ResponseWriter, r *http.Request, key string) bool {
			if key == "removed" {
				asked += r.Method + " "
			}
			if c.versions {
				w.Header().Set("X-Amz-Version-Id", "v1")
			}
			if c.rival && asked == "PUT HEAD PUT HEAD " { // what the next request finds
				b.objects[key] = b.objects["k"]
			}
			if r.Method == http.MethodPut && r.Header.Get("If-None-Match") != "" {
				return fakeError(w, http.StatusPreconditionFailed, "PreconditionFailed", "")
			}
			return r.Method == http.MethodDelete
		}
		s := b.open(t, Config{})
		_, err := s.Put(t.Context(), &hearth.Upload{Key: "removed", Size: 1, IfNone: true}, strings.NewReader("x"))
		want, failed := "PUT HEAD PUT HEAD HEAD PUT HEAD ", c.rival || !c.versions
		if c.rival {
			want = "PUT HEAD PUT HEAD HEAD "
		} else if !c.versions {
			want = "PUT "
		}
		if (err != nil) != failed || failed && !errors.Is(err, hearth.ErrConflict) || asked != want {
			t.Errorf("%+v: %v, asked %s, not %s", c, err, asked, want)
		}
	}
}

func TestTheProbeLeavesNoVersion(t *testing.T) {
	// A bucket keeps versions, and heeds conditions or not: all that the probe has made is removed for good, a marker of deletion, too.
	// Where that is denied, the object is removed as any other.
	for _, c := range []struct{ heeds, denied bool }{{true, false}, {false, false}, {true, true}} {
		b := newFakeBucket(t, "k")
		made, left := 0, map[string]bool{}
		b.odd = func(w http.ResponseWriter, r *http.Request, key string) bool {
			if !strings.HasPrefix(key, ".hearth-probe-") {
				return false
			}
			version := r.URL.Query().Get("versionId")
			switch {
			case r.Method == http.MethodHead:
				return fakeError(w, http.StatusNotFound, "NoSuchKey", "")
			case c.heeds && r.Header.Get("If-Match")+r.Header.Get("If-None-Match") != "":
				return fakeError(w, http.StatusPreconditionFailed, "PreconditionFailed", "")
			case version != "" && c.denied:
				return fakeError(w, http.StatusForbidden, "AccessDenied", "")
			case version != "":
				delete(left, version)
				return true
			}
			made++
			version = fmt.Sprint(r.Method, made)
			left[version] = true
			w.Header().Set("X-Amz-Version-Id", version)
			w.Header().Set("ETag", `"etag"`)
			return r.Method == http.MethodDelete
		}
		able, err := b.open(t, Config{}).WriteAbilities(t.Context())
		if err != nil || able.IfMatchDelete != c.heeds {
			t.Errorf("%+v: %+v, %v", c, able, err)
		}
		if want := map[bool]string{false: "map[]", true: "map[DELETE2:true PUT1:true]"}[c.denied]; fmt.Sprint(left) != want {
			t.Errorf("%+v: left are %v, not %s", c, left, want)
		}
	}
}

func TestDoctorsProbeLeavesNoMarker(t *testing.T) {
	// A bucket keeps versions, and its server ignores conditions of DELETE (MinIO): the marker that the probe has made is removed.
	b := newFakeBucket(t, "k")
	var asked []string
	b.odd = func(w http.ResponseWriter, r *http.Request, key string) bool {
		q := r.URL.Query()
		switch {
		case r.Method == http.MethodPost:
			_, _ = io.WriteString(w, "<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>")
			return true
		case r.Method == http.MethodGet && q.Has("uploadId"):
			_, _ = io.WriteString(w, "<ListPartsResult></ListPartsResult>")
			return true
		case r.Method == http.MethodDelete && !q.Has("uploadId"):
			asked = append(asked, "DELETE "+q.Get("versionId"))
			if !q.Has("versionId") {
				w.Header().Set("X-Amz-Version-Id", "marker")
				w.Header().Set("X-Amz-Delete-Marker", "true")
			}
		}
		return r.Method == http.MethodDelete
	}
	s := b.open(t, Config{})
	if left, err := s.ProbeWrites(t.Context()); left != "" || err != nil {
		t.Errorf("%q, %v", left, err)
	}
	if got := strings.Join(asked, ", "); got != "DELETE , DELETE marker" {
		t.Errorf("asked %s", got)
	}
	if says := s.Unheeded(); says != "" {
		t.Errorf("of an origin that was never tried: %q", says)
	}
}

func TestDoctorsProbeListsUploads(t *testing.T) {
	// While its own upload is open, the probe lists those of its key: who may not is told which right that is, and the upload is aborted
	// all the same. A server that lists none of them may be written as it is.
	const told = "s3://b/: listing unfinished uploads is denied; grant s3:ListBucketMultipartUploads on arn:aws:s3:::b to these credentials"
	for _, c := range []struct {
		status     int
		code, says string
	}{{200, "", ""}, {403, "AccessDenied", told}, {501, "NotImplemented", ""}, {400, "InvalidArgument", ""}, {405, "MethodNotAllowed", ""}} {
		b := newFakeBucket(t, "k")
		var asked []string
		b.odd = func(w http.ResponseWriter, r *http.Request, key string) bool {
			q := r.URL.Query()
			switch {
			case r.Method == http.MethodPost:
				asked = append(asked, "begin")
				_, _ = io.WriteString(w, "<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>")
			case r.Method == http.MethodGet && q.Has("uploadId"):
				_, _ = io.WriteString(w, "<ListPartsResult></ListPartsResult>")
			case r.Method == http.MethodGet && q.Has("uploads"):
				if !strings.HasPrefix(q.Get("prefix"), ".hearth-probe-") {
					t.Errorf("it lists all below %q", q.Get("prefix"))
				}
				if asked = append(asked, "list"); c.status != http.StatusOK {
					return fakeError(w, c.status, c.code, "")
				}
				_, _ = io.WriteString(w, "<ListMultipartUploadsResult></ListMultipartUploadsResult>")
			case r.Method == http.MethodDelete && q.Has("uploadId"):
				asked = append(asked, "abort")
				w.WriteHeader(http.StatusNoContent)
			case r.Method != http.MethodDelete:
				return false
			}
			return true
		}
		left, err := b.open(t, Config{}).ProbeWrites(t.Context())
		says := ""
		if err != nil {
			says = Explain(err)
		}
		if left != "" || says != c.says {
			t.Errorf("%d: %q, %v: %s", c.status, left, err, says)
		}
		if got := strings.Join(slices.Compact(asked), ", "); got != "begin, list, abort" {
			t.Errorf("%d: asked %s", c.status, got)
		}
	}
}

func TestAnOriginThatNeverAnswersAWriteIsGivenUp(t *testing.T) {
	// It takes the body and says nothing: what moves bytes may take ten minutes, and then nobody knows. One
	// that takes nothing of the body is given up sooner, and has done nothing.
	synctest.Test(t, func(t *testing.T) {
		var takes atomic.Bool
		takes.Store(true)
		over := make(chan struct{})                               // a server that reads nothing does not see that its client has gone
		defer func() { close(over); <-time.After(time.Second) }() // virtual: net/http waits for half of that
		s := piped(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
			if takes.Load() {
				_, _ = io.Copy(io.Discard, r.Body)
			}
			select {
			case <-r.Context().Done():
			case <-over:
			}
		})
		u := &hearth.Upload{Key: "k", Size: 1 << 20}
		began := time.Now()
		_, err := s.Put(t.Context(), u, bytes.NewReader(make([]byte, 1<<20)))
		if took := time.Since(began); !errors.Is(err, hearth.ErrUnanswered) || !errors.Is(err, errStalled) || took != 10*time.Minute {
			t.Errorf("%v after %v", err, took)
		}
		takes.Store(false)
		began = time.Now()
		_, err = s.Put(t.Context(), u, bytes.NewReader(make([]byte, 1<<20)))
		if took := time.Since(began); errors.Is(err, hearth.ErrUnanswered) || !errors.Is(err, errStalled) || took > 2*time.Minute {
			t.Errorf("%v after %v", err, took)
		}
		if s.Stats().Writing != 0 {
			t.Error("a write is still on its way")
		}
	})
}

func TestWritesLeaveConnectionsToReads(t *testing.T) {
	// Four writes are on their way at once, no more, while a HEAD passes.
	synctest.Test(t, func(t *testing.T) {
		var now, most atomic.Int64
		s := piped(t, Config{Connections: 8}, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.Header().Set("ETag", `"e"`)
			w.Header().Set("Content-Length", "0")
			if r.Method == http.MethodPut {
				n := now.Add(1)
				for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
				}
				<-time.After(time.Second) // virtual
				now.Add(-1)
			}
		})
		var wait sync.WaitGroup
		for range 12 {
			wait.Go(func() {
				if _, err := s.Put(t.Context(), &hearth.Upload{Key: "k", Size: 1}, strings.NewReader("x")); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		began := time.Now()
		if _, err := s.Head(t.Context(), "k"); err != nil || time.Since(began) != 0 {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		wait.Wait()
		if most.Load() != 4 || s.Stats().Puts != 12 {
			t.Errorf("%d at once", most.Load())
		}
	})
}
