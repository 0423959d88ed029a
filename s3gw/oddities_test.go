package s3gw

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/hearthfs/hearth"
)

func TestHeadersWhereIfMatchIsRefused(t *testing.T) {
	// An origin takes If-Match for a mistake: an object's headers are asked for without, by who accepts what is stored, and
	// what they say is compared with the object. It is answered from the cache then.
	for _, status := range []int{http.StatusNotImplemented, http.StatusBadRequest} {
		s := newStand(t, nil, shownLink{bucket: "bucket"})
		s.put("bucket", "k", "text")
		var asked []string
		s.block(func(r *http.Request, forward func() (*http.Response, error)) (*http.Response, error) {
			asked = append(asked, r.Method+" "+r.Header.Get("If-Match")+" "+r.Header.Get("Accept-Encoding"))
			if r.Header.Get("If-Match") != "" {
				return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(""))}, nil
			}
			return forward()
		})
		s.gets(200, "text", "root", "GET", "/bucket/k", "")
		if len(asked) != 2 || !strings.HasPrefix(asked[0], `HEAD "`) || !strings.HasSuffix(asked[0], " gzip") || asked[1] != "HEAD  gzip" {
			t.Errorf("%d: %q", status, asked)
		}
	}
}

// archived is a source that has one archived object.
type archived struct {
	hearth.Getter
	key string
}

// Get is hearth.Getter's.
func (a archived) Get(ctx context.Context, b hearth.Block, off, n int) (*hearth.View, error) {
	if b.Object.Key == a.key {
		return nil, fmt.Errorf("get %s: %w", a.key, hearth.ErrArchived)
	}
	return a.Getter.Get(ctx, b, off, n)
}

func TestAnArchivedObjectIsToldAsSuch(t *testing.T) {
	// What is archived is told in a batch by S3's code, and the others come; of a GET the origin is asked, in whose words the
	// client hears of it.
	s := newStand(t, func(o *Options) { o.Source = archived{o.Source, "cold"} }, shownLink{bucket: "bucket"})
	s.put("bucket", "cold", "frozen")
	s.put("bucket", "warm", "text")
	resp, err := s.client.Do(s.request("root", "POST", "/bucket?hearth-batch", "cold\nwarm\n"))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines, _, ended := batchAnswer(t, resp.Body)
	if !ended || len(lines) != 2 || !strings.HasPrefix(lines[0], "403 0 InvalidObjectState") || !strings.HasPrefix(lines[1], "200 4 ") {
		t.Errorf("%q, ended %v", lines, ended)
	}
	s.went()
	s.ask("root", "GET", "/bucket/cold", "")
	if !slices.Contains(s.went(), "GET bucket/cold") {
		t.Error("the origin was not asked")
	}
}
