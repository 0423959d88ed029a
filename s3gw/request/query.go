package request

import (
	"strings"
)

// maxParams is many times the parameters of any operation.
const maxParams = 64

// params is what the query of a request says about its operation.
type params struct {
	raw string
	// sub is the first sub-resource. many means that there are others. valued means that one has a
	// value where none is due, or none where one is due. Servers differ in whether it then is a
	// sub-resource.
	sub          string
	many, valued bool
	// part means partNumber, id the id of a configuration, list2 list-type=2, and forced
	// x-minio-force-delete. session means the sub-resource of that name, which counts whatever
	// stands before it.
	part, id, list2, forced, session bool
	// beyond means more than objects as they are now: an old version, or metadata and tags in
	// MinIO's listings.
	beyond bool
	// source is x-amz-copy-source, escaped as that header would be.
	prefix, source    string
	prefixes, sources int
	// climbing are keys behind which a listing begins, and that some server may take for paths
	// upwards.
	climbing []string
	// other means that a parameter is on no list here, repeated that one is there twice, overrides
	// that there is a response-*.
	other, repeated, overrides bool
}

// param is one parameter. Its value is decoded on demand: most never are.
type param struct{ name, escaped string }

// value decodes the value, whose escapes read has checked.
func (p param) value() string {
	v, _ := unescape(p.escaped, true)
	return v
}

// next splits off the first parameter, and skips empty ones; more is false at the end. Only &
// separates parameters: a semicolon belongs to what it stands in, as at Amazon.
func next(raw string) (p param, rest string, more, ok bool) {
	for raw != "" {
		var pair string
		pair, raw, _ = strings.Cut(raw, "&")
		if pair == "" {
			continue
		}
		name, value, _ := strings.Cut(pair, "=")
		name, ok = unescape(name, true)
		return param{name: name, escaped: value}, raw, true, ok
	}
	return param{}, "", false, true
}

// read parses a query as it was sent.
func (p *params) read(raw string) *Error {
	var names [maxParams]string
	p.raw = raw
	for n := 0; ; n++ {
		a, rest, more, ok := next(raw)
		if !more {
			break
		}
		if !ok || !escapes(a.escaped) {
			return badEscape()
		}
		if n == maxParams {
			return New("InvalidRequest", "There are more than %d query parameters", maxParams)
		}
		for _, before := range names[:n] {
			p.repeated = p.repeated || before == a.name
		}
		names[n], raw = a.name, rest
		p.add(a)
	}
	if p.prefixes > 1 { // some origins take the first, some the last
		return New("InvalidArgument", "There is more than one prefix")
	}
	return p.values(p.raw)
}

// escapes reports whether all escapes of s are well-formed.
func escapes(s string) bool {
	for {
		i := strings.IndexByte(s, '%')
		if i < 0 {
			return true
		}
		if i+2 >= len(s) || !hex(s[i+1]) || !hex(s[i+2]) {
			return false
		}
		s = s[i+3:]
	}
}

func (p *params) add(a param) {
	// A server that splits parameters at semicolons would see others behind one.
	if strings.Contains(a.name, ";") || strings.Contains(a.escaped, ";") && a.name != "X-Amz-SignedHeaders" {
		p.other = true
	}
	switch {
	case subresource(a.name):
		p.many = p.many || p.sub != "" && p.sub != a.name
		if p.sub == "" {
			p.sub = a.name
		}
		p.session = p.session || a.name == "session"
		p.valued = p.valued || (a.escaped == "") == (a.name == "uploadId")
	case a.name == "prefix":
		p.prefix = a.value()
		p.prefixes++
	case a.name == "list-type":
		p.list2 = a.escaped == "2"
	case a.name == "partNumber":
		p.part = true
	case a.name == "id":
		p.id = true
	case a.name == "versionId" || a.name == "metadata":
		p.beyond = true
	case strings.HasPrefix(a.name, "response-"):
		p.overrides = true
	case strings.EqualFold(a.name, "x-amz-copy-source"):
		// Amazon takes headers from the query of a presigned URL as well.
		p.source = a.value()
		p.sources++
	case strings.EqualFold(a.name, "x-minio-force-delete"):
		p.forced = true
	case !familiar(a.name):
		p.other = true
	}
}

// beside reports whether there is a parameter beside the sub-resource and those of a signature. A
// server may look at that one first, and list what it begins with.
func (p *params) beside() bool {
	for raw := p.raw; ; {
		a, rest, more, _ := next(raw)
		if !more {
			return false
		}
		if raw = rest; a.name != p.sub && !presigned(a.name) {
			return true
		}
	}
}

// subresource reports whether a parameter chooses the operation (Amazon's API reference).
func subresource(name string) bool {
	switch name {
	case "uploadId", "uploads", "tagging", "acl", "attributes", "delete", "versions", "location", "versioning",
		"retention", "legal-hold", "restore", "select", "torrent", "renameObject", "session", "hearth-batch":
		return true
	}
	return configuration(name) != ""
}

// familiar reports whether a parameter is known, chooses no operation, and widens none.
func familiar(name string) bool {
	switch name {
	case "delimiter", "marker", "max-keys", "encoding-type", "continuation-token", "start-after", "fetch-owner",
		"key-marker", "version-id-marker", "upload-id-marker", "max-uploads", "part-number-marker", "max-parts",
		"select-type", "x-id", "allow-unordered":
		return true
	}
	return len(name) > 6 && strings.EqualFold(name[:6], "x-amz-")
}
