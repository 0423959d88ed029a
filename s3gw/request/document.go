package request

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
)

const (
	// MaxDocumentBytes bounds a document that Document looks at: 10,000 parts of an upload, each
	// with a checksum of 64 bytes, are 3 MiB.
	MaxDocumentBytes = 4 << 20
	// documentDepth is that of <CompleteMultipartUpload><Part><ETag>: what is in an element there
	// is text alone.
	documentDepth = 3
)

// Documented tells operations whose body may name what the request has no right to; Document
// looks at it before it goes on.
func Documented(operation string) bool {
	return operation == "CompleteMultipartUpload" || operation == "RestoreObject"
}

// Document holds the body of such an operation against what its parameters are held against:
//
//	CompleteMultipartUpload  a PartNumber is an id, and nothing else leads upwards as a path
//	RestoreObject            has no output, which MinIO writes to any bucket that it names
//
// Whatever else is wrong with it is the origin's to say. The error is a *Error.
func Document(operation string, body io.Reader) error {
	d := xml.NewDecoder(&bounded{r: body, left: MaxDocumentBytes})
	depth := 0
	var text strings.Builder // of the element that is open, since the last one began or ended
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

// begins is what is wrong with an element at its place.
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

// content holds the text of an element of a document against the rule of its name.
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

// steady is the fault of a text that climbs.
func steady(what, text string) *Error {
	if !climbs(text) {
		return nil
	}
	return New("InvalidArgument", "%s is not taken: it leads upwards as a path; leave out the .. in it", what)
}
