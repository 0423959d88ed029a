package node

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/warmup"
)

// listing is the address of a server in front of s that rewrites its listings.
func listing(t *testing.T, s *hearthtest.Server, what *regexp.Regexp, by string) string {
	t.Helper()
	to, err := url.Parse(s.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	way := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to); r.Out.Host = r.In.Host }}
	transport := &http.Transport{}
	way.Transport, way.ErrorLog = transport, log.New(io.Discard, "", 0)
	way.ModifyResponse = func(resp *http.Response) error {
		if !resp.Request.URL.Query().Has("list-type") {
			return nil
		}
		text, err := io.ReadAll(resp.Body)
		text = what.ReplaceAll(text, []byte(by))
		resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
		resp.Header.Set("Content-Length", strconv.Itoa(len(text)))
		return err
	}
	at := httptest.NewServer(way)
	t.Cleanup(func() {
		at.Close()
		transport.CloseIdleConnections()
	})
	return at.URL
}

func TestAnOriginWhoseListingsAreWrong(t *testing.T) {
	// Listings name other ETags than reads do, or no sizes. Warm-up loads each file by one request, finds
	// it the next time, and checks it. du sums up the real sizes, and S3 clients see the origin's own
	// listings. If ETags differ, status says what that costs.
	for name, c := range map[string]struct {
		what, by string
		warns    string
	}{
		"ETags": {`(<ETag>(?:&quot;|&#34;|")?)([0-9a-f]{32})`, "${1}x${2}", "listings of s3://data name other versions than HEADs (d/f"},
		"sizes": {`<Size>[0-9]*</Size>`, "<Size>0</Size>", ""},
	} {
		t.Run(name, func(t *testing.T) {
			server := hearthtest.StartS3(t)
			data := server.Bucket(t, "data")
			objects := map[string]string{}
			sum := int64(0)
			for i := range 30 {
				key := fmt.Sprintf("d/f%02d", i)
				objects[key] = strings.Repeat(key, 1+i*50)
				sum += int64(len(objects[key]))
			}
			fill(t, server, data, objects)
			endpoint := listing(t, server, regexp.MustCompile(c.what), c.by)
			client3, n := showsNode(t, "s3://data", func(x *Config) {
				withDisk(filepath.Join(t.TempDir(), "cache"), 64<<20)(x)
				x.Links[0].Origin.Endpoint = endpoint
				x.Links[0].Freshness = "bounded(1h)"
			})
			before := n.Status(t.Context())
			if warns := strings.Join(before.Warnings, "\n"); (warns != "") != (c.warns != "") || !strings.HasPrefix(warns, c.warns) || len(before.Problems) > 0 {
				t.Errorf("status says %q, %q", before.Warnings, before.Problems)
			}
			api := client(t, n)
			all := warmup.Tally{Files: 30, Bytes: sum}
			v := ended(t, api, warmup.Request{Targets: []string{"/d"}}, "")
			if v.State != warmup.Done || v.Counters.Done != all || v.Counters.Sum() != all || v.Plan.Total != all {
				t.Errorf("%+v", v)
			}
			if gets := n.Status(t.Context()).Origin.Verbs["get"] - before.Origin.Verbs["get"]; gets != 30 {
				t.Errorf("%d GETs for 30 files", gets)
			}
			if v := ended(t, api, warmup.Request{Targets: []string{"/d"}}, ""); v.State != warmup.Done || v.Counters.Present != all {
				t.Errorf("again: %+v", v)
			}
			if v := ended(t, api, warmup.Request{Targets: []string{"/d"}, Check: true}, ""); v.State != warmup.Done || v.Counters.Sum() != all || v.Counters.Changed.Files > 0 {
				t.Errorf("a check: %+v", v)
			}
			if u, err := api.Usage(t.Context(), "/d"); err != nil || u.Files != 30 || u.Bytes != sum {
				t.Errorf("du: %+v, %v", u, err)
			}
			status, text := client3.ask("GET", "", "/data?list-type=2&prefix=d/&delimiter=/", "")
			if keys := strings.Count(text, "<Key>"); status != 200 || keys != 30 || name == "ETags" && strings.Count(text, "x") < 30 {
				t.Errorf("a listing: %d, %s", status, text)
			}
			if status, text := client3.ask("GET", "", "/data/d/f07", ""); status != 200 || text != objects["d/f07"] {
				t.Errorf("a GET: %d, %d bytes", status, len(text))
			}
		})
	}
}
