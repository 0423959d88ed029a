package e2e

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/internal/faultproxy"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// writeScenarios are the scenarios of writable mounts.
func writeScenarios() []scenario {
	const behind = "versitygw behind the fault proxy"
	of := func(text string) func(level) string { return func(level) string { return text } }
	return []scenario{
		{name: "write-as-ext4", issue: "write", from: core, limit: time.Minute, origin: behind, size: of("a script of 30 commands"), run: writeAsExt4},
		{name: "write-kills", root: true, issue: "write", from: core, limit: 3 * time.Minute, origin: behind,
			size: func(l level) string {
				return map[level]string{core: "10 kills, 4 writers (REDUCED)", all: "50 kills, 4 writers (REDUCED)", full: "500 kills, 4 writers"}[l]
			}, run: writeKills},
		{name: "write-staged", issue: "write", from: core, limit: time.Minute, origin: behind, size: of("8 programs, and a script of 20 commands"), run: writeStaged},
		{name: "write-faults", issue: "write", from: core, limit: 2 * time.Minute, origin: behind, size: of("7 faults of the origin"), run: writeFaults},
		{name: "write-metamorphic", root: true, issue: "write", from: core, limit: 2 * time.Minute, origin: behind,
			size: func(l level) string {
				return map[level]string{core: "2 runs of 300 calls, 3 kills (REDUCED)", all: "4 runs of 300 calls, 8 kills (REDUCED)", full: "100 runs of 300 calls, 200 kills"}[l]
			}, run: writeMetamorphic},
		{name: "write-fsx", root: true, issue: "write", from: core, limit: 2 * time.Minute, origin: behind,
			size: func(l level) string {
				return map[level]string{core: "1 and 4 writers, 2 files each, 4 kills (REDUCED)", all: "1 and 4 writers, 6 files each, 12 kills (REDUCED)", full: "1 and 4 writers, 50 files each, 200 kills"}[l]
			}, run: writeExerciser},
	}
}

// writable are the settings of a writable mount.
func writable(s settings) settings {
	s.mount = append(s.mount, "--write", "through")
	return s
}

// asExt4 is what programs do. Each command's output and exit code are compared.
const asExt4 = `
echo hello > a; cat a
echo more > a; cat a; stat -c '%s %F' a
mkdir d d/e; ls d; mkdir d; echo $?
printf x > d/e/f; rmdir d/e; echo $?; cat d/e/f
cp "$0" d/copy; cmp "$0" d/copy && echo same
dd if=/dev/zero of=zeros bs=64k count=20 status=none; stat -c %s zeros
dd if=/dev/urandom bs=1000 count=3000 status=none | tee random | sha256sum > sum; sha256sum < random | cmp - sum && echo same
exec 3<> both; echo 0123456789 >&3; cat both; truncate -s 4 /proc/self/fd/3; exec 3>&-; stat -c %s both
( echo one; echo two ) > lines; wc -l < lines
exec 4> open; echo first >&4; cat open; rm open; echo second >&4; exec 4>&-; ls open 2>/dev/null || echo gone
touch empty; stat -c %s empty; rm empty; ls empty 2>/dev/null || echo gone
: > truncated; : > truncated; stat -c %s truncated
mv a b; cat b; ls a 2>/dev/null || echo gone
set -C; echo no > b 2>/dev/null || echo exists; set +C
chmod 600 b 2>/dev/null; cat b
tar -cf t.tar d; tar -tf t.tar | sort; rm t.tar
rm d/e/f; rmdir d/e; ls -A d
rm -r d; ls -A | sort
find . -type f | sort | xargs sha256sum
`

