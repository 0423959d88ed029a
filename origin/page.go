package origin

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// page is what one ListObjectsV2 told.
type page struct {
	entries   []entry
	truncated bool
	encoded   bool // keys came URL-encoded, so no byte of them was lost
	token     string
}

// entry is a key or a group of a page.
type entry struct {
	key, etag string
	size      int64
	modified  time.Time
	prefix    bool
}

func (e *entry) set(name, value []byte) error {
	var err error
	switch string(name) {
	case "Key":
		e.key = unescape(value)
	case "ETag":
		e.etag = unescape(value)
	case "Size":
		if e.size, err = strconv.ParseInt(string(value), 10, 64); err != nil || e.size < 0 {
			return fmt.Errorf("size %q of %q", value, e.key)
		}
	case "LastModified":
		e.modified, _ = time.Parse(time.RFC3339, string(value)) // a zero time is none
	}
	return nil
}

var errXML = errors.New("malformed XML")

// scanXML walks S3's XML: elements without attributes that matter, nested three
// deep, text only in leaves. leaf is called for each element without children,
// with the name of its parent, and end for each with some. encoding/xml took
// 80 % of a listing's CPU.
func scanXML(text []byte, leaf func(parent, name, value []byte) error, end func(name []byte) error) error {
	var stack [16][]byte
	depth, open := 0, -1 // open: where the text of an element without children begins
	for {
		lt := bytes.IndexByte(text, '<')
		if lt < 0 {
			break
		}
		value := text[:lt]
		gt := bytes.IndexByte(text[lt:], '>')
		if gt < 2 {
			return errXML
		}
		tag := text[lt+1 : lt+gt]
		text = text[lt+gt+1:]
		switch {
		case tag[0] == '?' || tag[0] == '!':
			if bytes.HasPrefix(tag, []byte("![CDATA[")) {
				return errXML
			}
		case tag[0] == '/':
			name := bare(tag[1:])
			if depth == 0 || !bytes.Equal(stack[depth-1], name) {
				return errXML
			}
			depth--
			var err error
			if open != depth {
				err = end(name)
			} else if depth > 0 {
				err = leaf(stack[depth-1], name, value)
			}
			if err != nil {
				return err
			}
			open = -1
		case tag[len(tag)-1] == '/':
			if depth > 0 {
				if err := leaf(stack[depth-1], bare(tag[:len(tag)-1]), nil); err != nil {
					return err
				}
			}
			open = -1
		default:
			if depth == len(stack) {
				return errXML
			}
			stack[depth], open = bare(tag), depth
			depth++
		}
	}
	if depth != 0 {
		return errXML
	}
	return nil
}

// bare takes attributes and a namespace's prefix off a tag.
func bare(tag []byte) []byte {
	if i := bytes.IndexAny(tag, " \t\r\n"); i >= 0 {
		tag = tag[:i]
	}
	if i := bytes.IndexByte(tag, ':'); i >= 0 {
		tag = tag[i+1:]
	}
	return tag
}

// unescape undoes XML's escapes. An unknown one stays as it is.
func unescape(value []byte) string {
	if bytes.IndexByte(value, '&') < 0 {
		return string(value)
	}
	var b strings.Builder
	for len(value) > 0 {
		amp := bytes.IndexByte(value, '&')
		if amp < 0 {
			break
		}
		b.Write(value[:amp])
		value = value[amp:]
		semi := bytes.IndexByte(value, ';')
		if semi < 0 {
			break
		}
		if r, ok := entity(string(value[1:semi])); ok {
			b.WriteRune(r)
			value = value[semi+1:]
		} else {
			b.WriteByte('&')
			value = value[1:]
		}
	}
	b.Write(value)
	return b.String()
}

func entity(name string) (rune, bool) {
	switch name {
	case "amp":
		return '&', true
	case "lt":
		return '<', true
	case "gt":
		return '>', true
	case "quot":
		return '"', true
	case "apos":
		return '\'', true
	}
	base := 10
	digits, ok := strings.CutPrefix(name, "#")
	if hex, isHex := strings.CutPrefix(digits, "x"); isHex {
		digits, base = hex, 16
	}
	n, err := strconv.ParseUint(digits, base, 32)
	return rune(n), ok && err == nil && n <= utf8.MaxRune
}
