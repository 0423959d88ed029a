package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/draft"
)

// promise is a row of the table of calls in docs/semantics.md, and how a mount may differ from ext4 by it.
type promise struct {
	call   string              // the first cell; for what is said elsewhere on the page, its bold beginning
	of     func(c *call) bool  // the calls that it is about
	errno  string              // that a mount may answer; "" means that it refuses nothing
	when   func(f *facts) bool // nil means always
	answer func(f *facts) string
}

// facts are what promises ask: what ext4 has before a call.
type facts struct {
	c *call
	r *metamorphic
}

// promises are all the differences that there may be.
func promises() []promise {
	kind := func(kinds ...string) func(*call) bool {
		return func(c *call) bool { return slices.Contains(kinds, c.Kind) }
	}
	opens := func(which func(flags int) bool) func(*call) bool {
		return func(c *call) bool { return c.Kind == "open" && which(c.Flags) }
	}
	writes := func(flags int) bool { return flags&unix.O_ACCMODE != unix.O_RDONLY }
	whole := func(c *call) bool {
		return c.Kind == "open" && c.Flags&unix.O_TRUNC != 0 || c.Kind == "truncate" && c.Off == 0
	}
	return []promise{
		{call: "`open` with `O_CREAT`", of: opens(func(flags int) bool { return flags&unix.O_CREAT != 0 })},
		{call: "`open` with `O_TRUNC`, `truncate` to 0", of: whole},
		{call: "`open` for writing without `O_TRUNC`, `truncate` to another size", of: func(c *call) bool {
			return !whole(c) && (c.Kind == "truncate" || c.Kind == "open" && writes(c.Flags))
		}},
		{call: "`write`, `pwrite`, `ftruncate`, `read`, `mmap` of a draft", of: kind("pwrite", "append", "ftruncate", "pread", "mmap", "mwrite", "mread", "msync", "copy")},
		{call: "`close`", of: kind("close")},
		{call: "the last `close` of a file that was never written (`touch`), and what a mapping wrote after `close`", of: kind("close", "munmap")},
		{call: "`fsync`", of: kind("fsync")},
		{call: "`unlink`", of: kind("unlink")},
		{call: "`mkdir`, `rmdir`", of: kind("mkdir", "rmdir")},
		{call: "`mkdir`, `rmdir`", of: func(c *call) bool { return !callKinds()[c.Kind].named }, errno: "ESTALE",
			when: func(f *facts) bool { return f.r.moved[f.r.ext4.ino(f.c.Slot)] }},
		{call: "`rename` of a draft", of: kind("rename")},
		{call: "`rename` of an object", of: kind("rename"), errno: "EXDEV", when: func(f *facts) bool { return f.object(f.c.Path) && (temporary(f.c.To) || f.written(f.c.To)) }},
		{call: "`rename` of a directory", of: kind("rename"), errno: "EXDEV", when: func(f *facts) bool { return f.isDir(f.c.Path) && !temporary(f.c.Path) }},
		{call: "`rename` of a directory", of: func(c *call) bool { return !callKinds()[c.Kind].named }, errno: "ESTALE",
			when: func(f *facts) bool { return f.r.moved[f.r.ext4.ino(f.c.Slot)] }},
		{call: "`rename` with `RENAME_NOREPLACE`, `RENAME_EXCHANGE`", errno: "EINVAL",
			of:   func(c *call) bool { return c.Kind == "rename" && c.Flags != 0 },
			when: func(f *facts) bool { return f.c.Flags == unix.RENAME_EXCHANGE }},
		{call: "`chmod`, `chown`, `utimensat`", of: kind("chmod", "chown", "utimens")},
		{call: "`link`, `symlink`, `mknod`", of: kind("link", "symlink", "mknod"), errno: "EPERM"},
		{call: "`flock`, `fcntl` locks", of: kind("flock", "unlock", "lock")},
		{call: "a name that no key can have; one over 255 bytes, a key over 1,024", of: kind("open", "mkdir", "rename", "link", "symlink", "mknod"), errno: "EINVAL",
			when: func(f *facts) bool { return strings.Contains(f.c.Path+f.c.To, "\xff") }},
		{call: "`fallocate`, `O_TMPFILE`, `setxattr`", of: kind("fallocate", "tmpfile", "setxattr"), errno: "EOPNOTSUPP"},
		{call: "`lseek` with `SEEK_DATA`, `SEEK_HOLE`", of: kind("lseek"), answer: func(f *facts) string {
			at := f.c.Off
			if f.c.Flags == unix.SEEK_HOLE {
				at = f.size()
			}
			return fmt.Sprint(at)
		}},
		// Of what other pages of a reader say.
		{call: "One version per open.", of: kind("pread", "copy", "mmap"), errno: "ESTALE", when: func(f *facts) bool { return f.unlinked(f.r.ext4.fds[f.c.Slot]) }},
		{call: "One version per open.", of: kind("mread", "mwrite"), errno: "SIGBUS", when: func(f *facts) bool { return f.unlinked(f.r.ext4.sizes[f.c.Slot%callMaps]) }},
	}
}

