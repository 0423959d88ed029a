package origin

import (
	"bytes"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// This file parses the answers to ListObjectsV2, as "ListObjectsV2" in the S3 API
// reference describes them.
//
// The XML is scanned by hand, since S3 uses little of it. Undo undoes the
// URL encoding, if the server encodes, which its word alone does not tell. It merges groups and keys, which
// come in two lists. What a page leaves out or spells in its own way is reported as that, or as an error that
// names it: a flag that is misread hides names.

// listPage is what one ListObjectsV2 told, its entries in byte order.
type listPage struct {
	Entries   []listEntry
	Truncated bool
	Said      bool   // IsTruncated was there, so it is known whether more follows
	Encoded   bool   // keys came URL-encoded, so no byte of them was lost; before Undo: the page says so
	Token     string // continuation token; "": none was given
}

// listEntry is a key or a group of a page.
type listEntry struct {
	Key      string
	ETag     string    // as it came, in its quotes
	Size     int64     // in bytes; also 0 when the page does not say
	Modified time.Time // zero: the page does not say
	Class    string    // the storage class; "": STANDARD, or the page does not say
	Prefix   bool      // it is a group
}

// parsePage parses a ListBucketResult. Keys are as the server wrote them; call Undo next.
func parsePage(text []byte) (*listPage, error) {
	if !bytes.Contains(text, []byte("ListBucketResult")) {
		return nil, errors.New("no ListBucketResult")
	}
	p := &listPage{}
	var e listEntry
	err := scanXML(text, func(parent, name, value []byte) error {
		switch string(parent) {
		case "Contents":
			return e.set(name, value)
		case "CommonPrefixes":
			if string(name) == "Prefix" {
				e.Key, e.Prefix = unescape(value), true
			}
		case "ListBucketResult":
			switch string(name) {
			case "IsTruncated":
				return p.truncated(string(bytes.TrimSpace(value)))
			case "NextContinuationToken":
				p.Token = unescape(value)
			case "EncodingType":
				p.Encoded = bytes.EqualFold(bytes.TrimSpace(value), []byte("url"))
			}
		}
		return nil
	}, func(name []byte) error {
		switch string(name) {
		case "Contents", "CommonPrefixes":
			if e.Key == "" && !e.Prefix { // an empty group is one that was cut
				return errors.New("an entry without a key")
			}
			p.Entries = append(p.Entries, e)
			e = listEntry{}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return p, nil
}

// truncated reads IsTruncated, in the spellings of several languages. An empty value says nothing.
func (p *listPage) truncated(value string) error {
	switch strings.ToLower(value) {
	case "true", "1":
		p.Truncated, p.Said = true, true
	case "false", "0":
		p.Truncated, p.Said = false, true
	case "":
	default:
		return fmt.Errorf("IsTruncated is %q, which is neither true nor false", value)
	}
	return nil
}

func (e *listEntry) set(name, value []byte) error {
	var err error
	switch string(name) {
	case "Key":
		e.Key = unescape(value)
	case "ETag":
		e.ETag = unescape(bytes.TrimSpace(value))
	case "Size":
		if value = bytes.TrimSpace(value); len(value) == 0 {
			return nil
		}
		if e.Size, err = strconv.ParseInt(string(value), 10, 64); err != nil || e.Size < 0 {
			return fmt.Errorf("size %q of %q", value, e.Key)
		}
	case "StorageClass":
		if value = bytes.TrimSpace(value); string(value) != "STANDARD" { // nearly all are, and take no memory
			e.Class = unescape(value)
		}
	case "LastModified":
		e.Modified, _ = time.Parse(time.RFC3339, string(bytes.TrimSpace(value))) // a zero time is none
	}
	return nil
}

// Undo undoes encoding-type=url, if the server used it, and merges groups and keys, which come in two
// lists. Call it once.
func (p *listPage) Undo(encoded bool) error {
	p.Encoded = encoded
	for i := range p.Entries {
		e := &p.Entries[i]
		if !encoded || !ambiguous(e.Key) {
			continue
		}
		key, err := url.QueryUnescape(e.Key)
		if err != nil {
			return fmt.Errorf("key %q: %w", e.Key, err)
		}
		e.Key = key
	}
	byKey := func(a, b listEntry) int { return strings.Compare(a.Key, b.Key) }
	if !slices.IsSortedFunc(p.Entries, byKey) {
		slices.SortFunc(p.Entries, byKey)
	}
	return nil
}

// Ambiguous returns a name that is another one once decoded, and that other name. "" means that there
// is none, and encoding makes no difference. plain means that a name certainly was not encoded,
// whatever the page says: no encoding leaves a blank, or a "%" without two digits after it.
func (p *listPage) Ambiguous() (key, decoded string, plain bool) {
	for i := range p.Entries {
		k := p.Entries[i].Key
		if strings.IndexByte(k, ' ') >= 0 {
			plain = true
		}
		if !ambiguous(k) {
			continue
		}
		switch d, err := url.QueryUnescape(k); {
		case err != nil:
			plain = true
		case key == "":
			key, decoded = k, d
		}
	}
	return key, decoded, plain
}

func ambiguous(key string) bool {
	return strings.IndexByte(key, '%') >= 0 || strings.IndexByte(key, '+') >= 0
}

// Last is the last name of a page; "" means that the page is empty.
func (p *listPage) Last() string {
	if len(p.Entries) == 0 {
		return ""
	}
	return p.Entries[len(p.Entries)-1].Key
}

// Misgrouped reports whether a page of groups below prefix holds something that cannot be one of them.
// The key of the listed group itself may be there: some servers list "t/" itself.
func (p *listPage) Misgrouped(prefix string) bool {
	return slices.ContainsFunc(p.Entries, func(e listEntry) bool {
		rest, ok := strings.CutPrefix(e.Key, prefix)
		return !ok || e.Prefix && (rest == "" || strings.IndexByte(rest, '/') != len(rest)-1)
	})
}

// Garbles reports whether a key may differ from the one that the server holds: in an answer that is not
// URL-encoded, U+FFFD replaces what XML cannot hold.
func (p *listPage) Garbles(key string) bool {
	return !p.Encoded && strings.ContainsRune(key, utf8.RuneError)
}

var errXML = errors.New("malformed XML")

// scanXML scans S3's XML: elements without attributes that matter, nested three deep, text only in
// leaves. leaf is called for each element without children, with the name of its parent, and end for
// each element with children. encoding/xml took 80 % of a listing's CPU.
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

// bare strips attributes and a namespace prefix from a tag.
func bare(tag []byte) []byte {
	if i := bytes.IndexAny(tag, " \t\r\n"); i >= 0 {
		tag = tag[:i]
	}
	if i := bytes.IndexByte(tag, ':'); i >= 0 {
		tag = tag[i+1:]
	}
	return tag
}

// unescape undoes XML's escapes. An unknown escape stays as it is.
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
