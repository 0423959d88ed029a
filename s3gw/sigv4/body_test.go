package sigv4

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// readers are ways in which a body may arrive; net/http's own returns the end with the last bytes.
func readers() map[string]func(io.Reader) io.Reader {
	return map[string]func(io.Reader) io.Reader{
		"as it is": func(r io.Reader) io.Reader { return r }, "byte by byte": iotest.OneByteReader,
		"halves": iotest.HalfReader,
	}
}

const crcOfHello = "NhCmhg==" // CRC-32 of "hello"

func TestChunks(t *testing.T) {
	// Signed chunks of any sizes yield their payload, however they arrive. With a trailer they go
	// on as unsigned chunks with that trailer, of the announced length.
	big := strings.Repeat("0123456789abcdef", frameSize/16*2+9)
	for name, c := range map[string]struct {
		chunks   []string
		trailers []string
	}{
		"one": {[]string{"hello"}, nil}, "none": {nil, nil}, "three": {[]string{"a", strings.Repeat("b", 70000), "cc"}, nil}, "big": {[]string{big}, nil},
		"one and trailer":      {[]string{"hello"}, []string{"x-amz-checksum-crc32:" + crcOfHello}},
		"none and trailer":     {nil, []string{"x-amz-checksum-crc32c:AAAAAA=="}},
		"two trailers":         {[]string{"hel", "lo"}, []string{"x-amz-checksum-crc32:" + crcOfHello, "x-amz-checksum-md5:XUFAKrxLKna5cZ2REBfFkg=="}},
		"big and trailer":      {[]string{big[:5], big[5:]}, []string{"x-amz-checksum-xxhash3:AAAAAAAAAAA="}},
		"a frame and trailer":  {[]string{big[:frameSize]}, []string{"x-amz-checksum-xxhash3:AAAAAAAAAAA="}},
		"sha512, not verified": {[]string{"x"}, []string{"x-amz-checksum-sha512:" + strings.Repeat("A", 86) + "=="}},
	} {
		for way, wrap := range readers() {
			if len(strings.Join(c.chunks, "")) > 100000 && way == "byte by byte" {
				continue
			}
			want := strings.Join(c.chunks, "")
			open := func() *Signed {
				_, r := stream(t, c.chunks, c.trailers...)
				r.Body = io.NopCloser(wrap(r.Body))
				s, err := verifier(testTime()).Verify(r)
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				return s
			}
			s := open()
			got, err := io.ReadAll(s.Payload())
			if err != nil || string(got) != want || s.Length != int64(len(want)) {
				t.Errorf("%s, %s: %d bytes of %d, %v", name, way, len(got), len(want), err)
			}
			s = open()
			if s.Trailer() != nil {
				t.Errorf("%s: trailers before the body was read", name)
			}
			got, err = io.ReadAll(s.Body())
			h := http.Header{"Content-Encoding": {"gzip, aws-chunked"}, "X-Amz-Trailer": {"x"}, "X-Amz-Decoded-Content-Length": {"x"}}
			if n := s.Rewrite(h); err != nil || n != int64(len(got)) || h.Get("Content-Length") != strconv.Itoa(len(got)) {
				t.Errorf("%s, %s: %d bytes where %d were told, %v", name, way, len(got), n, err)
			}
			if c.trailers == nil {
				if string(got) != want || fmt.Sprint(h) != fmt.Sprintf("map[Content-Encoding:[gzip] Content-Length:[%d] X-Amz-Content-Sha256:[UNSIGNED-PAYLOAD]]", len(want)) {
					t.Errorf("%s, %s: %v", name, way, h)
				}
				continue
			}
			checkFrames(t, name, got, want, c.trailers)
			if h.Get("X-Amz-Content-Sha256") != unsignedTrailing || h.Get("X-Amz-Trailer") != "x" || h.Get("Content-Encoding") != "gzip, aws-chunked" {
				t.Errorf("%s: %v", name, h)
			}
			for _, line := range c.trailers {
				key, value, _ := strings.Cut(line, ":")
				if s.Trailer()[key] != value {
					t.Errorf("%s: trailers %v", name, s.Trailer())
				}
			}
		}
	}
}

