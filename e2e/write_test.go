package e2e

import (
	"encoding/xml"
	"errors"
	"fmt"
	"html"
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
	const behind, minio = "versitygw behind the fault proxy", "MinIO behind the fault proxy"
	of := func(text string) func(level) string { return func(level) string { return text } }
	return []scenario{
		{name: "write-as-ext4", issue: "write", from: core, limit: time.Minute, origin: behind, size: of("a script of 50 commands"), run: func(e *env) { writeAsExt4(e, e.origin()) }},
		{name: "write-kills", root: true, issue: "write", from: core, limit: 3 * time.Minute, origin: behind,
			size: func(l level) string {
				return map[level]string{core: "10 kills, 4 writers (REDUCED)", all: "50 kills, 4 writers (REDUCED)", full: "500 kills, 4 writers"}[l]
			}, run: func(e *env) { writeKills(e, map[level]int{core: 10, all: 50, full: 500}[e.level]) }},
		{name: "write-kills-500", root: true, soak: true, issue: "write", from: all, limit: 20 * time.Minute, origin: behind, size: of("500 kills, 4 writers"), run: func(e *env) { writeKills(e, 500) }},
		{name: "write-staged", issue: "write", from: core, limit: time.Minute, origin: behind, size: of("8 programs, and a script of 20 commands"), run: func(e *env) { writeStaged(e, e.logged()) }},
		{name: "write-in-place", issue: "write", from: core, limit: time.Minute, origin: behind, size: of("a script of 30 commands, 5 programs"), run: func(e *env) { writeInPlace(e, e.logged()) }},
		{name: "write-seed", issue: "write", from: core, limit: 2 * time.Minute, origin: behind, size: of("53 files"), run: writeSeed},
		{name: "write-seed-ring", issue: "write", from: core, limit: 2 * time.Minute, origin: behind, size: of("53 files, 3 nodes"), run: writeSeedRing},
		{name: "write-conflicts", issue: "write", from: core, limit: time.Minute, origin: behind, size: of("2 nodes that write the same 3 names"), run: func(e *env) { writeConflicts(e, e.origin()) }},
		{name: "write-ring", issue: "write", from: all, limit: 4 * time.Minute, origin: behind,
			size: func(l level) string {
				return map[level]string{all: "3 nodes, 40 names at once, 20 versions, 1 kill (REDUCED)", full: "3 nodes, 200 names at once, 100 versions, 1 kill"}[l]
			}, run: writeRing},
		{name: "write-endpoint", issue: "write", from: core, limit: 2 * time.Minute, origin: behind, size: of("8 writes by the endpoint, 12 by the mount, 4 by both"), run: writeEndpoint},
		{name: "write-endpoint-ring", issue: "write", from: all, limit: 2 * time.Minute, origin: behind, size: of("2 nodes: 8 writes by the endpoint, 12 by the mount, 4 by both"), run: writeEndpointRing},
		{name: "write-versioned", issue: "write", from: all, limit: 2 * time.Minute, origin: "versitygw with versions behind the fault proxy", size: of("22 closes, renames and removals"), run: writeVersioned},
		{name: "write-versioned-minio", issue: "write", from: full, limit: 2 * time.Minute, origin: "MinIO with versions behind the fault proxy", size: of("22 closes, renames and removals"), run: func(e *env) { writeVersionedOf(e, e.minio()) }},
		{name: "write-as-ext4-minio", issue: "write", from: full, limit: time.Minute, origin: minio, size: of("a script of 50 commands"), run: func(e *env) { writeAsExt4(e, e.minio()) }},
		{name: "write-staged-minio", issue: "write", from: full, limit: time.Minute, origin: minio, size: of("8 programs, and a script of 20 commands"), run: func(e *env) { writeStaged(e, e.minio()) }},
		{name: "write-in-place-minio", issue: "write", from: full, limit: time.Minute, origin: minio, size: of("a script of 30 commands, 5 programs"), run: func(e *env) { writeInPlace(e, e.minio()) }},
		{name: "write-conflicts-minio", issue: "write", from: full, limit: time.Minute, origin: minio, size: of("2 nodes that write the same 3 names"), run: func(e *env) { writeConflicts(e, e.minio()) }},
		{name: "write-faults-minio", issue: "write", from: full, limit: 2 * time.Minute, origin: minio, size: of("8 faults of the origin"), run: func(e *env) { writeFaults(e, e.minio()) }},
		{name: "write-memory", root: true, issue: "write", from: all, limit: 4 * time.Minute, origin: behind,
			size: func(l level) string {
				return map[level]string{core: "16 x 64 MiB (REDUCED)", all: "16 x 64 MiB (REDUCED)", full: "16 x 1 GiB"}[l]
			}, run: writeMemory},
		{name: "write-programs", root: true, soak: true, issue: "write", from: all, limit: 10 * time.Minute, origin: "versitygw", size: of("the programs of Debian's"), run: writePrograms},
		{name: "write-faults", issue: "write", from: core, limit: 2 * time.Minute, origin: behind, size: of("8 faults of the origin"), run: func(e *env) { writeFaults(e, e.origin()) }},
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

// requestLog is the file of what a logged origin was asked for.
const requestLog = "requests"

// logged starts versitygw, which notes what it was asked for.
func (e *env) logged() *server {
	e.Helper()
	o := e.originWith(hearthtest.ServerOptions{AccessLog: e.path(requestLog)})
	o.log = true
	return o
}

// requests is what a logged origin was asked for until now.
func (e *env) requests() string {
	e.Helper()
	text, err := os.ReadFile(e.path(requestLog))
	e.must(err, "read the bucket's log")
	return string(text)
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
chmod 600 b; cat b; stat -c %a b; touch -d @1500000000 b; stat -c %Y b; cp -p b kept; mv kept kept2; stat -c '%a %Y' kept2; echo x >> kept2; stat -c %a kept2; rm kept2
chmod 750 d; stat -c %a d; mkdir -m 700 own; stat -c %a own; rmdir own
tar -cf t.tar d; tar -tf t.tar | sort; rm t.tar
rm d/e/f; rmdir d/e; ls -A d
rm -r d; ls -A | sort
rm there/sub/*; ls -A there there/sub; echo new > there/sub/new; ls there/sub; rm there/sub/new; ls -A there/sub
mv there/deep/er/x y; cat y; cd there/deep/er; ls -A; touch z; ls; cd ../../..; ls -A there/deep
rmdir there/deep; echo $?; rm -r there; ls -A | sort
find . -type f | sort | xargs sha256sum
`

// writeAsExt4 has a script write through a mount and on a local file system. Its output is the same, and at the end the bucket
// has each file's bytes, was sent each once, and has nothing else.
func writeAsExt4(e *env, o *server) {
	p := e.proxy(o)
	set := writable(settings{endpoint: p.endpoint})
	h := e.mount(o, set)
	local := e.path("local")
	e.must(os.Mkdir(local, 0o755), "make a directory")
	for _, key := range []string{"there/sub/1", "there/sub/2", "there/deep/er/x"} { // in directories without markers
		_, err := o.PutBytes(e.ctx, o.bucket, key, []byte(key))
		e.must(err, "put %s", key)
		e.must(os.MkdirAll(filepath.Join(local, filepath.Dir(key)), 0o755), "make a directory")
		e.must(os.WriteFile(filepath.Join(local, key), []byte(key), 0o644), "write %s", key)
	}
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
	// Nobody keeps this node. The one after it knows each name that was closed before the kill.
	for i := range 3 {
		name := fmt.Sprint("last-", i)
		e.must(os.WriteFile(filepath.Join(h.dir, name), []byte(name), 0o644), "write %s", name)
		h.kill9()
		h.launch(o, set)
		text, err := os.ReadFile(filepath.Join(h.dir, name))
		if names, _ := os.ReadDir(h.dir); err != nil || string(text) != name || !slices.ContainsFunc(names, func(d fs.DirEntry) bool { return d.Name() == name }) {
			e.Errorf("%s after a kill: %q, %v, listed are %v", name, text, err, names)
		}
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
func writeStaged(e *env, o *server) {
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
	if log := e.path(requestLog); o.log {
		if requests := e.requests(); !strings.Contains(requests, "checkpoint-500/trainer_state.json") {
			e.Errorf("the bucket's log does not tell of what was written:\n%s", requests)
		}
		e.noStagedNames(log)
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

// asInPlace are commands that change files which the bucket has. What they change is read with what they do not.
const asInPlace = `
printf 'one\n' > log; printf 'two\n' >> log; cat log; stat -c %s log
for i in 3 4 5; do echo $i >> log; done; cat log; echo six | tee -a log; cat log
printf 'hello world' > f; printf J | dd of=f bs=1 conv=notrunc status=none; cat f; echo
printf there | dd of=f bs=1 seek=6 conv=notrunc status=none; cat f; echo
printf end | dd of=f bs=1 seek=20 conv=notrunc status=none; od -c f
truncate -s 5 f; cat f; echo; truncate -s 9 f; od -c f; truncate -s 0 f; stat -c %s f
head -c 40000000 /dev/zero | tr '\0' a > large; printf X | dd of=large bs=1 seek=20000000 conv=notrunc status=none; sha256sum < large
printf tail >> large; sha256sum < large; truncate -s 33000000 large; sha256sum < large
exec 5<> large; printf Y >&5; head -c 3 large; echo; exec 5>&-; sha256sum < large
exec 6>> log; echo seven >&6; cat log; exec 7< log; rm log; echo eight >&6; exec 6>&-; ls log 2>/dev/null || echo gone
cp large copy; exec 6<> copy; printf Z >&6; mv copy moved; printf Z >&6; exec 6>&-; head -c 4 moved; echo; ls
printf abc > x; exec 6<> x; printf new > x.tmp; mv x.tmp x; cat x; exec 6>&-
sed -i s/new/newer/ x; cat x
python3 "$1"
find . -type f | sort | xargs sha256sum
`

// writeInPlace has programs change and append to files that the bucket has, through a mount and on a local file system: what they
// print is the same, and so are the bucket's bytes at the end. Of a large file what was not changed is copied in the bucket.
func writeInPlace(e *env, o *server) {
	p := e.proxy(o)
	h := e.mount(o, writable(settings{endpoint: p.endpoint}))
	local := e.path("local")
	e.must(os.Mkdir(local, 0o755), "make a directory")
	programs, err := filepath.Abs("testdata/change_programs.py")
	e.must(err, "find the programs")
	run := func(dir, script string) string {
		cmd := exec.CommandContext(e.ctx, "bash", "-c", "LC_ALL=C\n"+script, "bash", programs)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		e.must(err, "run the programs in %s: %s", dir, out)
		return string(out)
	}
	theirs, ours := strings.Split(run(local, asInPlace), "\n"), strings.Split(run(h.dir, asInPlace), "\n")
	for i := range max(len(theirs), len(ours)) {
		if i >= len(theirs) || i >= len(ours) || theirs[i] != ours[i] {
			e.Errorf("on the mount:\n%s\non ext4:\n%s", strings.Join(ours[max(0, i-3):], "\n"), strings.Join(theirs[max(0, i-3):], "\n"))
			break
		}
	}
	for _, key := range e.keys(o) {
		text, err := os.ReadFile(filepath.Join(local, key))
		e.must(err, "read %s", key)
		if got := e.object(o, key); string(got) != string(text) {
			e.Errorf("%s has %d bytes in the bucket, and %d on ext4", key, len(got), len(text))
		}
	}
	if o.log {
		before := e.requests()
		run(h.dir, "printf Q | dd of=large bs=1 seek=30000000 conv=notrunc status=none")
		after := e.requests()[len(before):]
		copies, parts := strings.Count(after, "s3_UploadPartCopy large"), strings.Count(after, "s3_UploadPart large")
		if copies != 1 || parts != 1 {
			e.Errorf("for one byte of two parts %d parts were copied and %d sent:\n%s", copies, parts, after)
		}
	}
	if left := e.uploads(o); len(left) > 0 {
		e.Errorf("uploads are left: %q", left)
	}
	h.quit()

	// A log is in the bucket while it is open.
	h = e.mount(o, writable(settings{endpoint: p.endpoint, link: ", publish_every: 1s"}))
	f, err := os.OpenFile(filepath.Join(h.dir, "job.log"), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	e.must(err, "open a log")
	for _, text := range []string{"one\n", "one\ntwo\n"} {
		_, err = f.WriteString(text[len(text)-4:])
		e.must(err, "append to the log")
		e.eventually("the log in the bucket", func() bool { return slices.Contains(e.keys(o), "job.log") && string(e.object(o, "job.log")) == text })
	}
	e.must(f.Close(), "close the log")
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
	for after, more := "", true; more; {
		r, err := o.Request(e.ctx, http.MethodGet, o.bucket, "", url.Values{"list-type": {"2"}, "start-after": {after}})
		e.must(err, "list the bucket")
		text := string(e.answer(r, "the listing"))
		for _, part := range strings.Split(text, "<Key>")[1:] {
			key, _, _ := strings.Cut(part, "</Key>")
			if after = html.UnescapeString(key); !strings.HasSuffix(after, "/") {
				all = append(all, after)
			}
		}
		more = strings.Contains(text, "<IsTruncated>true<")
	}
	return all
}

// uploads are the uploads of the bucket that were begun and not ended.
func (e *env) uploads(o *server) (keys []string) {
	e.Helper()
	r, err := o.Request(e.ctx, http.MethodGet, o.bucket, "", url.Values{"uploads": {""}})
	e.must(err, "list the uploads")
	var list struct {
		Upload []struct{ Key, Initiated string }
	}
	e.must(xml.Unmarshal(e.answer(r, "the uploads"), &list), "read the uploads")
	for _, u := range list.Upload {
		keys = append(keys, u.Key+" of "+u.Initiated)
	}
	return keys
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
		if err == nil && i%4 == 2 { // what the bucket has by now is changed, and appended to
			size += 100 << 10
			err = w.change(path, name, size)
		}
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

// change writes the last 200 KiB of a file of that size, of which it has the first 100 KiB or more, and changes its first byte and
// back.
func (w *worker) change(path, name string, size int64) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	first, last := make([]byte, 1), make([]byte, min(size, 200<<10))
	hearthtest.Fill(first, name, 0, 0)
	hearthtest.Fill(last, name, size-int64(len(last)), 0)
	_, err = f.WriteAt([]byte{^first[0]}, 0)
	if err == nil {
		_, err = f.WriteAt(last, size-int64(len(last)))
	}
	if err == nil {
		_, err = f.WriteAt(first, 0)
	}
	return errors.Join(err, f.Close())
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
// answered 0 for is in the bucket with its bytes, no object is half nor any upload left behind, and by the bucket's own log no
// temporary name was ever there.
func writeKills(e *env, kills int) {
	if !resends() {
		e.Skip("a mount outlives its node on Linux 6.9 or later")
	}
	o := e.logged()
	p := e.proxy(o)
	h := e.mount(o, writable(settings{endpoint: p.endpoint, keep: true, fresh: "bounded(1s)"}))
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
	e.noStagedNames(e.path(requestLog))
	e.shows("%d kills, %d files, the longest stall %.2f s", kills, len(files), longest)
	for _, key := range e.keys(o) {
		if strings.Contains(key, "tmp") {
			e.Errorf("the bucket has %s", key)
		}
	}
	if left := e.uploads(o); len(left) > 0 {
		e.Errorf("uploads are left: %q", left)
	}
}

// writeFaults has the origin fail in the midst of a close: the writer gets the error that names it, what was written is kept, and
// is in the bucket once the origin takes it.
func writeFaults(e *env, o *server) {
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
		// Of what joins the parts the answer is lost once it is done, or it is 200 with an error.
		{"joined", faultproxy.Rule{Verb: faultproxy.Other, Match: "/joined?uploadId=", Times: 1, Body: faultproxy.Reset}, large, nil},
		{"joined-not", faultproxy.Rule{Verb: faultproxy.Other, Match: "/joined-not?uploadId=", Times: 1, Status: 200, Code: "InternalError"}, large, nil},
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
	p.AddRule(faultproxy.Rule{Verb: faultproxy.Other, Match: "/copied", Times: 1, Status: 200, Code: "InternalError"})
	e.must(os.Rename(filepath.Join(h.dir, "busy"), filepath.Join(h.dir, "copied")), "rename")
	p.ClearRules()
	if got, keys := e.object(o, "copied"), e.keys(o); string(got) != "busy" || slices.Contains(keys, "busy") {
		e.Errorf("the renamed file is %q, and the bucket has %q", got, keys)
	}
	if left := e.uploads(o); len(left) > 0 {
		e.Errorf("uploads are left: %q", left)
	}
	log := h.out.String()
	for _, name := range []string{"denied", "full"} {
		if !strings.Contains(log, "key="+name+" ") {
			e.Errorf("the log has no line of %s, whose close failed", name)
		}
	}
	h.quit()
	set := writable(settings{endpoint: p.endpoint})
	set.mount = append(set.mount, "--fsync", "bucket")
	h = e.mount(o, set)
	f, err := os.Create(filepath.Join(h.dir, "synced"))
	e.must(err, "make a file")
	_, err = f.WriteString("synced")
	e.must(errors.Join(err, f.Sync()), "write and fsync a file")
	if got := e.object(o, "synced"); string(got) != "synced" {
		e.Errorf("what fsync has answered for is %q in the bucket", got)
	}
	e.must(f.Close(), "close")
	for _, name := range []string{"denied", "full"} {
		e.eventually(name+" in the bucket", func() bool { return slices.Contains(e.keys(o), name) })
		if got := e.object(o, name); string(got) != name {
			e.Errorf("%s is %q in the bucket", name, got)
		}
	}
	h.quit()
}

// writeConflicts has two nodes write the same names. The later one is told at close, the name is the other's object at once, and
// what was written is kept beside it, over a restart: published there, moved over the other one, or dropped.
func writeConflicts(e *env, o *server) {
	p := e.proxy(o)
	set := writable(settings{endpoint: p.endpoint})
	_, err := o.PutBytes(e.ctx, o.bucket, "replaced", []byte("before"))
	e.must(err, "put an object")
	ours := e.mount(o, set)
	set.cache = "cache-theirs"
	theirs := e.mount(o, set)
	set.cache = ""
	holds := func(name, want string) {
		e.Helper()
		if got, err := os.ReadFile(name); err != nil || string(got) != want {
			e.Errorf("%s holds %q, %v, expected %q", name, got, err, want)
		}
	}
	beside := func(name string) string {
		e.Helper()
		found, err := filepath.Glob(filepath.Join(ours.dir, name+".conflict-*"))
		if err != nil || len(found) != 1 {
			e.Fatalf("beside %s are %q, %v", name, found, err)
		}
		return found[0]
	}
	for _, c := range []struct {
		name  string
		flags int
		want  error
	}{{"new", 0, syscall.ESTALE}, {"exclusive", os.O_EXCL, syscall.EEXIST}, {"replaced", os.O_TRUNC, syscall.ESTALE}} {
		name := filepath.Join(ours.dir, c.name)
		f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|c.flags, 0o644)
		e.must(err, "open %s", c.name)
		_, err = f.WriteString("ours")
		e.must(err, "write %s", c.name)
		if c.name == "replaced" { // is ours at first, which may be written over
			copied, err := syscall.Dup(int(f.Fd()))
			e.must(err, "dup")
			e.must(syscall.Close(copied), "close a copy")
			if got := e.object(o, "replaced"); string(got) != "ours" {
				e.Errorf("after the first close the bucket has %q", got)
			}
			_, err = f.WriteAt([]byte("OURS"), 0)
			e.must(err, "write %s again", c.name)
		}
		// No process may be started meanwhile: it would close a copy of the descriptor, and so publish.
		e.must(os.WriteFile(filepath.Join(theirs.dir, c.name), []byte("theirs"), 0o644), "write %s elsewhere", c.name)
		if err := f.Close(); !errors.Is(err, c.want) {
			e.Errorf("close of %s, which another node made: %v, expected %v", c.name, err, c.want)
		}
		holds(name, "theirs")
		holds(beside(c.name), map[bool]string{false: "ours", true: "OURS"}[c.name == "replaced"])
	}
	if out, _ := ours.ask("drafts"); strings.Count(out, "mv it over the other one") != 3 {
		e.Errorf("hearth drafts says:\n%s", out)
	}
	ours.quit()
	ours.launch(o, set)
	for name, want := range map[string]string{"new": "ours", "exclusive": "ours", "replaced": "OURS"} {
		holds(filepath.Join(ours.dir, name), "theirs")
		holds(beside(name), want)
	}
	kept := filepath.Base(beside("exclusive"))
	if out, code := ours.ask("drafts", "publish", beside("exclusive")); code != 0 {
		e.Errorf("hearth drafts publish: exit %d:\n%s", code, out)
	}
	e.must(os.Rename(beside("new"), filepath.Join(ours.dir, "new")), "rename")
	e.must(os.Remove(beside("replaced")), "remove")
	if got, want := e.keys(o), []string{"exclusive", kept, "new", "replaced"}; !slices.Equal(got, want) {
		e.Errorf("the bucket has %q, expected %q", got, want)
	}
	for key, want := range map[string]string{"replaced": "theirs", "exclusive": "theirs", kept: "ours", "new": "ours"} {
		if got := e.object(o, key); string(got) != want {
			e.Errorf("%s is %q in the bucket, expected %q", key, got, want)
		}
	}
	if out, _ := ours.ask("drafts"); strings.Contains(out, "conflict") {
		e.Errorf("hearth drafts says:\n%s", out)
	}
	ours.quit()
	theirs.quit()
}
