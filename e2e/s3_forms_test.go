package e2e

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"
)

// stamp is the form of times in signatures, and nothingSum the SHA-256 of nothing.
const (
	stamp      = "20060102T150405Z"
	nothingSum = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
)

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}

// seal signs a text by a secret, for a day.
func seal(secret, day, text string) string {
	key := []byte("AWS4" + secret)
	for _, part := range []string{day, "us-east-1", "s3", "aws4_request"} {
		key = mac(key, part)
	}
	return hex.EncodeToString(mac(key, text))
}

func sumOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// presign is the target of a URL that may be used for so many seconds.
func (p *endpoint) presign(method, path string, at time.Time, seconds int) string {
	now := at.UTC().Format(stamp)
	scope := now[:8] + "/us-east-1/s3/aws4_request"
	query := fmt.Sprintf("X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=%s&X-Amz-Date=%s&X-Amz-Expires=%d&X-Amz-SignedHeaders=host", url.QueryEscape(p.access+"/"+scope), now, seconds)
	canonical := fmt.Sprintf("%s\n%s\n%s\nhost:%s\n\nhost\nUNSIGNED-PAYLOAD", method, path, query, strings.TrimPrefix(p.url, "http://"))
	return path + "?" + query + "&X-Amz-Signature=" + seal(p.secret, now[:8], "AWS4-HMAC-SHA256\n"+now+"\n"+scope+"\n"+sumOf(canonical))
}

// plainly sends a request that has its signature, if any, in its target.
func (p *endpoint) plainly(method, target, body string) (int, string) {
	return p.raw(fmt.Sprintf("%s %s HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", method, target, strings.TrimPrefix(p.url, "http://"), len(body), body))
}

// presigned uses URLs for what they are not.
func (p *endpoint) presigned() {
	p.Helper()
	now := time.Now()
	right := p.presign("GET", "/data/kept", now, 600)
	if status, answer := p.plainly("GET", right, ""); status != 200 || !strings.HasSuffix(answer, "kept ") {
		p.Errorf("a presigned URL: %d %.300s", status, answer)
	}
	for what, x := range map[string]struct{ method, target, code string }{
		"expired":            {"GET", p.presign("GET", "/data/kept", now.Add(-time.Hour), 60), "AccessDenied"},
		"not yet valid":      {"GET", p.presign("GET", "/data/kept", now.Add(time.Hour), 60), "AccessDenied"},
		"for longer":         {"GET", strings.Replace(right, "Expires=600", "Expires=6000", 1), "SignatureDoesNotMatch"},
		"of another key":     {"GET", strings.Replace(right, "/data/kept", "/data/secret", 1), "SignatureDoesNotMatch"},
		"with a parameter":   {"GET", right + "&versionId=null", "SignatureDoesNotMatch"},
		"to write":           {"PUT", right, "SignatureDoesNotMatch"},
		"to delete":          {"DELETE", right, "SignatureDoesNotMatch"},
		"to write elsewhere": {"PUT", strings.Replace(right, "/data/kept", "/data/presigned", 1), "SignatureDoesNotMatch"},
	} {
		if status, answer := p.plainly(x.method, x.target, ""); status != 403 || !strings.Contains(answer, "<Code>"+x.code+"<") {
			p.Errorf("a presigned URL %s: %d %.300s", what, status, answer)
		}
	}
}

// chunked is an upload in signed chunks: its head, as it was signed, and its body, with a checksum
// behind it if it has a trailer.
func (p *endpoint) chunked(c *s3Client, key, text string, decoded int, trailer bool) (ask s3Ask, sign func(head string) string) {
	ask = s3Ask{method: "PUT", bucket: "data", path: key, header: http.Header{"X-Amz-Content-Sha256": {"STREAMING-AWS4-HMAC-SHA256-PAYLOAD"}, "X-Amz-Decoded-Content-Length": {fmt.Sprint(decoded)}, "Content-Encoding": {"aws-chunked"}}}
	if trailer {
		ask.header.Set("X-Amz-Content-Sha256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER")
		ask.header.Set("X-Amz-Trailer", "x-amz-checksum-crc32")
	}
	return ask, func(head string) string {
		at := regexp.MustCompile(`(?i)x-amz-date: (\S+)`).FindStringSubmatch(head)[1]
		last := regexp.MustCompile(`Signature=([0-9a-f]{64})`).FindStringSubmatch(head)[1]
		form := payload{signed: true, size: max(1, len(text)/2)}
		if trailer {
			form.trailer = "x-amz-checksum-crc32:" + checksum("x-amz-checksum-crc32", text)
		}
		return form.framed(&chunkSigner{p.secret, at, last}, text)
	}
}