// checkFrames reads unsigned chunks by the documentation.
func checkFrames(t *testing.T, name string, frames []byte, want string, trailers []string) {
	t.Helper()
	var payload []byte
	for {
		line, rest, _ := bytes.Cut(frames, []byte("\r\n"))
		n, err := strconv.ParseInt(string(line), 16, 64)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if n == 0 {
			frames = rest
			break
		}
		payload, frames = append(payload, rest[:n]...), rest[n+2:]
	}
	if string(payload) != want || string(frames) != strings.Join(trailers, "\r\n")+"\r\n\r\n" {
		t.Errorf("%s: %d bytes of %d, trailers %q", name, len(payload), len(want), frames)
	}
}

func TestChunksChanged(t *testing.T) {
	// Signed chunks with a flipped bit, cut off anywhere, or with bytes behind their end never
	// yield io.EOF, nor the last of their bytes.
	for _, trailers := range [][]string{nil, {"x-amz-checksum-crc32:" + crcOfHello}} {
		signer, right := stream(t, []string{"he", "llo"}, trailers...)
		raw := signer.chunked([]string{"he", "llo"}, trailers...)
		check := func(what, body string) {
			for _, whole := range []bool{false, true} {
				r := right.Clone(t.Context())
				r.Body = io.NopCloser(strings.NewReader(body))
				s, err := verifier(testTime()).Verify(r)
				if err != nil {
					t.Fatal(err)
				}
				from := s.Body()
				if whole {
					from = s.Payload()
				}
				got, err := io.ReadAll(from)
				if err == nil && !(whole && string(got) == "hello" || !whole && strings.Contains(string(got), "hello")) {
					t.Errorf("%s: %q is taken for whole", what, got)
				}
				if err == nil && !strings.EqualFold(body, raw) && !strings.Contains(what, "may") {
					t.Errorf("%s: %q is accepted", what, body)
				}
				if err != nil && (strings.Contains(string(got), "hello") || strings.Contains(err.Error(), "EOF") && code(err) != "IncompleteBody") {
					t.Errorf("%s: all the bytes %q before %v", what, got, err)
				}
			}
		}
		for i := range raw {
			check(fmt.Sprintf("cut at %d", i), raw[:i])
			for bit := range 8 {
				b := []byte(raw)
				b[i] ^= 1 << bit
				check(fmt.Sprintf("bit %d of byte %d", bit, i), string(b))
			}
		}
		if at := strings.Index(raw, "x-amz-trailer-signature"); at > 0 {
			check("the trailer's signature twice", raw[:len(raw)-2]+raw[at:])
		}
		check("more", raw+"x")
		check("a chunk more", raw+"0\r\n")
		check("a line that may be more", raw+"\r\n")
		check("no last chunk", raw[:strings.Index(raw, "\r\n0;")]+"\r\n")
	}
}

