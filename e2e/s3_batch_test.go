package e2e

import (
	"archive/tar"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// s3Batch does what docs/s3.md says of many small objects at once, word for word, but for where the
// endpoint is and the bucket's name; then its program gets many, and takes no part for all.
func s3Batch(e *env, o *server) {
	list := e.load(o, e.few(5, 100))
	for key, text := range map[string]string{"labels/cat.txt": "cat\n", "labels/dog.txt": "dog\n"} {
		_, err := o.PutBytes(e.ctx, o.bucket, key, []byte(text))
		e.must(err, "put an object")
	}
	h, s3 := e.serveS3(o)
	blocks := s3.guide("Many small objects at once", o.bucket)
	if len(blocks) != 5 {
		e.Fatalf("docs/s3.md has %d blocks there", len(blocks))
	}
	if out, code := s3.types(blocks[0]); code != 0 || out != blocks[1] {
		e.Errorf("curl: exit %d:\n%s\nand the page:\n%s", code, out, blocks[1])
	}
	e.must(os.WriteFile(e.path("batch.py"), []byte(blocks[2]), 0o644), "write the program")
	get, look, _ := strings.Cut(blocks[3], "\n")
	if out, code := s3.types(get); code != 1 || out != "labels/none.txt 404 NoSuchKey\n" {
		e.Errorf("the program: exit %d: %s", code, out)
	}
	if out, code := s3.types(look); code != 0 || strings.TrimSpace(out) != strings.TrimSpace(blocks[4]) {
		e.Errorf("what it wrote: exit %d:\n%s\nand the page:\n%s", code, out, blocks[4])
	}

	var lines []string
	for _, f := range list {
		lines = append(lines, f.Path)
	}
	e.must(os.WriteFile(e.path("many"), []byte(strings.Join(lines, "\n")), 0o644), "write the lines")
	for range 2 { // not in the cache, and in it
		if out, code := s3.types("python3 batch.py " + s3.url + " " + o.bucket + " < many > many.tar"); code != 0 {
			e.Fatalf("the program, of %d files: exit %d: %s", len(list), code, out)
		}
		archived(e, e.path("many.tar"), list)
	}
	s3.brokenBatches()
	h.quit()
}

// guide are the blocks of a section of docs/s3.md, as they are for this endpoint and bucket.
func (p *endpoint) guide(section, bucket string) (blocks []string) {
	p.Helper()
	page, err := os.ReadFile(filepath.Join(p.repo, "docs", "s3.md"))
	p.must(err, "read the page")
	_, text, _ := strings.Cut(string(page), "\n## "+section+"\n")
	text, _, _ = strings.Cut(text, "\n## ")
	for _, m := range regexp.MustCompile("(?ms)^```[a-z]+\n(.*?)^```$").FindAllStringSubmatch(text, -1) {
		blocks = append(blocks, strings.NewReplacer("http://127.0.0.1:9875", p.url, "BUCKET", bucket, gatewayAccess+" ", p.access+" ", gatewaySecret, p.secret).Replace(m[1]))
	}
	return blocks
}

// types runs lines in a shell in the scenario's directory; it returns what they print, and the exit
// code.
func (p *endpoint) types(lines string) (string, int) {
	p.Helper()
	cmd := exec.CommandContext(p.ctx, "sh", "-ec", lines)
	cmd.Dir, cmd.Env = p.dir, append(p.env.environ(nil), "PATH=/usr/bin:/bin", "AWS_ACCESS_KEY_ID="+p.access, "AWS_SECRET_ACCESS_KEY="+p.secret)
	out, err := hearthtest.Output(cmd)
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		p.Fatalf("run %q: %v", lines, err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// archived has a tar hold just these files, in this order.
func archived(e *env, name string, list []hearthtest.File) {
	e.Helper()
	f, err := os.Open(name)
	e.must(err, "open the archive")
	defer func() { _ = f.Close() }()
	r, n := tar.NewReader(f), 0
	for {
		member, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		e.must(err, "read the archive")
		got, err := io.ReadAll(r)
		e.must(err, "read a member")
		if n >= len(list) || member.Name != list[n].Path || int64(len(got)) != list[n].Size || hearthtest.Check(got, member.Name, 0, 0) != nil {
			e.Fatalf("member %d is %s, of %d bytes", n, member.Name, len(got))
		}
		n++
	}
	if n != len(list) {
		e.Errorf("the archive has %d of %d files", n, len(list))
	}
}

// brokenBatches has the page's program be answered by less than a whole batch, and by one.
func (p *endpoint) brokenBatches() {
	p.Helper()
	const whole = "all of it"
	for what, answer := range map[string]string{"nothing": "", "no end": "200 2 \"x\"\nok", "an end of others": "200 2 \"x\"\nokend 2\n", "a part of an object": "200 9 \"x\"\nok", "a part of a line": "200", "an error": "", whole: "200 2 \"x\"\nokend 1\n"} {
		for _, cut := range []bool{false, true} {
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if what == "an error" {
					http.Error(w, "an error", http.StatusForbidden)
					return
				}
				_, _ = io.WriteString(w, answer)
				_ = http.NewResponseController(w).Flush()
				if cut {
					panic(http.ErrAbortHandler)
				}
			}))
			out, code := p.types("echo key | python3 batch.py " + s.URL + " data > broken.tar")
			if s.Close(); what == whole && (cut || code == 0) {
				continue
			}
			if code == 0 || !strings.Contains(out, "Error") {
				p.Errorf("an answer with %s, cut %v: exit %d: %s", what, cut, code, out)
			}
		}
	}
}
