package e2e

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// manyKeys, below full just more than one page of a listing has.
func manyKeys(l level) int { return map[level]int{all: 1100, full: 10_000}[l] }

// downloadSize and uploadSize are in bytes, and end within a block.
func downloadSize(l level) int64 { return map[level]int64{all: 40 << 20, full: 2 << 30}[l] + 12345 }

func uploadSize(l level) int64 { return map[level]int64{all: 20 << 20, full: 200 << 20}[l] + 12345 }

// s3ManyKeys has every client list a bucket of many keys, most of them in one directory: while many
// of them are read and nothing else is known of it, from the cache, and after a write and a removal.
func s3ManyKeys(e *env, o *server) {
	var puts errgroup.Group
	puts.SetLimit(16)
	for i := range manyKeys(e.level) {
		key := fmt.Sprintf("wide/%05d", i)
		if i%4 == 0 {
			key = fmt.Sprintf("many/%03d/%02d.txt", i/40%100, i/4000*10+i/4%10)
		}
		puts.Go(func() error {
			_, err := o.PutBytes(e.ctx, o.bucket, key, []byte(key))
			return err
		})
	}
	e.must(puts.Wait(), "put the keys")
	h, s3 := e.serveS3(o)
	listers := []func() map[string]int64{
		func() map[string]int64 { return sized(e, s3.boto(o, "list"), 0, 1, "") },
		func() map[string]int64 {
			return sized(e, s3.aws(o, "s3", "ls", "--recursive", "s3://"+o.bucket), 2, 3, "")
		},
		func() map[string]int64 {
			return sized(e, s3.s3cmd(o, "ls", "--recursive", "s3://"+o.bucket), 2, 3, "s3://"+o.bucket+"/")
		},
		func() map[string]int64 {
			return sized(e, s3.rclone(o, "lsf", "-R", "--files-only", "--format", "sp", "--separator", " ", "hearth:"+o.bucket), 0, 1, "")
		},
		func() map[string]int64 {
			all := map[string]int64{}
			for _, x := range mcListing(e, s3.mc(o, "ls", "--recursive", "--json", "hearth/"+o.bucket)) {
				all[x.Key] = x.Size
			}
			return all
		},
	}
	if e.level < full {
		listers = listers[:3] // make setup-full brings the others
	}
	c, there := s3.client(), e.direct(o)
	want := e.listed(there, o.bucket, "")
	if len(want) != manyKeys(e.level) {
		e.Errorf("the origin lists %d keys of %d", len(want), manyKeys(e.level))
	}
	var reads errgroup.Group
	reads.SetLimit(8)
	for i := range manyKeys(e.level) / 4 {
		reads.Go(func() error {
			e.wants(c, http.StatusOK, s3Ask{method: "GET", bucket: o.bucket, path: fmt.Sprintf("/many/%03d/%02d.txt", i/10%100, i/1000*10+i%10)})
			return nil
		})
	}
	for i, list := range listers {
		same(e, fmt.Sprintf("client %d", i), list(), want)
	}
	_ = reads.Wait()
	listers[0]() // what was read behind the last one may go to the origin once more
	passed := passedLists(h)
	same(e, "a client of what is known", listers[0](), want)
	if now := passedLists(h); now != passed {
		e.Errorf("of a listing of what is known %d pages went to the origin", now-passed)
	}
	e.wants(c, http.StatusOK, s3Ask{method: "PUT", bucket: o.bucket, path: "/wide/00001a", body: "new"})
	e.wants(c, http.StatusNoContent, s3Ask{method: "DELETE", bucket: o.bucket, path: "/wide/00002"})
	want["wide/00001a"] = 3
	delete(want, "wide/00002")
	same(e, "the origin", e.listed(there, o.bucket, ""), want)
	if e.level < full {
		listers = listers[:1]
	}
	for i, list := range listers {
		same(e, fmt.Sprintf("client %d, after a write and a removal", i), list(), want)
	}
	h.quit()
}

// passedLists counts the listings that the origin answered.
func passedLists(h *hearth) (n int64) {
	for _, r := range h.status().S3.Requests {
		if strings.HasPrefix(r.Operation, "ListObjects") && r.How != "cached" {
			n += r.Requests
		}
	}
	return n
}

// sized reads a table that has the sizes in one column and the keys, behind a prefix, in another.
func sized(e *env, out string, size, key int, prefix string) map[string]int64 {
	e.Helper()
	all := map[string]int64{}
	for _, line := range lines(out) {
		cells := strings.Fields(line)
		if len(cells) != max(size, key)+1 {
			e.Errorf("a line of a listing: %q", line)
			continue
		}
		n, err := strconv.ParseInt(cells[size], 10, 64)
		e.must(err, "read the size in %q", line)
		name := strings.TrimPrefix(cells[key], prefix)
		if _, twice := all[name]; twice {
			e.Errorf("%s is listed twice", name)
		}
		all[name] = n
	}
	return all
}

