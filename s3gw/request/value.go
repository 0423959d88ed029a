package request

import (
	"strings"
)

const (
	// maxID is the longest id in bytes ("Version IDs are ... no more than 1,024 bytes").
	maxID = 1024
	// maxDecodings bounds how often a value is decoded again: each of a proxy or two in front of a
	// server may decode once more. Without a bound 16 KiB of headers would cost 8,000 decodings.
	maxDecodings = 8
)

// rule is how the value of a query parameter or a header is checked, by its name, whoever sends it
// and for whatever operation. An origin may use a value in a file name. versitygw joins an uploadId
// to a path: with ../../victim it aborts, lists and completes what is not part of that upload.
//
//	id      uploadId, versionId, partNumber, their markers and the like: one segment
//	key     prefix, marker, start-after and the like: if it climbs, it needs the rights of the
//	        key that it leads to
//	text    what no origin takes for a name: metadata, checksums, response-*
//	steady  all else: it does not climb
//
// Names are compared without regard to case, "-" and "_".
type rule int

const (
	ruleSteady rule = iota
	ruleID
	ruleKey
	ruleText
)

// ruleOf returns the rule for a parameter or a header.
func ruleOf(name string) rule {
	name = folded(name)
	name, amz := strings.CutPrefix(name, "xamz")
	switch name {
	case "uploadid", "versionid", "partnumber", "uploadidmarker", "versionidmarker", "partnumbermarker", "id", "xid",
		"copysourcerange", "copysourceversionid":
		return ruleID
	case "prefix", "marker", "startafter", "keymarker", "continuationtoken":
		return ruleKey
	case "delimiter":
		return ruleText
	}
	text := strings.HasPrefix(name, "response")
	if amz {
		text = prefixed(name, "meta", "checksum", "tagging", "websiteredirectlocation", "serversideencryptioncontext",
			"serversideencryptioncustomer", "copysource", "trailer", "securitytoken", "useragent",
			"algorithm", "credential", "date", "expires", "signedheaders", "signature", "contentsha256")
	}
	if text {
		return ruleText
	}
	return ruleSteady
}

// prefixed reports whether s begins with one of the words.
func prefixed(s string, words ...string) bool {
	for _, w := range words {
		if strings.HasPrefix(s, w) {
			return true
		}
	}
	return false
}

// folded returns a name without case, "-" and "_".
func folded(name string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '-' || r == '_':
			return -1
		case 'A' <= r && r <= 'Z':
			return r + 'a' - 'A'
		}
		return r
	}, name)
}

// id reports whether every server takes s for one segment of a path, and not for a step. Ids of
// Amazon have dots wherever they have letters, also two in a row; only dots alone are a step. "_"
// is in ids of Amazon, Backblaze and base64url, "~" in Ceph's ("2~..."), and "=" pads base64. "+"
// may become a space, which Windows drops behind dots.
func id(s string) bool {
	for i := range len(s) {
		if c := s[i]; !alphanumeric(c) && strings.IndexByte("._~+=-", c) < 0 {
			return false
		}
	}
	return len(s) <= maxID && (s == "" || strings.Trim(s, ".+") != "")
}

// word reports whether a value satisfies every rule.
func word(s string) bool {
	for i := range len(s) {
		if c := s[i]; !alphanumeric(c) && c != '-' && c != '_' {
			return false
		}
	}
	return len(s) <= maxID
}

// climbs reports whether some server may take s for a path that leads upwards. Such a path has a
// segment of two dots, perhaps after further decodings, or with backslashes for slashes.
func climbs(s string) bool {
	if !strings.ContainsAny(s, ".%") {
		return false
	}
	for s := range readings(s) {
		if strings.Contains(s, "..") && steps(s) {
			return true
		}
	}
	return false
}

// steps reports whether a path has a segment of two dots. Windows (a space, more dots) and C (a
// zero byte) take others for that, which count, too.
func steps(path string) bool {
	for segment := range strings.SplitSeq(path, "/") {
		segment, _, _ = strings.Cut(segment, "\x00")
		if strings.HasPrefix(segment, "..") && strings.Trim(segment, ". ") == "" {
			return true
		}
	}
	return false
}

// readings yields s and all that servers may read in it: decoded once more, and again, and each
// also with slashes in place of backslashes.
func readings(s string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for range 1 + maxDecodings {
			if !yield(s) || strings.Contains(s, `\`) && !yield(strings.ReplaceAll(s, `\`, "/")) {
				return
			}
			again := lenient(s)
			if again == s {
				return
			}
			s = again
		}
	}
}

// lenient decodes the percent escapes that are well-formed, and leaves others.
func lenient(s string) string {
	if strings.IndexByte(s, '%') < 0 {
		return s
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) && hex(s[i+1]) && hex(s[i+2]) {
			b = append(b, nibble(s[i+1])<<4|nibble(s[i+2]))
			i += 2
		} else {
			b = append(b, s[i])
		}
	}
	return string(b)
}

// value checks a value against the rule of its name. climbing means a key that climbs: its rights
// are checked later.
func value(what, name, s string) (climbing bool, _ *Error) {
	if word(s) {
		return false, nil
	}
	switch ruleOf(name) {
	case ruleID:
		if !id(s) {
			return false, New("InvalidArgument",
				"The %s %s is not taken: such a value has letters, digits and ._~+=- alone, and is not made of dots; send it as the bucket gave it", what, name)
		}
	case ruleKey:
		return climbs(s), nil
	case ruleSteady:
		if climbs(s) {
			return false, New("InvalidArgument", "The %s %s is not taken: its value leads upwards as a path; leave out the .. in it", what, name)
		}
	}
	return false, nil
}

// values checks the values of a query against their rules. Some servers split parameters at
// semicolons, too, so what they would see is checked as well.
func (p *params) values(raw string) *Error {
	var named [3]bool
	for raw != "" {
		var pair string
		end := strings.IndexAny(raw, "&;")
		if end < 0 {
			end = len(raw)
		}
		pair, raw = raw[:end], raw[min(end+1, len(raw)):]
		name, escaped, _ := strings.Cut(pair, "=")
		name, _ = unescape(name, true) // malformed escapes were refused before
		if i := single(name); i >= 0 {
			if named[i] {
				return New("InvalidArgument", "There is more than one %s", name)
			}
			named[i] = true
		}
		if word(escaped) || name == "prefix" || presigned(name) && name != "x-id" { // see Request.lists
			continue
		}
		s, ok := unescape(escaped, false)
		if !ok {
			return badEscape()
		}
		climbing, f := value("parameter", name, s)
		switch {
		case f != nil:
			return f
		case climbing:
			s, _ = unescape(escaped, true)
			p.climbing = append(p.climbing, s)
		}
	}
	return nil
}

// single returns an index for a parameter that must not be there twice, since some origins take the
// first, some the last. -1 means that it is none of them.
func single(name string) int {
	if len(name) < len("uploadId") || len(name) > len("partNumber")+2 {
		return -1
	}
	switch name[0] | 0x20 {
	case 'u', 'v', 'p':
		switch folded(name) {
		case "uploadid":
			return 0
		case "versionid":
			return 1
		case "partnumber":
			return 2
		}
	}
	return -1
}
