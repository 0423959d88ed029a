package e2e

import (
	"crypto/md5"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
)

const (
	s3aFiles = 50
	// A page of a listing and a request of deletes, small so that there are several of both:
	// fs.s3a.paging.maximum (5000), fs.s3a.bulk.delete.page.size (250).
	s3aPage, s3aBulk = 15, 20
)

// s3a asks for what Hadoop's S3A file system asks for, in its order and with its headers, and acts
// on the answers as it does. Every read is asked of the origin, too, which must say the same.
type s3a struct {
	*env
	here, there   *s3Client
	bucket, mount string
	// old is the way of Hadoop 3.2 with the first SDK: a directory's marker is looked for by itself,
	// and goes when something comes into the directory. Else that of 3.4 with the second: markers
	// stay, directories are listed alone, and copies are made ten at a time.
	old bool
	// encodes says that the origin's own pages have keys percent-encoded, as was asked: versitygw
	// takes no notice of it.
	encodes bool
}

// s3aRename has both versions make a directory of files, read, rename and remove it; after each
// step endpoint, mount and origin have the same.
func s3aRename(e *env, o *server) {
	h, s3 := e.serveS3(o)
	for _, old := range []bool{true, false} {
		a := &s3a{env: e, here: s3.client(), there: e.direct(o), bucket: o.bucket, mount: h.dir, old: old}
		a.encodes = e.wants(a.there, http.StatusOK, s3Ask{method: "HEAD", bucket: o.bucket}).header.Get("Server") == "MinIO"
		base := map[bool]string{true: "by-3.2", false: "by-3.4"}[old]
		from, to := base+"/from", base+"/to"
		part := func(dir string, i int) string { return fmt.Sprintf("%s/dt=2026-01-01/part %05d", dir, i) }
		a.mkdirs(from + "/dt=2026-01-01")
		a.agrees("a new directory")
		for i := range s3aFiles {
			a.create(part(from, i), fmt.Sprintf("rows of part %d", i), false)
		}
		a.agrees("new files")
		if n := len(a.list(from+"/dt=2026-01-01/", true, nil)); n < s3aFiles {
			e.Errorf("%s: %d files are listed", base, n)
		}
		a.create(part(from, 0), "another, longer content", true)
		a.reads(part(from, 0), "another, longer content")
		a.mkdirs(from + "/empty")
		a.agrees("a file that was replaced, and an empty directory")

		a.slashes(from)
		a.rename(from, to)
		a.agrees("a directory that was renamed")
		a.is(from, "")
		a.is(to, "directory")
		a.is(to+"/empty", "directory")
		a.reads(part(to, 0), "another, longer content")
		a.reads(part(to, s3aFiles-1), fmt.Sprintf("rows of part %d", s3aFiles-1))
		a.renameFile(part(to, 1), to+"/one")
		a.agrees("a file that was renamed")
		a.is(part(to, 1), "")
		a.reads(to+"/one", "rows of part 1")

		a.rename(to, from) // the name of before, which was believed to be gone
		a.agrees("a directory under the name of before")
		a.is(to, "")
		a.create(base+"/_SUCCESS", "", true)
		a.remove(from)
		a.agrees("a directory that was removed")
		a.is(from, "")
		a.is(base, "directory")
	}
	h.quit()
}

// slashes asks for what lies behind two slashes, as a job does whose path ends in one: MinIO refuses
// such names, and that says nothing of the directory.
func (a *s3a) slashes(dir string) {
	a.Helper()
	for range 2 {
		for _, name := range []string{dir + "//", dir + "//x"} {
			a.head(name)
			for _, grouped := range []bool{true, false} {
				a.ask(s3Ask{method: "GET", query: listQuery(name, grouped, s3aPage, "")})
			}
		}
		if left, err := os.ReadDir(filepath.Join(a.mount, dir, "%_")); !os.IsNotExist(err) {
			a.Errorf("behind two slashes the mount has %v, %v", left, err)
		}
		a.is(dir, "directory")
	}
	a.agrees("a directory that was asked for by two slashes")
}

// mkdirs looks for the directory and those above it until one is there, and puts a marker.
func (a *s3a) mkdirs(dir string) {
	a.Helper()
	for at := dir; at != "."; at = path.Dir(at) {
		what := ""
		switch {
		case a.old:
			what = a.status(at)
		case a.listed(at):
			what = "directory"
		case a.head(at).status == http.StatusOK:
			what = "file"
		}
		if what != "" {
			if at == dir || what == "file" {
				a.Errorf("there is a %s at %s", what, at)
			}
			break
		}
	}
	a.mark(dir)
}

// mark puts a marker, which takes the place of those above it.
func (a *s3a) mark(dir string) {
	a.Helper()
	a.put(dir+"/", "", "application/x-directory")
	a.wrote(dir)
}

