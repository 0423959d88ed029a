package fuse

import (
	"context"
	"errors"
	"io/fs"
	"sync/atomic"
	"syscall"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/namespace"
)

const (
	// rootID is the root's node id in the protocol, and the root of a whole tree.
	rootID = gofuse.FUSE_ROOT_ID
	// maxRecords bounds the records of files kept in memory. At about 400 bytes each, they spare a
	// look-up in Pebble for each READ.
	maxRecords = 32768
	// maxReaders bounds the Readers of larger objects.
	maxReaders = 1024
	// maxMisses bounds the READs that wait for more than this node, by a semaphore: each holds a
	// goroutine.
	maxMisses = 512
	// maxAcross bounds the misses that span two blocks: between the bytes of the first block and
	// those of the second, each holds a reply buffer of up to 1 MiB.
	maxAcross = 128
	// staleWait is the longest time that an ESTALE waits until the kernel knows.
	staleWait = 200 * time.Millisecond
)

// fileSystem answers the kernel's requests.
type fileSystem struct {
	gofuse.RawFileSystem // what is not answered here

	o       *Options
	tree    Tree
	write   *drafted // the tree with drafts; nil on a read-only mount
	handles handles  // of a writable one
	remade  remade   // directories of a writable one
	renames renames  // that have begun
	mode    Mode     // set before the first request after INIT
	listDir bool     // OPENDIR is answered: the kernel cannot do without, or the mount is strict

	holds   *holds
	records *lru[*record]
	readers *readers
	opens   opens
	tickets *tickets
	answers answers
	misses  chan struct{}
	across  chan struct{}
	news    *news
	ops     ops
	grace   time.Duration
}

// record is what is known of a file's node id. The id belongs to a version, so only one field can
// become old: until, the end of the kernel's timeouts.
type record struct {
	node  namespace.Node
	until time.Time
	stale stale
	// failure is the error of a READ that had to wait.
	failure atomic.Pointer[failure]
}

// failure is an error that took long to arrive. The kernel asks again at once for a page that its
// read-ahead did not get. A second wait of that length would double the bound promised to a reader.
type failure struct {
	err error
	at  time.Time
}

const (
	longWait = time.Second // a failure after this time is remembered
	askAgain = time.Second // for this long it answers further READs
)

// ops counts requests by kind, and what became of them.
type ops struct {
	lookups, getattrs, opens, reads, readDirs, forgets     atomic.Int64
	readBytes, misses, interrupts, staled, errors, lent    atomic.Int64
	entryTimeout, negativeTimeout, complaints, largestRead atomic.Int64
	reading                                                atomic.Int64 // READs under way
	writes, writtenBytes                                   atomic.Int64

	opened, read took
}

func newFileSystem(o *Options) *fileSystem {
	f := &fileSystem{
		RawFileSystem: gofuse.NewDefaultRawFileSystem(),
		o:             o,
		tree:          o.Tree,
		holds:         newHolds(),
		records:       newLRU[*record](maxRecords),
		readers:       newReaders(maxReaders, o),
		tickets:       newTickets(ticketBytes),
		misses:        make(chan struct{}, maxMisses),
		across:        make(chan struct{}, maxAcross),
		grace:         grace,
	}
	if o.Writing != nil {
		f.write = newDrafted(o.Tree, o.Writing)
		f.tree = f.write
		f.handles = handles{drafts: f.write.w.Drafts, open: map[uint64]int{}, writers: map[uint64]int{}, appends: map[uint64]bool{}, drafted: map[uint64]bool{}}
	}
	return f
}

// String names the file system in go-fuse's messages.
func (f *fileSystem) String() string { return "hearth" }

// toTree and toKernel translate node ids. To the kernel the mount's root is 1, whatever directory
// of the tree it is. All other ids are those of the tree. The tree's own root is never below
// another directory.
func (f *fileSystem) toTree(id uint64) uint64 {
	if id == rootID {
		return f.o.Root
	}
	return id
}

