package node

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/origin"
	"github.com/hearthfs/hearth/s3gw"
)

// s3Client asks a node's endpoint for a path of a host, with a key that may do everything.
type s3Client struct {
	*testing.T
	url string
}

// shows starts a node with an S3 endpoint.
func shows(t *testing.T, url string, change func(*Config)) *s3Client {
	t.Helper()
	c, _ := showsNode(t, url, change)
	return c
}

// showsNode is shows, and also returns the node.
func showsNode(t *testing.T, url string, change func(*Config)) (*s3Client, *Node) {
	t.Helper()
	keys := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(keys, []byte("all all-of-it-secret rw *\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	n := start(t, url, func(c *Config) {
		c.S3.Listen, c.S3.CredentialsFile = "127.0.0.1:0", keys
		if change != nil {
			change(c)
		}
	})
	return &s3Client{t, "http://" + n.s3.Summary().Listen}, n
}

// ask sends a request for a path of a host. An empty host means the address itself.
func (s *s3Client) ask(method, host, target, body string) (status int, text string) {
	s.Helper()
	r, err := http.NewRequestWithContext(s.Context(), method, s.url+target, strings.NewReader(body))
	if err != nil {
		s.Fatal(err)
	}
	if host != "" {
		r.Host = host
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(origin.Sign(r, "all", "all-of-it-secret", "us-east-1"))
	if err != nil {
		s.Fatal(err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		s.Error(err)
	}
	return resp.StatusCode, string(got)
}

func TestBucketsAsHosts(t *testing.T) {
	// A node is configured with a domain. Its buckets are hosts below the domain, with any port, and are in
	// the path for all other hosts. A host below the domain that is no bucket has none.
	s := shows(t, bucket(t, map[string]string{"data/k": "of data/k", "k": "of k"}), func(c *Config) { c.S3.Domains = []string{"s3.example.org"} })
	for _, x := range []struct {
		host, target string
		status       int
		text         string
	}{
		{"data.s3.example.org", "/k", 200, "of k"},
		{"data.s3.example.org:9875", "/data/k", 200, "of data/k"},
		{"DATA.S3.example.org", "/k", 200, "of k"},
		{"s3.example.org", "/data/k", 200, "of k"},
		{"", "/data/data/k", 200, "of data/k"},
		{"data.s3.example.org", "/?list-type=2", 200, "<Key>data/k</Key>"},
		{"data.s3.example.org", "/none", 404, "NoSuchKey"},
		{"other.s3.example.org", "/data/k", 404, "NoSuchBucket"},
	} {
		if status, text := s.ask("GET", x.host, x.target, ""); status != x.status || !strings.Contains(text, x.text) {
			t.Errorf("%s%s: %d %s, want %d with %s", x.host, x.target, status, text, x.status, x.text)
		}
	}
	if status, text := s.ask("PUT", "data.s3.example.org", "/new", "new"); status != 200 {
		t.Errorf("a write: %d %s", status, text)
	}
	if status, text := s.ask("GET", "", "/data/new", ""); status != 200 || text != "new" {
		t.Errorf("what was written: %d %s", status, text)
	}
}

func TestALinkWhoseBucketIsConfigured(t *testing.T) {
	// A link says that its bucket may be configured. The request then gets to the bucket, which asks for a
	// checksum. Without the setting, the node refuses the request.
	const tags = "<Tagging><TagSet></TagSet></Tagging>"
	for may, want := range map[bool]string{true: "Content-MD5", false: "links[].configure"} {
		s := shows(t, bucket(t, nil), func(c *Config) { c.Links[0].Configure = may })
		if status, text := s.ask("PUT", "", "/data?tagging", tags); status/100 != 4 || !strings.Contains(text, want) {
			t.Errorf("configure %v: %d %s", may, status, text)
		}
	}
}

func TestTheMostDeletesOfARequest(t *testing.T) {
	// One request deletes a thousand keys, some of them in directories that are known, and one that never
	// existed. A request with one key more is refused as a whole.
	objects := map[string]string{"stays": "x"}
	var all, more strings.Builder
	for i := range 1001 {
		key := fmt.Sprintf("d%d/%04d", i%3, i)
		if i < 60 {
			objects[key] = "x"
		}
		if i < 1000 {
			fmt.Fprintf(&all, "<Object><Key>%s</Key></Object>", key)
		}
		fmt.Fprintf(&more, "<Object><Key>%s</Key></Object>", key)
	}
	s := shows(t, bucket(t, objects), nil)
	if status, text := s.ask("GET", "", "/data?list-type=2", ""); status != 200 || strings.Count(text, "<Key>") != len(objects) {
		t.Fatalf("before: %d %s", status, text)
	}
	if status, text := s.ask("POST", "", "/data?delete=", "<Delete>"+more.String()+"</Delete>"); status != 400 || !strings.Contains(text, "MalformedXML") {
		t.Errorf("1,001 keys: %d %.300s", status, text)
	}
	if status, text := s.ask("GET", "", "/data/d0/0000", ""); status != 200 {
		t.Errorf("after what was refused: %d %s", status, text)
	}
	if status, text := s.ask("POST", "", "/data?delete=", "<Delete>"+all.String()+"</Delete>"); status != 200 || strings.Count(text, "<Deleted>") != 1000 {
		t.Errorf("1,000 keys: %d %.300s", status, text)
	}
	if status, text := s.ask("GET", "", "/data?list-type=2", ""); status != 200 || strings.Count(text, "<Key>") != 1 || !strings.Contains(text, "<Key>stays</Key>") {
		t.Errorf("after: %d %s", status, text)
	}
}

func TestANodeWithTwoBucketsOfOneName(t *testing.T) {
	// Two links lead to buckets of one name at two servers. A node that is to show both to S3 clients does
	// not start, and names them.
	url, other := bucket(t, nil), hearthtest.StartFakeS3(t)
	other.Bucket(t, "data")
	_, err := New(t.Context(), Config{S3: s3gw.Setup{Listen: "127.0.0.1:0", Anonymous: []string{"*"}},
		Links: []Link{{Path: "/one", Origin: Origin{URL: url}}, {Path: "/two", Origin: Origin{URL: url, Endpoint: other.Endpoint, PathStyle: "on", Anonymous: true}}},
		Cache: Cache{RAM: Size{Bytes: 32 << 20}, NoDisk: true}, Admin: Admin{Socket: filepath.Join(t.TempDir(), "run", "s"), Listen: "127.0.0.1:0"}, Log: slog.New(slog.DiscardHandler)})
	var refused *admin.Error
	if !errors.As(err, &refused) || refused.Kind != admin.KindRefused || !strings.Contains(refused.Message, "/one ") || !strings.Contains(refused.Message, "/two ") {
		t.Errorf("it starts: %v", err)
	}
}