// temporary reports whether a name or one of its directories is.
func temporary(name string) bool {
	t, err := draft.ParseTemporary(draft.DefaultTemporary())
	staged, _ := t.Match(name)
	return err == nil && staged
}

func (f *facts) stat(name string) (st unix.Stat_t, ok bool) {
	return st, unix.Lstat(f.r.ext4.at(name), &st) == nil
}

func (f *facts) isDir(name string) bool {
	st, ok := f.stat(name)
	return ok && st.Mode&unix.S_IFMT == unix.S_IFDIR
}

// object reports whether the bucket may have a file.
func (f *facts) object(name string) bool {
	st, ok := f.stat(name)
	return ok && f.r.objects[st.Ino]
}

// written reports whether somebody has a file open for writing, or mapped so.
func (f *facts) written(name string) bool {
	st, ok := f.stat(name)
	return ok && f.r.writer(st.Ino)
}

func (f *facts) unlinked(fd int) bool {
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && st.Nlink == 0
}

func (f *facts) size() int64 {
	var st unix.Stat_t
	_ = unix.Fstat(f.r.ext4.fds[f.c.Slot], &st) // 0 of none
	return st.Size
}

// metamorphic is a run: the same calls on a mount and on ext4.
type metamorphic struct {
	mount, ext4 *side
	objects     map[uint64]bool // inodes of ext4 that the bucket may have, too
	moved       map[uint64]bool // inodes of directories that were open when one of them with a temporary name got another, or was removed
	seen        map[string]int  // calls, and what was refused, by promise
	log         []string        // the calls that were done, with the mount's outcomes
}