// writeAsExt4 has a script write through a mount and on a local file system. Its output is the same, and at the end the bucket
// has each file's bytes, was sent each once, and has nothing else.
func writeAsExt4(e *env) {
	o := e.origin()
	p := e.proxy(o)
	h := e.mount(o, writable(settings{endpoint: p.endpoint}))
	local := e.path("local")
	e.must(os.Mkdir(local, 0o755), "make a directory")
	script := e.path("script")
	e.must(os.WriteFile(script, []byte("LC_ALL=C\n"+asExt4), 0o600), "write a script")
	run := func(dir string) string {
		cmd := exec.CommandContext(e.ctx, "bash", script)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		e.must(err, "run the script in %s: %s", dir, out)
		return string(out)
	}
	random := func(text string) bool { return strings.HasSuffix(text, "random") || strings.HasSuffix(text, "sum") } // differ by nature
	theirs, ours := strings.Split(run(local), "\n"), strings.Split(run(h.dir), "\n")
	for i := range max(len(theirs), len(ours)) {
		want, got := "", ""
		if i < len(theirs) {
			want = theirs[i]
		}
		if i < len(ours) {
			got = ours[i]
		}
		if got != want && !(random(want) && random(got)) {
			e.Errorf("line %d is %q, and on ext4 %q", i+1, got, want)
		}
	}
	var keys []string
	e.must(filepath.WalkDir(h.dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			key, _ := filepath.Rel(h.dir, path)
			keys = append(keys, key)
			text, err := os.ReadFile(path)
			e.must(err, "read %s", key)
			if got := e.object(o, key); string(got) != string(text) {
				e.Errorf("%s has %d bytes in the bucket, and %d in the mount", key, len(got), len(text))
			}
		}
		return err
	}), "walk")
	if left := e.keys(o); !slices.Equal(left, keys) {
		e.Errorf("the bucket has %q, and the mount %q", left, keys)
	}
	h.quit()
}

// asStaged are commands that write under temporary names.
const asStaged = `
printf 1 > x.tmp; ls -A; mv x.tmp x; cat x; ls x.tmp 2>/dev/null || echo gone
printf 22 > x.tmp; mv x.tmp x; cat x; stat -c %s x
mkdir d.tmp d.tmp/s; printf a > d.tmp/a; printf b > d.tmp/s/b; ls -R d.tmp; rmdir d.tmp 2>/dev/null || echo not empty
mv d.tmp d; cat d/a d/s/b; ls -A; ls -R d
mkdir e.tmp; printf c > e.tmp/c; rm -r e.tmp; ls -A
dd if=/dev/zero bs=1M count=40 of=large.tmp status=none; mv large.tmp large; sha256sum large
sed -i s/2/3/ x; cat x; ls -A
touch empty.tmp; mv empty.tmp empty; stat -c %s empty
printf old > a; exec 5< a; printf new > a.tmp; mv a.tmp a; cat a; exec 5<&-
mv a b; cat b; mv -n b x; cat b x; mv b x; cat x; ls -A
python3 "$1"
find . -type f | sort | xargs sha256sum
`

// writeStaged has programs write under temporary names, through a mount and on a local file system: what they print is the same,
// each name but those is in the bucket with its bytes, which were sent once, and no temporary name was ever there, as the
// bucket's own log says. What nobody renames is published in the end.
func writeStaged(e *env) {
	log := e.path("requests")
	o := e.originWith(hearthtest.ServerOptions{AccessLog: log})
	p := e.proxy(o)
	h := e.mount(o, writable(settings{endpoint: p.endpoint}))
	local := e.path("local")
	e.must(os.Mkdir(local, 0o755), "make a directory")
	programs, err := filepath.Abs("testdata/write_programs.py")
	e.must(err, "find the programs")
	run := func(dir string) string {
		cmd := exec.CommandContext(e.ctx, "bash", "-c", "LC_ALL=C\n"+asStaged, "bash", programs)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		e.must(err, "run the programs in %s: %s", dir, out)
		return string(out)
	}
	if theirs, ours := run(local), run(h.dir); theirs != ours {
		e.Errorf("on the mount:\n%s\non ext4:\n%s", ours, theirs)
	}
	var want []string
	e.must(filepath.WalkDir(local, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			key, _ := filepath.Rel(local, path)
			want = append(want, key)
			text, err := os.ReadFile(path)
			e.must(err, "read %s", key)
			if got := e.object(o, key); string(got) != string(text) {
				e.Errorf("%s has %d bytes in the bucket, and %d on ext4", key, len(got), len(text))
			}
		}
		return err
	}), "walk")
	slices.Sort(want)
	if got := e.keys(o); !slices.Equal(got, want) {
		e.Errorf("the bucket has %q, and ext4 %q", got, want)
	}
	text, err := os.ReadFile(log)
	e.must(err, "read the bucket's log")
	requests := string(text)
	if !strings.Contains(requests, "checkpoint-500/trainer_state.json") {
		e.Errorf("the bucket's log does not tell of what was written:\n%s", requests)
	}
	for line := range strings.Lines(requests) {
		if write := strings.Contains(line, `"PUT `) || strings.Contains(line, `"POST `); write && (strings.Contains(line, "tmp") || strings.Contains(line, "incomplete") || strings.Contains(line, ".lock") || strings.Contains(line, "/sed")) {
			e.Errorf("a temporary name was in the bucket: %s", line)
		}
	}
	e.must(os.WriteFile(filepath.Join(h.dir, "left.tmp"), []byte("left"), 0o644), "write a file that nobody renames")
	if s := h.status().Drafts.States.Staged; s.Files != 1 || s.Bytes != 4 {
		e.Errorf("status tells of %+v", s)
	}
	h.quit()

	h = e.mount(o, writable(settings{endpoint: p.endpoint, link: ", staging_age: 1s"}))
	e.eventually("what nobody renames", func() bool { return slices.Contains(e.keys(o), "left.tmp") })
	h.quit()
}

