package e2e

import (
	"crypto/md5"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
)

// s3aRename makes a directory of files and renames it as Hadoop's S3A does, by its requests in
// their order: it looks for a file, for a directory's marker and for names below before each
// step, copies one by one, deletes many at a time, and puts markers of directories.
func s3aRename(e *env) {
	const files = 50
	o := e.exclusive()
	h, s3 := e.serveS3(o)
	c := newS3Client(e, s3.url, s3.access, s3.secret)
	a := func(method, path, query string) s3Ask {
		return s3Ask{method: method, bucket: "data", path: path, query: query}
	}
	list := func(dir string) page {
		e.Helper()
		return pageOf(e.wants(c, 200, a("GET", "", "list-type=2&max-keys=2&delimiter=%2F&prefix="+strings.ReplaceAll(dir, "/", "%2F"))))
	}
	// absent is S3A's getFileStatus of what is not there.
	absent := func(name string) {
		e.Helper()
		e.wants(c, 404, a("HEAD", "/"+name, ""))
		e.wants(c, 404, a("HEAD", "/"+name+"/", ""))
		if p := list(name + "/"); len(p.Contents)+len(p.CommonPrefixes) > 0 {
			e.Errorf("%s is listed: %+v", name, p)
		}
	}
	there := func(name string) {
		e.Helper()
		e.wants(c, 404, a("HEAD", "/"+name, ""))
		if p := list(name + "/"); len(p.Contents)+len(p.CommonPrefixes) == 0 {
			e.Errorf("%s is not listed", name)
		}
	}
	absent("work/from")
	e.wants(c, 200, a("PUT", "/work/from/", ""))
	e.wants(c, 200, a("HEAD", "/work/from/", ""))
	for i := range files {
		put := a("PUT", fmt.Sprintf("/work/from/part-%05d", i), "")
		e.wants(c, 404, a("HEAD", put.path, ""))
		put.body = fmt.Sprintf("rows of part %d", i)
		e.wants(c, 200, put)
	}
	there("work/from")
	absent("work/to")
	e.wants(c, 200, a("PUT", "/work/to/", ""))
	e.wants(c, 200, a("HEAD", "/work/to/", ""))
	if p := pageOf(e.wants(c, 200, a("GET", "", "list-type=2&max-keys=5000&prefix=work%2Ffrom%2Fpart"))); len(p.Contents) != files {
		e.Errorf("before the rename %d files are listed", len(p.Contents))
	}
	doomed := "<Delete><Quiet>true</Quiet><Object><Key>work/from/</Key></Object>"
	for i := range files {
		from, to := fmt.Sprintf("/work/from/part-%05d", i), fmt.Sprintf("/work/to/part-%05d", i)
		e.wants(c, 200, a("HEAD", from, ""))
		ask := a("PUT", to, "")
		ask.header = http.Header{"X-Amz-Copy-Source": {"/data" + from}}
		e.wants(c, 200, ask)
		doomed += "<Object><Key>" + from[1:] + "</Key></Object>"
	}
	del := a("POST", "", "delete")
	del.body = doomed + "</Delete>"
	sum := md5.Sum([]byte(del.body))
	del.header = http.Header{"Content-Md5": {base64.StdEncoding.EncodeToString(sum[:])}}
	e.wants(c, 200, del)
	absent("work/from")
	there("work/to")
	for i := range files {
		name := fmt.Sprintf("work/to/part-%05d", i)
		want := fmt.Sprintf("rows of part %d", i)
		if got := e.wants(c, 200, a("GET", "/"+name, "")); string(got.body) != want {
			e.Errorf("%s is %q", name, got.body)
		}
		if got, err := os.ReadFile(filepath.Join(h.dir, name)); err != nil || string(got) != want {
			e.Errorf("in the mount %s is %q, %v", name, got, err)
		}
	}
	if left, err := os.ReadDir(filepath.Join(h.dir, "work/from")); err == nil {
		e.Errorf("the mount has the directory's old name, with %d files", len(left))
	}
	h.quit()
}
