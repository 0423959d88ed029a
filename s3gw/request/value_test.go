package request

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// upwards are values, as they stand in a query, that some server may take for a path out of where
// it belongs.
func upwards() []string {
	return []string{"..", ".", "...", "%2e%2e", "%2E.", "..%2F", "../../victim", "..%2F..%2Fvictim", "a/../../victim", "a%2F..%2Fvictim", "%252e%252e%252fvictim",
		"..%5Cvictim", "..%5c..%5cvictim", "/etc", "%2Fetc%2Fpasswd", "a/b", "a%2Fb", "a%5Cb", "C:x", "..%00x", "%00", "..%20", "..+", "a%0A", "a b", "%C3%A4", "a%25", "a,b", "a*", "~/x", "a?b", "a%23",
		"x;uploadId=..", strings.Repeat("a", 1025)}
}

func TestIDsAreOneSegment(t *testing.T) {
	// A parameter that names an upload, a version or a part may not be what a server could take for
	// a path, in any spelling and for any request. The refusal names the parameter.
	for _, c := range []struct{ method, target, name string }{
		{"DELETE", "/bucket/mine/x?", "uploadId"}, {"GET", "/bucket/mine/x?", "uploadId"}, {"HEAD", "/bucket/mine/x?", "uploadId"},
		{"POST", "/bucket/mine/x?", "uploadId"}, {"PUT", "/bucket/mine/x?partNumber=1&", "uploadId"}, {"PUT", "/bucket/mine/x?uploadId=a&", "partNumber"},
		{"DELETE", "/bucket/mine/x?", "uploadid"}, {"DELETE", "/bucket/mine/x?", "UPLOADID"}, {"DELETE", "/bucket/mine/x?", "upload-id"}, {"DELETE", "/bucket/mine/x?", "upload_id"},
		{"DELETE", "/bucket/mine/x?", "upload%49d"}, {"DELETE", "/bucket/mine/x?a=b;", "uploadId"}, {"DELETE", "/bucket/mine/x?a;", "uploadId"},
		{"DELETE", "/bucket/mine/x?X-Amz-SignedHeaders=host;", "uploadId"}, {"DELETE", "/bucket/mine/x?acl;", "versionId"},
		{"GET", "/bucket/mine/x?", "versionId"}, {"HEAD", "/bucket/mine/x?", "versionId"}, {"DELETE", "/bucket/mine/x?", "versionId"}, {"PUT", "/bucket/mine/x?tagging&", "versionId"},
		{"GET", "/bucket/mine/x?", "VersionId"}, {"GET", "/bucket/mine/x?", "partNumber"}, {"GET", "/bucket/mine/x?uploadId=a&", "part-number-marker"},
		{"GET", "/bucket?uploads&", "upload-id-marker"}, {"GET", "/bucket?versions&", "version-id-marker"}, {"GET", "/bucket?inventory&", "id"}, {"PUT", "/bucket?metrics&", "id"},
		{"GET", "/bucket/mine/x?", "x-amz-version-id"}, {"PUT", "/bucket/mine/x?uploadId=a&partNumber=1&", "x-amz-copy-source-range"},
	} {
		for _, v := range upwards() {
			_, err := Parse(ask(t, c.method, c.target+c.name+"="+strings.ReplaceAll(v, " ", "%20")), Options{})
			name, _ := url.QueryUnescape(c.name)
			if err == nil || !strings.HasPrefix(err.Error(), "InvalidArgument: ") || !strings.Contains(err.Error(), name) && !strings.HasPrefix(v, "x;") {
				t.Errorf("%s %s%s=%.40s: %v", c.method, c.target, c.name, v, err)
			}
		}
	}
	for _, two := range []string{"uploadId=a&uploadId=b", "uploadId=a&uploadId=a", "uploadId=a&uploadid=b", "uploadId=a&upload%49d=b", "uploadId=a;uploadId=b", "versionId=a&VersionId=b", "partNumber=1&uploadId=a&partNumber=2"} {
		if _, err := Parse(ask(t, "PUT", "/bucket/mine/x?"+two), Options{}); err == nil || !strings.HasPrefix(err.Error(), "InvalidArgument: There is more than one ") {
			t.Errorf("%s: %v", two, err)
		}
	}
}