// newMetamorphic is a run in directories of that name, which it makes.
func newMetamorphic(mount, ext4, name string) (*metamorphic, error) {
	r := &metamorphic{mount: newSide(filepath.Join(mount, name)), ext4: newSide(filepath.Join(ext4, name)), objects: map[uint64]bool{}, moved: map[uint64]bool{}, seen: map[string]int{}}
	r.ext4.learns = true
	for _, dir := range []string{"", "d", "e", "t.tmp"} {
		if err := errors.Join(os.Mkdir(r.mount.at(dir), 0o755), os.Mkdir(r.ext4.at(dir), 0o755)); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// writer reports whether somebody has an inode open for writing, or mapped.
func (r *metamorphic) writer(ino uint64) bool {
	has := func(fd int) bool {
		var st unix.Stat_t
		return unix.Fstat(fd, &st) == nil && st.Ino == ino
	}
	for i, m := range r.ext4.maps {
		if m != nil && has(r.ext4.sizes[i]) {
			return true
		}
	}
	return slices.ContainsFunc(r.ext4.fds[:], func(fd int) bool {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
		return err == nil && flags&unix.O_ACCMODE != unix.O_RDONLY && has(fd)
	})
}

// step does a call on both, and says how they differ.
func (r *metamorphic) step(c *call) (difference string) {
	if c.Kind == "mwrite" || c.Kind == "mread" {
		c = r.ext4.within(c)
	}
	got := r.mount.do(c)
	if got != skipped {
		r.log = append(r.log, fmt.Sprintf("%v: %.60s", c, got))
	}
	f := &facts{c, r}
	for _, p := range promises() {
		if !p.of(c) {
			continue
		}
		if got != skipped {
			r.seen[p.call]++
		}
		if p.errno != "" && got == p.errno && (p.when == nil || p.when(f)) || p.answer != nil && got == p.answer(f) {
			if want := r.probe(c); want != got {
				r.seen[p.call+" "+p.errno]++
			}
			return ""
		}
	}
	closing := r.ext4.ino(c.Slot)
	if want := r.ext4.do(c); got != want {
		return fmt.Sprintf("%q, and on ext4 %q", got, want)
	}
	r.note(c, closing)
	return ""
}

// probe is the answer of ext4 where asking changes nothing.
func (r *metamorphic) probe(c *call) string {
	if c.Kind == "lseek" {
		return r.ext4.do(c)
	}
	return ""
}

// ino is the inode of a descriptor, 0 of none.
func (s *side) ino(slot int) uint64 {
	var st unix.Stat_t
	_ = unix.Fstat(s.fds[slot], &st) // 0 of none
	return st.Ino
}

// note keeps account of what the bucket may have.
func (r *metamorphic) note(c *call, closing uint64) {
	f := &facts{c, r}
	if c.Kind == "close" {
		r.objects[closing] = true // of a temporary name, too: it may be renamed while it is open
	}
	for _, name := range []string{c.Path, c.To} {
		if st, ok := f.stat(name); ok && (c.Kind == "rename" || c.Kind == "truncate") && st.Mode&unix.S_IFMT == unix.S_IFREG && !temporary(name) {
			r.objects[st.Ino] = true
		}
	}
	if _, stays := f.stat(c.Path); c.Kind == "rename" && !stays && f.isDir(c.To) && !temporary(c.To) {
		// All below it that nobody writes goes to the bucket at once, also what somebody has open to read.
		_ = filepath.WalkDir(r.ext4.at(c.To), func(name string, e fs.DirEntry, err error) error { // what cannot be read is not there
			var st unix.Stat_t
			if err == nil && e.Type().IsRegular() && !temporary(strings.TrimPrefix(name, r.ext4.at(""))) && unix.Lstat(name, &st) == nil {
				r.objects[st.Ino] = true
			}
			return nil
		})
	}
	to := r.ext4.at(c.To)
	if c.Kind == "rmdir" {
		to = r.ext4.at(c.Path) + " (deleted)"
	}
	if temporary(c.Path) && (c.Kind == "rename" && f.isDir(c.To) || c.Kind == "rmdir") {
		for slot, fd := range r.ext4.fds {
			at, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
			if err == nil && (at == to || strings.HasPrefix(at, to+"/")) && r.ext4.dirs[slot] {
				r.moved[r.ext4.ino(slot)] = true
			}
		}
	}
}

// end lets all go, and compares the trees.
func (r *metamorphic) end() (difference string) {
	r.mount.end()
	r.ext4.end()
	walk := func(s *side) string {
		var text strings.Builder
		err := filepath.WalkDir(s.root, func(p string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			name, _ := filepath.Rel(s.root, p)
			c := &call{Path: name}
			fmt.Fprintf(&text, "%s: %s\n", name, s.stat(c))
			if d.Type().IsRegular() {
				fmt.Fprintln(&text, s.read(c))
			}
			return nil
		})
		return text.String() + told(err, "")
	}
	if got, want := walk(r.mount), walk(r.ext4); got != want {
		return fmt.Sprintf("at the end there is\n%s\nand on ext4\n%s", got, want)
	}
	return ""
}

// replay does calls from the beginning, and returns after how many of them there is a difference, 0 if there is none.
func replay(j job, name string, calls []*call) (after int, difference string, r *metamorphic) {
	r, err := newMetamorphic(j.Dir, j.Local, name)
	if err != nil {
		return 1, err.Error(), nil
	}
	for i, c := range calls {
		if d := r.step(c); d != "" {
			r.mount.end()
			r.ext4.end()
			return i + 1, d, r
		}
	}
	if d := r.end(); d != "" {
		return len(calls), d, r
	}
	return 0, "", r
}

// differs is a file that says that a difference was found.
func differs(local string) string { return local + ".differs" }

// mostReplays bounds the search for few calls that show a difference.
const mostReplays = 200

// fewest leaves out calls, as long as there is the same difference still: ever smaller pieces, from the end. It returns what
// was done then, nothing if the calls alone do not show it.
func fewest(j job, name string, calls []*call, difference string) (log []string) {
	few, replays := calls, 0
	for piece := len(calls); piece > 0 && replays < mostReplays; piece /= 2 {
		for at := len(few); at > 0 && replays < mostReplays; at -= piece {
			shorter := slices.Delete(slices.Clone(few), max(at-piece, 0), min(at, len(few)))
			replays++
			if after, d, r := replay(j, fmt.Sprintf("%s-%d", name, replays), shorter); d == difference {
				few, log = shorter[:after], r.log
				at = min(at, len(few)+piece)
			}
		}
	}
	return log
}

// metamorphic does runs, each of j.Calls calls, until its standard input ends, but at least j.Runs of them.
func (w *worker) metamorphic(j job, ended chan struct{}) {
	w.Seen = map[string]int{}
	for ; ; w.Done++ {
		select {
		case <-ended:
			if w.Done >= j.Runs {
				return
			}
		default:
		}
		rng := rand.New(rand.NewPCG(j.Draw, uint64(w.Done)))
		calls := make([]*call, j.Calls)
		for i := range calls {
			calls[i] = drawCall(rng, j.Large)
		}
		name := fmt.Sprintf("run-%d", w.Done)
		after, difference, r := replay(j, name, calls)
		if difference != "" {
			if err := os.WriteFile(differs(j.Local), nil, 0o600); err != nil { // so that nobody kills the node now
				w.wrong("%v", err)
			}
			note := "the shortest that shows it"
			log := fewest(j, name, calls[:after], difference)
			if len(log) == 0 && r != nil {
				log, note = r.log, "which by themselves do not show it"
			}
			w.wrong("draw %d, run %d: call %d: %s\n%d calls, %s:\n\t%s", j.Draw, w.Done, after, difference, len(log), note, strings.Join(log, "\n\t"))
			return
		}
		for name, n := range r.seen {
			w.Seen[name] += n
		}
	}
}

// writeMetamorphic has the same random calls done on a mount, whose node is killed and upgraded meanwhile, and on ext4. Each
// has the same outcome at once, but for what docs/semantics.md lists, and at the end the bucket has the bytes of all files.
func writeMetamorphic(e *env) {
	o := e.origin()
	p := e.proxy(o)
	h := e.mount(o, writable(settings{endpoint: p.endpoint, keep: resends()}))
	local := e.path("local")
	e.must(os.Mkdir(local, 0o755), "make a directory")
	j := job{Op: "metamorphic", Dir: h.dir, Local: local, Draw: 1, Calls: 300, Runs: map[level]int{core: 2, all: 4, full: 100}[e.level]}
	kills := map[level]int{core: 3, all: 8, full: 200}[e.level]
	if e.level == full {
		j.Draw, j.Large = e.seed(), true
	}
	w := e.reader(j)
	e.kills(h, p, kills, local, w)
	w.end()
	a := w.result(map[level]time.Duration{full: time.Hour}[e.level] + time.Minute)
	for _, wrong := range a.Wrong {
		e.Errorf("%s", wrong)
	}
	if e.Failed() {
		e.shown(h, o, fmt.Sprintf("run-%d/", a.Done))
		return
	}
	for _, p := range promises() {
		if a.Seen[p.call] == 0 {
			e.Errorf("no call was of %s", p.call)
		}
	}
	e.published(h)
	h.quit()
	files := e.compare(o, local)
	e.shows("%d runs of %d calls, %d kills, %d files", a.Done, j.Calls, kills, files)
}

// shown logs what the bucket and the node have of a run that showed a difference, which is as it was then.
func (e *env) shown(h *hearth, o *server, run string) {
	e.Helper()
	for _, key := range e.keys(o) {
		if strings.HasPrefix(key, run) {
			e.Logf("in the bucket: %s, %d bytes", key, len(e.object(o, key)))
		}
	}
	out, code := e.run(e.hearth, "drafts", "ls", "--node", "unix://"+h.socket())
	e.Logf("drafts: exit %d\n%s", code, out)
	err := filepath.WalkDir(filepath.Join(h.dir, run), func(p string, d fs.DirEntry, err error) error {
		e.Logf("in the mount: %s: %v, %v", p, d, err)
		return nil
	})
	e.must(err, "walk")
}

// kills kills or upgrades a kept node again and again, while others work at it.
func (e *env) kills(h *hearth, p *proxied, kills int, local string, workers ...*reader) {
	e.Helper()
	if !resends() {
		return
	}
	over := func() bool {
		_, err := os.Stat(differs(local))
		return err == nil || slices.ContainsFunc(workers, func(w *reader) bool { return strings.Contains(w.out.String(), "\n") })
	}
	for i := range kills {
		before := p.Stats().Other.Requests
		e.eventually("writers at work", func() bool { return over() || p.Stats().Other.Requests > before+int64(10+i%7) })
		if over() {
			return
		}
		pid := h.status().PID
		if i%4 == 3 {
			if out, code := e.run(e.hearth, "upgrade", e.hearth, "--node", "unix://"+h.socket()); code != 0 {
				e.Fatalf("upgrade: exit %d: %s", code, out)
			}
		} else {
			e.must(syscall.Kill(pid, syscall.SIGKILL), "kill the node")
		}
		e.eventually("the next node", func() bool {
			s, err := h.client.Status(e.ctx)
			return err == nil && s.PID != pid && s.Keeper != nil && len(s.Mounts) > 0
		})
	}
}

// published waits until the bucket has all that it is to have.
func (e *env) published(h *hearth) {
	e.Helper()
	e.eventually("what is published behind", func() bool {
		s := h.status().Drafts.States
		if s.Failed.Files > 0 || s.Aside.Files > 0 {
			e.Fatalf("drafts failed: %+v", s)
		}
		return s.Open.Files+s.Waiting.Files+s.Publishing.Files == 0
	})
}

// compare holds the bucket against a directory, and returns how many files both have.
func (e *env) compare(o *server, local string) (files int) {
	e.Helper()
	var want []string
	e.must(filepath.WalkDir(local, func(path string, d fs.DirEntry, err error) error {
		key, _ := filepath.Rel(local, path)
		if err != nil || d.IsDir() || temporary(key) {
			return err
		}
		want = append(want, key)
		text, err := os.ReadFile(path)
		if got := e.object(o, key); string(got) != string(text) {
			e.Errorf("%s has %d bytes in the bucket, and %d on ext4", key, len(got), len(text))
		}
		return err
	}), "walk")
	slices.Sort(want)
	if got := e.keys(o); !slices.Equal(got, want) {
		e.Errorf("the bucket has %q, and ext4 %q", got, want)
	}
	if left := e.uploads(o); len(left) > 0 {
		e.Errorf("uploads are left: %q", left)
	}
	return len(want)
}

func TestTableOfCallsIsThatOfSemantics(t *testing.T) {
	// Each row of the table of calls in docs/semantics.md is held by write-metamorphic, which has no other, and names the errno that a
	// mount may answer.
	text, err := os.ReadFile("../docs/semantics.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "\n| call | what happens |\n|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	rows := map[string]string{}
	for line := range strings.Lines(table) {
		cells := regexp.MustCompile(`^\| (.+?) \| (.+) \|\n?$`).FindStringSubmatch(line)
		if cells == nil {
			t.Fatalf("no row: %s", line)
		}
		rows[cells[1]] = cells[2]
	}
	if len(rows) < 10 {
		t.Fatalf("only %d rows", len(rows))
	}
	ours := map[string]bool{}
	for _, p := range promises() {
		ours[p.call] = true
		says, ok := rows[p.call]
		if !ok {
			_, says, ok = strings.Cut(string(text), "**"+p.call+"**")
		}
		switch {
		case !ok:
			t.Errorf("docs/semantics.md does not have %s", p.call)
		case p.errno != "" && !strings.Contains(says, "`"+p.errno+"`"):
			t.Errorf("docs/semantics.md does not say %s of %s", p.errno, p.call)
		}
	}
	for call := range rows {
		if !ours[call] {
			t.Errorf("write-metamorphic does not have the row %s", call)
		}
	}
}
