package request

import (
	"bufio"
	"net/http"
	"os"
	"strings"
	"testing"
)

func TestRealClients(t *testing.T) {
	// What boto3 1.43, aws 1.45, mc, rclone and s3cmd sent to MinIO for copies, listings, ranges
	// and deletes is understood, request by request. Each of their plain reads is Cached.
	text, err := os.ReadFile("testdata/clients.txt")
	if err != nil {
		t.Fatal(err)
	}
	heads := strings.Split(strings.TrimSpace(string(text)), "\n\n")
	for _, head := range heads {
		want, head, _ := strings.Cut(strings.TrimPrefix(head, "# "), "\n")
		line, headers, _ := strings.Cut(head, "\n")
		raw := line + " HTTP/1.1\r\n" + strings.ReplaceAll(headers, "\n", "\r\n") + "\r\n\r\n"
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(raw)))
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if got := brief(Parse(r, Options{})); got != want {
			t.Errorf("%s: %s, want %s", line, got, want)
		}
	}
	if len(heads) < 40 {
		t.Errorf("%d requests", len(heads))
	}
}
