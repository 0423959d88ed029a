package s3gw

import (
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/hearthfs/hearth/origin/sign"
)

// This file writes a line for each request to an S3 endpoint, as Amazon has them.

// AccessLine is a request and what came of it.
type AccessLine struct {
	// At is when it came, Took how long it took.
	At   time.Time
	Took time.Duration
	// Remote is the client's address, Access the key that it was signed by; "": by none.
	Remote, Access string
	// ID is the request's, Operation Amazon's name of what it asked for.
	ID, Operation string
	// Bucket and Key are what it named.
	Bucket, Key string
	// Request is the method, target and protocol, as sent.
	Request string
	// Status and Code of the answer; Code is "" if that is no error. Bytes of its body.
	Status int
	Code   string
	Bytes  int64
	// Agent, Referer and Host are the client's headers.
	Agent, Referer, Host string
	// How is cached, passed, written or refused.
	How string
	// TLS is the protocol's version; "": none.
	TLS string
}

// Append writes the line as Amazon's server access log has it ("Server access log format" in
// its S3 user guide); fields that there are none of are "-".
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

// plain is a field that stands between spaces.
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

// quoted is a field between quotes, in which nothing ends the field or the line.
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