func TestChunksWrong(t *testing.T) {
	// Each fault of chunks has its code.
	s, right := stream(t, []string{"hello"})
	raw := s.chunked([]string{"hello"})
	for name, c := range map[string]struct{ body, want string }{
		"truncated":         {raw[:90], "IncompleteBody"},
		"nothing":           {"", "IncompleteBody"},
		"no last chunk":     {raw[:strings.Index(raw, "0;")], "IncompleteBody"},
		"early last chunk":  {raw[strings.Index(raw, "0;"):], "IncompleteBody"},
		"bad size":          {"x" + raw[1:], "InvalidChunkSizeError"},
		"negative":          {"-" + raw, "InvalidChunkSizeError"},
		"huge":              {"ffffffffffffffff" + raw[1:], "InvalidChunkSizeError"},
		"more than told":    {"6" + raw[1:], "IncompleteBody"},
		"a chunk too many":  {s.chunked([]string{"hel", "lo", "x"}), "IncompleteBody"},
		"long header":       {strings.Repeat("0", maxChunkHeader) + raw, "InvalidRequest"},
		"endless header":    {strings.Repeat("0", 100000), "InvalidRequest"},
		"no signature":      {"5\r\nhello\r\n0\r\n\r\n", "InvalidRequest"},
		"short signature":   {"5;chunk-signature=ab\r\nhello\r\n", "InvalidRequest"},
		"wrong signature":   {strings.Replace(raw, "hello", "hallo", 1), "SignatureDoesNotMatch"},
		"bare line feed":    {strings.Replace(raw, "\r\n", "\n", 1), "InvalidRequest"},
		"longer than told":  {strings.Replace(raw, "hello", "hellox", 1), "InvalidRequest"},
		"bytes behind":      {raw + "x\n", "InvalidRequest"},
		"a trailer":         {raw[:len(raw)-2] + "x-amz-checksum-crc32:AAAAAA==\r\n\r\n", "InvalidRequest"},
		"no empty line":     {raw[:len(raw)-2], "IncompleteBody"},
		"second last chunk": {raw[:len(raw)-2] + raw[strings.Index(raw, "0;"):], "InvalidRequest"},
	} {
		r := right.Clone(t.Context())
		r.Body = io.NopCloser(strings.NewReader(c.body))
		got, err := verifier(testTime()).Verify(r)
		if err != nil {
			t.Fatal(err)
		}
		body := got.Body()
		if _, err := io.ReadAll(body); code(err) != c.want {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
		if _, err := body.Read(make([]byte, 1)); code(err) != c.want {
			t.Errorf("%s, read again: %v", name, err)
		}
	}
}

func TestTrailersWrong(t *testing.T) {
	// A trailer is refused, though it is signed, if it was not announced, is missing, twice,
	// malformed or too long. So is a checksum that is not the payload's, where the payload is read
	// here.
	sum := "x-amz-checksum-crc32:" + crcOfHello
	for name, c := range map[string]struct {
		announced, sent []string
		want, whole     string
	}{
		"right":         {[]string{sum}, []string{sum}, "", ""},
		"upper case":    {[]string{sum}, []string{"X-Amz-Checksum-Crc32: " + crcOfHello}, "SignatureDoesNotMatch", "SignatureDoesNotMatch"}, // signed in another case than it was sent
		"missing":       {[]string{sum}, []string{}, "MalformedTrailerError", "MalformedTrailerError"},
		"another":       {[]string{sum}, []string{"x-amz-checksum-crc32c:" + crcOfHello}, "MalformedTrailerError", "MalformedTrailerError"},
		"twice":         {[]string{sum}, []string{sum, sum}, "MalformedTrailerError", "MalformedTrailerError"},
		"short":         {[]string{sum}, []string{sum[:24]}, "InvalidRequest", "InvalidRequest"},
		"longer":        {[]string{sum}, []string{"x-amz-checksum-crc32:AAAAAAAAAAA="}, "InvalidRequest", "InvalidRequest"},
		"no base64":     {[]string{sum}, []string{"x-amz-checksum-crc32:!!!!!!=="}, "InvalidRequest", "InvalidRequest"},
		"no padding":    {[]string{sum}, []string{"x-amz-checksum-crc32:AAAAAAAA"}, "InvalidRequest", "InvalidRequest"},
		"a byte more":   {[]string{"x-amz-checksum-sha1:x"}, []string{"x-amz-checksum-sha1:qvTGHdzF6KLavt4PO0gs2a6pQ00A"}, "InvalidRequest", "InvalidRequest"},
		"long":          {[]string{sum}, []string{sum, "x:" + strings.Repeat("x", maxTrailer)}, "InvalidRequest", "InvalidRequest"},
		"no trailer":    {[]string{sum}, []string{"hello"}, "InvalidRequest", "InvalidRequest"},
		"wrong":         {[]string{"x-amz-checksum-crc32:AAAAAA=="}, []string{"x-amz-checksum-crc32:AAAAAA=="}, "", "BadDigest"},
		"wrong sha1":    {[]string{"x-amz-checksum-sha1:x"}, []string{"x-amz-checksum-sha1:AvTGHdzF6KLavt4PO0gs2a6pQ00="}, "", "BadDigest"},
		"right sha1":    {[]string{"x-amz-checksum-sha1:x"}, []string{"x-amz-checksum-sha1:qvTGHdzF6KLavt4PO0gs2a6pQ00="}, "", ""},
		"right sha256":  {[]string{"x-amz-checksum-sha256:x"}, []string{"x-amz-checksum-sha256:LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ="}, "", ""},
		"right crc32c":  {[]string{"x-amz-checksum-crc32c:x"}, []string{"x-amz-checksum-crc32c:mnG7TA=="}, "", ""},
		"wrong crc64":   {[]string{"x-amz-checksum-crc64nvme:x"}, []string{"x-amz-checksum-crc64nvme:AAAAAAAAAAA="}, "", "BadDigest"},
		"no md5 checks": {[]string{"x-amz-checksum-md5:x"}, []string{"x-amz-checksum-md5:AAAAAAAAAAAAAAAAAAAAAA=="}, "", ""},
	} {
		signer, r := stream(t, []string{"hello"}, c.announced...)
		raw := signer.chunked([]string{"hello"}, c.sent...)
		for whole, want := range map[bool]string{false: c.want, true: c.whole} {
			r.Body = io.NopCloser(strings.NewReader(raw))
			s, err := verifier(testTime()).Verify(r)
			if err != nil {
				t.Fatal(err)
			}
			body := s.Body()
			if whole {
				body = s.Payload()
			}
			if _, err := io.ReadAll(body); code(err) != want {
				t.Errorf("%s, whole %v: %v, want %q", name, whole, err, want)
			}
		}
	}
}

func TestCRC64(t *testing.T) {
	// The standard library's table for the polynomial yields the check value of CRC-64/NVME.
	h := newSum("x-amz-checksum-crc64nvme")
	_, _ = io.WriteString(h, "123456789")
	if got := fmt.Sprintf("%x", h.Sum(nil)); got != "ae8b14860a799888" {
		t.Error(got)
	}
}

func TestUnsignedTrailer(t *testing.T) {
	// Unsigned chunks go on byte for byte, right or not. If they are read here, they are decoded
	// and checked.
	for name, c := range map[string]struct{ body, want string }{
		"right":           {"5\r\nhello\r\n0\r\nx-amz-checksum-crc32:" + crcOfHello + "\r\n\r\n", ""},
		"as by minio-go":  {"5\r\nhello\r\n0\r\nx-amz-checksum-crc32:" + crcOfHello + "\n\r\n\r\n", ""},
		"in two":          {"2\r\nhe\r\n3\r\nllo\r\n0\r\nx-amz-checksum-crc32:" + crcOfHello + "\r\n\r\n", ""},
		"wrong":           {"5\r\nhallo\r\n0\r\nx-amz-checksum-crc32:" + crcOfHello + "\r\n\r\n", "BadDigest"},
		"none":            {"5\r\nhello\r\n0\r\n\r\n", "MalformedTrailerError"},
		"behind":          {"5\r\nhello\r\n0\r\nx-amz-checksum-crc32:" + crcOfHello + "\r\n\r\nx", "IncompleteBody"},
		"behind, a line":  {"5\r\nhello\r\n0\r\nx-amz-checksum-crc32:" + crcOfHello + "\r\n\r\nx:y\r\n", "InvalidRequest"},
		"a signature":     {"5;chunk-signature=x\r\nhello\r\n0\r\n\r\n", "InvalidRequest"},
		"truncated":       {"5\r\nhello\r\n0\r\nx-amz-checksum-crc32:" + crcOfHello + "\r\n", "IncompleteBody"},
		"truncated early": {"5\r\nhel", "IncompleteBody"},
	} {
		s := newSigner("PUT", "/bucket/key")
		s.payload = unsignedTrailing
		s.headers = [][2]string{{"x-amz-decoded-content-length", "5"}, {"x-amz-trailer", "x-amz-checksum-crc32"}}
		for _, whole := range []bool{false, true} {
			got, err := verifier(testTime()).Verify(s.request(t, c.body))
			if err != nil || got.Length != 5 {
				t.Fatalf("%s: %v", name, err)
			}
			if whole {
				if body, err := io.ReadAll(got.Payload()); code(err) != c.want || err == nil && string(body) != "hello" {
					t.Errorf("%s: %q, %v, want %q", name, body, err, c.want)
				}
				continue
			}
			h := http.Header{}
			if n := got.Rewrite(h); n != int64(len(c.body)) || h.Get("X-Amz-Content-Sha256") != unsignedTrailing {
				t.Errorf("%s: %d, %v", name, n, h)
			}
			if body, err := io.ReadAll(got.Body()); string(body) != c.body || err != nil {
				t.Errorf("%s: %q, %v", name, body, err)
			}
		}
	}
}

func TestHashed(t *testing.T) {
	// A body that does not match its hash yields an error: in place of its last bytes if its length
	// is known, otherwise in place of io.EOF.
	ways := readers()
	ways["the end with the last"] = iotest.DataErrReader
	for way, wrap := range ways {
		for _, c := range []struct {
			body, of string
			length   int64
			want     string
		}{
			{"hello", "hello", 5, ""}, {"hello", "hello", -1, ""}, {"", "", 0, ""}, {"hello", "hallo", 5, "XAmzContentSHA256Mismatch"},
			{"hello", "hallo", -1, "XAmzContentSHA256Mismatch"}, {"", "x", 0, "XAmzContentSHA256Mismatch"},
			{"hell", "hell", 5, "IncompleteBody"},
		} {
			s := newSigner("PUT", "/bucket/key")
			s.payload = sum(c.of)
			r := s.request(t, "")
			r.ContentLength, r.Body = c.length, io.NopCloser(wrap(strings.NewReader(c.body)))
			got, err := verifier(testTime()).Verify(r)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(got.Body())
			if code(err) != c.want || err == nil && string(body) != c.body || err != nil && c.length >= 0 && len(body) >= max(1, int(c.length)) {
				t.Errorf("%s, %+v: %q, %v", way, c, body, err)
			}
		}
	}
}

func TestPassedOn(t *testing.T) {
	// An upload is changed on its way and passed on with its length, as by a proxy. It never
	// arrives complete at the origin; a right one does.
	var stored []string // by the origin; read after each answer
	origin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil {
			stored = append(stored, string(body))
		}
	}))
	defer origin.Close()
	payload := strings.Repeat("0123456789", 20000)
	for _, trailers := range [][]string{nil, {"x-amz-checksum-xxhash3:AAAAAAAAAAA="}} {
		signer, r := stream(t, []string{payload[:100000], payload[100000:]}, trailers...)
		raw := signer.chunked([]string{payload[:100000], payload[100000:]}, trailers...)
		for _, change := range []string{"", "payload", "signature"} {
			body := raw
			switch change {
			case "payload":
				body = raw[:len(raw)/2] + "x" + raw[len(raw)/2+1:]
			case "signature":
				at := strings.LastIndex(raw, "signature") + 20
				body = raw[:at] + "x" + raw[at+1:]
			}
			r.Body = io.NopCloser(strings.NewReader(body))
			s, err := verifier(testTime()).Verify(r)
			if err != nil {
				t.Fatal(err)
			}
			out, err := http.NewRequest("PUT", origin.URL, s.Body())
			if err != nil {
				t.Fatal(err)
			}
			out.ContentLength = s.Rewrite(out.Header)
			before := len(stored)
			resp, err := origin.Client().Do(out)
			if err == nil {
				resp.Body.Close()
			}
			if change == "" && (err != nil || len(stored) != before+1) || change != "" && err == nil {
				t.Errorf("%q changed: %v", change, err)
			}
		}
	}
	origin.Close() // waits for the handlers
	if len(stored) != 2 || stored[0] != payload || !slices.Contains([]int{len(payload) + len("30d40\r\n\r\n0\r\n\r\n") + len("x-amz-checksum-xxhash3:AAAAAAAAAAA=\r\n")}, len(stored[1])) {
		t.Errorf("%d uploads are stored", len(stored))
	}
}

func TestNothingChanged(t *testing.T) {
	// Signed chunks without bytes are checked, too. Whatever is changed in them or cut off yields
	// an error, and no byte goes on.
	signer, right := stream(t, nil, "x-amz-checksum-crc32:AAAAAA==")
	raw := signer.chunked(nil, "x-amz-checksum-crc32:AAAAAA==")
	for i := range raw {
		changed := []byte(raw)
		changed[i] ^= 2
		for _, body := range []string{raw[:i], string(changed)} {
			r := right.Clone(t.Context())
			r.Body = io.NopCloser(strings.NewReader(body))
			s, err := verifier(testTime()).Verify(r)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(s.Body()); err == nil || len(got) > 0 {
				t.Errorf("%q gives %q, %v", body, got, err)
			}
		}
	}
}
