package request

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// calls are Amazon's operations as the manual lists them, each with a request for it.
func calls() []string {
	return []string{
		"GET /", "HEAD /bucket", "GET /bucket?location", "GET /bucket?list-type=2", "GET /bucket",
		"GET /bucket/key", "HEAD /bucket/key",
		"PUT /bucket/key", "PUT /bucket/key (x-amz-copy-source)", "DELETE /bucket/key", "POST /bucket?delete",
		"POST /bucket/key?uploads", "PUT /bucket/key?uploadId=1&partNumber=1", "PUT /bucket/key?uploadId=1&partNumber=1 (x-amz-copy-source)",
		"POST /bucket/key?uploadId=1", "DELETE /bucket/key?uploadId=1", "GET /bucket/key?uploadId=1", "GET /bucket?uploads",
		"GET /bucket/key?tagging", "PUT /bucket/key?tagging", "DELETE /bucket/key?tagging", "GET /bucket/key?attributes",
		"GET /bucket/key?acl", "PUT /bucket/key?acl", "GET /bucket?acl", "GET /bucket?versions", "GET /bucket?versioning", "GET /bucket?ownershipControls",
		"GET /bucket/key?retention", "PUT /bucket/key?retention", "GET /bucket/key?legal-hold", "PUT /bucket/key?legal-hold",
		"POST /bucket/key?restore", "POST /bucket/key?select&select-type=2",
		"PUT /bucket", "DELETE /bucket", "GET /bucket?policy", "PUT /bucket?policy", "DELETE /bucket?policy",
		"PUT /bucket?lifecycle", "PUT /bucket?versioning", "PUT /bucket?cors",
		"POST /bucket", "GET /bucket?session", "GET /bucket/key?torrent", "PUT /bucket/key?renameObject",
		"POST /bucket?hearth-batch", "OPTIONS /bucket/key",
	}
}

// meaning is how a request is answered, in the manual's words.
func meaning(q *Request) string {
	switch q.How {
	case Cached:
		return "from the cache"
	case Pass:
		return "passed to the bucket"
	case Write:
		return "written to the bucket, and seen at once"
	case Configure:
		return "refused; passed with `configure`"
	case Own:
		return "answered by the endpoint"
	}
	return "refused: " + q.Fault.Code
}

func TestTableOfTheManualIsCurrent(t *testing.T) {
	// docs/s3.md says for each of Amazon's operations how it is answered, and which right it needs.
	// It also says whether e2e's s3-differential has compared its answers with an origin's and
	// found them equal. All that must match this package.
	const file, begin, end = "../../docs/s3.md", "<!-- operations: go test ./s3gw/request -run Manual -update -->\n", "<!-- end of operations -->"
	equal, err := os.ReadFile("../../e2e/testdata/s3_operations.txt")
	if err != nil {
		t.Fatal(err)
	}
	compared := strings.Fields(string(equal))
	var table strings.Builder
	table.WriteString("| operation | request | what becomes of it | right | compared |\n|---|---|---|---|---|\n")
	for _, call := range calls() {
		asked, header, copied := strings.Cut(call, " (")
		method, target, _ := strings.Cut(asked, " ")
		var headers []string
		if copied {
			headers = []string{strings.TrimSuffix(header, ")") + ": /bucket/other"}
		}
		q, _ := Parse(ask(t, method, target, headers...), Options{})
		right := "ro"
		switch {
		case q.How == Refuse:
			right = "-"
		case q.Changes:
			right = "rw"
		case q.Operation == "Preflight":
			right = "none"
		case q.Operation == "ListBuckets":
			right = "any key"
		}
		same := "-"
		if slices.Contains(compared, q.Operation) {
			same = "equal"
		}
		fmt.Fprintf(&table, "| %s | `%s` | %s | %s | %s |\n", q.Operation, call, meaning(q), right, same)
	}
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(page), begin)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no place for the table of operations", file)
	}
	want := before + begin + "\n" + table.String() + "\n" + end + after
	if want == string(page) {
		return
	}
	if f := flag.Lookup("update"); f == nil || f.Value.String() != "true" {
		t.Fatalf("%s is stale: go test ./s3gw/request -run Manual -update", file)
	}
	if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}
