package sparse

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth"
)

// An object without memory for its entry stays on disk: it counts in Used and is a miss. Only Shed
// evicts it. Recall, a Put of it, or the next Open adopt it once there is memory. Only the number
// of such objects is known; the directory lists them.

// unindexed counts these objects. shed are some that Shed found and evicts next. passed is how many
// before these could not go: they are read, pinned, or of a newer version.
type unindexed struct {
	objects, bytes int64
	shed           [][16]byte
	passed         int
}

func (u *unindexed) add(objects, bytes int64) {
	u.objects += objects
	u.bytes += bytes
}

// shedAtOnce is how many objects one pass over the directory finds for Shed: enough to spread its
// cost, and few enough for little memory.
const shedAtOnce = 256

// lost looks for the files of an object that is not known.
func (f *Files) lost(version [16]byte) (h halves, ok bool) {
	f.mu.Lock()
	none := f.closed || f.unindexed.objects == 0 || f.objects[version] != nil
	f.mu.Unlock()
	if none {
		return h, false
	}
	found := map[[16]byte]halves{}
	x := object{version: version}
	f.learn(found, x.dataName())
	f.learn(found, x.sumsName())
	h = found[version]
	return h, h.data && h.sums
}

// adopt takes in an unindexed object, if there is memory.
func (f *Files) adopt(version [16]byte) bool {
	h, ok := f.lost(version)
	if !ok || !f.opt.Pool.Claim(objectBytes) {
		return false
	}
	x := &object{version: version, index: index{size: h.size, whole: h.whole}, alloc: h.alloc, state: f.fresh(), lent: true}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed || f.objects[version] != nil || f.unindexed.objects == 0 {
		f.opt.Pool.Unclaim(objectBytes)
		return false
	}
	f.subtractLocked(h.alloc)
	f.insertLocked(x)
	return true
}

// subtractLocked removes an object from the count. The last one also takes what the file system
// added or freed since the count.
func (f *Files) subtractLocked(bytes int64) {
	u := &f.unindexed
	if u.objects--; u.objects == 0 {
		bytes = u.bytes
	}
	u.bytes -= bytes
	f.used.Add(-bytes)
}

// stay keeps Close waiting until leave is called.
func (f *Files) stay() (leave func(), ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, false
	}
	f.pins++
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.pins--; f.closed && f.pins == 0 {
			close(f.drained)
		}
	}, true
}

// forPut adopts the object that a Put will write. An error means that it lies there, and that there
// is no memory for it.
func (f *Files) forPut(version [16]byte) error {
	leave, ok := f.stay()
	if !ok {
		return errClosed
	}
	defer leave()
	if _, there := f.lost(version); there && !f.adopt(version) {
		if _, there = f.lost(version); there {
			return ErrMemory
		}
	}
	return nil
}

// Recall adopts unindexed objects as long as there is memory.
func (f *Files) Recall() error {
	leave, ok := f.stay()
	if !ok {
		return nil
	}
	defer leave()
	if !f.mayRecall() {
		return nil
	}
	left := false
	err := f.each(func(version [16]byte) bool {
		if f.adopt(version) {
			return true
		}
		_, there := f.lost(version)
		left = left || there
		return f.mayRecall()
	})
	if err != nil {
		return fmt.Errorf("index what there was no memory for: %w", err)
	}
	if !left {
		f.mu.Lock()
		f.used.Add(-f.unindexed.bytes) // bytes of files that somebody removed by hand
		f.unindexed = unindexed{}
		f.mu.Unlock()
	}
	return nil
}

// mayRecall reports whether there are unindexed objects, and memory for one.
func (f *Files) mayRecall() bool {
	f.mu.Lock()
	due := f.unindexed.objects > 0 && !f.closed
	f.mu.Unlock()
	if !due || !f.opt.Pool.Claim(objectBytes) {
		return false
	}
	f.opt.Pool.Unclaim(objectBytes)
	return true
}

// each calls do for the versions of files that are not known, until do returns false.
func (f *Files) each(do func(version [16]byte) bool) error {
	dir, err := os.Open(f.opt.Dir)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }() // it was only read
	for {
		names, err := dir.Readdirnames(1024)
		for _, name := range names {
			version, data, ours := parseName(name)
			f.mu.Lock()
			known := f.objects[version] != nil
			f.mu.Unlock()
			if ours && data && !known && !do(version) {
				return nil
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// Shed evicts one unindexed object that is not pinned, and returns about how many blocks that were.
// A nil pinned pins none. 0 means that none may go.
func (f *Files) Shed(pinned func(hearth.ID) bool) (blocks int64) {
	leave, ok := f.stay()
	if !ok {
		return 0
	}
	defer leave()
	for _, fresh := range []bool{false, true} {
		if fresh && !f.findShed(pinned) {
			return 0
		}
		for {
			f.mu.Lock()
			n := len(f.unindexed.shed)
			if n == 0 || f.closed {
				f.mu.Unlock()
				break
			}
			version := f.unindexed.shed[n-1]
			f.unindexed.shed = f.unindexed.shed[:n-1]
			f.mu.Unlock()
			if pinned != nil && pinned(hearth.ID{Version: version}) {
				continue
			}
			if freed := f.giveUp(version); freed > 0 {
				return max(1, freed/hearth.BlockSize)
			}
		}
	}
	return 0
}

// findShed fills unindexed.shed.
func (f *Files) findShed(pinned func(hearth.ID) bool) bool {
	f.mu.Lock()
	none := f.unindexed.objects == 0 || f.closed
	f.mu.Unlock()
	if none {
		return false
	}
	f.mu.Lock()
	skip := f.unindexed.passed
	f.mu.Unlock()
	var found [][16]byte
	err := f.each(func(version [16]byte) bool {
		switch {
		case pinned != nil && pinned(hearth.ID{Version: version}):
		case skip > 0:
			skip--
		default:
			found = append(found, version)
		}
		return len(found) < shedAtOnce
	})
	if err != nil {
		f.counts.errors.Add(1)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unindexed.shed = found
	if f.unindexed.passed += len(found); len(found) < shedAtOnce {
		f.unindexed.passed = 0 // the next pass begins anew
	}
	return len(found) > 0
}

// giveUp unlinks an unindexed object, the data first as in reap, and returns the bytes that this
// freed. It leaves files of a newer version, and files that are read: their space would not be
// free.
func (f *Files) giveUp(version [16]byte) (freed int64) {
	h, ok := f.lost(version)
	x := &object{version: version}
	if !ok || errors.As(f.headerOf(x), new(*FormatError)) || f.readByName(x) == someReaders {
		return 0
	}
	err := unix.Unlinkat(f.dir, x.dataName(), 0)
	if err == nil {
		err = f.unlink(x.sumsName())
	}
	if err != nil {
		f.counts.errors.Add(1)
		return 0
	}
	f.mu.Lock()
	f.subtractLocked(h.alloc)
	f.unindexed.passed = max(0, f.unindexed.passed-1)
	f.mu.Unlock()
	f.counts.evicted.Add(h.alloc)
	return h.alloc
}
