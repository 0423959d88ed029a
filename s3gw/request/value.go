package request

import (
	"strings"
)

const (
	// maxID is the longest id in bytes ("Version IDs are ... no more than 1,024 bytes").
	maxID = 1024
	// maxDecodings of what was decoded are looked at: a proxy or two in front of a server may each
	// do one more. Without a bound 16 KiB of headers would cost 8,000 of them.
	maxDecodings = 8
)

// An origin may keep what a value names in a file of that name: versitygw joins an uploadId to a
// path, and with ../../victim aborts, lists and completes what is none of that upload. So each
// value of a query or a header is held to the rule of its name, whoever asks and for whatever:
//
//	id      uploadId, versionId, partNumber, their markers and the like: one segment
//	key     prefix, marker, start-after and the like: of the rights of the key that it leads to,
//	        if it climbs
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

// ruleOf is the rule for a parameter or a header.
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

// prefixed reports whether s begins with one of some words.
func prefixed(s string, words ...string) bool {
	for _, w := range words {
		if strings.HasPrefix(s, w) {
			return true
		}
	}
	return false
}

// folded is a name without case, "-" and "_".
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

// id tells what is one segment of a path to every server, and no step. Dots stand in ids of
// Amazon's wherever the letters do, also two in a row: dots alone are a step.
// "_" is Amazon's, Backblaze's and base64url's, "~" Ceph's ("2~..."), "=" pads base64; "+" may
// become a space, which Windows leaves out behind dots.
func id(s string) bool {
	for i := range len(s) {
		if c := s[i]; !alphanumeric(c) && strings.IndexByte("._~+=-", c) < 0 {
			return false
		}
	}
	return len(s) <= maxID && (s == "" || strings.Trim(s, ".+") != "")
}

// word tells values that satisfy each rule.
func word(s string) bool {
	for i := range len(s) {
		if c := s[i]; !alphanumeric(c) && c != '-' && c != '_' {
			return false
		}
	}
	return len(s) <= maxID
}

// climbs tells what some server may take for a path that leads upwards: one with a segment of
// two dots, behind further decodings, or with backslashes for slashes.
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

// steps tells a path with a segment of two dots, or of what Windows (a space, more dots) and C (a
// zero byte) take for that.
func steps(path string) bool {
	for segment := range strings.SplitSeq(path, "/") {
		segment, _, _ = strings.Cut(segment, "\x00")
		if strings.HasPrefix(segment, "..") && strings.Trim(segment, ". ") == "" {
			return true
		}
	}
	return false
}

// readings yields s, and what servers may read in it: decoded once more, and again, each with
// backslashes and with slashes in their place.
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

// lenient decodes the percent escapes that are well-formed.
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

// value holds one against the rule of its name; a key that climbs is left to the rights.
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

// values holds those of a query against their rules. Some servers part parameters at semicolons,
// too: what they would see is looked at as well.
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
		name, _ = unescape(name, true) // what is no escape was refused before
		if i := single(name); i >= 0 {
			if named[i] {
				return New("InvalidArgument", "There is more than one %s", name)
			}
			named[i] = true
		}
		if word(escaped) || name == "prefix" || presigned(name) && name != "x-id" { // a prefix is looked at with its rights
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

// single is which of the parameters this is that must not be there twice: some origins take the
// first, some the last. -1: none of them.
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
