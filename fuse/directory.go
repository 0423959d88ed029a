package fuse

import (
	"container/list"
	"fmt"
	"sync"
	"time"
	"unsafe"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/namespace"
)

// OpenDir answers OPENDIR with ENOSYS once; after that the kernel opens directories alone and keeps
// their names. Where the kernel cannot do that, each OPENDIR is answered with the same effect. A
// strict mount keeps no names.
func (f *fileSystem) OpenDir(_ <-chan struct{}, _ *gofuse.OpenIn, out *gofuse.OpenOut) gofuse.Status {
	switch {
	case !f.listDir:
		return gofuse.ENOSYS
	case !f.o.Strict:
		out.OpenFlags = gofuse.FOPEN_CACHE_DIR | gofuse.FOPEN_KEEP_CACHE
	}
	return gofuse.OK
}

// ReleaseDir answers RELEASEDIR: there is no state.
func (f *fileSystem) ReleaseDir(*gofuse.ReleaseIn) {}

// ReadDirPlus answers READDIRPLUS: names with their attributes, as LOOKUP gives them.
func (f *fileSystem) ReadDirPlus(cancel <-chan struct{}, in *gofuse.ReadIn, out *gofuse.DirEntryList) gofuse.Status {
	return f.list(cancel, in, func(e gofuse.DirEntry, n *namespace.Node) bool {
		entry := out.AddDirLookupEntry(e)
		if entry != nil && n != nil {
			f.enter(n, entry)
		}
		return entry != nil
	})
}

// ReadDir answers READDIR, for kernels without READDIRPLUS.
func (f *fileSystem) ReadDir(cancel <-chan struct{}, in *gofuse.ReadIn, out *gofuse.DirEntryList) gofuse.Status {
	return f.list(cancel, in, func(e gofuse.DirEntry, _ *namespace.Node) bool { return out.AddDirEntry(e) })
}

// list adds one reply's worth of names, from the request's offset on. An error after the first name
// is left to the next request.
func (f *fileSystem) list(cancel <-chan struct{}, in *gofuse.ReadIn, add func(gofuse.DirEntry, *namespace.Node) bool) gofuse.Status {
	f.ops.readDirs.Add(1)
	r := f.requestIn(cancel, &in.InHeader)
	defer r.finish()
	dir := f.toTree(in.NodeId)
	after, err := f.behind(r, dir, in.Offset)
	if err != nil {
		return f.status(r, err)
	}
	for off := in.Offset; off < dots; off++ {
		if off == 0 && !f.o.Strict {
			f.listed(r, in.NodeId)
		}
		dot := gofuse.DirEntry{Name: ".."[:off+1], Ino: in.NodeId, Mode: gofuse.S_IFDIR, Off: off + 1}
		if off == 1 {
			dot.Ino = gofuse.FUSE_UNKNOWN_INO
		}
		if !add(dot, nil) {
			return gofuse.OK
		}
	}
	b := &batch{dir: dir}
	err = f.tree.ReadDir(r, dir, after, func(n namespace.Node) bool {
		e := gofuse.DirEntry{Name: n.Name, Ino: n.ID, Mode: gofuse.S_IFREG, Off: dots + n.ID}
		if n.Dir {
			e.Mode = gofuse.S_IFDIR
		}
		if !add(e, &n) {
			return false
		}
		b.append(n.ID, n.Behind())
		return true
	})
	f.tickets.keep(b)
	if err != nil && len(b.ids) == 0 {
		return f.status(r, err)
	}
	return gofuse.OK
}

// dots is the offset behind "." and "..". The offset behind an entry is dots plus its node id.
const dots = 2

// behind returns the name behind which a listing continues. The tree finds it by the entry's node
// id, unless the name went, or changed its version, long ago. For that case tickets remembers the
// latest replies.
func (f *fileSystem) behind(r *request, dir, offset uint64) (string, error) {
	if offset <= dots {
		return "", nil
	}
	if name, ok := f.tickets.name(dir, offset-dots); ok {
		return name, nil
	}
	n, err := f.tree.Node(r, offset-dots)
	if err == nil && n.Name == "" { // the root of a link: the tree does not say its name here
		err = fmt.Errorf("go on behind node id %d: %w", n.ID, hearth.ErrStale)
	}
	return n.Behind(), err
}

// listed notes that the kernel starts to keep a listing, which is to be dropped when it expires.
func (f *fileSystem) listed(r *request, id uint64) {
	if n, err := f.tree.Node(r, f.toTree(id)); err == nil {
		f.news.listed(id, time.Now().Add(max(n.TTL, 0)))
	}
}

// ticketBytes bounds the memory of tickets in bytes: enough for some thousand directories that are
// read at once.
const ticketBytes = 8 << 20

// tickets remembers the names in replies to listings. To continue, a kernel gives back the offset
// of an entry, without any handle and at any later time, when the name may be gone. The replies
// used last are kept: a reader that has continued no longer needs the reply before.
type tickets struct {
	max int

	mu    sync.Mutex // guards the rest
	byID  map[uint64]ticket
	order list.List // of *batch, last used first
	bytes int
}

// ticket is where the name of a node id lies. Of an id in several replies it is the last one.
type ticket struct {
	batch *list.Element
	index int
}

// batch is the names of one reply.
type batch struct {
	dir   uint64
	ids   []uint64
	names []byte
	ends  []uint32
}

func newTickets(max int) *tickets { return &tickets{max: max, byID: map[uint64]ticket{}} }

func (b *batch) append(id uint64, name string) {
	b.ids = append(b.ids, id)
	b.names = append(b.names, name...)
	b.ends = append(b.ends, uint32(len(b.names)))
}

// size is a batch's bytes, with those of its tickets: a map has up to twice the room it needs.
func (b *batch) size() int {
	const each = 2 * int(unsafe.Sizeof(uint64(0))+unsafe.Sizeof(ticket{}))
	return cap(b.names) + 4*cap(b.ends) + 8*cap(b.ids) + each*len(b.ids) + 200
}

// keep remembers a reply that has names.
func (t *tickets) keep(b *batch) {
	if len(b.ids) == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.order.PushFront(b)
	for i, id := range b.ids {
		t.byID[id] = ticket{e, i}
	}
	t.bytes += b.size()
	for t.bytes > t.max && t.order.Len() > 1 {
		last := t.order.Back()
		old := t.order.Remove(last).(*batch)
		for _, id := range old.ids {
			if t.byID[id].batch == last {
				delete(t.byID, id)
			}
		}
		t.bytes -= old.size()
	}
}

// name returns the name of a directory's entry, in the form that ReadDir continues behind. false
// means that the entry was given out so long ago that it is forgotten.
func (t *tickets) name(dir, id uint64) (string, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	at, ok := t.byID[id]
	if !ok {
		return "", false
	}
	b := at.batch.Value.(*batch)
	if b.dir != dir {
		return "", false
	}
	t.order.MoveToFront(at.batch)
	start := uint32(0)
	if at.index > 0 {
		start = b.ends[at.index-1]
	}
	return string(b.names[start:b.ends[at.index]]), true
}
