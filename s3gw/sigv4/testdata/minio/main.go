// Command minio writes minio.json: requests that minio-go signed, for the tests to verify. It
// stands in testdata since minio-go belongs to another package.
//
//	go run ./s3gw/sigv4/testdata/minio > s3gw/sigv4/testdata/minio.json
package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/minio/minio-go/v7/pkg/s3utils"
	"github.com/minio/minio-go/v7/pkg/signer"
)

const access, secret, region = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "eu-west-3"

type vector struct {
	Name string `json:"name"`
	At   int64  `json:"at"`
	Raw  []byte `json:"raw"`
}

// hasher is a hash that can be closed, as minio-go wants.
type hasher struct{ hash.Hash }

func (hasher) Close() {}

func request(method, key, query, body string) *http.Request {
	u := &url.URL{Scheme: "http", Host: "127.0.0.1:9000", Path: "/bucket/" + key, RawPath: s3utils.EncodePath("/bucket/" + key), RawQuery: query}
	r, err := http.NewRequest(method, u.String(), strings.NewReader(body))
	if err != nil {
		panic(err)
	}
	r.URL = u
	return r
}

func wire(name string, r *http.Request) vector {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\n", r.Method, r.URL.RequestURI(), r.Host)
	if r.ContentLength > 0 {
		fmt.Fprintf(&b, "Content-Length: %d\r\n", r.ContentLength)
	}
	_ = r.Header.Write(&b)
	b.WriteString("\r\n")
	if r.Body != nil {
		if _, err := io.Copy(&b, r.Body); err != nil {
			panic(err)
		}
	}
	return vector{name, time.Now().Unix(), b.Bytes()}
}

func main() {
	var vectors []vector
	for _, key := range []string{"plain", "a+b", "a b", "a%b", "a%2Fb", "//two//slashes/", "../up/./x", "ünïcødé/日本", "q?x&y=z#f", "~tilde-_.!*'();:@=,$[]"} {
		query := url.Values{"prefix": {key}, "delimiter": {"/"}, "uploads": {""}}.Encode()
		r := request("PUT", key, query, "body of "+key)
		sum := sha256.Sum256([]byte("body of " + key))
		r.Header.Set("X-Amz-Content-Sha256", hex.EncodeToString(sum[:]))
		r.Header.Set("X-Amz-Meta-Spaced", "  a   b  c ")
		vectors = append(vectors, wire("header "+key, signer.SignV4(*r, access, secret, "", region)))
		vectors = append(vectors, wire("presigned "+key, signer.PreSignV4(*request("GET", key, query, ""), access, secret, "", region, 600)))
	}
	for _, body := range []string{"x", strings.Repeat("0123456789", 100)} {
		r := request("PUT", "stream", "", body)
		vectors = append(vectors, wire("chunks", signer.StreamingSignV4(r, access, secret, "", region, int64(len(body)), time.Now().UTC(), hasher{sha256.New()})))
		r = request("PUT", "stream", "", body)
		r.Trailer = http.Header{"X-Amz-Checksum-Crc32": {"AAAAAA=="}}
		vectors = append(vectors, wire("chunks and trailer", signer.StreamingSignV4(r, access, secret, "", region, int64(len(body)), time.Now().UTC(), hasher{sha256.New()})))
		r = request("PUT", "stream", "", body)
		r.Header.Set("X-Amz-Content-Sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER")
		vectors = append(vectors, wire("unsigned trailer", signer.SignV4Trailer(*r, access, secret, "", region, http.Header{"X-Amz-Checksum-Crc32": {"AAAAAA=="}})))
	}
	enc := json.NewEncoder(os.Stdout)
	enc.SetIndent("", "")
	if err := enc.Encode(vectors); err != nil {
		panic(err)
	}
}
