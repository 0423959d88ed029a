package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// call is a system call of the metamorphic test. It names no file system, so that it can be repeated on two.
type call struct {
	Kind     string
	Path, To string // below a run's directory
	Slot, By int    // of descriptors; of mappings by mmap, mwrite and munmap
	Flags    int    // of open and renameat2; the whence of lseek
	Off, N   int64
	Seed     uint64 // of the bytes that are written
}

func (c *call) String() string {
	at, two := fmt.Sprintf("%s(%d", c.Kind, c.Slot), ""
	switch c.Kind {
	case "open":
		return fmt.Sprintf("open(%s, %s) = %d", c.Path, flagNames(c.Flags), c.Slot)
	case "rename":
		two = map[int]string{unix.RENAME_NOREPLACE: ", NOREPLACE", unix.RENAME_EXCHANGE: ", EXCHANGE"}[c.Flags]
		return fmt.Sprintf("rename(%s, %s%s)", c.Path, c.To, two)
	case "link":
		return fmt.Sprintf("link(%s, %s)", c.Path, c.To)
	case "pwrite", "pread", "mwrite", "fallocate":
		return fmt.Sprintf("%s, %d bytes at %d)", at, c.N, c.Off)
	case "append":
		return fmt.Sprintf("%s, %d bytes)", at, c.N)
	case "ftruncate":
		return fmt.Sprintf("%s, %d)", at, c.Off)
	case "truncate":
		return fmt.Sprintf("truncate(%s, %d)", c.Path, c.Off)
	case "lseek":
		return fmt.Sprintf("%s, %d, %s)", at, c.Off, map[int]string{unix.SEEK_HOLE: "SEEK_HOLE", unix.SEEK_DATA: "SEEK_DATA"}[c.Flags])
	case "chmod":
		return fmt.Sprintf("chmod(%s, %o)", c.Path, c.N)
	case "copy":
		return fmt.Sprintf("copy_file_range(%d at %d, %d, %d bytes)", c.Slot, c.Off, c.By, c.N)
	case "dup", "mmap":
		return fmt.Sprintf("%s) = %d", at, c.By)
	case "same":
		return fmt.Sprintf("%s is %s)", at, c.Path)
	}
	if callKinds()[c.Kind].named {
		return fmt.Sprintf("%s(%s)", c.Kind, c.Path)
	}
	return at + ")"
}

func flagNames(flags int) string {
	text := map[int]string{unix.O_RDONLY: "O_RDONLY", unix.O_WRONLY: "O_WRONLY", unix.O_RDWR: "O_RDWR"}[flags&unix.O_ACCMODE]
	for _, f := range []struct {
		bit  int
		name string
	}{{unix.O_CREAT, "O_CREAT"}, {unix.O_EXCL, "O_EXCL"}, {unix.O_TRUNC, "O_TRUNC"}, {unix.O_APPEND, "O_APPEND"}, {unix.O_DIRECTORY, "O_DIRECTORY"}} {
		if flags&f.bit != 0 {
			text += "|" + f.name
		}
	}
	return text
}

const (
	callSlots = 5
	callMaps  = 2
)

// side is one of the two file systems.
type side struct {
	root string
	fds  [callSlots]int  // -1: none
	dirs [callSlots]bool // of which fds: a directory that was renamed does not tell any more
	maps [callMaps][]byte
	// sizes are descriptors of what is mapped, to learn its size by. Only ext4 has them: on the mount a mapping is to be the last that holds
	// a file.
	sizes  [callMaps]int
	learns bool // is ext4
}

func newSide(root string) *side {
	s := &side{root: root}
	for i := range s.fds {
		s.fds[i] = -1
	}
	return s
}

func (s *side) at(name string) string { return filepath.Join(s.root, name) }

// skipped is the outcome of a call without the descriptor or mapping that it needs.
const skipped = "-"

// told tells an errno by its name.
func told(err error, format string, args ...any) string {
	var errno unix.Errno
	switch {
	case err == nil:
		return fmt.Sprintf(format, args...)
	case errors.Is(err, unix.EOPNOTSUPP): // ENOTSUP by another name
		return "EOPNOTSUPP"
	case errors.As(err, &errno):
		return unix.ErrnoName(errno)
	}
	return err.Error()
}

