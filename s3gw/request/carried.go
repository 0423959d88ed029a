package request

import (
	"net/http"
	"slices"
	"strings"
)

// carried refuses a write with a header or parameter that is on no list here. To its origin the
// name may mean to copy, link or move the object from where the client has no rights. Examples are
// X-Copy-From, X-Object-Manifest, x-oss-copy-source, and X_Amz_Copy_Source where headers are
// variables. Only known names are honoured, and none that could change what the origin does is
// dropped silently.
func carried(h http.Header, p *params) *Error {
	for name, values := range h {
		if header(name, values).has(headerOther) && !known(name) {
			return New("InvalidRequest", "The header %s is not known here, and could have the bucket do something else: send the write without it", name)
		}
		if name == "X-Amz-Trailer" && slices.ContainsFunc(values, trailing) {
			return notTrailing()
		}
	}
	for raw := p.raw; ; {
		a, rest, more, _ := next(raw)
		if !more {
			return nil
		}
		if raw = rest; len(a.name) < 2 || a.name[0]|0x20 != 'x' || a.name[1] != '-' && a.name[1] != '_' || presigned(a.name) {
			continue
		}
		// Amazon takes headers from the query of a presigned URL as well.
		if name := http.CanonicalHeaderKey(a.name); !known(name) || strings.ContainsAny(name, "/\\%\x00") {
			return New("InvalidRequest", "The parameter %q is not known here, and could have the bucket do something else: send the write without it", a.name)
		} else if name == "X-Amz-Trailer" && trailing(a.value()) {
			return notTrailing()
		}
	}
}

// Vendor reports whether a header is neither HTTP's nor Amazon's. Some origin may take it for a
// part of the request, as MinIO takes X-Minio-Force-Delete. name is in Go's canonical form.
func Vendor(name string, values []string) bool {
	return header(name, values).has(headerOther) && (!known(name) || strings.HasPrefix(name, "X-Minio-"))
}

// trailing reports whether one of the announced trailers is not a checksum: a server could take it
// for a header.
func trailing(value string) bool {
	for name := range strings.SplitSeq(value, ",") {
		if name = strings.ToLower(strings.TrimSpace(name)); name != "" && !strings.HasPrefix(name, "x-amz-checksum-") {
			return true
		}
	}
	return false
}

func notTrailing() *Error {
	return New("InvalidRequest", "The value specified in the x-amz-trailer header is not supported: what follows a body are checksums (x-amz-checksum-...)")
}

// known reports whether a write may have a header, besides those that change no answer. "_" is
// allowed only in the names of metadata: servers that pass headers as variables take it for "-".
func known(name string) bool {
	if strings.IndexByte(name, '_') >= 0 {
		return strings.HasPrefix(name, "X-Amz-Meta-")
	}
	switch name {
	case "X-Minio-Force-Delete", "X-Minio-Extract": // their effects are counted
		return true
	}
	return amzHeader(name) || httpHeader(name) || onTheWay(name)
}

// amzHeader reports whether a header is of the S3 API, and writes objects or configures buckets.
func amzHeader(name string) bool {
	name, ok := strings.CutPrefix(name, "X-Amz-")
	if !ok {
		return false
	}
	switch name {
	case "Acl", "Api-Version", "Bucket-Object-Lock-Enabled", "Bucket-Object-Lock-Token", "Bypass-Governance-Retention",
		"Confirm-Remove-Self-Bucket-Access", "Copy-Source", "Copy-Source-Range", "Date", "Decoded-Content-Length",
		"Expected-Bucket-Owner", "Metadata-Directive", "Mfa", "Mp-Object-Size", "Object-Ownership", "Request-Payer",
		"Sdk-Checksum-Algorithm", "Skip-Destination-Validation", "Source-Expected-Bucket-Owner", "Storage-Class", "Tagging",
		"Tagging-Directive", "Te", "Trailer", "Transition-Default-Minimum-Object-Size", "User-Agent", "Website-Redirect-Location",
		"Write-Offset-Bytes":
		return true
	}
	for _, p := range [...]string{"Meta-", "Checksum-", "Copy-Source-If-", "Copy-Source-Server-Side-Encryption-Customer-", "Grant-", "If-Match-",
		"Object-Lock-", "Server-Side-Encryption"} {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return false
}

// httpHeader reports whether a header is HTTP's own; no origin takes the values of those for names.
func httpHeader(name string) bool {
	switch name {
	case "Content-Md5", "Content-Disposition", "Content-Encoding", "Content-Language", "Expires", "Expect", "Range", "If-Range",
		"If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since", "Origin", "Cookie", "From", "Max-Forwards", "Save-Data",
		"Access-Control-Request-Method", "Access-Control-Request-Headers", "X-Requested-With", "Proxy-Authorization":
		return true
	}
	return strings.HasPrefix(name, "Sec-")
}

// onTheWay reports whether proxies, tracing or SDKs add a header, about themselves or the client.
func onTheWay(name string) bool {
	switch name {
	case "X-Real-Ip", "X-Client-Ip", "X-Cluster-Client-Ip", "X-Original-Forwarded-For", "X-Original-Host", "True-Client-Ip", "X-Scheme",
		"Cdn-Loop", "Cf-Ray", "Cf-Connecting-Ip", "Cf-Connecting-Ipv6", "Cf-Ipcountry", "Cf-Visitor", "Cf-Warp-Tag-Id", "X-Amz-Cf-Id",
		"X-Correlation-Id", "X-Request-Start", "X-Cloud-Trace-Context", "Grpc-Trace-Bin", "B3", "Uber-Trace-Id", "Sentry-Trace", "Newrelic",
		"Elastic-Apm-Traceparent", "X-Trace-Id", "X-Dynatrace", "X-Nginx-Proxy", "X-Original-Uri":
		return true
	}
	for _, p := range [...]string{"X-Forwarded-", "X-Envoy-", "X-B3-", "X-Datadog-", "Amz-Sdk-", "Aws-Sdk-", "Uberctx-",
		"X-Auth-Request-", "X-Azure-", "X-Arr-", "Fastly-", "L5d-"} {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return false
}
