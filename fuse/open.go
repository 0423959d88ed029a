package fuse

import (
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/hearthfs/hearth"
)

// Open answers OPEN. In mode none it answers once, with ENOSYS.
func (f *fileSystem) Open(cancel <-chan struct{}, in *gofuse.OpenIn, out *gofuse.OpenOut) gofuse.Status {
	f.ops.opens.Add(1)
	defer f.ops.opened.since(time.Now())
	if f.mode == None {
		return gofuse.ENOSYS
	}
	r := f.request(cancel, &in.InHeader)
	defer r.finish()
	switch {
	case writes(in.Flags) && f.readOnly(in.NodeId):
		return gofuse.EROFS
	case in.Flags&syscall.O_TRUNC != 0: // whatever the name means by now
		return f.failed(r, f.openPlain(r, in, out))
	}
	n, err := f.tree.Open(r, f.toTree(in.NodeId))
	if err == nil && n.ID != in.NodeId {
		err = hearth.ErrStale // the name means another version now: the kernel looks it up again
	}
	if err != nil {
		return f.status(r, err)
	}
	if f.write != nil {
		return f.failed(r, f.openPlain(r, in, out))
	}
	// The pages of a version stay true for every later reader.
	out.OpenFlags = gofuse.FOPEN_KEEP_CACHE | gofuse.FOPEN_NOFLUSH
	if f.mode == Passthrough {
		if id, lent := f.opens.open(in.NodeId, &n.Object); lent {
			f.ops.lent.Add(1)
			out.OpenFlags = gofuse.FOPEN_PASSTHROUGH | gofuse.FOPEN_NOFLUSH
			out.BackingID = id
		}
	}
	return gofuse.OK
}

// Release answers RELEASE, which arrives after the kernel has let the file go.
func (f *fileSystem) Release(_ <-chan struct{}, in *gofuse.ReleaseIn) {
	if f.write != nil {
		if !resent(in.Unique) || f.handles.has(in.NodeId, in.Fh) {
			f.releasePlain(in.NodeId, in.Fh, canWrite(in.Flags))
		}
		return
	}
	if f.mode == Passthrough {
		f.opens.release(in.NodeId)
	}
}

// backing registers local files with the kernel.
type backing interface {
	RegisterBackingFd(*gofuse.BackingMap) (int32, syscall.Errno)
	UnregisterBackingFd(id int32) syscall.Errno
}

// opens holds a record for each node id that is open on a passthrough mount. The first open decides
// how the file is read, for all opens before the last release: in the kernel, cached and lent opens
// of one inode exclude each other. An open is counted before it is answered, and a release after
// the kernel is done with it. So the kernel never sees more opens than are counted.
type opens struct {
	kernel backing
	local  LocalFiler

	table *table // for the process that takes the mount over; nil if none will

	lent, takenBack atomic.Int64 // files, not opens

	mu   sync.Mutex // guards byID and users; taken before an openFile's own
	byID map[uint64]*openFile
}

type openFile struct {
	users int // opens under way and standing; guarded by opens.mu
	// inherited says that another process answered opens of it, nobody knows how many. It stands until the kernel forgets
	// the node: then none is left.
	inherited bool

	mu      sync.Mutex // guards the rest; held while the first open asks the local tier
	decided bool
	lent    bool
	id      int32
	release func()
	row     int // in the table
}

// open counts an open of a node id. It returns whether the file is lent, and its backing id.
func (p *opens) open(node uint64, o *hearth.Object) (id int32, lent bool) {
	p.mu.Lock()
	file := p.byID[node]
	if file == nil {
		if p.byID == nil {
			p.byID = map[uint64]*openFile{}
		}
		file = &openFile{}
		p.byID[node] = file
	}
	file.users++
	p.mu.Unlock()

	file.mu.Lock()
	defer file.mu.Unlock()
	if !file.decided {
		file.decided = true
		file.id, file.release, file.lent = p.lend(o)
		file.row = p.table.put(tableRow{node, opened, file.id}) // before the answer
	}
	return file.id, file.lent
}

// lend registers the object's local file, if there is one.
func (p *opens) lend(o *hearth.Object) (int32, func(), bool) {
	if o.Size == 0 || p.local == nil {
		return 0, nil, false
	}
	local, release, err := p.local.LocalFile(o)
	if err != nil {
		return 0, nil, false
	}
	id, errno := p.register(local)
	_ = local.Close() // the kernel has its own reference
	if errno != 0 {
		release()
		return 0, nil, false
	}
	p.lent.Add(1)
	return id, release, true
}

func (p *opens) register(local *os.File) (id int32, errno syscall.Errno) {
	conn, err := local.SyscallConn()
	if err != nil {
		return 0, syscall.EBADF
	}
	err = conn.Control(func(fd uintptr) {
		id, errno = p.kernel.RegisterBackingFd(&gofuse.BackingMap{Fd: int32(fd)})
	})
	if err != nil {
		return 0, syscall.EBADF
	}
	return id, errno
}

// release uncounts an open. The last release takes the file back.
func (p *opens) release(node uint64) {
	p.mu.Lock()
	file := p.byID[node]
	if file == nil || file.inherited {
		p.mu.Unlock()
		return
	}
	file.users--
	last := file.users == 0
	if last {
		p.dropLocked(node, file)
	}
	p.mu.Unlock()
	if last {
		p.takeBack(file)
	}
}

// dropLocked forgets that a node is open. Its row goes before the next open of it may get one: a process that takes over would
// find two, and could answer by the older one, which the kernel refuses (EIO). It also goes before the file is taken back, or
// that process would answer with an id that is gone.
func (p *opens) dropLocked(node uint64, file *openFile) {
	file.mu.Lock() // nobody has it for long: it has no users
	p.table.clear(file.row)
	file.mu.Unlock()
	delete(p.byID, node)
}

func (p *opens) takeBack(file *openFile) {
	file.mu.Lock()
	defer file.mu.Unlock()
	if file.lent {
		_ = p.kernel.UnregisterBackingFd(file.id) // the kernel forgets it with the connection
		if file.release != nil {
			file.release()
		}
		p.takenBack.Add(1)
	}
}

// inherit takes over what another process answered. A file that it had lent and not written down stays in use until the
// mount ends.
func (p *opens) inherit(rows []tableRow) {
	p.byID = map[uint64]*openFile{}
	for row, x := range rows {
		if x.kind == opened {
			p.byID[x.node] = &openFile{inherited: true, decided: true, lent: x.value > 0, id: x.value, row: row}
		}
	}
}

// forget ends an inherited open, since the kernel has forgotten the node. It does not where the node was opened again
// meanwhile.
func (p *opens) forget(node uint64, held func(uint64) bool) {
	p.mu.Lock()
	file := p.byID[node]
	if file == nil || !file.inherited || held(node) {
		p.mu.Unlock()
		return
	}
	p.dropLocked(node, file)
	p.mu.Unlock()
	p.takeBack(file)
}

// close takes back all files after the connection has ended.
func (p *opens) close() {
	p.mu.Lock()
	all := p.byID
	p.byID = nil
	p.mu.Unlock()
	for _, file := range all {
		p.takeBack(file)
	}
}
