package e2e

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// exercised is a file, and what it is to have. It does to the file what fsx does.
type exercised struct {
	rng     *rand.Rand
	path    string
	fd, end int // end has O_APPEND
	want    []byte
	most    int64    // bytes
	log     []string // what was done
}

func (x *exercised) open(flags int) (err error) {
	if x.fd, err = unix.Open(x.path, unix.O_RDWR|flags|unix.O_CLOEXEC, 0o644); err != nil {
		return err
	}
	x.end, err = unix.Open(x.path, unix.O_WRONLY|unix.O_APPEND|unix.O_CLOEXEC, 0)
	return err
}

func (x *exercised) close() error {
	if err := unix.Close(x.end); err != nil {
		return err
	}
	return unix.Close(x.fd)
}

// some draws a range of at most a sixteenth of the largest file that begins within the file, or a little behind its end.
func (x *exercised) some() (off, n int64) {
	return x.rng.Int64N(min(int64(len(x.want))+5000, x.most)), 1 + x.rng.Int64N(x.most/16)
}

func (x *exercised) bytes(n int64) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(x.rng.Uint32())
	}
	return p
}

// grown has the model be as large at least.
func (x *exercised) grown(size int64) {
	if more := size - int64(len(x.want)); more > 0 {
		x.want = append(x.want, make([]byte, more)...)
	}
}

// step does one thing.
func (x *exercised) step() error {
	off, n := x.some()
	switch op := x.rng.IntN(20); {
	case op < 6:
		p := x.bytes(n)
		x.did("pwrite %d at %d", n, off)
		if _, err := unix.Pwrite(x.fd, p, off); err != nil {
			return err
		}
		x.grown(off + n)
		copy(x.want[off:], p)
	case op < 8 && int64(len(x.want)) < x.most:
		p := x.bytes(n)
		x.did("append %d to %d", n, len(x.want))
		if _, err := unix.Write(x.end, p); err != nil {
			return err
		}
		x.want = append(x.want, p...)
	case op < 10:
		x.did("ftruncate to %d from %d", off, len(x.want))
		if err := unix.Ftruncate(x.fd, off); err != nil {
			return err
		}
		x.grown(off)
		x.want = x.want[:off]
	case op < 14:
		x.did("pread %d at %d", n, off)
		return x.read(off, n)
	case op < 17:
		return x.mapped(off, n)
	case op == 17:
		x.did("fsync")
		return unix.Fsync(x.fd)
	case op == 18:
		// A descriptor less is a close, too: what was written is published, and others go on.
		x.did("dup and close")
		fd, err := unix.FcntlInt(uintptr(x.fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return err
		}
		return unix.Close(fd)
	default:
		x.did("close and open")
		if err := x.close(); err != nil {
			return err
		}
		return x.open(0)
	}
	return nil
}

func (x *exercised) did(format string, args ...any) {
	x.log = append(x.log, fmt.Sprintf(format, args...))
}

// read compares a range with the model.
func (x *exercised) read(off, n int64) error {
	if x.rng.IntN(2) == 0 {
		_ = unix.Fadvise(x.fd, 0, 0, unix.FADV_DONTNEED) // so that Hearth is asked
	}
	p := make([]byte, n)
	got, err := unix.Pread(x.fd, p, off)
	if err != nil {
		return err
	}
	return x.compare(p[:got], off, n)
}

func (x *exercised) compare(got []byte, off, n int64) error {
	size := int64(len(x.want))
	want := x.want[min(off, size):min(off+n, size)]
	if bytes.Equal(got, want) {
		return nil
	}
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			return fmt.Errorf("byte %d is %02x, not %02x", off+int64(i), got[i], want[i])
		}
	}
	return fmt.Errorf("%d bytes at %d of %d, not %d", len(got), off, size, len(want))
}