// create is of a file with content.
func (a *s3a) create(name, content string, overwrite bool) {
	a.Helper()
	switch {
	case overwrite && !a.old:
		a.listed(name) // that it is no directory is enough
	case overwrite:
		a.status(name)
	default:
		a.is(name, "")
	}
	a.put(name, content, "application/octet-stream")
	a.wrote(name)
}

// wrote removes the markers above a name.
func (a *s3a) wrote(name string) {
	a.Helper()
	if !a.old {
		return
	}
	var above []string
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		above = append(above, dir+"/")
	}
	if len(above) > 0 {
		a.unlink(above, "ErrDirectoryNotEmpty") // versitygw's word; S3A takes no notice of any
	}
}

// reads opens a file and reads it.
func (a *s3a) reads(name, want string) {
	a.Helper()
	if a.old {
		a.is(name, "file")
	}
	head := a.head(name)
	length, tag := head.header.Get("Content-Length"), head.header.Get("Etag")
	h := http.Header{"Range": {fmt.Sprintf("bytes=0-%d", len(want)-1)}}
	if !a.old {
		h.Set("If-Match", tag)
		h.Set("X-Amz-Te", "append-md5")
	}
	got := a.ask(s3Ask{method: "GET", path: keyPath(name), header: h})
	if length != fmt.Sprint(len(want)) || got.status != http.StatusPartialContent || string(got.body) != want {
		a.Errorf("%s: %d, %s bytes, %.100q", name, got.status, length, got.body)
	}
	if got, err := os.ReadFile(filepath.Join(a.mount, name)); err != nil || string(got) != want {
		a.Errorf("%s in the mount: %.100q, %v", name, got, err)
	}
}

// rename copies all that lies below a directory, page by page, and removes what was copied while
// pages are to come.
func (a *s3a) rename(from, to string) {
	a.Helper()
	a.is(from, "directory")
	a.is(to, "")
	if parent := path.Dir(to); a.old {
		a.is(parent, "directory")
	} else if !a.listed(parent) {
		a.Errorf("%s is no directory", parent)
	}
	var doomed []string
	a.list(from+"/", false, func(p page) {
		var copies errgroup.Group
		copies.SetLimit(map[bool]int{true: 1, false: 10}[a.old])
		for _, x := range p.Contents {
			copies.Go(func() error {
				a.copies(x.Key, to+strings.TrimPrefix(x.Key, from))
				return nil
			})
			doomed = append(doomed, x.Key)
		}
		_ = copies.Wait()
		for len(doomed) >= s3aBulk {
			a.unlink(doomed[:s3aBulk])
			doomed = doomed[s3aBulk:]
		}
	})
	if len(doomed) > 0 {
		a.unlink(doomed)
	}
	a.wrote(to)
	a.remains(path.Dir(from))
}

// renameFile is a copy, then a removal: there is a while in which both names exist.
func (a *s3a) renameFile(from, to string) {
	a.Helper()
	a.is(from, "file")
	a.is(to, "")
	a.copies(from, to)
	a.ask(s3Ask{method: "DELETE", path: keyPath(from)})
	a.wrote(to)
	a.remains(path.Dir(from))
}

// copies has the server copy one object, metadata anew, if it is still the one that was looked at.
func (a *s3a) copies(from, to string) {
	a.Helper()
	head := a.head(from)
	h := http.Header{"X-Amz-Metadata-Directive": {"REPLACE"}, "X-Amz-Copy-Source": {"/" + a.bucket + keyPath(from)},
		"Content-Type": head.header["Content-Type"]}
	if !a.old {
		h["X-Amz-Copy-Source-If-Match"] = head.header["Etag"]
	}
	got := a.sent(a.here, s3Ask{method: "PUT", path: keyPath(to), header: h})
	switch {
	case got.code() == "DirectoryObjectContainsData" && strings.HasSuffix(from, "/"):
		a.put(to, "", "application/x-directory") // versitygw copies no markers, and S3A would end here
	case got.status != http.StatusOK || !strings.Contains(string(got.body), "CopyObjectResult"):
		a.Errorf("copy %s to %s: %d %.200s", from, to, got.status, got.body)
	}
}

// remove removes a directory and all below it.
func (a *s3a) remove(dir string) {
	a.Helper()
	a.is(dir, "directory")
	var doomed []string
	a.list(dir+"/", false, func(p page) {
		for _, x := range p.Contents {
			doomed = append(doomed, x.Key)
		}
	})
	for some := range slices.Chunk(doomed, s3aBulk) {
		a.unlink(some)
	}
	a.remains(path.Dir(dir))
}

