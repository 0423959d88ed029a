package node

import (
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/hearthfs/hearth/node/admin"
)

func TestOriginsAreToldProgramAndVersion(t *testing.T) {
	// Every request of a node, probes included, carries the user agent hearth/VERSION, with the version
	// that the node was given.
	var mu sync.Mutex // guards agents
	agents := map[string]int{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		agents[r.UserAgent()]++
		mu.Unlock()
		_, _ = io.WriteString(w, "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>")
	}))
	t.Cleanup(server.Close)
	const version = "7.8.9"
	n := start(t, "", func(c *Config) {
		c.Version = version
		c.Links = []Link{{Path: "/", Origin: Origin{URL: "s3://bucket", Endpoint: server.URL, Region: "us-east-1", PathStyle: "on", Anonymous: true}}}
	})
	if _, err := client(t, n).List(t.Context(), "/", false, func(admin.Entry) error { return nil }); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(agents) != 1 || agents["hearth/"+version] == 0 {
		t.Errorf("user agents %v", agents)
	}
}