// neverKept are the keys of uploads that were refused.
func neverKept() (keys []string) {
	for _, trailer := range []bool{false, true} {
		for _, how := range []string{"closed", "ended", "more", "less", "changed"} {
			keys = append(keys, fmt.Sprintf("/chunks-%s-%v", how, trailer))
		}
	}
	return append(keys, "/presigned", "/overflow", "/extension", "/bare", "/completed")
}

// truncated sends signed chunks that end early: with the connection, with the request, and by a length
// that is not theirs. Whole ones are taken.
func (p *endpoint) truncated(c *s3Client) {
	p.Helper()
	const text = "some text that comes in two chunks"
	for _, trailer := range []bool{false, true} {
		send := func(how string, decoded int, change func(body string) string) (int, string) {
			ask, sign := p.chunked(c, fmt.Sprintf("/chunks-%s-%v", how, trailer), text, decoded, trailer)
			head := p.wire(c, ask, "")
			whole := sign(head)
			body := change(whole)
			n := len(body)
			if how == "closed" {
				n = len(whole)
			}
			head = strings.Replace(head, "Connection: close\r\n", fmt.Sprintf("Content-Length: %d\r\nConnection: close\r\n", n), 1)
			if how != "closed" {
				return p.raw(head + body)
			}
			conn := p.dial()
			_, err := conn.Write([]byte(head + body))
			p.must(err, "send a part of the chunks")
			p.must(conn.Close(), "go away")
			return 0, ""
		}
		same := func(body string) string { return body }
		half := func(body string) string { return body[:len(body)/2] }
		if status, answer := send("whole", len(text), same); status != 200 {
			p.Errorf("chunks that are right: %d %.300s", status, answer)
		}
		if got := p.wants(c, 200, s3Ask{method: "GET", bucket: "data", path: fmt.Sprintf("/chunks-whole-%v", trailer)}); string(got.body) != text {
			p.Errorf("chunks that are right: the object is %q", got.body)
		}
		send("closed", len(text), half)
		for how, x := range map[string]struct {
			decoded, status int
			change          func(string) string
		}{
			"ended":   {len(text), 400, half},
			"more":    {len(text) - 1, 400, same},
			"less":    {len(text) + 1, 400, same},
			"changed": {len(text), 403, func(body string) string { return strings.Replace(body, "some", "same", 1) }},
		} {
			if status, answer := send(how, x.decoded, x.change); status != x.status {
				p.Errorf("chunks %s, trailer %v: %d and not %d: %.300s", how, trailer, status, x.status, answer)
			}
		}
	}
}

