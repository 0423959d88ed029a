package e2e

import (
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"hash"
	"hash/crc32"
	"hash/crc64"
	"strings"
)

// payload is the form in which a body goes over the wire in chunks, right or not.
type payload struct {
	signed  bool   // each chunk
	size    int    // of a chunk, but the last: 8 KiB at least, or versitygw refuses it as Amazon does
	trailer string // the line behind the last chunk; "": none
	flaw    string // what is wrong with it; "": nothing
	part    int    // in a hundred, that is sent of one that is cut
	early   bool   // it is cut before its data end: else MinIO takes it for whole
}

// chunkSigner signs the chunks of a body one after another, from the request's own signature on.
type chunkSigner struct{ secret, at, last string }

func (s *chunkSigner) next(kind string, sums ...string) string {
	s.last = seal(s.secret, s.at[:8], kind+"\n"+s.at+"\n"+s.at[:8]+"/us-east-1/s3/aws4_request\n"+s.last+"\n"+strings.Join(sums, "\n"))
	return s.last
}

// framed is a text in chunks.
func (p *payload) framed(s *chunkSigner, text string) string {
	var b strings.Builder
	chunk := func(part string) {
		fmt.Fprintf(&b, "%x", len(part))
		if p.signed {
			b.WriteString(";chunk-signature=" + s.next("AWS4-HMAC-SHA256-PAYLOAD", nothingSum, sumOf(part)))
		}
		b.WriteString("\r\n" + part)
		if part != "" {
			b.WriteString("\r\n")
		}
	}
	for rest := text; rest != ""; {
		n := min(p.size, len(rest))
		chunk(rest[:n])
		rest = rest[n:]
	}
	chunk("")
	if p.trailer != "" {
		b.WriteString(p.trailer + "\r\n")
		if p.signed {
			b.WriteString("x-amz-trailer-signature:" + s.next("AWS4-HMAC-SHA256-TRAILER", sumOf(p.trailer+"\n")) + "\r\n")
		}
	}
	return b.String() + "\r\n"
}

// body is what is sent of a text.
func (p *payload) body(s *chunkSigner, text string) string {
	whole := p.framed(s, text)
	other := func(mark string) string { // the digit behind a mark is another
		at := strings.Index(whole, mark) + len(mark)
		digit := "0"
		if whole[at:at+1] == digit {
			digit = "1"
		}
		return whole[:at] + digit + whole[at+1:]
	}
	switch p.flaw {
	case "cut":
		end := len(whole)
		if p.early {
			end = strings.LastIndex(whole, "\r\n0;") - 1
		}
		return whole[:1+end*p.part/100]
	case "changed":
		return strings.Replace(whole, "\r\n"+text[:1], "\r\n#", 1)
	case "a chunk's signature":
		return other("chunk-signature=")
	case "the trailer's signature":
		return other("trailer-signature:")
	}
	return whole
}