func TestIDsOfRealServersPass(t *testing.T) {
	// Ids as servers make them are taken, also those of Amazon's with dots at their beginning and
	// two in a row.
	for server, id := range map[string]string{
		"Amazon":    "VXBsb2FkIElEIGZvciA2aWWpbmcncyBteS1tb3ZpZS5tMnRzIHVwbG9hZA",
		"Amazon's":  ".ibZBv_75gd9r8lH_gqXatLdxMVpAlj6ZQjEs..OwyF3953YdwbcQnMA2BLGn8Lx12fQNICtMw5KyteFeHw.Sjng--",
		"version":   "_vIUDd4Cx1UDGy7kWYqcGSMFTn2qM7dP",
		"dots":      "..kWYqcGSMFTn2qM7dP..",
		"null":      "null",
		"versitygw": "6a1d92f0-1f2b-4d0a-8a57-5d3c2a1b0c9e",
		"ULID":      "01J9ZK3V8M6Q2R4T6Y8A0B1C2D",
		"MinIO":     "Y2I2MzUyZDktMGQ1Ny00MzI1LTg5ZTItMWRiYzA2MjRkZjZhLjg5OTM5YzE2LTc5MGItNDhkZi05YWE5LTQ2MWE3YTY3ZWNhYg",
		"Ceph":      "2~Km1_OY2yQ6WkvdMfoBjmR7y0YeJpfwN",
		"R2":        "AK9bQH6F-vX_3hOQ3N0uVd2Tn8kqC1lV5oXh7w==",
		"GCS":       "ABPnzm7Zg-XO_5c0V4WtxDqg0DzC",
		"OSS":       "0004B9894A22E5B1888A1E29F8236E2D",
		"B2":        "4_z27c88f1d182b150646ff0b16_f200ec353a2184825_d20180309_m002000_c001_v0001089_t0016",
		"Swift":     "1513183455.58472",
		"plus":      "a%2Bb+c",
	} {
		for _, target := range []string{"DELETE /bucket/a?uploadId=", "POST /bucket/a?uploadId=", "GET /bucket/a?uploadId=", "PUT /bucket/a?partNumber=1&uploadId=", "GET /bucket/a?versionId=", "GET /bucket?uploads&key-marker=a&upload-id-marker="} {
			method, target, _ := strings.Cut(target, " ")
			if _, err := Parse(ask(t, method, target+id), Options{}); err != nil {
				t.Errorf("%s: %s %s: %v", server, method, target, err)
			}
		}
		r := ask(t, "PUT", "/bucket/a", "X-Amz-Copy-Source: /bucket/b?versionId="+strings.ReplaceAll(id, "+", "%2B"))
		if q, err := Parse(r, Options{}); err != nil || q.Source.Version == "" {
			t.Errorf("%s: as a source's version: %v", server, err)
		}
	}
}