// do does a call. What it returns is the same on any file system.
func (s *side) do(c *call) string {
	k := callKinds()[c.Kind]
	if !k.named && k.mapping && s.maps[c.Slot%callMaps] == nil || !k.named && !k.mapping && s.fds[c.Slot] < 0 {
		return skipped
	}
	return k.do(s, c)
}

// callKind says how calls with one Kind are drawn and done.
type callKind struct {
	weight  int  // how often it is drawn
	named   bool // by a path, not by a descriptor
	mapping bool // by a mapping
	do      func(s *side, c *call) string
}

func callKinds() map[string]callKind {
	return map[string]callKind{
		"open":      {weight: 22, named: true, do: (*side).open},
		"close":     {weight: 12, do: (*side).close},
		"dup":       {weight: 2, do: (*side).dup},
		"pwrite":    {weight: 14, do: (*side).pwrite},
		"append":    {weight: 5, do: (*side).append},
		"pread":     {weight: 8, do: (*side).pread},
		"ftruncate": {weight: 5, do: func(s *side, c *call) string { return told(unix.Ftruncate(s.fds[c.Slot], c.Off), "ok") }},
		"truncate":  {weight: 3, named: true, do: func(s *side, c *call) string { return told(unix.Truncate(s.at(c.Path), c.Off), "ok") }},
		"fsync":     {weight: 2, do: func(s *side, c *call) string { return told(unix.Fsync(s.fds[c.Slot]), "ok") }},
		"unlink":    {weight: 6, named: true, do: func(s *side, c *call) string { return told(unix.Unlink(s.at(c.Path)), "ok") }},
		"mkdir":     {weight: 4, named: true, do: func(s *side, c *call) string { return told(unix.Mkdir(s.at(c.Path), 0o755), "ok") }},
		"rmdir":     {weight: 3, named: true, do: func(s *side, c *call) string { return told(unix.Rmdir(s.at(c.Path)), "ok") }},
		"rename":    {weight: 14, named: true, do: (*side).rename},
		"stat":      {weight: 5, named: true, do: (*side).stat},
		"fstat":     {weight: 4, do: (*side).fstat},
		"same":      {weight: 4, do: (*side).same},
		"read":      {weight: 5, named: true, do: (*side).read},
		"readdir":   {weight: 4, named: true, do: (*side).readdir},
		"utimens":   {weight: 2, named: true, do: (*side).utimens},
		"chmod":     {weight: 2, named: true, do: (*side).chmod},
		"chown":     {weight: 1, named: true, do: (*side).chown},
		"access":    {weight: 2, named: true, do: func(s *side, c *call) string { return told(unix.Access(s.at(c.Path), unix.R_OK|unix.W_OK), "ok") }},
		"symlink":   {weight: 1, named: true, do: func(s *side, c *call) string { return told(unix.Symlink("a", s.at(c.Path)), "ok") }},
		"link":      {weight: 1, named: true, do: func(s *side, c *call) string { return told(unix.Link(s.at(c.Path), s.at(c.To)), "ok") }},
		"mknod":     {weight: 1, named: true, do: func(s *side, c *call) string { return told(unix.Mknod(s.at(c.Path), unix.S_IFIFO|0o644, 0), "ok") }},
		"tmpfile":   {weight: 1, named: true, do: (*side).tmpfile},
		"setxattr": {weight: 1, named: true, do: func(s *side, c *call) string {
			return told(unix.Setxattr(s.at(c.Path), "user.x", []byte("y"), 0), "ok")
		}},
		"mmap":      {weight: 4, do: (*side).mmap},
		"mwrite":    {weight: 6, mapping: true, do: (*side).mwrite},
		"mread":     {weight: 3, mapping: true, do: (*side).mread},
		"msync":     {weight: 2, mapping: true, do: func(s *side, c *call) string { return told(unix.Msync(s.maps[c.Slot%callMaps], unix.MS_SYNC), "ok") }},
		"munmap":    {weight: 3, mapping: true, do: (*side).munmap},
		"copy":      {weight: 3, do: (*side).copy},
		"fallocate": {weight: 1, do: func(s *side, c *call) string { return told(unix.Fallocate(s.fds[c.Slot], 0, c.Off, c.N), "ok") }},
		"lseek":     {weight: 3, do: (*side).lseek},
		"flock":     {weight: 3, do: func(s *side, c *call) string { return told(unix.Flock(s.fds[c.Slot], unix.LOCK_EX|unix.LOCK_NB), "ok") }},
		"unlock":    {weight: 1, do: func(s *side, c *call) string { return told(unix.Flock(s.fds[c.Slot], unix.LOCK_UN), "ok") }},
		"lock":      {weight: 1, do: (*side).lock},
		"forget": {weight: 2, do: func(s *side, c *call) string {
			return told(unix.Fadvise(s.fds[c.Slot], 0, 0, unix.FADV_DONTNEED), "ok")
		}},
	}
}

