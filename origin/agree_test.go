package origin

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/hearthfs/hearth"
)

// fakeTwoTongues is a bucket of one object, k, of which LIST, HEAD and GET say what they like.
type fakeTwoTongues struct {
	list, head, get string // ETags, as they stand in an answer; "": none
	size            string // in a listing; "-": none
	takesAll        bool   // it ignores If-Match
}

const tongues = "0123456789"

func (f *fakeTwoTongues) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	etag := map[string]string{http.MethodHead: f.head, http.MethodGet: f.get}[r.Method]
	switch {
	case r.URL.Query().Has("list-type"):
		size := "<Size>" + f.size + "</Size>"
		if f.size == "-" {
			size = ""
		}
		_, _ = fmt.Fprintf(w, "<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>k</Key><ETag>%s</ETag>%s</Contents></ListBucketResult>", f.list, size)
	case r.Header.Get("If-Match") != "" && r.Header.Get("If-Match") != etag && !f.takesAll:
		w.WriteHeader(http.StatusPreconditionFailed)
	default:
		r.Header.Del("If-Match")
		if etag != "" {
			w.Header().Set("ETag", etag)
		}
		http.ServeContent(w, r, "k", time.Unix(1_700_000_000, 0), strings.NewReader(tongues))
	}
}

func (f *fakeTwoTongues) probe(t *testing.T) (Abilities, error) {
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	o := open(t, Config{URL: "s3://b", Endpoint: server.URL, Anonymous: true, Retry: Retry{Attempts: 2}})
	return o.Probe(t.Context())
}

func TestAProbeComparesListingHeadAndGet(t *testing.T) {
	// Listings that name another version than is read are no obstacle where HEADs name it, and are told of. Where HEAD and GET name two,
	// no version can be read by: the origin is refused, with a line that says so. A file that is listed without a size is tried, too.
	const a, b, weak = `"a"`, `"b"`, `W/"a"`
	for name, c := range map[string]struct {
		f       fakeTwoTongues
		differs bool
		refused error
	}{
		"all agree":              {fakeTwoTongues{a, a, a, "10", false}, false, nil},
		"another ETag listed":    {fakeTwoTongues{b, a, a, "10", false}, true, nil},
		"no ETag listed":         {fakeTwoTongues{"", a, a, "10", false}, true, nil},
		"a weak one listed":      {fakeTwoTongues{weak, a, a, "10", false}, true, nil},
		"a weak one else":        {fakeTwoTongues{a, weak, weak, "10", true}, true, nil},
		"none else":              {fakeTwoTongues{a, "", "", "10", true}, true, nil},
		"another size listed":    {fakeTwoTongues{a, a, a, "11", false}, true, nil},
		"a smaller size listed":  {fakeTwoTongues{a, a, a, "9", false}, true, nil},
		"no If-Match":            {fakeTwoTongues{b, a, a, "10", true}, true, nil},
		"size 0":                 {fakeTwoTongues{a, a, a, "0", false}, false, nil},
		"no size":                {fakeTwoTongues{a, a, a, "-", false}, false, nil},
		"HEAD is the odd one":    {fakeTwoTongues{a, b, a, "10", false}, true, errHeads},
		"HEAD has none":          {fakeTwoTongues{a, "", a, "10", false}, true, errHeads},
		"HEAD, without If-Match": {fakeTwoTongues{a, b, a, "10", true}, true, errHeads},
		"GET, with If-Match":     {fakeTwoTongues{a, a, b, "10", false}, false, errHeads},
		"GET is the odd one":     {fakeTwoTongues{a, a, b, "10", true}, false, errContradiction},
		"GET has none":           {fakeTwoTongues{a, a, "", "10", true}, false, errContradiction},
	} {
		can, err := c.f.probe(t)
		if !errors.Is(err, c.refused) {
			t.Errorf("%s: %v", name, err)
		}
		if c.refused != nil {
			if problem, cure := Diagnose(err); !strings.Contains(problem, "contradicts itself") || !strings.Contains(problem, "s3://b/k") || cure == "" {
				t.Errorf("%s: %s; %s", name, problem, cure)
			}
			continue
		}
		if differs := can.Listed != nil && can.Listed.Version != can.Told.Version; differs != c.differs || !can.Objects || !can.Range {
			t.Errorf("%s: %+v, %+v, %+v", name, can, can.Listed, can.Told)
		}
		if can.Told == nil || can.Told.Size != int64(len(tongues)) || can.Told.Vague() {
			t.Errorf("%s: %+v", name, can.Told)
		}
	}
}

func TestWhatIsVague(t *testing.T) {
	// A listing's word is not enough that an object is empty under the ETag of what is not.
	for _, c := range []struct {
		size  int64
		etag  string
		vague bool
	}{{0, "a", true}, {0, "", true}, {0, "d41d8cd98f00b204e9800998ecf8427e", false}, {1, "", false}, {hearth.PrefixSize, "", false}} {
		if o := (hearth.Object{Size: c.size, ETag: c.etag}); o.Vague() != c.vague {
			t.Errorf("%+v", c)
		}
	}
}
