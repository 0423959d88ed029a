package e2e

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// bothWays is a bucket that is written through a node's S3 endpoint and through a writable mount, of the same node or of another.
type bothWays struct {
	*env
	o       *server
	client  *s3Client
	dir     string // of the mount
	waits   bool   // another node has the mount: what is written is seen soon, else at once
	longest time.Duration
	looks   int // that saw what was before
}

// writeEndpoint has one node's endpoint and its mount see at once what is written through the other.
func writeEndpoint(e *env) {
	o := e.origin()
	p := e.proxy(o)
	h, s3 := e.serveS3With(o, writable(settings{endpoint: p.endpoint}))
	b := &bothWays{env: e, o: o, dir: h.dir, client: newS3Client(e, s3.url, s3.access, s3.secret)}
	b.all()
	if b.looks > 0 {
		e.Errorf("%d looks saw what was before a write of the same node", b.looks)
	}
	h.quit()
	b.left()
}

// writeEndpointRing has one node's endpoint and another one's mount see what is written through the other.
func writeEndpointRing(e *env) {
	r := e.ring(0)
	if r == nil {
		return
	}
	keys := e.path("s3-keys")
	e.must(os.WriteFile(keys, []byte("all all-of-it-secret rw *\n"), 0o600), "write the keys")
	r.set = writable(r.set)
	r.set.extra = fmt.Sprintf("s3: {listen: \":9000\", credentials_file: %q}\n", keys)
	nodes := r.up(2, 0)
	b := &bothWays{env: e, o: r.o, dir: nodes[1].dir, waits: true, client: newS3Client(e, fmt.Sprintf("http://%s", net.JoinHostPort(nodes[0].at.Addr().String(), "9000")), "all", "all-of-it-secret")}
	b.client.http.Transport.(*http.Transport).DialContext = func(ctx context.Context, network, address string) (conn net.Conn, err error) {
		err = nodes[0].at.Do(func() (err error) {
			conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
			return err
		})
		return conn, err
	}
	b.all()
	e.shows("seen after %v at the latest, with %d looks more", b.longest.Round(time.Millisecond), b.looks)
	r.quit(nodes...)
	b.left()
}

func (b *bothWays) in(name string) string { return filepath.Join(b.dir, name) }

// sees looks until something is seen, at once if one node has both.
func (b *bothWays) sees(what string, fact func() bool) {
	b.Helper()
	start := time.Now()
	b.eventually(what, func() bool {
		if fact() {
			return true
		}
		if b.looks++; !b.waits {
			b.Fatalf("not seen at once: %s", what)
		}
		return false
	})
	b.longest = max(b.longest, time.Since(start))
}

// holds is what the mount has under a name; nil: nothing.
func (b *bothWays) holds(what, name string, want []byte) {
	b.Helper()
	b.sees(what, func() bool {
		got, err := os.ReadFile(b.in(name))
		names, listed := os.ReadDir(filepath.Dir(b.in(name)))
		there := slices.ContainsFunc(names, func(d os.DirEntry) bool { return d.Name() == filepath.Base(name) })
		if want == nil {
			return errors.Is(err, os.ErrNotExist) && (!there || errors.Is(listed, os.ErrNotExist))
		}
		return err == nil && listed == nil && there && string(got) == string(want)
	})
}

// answers is what the endpoint has under a key: by GET, by HEAD and in its listing; nil: nothing.
func (b *bothWays) answers(what, key string, want []byte) {
	b.Helper()
	b.sees(what, func() bool {
		get, head := b.ask(http.MethodGet, "/"+key, "", ""), b.ask(http.MethodHead, "/"+key, "", "")
		list := b.ask(http.MethodGet, "", "list-type=2&prefix="+key, "")
		var page struct {
			Contents []struct {
				Key, ETag string
				Size      int64
			}
		}
		b.must(xml.Unmarshal(list.body, &page), "read a listing")
		if want == nil {
			return get.status == http.StatusNotFound && head.status == http.StatusNotFound && !strings.Contains(string(list.body), "<Key>"+key+"</Key>")
		}
		if get.status != http.StatusOK || head.status != http.StatusOK || string(get.body) != string(want) || len(page.Contents) == 0 {
			return false
		}
		first := page.Contents[0]
		return first.Key == key && first.Size == int64(len(want)) && first.ETag == head.header.Get("Etag") && head.header.Get("Etag") == get.header.Get("Etag") && head.header.Get("Content-Length") == fmt.Sprint(len(want))
	})
}

func (b *bothWays) ask(method, path, query, body string) *s3Answer {
	b.Helper()
	a, err := b.client.do(b.ctx, s3Ask{method: method, bucket: b.o.bucket, path: path, query: query, body: body})
	b.must(err, "%s %s?%s", method, path, query)
	return a
}

// puts writes through the endpoint, in parts if the bytes are many.
func (b *bothWays) puts(key string, data []byte) {
	b.Helper()
	const part = 5 << 20
	if len(data) <= part {
		if a := b.ask(http.MethodPut, "/"+key, "", string(data)); a.status != http.StatusOK {
			b.Fatalf("PUT %s: %d %s", key, a.status, a.body)
		}
		return
	}
	var begun struct{ UploadId string }
	b.must(xml.Unmarshal(b.ask(http.MethodPost, "/"+key, "uploads=", "").body, &begun), "begin an upload")
	parts := ""
	for i := 0; i*part < len(data); i++ {
		a := b.ask(http.MethodPut, "/"+key, fmt.Sprintf("partNumber=%d&uploadId=%s", i+1, begun.UploadId), string(data[i*part:min(len(data), (i+1)*part)]))
		parts += fmt.Sprintf("<Part><PartNumber>%d</PartNumber><ETag>%s</ETag></Part>", i+1, a.header.Get("Etag"))
	}
	if a := b.ask(http.MethodPost, "/"+key, "uploadId="+begun.UploadId, "<CompleteMultipartUpload>"+parts+"</CompleteMultipartUpload>"); a.status != http.StatusOK {
		b.Fatalf("complete %s: %d %s", key, a.status, a.body)
	}
}