// open takes a slot, unless that has a descriptor.
func (s *side) open(c *call) string {
	if s.fds[c.Slot] >= 0 {
		return skipped
	}
	fd, err := unix.Open(s.at(c.Path), c.Flags|unix.O_CLOEXEC, 0o644)
	if err == nil {
		var st unix.Stat_t
		s.fds[c.Slot] = fd
		s.dirs[c.Slot] = unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR
	}
	return told(err, "ok")
}

func (s *side) close(c *call) string {
	err := unix.Close(s.fds[c.Slot])
	s.fds[c.Slot] = -1
	return told(err, "ok")
}

func (s *side) dup(c *call) string {
	if s.fds[c.By] >= 0 {
		return skipped
	}
	fd, err := unix.FcntlInt(uintptr(s.fds[c.Slot]), unix.F_DUPFD_CLOEXEC, 0)
	if err == nil {
		s.fds[c.By], s.dirs[c.By] = fd, s.dirs[c.Slot]
	}
	return told(err, "ok")
}

// bytes are what a call writes.
func (c *call) bytes() []byte {
	p := make([]byte, c.N)
	r := rand.New(rand.NewPCG(c.Seed, uint64(c.N)))
	for i := range p {
		p[i] = byte(r.Uint32())
	}
	return p
}

func (s *side) pwrite(c *call) string {
	n, err := unix.Pwrite(s.fds[c.Slot], c.bytes(), c.Off)
	return told(err, "%d bytes", n)
}

// append writes at the end, of a descriptor that may have O_APPEND or not.
func (s *side) append(c *call) string {
	if _, err := unix.Seek(s.fds[c.Slot], 0, unix.SEEK_END); err != nil {
		return told(err, "")
	}
	n, err := unix.Write(s.fds[c.Slot], c.bytes())
	return told(err, "%d bytes", n)
}

func (s *side) pread(c *call) string {
	p := make([]byte, c.N)
	n, err := unix.Pread(s.fds[c.Slot], p, c.Off)
	return told(err, "%d bytes: %s", n, digest(p[:max(n, 0)]))
}

// digest tells bytes: most of them by where runs of zeros begin and end, and by a sum.
func digest(p []byte) string {
	var text strings.Builder
	sum := uint64(14695981039346656037)
	for i, b := range p {
		sum = (sum ^ uint64(b)) * 1099511628211
		if i%512 == 0 && text.Len() < 400 {
			fmt.Fprintf(&text, "%02x", b)
		}
	}
	return fmt.Sprintf("%s (%016x)", text.String(), sum)
}

func (s *side) rename(c *call) string {
	err := unix.Renameat2(unix.AT_FDCWD, s.at(c.Path), unix.AT_FDCWD, s.at(c.To), uint(c.Flags))
	return told(err, "ok")
}

// look tells of a file what both file systems have alike: not its times, its blocks and its modes.
func look(st *unix.Stat_t) string {
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return "directory"
	}
	return fmt.Sprintf("type %o of %d bytes", st.Mode&unix.S_IFMT, st.Size)
}

func (s *side) stat(c *call) string {
	var st unix.Stat_t
	err := unix.Lstat(s.at(c.Path), &st)
	return told(err, "%s", look(&st))
}

func (s *side) fstat(c *call) string {
	var st unix.Stat_t
	err := unix.Fstat(s.fds[c.Slot], &st)
	return told(err, "%s", look(&st))
}

// same tells whether a descriptor's file is the one that has a name: as tail -F, mv and editors ask.
func (s *side) same(c *call) string {
	var a, b unix.Stat_t
	if err := errors.Join(unix.Fstat(s.fds[c.Slot], &a), unix.Stat(s.at(c.Path), &b)); err != nil {
		return told(err, "")
	}
	return fmt.Sprint(a.Ino == b.Ino)
}