// getters are clients that download a large object by ranges, several at a time, but for what mc
// and s3cmd do by themselves: they read it in one piece, and s3cmd may go on where it ended.
func (p *endpoint) getters(o *server) map[string]func(key, to string) {
	all := map[string]func(key, to string){
		"aws":   func(key, to string) { p.aws(o, "s3", "cp", "--only-show-errors", "s3://"+o.bucket+"/"+key, to) },
		"boto3": func(key, to string) { p.boto(o, "get", key, to) },
		"curl": func(key, to string) {
			at := strings.TrimSpace(p.aws(o, "s3", "presign", "s3://"+o.bucket+"/"+key))
			p.inParts(to, func(off, n int64, to string) {
				p.uses(o, "curl", "-sSf", "-r", fmt.Sprintf("%d-%d", off, off+n-1), "-o", to, at)
			})
		},
	}
	if p.level == full {
		all["rclone"] = func(key, to string) {
			p.rclone(o, "copyto", "--multi-thread-streams", "8", "--multi-thread-cutoff", "16M", "hearth:"+o.bucket+"/"+key, to)
		}
		all["mc"] = func(key, to string) { p.mc(o, "cp", "--quiet", "hearth/"+o.bucket+"/"+key, to) }
		all["mc-ranges"] = func(key, to string) {
			p.inParts(to, func(off, n int64, to string) { // mc has no other end than the object's
				p.uses(o, "sh", "-c", `"$0" cat --quiet --offset "$1" "$2" | head -c "$3" >"$4"`, p.tool("mc"), fmt.Sprint(off), "hearth/"+o.bucket+"/"+key, fmt.Sprint(n), to)
			})
		}
		all["s3cmd"] = func(key, to string) { p.s3cmd(o, "get", "s3://"+o.bucket+"/"+key, to) }
		all["s3cmd-goes-on"] = func(key, to string) {
			f := hearthtest.File{Path: key, Size: downloadSize(p.level)}
			half, err := os.Create(to)
			p.must(err, "make half of a file")
			_, err = io.CopyN(half, f.Reader(0), f.Size/2+777)
			p.must(errors.Join(err, half.Close()), "write half of a file")
			p.s3cmd(o, "get", "--continue", "s3://"+o.bucket+"/"+key, to)
		}
	}
	return all
}

// inParts has the large object downloaded in four ranges at once.
func (p *endpoint) inParts(to string, get func(off, n int64, to string)) {
	p.Helper()
	size := downloadSize(p.level)
	const parts = 4
	var work sync.WaitGroup
	for i := range int64(parts) {
		off, end := size*i/parts, size*(i+1)/parts
		work.Go(func() { get(off, end-off, fmt.Sprintf("%s.%d", to, i)) })
	}
	work.Wait()
	whole, err := os.Create(to)
	p.must(err, "put the parts together")
	defer func() { _ = whole.Close() }()
	for i := range parts {
		name := fmt.Sprintf("%s.%d", to, i)
		part, err := os.Open(name)
		p.must(err, "open a part")
		_, err = io.Copy(whole, part)
		p.must(errors.Join(err, part.Close(), os.Remove(name)), "put the parts together")
	}
}

// s3Downloads has clients download a large object, two of them at once while nothing of it is
// cached: the origin sends it once, but for blocks that the disk is too slow to take. At level full they do so by a node that has room for an
// eighth of it, too, one after the other.
func s3Downloads(e *env, o *server) {
	f := hearthtest.File{Path: "large/model.bin", Size: downloadSize(e.level)}
	e.must(o.PutFile(e.ctx, o.bucket, "", f, 0), "put the large object")
	p := e.proxy(o)
	sent := func(what string, before int64, most float64) {
		e.Helper()
		share := float64(p.bytes()-before) / float64(f.Size)
		if e.shows("%s: the origin sent %.3f of it", what, share); share > most {
			e.Errorf("%s: the origin sent %.3f of the object: more than %.3f", what, share, most)
		}
	}
	h, s3 := e.serveS3With(o, settings{endpoint: p.endpoint})
	once := func() float64 { // but for blocks that came faster than the disk could take them
		declined := h.diskTier().Dirs[0].Declined
		if declined > 0 {
			e.shows("the disk declined %d blocks", declined)
		}
		return 1.01 + float64(declined<<20)/float64(f.Size)
	}
	get := s3.getters(o)
	var both sync.WaitGroup
	for _, name := range []string{"aws", "boto3"} {
		both.Go(func() { s3.gets(name, f, get[name]) })
	}
	both.Wait()
	sent("two at once", 0, once())
	for name, use := range get {
		if name != "aws" && name != "boto3" {
			s3.gets(name, f, use)
		}
	}
	_, err := readWhole(filepath.Join(h.dir, f.Path), f, 0, make([]byte, 1<<20))
	e.must(err, "read it in the mount")
	sent("all of them", 0, once())
	h.quit()
	if e.level < full {
		return
	}
	h, s3 = e.serveS3With(o, settings{endpoint: p.endpoint, cache: "small", ram: "64MiB", disk: "256MiB"})
	for name, use := range s3.getters(o) {
		before := p.bytes()
		s3.gets(name, f, use)
		// What several connections are gone ahead of does not lie there all at once: some comes again.
		sent(name+", with little room", before, 1.5)
	}
	h.quit()
}

