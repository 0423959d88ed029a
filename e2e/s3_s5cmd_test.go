package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// s5cmd runs s5cmd, which is told of the endpoint as docs/s3.md says.
func (p *endpoint) s5cmd(o *server, args ...string) string {
	p.Helper()
	return p.uses(o, p.tool("s5cmd"), args...)
}

// s3S5cmd has s5cmd copy, sync, list, read, move and remove, and do many things at once.
func s3S5cmd(e *env, o *server) {
	h, s3 := e.serveS3(o)
	at := "s3://" + o.bucket + "/"
	run := func(args ...string) string { return s3.s5cmd(o, args...) }
	odd := oddName
	if e.sc.origin == "MinIO" { // s5cmd writes + for a space in a copy's source, and MinIO takes it for a +: they cannot copy such a key without Hearth either
		odd = strings.ReplaceAll(oddName, " ", "")
	}
	s3.tree(o, h, treeClient{
		newTrees: 15, odd: odd,
		down: func(prefix, dir string) { run("sync", at+prefix+"*", dir+"/") },
		up:   func(dir, prefix string) { run("cp", dir+"/", at+prefix) },
		sync: func(dir, prefix string) { run("sync", "--delete", dir+"/", at+prefix) },
		compare: func(dir, prefix string) {
			for _, args := range [][]string{{dir + "/", at + prefix}, {at + prefix + "*", dir + "/"}} {
				if out := run(append([]string{"--dry-run", "sync", "--delete", "--size-only"}, args...)...); out != "" {
					e.Errorf("s5cmd sees a difference: %.300s", out)
				}
			}
		},
		list: func(prefix string) (names []string) {
			for _, line := range lines(run("--json", "ls", at+prefix+"*")) {
				var x struct{ Key, Type string }
				if e.must(json.Unmarshal([]byte(line), &x), "read a line of s5cmd's: %s", line); x.Type == "file" {
					names = append(names, strings.TrimPrefix(x.Key, at+prefix))
				}
			}
			return names
		},
		cat: func(key string, off, n int64) string {
			out := run("cat", at+key)
			return out[off:min(off+n, int64(len(out)))]
		},
		move:   func(from, to string) { run("mv", at+from+"*", at+to) },
		remove: func(prefix string) { run("rm", at+prefix+"*") },
		unlink: func(key string) { run("rm", at+key) },
	})
	s3.s5cmdRuns(o, h)
	h.quit()
}

// s5cmdRuns has s5cmd run a file of commands, which it does many at a time; one that cannot be done
// is told, and the others are done.
func (p *endpoint) s5cmdRuns(o *server, h *hearth) {
	p.Helper()
	const n = 100
	at, from := "s3://"+o.bucket+"/", p.path("run-from")
	var first, second string
	for i := range n {
		f := hearthtest.File{Path: fmt.Sprintf("f-%d", i), Size: 50_000 + int64(i)}
		p.makeFile(from, f, 0)
		first += fmt.Sprintf("cp %s %srun/%s\n", filepath.Join(from, f.Path), at, f.Path)
		if i%2 == 0 {
			second += fmt.Sprintf("cp %srun/%s %s/\n", at, f.Path, p.path("run-to"))
			continue
		}
		second += fmt.Sprintf("rm %srun/%s\n", at, f.Path)
	}
	want := p.hashes(from)
	p.must(os.WriteFile(p.path("first"), []byte(first), 0o644), "write commands")
	p.must(os.WriteFile(p.path("second"), []byte(second+"cp "+at+"run/none "+p.path("none")+"\n"), 0o644), "write commands")
	p.s5cmd(o, "run", p.path("first"))
	p.holds("copied by a file of commands", "run/", o, h, want)
	cmd := exec.CommandContext(p.ctx, p.tool("s5cmd"), "run", p.path("second"))
	cmd.Env, cmd.Dir = p.environ(o), p.dir
	out, err := hearthtest.Output(cmd)
	var exit *exec.ExitError
	if !errors.As(err, &exit) || strings.Count(string(out), "ERROR") != 1 || !strings.Contains(string(out), "run/none") {
		p.Errorf("a command that cannot be done: %v: %.500s", err, out)
	}
	for i := 1; i < n; i += 2 {
		delete(want, fmt.Sprintf("f-%d", i))
	}
	p.holds("removed by a file of commands", "run/", o, h, want)
	same(p.env, "copied down by a file of commands", p.hashes(p.path("run-to")), want)
}
