package e2e

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// sameAnswer tells in what two answers to one request differ; "": in nothing that a client may
// go by. written: the request went to two buckets, at two times.
func sameAnswer(a s3Ask, origin, here *s3Answer, written bool) string {
	if stricter(a, origin, here) {
		return ""
	}
	if origin.status != here.status {
		return fmt.Sprintf("status %d, and here %d: %.400s\n and here: %.400s", origin.status, here.status, origin.body, here.body)
	}
	if origin.status >= 400 {
		// Of errors clients read status and code. Messages are people's, and an error that is
		// told before the origin is asked has our words and none of its headers.
		// Where the origin's code is its status it is its framework's: the request was not understood.
		if a.method != http.MethodHead && origin.code() != here.code() && origin.code() != strconv.Itoa(origin.status) && !sameFault(origin, here) {
			return fmt.Sprintf("code %q, and here %q: %.400s\n and here: %.400s", origin.code(), here.code(), origin.body, here.body)
		}
		return ""
	}
	if strings.Contains(a.query, "continuation-token=hearth1.") {
		// To an origin that has to go on from a page of the endpoint's the token is a start-after, and it tells of that.
		origin.body, here.body = startAfter.ReplaceAll(origin.body, nil), startAfter.ReplaceAll(here.body, nil)
	}
	if isMinIO(origin) && (a.path == "" || origin.status == http.StatusNotModified) { // which says these of buckets and of what it does not send
		for _, name := range []string{"X-Amz-Bucket-Region", "Accept-Ranges", "Content-Length", "Content-Type"} {
			if here.header[name] == nil {
				origin.header.Del(name)
			}
		}
	}
	document := bytes.HasPrefix(bytes.TrimSpace(origin.body), []byte("<")) && strings.Contains(origin.header.Get("Content-Type"), "xml")
	for _, h := range []http.Header{origin.header, here.header} {
		switch origin.status {
		case http.StatusNotModified: // has no body, and so no type; versitygw says that of an error
			h.Del("Content-Type")
			for name := range h { // and leaves out what RFC 9110, section 15.4.5, wants to be told
				if origin.header[name] == nil {
					h.Del(name)
				}
			}
		case http.StatusPartialContent: // a range of all bytes has the sum of all at versitygw; here no range has one
			for name := range h {
				if strings.HasPrefix(name, "X-Amz-Checksum-") {
					h.Del(name)
				}
			}
		}
	}
	if d := sameHeaders(origin.header, here.header, document); d != "" {
		return d
	}
	if !document {
		if !bytes.Equal(origin.body, here.body) {
			return fmt.Sprintf("%d bytes %.60q, and here %d bytes %.60q", len(origin.body), origin.body, len(here.body), here.body)
		}
		return ""
	}
	x, errX := canonical(origin.body, written, false)
	y, errY := canonical(here.body, written, false)
	// versitygw takes no notice of encoding-type; Amazon, MinIO and the endpoint do, and say so.
	if decoded, err := canonical(here.body, written, bytes.Contains(here.body, []byte("<EncodingType>url<"))); err == nil && decoded == x {
		y = decoded
	}
	if errX != nil || errY != nil || x != y {
		i := 0
		for i < min(len(x), len(y)) && x[i] == y[i] {
			i++
		}
		from := max(0, i-60)
		return fmt.Sprintf("documents (%v, %v) differ at …%.300s\n and here …%.300s", errX, errY, x[min(from, len(x)):], y[min(from, len(y)):])
	}
	return ""
}

// isMinIO tells who answered.
func isMinIO(a *s3Answer) bool { return a.header.Get("Server") == "MinIO" }

// sameFault tells codes of MinIO's own, where the endpoint found the fault of a body ahead of it
// and has Amazon's word for it, as versitygw has; and those of two faults of one request.
func sameFault(origin, here *s3Answer) bool {
	if !isMinIO(origin) {
		return false
	}
	switch here.code() + " " + origin.code() {
	case "IncompleteBody ExcessData", // chunks hold more than was announced
		"InvalidRequest XAmzContentChecksumMismatch", // a trailer is no checksum
		"MalformedTrailerError BadRequest",           // another trailer than was announced
		"InvalidArgument XMinioInvalidResourceName",  // a copy of nothing to a key that MinIO has not
		"InvalidArgument XAmzContentSHA256Mismatch":  // x-amz-content-sha256 is no word that S3 knows
		return true
	}
	return false
}

// stricter tells requests that the endpoint refuses as Amazon does, or must, although versitygw
// does something with them, or has another word for it.
func stricter(a s3Ask, origin, here *s3Answer) bool {
	from, _, _ := strings.Cut(a.header.Get("X-Amz-Copy-Source"), "?")
	_, from, _ = strings.Cut(strings.TrimPrefix(from, "/"), "/")
	long, out := false, false
	for _, escaped := range []string{strings.TrimPrefix(a.path, "/"), from} {
		key, err := url.PathUnescape(escaped)
		long = long || err == nil && len(key) > 1024
		out = out || err == nil && slices.Contains(strings.Split(key, "/"), "..")
	}
	switch {
	case isMinIO(origin) && a.bucket == noBucket: // which looks for some things of a bucket before the bucket itself
		return here.code() == "NoSuchBucket" || a.method == http.MethodHead && here.status == http.StatusNotFound
	case isMinIO(origin) && strings.Contains(a.query, "max-keys=0"): // and yet it gives the first key behind a marker
		return here.status == http.StatusOK && len(pageOf(here).Contents)+len(pageOf(here).CommonPrefixes) == 0
	case here.status == http.StatusBadRequest && long: // Amazon's KeyTooLongError, and InvalidArgument of a source
		return true
	case here.status >= 400 && here.status < 500 && out: // a key that leads out of its bucket where keys are files' names; the origin has its own word for that
		return true
	case a.form != nil && a.form.flaw == "too long" && origin.status == http.StatusInternalServerError: // as versitygw now and then fails
		return here.code() == "IncompleteBody"
	case a.form != nil && a.form.flaw != "" && isMinIO(origin): // one that is too short fails MinIO now and then
		told := []string{"IncompleteBody", "InternalError"}
		return slices.Contains(told, origin.code()) && slices.Contains(told, here.code())
	case here.code() == "MalformedXML" && a.query == "delete": // whose keys nobody can be asked for; versitygw takes some for an empty list
		return !strings.Contains(a.body, "<Key>") || !strings.Contains(a.body, "</Delete>") || !strings.HasPrefix(a.body, "<Delete>")
	}
	return false
}

