package e2e

import (
	"strings"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// s3Buckets shows an account's buckets: clients make and remove them, and read what they may
// without a key; buckets are hosts, too.
func s3Buckets(e *env, o *server) {
	f := hearthtest.File{Path: "d/k", Size: 1 << 20}
	e.must(o.PutFile(e.ctx, o.bucket, "", f, 0), "put %s", f.Path)
	h, s3 := e.serveS3(o, "all_buckets: true", "configure: true", "anonymous: ["+o.bucket+"/d/]", "domains: [s3.test]")
	s3.script(o, "s3_buckets.py", o.bucket, f.Path, "made-by-boto3")

	_, at, _ := strings.Cut(s3.url, "://")
	_, port, _ := strings.Cut(at, ":")
	host := o.bucket + ".s3.test:" + port
	curl := func(args ...string) string {
		e.Helper()
		return s3.uses(o, "curl", append([]string{"-sS", "--resolve", host + ":127.0.0.1"}, args...)...)
	}
	for name, args := range map[string][]string{
		"a bucket as a host":          {"--aws-sigv4", "aws:amz:us-east-1:s3", "--user", s3.access + ":" + s3.secret, "http://" + host + "/" + f.Path},
		"anybody":                     {s3.url + "/" + o.bucket + "/" + f.Path},
		"anybody, a bucket as a host": {"http://" + host + "/" + f.Path},
	} {
		if out := curl(args...); hearthtest.Check([]byte(out), f.Path, 0, 0) != nil {
			e.Errorf("%s: %d bytes: %.300s", name, len(out), out)
		}
	}
	for name, args := range map[string][]string{
		"anybody's upload":               {"-X", "PUT", "-d", "x", s3.url + "/" + o.bucket + "/d/k"},
		"anybody, beside what is theirs": {s3.url + "/" + o.bucket + "/e"},
		"anybody's list of buckets":      {s3.url + "/"},
		"anybody's new bucket":           {"-X", "PUT", s3.url + "/anybodys"},
		"anybody's other headers":        {s3.url + "/" + o.bucket + "/" + f.Path + "?response-content-type=text/html"},
	} {
		out := curl(append([]string{"-w", " %{http_code}"}, args...)...)
		if !strings.HasSuffix(out, " 403") && !strings.HasSuffix(out, " 400") || hearthtest.Check([]byte(out[:max(0, len(out)-4)]), f.Path, 0, 0) == nil {
			e.Errorf("%s: %.300s", name, out)
		}
	}
	if out := curl(s3.url + "/" + o.bucket + "?list-type=2&prefix=d/"); !strings.Contains(out, "<Key>"+f.Path+"</Key>") {
		e.Errorf("anybody's listing: %s", out)
	}
	h.quit()
}

// s3Versions has a bucket keep versions: each change of what the latest one is is seen at once.
func s3Versions(e *env, o *server) {
	h, s3 := e.serveS3(o, "configure: true")
	s3.script(o, "s3_versions.py", o.bucket, h.dir)
	h.quit()
}
