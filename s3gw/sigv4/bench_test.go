package sigv4

import (
	"bytes"
	"io"
	"strings"
	"testing"
)

func BenchmarkVerify(b *testing.B) {
	for name, change := range map[string]func(*signer){
		"header":    func(*signer) {},
		"list":      func(s *signer) { s.target = "/bucket?list-type=2&prefix=a%2Fb%2F&delimiter=%2F&max-keys=1000" },
		"presigned": func(s *signer) { s.expires = 60 },
		"wrong":     func(s *signer) { s.secret = "x" },
	} {
		b.Run(name, func(b *testing.B) {
			s := newSigner("GET", "/bucket/some/usual%20key")
			change(s)
			r, v := s.request(b, ""), verifier(testTime())
			b.ReportAllocs()
			for b.Loop() {
				if _, err := v.Verify(r); (err == nil) != (name != "wrong") {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkBody(b *testing.B) {
	chunks := make([]string, 64)
	for i := range chunks {
		chunks[i] = strings.Repeat("x", 64<<10)
	}
	payload := strings.Join(chunks, "")
	signed, r := stream(b, chunks)
	raw := []byte(signed.chunked(chunks))
	for name, payloadWord := range map[string]string{"chunks": signedChunks, "hashed": sum(payload)} {
		b.Run(name, func(b *testing.B) {
			body := raw
			if name == "hashed" {
				s := newSigner("PUT", "/bucket/key")
				s.payload = payloadWord
				r, body = s.request(b, ""), []byte(payload)
				r.ContentLength = int64(len(payload))
			}
			v, buffer := verifier(testTime()), make([]byte, 64<<10)
			b.SetBytes(int64(len(payload)))
			b.ReportAllocs()
			for b.Loop() {
				r.Body = io.NopCloser(bytes.NewReader(body))
				s, err := v.Verify(r)
				if err != nil {
					b.Fatal(err)
				}
				from, total := s.Body(), 0
				for err == nil {
					var n int
					n, err = from.Read(buffer)
					total += n
				}
				if err != io.EOF || total != len(payload) {
					b.Fatal(total, err)
				}
			}
		})
	}
}
