package origin

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"
)

func TestEachGetNamesItsVersion(t *testing.T) {
	// An object with a strong ETag is read, and its body is cut off once: both requests say which version they want, in quotes, and for which bytes. Of a weak ETag nothing is said, nor with HEAD.
	var mu sync.Mutex // guards asked and cut
	var asked []string
	cut := true
	data := map[string][]byte{"/b/k": content("k", 1000, 1), "/b/weak": content("weak", 1000, 1)}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		asked = append(asked, fmt.Sprint(r.Method, " ", r.Header["If-Match"], " ", r.Header["Range"]))
		w.Header().Set("Etag", `"strong"`)
		if r.URL.Path == "/b/weak" {
			w.Header().Set("Etag", `W/"weak"`)
		}
		short := cut && r.Method == http.MethodGet
		cut = cut && !short
		mu.Unlock()
		var first, last int
		if _, err := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &first, &last); err != nil {
			w.Header().Set("Content-Length", "1000")
			return
		}
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/1000", first, last))
		w.Header().Set("Content-Length", fmt.Sprint(last+1-first))
		w.WriteHeader(http.StatusPartialContent)
		if short {
			_, _ = w.Write(data[r.URL.Path][first : first+400])
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
		_, _ = w.Write(data[r.URL.Path][first : last+1])
	}))
	t.Cleanup(s.Close)
	t.Setenv("AWS_ACCESS_KEY_ID", "a")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "b")
	o := open(t, Config{URL: "s3://b", Endpoint: s.URL, PathStyle: "on", Region: "us-east-1", Retry: Retry{First: time.Millisecond}})
	for key, want := range map[string][]string{
		"k":    {"HEAD [] []", `GET ["strong"] [bytes=100-999]`, `GET ["strong"] [bytes=500-999]`},
		"weak": {"HEAD [] []", "GET [] [bytes=100-999]", "GET [] [bytes=500-999]"},
	} {
		mu.Lock()
		asked, cut = nil, true
		mu.Unlock()
		object, err := o.Head(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		if err := readCheck(t.Context(), o, &object, 100, 900, 1); err != nil {
			t.Errorf("read %s: %v", key, err)
		}
		mu.Lock()
		if !slices.Equal(asked, want) {
			t.Errorf("%s was asked for by %q, not %q", key, asked, want)
		}
		mu.Unlock()
	}
}
