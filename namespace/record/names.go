package record

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"unicode/utf8"
)

// A bucket's keys are cut at each "/" into segments. A segment is a file's if the key ends there, and a
// directory's if it goes on. The sort name is the segment, with a "/" after it for a directory. So sort
// names sort as the bucket lists.
//
// In the mount each sort name has one name, which can be decoded:
//
//	.  ..          %2E  %2E%2E       and NUL is %00
//	(empty)        %_
//	over 255 bytes a prefix, %~ and 16 hex digits of a hash of the sort name
//	file a beside directory a/       a%F
//	%              %25 where "%" and what follows would look like one of these
//
// A name stands for nothing if its decoding encodes to another name.

const (
	// MaxName is the longest file name that Linux takes, in bytes.
	MaxName = 255
	// BesideTag ends the name of a file beside a directory.
	BesideTag = "%F"
	// MaxKey is the longest key that S3 takes, in bytes.
	MaxKey   = 1024
	hashTail = len("%~") + 16
)

// IsDir reports whether a sort name is a directory's.
func IsDir(sort string) bool { return strings.HasSuffix(sort, "/") }

// Segment is a sort name without the "/" of a directory.
func Segment(sort string) string { return strings.TrimSuffix(sort, "/") }

// MountName is the name that a sort name has in the mount. beside says that a file stands beside a
// directory of the same segment.
func MountName(sort string, beside bool) string {
	name := Escape(Segment(sort))
	if beside && !IsDir(sort) {
		name += BesideTag
	}
	if len(name) <= MaxName {
		return name
	}
	return shorten(name, sort)
}

// Escape encodes a segment so that a file system can show it.
func Escape(s string) string {
	switch s {
	case "":
		return "%_"
	case ".":
		return "%2E"
	case "..":
		return "%2E%2E"
	}
	if strings.IndexByte(s, '%') < 0 && strings.IndexByte(s, 0) < 0 {
		return s
	}
	var b strings.Builder
	for i := range len(s) {
		switch {
		case s[i] == 0:
			b.WriteString("%00")
		case s[i] == '%' && ambiguous(s[i+1:]):
			b.WriteString("%25")
		default:
			b.WriteByte(s[i])
		}
	}
	return b.String()
}

// ambiguous reports whether a "%" before rest would look like one of our codes.
func ambiguous(rest string) bool {
	if rest == "" {
		return false
	}
	if rest[0] == '_' || rest[0] == '~' || rest[0] == 'F' {
		return true
	}
	return len(rest) >= 2 && isHex(rest[0]) && isHex(rest[1])
}

func isHex(c byte) bool { return c >= '0' && c <= '9' || c >= 'A' && c <= 'F' }

// shorten cuts a long name, and ends it with a hash of the sort name.
func shorten(name, sort string) string {
	sum := sha256.Sum256([]byte(sort))
	cut := MaxName - hashTail
	for cut > MaxName-hashTail-utf8.UTFMax && !utf8.RuneStart(name[cut]) {
		cut--
	}
	return name[:cut] + "%~" + hex.EncodeToString(sum[:8])
}

// Meaning is what a mount name can stand for.
type Meaning struct {
	// Segment of a file or a directory, unless Hashed.
	Segment string
	File    bool // it can only be a file beside a directory
	Hashed  bool // the name is shortened: only a listing tells the segment
}

// ParseName decodes a mount name. It returns false if the name can stand for nothing.
func ParseName(name string) (Meaning, bool) {
	if name == "" || len(name) > MaxName || strings.IndexByte(name, '/') >= 0 || strings.IndexByte(name, 0) >= 0 ||
		name == "." || name == ".." {
		return Meaning{}, false
	}
	if IsShortened(name) {
		return Meaning{Hashed: true}, true
	}
	m := Meaning{}
	rest, file := strings.CutSuffix(name, BesideTag)
	m.Segment, m.File = unescape(rest), file
	if Escape(m.Segment) != rest {
		return Meaning{}, false
	}
	return m, true
}

// AsFile is the name that a file has beside a directory, whether there is one or not. A long name stays
// as it is.
func AsFile(name string) string {
	if strings.HasSuffix(name, BesideTag) || IsShortened(name) || len(name)+len(BesideTag) > MaxName {
		return name
	}
	return name + BesideTag
}

// IsShortened reports whether a mount name has the end of a shortened name.
func IsShortened(name string) bool {
	if len(name) < hashTail {
		return false
	}
	tail, ok := strings.CutPrefix(name[len(name)-hashTail:], "%~")
	return ok && strings.Trim(tail, "0123456789abcdef") == ""
}

// unescape decodes what Escape encodes. Of a name that Escape never makes it returns something that
// Escape encodes differently.
func unescape(name string) string {
	if name == "%_" {
		return ""
	}
	if strings.IndexByte(name, '%') < 0 {
		return name
	}
	r := strings.NewReplacer("%00", "\x00", "%25", "%", "%2E", ".")
	return r.Replace(name)
}

// Representable reports whether an origin can be asked for a key: it is UTF-8, and not too long for S3.
func Representable(key string) bool { return len(key) <= MaxKey && utf8.ValidString(key) }
