package request

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
)

const (
	// MaxDocumentBytes bounds a document for Document, in bytes: 10,000 parts of an upload, each
	// with a checksum of 64 bytes, are 3 MiB.
	MaxDocumentBytes = 4 << 20
	// documentDepth is the depth of <CompleteMultipartUpload><Part><ETag>: an element there holds
	// only text.
	documentDepth = 3
)

// Documented reports whether the body of an operation may name something that the request has no
// right to. Document checks such a body before the request goes on.
func Documented(operation string) bool {
	return operation == "CompleteMultipartUpload" || operation == "RestoreObject"
}

// Document checks the body of such an operation by the same rules as its parameters:
//
//	CompleteMultipartUpload  a PartNumber is an id, and nothing else leads upwards as a path
//	RestoreObject            has no output, which MinIO writes to any bucket that it names
//
// All other faults are left to the origin. The error is a *Error.
func Document(operation string, body io.Reader) error {
	d := xml.NewDecoder(&bounded{r: body, left: MaxDocumentBytes})
	depth := 0
	var text strings.Builder // text of the open element, since the last begin or end of one
	for {
		t, err := d.RawToken()
		switch {
		case err == io.EOF:
			if f := steady("The document", text.String()); f != nil {
				return f
			}
			return nil
		case errors.Is(err, errLong):
			return malformed(err, "The document is longer than %d bytes", MaxDocumentBytes)
		case err != nil:
			return malformed(err, "The XML you provided was not well-formed or did not validate against our published schema")
		}
		var f *Error
		switch t := t.(type) {
		case xml.StartElement:
			depth++
			f = begins(operation, t.Name.Local, depth)
			text.Reset()
		case xml.EndElement:
			depth--
			if operation == "CompleteMultipartUpload" {
				f = content(t.Name.Local, text.String())
			}
			text.Reset()
		case xml.CharData:
			text.Write(t)
		case xml.Directive:
			f = malformed(nil, "A DOCTYPE is not taken")
		}
		if f != nil {
			return f
		}
	}
}

// begins returns the fault of an element at its place, or nil.
func begins(operation, name string, depth int) *Error {
	switch folded(name) {
	case "outputlocation", "selectparameters":
		if operation == "RestoreObject" {
			return New("NotImplemented", "A restore with %s writes to a place that was not asked for by its key; restore without it", name)
		}
	}
	if operation == "CompleteMultipartUpload" && depth > documentDepth {
		return malformed(nil, "The element %s has no place there", name)
	}
	return nil
}

// content checks the text of an element against the rule of the element's name.
func content(name, text string) *Error {
	text = strings.Trim(text, " \t\r\n")
	switch rule := ruleOf(name); {
	case rule == ruleID && !id(text):
		return New("InvalidArgument", "The %s in the document is not taken: such a value has letters, digits and ._~+=- alone, and is not made of dots", name)
	case rule == ruleSteady:
		return steady("The "+name+" in the document", text)
	}
	return nil
}

// steady returns the fault of a text that climbs, or nil.
func steady(what, text string) *Error {
	if !climbs(text) {
		return nil
	}
	return New("InvalidArgument", "%s is not taken: it leads upwards as a path; leave out the .. in it", what)
}