// streams are the words on a body in chunks.
func streams() []string {
	return []string{"STREAMING-UNSIGNED-PAYLOAD-TRAILER", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"}
}

// newSum makes a checksum of those that headers and trailers may name.
func newSum(name string) hash.Hash {
	switch name {
	case "x-amz-checksum-crc32":
		return crc32.NewIEEE()
	case "x-amz-checksum-crc32c":
		return crc32.New(crc32.MakeTable(crc32.Castagnoli))
	case "x-amz-checksum-crc64nvme":
		return crc64.New(crc64.MakeTable(0x9a6c9329ac4bc9b5))
	case "x-amz-checksum-sha1":
		return sha1.New()
	case "x-amz-checksum-sha256":
		return sha256.New()
	}
	return md5.New() // Content-MD5
}

func checksum(name, text string) string {
	h := newSum(name)
	_, _ = h.Write([]byte(text)) // never fails
	return base64.StdEncoding.EncodeToString(h.Sum(nil))
}

// checksums are those of a body.
func checksums() []string {
	return []string{"x-amz-checksum-crc32", "x-amz-checksum-crc32c", "x-amz-checksum-crc64nvme", "x-amz-checksum-sha1", "x-amz-checksum-sha256"}
}

// sum is a checksum of a text, right or with a flaw.
func (t *twins) sum(name, text, flaw string) string {
	right := checksum(name, text)
	switch flaw {
	case "a wrong sum":
		return checksum(name, text+"x")
	case "a sum that is none":
		return one(t, "x", "AAAA", right+"AAAA", strings.Repeat("!", len(right)), right[1:])
	}
	return right
}

// dress gives an upload one of the forms that S3 has for a body, with checksums or without. flawed:
// something in it may be wrong, one thing at most, since servers differ in what they look at first.
func (t *twins) dress(a s3Ask, flawed bool) s3Ask {
	flaw := func(of ...string) string {
		if flawed && t.chance(2) {
			return one(t, of...)
		}
		return ""
	}
	// Several chunks. Of a body that is wrong versitygw would keep what had reached it before the
	// endpoint found out (see cut): of a small one that is nothing.
	if t.chance(8) && (t.minio || !flawed) {
		a.body = strings.Repeat(t.data()+"-", 10)
	}
	if strings.HasSuffix(a.path, "/") {
		a.body = ""
	}
	switch t.rng.IntN(6) {
	case 0:
		t.checked(&a, flaw("a wrong sum", "a sum that is none"))
	case 1:
		a.header.Set("X-Amz-Content-Sha256", sumOf(a.body))
		switch flaw("hash", "word", "sum") {
		case "hash":
			a.header.Set("X-Amz-Content-Sha256", sumOf(a.body+"x"))
		case "word":
			a.header.Set("X-Amz-Content-Sha256", one(t, "nonsense", sumOf(a.body)[1:], "STREAMING-AWS4-HMAC-SHA512-PAYLOAD"))
		case "sum":
			t.checked(&a, "a wrong sum")
		default:
			t.checked(&a, "")
		}
	case 2:
		t.chunked(&a, "STREAMING-AWS4-HMAC-SHA256-PAYLOAD", flaw("cut", "too long", "too short", "changed", "a chunk's signature", "a wrong sum"))
	case 3:
		missing := "no trailer"
		if t.minio { // which takes the upload for whole without it
			missing = "another trailer"
		}
		t.chunked(&a, "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER", flaw(missing, "cut", "too long", "too short", "changed", "a chunk's signature", "the trailer's signature", "a wrong sum", "a sum that is none", "another trailer"))
	default: // what SDKs send today
		t.chunked(&a, "STREAMING-UNSIGNED-PAYLOAD-TRAILER", flaw("cut", "too long", "too short", "changed", "a wrong sum", "a sum that is none", "another trailer", "no trailer"))
	}
	return a
}

// checked adds a checksum as a header.
func (t *twins) checked(a *s3Ask, flaw string) {
	if flaw == "" && t.chance(3) {
		return
	}
	name := one(t, append(checksums(), "Content-Md5")...)
	a.header.Set(name, t.sum(name, a.body, flaw))
}

// chunked sends a body in chunks, with a trailer where the word has one.
func (t *twins) chunked(a *s3Ask, word, flaw string) {
	p := &payload{signed: strings.Contains(word, "HMAC"), size: one(t, 8192, 8192, 10000, 65536), flaw: flaw, part: t.rng.IntN(99), early: t.minio && strings.Contains(word, "HMAC")}
	if (flaw == "changed" || flaw == "cut" && p.early) && a.body == "" {
		p.flaw = ""
	}
	announced := len(a.body)
	switch {
	case flaw == "too long" && announced > 0:
		announced -= 1 + t.rng.IntN(announced)
	case flaw == "too short":
		announced += 1 + t.rng.IntN(100)
	}
	a.form = p
	a.header.Set("X-Amz-Content-Sha256", word)
	a.header.Set("X-Amz-Decoded-Content-Length", fmt.Sprint(announced))
	if a.header.Get("Content-Encoding") == "" && !t.chance(4) {
		a.header.Set("Content-Encoding", "aws-chunked")
	}
	if !strings.HasSuffix(word, "-TRAILER") {
		if flaw == "" || flaw == "a wrong sum" {
			t.checked(a, flaw)
		}
		return
	}
	name := one(t, checksums()...)
	a.header.Set("X-Amz-Trailer", name)
	switch flaw {
	case "another trailer":
		for other := name; name == other; {
			name = one(t, checksums()...)
		}
	case "no trailer":
		return
	}
	p.trailer = name + ":" + t.sum(name, a.body, flaw)
}