// read reads a whole file by its name.
func (s *side) read(c *call) string {
	text, err := os.ReadFile(s.at(c.Path))
	var of *fs.PathError
	if errors.As(err, &of) {
		return told(err, "") + " of " + of.Op
	}
	return told(err, "%d bytes: %s", len(text), digest(text))
}

func (s *side) readdir(c *call) string {
	list, err := os.ReadDir(s.at(c.Path))
	var names []string
	for _, d := range list {
		names = append(names, fmt.Sprintf("%s (%v)", d.Name(), d.Type()))
	}
	return told(err, "%s", strings.Join(names, ", "))
}

func (s *side) utimens(c *call) string {
	ts := []unix.Timespec{{Sec: int64(c.Seed % 1e9)}, {Sec: int64(c.Seed % 1e9)}}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, s.at(c.Path), ts, 0); err != nil {
		return told(err, "")
	}
	var st unix.Stat_t
	if err := unix.Stat(s.at(c.Path), &st); err != nil || st.Mode&unix.S_IFMT == unix.S_IFDIR { // whose times are not kept
		return told(err, "ok")
	}
	return fmt.Sprint(st.Mtim.Sec)
}

// chown tells the owner and the group after it, too.
func (s *side) chown(c *call) string {
	if err := unix.Chown(s.at(c.Path), int(c.N), int(c.Seed%2)*1000); err != nil {
		return told(err, "")
	}
	var st unix.Stat_t
	err := unix.Stat(s.at(c.Path), &st)
	return told(err, "%d:%d", st.Uid, st.Gid)
}

// chmod tells the mode after it, too.
func (s *side) chmod(c *call) string {
	if err := unix.Chmod(s.at(c.Path), uint32(c.N)); err != nil {
		return told(err, "")
	}
	var st unix.Stat_t
	err := unix.Stat(s.at(c.Path), &st)
	return told(err, "%o", st.Mode)
}

func (s *side) tmpfile(c *call) string {
	fd, err := unix.Open(s.at(path.Dir(c.Path)), unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o644)
	if err == nil {
		_ = unix.Close(fd) // nobody has it
	}
	return told(err, "ok")
}