// object is an object's bytes.
func (e *env) object(o *server, key string) []byte {
	e.Helper()
	r, err := o.Request(e.ctx, http.MethodGet, o.bucket, key, nil)
	e.must(err, "ask for %s", key)
	return e.answer(r, key)
}

func (e *env) answer(r *http.Request, what string) []byte {
	e.Helper()
	a, err := http.DefaultClient.Do(r)
	e.must(err, "ask for %s", what)
	defer func() { _ = a.Body.Close() }() // it was only read
	text, err := io.ReadAll(a.Body)
	e.must(err, "read %s", what)
	if a.StatusCode != http.StatusOK {
		e.Errorf("%s: %s: %s", what, a.Status, text)
	}
	return text
}

// keys are all keys of the bucket, in order, but for the markers of directories.
func (e *env) keys(o *server) (all []string) {
	e.Helper()
	r, err := o.Request(e.ctx, http.MethodGet, o.bucket, "", url.Values{"list-type": {"2"}})
	e.must(err, "list the bucket")
	for _, part := range strings.Split(string(e.answer(r, "the listing")), "<Key>")[1:] {
		if key, _, _ := strings.Cut(part, "</Key>"); !strings.HasSuffix(key, "/") {
			all = append(all, key)
		}
	}
	return all
}

// uploads are the uploads of the bucket that were begun and not ended.
func (e *env) uploads(o *server) int {
	e.Helper()
	r, err := o.Request(e.ctx, http.MethodGet, o.bucket, "", url.Values{"uploads": {""}})
	e.must(err, "list the uploads")
	return strings.Count(string(e.answer(r, "the uploads")), "<UploadId>")
}

// write writes files, each as a program does that knows nothing of Hearth, until its standard input ends. Each name is new; every
// second file has a temporary one first, and every tenth lies in a directory that has. What close, or the rename, answered 0 for
// is acknowledged.
func (w *worker) write(j job, stop chan struct{}) {
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		default:
		}
		name := fmt.Sprintf("%s-%05d", j.Name, i)
		size := w.rng.Int64N(200 << 10)
		if i%20 == 7 {
			size = 20<<20 + w.rng.Int64N(20<<20)
		}
		path, tmp := filepath.Join(j.Dir, name), ""
		switch {
		case i%10 == 5:
			tmp = path + ".tmp"
			if err := os.Mkdir(tmp, 0o755); err != nil {
				w.wrong("%s: %v", name, err)
				return
			}
			name += "/file"
			path = filepath.Join(tmp, "file")
		case i%2 == 1:
			tmp = path + ".tmp"
			path = tmp
		}
		err := w.writeOne(path, name, size, i%3 == 0)
		if err == nil && tmp != "" {
			err = os.Rename(tmp, strings.TrimSuffix(tmp, ".tmp"))
		}
		if err != nil {
			w.wrong("%s: %v", name, err)
			return
		}
		w.Done++
		w.Acked = append(w.Acked, hearthtest.File{Path: name, Size: size})
	}
}

func (w *worker) writeOne(path, name string, size int64, syncs bool) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	buf := make([]byte, 64<<10)
	for off := int64(0); off < size && err == nil; {
		piece := buf[:min(size-off, int64(len(buf)))]
		hearthtest.Fill(piece, name, off, 0)
		_, err = f.WriteAt(piece, off)
		off += int64(len(piece))
	}
	if err == nil && syncs {
		err = f.Sync()
	}
	if err == nil && size > 0 {
		piece := buf[:min(size, int64(len(buf)))]
		if _, err = f.ReadAt(piece, 0); err == nil {
			err = hearthtest.Check(piece, name, 0, 0)
		}
	}
	return errors.Join(err, f.Close())
}