// free are headers that belong to an answer and not to what was asked for.
func free(name string, document bool) bool {
	switch name {
	case "Date", "Server", "Connection", "Keep-Alive", // who answered, when, and over which connection
		"X-Amz-Request-Id", "X-Amz-Id-2", "X-Request-Id", // made anew for each request
		"X-Amz-Tagging-Count",      // may be a minute old where tags are changed (package s3gw/object)
		"X-Amz-Access-Point-Alias": // that a bucket is none; HeadBucket is answered without asking, and MinIO does not say it
		return true
	case "X-Ratelimit-Limit", "X-Ratelimit-Remaining", "Strict-Transport-Security", "Vary", "X-Content-Type-Options", "X-Xss-Protection": // MinIO's own, of itself and to browsers
		return true
	case "Content-Length", "Transfer-Encoding", // of a document that two programs wrote
		"Accept-Ranges": // which MinIO says of documents too, that have none
		return document
	}
	return false
}

func sameHeaders(origin, here http.Header, document bool) string {
	names := map[string]bool{}
	for _, h := range []http.Header{origin, here} {
		for name := range h {
			names[name] = !free(name, document)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		x, y := origin[name], here[name]
		if document && name == "Content-Type" { // application/xml with and without its charset, and text/xml, are one to all clients
			continue
		}
		if names[name] && !slices.Equal(x, y) {
			return fmt.Sprintf("%s: %q, and here %q", name, x, y)
		}
	}
	return ""
}

// element is a document's.
type element struct {
	XMLName  xml.Name
	Text     string    `xml:",chardata"`
	Children []element `xml:",any"`
}

// origins are URLs' servers, which differ.
var origins = regexp.MustCompile(`^https?://[^/]+/`)

var startAfter = regexp.MustCompile(`<StartAfter>[^<]*</StartAfter>`)

// canonical writes a document so that two that mean the same are equal: children by their names,
// those of one name in their order. decode: keys are percent-encoded.
func canonical(text []byte, written, decode bool) (string, error) {
	var root element
	if err := xml.Unmarshal(text, &root); err != nil {
		return string(text), err
	}
	w := writer{written: written, decode: decode}
	w.element(&root, "")
	return w.String(), nil
}

// writer writes a document as canonical has it.
type writer struct {
	strings.Builder
	written, decode bool
}

func (b *writer) element(x *element, in string) {
	name, text := x.XMLName.Local, x.Text
	if len(x.Children) > 0 {
		text = "" // white space
	}
	switch name {
	case "ContinuationToken": // the request's own; versitygw tells start-after as one
		return
	case "NextMarker", "Marker": // each server's own, and told with and without a delimiter; pages are compared by following them
		return
	case "NextContinuationToken": // opaque
		text = ""
	case "LocationConstraint": // Amazon, versitygw and the endpoint have no word for us-east-1, and MinIO its name
		text = strings.TrimSuffix(text, "us-east-1")
	case "MaxKeys": // versitygw, as Amazon, tells 1000 of more; MinIO what was asked for, and gives 1000
		if n, err := strconv.Atoi(text); err == nil && n > 1000 {
			text = "1000"
		}
	case "RequestId", "HostId": // made anew for each request
		return
	case "EncodingType": // see sameAnswer
		return
	case "ChecksumAlgorithm", "ChecksumType": // of a listing, where not all origins tell them, and the tree of names does not keep them
		if in == "Contents" {
			return
		}
	case "LastModified", "Initiated": // two writes happen at two times; and whole seconds may be written with their thousandths
		at, err := time.Parse(time.RFC3339, text)
		if b.written || in == "Contents" { // of an object that was written again with the same bytes the tree of names keeps the time
			text = ""
		} else if err == nil {
			text = at.UTC().Truncate(time.Second).Format(time.RFC3339)
		}
	case "UploadId": // drawn by the server, and compared by using it
		text = ""
	case "Bucket", "Name", "BucketName": // the twin's
		text = strings.Replace(text, twinBucket, "data", 1)
	case "Location":
		text = strings.Replace(origins.ReplaceAllString(text, "/"), twinBucket, "data", 1)
	case "Key", "Prefix", "StartAfter", "Delimiter":
		if plain, err := url.QueryUnescape(text); b.decode && err == nil {
			text = plain
		}
	}
	_, _ = fmt.Fprintf(b, "<%s>%s", name, text)
	children := slices.Clone(x.Children)
	slices.SortStableFunc(children, func(p, q element) int {
		if name == "TagSet" { // a set: versitygw gives it in another order each time
			return strings.Compare(p.Children[0].Text, q.Children[0].Text)
		}
		return strings.Compare(p.XMLName.Local, q.XMLName.Local)
	})
	for i := range children {
		c := &children[i]
		// An empty element and none are one to all readers of XML for S3: most have no other word for "".
		if len(c.Children) > 0 || c.Text != "" {
			b.element(c, name)
		}
	}
	_, _ = fmt.Fprintf(b, "</%s>\n", name)
}