// remains has a directory stay after what was in it went.
func (a *s3a) remains(dir string) {
	a.Helper()
	if a.old && a.status(dir) == "" || !a.old && !a.listed(dir) {
		a.mark(dir)
	}
}

// is fails where getFileStatus finds something else.
func (a *s3a) is(name, what string) {
	a.Helper()
	if got := a.status(name); got != what {
		a.Errorf("%s is %q and not %q", name, got, what)
	}
}

// status is getFileStatus: "file", "directory" or "".
func (a *s3a) status(name string) string {
	a.Helper()
	switch {
	case a.head(name).status == http.StatusOK:
		return "file"
	case a.old && a.head(name+"/").status == http.StatusOK, a.listed(name):
		return "directory"
	}
	return ""
}

func (a *s3a) head(key string) *s3Answer {
	a.Helper()
	return a.ask(s3Ask{method: "HEAD", path: keyPath(key)})
}

// listed reports whether anything lies below a directory, or its marker is there.
func (a *s3a) listed(dir string) bool {
	a.Helper()
	most := map[bool]int{true: 1, false: 2}[a.old]
	p := a.page(a.ask(s3Ask{method: "GET", query: listQuery(dir+"/", true, most, "")}))
	return len(p.Contents)+len(p.CommonPrefixes) > 0
}

// list gives the keys below a prefix, and each page of them before the next one is asked for.
func (a *s3a) list(prefix string, grouped bool, each func(page)) (keys []string) {
	a.Helper()
	for tokens := [2]string{}; ; {
		here, there := a.reading(s3Ask{method: "GET", query: listQuery(prefix, grouped, s3aPage, tokens[0])},
			listQuery(prefix, grouped, s3aPage, tokens[1]))
		p := a.page(here)
		for _, x := range p.Contents {
			keys = append(keys, x.Key)
		}
		if each != nil {
			each(p)
		}
		if tokens = [2]string{p.NextContinuationToken, a.page(there).NextContinuationToken}; tokens[0] == "" || tokens[1] == "" {
			return keys
		}
	}
}

// page reads one of the endpoint's or of the origin's.
func (a *s3a) page(got *s3Answer) page {
	p := pageOf(got)
	if passed := got.header.Get("X-Amz-Id-2") != ""; passed && a.encodes {
		for _, text := range markers(&p) {
			if plain, err := url.QueryUnescape(*text); err == nil {
				*text = plain
			}
		}
	}
	return p
}

// cut reports whether the origin's page is the beginning of the endpoint's: MinIO counts a directory
// and its marker as two, and tells less than it was asked for, as origins may.
func (a *s3a) cut(here, there *s3Answer) bool {
	p, q := a.page(here), a.page(there)
	n, m := len(q.Contents), len(q.CommonPrefixes)
	return a.encodes && q.IsTruncated && n <= len(p.Contents) && m <= len(p.CommonPrefixes) && n+m < len(p.Contents)+len(p.CommonPrefixes) &&
		slices.Equal(p.Contents[:n], q.Contents) && slices.Equal(p.CommonPrefixes[:m], q.CommonPrefixes)
}

func listQuery(prefix string, grouped bool, most int, token string) string {
	q := fmt.Sprintf("list-type=2&encoding-type=url&fetch-owner=false&max-keys=%d&prefix=%s", most, url.QueryEscape(prefix))
	if grouped {
		q += "&delimiter=%2F"
	}
	if token != "" {
		q += "&continuation-token=" + url.QueryEscape(token)
	}
	return q
}

// keyPath is a key as the SDKs write it into a path: all is escaped but slashes.
func keyPath(key string) string {
	return "/" + strings.ReplaceAll(strings.ReplaceAll(url.QueryEscape(key), "+", "%20"), "%2F", "/")
}

func (a *s3a) put(key, content, kind string) {
	a.Helper()
	h := http.Header{"Content-Type": {kind}}
	if !a.old {
		h.Set("Expect", "100-continue")
	}
	a.ask(s3Ask{method: "PUT", path: keyPath(key), header: h, body: content})
}

// unlink removes keys by one request, whether they are there or not; the origin may refuse one by
// some words.
func (a *s3a) unlink(keys []string, but ...string) {
	a.Helper()
	text := `<Delete xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Quiet>true</Quiet>`
	for _, key := range keys {
		text += "<Object><Key>" + key + "</Key></Object>"
	}
	text += "</Delete>"
	sum := md5.Sum([]byte(text))
	h := http.Header{"Content-Md5": {base64.StdEncoding.EncodeToString(sum[:])}, "Content-Type": {"application/xml"}}
	got := a.ask(s3Ask{method: "POST", query: "delete", header: h, body: text})
	var refused struct{ Error []struct{ Key, Code string } }
	if err := xml.Unmarshal(got.body, &refused); err != nil {
		a.Errorf("remove %q: %v: %.300s", keys, err, got.body)
	}
	for _, x := range refused.Error {
		if !slices.Contains(but, x.Code) {
			a.Errorf("remove %s: %s", x.Key, x.Code)
		}
	}
}