// malformed sends requests that are not formed as HTTP, or at its edges.
func (p *endpoint) malformed(good *s3Client) {
	p.Helper()
	get, put := s3Ask{method: "GET", bucket: "data", path: "/kept"}, func(key string) s3Ask { return s3Ask{method: "PUT", bucket: "data", path: key} }
	coded := "Transfer-Encoding: chunked" // MinIO wants a length (411), before anything of the body is read
	for what, x := range map[string]struct {
		text     string
		statuses []int
	}{
		"bare line feeds":          {strings.ReplaceAll(p.wire(good, get, ""), "\r\n", "\n"), []int{200, 400}}, // RFC 9112, 2.2: either
		"NUL in the target":        {strings.Replace(p.wire(good, get, ""), "/kept", "/ke\x00pt", 1), []int{400}},
		"NUL in a header":          {p.wire(good, get, "", "X-Nul: a\x00b"), []int{400}},
		"a target of 64 KiB":       {"GET /data/" + strings.Repeat("x", 64<<10) + " HTTP/1.1\r\nHost: x\r\n\r\n", []int{414, 431}},
		"a chunk that overflows":   {p.wire(good, put("/overflow"), "fffffffffffffffff\r\nhello\r\n0\r\n\r\n", coded), []int{400, 411}},
		"a negative chunk":         {p.wire(good, put("/overflow"), "-5\r\nhello\r\n0\r\n\r\n", coded), []int{400}},
		"an endless extension":     {p.wire(good, put("/extension"), "5;x="+strings.Repeat("y", 32<<10)+"\r\nhello\r\n0\r\n\r\n", coded), []int{400}},
		"chunks by bare lines":     {p.wire(good, put("/bare"), "5\nhello\n0\n\n", coded), []int{400}},
		"a chunk longer than told": {p.wire(good, put("/overflow"), "3\r\nhello\r\n0\r\n\r\n", coded), []int{400, 411}},
	} {
		status, answer := p.raw(x.text)
		ok := strings.Count(answer, "HTTP/1.1 ") == 1
		for _, s := range x.statuses {
			if s == status && ok {
				ok, status = true, 0
			}
		}
		if status != 0 || !ok {
			p.Errorf("%s: %d and none of %v: %.300s", what, status, x.statuses, answer)
		}
	}
	if got := p.wants(good, 400, s3Ask{method: "GET", bucket: "data", path: "/" + strings.Repeat("k", 1025)}); got.code() != "KeyTooLongError" {
		p.Errorf("a key of 1,025 bytes: %s", got.body)
	}
	for value, status := range map[string]int{"bytes=500-": 416, "bytes=-0": 416, "bytes=5-2": 200, "bytes=a-b": 200, "items=0-1": 200, "bytes=9223372036854775807-": 416,
		"bytes=0-9223372036854775807": 206, "bytes=18446744073709551616-": 200, "bytes=0-3": 206} {
		a := get
		a.header = http.Header{"Range": {value}}
		got, err := good.do(p.ctx, a)
		p.must(err, "ask for %s", value)
		if value == "bytes=5-2" && isMinIO(got) {
			status = 416 // its own answer, and not the void range of RFC 9110, 14.1.1
		}
		if got.status != status || status == 200 && len(got.body) != 500 || status == 206 && !strings.HasPrefix("kept kept ", string(got.body)[:4]) {
			p.Errorf("the range %s: %d and not %d: %d bytes", value, got.status, status, len(got.body))
		}
	}
}

// documents sends what is no XML, or more than it seems.
func (p *endpoint) documents(good *s3Client) {
	p.Helper()
	bomb := `<!DOCTYPE x [<!ENTITY a "kept">`
	for c := 'b'; c < 'l'; c++ {
		bomb += fmt.Sprintf(`<!ENTITY %c "%s">`, c, strings.Repeat(fmt.Sprintf("&%c;", c-1), 10))
	}
	bomb += "]>"
	for what, body := range map[string]string{
		"no XML":             "delete it all",
		"nothing":            "",
		"a document cut off": "<Delete><Object><Key>kept</Key></Object>",
		"an entity bomb":     bomb + "<Delete><Object><Key>&k;</Key></Object></Delete>",
		"a file's entity":    `<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/hostname">]><Delete><Object><Key>&e;</Key></Object></Delete>`,
		"an unknown entity":  "<Delete><Object><Key>&kept;</Key></Object></Delete>",
		"two documents":      "<Delete><Object><Key>no</Key></Object></Delete><Delete><Object><Key>kept</Key></Object></Delete>",
	} {
		if got := p.wants(good, 400, s3Ask{method: "POST", bucket: "data", query: "delete=", body: body}); got.code() != "MalformedXML" {
			p.Errorf("%s: %.300s", what, got.body)
		}
		body = strings.NewReplacer("Delete", "CompleteMultipartUpload", "Object", "Part", "Key", "ETag").Replace(body)
		got, err := good.do(p.ctx, s3Ask{method: "POST", bucket: "data", path: "/completed", query: "uploadId=none", body: body})
		if p.must(err, "complete by %s", what); got.status < 400 {
			p.Errorf("completed by %s: %d %.300s", what, got.status, got.body)
		}
	}
}
