package request

import (
	"strings"
	"testing"
)

// writes are requests of each kind that change something at an origin.
func writes() []string {
	return []string{"PUT /bucket/mine/x", "PUT /bucket/mine/x?tagging", "PUT /bucket/mine/x?uploadId=a&partNumber=1", "POST /bucket/mine/x?uploads", "POST /bucket/mine/x?uploadId=a", "POST /bucket/mine/x?restore",
		"POST /bucket/mine/x?select&select-type=2", "DELETE /bucket/mine/x", "DELETE /bucket/mine/x?uploadId=a", "POST /bucket?delete", "PUT /bucket", "PUT /bucket?policy", "DELETE /bucket"}
}

func TestAWriteHasOnlyHeadersThatAreKnown(t *testing.T) {
	// With these names servers copy, link, move or unpack what the client may have no right to.
	// Each is refused on every write, in every spelling, and in the query too; the refusal names
	// it.
	for _, name := range []string{
		"X-Copy-From", "X-Copy-From-Account", "X-Object-Manifest", "X-Static-Large-Object", "X-Symlink-Target", "X-Symlink-Target-Account", "X-Fresh-Metadata", "Destination", "Destination-Account", "Overwrite", "Content-Range", "Content-Location",
		"x-goog-copy-source", "x-goog-copy-source-generation", "x-goog-if-generation-match", "x-goog-meta-a", "x-oss-copy-source", "x-oss-symlink-target", "x-oss-process", "x-oss-callback", "x-obs-copy-source", "x-obs-rename-object", "x-cos-copy-source", "x-tos-copy-source", "x-bce-copy-source", "x-ms-copy-source",
		"x-emc-namespace", "x-wasabi-regenerate", "x-bz-info-a", "x-rgw-bucket-source", "x-container-read", "cf-copy-destination-if-none-match", "cf-create-bucket-if-missing", "x-archive-queue-derive", "X-Amz-Rename-Source", "X-Amz-Rename-Source-If-Match",
		"X-Amz-Copy-Source-Version-Id", "X-Amz-New", "X-Amz-Fwd-Status", "X-Amz-Request-Route", "New", "X-New", "Link", "X-Object-Meta-A", "X-Upload-Id", "X-Version-Id",
	} {
		for _, write := range writes() {
			method, target, _ := strings.Cut(write, " ")
			mark := "?"
			if strings.Contains(target, "?") {
				mark = "&"
			}
			forms := []struct{ target, header string }{{target, strings.ToLower(name) + ": other"}, {target, strings.ReplaceAll(name, "-", "_") + ": other"}, {target, name + ":"}}
			if strings.HasPrefix(strings.ToLower(name), "x-") && target != "/bucket?delete" {
				forms = append(forms, struct{ target, header string }{target + mark + name + "=x", "Te: trailers"}, struct{ target, header string }{target + mark + strings.ReplaceAll(name, "-", "_") + "=x", "Te: trailers"})
			}
			for _, f := range forms {
				_, err := Parse(ask(t, method, f.target, f.header), Options{})
				if err == nil || !strings.HasPrefix(err.Error(), "InvalidRequest: ") || !strings.Contains(folded(err.Error()), folded(name)) {
					t.Errorf("%s %s with %s: %v", method, f.target, f.header, err)
				}
			}
		}
	}
	for _, header := range []string{"X_Amz_Copy_Source", "X-Amz_Copy-Source", "X-Amz-Copy_Source", "x_amz_tagging", "Content_Type", "If_Match", "X_Amz_Meta_A", "X_HTTP_Method_Override", "X_Minio_Force_Delete", "X-Amz-Checksum_Sha256"} {
		for _, write := range writes() {
			method, target, _ := strings.Cut(write, " ")
			if _, err := Parse(ask(t, method, target, header+": /other/secret"), Options{}); err == nil || !strings.HasPrefix(err.Error(), "InvalidRequest: ") {
				t.Errorf("%s with %s: %v", write, header, err)
			}
		}
	}
	for _, write := range writes() { // a trailer comes after rights were checked
		method, target, _ := strings.Cut(write, " ")
		for _, trailer := range []string{"x-amz-copy-source", "x-amz-checksum-crc32, x-amz-copy-source", "x-amz-checksum-crc32\r\nX-Amz-Trailer: X-Amz-Acl", "x_amz_checksum_crc32"} {
			if _, err := Parse(ask(t, method, target, "X-Amz-Trailer: "+trailer), Options{}); err == nil || !strings.Contains(err.Error(), "x-amz-trailer") {
				t.Errorf("%s with the trailer %s: %v", write, trailer, err)
			}
		}
	}
	for _, header := range []string{"X_HTTP_Method_Override: DELETE", "X-HTTP_Method: PUT", "x_original_url: /x"} { // some server takes a read with one of them for a write
		if _, err := Parse(ask(t, "GET", "/bucket/a", header), Options{}); err == nil {
			t.Errorf("a read with %s passes", header)
		}
	}
}