func TestOtherValuesDoNotClimb(t *testing.T) {
	// An unknown parameter or header must not lead upwards, in any spelling. Text that no server
	// takes for a name may be anything.
	for _, c := range []struct {
		method, target, header string
		want                   bool
	}{
		{"GET", "/bucket/a?new=..%2Fx", "", false},
		{"GET", "/bucket/a?new=x/..", "", false},
		{"GET", "/bucket/a?new=..%5Cx", "", false},
		{"GET", "/bucket/a?new=%252e%252e%252fx", "", false},
		{"GET", "/bucket/a?acl=..", "", false},
		{"DELETE", "/bucket/a?generation=../x", "", false},
		{"GET", "/bucket/a?new=x;y=../x", "", false},
		{"GET", "/bucket/a?new=a/b..c/...d", "", true},
		{"GET", "/bucket/a?response-content-disposition=..%2Fx", "", true},
		{"GET", "/bucket?delimiter=..%2F", "", true},
		{"PUT", "/bucket/a?x-amz-meta-path=..%2Fx&x-amz-checksum-sha256=%2F..%2F", "", true},
		{"GET", "/bucket/a", "X-Amz-Version-Id: ../x", false},
		{"GET", "/bucket/a", "X-Amz-Part-Number-Marker: ../x", false},
		{"GET", "/bucket/a", "X-Upload_Id: ../x", false},
		{"GET", "/bucket/a", "New: a/../../x", false},
		{"GET", "/bucket/a", "Prefix: ../x", false},
		{"PUT", "/bucket/a?uploadId=a&partNumber=1", "X-Amz-Copy-Source-Range: bytes=0-../x", false},
		{"PUT", "/bucket/a?uploadId=a&partNumber=1", "X-Amz-Copy-Source-Range: bytes=0-5", true},
		{"PUT", "/bucket/a", "X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id: ../../other", false},
		{"PUT", "/bucket/a", "X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id: arn:aws:kms:eu:1:key/a-b", true},
		{"PUT", "/bucket/a", "X-Amz-Meta-Path: ../../x", true},
		{"PUT", "/bucket/a", "X-Amz-Website-Redirect-Location: /../x", true},
		{"PUT", "/bucket/a", "Content-Disposition: attachment; filename=../x", true},
		{"GET", "/bucket/a", "Referer: https://h/../x", true},
		{"GET", "/bucket/a", "Cookie: a=../x", true},
	} {
		header := c.header
		if header == "" {
			header = "Te: trailers"
		}
		_, err := Parse(ask(t, c.method, c.target, header), Options{})
		if (err == nil) != c.want || err != nil && !strings.HasPrefix(err.Error(), "InvalidArgument: ") {
			t.Errorf("%s %s with %s: %v", c.method, c.target, header, err)
		}
	}
}