func (f *fileSystem) toKernel(id uint64) (uint64, bool) {
	if id == f.o.Root {
		return rootID, true
	}
	return id, id != rootID
}

// request makes a request which, where it waits, waits for names.
func (f *fileSystem) request(cancel <-chan struct{}, in *gofuse.InHeader) *request {
	return &request{cancel: cancel, grace: f.grace, ledger: f.o.Events.Waits, thread: in.Pid, names: f.o.FSName}
}

// requestIn makes a request for which the kernel holds a directory's lock.
func (f *fileSystem) requestIn(cancel <-chan struct{}, in *gofuse.InHeader) *request {
	r := f.request(cancel, in)
	r.news, r.dir = f.news, in.NodeId
	return r
}

// Lookup answers LOOKUP. It writes nothing: the node id existed before.
func (f *fileSystem) Lookup(cancel <-chan struct{}, in *gofuse.InHeader, name string, out *gofuse.EntryOut) gofuse.Status {
	f.ops.lookups.Add(1)
	r := f.requestIn(cancel, in)
	defer r.finish()
	n, err := f.tree.Lookup(r, f.toTree(in.NodeId), name)
	if err != nil {
		var absent *namespace.Absent
		if errors.As(err, &absent) && absent.TTL > 0 {
			f.ops.negativeTimeout.Store(int64(absent.TTL))
			out.SetEntryTimeout(absent.TTL) // node id 0 is a negative entry: the kernel remembers that there is none
			return gofuse.OK
		}
		return f.status(r, err)
	}
	if !n.Dir && !isOfDraft(&n) {
		f.keepRecord(n.ID, &record{node: n, until: time.Now().Add(n.TTL)})
	}
	f.enter(&n, out)
	return gofuse.OK
}

// enter fills an answer that makes the kernel hold the node, and counts the hold.
func (f *fileSystem) enter(n *namespace.Node, out *gofuse.EntryOut) {
	out.NodeId = n.ID
	ttl := max(n.TTL, 0)
	f.ops.entryTimeout.Store(int64(ttl))
	out.SetEntryTimeout(ttl)
	out.SetAttrTimeout(ttl)
	f.attr(n, &out.Attr)
	if n.Dir && f.write != nil {
		out.Generation = f.remade.generation(n.ID)
	}
	f.holds.add(n.ID)
}

// Forget answers FORGET: the kernel gives up n of its references to a node.
func (f *fileSystem) Forget(id, n uint64) {
	f.ops.forgets.Add(1)
	if id == rootID {
		return
	}
	f.holds.drop(id, n) // the tree asks when it wants to know
	if f.mode == Passthrough && !f.holds.has(id) {
		f.opens.forget(id, f.holds.has)
	}
	if f.write != nil && !f.holds.has(id) {
		f.handles.forget(id, f.holds.has, f.releasePlain)
		f.remade.forget(f.handles.table, id)
	}
}

// GetAttr answers GETATTR without asking the origin.
func (f *fileSystem) GetAttr(cancel <-chan struct{}, in *gofuse.GetAttrIn, out *gofuse.AttrOut) gofuse.Status {
	f.ops.getattrs.Add(1)
	r := f.request(cancel, &in.InHeader)
	defer r.finish()
	id := f.toTree(in.NodeId)
	now := time.Now()
	rec, known := f.records.get(id)
	if known && now.Before(rec.until) {
		out.SetTimeout(rec.until.Sub(now))
		f.attr(&rec.node, &out.Attr)
		return gofuse.OK
	}
	n, err := f.tree.Node(r, id)
	if err != nil {
		return f.status(r, err)
	}
	if known && !f.write.changes(n.Object.Link) && n.Object.Version != rec.node.Object.Version {
		n = rec.node // a writable mount beside has changed the file in place: who has it open here goes on with the old one
	} else if !n.Dir && !isOfDraft(&n) {
		f.keepRecord(id, &record{node: n, until: now.Add(n.TTL)})
	}
	out.SetTimeout(max(n.TTL, 0))
	f.attr(&n, &out.Attr)
	return gofuse.OK
}

