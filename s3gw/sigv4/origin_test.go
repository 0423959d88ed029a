package sigv4

import (
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

func TestOrigin(t *testing.T) {
	// A real S3 server takes the body made of signed chunks, with the headers from Rewrite. Without
	// a trailer that is the payload. With one it is unsigned chunks, whose checksum the server
	// checks and keeps.
	server := hearthtest.StartS3(t)
	bucket := server.Bucket(t, "chunks")
	for name, c := range map[string]struct {
		chunks   []string
		trailers []string
		want     string // what the server stores
	}{
		"payload":           {[]string{"hel", "lo"}, nil, ""},
		"nothing":           {nil, nil, ""},
		"trailer":           {[]string{"hel", "lo"}, []string{"x-amz-checksum-crc32:" + crcOfHello}, ""},
		"two frames":        {[]string{strings.Repeat("a", frameSize+10)}, []string{"x-amz-checksum-crc32:MCLPhA=="}, ""},
		"trailer, nothing":  {nil, []string{"x-amz-checksum-crc32c:AAAAAA=="}, ""},
		"sha256 as trailer": {[]string{"hello"}, []string{"x-amz-checksum-sha256:LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ="}, ""},
		"wrong trailer":     {[]string{"hello"}, []string{"x-amz-checksum-crc32:AAAAAA=="}, "BadDigest"},
	} {
		_, r := stream(t, c.chunks, c.trailers...)
		s, err := verifier(testTime()).Verify(r)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(s.Body())
		if err != nil {
			t.Fatal(err)
		}
		if n := s.Rewrite(r.Header); n != int64(len(body)) {
			t.Errorf("%s: %d bytes, told were %d", name, len(body), n)
		}
		path := "/" + bucket + "/" + url.PathEscape(name)
		status, text, _ := ask(t, server, "PUT", path, r.Header, string(body))
		if (status == http.StatusOK) != (c.want == "") || !strings.Contains(text, c.want) {
			t.Errorf("%s: %d %s", name, status, text)
			continue
		}
		status, text, header := ask(t, server, "GET", path, http.Header{"X-Amz-Checksum-Mode": {"ENABLED"}, "X-Amz-Content-Sha256": {unsignedPayload}}, "")
		if (status == http.StatusOK) != (c.want == "") || c.want == "" && text != strings.Join(c.chunks, "") || c.trailers == nil && header.Get("Content-Encoding") != "" {
			t.Errorf("%s: %d, %d bytes, %v", name, status, len(text), header)
		}
		for _, line := range c.trailers {
			if key, value, _ := strings.Cut(line, ":"); c.want == "" && header.Get(key) != value {
				t.Errorf("%s: %s is %q, want %q", name, key, header.Get(key), value)
			}
		}
	}
}

// ask sends a request to a server, signed for its account.
func ask(t *testing.T, server *hearthtest.Server, method, path string, header http.Header, body string) (int, string, http.Header) {
	t.Helper()
	at, err := url.Parse(server.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	s := newSigner(method, path)
	s.host, s.at, s.access, s.secret, s.payload = at.Host, time.Now().UTC(), server.AccessKey, server.SecretKey, header.Get("X-Amz-Content-Sha256")
	for name, values := range header {
		switch name {
		case "Authorization", "X-Amz-Date", "X-Amz-Content-Sha256", "Content-Length":
			continue
		}
		s.headers = append(s.headers, [2]string{strings.ToLower(name), strings.Join(values, ",")})
	}
	r := s.request(t, body)
	r.RequestURI, r.URL.Scheme, r.URL.Host = "", at.Scheme, at.Host
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	http.DefaultClient.CloseIdleConnections()
	return resp.StatusCode, string(text), resp.Header
}