// mapped reads or writes by a mapping.
func (x *exercised) mapped(off, n int64) error {
	size := int64(len(x.want))
	if off >= size {
		return nil
	}
	n = min(n, size-off)
	m, err := unix.Mmap(x.fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	if x.rng.IntN(3) == 0 {
		x.did("read %d at %d, mapped", n, off)
		err = x.compare(bytes.Clone(m[off:off+n]), off, n)
	} else {
		x.did("write %d at %d, mapped", n, off)
		copy(x.want[off:], x.bytes(n))
		copy(m[off:off+n], x.want[off:])
		if x.rng.IntN(2) == 0 {
			x.did("msync")
			err = unix.Msync(m, unix.MS_SYNC)
		}
	}
	if err != nil {
		return err
	}
	return unix.Munmap(m)
}

// exercise exercises files until its standard input ends, but at least j.Runs of them. Every second one has a temporary name first.
func (w *worker) exercise(j job, ended chan struct{}) {
	w.Sums = map[string]string{}
	for ; ; w.Done++ {
		select {
		case <-ended:
			if w.Done >= j.Runs {
				return
			}
		default:
		}
		name := fmt.Sprintf("%s-%d", j.Name, w.Done)
		x := &exercised{rng: rand.New(rand.NewPCG(j.Draw, uint64(w.Done))), path: filepath.Join(j.Dir, name), most: 256 << 10}
		if j.Large {
			x.most = 24 << 20
		}
		staged := w.Done%2 == 1
		if staged {
			x.path += ".tmp"
		}
		err := x.open(unix.O_CREAT | unix.O_EXCL)
		for i := 0; i < j.Calls && err == nil; i++ {
			err = x.step()
		}
		if err == nil {
			err = x.read(0, x.most*2)
		}
		if err == nil {
			err = x.close()
		}
		if err == nil && staged {
			err = os.Rename(x.path, filepath.Join(j.Dir, name))
		}
		if err != nil {
			w.wrong("%s of draw %d, run %d, after\n\t%s\n\t%v", name, j.Draw, w.Done, strings.Join(x.log[max(0, len(x.log)-40):], "\n\t"), err)
			return
		}
		w.Sums[name] = hashed(x.want)
	}
}

func hashed(data []byte) string {
	s := sha256.Sum256(data)
	return fmt.Sprintf("%x", s)
}

// writeExerciser has one writer, and then four of them, do to files of their own what fsx does, while the node is killed and
// upgraded. Each read has what was written, and at the end the bucket has it.
func writeExerciser(e *env) {
	o := e.origin()
	p := e.proxy(o)
	h := e.mount(o, writable(settings{endpoint: p.endpoint, keep: resends(), origin: ", write: {part_size: 5MiB}"}))
	kills := map[level]int{core: 2, all: 6, full: 100}[e.level]
	files := 0
	for _, writers := range []int{1, 4} {
		var busy []*reader
		for i := range writers {
			j := job{Op: "exercise", Dir: h.dir, Name: fmt.Sprintf("%d-writers-%d", writers, i), Draw: uint64(i), Calls: 100, Runs: map[level]int{core: 2, all: 6, full: 50}[e.level]}
			if e.level == full {
				j.Draw, j.Large = e.seed()+uint64(i), i%2 == 0
			}
			busy = append(busy, e.reader(j))
		}
		e.kills(h, p, kills, "", busy...)
		for _, w := range busy {
			w.end()
		}
		for _, w := range busy {
			a := w.result(map[level]time.Duration{full: time.Hour}[e.level] + time.Minute)
			for _, wrong := range a.Wrong {
				e.Errorf("%s", wrong)
			}
			files += len(a.Sums)
			if len(a.Wrong) > 0 {
				continue
			}
			for name, want := range a.Sums {
				if got := e.object(o, name); hashed(got) != want {
					e.Errorf("%s has %d bytes in the bucket, and they are others than were written", name, len(got))
				}
			}
		}
	}
	e.published(h)
	h.quit()
	if keys := e.keys(o); len(keys) != files && !e.Failed() {
		e.Errorf("the bucket has %q", keys)
	}
	if left := e.uploads(o); len(left) > 0 {
		e.Errorf("uploads are left: %q", left)
	}
	e.shows("%d files, %d kills", files, 2*kills)
}