// record returns what is known of a file's node id, from memory or from the tree.
func (f *fileSystem) record(ctx context.Context, id uint64) (*record, error) {
	if rec, ok := f.records.get(id); ok {
		return rec, nil
	}
	n, err := f.tree.Node(ctx, f.toTree(id))
	if err != nil {
		return nil, err
	}
	rec := &record{node: n, until: time.Now().Add(n.TTL)}
	if !n.Dir && !isOfDraft(&n) {
		f.keepRecord(id, rec)
	}
	return rec, nil
}

// keepRecord keeps what is known of a file's node id, unless that is a draft by now: who begins one drops the record, which may not
// come behind that.
func (f *fileSystem) keepRecord(id uint64, rec *record) {
	f.records.put(id, rec)
	if _, ok := f.isDraft(id); ok {
		f.records.drop(id)
	}
}

// attr fills a node's attributes. A directory has a link count of one: two would tell find(1) that
// it has no subdirectories.
func (f *fileSystem) attr(n *namespace.Node, out *gofuse.Attr) {
	id, _ := f.toKernel(n.ID)
	*out = gofuse.Attr{Ino: id, Nlink: 1, Blksize: 4096}
	out.Uid, out.Gid = f.o.UID, f.o.GID
	out.Mode = gofuse.S_IFDIR | f.o.DirMode
	if !n.Dir {
		out.Mode = gofuse.S_IFREG | f.o.FileMode
		out.Size = uint64(n.Object.Size)
		out.Blocks = (out.Size + 511) / 512
	}
	if t := n.ModTime; !t.IsZero() {
		out.SetTimes(&t, &t, &t)
	}
	if f.write != nil {
		if a, set := f.isSet(n.ID); set {
			out.Uid, out.Gid, out.Mode = a.UID, a.GID, out.Mode&syscall.S_IFMT|a.Mode&0o7777
			if !a.ModTime.IsZero() {
				out.SetTimes(&a.ATime, &a.ModTime, &a.ModTime)
			}
		}
	}
}

// StatFs answers statfs(2). A bucket has no known size, so all of 1 PiB is free.
func (f *fileSystem) StatFs(_ <-chan struct{}, _ *gofuse.InHeader, out *gofuse.StatfsOut) gofuse.Status {
	const blocks = 1 << 50 / 4096 // 1 PiB
	*out = gofuse.StatfsOut{Blocks: blocks, Bfree: blocks, Bavail: blocks, Files: 1 << 32, Ffree: 1 << 32,
		Bsize: 4096, Frsize: 4096, NameLen: 255}
	return gofuse.OK
}

// status returns the errno of an error. It is the only such table of this front end.
func (f *fileSystem) status(r *request, err error) gofuse.Status {
	switch {
	case err == nil:
		return gofuse.OK
	case errors.Is(err, fs.ErrNotExist):
		return gofuse.ENOENT
	case errors.Is(err, hearth.ErrStale):
		f.ops.staled.Add(1)
		return gofuse.Status(syscall.ESTALE)
	case r.interrupted():
		f.ops.interrupts.Add(1)
		return gofuse.EINTR
	}
	f.ops.errors.Add(1)
	switch {
	case errors.Is(err, syscall.ENOTDIR):
		return gofuse.ENOTDIR
	case errors.Is(err, hearth.ErrArchived):
		return gofuse.Status(syscall.ENODATA) // neither a fault nor a lack of rights
	}
	// A 403 is EIO, too. EACCES would make users look at modes and owners here, while the node's
	// credentials are wrong, as the log and the status say.
	return gofuse.EIO
}
