package request

import (
	"strings"
)

// maxParams is many times what any operation has.
const maxParams = 64

// params is what the parameters of a request say about what it asks for.
type params struct {
	raw string
	// sub is the first sub-resource; many: there are others, too; valued: one has a value where
	// none is due, or none where one is. Servers differ in whether it then is one.
	sub          string
	many, valued bool
	// part: partNumber. id: that of a configuration. list2: list-type=2. forced:
	// x-minio-force-delete. session: a sub-resource that counts whatever stands before it.
	part, id, list2, forced, session bool
	// beyond: it asks for more than objects as they are now: an old version, or, of MinIO's listings,
	// metadata and tags.
	beyond bool
	// source is x-amz-copy-source, escaped as that header would be.
	prefix, source    string
	prefixes, sources int
	// climbing are keys to begin a listing behind that some server may take for paths upwards.
	climbing []string
	// other: there is one that no list of ours has. repeated: one is there twice. overrides:
	// response-*.
	other, repeated, overrides bool
}

// param is one of them. A value is decoded when it is asked for: most never are.
type param struct{ name, escaped string }

// value is what was checked when the query was first read.
func (p param) value() string {
	v, _ := unescape(p.escaped, true)
	return v
}

// next splits off the first parameter; empty ones are passed over, at the end there is none.
// Only & parts them: a semicolon belongs to what it stands in, as at Amazon.
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

// read reads a query as it was sent.
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

// escapes tells whether all escapes of s are well-formed.
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
	// A server that parts parameters at semicolons would see others behind one.
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

// beside tells whether there is a parameter beside the sub-resource and those of a signature: a
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

// subresource tells the parameters that choose the operation (Amazon's API reference).
func subresource(name string) bool {
	switch name {
	case "uploadId", "uploads", "tagging", "acl", "attributes", "delete", "versions", "location", "versioning",
		"retention", "legal-hold", "restore", "select", "torrent", "renameObject", "session", "hearth-batch":
		return true
	}
	return configuration(name) != ""
}

// familiar tells parameters that choose no operation, and widen none.
func familiar(name string) bool {
	switch name {
	case "delimiter", "marker", "max-keys", "encoding-type", "continuation-token", "start-after", "fetch-owner",
		"key-marker", "version-id-marker", "upload-id-marker", "max-uploads", "part-number-marker", "max-parts",
		"select-type", "x-id", "allow-unordered":
		return true
	}
	return len(name) > 6 && strings.EqualFold(name[:6], "x-amz-")
}