func TestHeadersOfRealClientsPass(t *testing.T) {
	// No write is stopped by the headers that S3's API has for writes, that SDKs add, or that
	// browsers, proxies and tracing add on the way.
	for _, header := range []string{
		"x-amz-acl: private", "x-amz-api-version: 2006-03-01", "x-amz-bucket-object-lock-enabled: true", "x-amz-bypass-governance-retention: true", "x-amz-checksum-algorithm: CRC32", "x-amz-checksum-crc32: AAAAAA==", "x-amz-checksum-crc64nvme: x",
		"x-amz-checksum-sha256: /..+/==", "x-amz-checksum-type: FULL_OBJECT", "x-amz-confirm-remove-self-bucket-access: true", "x-amz-copy-source-if-match: x", "x-amz-copy-source-if-unmodified-since: x", "x-amz-copy-source-range: bytes=0-5",
		"x-amz-copy-source-server-side-encryption-customer-key-MD5: x", "x-amz-decoded-content-length: 1", "x-amz-expected-bucket-owner: 1", "x-amz-grant-full-control: id=1", "x-amz-grant-read-acp: id=1", "x-amz-if-match-last-modified-time: x",
		"x-amz-if-match-size: 1", "x-amz-meta-mtime: 1", "x-amz-meta-s3cmd-attrs: a:b/c", "x-amz-meta-with_line: ../x", "x-amz-meta-x-hadoop-s3a-magic-data-length: 1", "x-amz-meta-mc-attrs: x", "x-amz-metadata-directive: COPY", "x-amz-mfa: 1 2",
		"x-amz-mp-object-size: 1", "x-amz-object-lock-mode: GOVERNANCE", "x-amz-object-lock-retain-until-date: x", "x-amz-object-ownership: BucketOwnerEnforced", "x-amz-request-payer: requester", "x-amz-sdk-checksum-algorithm: CRC32",
		"x-amz-server-side-encryption: aws:kms", "x-amz-server-side-encryption-aws-kms-key-id: alias/a", "x-amz-server-side-encryption-bucket-key-enabled: true", "x-amz-server-side-encryption-context: /..x", "x-amz-server-side-encryption-customer-key: /../",
		"x-amz-skip-destination-validation: true", "x-amz-source-expected-bucket-owner: 1", "x-amz-storage-class: STANDARD", "x-amz-tagging: a=../b", "x-amz-tagging-directive: COPY", "x-amz-te: append-md5", "x-amz-trailer: x-amz-checksum-crc32",
		"x-amz-transition-default-minimum-object-size: x", "x-amz-user-agent: aws-sdk-js/3", "x-amz-website-redirect-location: https://h/../x", "x-amz-write-offset-bytes: 0", "x-amz-security-token: x", "x-amz-date: x", "x-amz-content-sha256: x",
		"Accept: */*", "Accept-Encoding: gzip", "Cache-Control: no-cache", "Content-Disposition: attachment; filename=\"../x\"", "Content-Encoding: gzip", "Content-Language: de", "Content-MD5: x", "Content-Type: text/plain", "Expect: 100-continue",
		"Expires: x", "If-Match: x", "If-None-Match: *", "If-Unmodified-Since: x", "User-Agent: aws-cli/2 ../x", "Date: x", "Cookie: a=b", "Origin: https://h", "Referer: https://audit.example.org/../x", "X-Requested-With: XMLHttpRequest",
		"amz-sdk-invocation-id: x", "amz-sdk-request: attempt=1", "amz-sdk-retry: 0/0/500", "aws-sdk-invocation-id: x", "aws-sdk-retry: 0/0", "Sec-Fetch-Mode: cors", "Sec-Ch-Ua: x", "Sec-New: x", "Priority: u=1",
		"Via: 1.1 p", "Forwarded: for=x", "X-Forwarded-For: 1.2.3.4", "X-Forwarded-Host: h", "X-Forwarded-Server: h", "X-Real-IP: 1.2.3.4", "X-Scheme: https", "X-Request-ID: x", "X-Envoy-Expected-Rq-Timeout-Ms: 1", "CDN-Loop: x", "CF-Ray: x",
		"traceparent: x", "tracestate: x", "baggage: x", "b3: x", "X-B3-TraceId: x", "uber-trace-id: x", "X-Amzn-Trace-Id: x", "X-Datadog-Trace-Id: 1", "sentry-trace: x", "X-Cloud-Trace-Context: x",
		"X-NginX-Proxy: true", "X-Original-URI: /bucket/x", "X-Auth-Request-User: a", "X-Azure-ClientIP: 1.2.3.4", "X-ARR-LOG-ID: x", "Fastly-Client-IP: 1.2.3.4", "l5d-dst-canonical: x", "X-dynaTrace: x", "X-Trace-Id: x",
	} {
		for _, write := range writes() {
			method, target, _ := strings.Cut(write, " ")
			if _, err := Parse(ask(t, method, target, header), Options{CORS: true}); err != nil {
				t.Errorf("%s with %s: %v", write, header, err)
			}
		}
	}
	const presigned = "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=a%2F20240101%2Fus-east-1%2Fs3%2Faws4_request&X-Amz-Date=1&X-Amz-Expires=1&X-Amz-SignedHeaders=host%3Bx-amz-acl&X-Amz-Signature=0&X-Amz-Content-Sha256=UNSIGNED-PAYLOAD&x-id=PutObject"
	for _, hoisted := range []string{"", "&x-amz-meta-a_b=%2F..%2F", "&x-amz-acl=private", "&X-Amz-Tagging=a%3D..%2Fb", "&x-amz-checksum-crc32=%2FAAA%3D%3D", "&x-amz-sdk-checksum-algorithm=CRC32", "&x-amz-user-agent=aws-sdk-js%2F3"} {
		if _, err := Parse(ask(t, "PUT", "/bucket/a?"+presigned+hoisted), Options{}); err != nil {
			t.Errorf("presigned %s: %v", hoisted, err)
		}
	}
}
