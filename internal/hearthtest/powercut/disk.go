package powercut

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
)

const pageSize = 4096

// disk is the model: the names and bytes that are durable, and those that came later.
type disk struct {
	names   map[string]*inode // durable
	now     map[string]*inode
	pending []naming // not yet durable: their directories were not synced since
}

// naming is a creation, a removal, or with both names a rename.
type naming struct {
	from, to string
	file     *inode
}

// inode is a file or a directory. Each list begins with the durable state. States since then
// follow; the last one is the current state.
type inode struct {
	dir   bool
	sizes []int64
	pages map[int64][]page
	ops   int // since the last sync
}

// page is a page's content as operation op since the last sync left it. nil is a hole.
type page struct {
	op   int
	data []byte
}

func newDisk() *disk {
	root := &inode{dir: true}
	return &disk{names: map[string]*inode{".": root}, now: map[string]*inode{".": root}}
}

func (d *disk) apply(op *Op) error {
	f := d.now[op.Name]
	switch op.Kind {
	case Create, Mkdir:
		f = &inode{dir: op.Kind == Mkdir, sizes: []int64{0}, pages: map[int64][]page{}}
		d.name(naming{to: op.Name, file: f})
		return nil
	case SyncAll:
		for _, f := range d.now {
			f.sync()
		}
		d.names, d.pending = maps.Clone(d.now), nil
		return nil
	}
	if f == nil {
		return errors.New("there is no such file")
	}
	switch op.Kind {
	case Write:
		f.write(op.Off, op.Data)
	case Punch:
		f.punch(op.Off, op.N, false)
	case Truncate:
		f.truncate(op.N)
	case Rename:
		if f.dir {
			return errors.New("it is a directory")
		}
		d.name(naming{from: op.Name, to: op.To, file: f})
	case Remove:
		d.name(naming{from: op.Name, file: f})
	case Sync:
		f.sync()
		if f.dir {
			d.syncNames(op.Name)
		}
	}
	return nil
}

func (d *disk) name(n naming) {
	n.apply(d.now)
	d.pending = append(d.pending, n)
}

func (n naming) apply(names map[string]*inode) {
	if n.from != "" && names[n.from] == n.file {
		delete(names, n.from)
	}
	if n.to != "" {
		names[n.to] = n.file
	}
}

func (d *disk) syncNames(dir string) {
	d.pending = slices.DeleteFunc(d.pending, func(n naming) bool {
		if n.to != "" && path.Dir(n.to) != dir || n.to == "" && path.Dir(n.from) != dir {
			return false
		}
		n.apply(d.names)
		return true
	})
}

func (f *inode) size() int64 { return f.sizes[len(f.sizes)-1] }

func (f *inode) page(at int64) []byte {
	if all := f.pages[at]; len(all) > 0 {
		return all[len(all)-1].data
	}
	return nil
}

func (f *inode) put(at int64, data []byte) {
	if len(f.pages[at]) == 0 {
		f.pages[at] = []page{{}} // a hole, at the last sync
	}
	f.pages[at] = append(f.pages[at], page{f.ops, data})
}

func (f *inode) write(off int64, data []byte) {
	f.ops++
	end := off + int64(len(data))
	for off < end {
		at, within := off/pageSize, off%pageSize
		n := min(pageSize-within, int64(len(data)))
		content := data[:n:n]
		if n < pageSize {
			content = make([]byte, pageSize)
			copy(content, f.page(at))
			copy(content[within:], data[:n])
		}
		f.put(at, content)
		off, data = off+n, data[n:]
	}
	if end > f.size() {
		f.sizes = append(f.sizes, end)
	}
}

// punch makes [off, off+n) a hole. more says that it belongs to the same operation as the last one.
func (f *inode) punch(off, n int64, more bool) {
	if !more {
		f.ops++
	}
	for at, all := range f.pages {
		from, to := max(off-at*pageSize, 0), min(off+n-at*pageSize, pageSize)
		if from >= to || all[len(all)-1].data == nil {
			continue
		}
		var content []byte
		if to-from < pageSize {
			content = slices.Clone(f.page(at))
			clear(content[from:to])
		}
		f.put(at, content)
	}
}

