package fuse

import (
	"container/list"
	"sync"
	"syscall"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/hearthfs/hearth/namespace"
)

// OpenDir answers OPENDIR: once with ENOSYS, after which the kernel opens
// directories alone and keeps their names; or, where that is not to be had, each
// time with the same effect. A strict mount keeps no names.
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

// list adds one reply's worth of names from the request's offset on. An error
// behind the first name waits for the next request.
func (f *fileSystem) list(cancel <-chan struct{}, in *gofuse.ReadIn, add func(gofuse.DirEntry, *namespace.Node) bool) gofuse.Status {
	f.ops.readDirs.Add(1)
	r := f.requestIn(cancel, &in.InHeader)
	defer r.finish()
	dir := f.toTree(in.NodeId)
	after, ok := f.tickets.name(dir, in.Offset)
	if !ok {
		return gofuse.Status(syscall.ESTALE)
	}
	for off := in.Offset; off < 2; off++ {
		if off == 0 && !f.o.Strict {
			f.listed(r, in.NodeId)
		}
		dots := gofuse.DirEntry{Name: ".."[:off+1], Ino: in.NodeId, Mode: gofuse.S_IFDIR, Off: off + 1}
		if off == 1 {
			dots.Ino = gofuse.FUSE_UNKNOWN_INO
		}
		if !add(dots, nil) {
			return gofuse.OK
		}
	}
	b := f.tickets.begin(dir)
	err := f.tree.ReadDir(r, dir, after, func(n namespace.Node) bool {
		e := gofuse.DirEntry{Name: n.Name, Ino: n.ID, Mode: gofuse.S_IFREG, Off: b.next()}
		if n.Dir {
			e.Mode = gofuse.S_IFDIR
		}
		if b.full() || !add(e, &n) {
			return false
		}
		b.append(n.Name)
		return true
	})
	f.tickets.keep(b)
	if err != nil && len(b.ends) == 0 {
		return f.status(r, err)
	}
	return gofuse.OK
}

// listed notes that the kernel starts to keep a listing, which is to be dropped
// when its time has passed.
func (f *fileSystem) listed(r *request, id uint64) {
	if n, err := f.tree.Node(r, f.toTree(id)); err == nil {
		f.news.listed(id, time.Now().Add(max(n.TTL, 0)))
	}
}

// ticketBytes bounds the memory of tickets: some thousand directories that are
// being read at once.
const ticketBytes = 8 << 20

// tickets makes the offsets of a listing. A kernel gives an offset back to go on
// behind the entry that carried it, without any handle, so each reply's names
// are remembered; the replies used last, since who has gone on needs the one
// before no more. Offsets 0, 1 and 2 are the start and what is behind the dots.
type tickets struct {
	max int

	mu      sync.Mutex // guards the rest
	last    uint64     // number of the newest batch
	batches map[uint64]*list.Element
	order   list.List // of *batch, last used first
	bytes   int
}

// batch is the names of one reply.
type batch struct {
	number, dir uint64
	names       []byte
	ends        []uint32
}

// batchBits is the room for an index in an offset; a reply of 1 MiB holds 26,000
// names of one byte.
const batchBits = 16

func newTickets(max int) *tickets { return &tickets{max: max, batches: map[uint64]*list.Element{}} }

// begin makes the batch of the next reply.
func (t *tickets) begin(dir uint64) *batch {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last++
	return &batch{number: t.last, dir: dir}
}

// next is the ticket of the name to be appended next.
func (b *batch) next() uint64 { return b.number<<batchBits | uint64(len(b.ends)) }

func (b *batch) full() bool { return len(b.ends) == 1<<batchBits }

func (b *batch) append(name string) {
	b.names = append(b.names, name...)
	b.ends = append(b.ends, uint32(len(b.names)))
}

func (b *batch) size() int { return cap(b.names) + 4*cap(b.ends) + 200 }

// keep remembers a reply that has names.
func (t *tickets) keep(b *batch) {
	if len(b.ends) == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.batches[b.number] = t.order.PushFront(b)
	t.bytes += b.size()
	for t.bytes > t.max && t.order.Len() > 1 {
		old := t.order.Remove(t.order.Back()).(*batch)
		delete(t.batches, old.number)
		t.bytes -= old.size()
	}
}

// name is the name that a listing goes on behind; false when the ticket was not
// given out for this directory, or so long ago that it is forgotten.
func (t *tickets) name(dir, offset uint64) (string, bool) {
	if offset <= 2 {
		return "", true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.batches[offset>>batchBits]
	if e == nil {
		return "", false
	}
	t.order.MoveToFront(e)
	b, i := e.Value.(*batch), int(offset&(1<<batchBits-1))
	if b.dir != dir || i >= len(b.ends) {
		return "", false
	}
	start := uint32(0)
	if i > 0 {
		start = b.ends[i-1]
	}
	return string(b.names[start:b.ends[i]]), true
}
