package origin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/hearthfs/hearth"
)

func TestAProbeTriesOthersWhereOneObjectCannotBeRead(t *testing.T) {
	// The first objects of a bucket are archived, with their class or without, under a disabled key, denied, or
	// answered oddly: another one is tried, and what was passed is named with its cure. A bucket of which all that is
	// tried is archived is an origin, too; one that denies all is none.
	keys := func(n int) (all []string) {
		for i := range n {
			all = append(all, fmt.Sprintf("a/%03d", i))
		}
		return all
	}
	for name, x := range map[string]struct {
		first, others []string
		class         string
		odd           func(http.ResponseWriter, *http.Request, string) bool
		passed        string // "": none
	}{
		"well":          {first: keys(3)},
		"archived":      {keys(70), []string{"z"}, "GLACIER", refuses("a/", 403, "InvalidObjectState", "x"), "s3://b/a/000: it is archived (storage class GLACIER); restore it"},
		"not in list":   {keys(2), []string{"z"}, "", refuses("a/", 403, "InvalidObjectState", "x"), "s3://b/a/000: it is archived; restore it"},
		"more":          {keys(700), []string{"b", "z/1"}, "DEEP_ARCHIVE", refuses("a/", 403, "InvalidObjectState", "x"), "s3://b/a/000: it is archived (storage class DEEP_ARCHIVE)"},
		"in their list": {keys(700), []string{"z/1"}, "", refuses("a/", 403, "InvalidObjectState", "x"), "s3://b/a/000: it is archived"},
		"key disabled":  {keys(1), []string{"z"}, "", refuses("a/", 400, "KMS.DisabledException", "arn:k is disabled."), "s3://b/a/000: the key that it is encrypted with cannot be used (KMS.DisabledException: arn:k is disabled); enable that key"},
		"denied":        {keys(1), []string{"z"}, "", refuses("a/", 403, "AccessDenied", "Access Denied"), "s3://b/a/000: reading is denied; grant s3:GetObject"},
		"odd": {keys(1), []string{"z"}, "", func(w http.ResponseWriter, r *http.Request, key string) bool {
			return r.Method == http.MethodGet && transcodes("a/000", false)(w, r, key)
		}, "s3://b/a/000: the origin contradicts itself"},
		"all archived": {keys(3), nil, "GLACIER", refuses("", 403, "InvalidObjectState", "x"), "s3://b/a/000: it is archived"},
		"all denied":   {keys(3), []string{"z"}, "", refuses("", 403, "AccessDenied", "Access Denied"), ""},
		"denied or archived": {keys(3), []string{"z"}, "", func(w http.ResponseWriter, r *http.Request, key string) bool {
			return refuses("a/", 403, "InvalidObjectState", "")(w, r, key) || refuses("z", 403, "AccessDenied", "")(w, r, key)
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := newFakeBucket(t, x.others...)
			for _, key := range x.first {
				b.put(key, x.class)
			}
			b.odd = x.odd
			s := b.open(t, Config{})
			can, err := s.Probe(t.Context())
			if strings.HasPrefix(name, "all denied") || strings.HasPrefix(name, "denied or") {
				if !errors.Is(err, fs.ErrPermission) {
					t.Errorf("%+v, %v", can, err)
				}
				return
			}
			if whole := name != "all archived"; err != nil || !can.Objects || can.Range != whole || can.IfMatch != whole ||
				!strings.HasPrefix(can.Passed, x.passed) || (can.Passed == "") != (x.passed == "") {
				t.Errorf("%+v, %v", can, err)
			}
			if n := len(b.requests("")); n > 20 {
				t.Errorf("%d requests", n)
			}
		})
	}
}

func TestAnArchivedObjectIsAnAnswer(t *testing.T) {
	// A read of an archived object fails at once with what it is, its class and the cure. The origin is not away, and has made
	// no error; a HEAD tells the class.
	b := newFakeBucket(t)
	b.put("k", "GLACIER")
	b.odd = refuses("k", 403, "InvalidObjectState", "The operation is not valid for the object's storage class")
	s := b.open(t, Config{})
	o, err := s.Head(t.Context(), "k")
	if err != nil || !o.Archived() {
		t.Fatalf("%+v, %v", o, err)
	}
	_, err = s.Read(t.Context(), &o, 0, 10)
	if !errors.Is(err, hearth.ErrArchived) || errors.Is(err, fs.ErrPermission) || Away(err) || !OfOne(err) {
		t.Error(err)
	}
	if got, want := Explain(err), "s3://b/k: it is archived (storage class GLACIER); restore it at the origin (aws s3api restore-object), then read it again"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if st := s.Stats(); st.Gets != 1 || st.Errors != 0 || st.Last != nil {
		t.Errorf("%+v", st)
	}
}

func TestWhatNobodyWaitsForIsNoError(t *testing.T) {
	// Of a HEAD and a LIST that race, the loser is cancelled. The origin has made no error by that.
	b := newFakeBucket(t)
	b.put("k", "")
	ctx, cancel := context.WithCancel(t.Context())
	b.odd = func(_ http.ResponseWriter, r *http.Request, key string) bool {
		if r.Method == http.MethodHead && key == "k" {
			cancel()
			<-r.Context().Done()
		}
		return false
	}
	s := b.open(t, Config{})
	if _, err := s.Head(ctx, "k"); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if st := s.Stats(); st.Heads != 1 || st.Errors != 0 || st.Last != nil {
		t.Errorf("%+v", st)
	}
}