// ask sends a request that S3A sends: a write must be done, a read be answered as by the origin.
func (a *s3a) ask(x s3Ask) *s3Answer {
	a.Helper()
	if x.method == "GET" || x.method == "HEAD" {
		got, _ := a.reading(x, x.query)
		return got
	}
	got := a.sent(a.here, x)
	if got.status/100 != 2 {
		a.Errorf("%v: %d %.300s", x, got.status, got.body)
	}
	return got
}

// reading asks the endpoint, and the origin by a query of its own.
func (a *s3a) reading(x s3Ask, query string) (here, there *s3Answer) {
	a.Helper()
	here = a.sent(a.here, x)
	y := x
	y.query = query
	there = a.sent(a.there, y)
	if d := sameAnswer(x, looked(there), looked(here), false); d != "" && !a.cut(here, there) {
		a.Errorf("%v: %s", x, d)
	}
	return here, there
}

// looked is what S3A looks at in an answer.
func looked(a *s3Answer) *s3Answer {
	h := http.Header{}
	for name, values := range a.header {
		switch name {
		case "Content-Length", "Content-Range", "Content-Type", "Content-Encoding", "Etag", "Last-Modified", "X-Amz-Transfer-Encoding",
			"X-Amz-Version-Id", "X-Amz-Storage-Class", "X-Amz-Server-Side-Encryption":
			h[name] = values
		}
	}
	return &s3Answer{a.status, h, a.body}
}

// sent sends a request with the headers that the SDKs and S3A itself add.
func (a *s3a) sent(c *s3Client, x s3Ask) *s3Answer {
	a.Helper()
	sum := sha256.Sum256([]byte(x.body))
	h := x.header.Clone()
	if h == nil {
		h = http.Header{}
	}
	h.Set("X-Amz-Content-Sha256", hex.EncodeToString(sum[:]))
	h.Set("Amz-Sdk-Invocation-Id", "6e6f2c5c-6d6f-4b0e-9a44-1f1f3f2c9f5d")
	if a.old {
		h.Set("User-Agent", "Hadoop 3.2.4, aws-sdk-java/1.11.901 Linux/6.1.0 OpenJDK_64-Bit_Server_VM/11.0.20+8 java/11.0.20 vendor/Debian")
		h.Set("Amz-Sdk-Retry", "0/0/500")
		if h.Get("Content-Type") == "" {
			h.Set("Content-Type", "application/octet-stream")
		}
	} else {
		h.Set("User-Agent", "Hadoop 3.4.1 aws-sdk-java/2.24.6 Linux/6.1.0 OpenJDK_64-Bit_Server_VM/17.0.12+7 Java/17.0.12 vendor/Debian io/sync http/Apache cfg/retry-mode/adaptive hll/cross-region")
		h.Set("Amz-Sdk-Request", "attempt=1; max=6")
		h.Set("Referer", "https://audit.example.org/hadoop/1/op_rename/5f9c-00000021/?op=op_rename&p1=s3a://data/from&p2=s3a://data/to&pr=hadoop&ps=aa6e&id=5f9c-00000021&t0=1&fs=5f9c&t1=1&ts=1767225600000")
	}
	x.bucket, x.header = a.bucket, h
	got, err := c.do(a.ctx, x)
	if err != nil {
		a.Errorf("%v: %v", x, err)
		return &s3Answer{header: http.Header{}}
	}
	return got
}

// agrees fails where endpoint or mount do not have what the origin has.
func (a *s3a) agrees(what string) {
	a.Helper()
	want := a.fetched(a.there, a.bucket, "")
	same(a.env, what+", at the endpoint", a.fetched(a.here, a.bucket, ""), want)
	dirs := map[string]bool{".": true}
	for key := range want {
		if strings.HasSuffix(key, "/") {
			delete(want, key) // a marker is no name in a mount
		}
		for dir := path.Dir(key); !dirs[dir]; dir = path.Dir(dir) {
			dirs[dir] = true
		}
	}
	same(a.env, what+", in the mount", a.hashes(a.mount), want)
	there := map[string]bool{}
	err := filepath.WalkDir(a.mount, func(name string, d fs.DirEntry, err error) error {
		if rel, no := filepath.Rel(a.mount, name); err == nil && no == nil && d.IsDir() {
			there[rel] = true
		}
		return err
	})
	a.must(err, "walk the mount")
	same(a.env, what+", directories in the mount", there, dirs)
}
