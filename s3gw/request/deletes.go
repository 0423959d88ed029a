package request

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
)

const (
	// maxDeletes is Amazon's bound on the objects of one DeleteObjects.
	maxDeletes = 1000
	// MaxDeletesBytes bounds its document, in bytes: 1,000 keys of the longest, written plainly,
	// are half.
	MaxDeletesBytes = 2 << 20
	// maxDepth is twice the depth of the document, to allow for new elements.
	maxDepth = 6
)

// errLong is the error at the end of a bounded body that is too long.
var errLong = errors.New("longer than what is taken")

// bounded reads at most left bytes, and fails with errLong if there are more.
type bounded struct {
	r    io.Reader
	left int64
}

// Read fails with errLong once it has read one byte more than allowed.
func (b *bounded) Read(p []byte) (int, error) {
	if b.left < 0 {
		return 0, errLong
	}
	n, err := b.r.Read(p[:min(int64(len(p)), b.left+1)])
	if b.left -= int64(n); b.left < 0 {
		return n, errLong
	}
	return n, err
}

// Deletes returns the keys of a DeleteObjects document, in its order; a key may be there twice.
//
//	<Delete><Object><Key>KEY</Key>...</Object>... </Delete>
//
// The namespace is ignored, and unknown elements are skipped. The error is a *Error. MalformedXML
// means that another reader could find other keys. Such a document has a DOCTYPE, an entity that is
// not XML's own, or something behind its end. Or a Key or Object stands in another place, in other
// letters, or twice. InvalidArgument means that a VersionId is not an id, or that anything else of
// an Object leads upwards as a path. A body in aws-chunked encoding must be decoded before.
func Deletes(body io.Reader) ([]string, error) {
	d := xml.NewDecoder(&bounded{r: body, left: MaxDeletesBytes})
	var s deletes
	for {
		t, err := d.RawToken()
		switch {
		case err == io.EOF && s.done && len(s.keys) > 0:
			return s.keys, nil
		case errors.Is(err, errLong):
			return nil, malformed(err, "The document is longer than %d bytes", MaxDeletesBytes)
		case err != nil:
			return nil, malformed(err, "The XML you provided was not well-formed or did not validate against our published schema")
		}
		if f := s.take(t); f != nil {
			return nil, f
		}
	}
}

func malformed(cause error, format string, args ...any) *Error {
	return Of(cause, "MalformedXML", format, args...)
}

// deletes is the state of the parser of such a document.
type deletes struct {
	keys []string
	open []string // the open elements, with their prefixes
	key  strings.Builder
	rest strings.Builder // text of an Object's elements other than Key
	has  bool            // this Object had its Key
	done bool            // the Delete has ended
}

func (s *deletes) take(t xml.Token) *Error {
	switch t := t.(type) {
	case xml.StartElement:
		return s.begin(t.Name)
	case xml.EndElement:
		return s.end(t.Name)
	case xml.CharData:
		return s.text(t)
	case xml.Directive:
		return malformed(nil, "A DOCTYPE is not taken")
	case xml.ProcInst:
		if t.Target != "xml" || len(s.open) > 0 || s.done {
			return malformed(nil, "Processing instructions are not taken")
		}
	}
	return nil
}

func (s *deletes) begin(name xml.Name) *Error {
	depth := len(s.open)
	if s.done || depth == maxDepth {
		return malformed(nil, "There is more than a Delete document")
	}
	ok := true
	switch name.Local {
	case "Delete":
		ok = depth == 0
	case "Object":
		ok, s.has = depth == 1, false
	case "Key":
		ok = depth == 2 && local(s.open[1]) == "Object" && !s.has
		s.key.Reset()
		s.has = true
	default:
		ok = depth > 0 && local(s.open[depth-1]) != "Key" && ruleOf(local(s.open[depth-1])) != ruleID
		switch folded(name.Local) {
		case "delete", "object", "key": // some reader may take it for one of these
			ok = false
		}
		if depth == 2 {
			s.rest.Reset()
		}
	}
	if !ok {
		return malformed(nil, "The element %s has no place there", name.Local)
	}
	s.open = append(s.open, name.Space+":"+name.Local)
	return nil
}

func local(name string) string { return name[strings.IndexByte(name, ':')+1:] }

func (s *deletes) end(name xml.Name) *Error {
	depth := len(s.open) - 1
	if depth < 0 || s.open[depth] != name.Space+":"+name.Local {
		return malformed(nil, "An element ends that was not begun")
	}
	s.open = s.open[:depth]
	s.done = depth == 0
	switch {
	case name.Local == "Key" && s.key.Len() == 0, name.Local == "Object" && !s.has:
		return malformed(nil, "An Object has no Key")
	case name.Local == "Key" && len(s.keys) == maxDeletes:
		return malformed(nil, "There are more than %d objects", maxDeletes)
	case name.Local == "Key":
		s.keys = append(s.keys, s.key.String())
		s.key = strings.Builder{}
	case depth >= 2:
		return content(name.Local, s.rest.String())
	}
	return nil
}

// text takes the text inside an element. Outside of Key and of unknown elements only white space is
// allowed; a byte order mark may be in front.
func (s *deletes) text(t xml.CharData) *Error {
	depth := len(s.open)
	switch {
	case depth > 0 && local(s.open[depth-1]) == "Key":
		s.key.Write(t)
	case depth > 2:
		s.rest.Write(t)
	case depth == 0 && !s.done && strings.Trim(string(t), "\ufeff \t\r\n") == "":
	case depth < 2 && strings.Trim(string(t), " \t\r\n") != "":
		return malformed(nil, "There is text outside of all elements")
	}
	return nil
}