func (f *inode) truncate(size int64) {
	f.ops++
	if old := f.size(); size < old {
		f.punch(size, old-size, true)
	}
	if size != f.size() {
		f.sizes = append(f.sizes, size)
	}
}

func (f *inode) sync() {
	if f.dir {
		return
	}
	f.ops = 0
	f.sizes = f.sizes[len(f.sizes)-1:]
	for at, all := range f.pages {
		last := all[len(all)-1]
		if last.data == nil {
			delete(f.pages, at)
			continue
		}
		f.pages[at] = []page{{data: last.data}}
	}
}

// chooser chooses one of n outcomes. 0 is the oldest state.
type chooser interface {
	choose(n int) int
}

// leave writes to dir what a power cut leaves of the disk.
func (d *disk) leave(dir string, ch chooser) error {
	names := maps.Clone(d.names)
	for _, n := range d.pending {
		if ch.choose(2) == 1 {
			n.apply(names)
		}
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	lost := map[string]bool{} // directories
	for _, name := range slices.Sorted(maps.Keys(names)) {
		f := names[name]
		switch up := path.Dir(name); {
		case name == ".":
		case names[up] == nil || lost[up]:
			lost[name] = true
		case f.dir:
			if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
				return err
			}
		default:
			if err := f.leave(filepath.Join(dir, name), ch); err != nil {
				return fmt.Errorf("leave %s: %w", name, err)
			}
		}
	}
	return nil
}

// How the unsynced operations on a file reached the device.
const (
	none  = iota
	all   // all of them did
	whole // each of them did or did not
	paged // each page is as one of them left it, or as it was before
	ways  // the number of ways
)

func (f *inode) leave(name string, ch chooser) error {
	way := none
	if f.ops > 0 {
		way = ch.choose(ways)
	}
	size, there := f.sizes[0], make([]bool, f.ops+1)
	there[0] = true
	switch way {
	case all:
		size = f.size()
		for i := range there {
			there[i] = true
		}
	case whole, paged:
		size = f.sizes[ch.choose(len(f.sizes))]
		for i := 1; way == whole && i < len(there); i++ {
			there[i] = ch.choose(2) == 1
		}
	}
	out, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	for _, at := range slices.Sorted(maps.Keys(f.pages)) {
		states := f.pages[at]
		last := 0
		if way == paged {
			last = ch.choose(len(states))
		} else {
			for i := range states {
				if there[states[i].op] {
					last = i
				}
			}
		}
		data := states[last].data
		data = data[:max(0, min(int64(len(data)), size-at*pageSize))]
		if _, werr := out.WriteAt(data, at*pageSize); werr != nil {
			err = werr
		}
	}
	return errors.Join(err, out.Truncate(size), out.Close())
}

// draw is the chooser for draw n of a cut.
func draw(ops, n int) chooser {
	switch n {
	case 0:
		return oldest{}
	case 1:
		return newest{}
	}
	return random{rand.New(rand.NewPCG(uint64(ops), uint64(n)))}
}

type oldest struct{}

func (oldest) choose(int) int { return 0 }

type newest struct{}

// choose takes all of a file's operations and all new names.
func (newest) choose(n int) int {
	if n == ways {
		return all
	}
	return n - 1
}

type random struct{ r *rand.Rand }

func (x random) choose(n int) int { return x.r.IntN(n) }

// odometer enumerates all choices, however many are asked for.
type odometer struct {
	digits, limits []int
	at             int
	begun          bool
}

// next begins the next outcome. false means that there is none.
func (o *odometer) next() bool {
	o.at = 0
	if !o.begun {
		o.begun = true
		return true
	}
	for len(o.digits) > 0 {
		last := len(o.digits) - 1
		if o.digits[last]++; o.digits[last] < o.limits[last] {
			return true
		}
		o.digits, o.limits = o.digits[:last], o.limits[:last]
	}
	return false
}

func (o *odometer) choose(n int) int {
	if o.at == len(o.digits) {
		o.digits, o.limits = append(o.digits, 0), append(o.limits, n)
	}
	o.at++
	return o.digits[o.at-1]
}
