package s3gw

import (
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/hearthfs/hearth/origin/sign"
)

// The access log: a line for each request, in the format of Amazon's server access log.

// AccessLine is a request and its outcome.
type AccessLine struct {
	// At is when the request came, Took its duration.
	At   time.Time
	Took time.Duration
	// Remote is the client's address, Access the key that signed the request; "" means unsigned.
	Remote, Access string
	// ID is the request's id, Operation Amazon's name of the operation.
	ID, Operation string
	// Bucket and Key are those that the request named.
	Bucket, Key string
	// Request is the method, target and protocol, as sent.
	Request string
	// Status and Code of the answer; Code is "" without an error. Bytes is the length of its body.
	Status int
	Code   string
	Bytes  int64
	// Agent, Referer and Host are the client's headers.
	Agent, Referer, Host string
	// How is cached, passed, written or refused.
	How string
	// TLS is the protocol's version; "" means no TLS.
	TLS string
}

// Append writes the line in Amazon's format ("Server access log format" in its S3 user guide). An
// empty field is "-".
func (l *AccessLine) Append(b []byte) []byte {
	host, _, err := net.SplitHostPort(l.Remote)
	if err != nil {
		host = l.Remote
	}
	took := strconv.FormatInt(l.Took.Milliseconds(), 10)
	size := "-"
	if l.Bytes > 0 {
		size = strconv.FormatInt(l.Bytes, 10)
	}
	for i, field := range []string{
		"-", plain(l.Bucket), "[" + l.At.UTC().Format("02/Jan/2006:15:04:05 -0700") + "]", plain(host), plain(l.Access), plain(l.ID),
		"REST." + plain(l.Operation), plain(sign.Encode(l.Key, true)), quoted(l.Request), strconv.Itoa(l.Status), plain(l.Code), size, "-", took, "-",
		quoted(l.Referer), quoted(l.Agent), "-", "-", "SigV4", "-", plain(l.How), quoted(l.Host), plain(l.TLS), "-", "-",
	} {
		if i > 0 {
			b = append(b, ' ')
		}
		b = append(b, field...)
	}
	return append(b, '\n')
}

// plain returns a field that stands between blanks.
func plain(s string) string {
	if s == "" {
		return "-"
	}
	return strings.Map(func(r rune) rune {
		if r <= ' ' || r == 0x7f {
			return '?'
		}
		return r
	}, s)
}

// quoted returns a field for use between quotes: nothing in it ends the field or the line.
func quoted(s string) string {
	if s == "" {
		return "-"
	}
	return `"` + strings.Map(func(r rune) rune {
		if r < ' ' || r == '"' || r == 0x7f {
			return '?'
		}
		return r
	}, s) + `"`
}