func TestKeysThatClimbNeedTheRightToWhereTheyLead(t *testing.T) {
	// A client that has only mine/ gets nowhere else by a key, a prefix, a marker or a copy's
	// source, in any spelling. Odd keys of its own are open to it.
	mine := func(n Need) bool { return n.Bucket == "bucket" && (n.Some || strings.HasPrefix(n.Key, "mine/")) }
	for _, c := range []struct {
		method, target, source string
		want                   bool
	}{
		{"GET", "/bucket/mine/../victim", "", false},
		{"GET", "/bucket/mine/%2e%2e/victim", "", false},
		{"GET", "/bucket/mine/%252e%252e/victim", "", false},
		{"DELETE", "/bucket/mine/%25252e.%25252fvictim", "", false},
		{"PUT", "/bucket/mine/..%5Cvictim", "", false},
		{"PUT", "/bucket/mine/x%5C..%5C..%5Cvictim", "", false},
		{"PUT", "/bucket/mine/%25zz/%252e%252e/..%5C../victim", "", false},
		{"PUT", "/bucket/mine/%252e%252e/victim%5C..%5Cmine%5Cx", "", false},
		{"PUT", "/bucket/mine/%" + strings.Repeat("25", maxDecodings) + "2e%2E/victim", "", false},
		{"GET", "/bucket/mine/a%5Cb/%2525/100%25", "", true},
		{"GET", "/bucket/mine/http%253A%252F%252Fh%252Fx..y", "", true},
		{"GET", "/bucket/mine/a/%252e%252e/b", "", true},
		{"GET", "/bucket?prefix=mine/..%2F", "", false},
		{"GET", "/bucket?prefix=mine/..%5Cvictim", "", false},
		{"GET", "/bucket?prefix=mine/%252e%252e/victim", "", false},
		{"GET", "/bucket?prefix=mine/..", "", true},
		{"GET", "/bucket?prefix=mine/a&start-after=mine/b", "", true},
		{"GET", "/bucket?list-type=2&prefix=mine/&start-after=a", "", true},
		{"GET", "/bucket?list-type=2&prefix=mine/&start-after=mine/../victim", "", false},
		{"GET", "/bucket?list-type=2&prefix=mine/&start-after=..%2F..%2Fother", "", false},
		{"GET", "/bucket?list-type=2&prefix=mine/&start-after=mine/a/../b", "", true},
		{"GET", "/bucket?list-type=2&prefix=mine/&continuation-token=%252e%252e%252f", "", false},
		{"GET", "/bucket?list-type=2&prefix=mine/&continuation-token=a%2Bb%2F%2Fc%3D", "", true},
		{"GET", "/bucket?prefix=mine/&marker=..%5Cvictim", "", false},
		{"GET", "/bucket?uploads&prefix=mine/&key-marker=../x", "", false},
		{"GET", "/bucket?versions&prefix=mine/&key-marker=mine//x", "", true},
		{"PUT", "/bucket/mine/x", "bucket/mine/%2e%2e/victim", false},
		{"PUT", "/bucket/mine/x", "bucket/mine/%252e%252e/victim", false},
		{"PUT", "/bucket/mine/x", "bucket/mine/..%5Cvictim", false},
		{"PUT", "/bucket/mine/x", "/bucket/mine/a+%2e%2e/b", true},
		{"DELETE", "/bucket/mine/x", "/bucket/victim", false},
		{"POST", "/bucket/mine/x?uploads", "/other/victim", false},
		{"POST", "/bucket/mine/x?uploadId=a", "/other/victim", false},
		{"PUT", "/bucket/mine/x?tagging", "/other/victim", false},
		{"POST", "/bucket/mine/x?uploads", "/bucket/mine/y", true},
		{"POST", "/bucket?delete", "/other/victim", false},
		{"GET", "/bucket?versioning=x&prefix=mine/", "", false},
		{"GET", "/bucket?location=x", "", false},
		{"GET", "/bucket?location&list-type=2", "", false},
		{"GET", "/bucket?versioning&prefix=victim/", "", false},
		{"GET", "/bucket?versioning&X-Amz-Date=x&x-id=GetBucketVersioning", "", true},
	} {
		headers := []string{"Te: trailers"}
		if c.source != "" {
			headers = []string{"X-Amz-Copy-Source: " + c.source}
		}
		q, err := Parse(ask(t, c.method, c.target, headers...), Options{})
		if err != nil || q.Allowed(mine) != c.want {
			t.Errorf("%s %s %s: %v, %v", c.method, c.target, c.source, err, !c.want)
		}
		if err == nil && !q.Allowed(func(Need) bool { return true }) {
			t.Errorf("%s %s %s: not even with all rights", c.method, c.target, c.source)
		}
	}
	if q, err := Parse(ask(t, "GET", "/bucket?new=1&prefix=..%2Fother%2F"), Options{}); err != nil || q.Allowed(func(n Need) bool { return n.Bucket == "bucket" }) {
		t.Errorf("a prefix leads out of its bucket: %v", err)
	}
}

func TestSourcesWhoseVersionIsAPathAreRefused(t *testing.T) {
	// A version in a copy's source is an id, also where versitygw finds one after its own decoding.
	for _, v := range append(upwards(), "..%2f%2e%2e", "%2e%2e%5c") {
		r := ask(t, "PUT", "/bucket/mine/x")
		r.Header["X-Amz-Copy-Source"] = []string{"/bucket/mine/a?versionId=" + v}
		if _, err := Parse(r, Options{}); err == nil || !strings.HasPrefix(err.Error(), "InvalidArgument: ") {
			t.Errorf("versionId=%.40s: %v", v, err)
		}
	}
	for _, raw := range []string{"/bucket/mine/a%3FversionId=x", "/bucket/mine/a%3fversionid%3Dx", "/bucket/mine/a%253FversionId%253Dx", "bucket%2Fvictim%3FversionId=/x"} {
		r := ask(t, "PUT", "/bucket/mine/x")
		r.Header = http.Header{"X-Amz-Copy-Source": {raw}}
		if _, err := Parse(r, Options{}); err == nil || !strings.HasPrefix(err.Error(), "InvalidArgument: ") {
			t.Errorf("%s: %v", raw, err)
		}
	}
}

func TestReadingsAreBounded(t *testing.T) {
	// A request with as much nested encoding as it can hold is decoded only a few times, whoever
	// sent it.
	n := 0
	for range readings("%" + strings.Repeat("25", 8<<10)) {
		n++
	}
	if n != 1+maxDecodings {
		t.Errorf("%d readings", n)
	}
}