// mmap maps a file from its beginning, to a page beyond its end. By is the mapping.
func (s *side) mmap(c *call) string {
	m := &s.maps[c.By%callMaps]
	var st unix.Stat_t
	err := unix.Fstat(s.fds[c.Slot], &st)
	if *m != nil || err == nil && st.Size > 1<<20 {
		return skipped
	}
	if err == nil {
		*m, err = unix.Mmap(s.fds[c.Slot], 0, int(st.Size)+4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err == nil && s.learns {
		s.sizes[c.By%callMaps], err = unix.Open(fmt.Sprintf("/proc/self/fd/%d", s.fds[c.Slot]), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	}
	return told(err, "ok")
}

// within is a call of a mapping without the bytes between the file's end and the end of its page, which mean nothing.
func (s *side) within(c *call) *call {
	var st unix.Stat_t
	if m := c.Slot % callMaps; s.maps[m] == nil || unix.Fstat(s.sizes[m], &st) != nil || c.Off >= (st.Size+4095)&^4095 {
		return c
	}
	in := *c
	in.N = max(0, min(c.N, st.Size-c.Off))
	return &in
}

// touch reads or writes mapped memory: what is beyond the end of the file is a fault.
func touch(do func() string) (text string) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if recover() != nil {
			text = "SIGBUS"
		}
	}()
	return do()
}

func (s *side) mwrite(c *call) string {
	m := s.maps[c.Slot%callMaps]
	p := c.bytes()
	return touch(func() string {
		for i := range p { // byte by byte: what is before a fault is written
			if at := int(c.Off) + i; at < len(m) {
				m[at] = p[i]
			}
		}
		return "ok"
	})
}

func (s *side) mread(c *call) string {
	m := s.maps[c.Slot%callMaps]
	off := min(int(c.Off), len(m))
	return touch(func() string { return digest(m[off:min(off+int(c.N), len(m))]) })
}

func (s *side) munmap(c *call) string {
	m := &s.maps[c.Slot%callMaps]
	err := unix.Munmap(*m)
	*m = nil
	if s.learns {
		err = errors.Join(err, unix.Close(s.sizes[c.Slot%callMaps]))
	}
	return told(err, "ok")
}

func (s *side) copy(c *call) string {
	if s.fds[c.By] < 0 {
		return skipped
	}
	from, to := c.Off, int64(c.Seed%20000)
	n, err := unix.CopyFileRange(s.fds[c.Slot], &from, s.fds[c.By], &to, int(c.N), 0)
	return told(err, "%d bytes", n)
}

// lseek is of files: what it says of directories means nothing.
func (s *side) lseek(c *call) string {
	if s.dirs[c.Slot] {
		return skipped
	}
	off, err := unix.Seek(s.fds[c.Slot], c.Off, c.Flags)
	return told(err, "%d", off)
}

// lock takes a lock of the process, which has them all.
func (s *side) lock(c *call) string {
	l := unix.Flock_t{Type: unix.F_RDLCK, Start: c.Off, Len: c.N}
	return told(unix.FcntlFlock(uintptr(s.fds[c.Slot]), unix.F_SETLK, &l), "ok")
}

// end lets all go.
func (s *side) end() {
	for i := range s.maps {
		if s.maps[i] != nil {
			s.munmap(&call{Slot: i})
		}
	}
	for i := range s.fds {
		if s.fds[i] >= 0 {
			s.close(&call{Slot: i})
		}
	}
}

// drawCall draws a call. large ones are of megabytes at times.
func drawCall(rng *rand.Rand, large bool) *call {
	kinds := callKinds()
	names, all := make([]string, 0, len(kinds)), 0
	for name, k := range kinds {
		names, all = append(names, name), all+k.weight
	}
	slices.Sort(names)
	n := rng.IntN(all)
	c := &call{Slot: rng.IntN(callSlots), By: rng.IntN(callSlots), Path: drawPath(rng), To: drawPath(rng), Seed: rng.Uint64()}
	for _, name := range names {
		if n -= kinds[name].weight; n < 0 {
			c.Kind = name
			break
		}
	}
	c.Off, c.N = rng.Int64N(20000), 1+rng.Int64N(9000)
	switch x := rng.IntN(20); {
	case x == 0:
		c.Off = 0
	case x == 1:
		c.Off, c.N = rng.Int64N(1<<20), 1+rng.Int64N(300<<10)
	case x == 2 && large:
		c.Off, c.N = rng.Int64N(24<<20), 1+rng.Int64N(12<<20)
	case x == 3:
		c.Off &^= 4095
	}
	switch c.Kind {
	case "open":
		access := []int{unix.O_RDONLY, unix.O_WRONLY, unix.O_RDWR, unix.O_RDWR}[rng.IntN(4)]
		how := []int{0, 0, unix.O_CREAT, unix.O_CREAT, unix.O_CREAT | unix.O_TRUNC, unix.O_CREAT | unix.O_EXCL, unix.O_TRUNC, unix.O_CREAT | unix.O_APPEND, unix.O_APPEND}[rng.IntN(9)]
		c.Flags = access | how
	case "rename":
		c.Flags = []int{0, 0, 0, 0, 0, 0, unix.RENAME_NOREPLACE, unix.RENAME_EXCHANGE}[rng.IntN(8)]
	case "truncate":
		c.Off *= rng.Int64N(2)
	case "lseek":
		c.Flags = []int{unix.SEEK_HOLE, unix.SEEK_DATA}[rng.IntN(2)]
	case "chmod":
		c.N = []int64{0o644, 0o600, 0o755}[rng.IntN(3)]
	case "chown":
		c.N = []int64{0, 1000, 2000}[rng.IntN(3)]
	case "readdir":
		c.Path = path.Dir(c.Path)
	case "mkdir", "rmdir":
		if rng.IntN(2) == 0 {
			c.Path = drawDir(rng)
		}
	}
	if c.Kind == "rename" && rng.IntN(6) == 0 {
		c.Path, c.To = drawDir(rng), drawDir(rng)
	}
	return c
}

func drawDir(rng *rand.Rand) string {
	return []string{"d", "e", "d/s", "t.tmp", "t.tmp/s", "e/u.tmp"}[rng.IntN(6)]
}

// drawPath is one of few names, so that calls meet. One is of no key.
func drawPath(rng *rand.Rand) string {
	if rng.IntN(100) == 0 {
		return "d/\xff"
	}
	dir := []string{".", ".", "d", "e", "d/s", "t.tmp", "t.tmp", "t.tmp/s"}[rng.IntN(8)]
	return path.Join(dir, []string{"a", "a", "b", "x.tmp", "x.tmp", "s"}[rng.IntN(6)])
}
