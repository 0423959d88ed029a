package record

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"unicode/utf8"
)

// A bucket's keys are cut at each "/" into segments. A segment is a file's (the
// key ends there) or a directory's (it goes on); its sort name is the segment,
// with "/" behind it for a directory, so that sort names order as the bucket lists.
//
// In the mount each sort name has one name, and that leads back to it:
//
//	.  ..          %2E  %2E%2E       and NUL is %00
//	(empty)        %_
//	over 255 bytes a prefix, %~ and 16 hex digits of a hash of the sort name
//	file a beside directory a/       a%F
//	%              %25 where "%" and what follows could be taken for one of these
//
// A name that is not what its own decoding encodes to is nobody's name.

const (
	// MaxName is the longest name in bytes that Linux takes.
	MaxName = 255
	// BesideTag ends the name of a file beside a directory.
	BesideTag = "%F"
	maxKey    = 1024 // the longest key in bytes that S3 takes
	hashTail  = len("%~") + 16
)

// IsDir reports whether a sort name is a directory's.
func IsDir(sort string) bool { return strings.HasSuffix(sort, "/") }

// Segment is a sort name without what marks a directory.
func Segment(sort string) string { return strings.TrimSuffix(sort, "/") }

// MountName is the one name in the mount of a sort name. beside says that a file
// stands beside a directory of the same segment.
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

// Escape writes a segment as a file system can show it.
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

// ambiguous reports whether a "%" before rest could be taken for ours.
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

// shorten gives a long name a tail that tells it from all others.
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
	File    bool // only a file beside a directory
	Hashed  bool // shortened: only the listing knows the segment
}

// ParseName finds what a mount name can stand for; false: nothing.
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

// AsFile is a file's name whatever may have come to stand beside it since; a long one
// stays as it is.
func AsFile(name string) string {
	if strings.HasSuffix(name, BesideTag) || IsShortened(name) || len(name)+len(BesideTag) > MaxName {
		return name
	}
	return name + BesideTag
}

// IsShortened reports whether a mount name is one that stands for a long one.
func IsShortened(name string) bool {
	if len(name) < hashTail {
		return false
	}
	tail, ok := strings.CutPrefix(name[len(name)-hashTail:], "%~")
	return ok && strings.Trim(tail, "0123456789abcdef") == ""
}

// unescape undoes escape; of what escape never writes it makes something that
// Escape writes differently.
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

// Representable reports whether a key can be asked for at all.
func Representable(key string) bool { return len(key) <= maxKey && utf8.ValidString(key) }