func TestStoredBytesComeOfWhatIsStoredCompressed(t *testing.T) {
	// Google's servers decompress what is stored compressed for who does not accept gzip: HEAD and GET of objects accept
	// it, listings do not, and no signature covers that, for a front end changes it. The stored bytes come as they are.
	b := newFakeBucket(t, "other", "packed")
	b.odd = transcodes("packed", true)
	s := b.open(t, Config{})
	if _, err := s.Probe(t.Context()); err != nil {
		t.Fatal(err)
	}
	o, err := s.Head(t.Context(), "packed")
	if err != nil || o.Size != 1000 || !o.Cacheable() {
		t.Fatalf("%+v, %v", o, err)
	}
	if err := readCheck(t.Context(), s, &o, 100, 900, 1); err != nil {
		t.Error(err)
	}
	for _, r := range b.requests("Accept-Encoding") {
		if listing := !strings.Contains(r, "other") && !strings.Contains(r, "packed"); strings.HasSuffix(r, " gzip") == listing {
			t.Errorf("%q", r)
		}
	}
	for _, r := range b.requests("Authorization") {
		if !strings.Contains(r, "SignedHeaders=host;x-amz-content-sha256;x-amz-date,") {
			t.Errorf("%q", r)
		}
	}
}

func TestWhatIsTranscodedAnywayFailsAlone(t *testing.T) {
	// One object is decompressed whatever is accepted: its read fails with a line that names the cure, no byte of it is
	// given, and that is neither an outage nor said of others.
	b := newFakeBucket(t, "other", "packed")
	s := b.open(t, Config{})
	o, err := s.Head(t.Context(), "packed")
	if err != nil {
		t.Fatal(err)
	}
	b.odd = func(w http.ResponseWriter, r *http.Request, key string) bool {
		return r.Method == http.MethodGet && transcodes("packed", false)(w, r, key)
	}
	body, err := s.Read(t.Context(), &o, 0, o.Size)
	if err == nil || body != nil || Away(err) || !Odd(err) || !OfOne(err) || errors.Is(err, hearth.ErrStale) && !errors.Is(err, errContradiction) ||
		!strings.Contains(Explain(err), "Cache-Control: no-transform") {
		t.Errorf("%v", err)
	}
	other, err := s.Head(t.Context(), "other")
	if err != nil {
		t.Fatal(err)
	}
	if err := readCheck(t.Context(), s, &other, 0, 1000, 1); err != nil {
		t.Error(err)
	}
}

func TestIfMatchThatIsRefused(t *testing.T) {
	// A server takes If-Match for a mistake, or never finds that it holds: objects are read without, which the first try
	// finds out, and a version that is gone is told by the answer.
	refused := func(status int, code string) func(http.ResponseWriter, *http.Request, string) bool {
		return func(w http.ResponseWriter, r *http.Request, _ string) bool {
			return r.Header.Get("If-Match") != "" && fakeError(w, status, code, "")
		}
	}
	for name, odd := range map[string]func(http.ResponseWriter, *http.Request, string) bool{
		"501": refused(501, "NotImplemented"), "501 empty": refused(501, ""), "400": refused(400, "InvalidArgument"),
		"400 of their own": refused(400, "ConditionsAreNothingForUs"), "412": refused(412, "PreconditionFailed"),
	} {
		for _, probed := range []bool{true, false} {
			if !probed && (name == "412" || name == "400 of their own") {
				continue // which a probe alone finds out
			}
			t.Run(fmt.Sprint(name, " ", probed), func(t *testing.T) {
				b := newFakeBucket(t, "k")
				b.odd = odd
				s := b.open(t, Config{})
				if probed {
					if can, err := s.Probe(t.Context()); err != nil || can.IfMatch || !can.Range || can.Passed != "" {
						t.Fatalf("%+v, %v", can, err)
					}
				}
				o, err := s.Head(t.Context(), "k")
				if err != nil {
					t.Fatal(err)
				}
				b.forget()
				for range 3 {
					if err := readCheck(t.Context(), s, &o, 0, 1000, 1); err != nil {
						t.Error(err)
					}
				}
				want := []string{"GET k", "GET k", "GET k"}
				if !probed {
					want = append([]string{`GET k "` + o.ETag + `"`}, want...)
				}
				if got := b.requests("If-Match"); !slices.Equal(got, want) {
					t.Errorf("%q, want %q", got, want)
				}
				b.mu.Lock()
				b.objects["k"] = fakeObject{data: content("k", 1000, 2)}
				b.mu.Unlock()
				if _, err := s.Read(t.Context(), &o, 0, 1000); !errors.Is(err, hearth.ErrStale) {
					t.Error(err)
				}
			})
		}
	}
}

func TestARefusalThatIsNoneOfIfMatch(t *testing.T) {
	// One object is refused with 400, with If-Match and without: others go on to be asked for by their versions.
	b := newFakeBucket(t, "bad", "k")
	b.odd = refuses("bad", 400, "InvalidRequest", "The object was stored using a form of Server Side Encryption.")
	s := b.open(t, Config{})
	for _, key := range []string{"bad", "k"} {
		o, err := s.Head(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		b.forget()
		body, err := s.Read(t.Context(), &o, 0, 10)
		if (err == nil) != (key == "k") {
			t.Error(err)
		}
		if err == nil {
			_, err = io.ReadAll(body)
			if got := b.requests("If-Match"); err != nil || len(got) != 1 || !strings.HasSuffix(got[0], o.ETag+`"`) {
				t.Errorf("%q, %v", got, err)
			}
			body.Close()
		} else if !OfOne(err) || !strings.Contains(Explain(err), "a key of its writer's own") {
			t.Error(Explain(err))
		}
	}
}