// gets downloads an object and compares all of its bytes.
func (p *endpoint) gets(name string, f hearthtest.File, get func(key, to string)) {
	p.Helper()
	to := p.path("got-by-" + name)
	get(f.Path, to)
	if _, err := readWhole(to, f, 0, make([]byte, 1<<20)); err != nil {
		p.Errorf("downloaded by %s: %v", name, err)
	}
	_ = os.Remove(to) // it may never have been made
}

// putter is a client that uploads in parts.
type putter struct {
	name   string
	put    func(from, key string)
	remove func(key string)
}

// putters are those of this level: boto3's uploads are s3-boto3's, and make setup-full brings
// those behind it.
func (p *endpoint) putters(o *server) []putter {
	p.Helper()
	all := p.allPutters(o)
	if p.level < full {
		return all[:1]
	}
	return all
}

func (p *endpoint) allPutters(o *server) []putter {
	s3, rclone, mc := "s3://"+o.bucket+"/", "hearth:"+o.bucket+"/", "hearth/"+o.bucket+"/"
	return []putter{
		{"aws", func(from, key string) { p.aws(o, "s3", "cp", "--only-show-errors", from, s3+key) },
			func(key string) { p.aws(o, "s3", "rm", "--only-show-errors", s3+key) }},
		{"boto3", func(from, key string) { p.boto(o, "put", from, key) }, func(key string) { p.boto(o, "rm", key) }},
		{"rclone", func(from, key string) {
			p.rclone(o, "copyto", "--s3-upload-cutoff", "10M", "--s3-chunk-size", "8M", from, rclone+key)
		}, func(key string) { p.rclone(o, "deletefile", rclone+key) }},
		{"mc", func(from, key string) { p.mc(o, "cp", "--quiet", from, mc+key) }, func(key string) { p.mc(o, "rm", "--quiet", mc+key) }},
		{"s3cmd", func(from, key string) { p.s3cmd(o, "put", "--multipart-chunk-size-mb=15", from, s3+key) }, func(key string) { p.s3cmd(o, "del", s3+key) }},
	}
}

// s3Uploads has clients upload a large object in parts, upload another in its place and remove
// it: another client, the mount and the origin have each at once.
func s3Uploads(e *env, o *server) {
	h, s3 := e.serveS3(o)
	here, there := s3.client(), e.direct(o)
	for _, c := range s3.putters(o) {
		f := hearthtest.File{Path: "up/by-" + c.name, Size: uploadSize(e.level)}
		for version := range 2 {
			f.Size += int64(version) // which rclone looks at
			from := e.makeFile(e.path("local"), f, version)
			c.put(from, f.Path)
			what := fmt.Sprintf("%s, version %d", c.name, version)
			e.streams(what+", by another client", here, o.bucket, f, version)
			e.streams(what+", at the origin", there, o.bucket, f, version)
			if _, err := readWhole(filepath.Join(h.dir, f.Path), f, version, make([]byte, 1<<20)); err != nil {
				e.Errorf("%s, in the mount: %v", what, err)
			}
			if size, ok := e.listed(here, o.bucket, "up/")[f.Path]; !ok || size != f.Size {
				e.Errorf("%s: listed: %v, with %d bytes of %d", what, ok, size, f.Size)
			}
			e.must(os.Remove(from), "remove what was uploaded")
		}
		c.remove(f.Path)
		for _, client := range []*s3Client{here, there} {
			e.wants(client, http.StatusNotFound, s3Ask{method: "GET", bucket: o.bucket, path: "/" + f.Path})
		}
		if _, err := os.Stat(filepath.Join(h.dir, f.Path)); !os.IsNotExist(err) {
			e.Errorf("%s: the mount has what was removed: %v", c.name, err)
		}
		if _, ok := e.listed(here, o.bucket, "up/")[f.Path]; ok {
			e.Errorf("%s: what was removed is listed", c.name)
		}
	}
	h.quit()
}

// streams reads an object as it comes and compares all of its bytes.
func (e *env) streams(what string, c *s3Client, bucket string, f hearthtest.File, version int) {
	e.Helper()
	r, err := c.request(e.ctx, s3Ask{method: "GET", bucket: bucket, path: "/" + f.Path})
	e.must(err, "make a request")
	answer, err := c.http.Do(r)
	if err != nil {
		e.Errorf("%s: %v", what, err)
		return
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK || answer.ContentLength != f.Size {
		e.Errorf("%s: %s, %d bytes of %d", what, answer.Status, answer.ContentLength, f.Size)
		return
	}
	buf := make([]byte, 1<<20)
	for off := int64(0); off < f.Size; {
		n, err := io.ReadFull(answer.Body, buf[:min(int64(len(buf)), f.Size-off)])
		if err == nil {
			err = hearthtest.Check(buf[:n], f.Path, off, version)
		}
		if err != nil {
			e.Errorf("%s, from %d on: %v", what, off, err)
			return
		}
		off += int64(n)
	}
}