func (b *bothWays) deletes(key string) {
	b.Helper()
	if a := b.ask(http.MethodDelete, "/"+key, "", ""); a.status != http.StatusNoContent {
		b.Fatalf("DELETE %s: %d %s", key, a.status, a.body)
	}
}

// all writes each way, and at last both ways at once.
func (b *bothWays) all() {
	b.Helper()
	for i, key := range []string{"by-endpoint", "d/by-endpoint"} {
		b.holds("nothing yet", key, nil)
		b.puts(key, fill("first", 1000+i))
		b.holds("a PUT", key, fill("first", 1000+i))
		b.puts(key, fill("second", 2000))
		b.holds("a PUT over it", key, fill("second", 2000))
		b.puts(key, fill("parts", 6<<20))
		b.holds("an upload in parts over it", key, fill("parts", 6<<20))
		b.deletes(key)
		b.holds("a DELETE", key, nil)
	}

	write := func(name string, data []byte) {
		b.Helper()
		b.must(os.WriteFile(b.in(name), data, 0o644), "write %s", name)
	}
	for _, dir := range []string{"", "made/"} {
		if dir != "" {
			b.must(os.Mkdir(b.in(dir), 0o755), "make a directory")
		}
		key := dir + "by-mount"
		b.answers("nothing yet", key, nil)
		f, err := os.Create(b.in(key))
		b.must(err, "make a file")
		_, err = f.Write(fill("mount", 5000))
		b.must(err, "write it")
		b.answers("a file that is not closed", key, nil)
		b.must(f.Close(), "close it")
		b.answers("a close", key, fill("mount", 5000))
		write(key, fill("again", 300))
		b.answers("a close over it", key, fill("again", 300))
		f, err = os.OpenFile(b.in(key), os.O_WRONLY|os.O_APPEND, 0)
		b.must(err, "open it")
		_, err = f.WriteString("more")
		b.must(errors.Join(err, f.Close()), "append")
		b.answers("a change in place", key, append(fill("again", 300), "more"...))
		write(key+".tmp", fill("large", 18<<20))
		b.answers("a temporary name", key+".tmp", nil)
		b.must(os.Rename(b.in(key+".tmp"), b.in(key)), "rename it")
		b.answers("a rename of a draft", key, fill("large", 18<<20))
		b.must(os.Rename(b.in(key), b.in(key+"-moved")), "rename an object")
		b.answers("the old name of an object that was renamed", key, nil)
		b.answers("a rename of an object", key+"-moved", fill("large", 18<<20))
		b.must(os.Remove(b.in(key+"-moved")), "remove it")
		b.answers("an unlink", key+"-moved", nil)
	}

	// The endpoint overwrites what is open for writing.
	for _, c := range []struct {
		name  string
		flags int
		want  error
		keeps string
	}{{"replaced", 0, syscall.ESTALE, "theirs"}, {"made", os.O_CREATE, syscall.ESTALE, "theirs"}, {"exclusive", os.O_CREATE | os.O_EXCL, syscall.EEXIST, "theirs"}, {"emptied", os.O_TRUNC, nil, "ours"}} {
		name := "conflict-" + c.name
		if c.flags&os.O_CREATE == 0 {
			b.puts(name, []byte("before"))
			b.holds("what is there before", name, []byte("before"))
		}
		f, err := os.OpenFile(b.in(name), os.O_WRONLY|c.flags, 0o644)
		b.must(err, "open %s", name)
		_, err = f.WriteString("ours")
		b.must(err, "write %s", name)
		b.puts(name, []byte("theirs"))
		if err := f.Close(); !errors.Is(err, c.want) {
			b.Errorf("close of %s, which the endpoint wrote meanwhile: %v, expected %v", name, err, c.want)
		}
		b.holds("the winner", name, []byte(c.keeps))
		b.answers("the winner", name, []byte(c.keeps))
		kept, err := filepath.Glob(b.in(name) + ".conflict-*")
		if err != nil || len(kept) != map[bool]int{true: 1}[c.want != nil] {
			b.Errorf("beside %s are %q, %v", name, kept, err)
		}
		for _, k := range kept {
			if got, err := os.ReadFile(k); err != nil || !strings.HasPrefix(string(got), "ours") {
				b.Errorf("%s holds %q, %v", k, got, err)
			}
			b.answers("what is kept here alone", filepath.Base(k), nil)
			b.must(os.Remove(k), "drop it")
		}
		b.deletes(name)
		b.holds("a DELETE of what both wrote", name, nil)
	}
}

// left checks that the bucket has nothing but what was left there.
func (b *bothWays) left() {
	b.Helper()
	if keys, uploads := b.keys(b.o), b.uploads(b.o); len(keys)+len(uploads) > 0 {
		b.Errorf("left are %q, and the uploads %q", keys, uploads)
	}
}
