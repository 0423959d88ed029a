package e2e

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// happening is one change of a cache directory, as inotify tells it.
type happening struct {
	dir, name string
	mask      uint32
}

func (h happening) String() string {
	return fmt.Sprintf("%s/%s %#x", filepath.Base(h.dir), h.name, h.mask)
}

// trap kills a node when it was seen doing something for the at-th time.
type trap struct {
	c     *crashes
	p     phase
	at    int
	last  string // what it was seen doing when it was killed
	armed chan *hearth
	hit   chan bool // one word: the node was killed by the trap
	quit  chan struct{}
	watch *watch // nil: requests are counted
	work  sync.WaitGroup
}

// trapWait is how long a phase may go on without coming to its kill.
const trapWait = 15 * time.Second

// trap is set before the node is; it counts from arm on, of a starting node from
// its first change on.
func (c *crashes) trap(p phase) *trap {
	c.e.Helper()
	if p.names > 0 && c.rng.IntN(2) == 0 {
		p.changes, p.most = named, p.names
	}
	t := &trap{c: c, p: p, at: 1 + c.rng.IntN(p.most), armed: make(chan *hearth, 1), hit: make(chan bool, 1), quit: make(chan struct{})}
	if p.changes == nil {
		upTo := p.requests(c.p) + int64(t.at)
		t.work.Go(func() { t.countRequests(upTo) })
		return t
	}
	var err error
	t.watch, err = watchTree(c.e.path(c.cacheName()))
	c.e.must(err, "watch the cache directory")
	t.work.Go(t.countChanges)
	return t
}

func (t *trap) arm(h *hearth) { t.armed <- h }

// wait waits for the kill, or for the end of the phase: a starting node is mounted,
// or nothing comes that counts.
func (t *trap) wait() (hit bool) {
	t.c.e.Helper()
	late := time.Now().Add(trapWait)
	t.c.e.eventually("a kill", func() bool {
		select {
		case hit = <-t.hit:
			return true
		default:
		}
		return time.Now().After(late) || t.p.name == "start" && len(mountsBelow(t.c.h.dir)) > 0
	})
	return hit
}

func (t *trap) close() {
	close(t.quit)
	if t.watch != nil {
		_ = t.watch.file.Close()
	}
	t.work.Wait()
}

// countRequests kills the node when so many had reached the origin.
func (t *trap) countRequests(upTo int64) {
	h := <-t.armed
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		if n := t.p.requests(t.c.p); n >= upTo {
			_ = h.Process.Kill()
			t.last = fmt.Sprintf("request %d", n)
			t.hit <- true
			return
		}
		select {
		case <-tick.C:
		case <-t.quit:
			return
		}
	}
}

// countChanges kills the node when so many changes were seen that count.
func (t *trap) countChanges() {
	var h *hearth
	for left := t.at; ; {
		all, err := t.watch.next()
		if err != nil {
			return // closed
		}
		if h == nil {
			select {
			case h = <-t.armed:
			case <-t.quit:
				return
			}
		}
		for _, x := range all {
			if left == 0 || !t.p.changes(x) {
				continue
			}
			if left--; left == 0 {
				_ = h.Process.Kill()
				t.last = x.String()
				t.hit <- true
			}
		}
	}
}

// watch is a directory and those in it, watched by inotify.
type watch struct {
	file *os.File
	fd   int
	dirs map[int32]string
	buf  []byte
}

func watchTree(root string) (*watch, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, err
	}
	w := &watch{file: os.NewFile(uintptr(fd), "inotify"), fd: fd, dirs: map[int32]string{}, buf: make([]byte, 64<<10)}
	if err := w.add(root); err != nil {
		return nil, errors.Join(err, w.file.Close())
	}
	return w, nil
}

// add watches a directory and what is in it already.
func (w *watch) add(dir string) error {
	const mask = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MODIFY | unix.IN_MOVED_TO | unix.IN_OPEN | unix.IN_ONLYDIR
	n, err := unix.InotifyAddWatch(w.fd, dir, mask)
	if err != nil {
		return fmt.Errorf("watch %s: %w", dir, err)
	}
	w.dirs[int32(n)] = dir
	inside, err := os.ReadDir(dir)
	for _, d := range inside {
		if d.IsDir() {
			err = errors.Join(err, w.add(filepath.Join(dir, d.Name())))
		}
	}
	return err
}

// next are the changes since the last call, at least one. A directory that comes
// is watched, too.
func (w *watch) next() (all []happening, err error) {
	n, err := w.file.Read(w.buf)
	if err != nil {
		return nil, err
	}
	for b := w.buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
		size := int(binary.NativeEndian.Uint32(b[12:]))
		name := b[unix.SizeofInotifyEvent:][:size]
		x := happening{dir: w.dirs[int32(binary.NativeEndian.Uint32(b))], mask: binary.NativeEndian.Uint32(b[4:]),
			name: string(bytes.TrimRight(name, "\x00"))}
		b = b[unix.SizeofInotifyEvent+size:]
		if x.mask&(unix.IN_ISDIR|unix.IN_CREATE) == unix.IN_ISDIR|unix.IN_CREATE {
			_ = w.add(filepath.Join(x.dir, x.name)) // gone again
		}
		if x.dir != "" && x.mask&unix.IN_ISDIR == 0 {
			all = append(all, x)
		}
	}
	return all, nil
}

// named: names are written.
func named(x happening) bool { return x.mask&unix.IN_OPEN == 0 && strings.Contains(x.dir, "/names") }

// written: blocks are written.
func written(x happening) bool {
	return x.mask&(unix.IN_MODIFY|unix.IN_CREATE) != 0 && !strings.Contains(x.dir, "/names")
}

// given: a block, an extent or an object is given up.
func given(x happening) bool {
	gone := x.mask&unix.IN_DELETE != 0 && !strings.Contains(x.dir, "/names") && !strings.HasSuffix(x.name, ".tmp")
	return gone || x.mask&unix.IN_MODIFY != 0 && x.name == "deaths"
}