// writeKills has a node killed again and again while files are written and closed through it. Nobody gets an error, what close
// answered 0 for is in the bucket with its bytes, and no object is half nor any upload left behind.
func writeKills(e *env) {
	if !resends() {
		e.Skip("a mount outlives its node on Linux 6.9 or later")
	}
	o := e.origin()
	p := e.proxy(o)
	h := e.mount(o, writable(settings{endpoint: p.endpoint, keep: true, fresh: "bounded(1s)"}))
	kills := map[level]int{core: 10, all: 50, full: 500}[e.level]
	var writers []*reader
	for i := range 4 {
		writers = append(writers, e.reader(job{Op: "write", Dir: h.dir, Name: fmt.Sprintf("w%d", i)}))
	}
	var longest float64
	for i := range kills {
		before := p.Stats().Other.Requests
		e.eventually("writers at work", func() bool { return p.Stats().Other.Requests > before+int64(i%7) })
		pid := h.status().PID
		e.must(syscall.Kill(pid, syscall.SIGKILL), "kill the node")
		e.eventually("the next node", func() bool {
			s, err := h.client.Status(e.ctx)
			return err == nil && s.PID != pid && s.Keeper != nil && s.Keeper.Starts == i+2
		})
		longest = max(longest, h.status().Keeper.StalledS)
	}
	var files []hearthtest.File
	for _, w := range writers {
		w.end()
	}
	for i, w := range writers {
		a := w.result(time.Minute)
		if a.Done == 0 || len(a.Wrong) > 0 {
			e.Errorf("writer %d, after %d files: %s", i, a.Done, strings.Join(a.Wrong, "; "))
		}
		files = append(files, a.Acked...)
	}
	h.quit()
	for _, f := range files {
		got := e.object(o, f.Path)
		if int64(len(got)) != f.Size || hearthtest.Check(got, f.Path, 0, 0) != nil {
			e.Errorf("%s has %d bytes of %d, %v", f.Path, len(got), f.Size, hearthtest.Check(got, f.Path, 0, 0))
		}
	}
	e.shows("%d kills, %d files, the longest stall %.2f s", kills, len(files), longest)
	for _, key := range e.keys(o) {
		if strings.Contains(key, "tmp") {
			e.Errorf("the bucket has %s", key)
		}
	}
	if n := e.uploads(o); n > 0 {
		e.Errorf("%d uploads are left", n)
	}
}

// writeFaults has the origin fail in the midst of a close: the writer gets the error that names it, what was written is kept, and
// is in the bucket once the origin takes it.
func writeFaults(e *env) {
	o := e.origin()
	p := e.proxy(o)
	h := e.mount(o, writable(settings{endpoint: p.endpoint, origin: ", timeout: 2s"}))
	large := slices.Repeat([]byte("0123456789abcdef"), 3<<20) // 48 MiB, in parts
	for _, x := range []struct {
		name string
		rule faultproxy.Rule
		data []byte
		want error
	}{
		{"busy", faultproxy.Rule{Verb: faultproxy.Other, Times: 2, Status: 503, Code: "SlowDown"}, []byte("busy"), nil},
		{"denied", faultproxy.Rule{Verb: faultproxy.Other, Times: 4, Status: 403, Code: "AccessDenied"}, []byte("denied"), unix.EACCES},
		{"full", faultproxy.Rule{Verb: faultproxy.Other, Times: 4, Status: 507, Code: "XMinioStorageFull"}, []byte("full"), unix.ENOSPC},
		{"part", faultproxy.Rule{Verb: faultproxy.Other, Match: "partNumber=2", Times: 1, Status: 500, Code: "InternalError"}, large, nil},
		{"reset", faultproxy.Rule{Verb: faultproxy.Other, Times: 1, Refuse: true}, []byte("reset"), nil},
	} {
		p.AddRule(x.rule)
		err := os.WriteFile(filepath.Join(h.dir, x.name), x.data, 0o644)
		p.ClearRules()
		if !errors.Is(err, x.want) {
			e.Errorf("%s: %v, not %v", x.name, err, x.want)
		}
		if x.want != nil { // who has it open no more reads it all the same
			text, err := os.ReadFile(filepath.Join(h.dir, x.name))
			e.must(err, "read %s", x.name)
			if string(text) != string(x.data) {
				e.Errorf("%s is %q", x.name, text)
			}
			continue
		}
		if got := e.object(o, x.name); string(got) != string(x.data) {
			e.Errorf("%s has %d bytes in the bucket, not %d", x.name, len(got), len(x.data))
		}
	}
	h.quit()
	h = e.mount(o, writable(settings{endpoint: p.endpoint}))
	for _, name := range []string{"denied", "full"} {
		e.eventually(name+" in the bucket", func() bool { return slices.Contains(e.keys(o), name) })
		if got := e.object(o, name); string(got) != name {
			e.Errorf("%s is %q in the bucket", name, got)
		}
	}
	h.quit()
}
