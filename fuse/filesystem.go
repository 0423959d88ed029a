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
	// maxRecords bounds the records of files kept in memory: at about 400 bytes
	// each they are the price of not asking Pebble at each READ.
	maxRecords = 32768
	// maxReaders bounds the Readers of larger objects.
	maxReaders = 1024
	// maxMisses bounds the READs that wait for more than this node: each holds a
	// goroutine.
	maxMisses = 512
	// maxAcross bounds those of them that lie in two blocks: between the first one's bytes
	// and the second's each holds a reply buffer of up to 1 MiB.
	maxAcross = 128
	// staleWait is how long an ESTALE waits until the kernel knows.
	staleWait = 200 * time.Millisecond
)

// fileSystem answers the kernel's requests.
type fileSystem struct {
	readOnly
	o       *Options
	tree    Tree
	mode    Mode // set before the first request but INIT
	listDir bool // OPENDIR is answered: the kernel cannot do without, or Strict

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

// record is what is known of a file's node id. The id belongs to a version, so
// only until, the end of the kernel's timeouts, can become old.
type record struct {
	node  namespace.Node
	until time.Time
	stale stale
	// failure is what a READ that had to wait ended with.
	failure atomic.Pointer[failure]
}

// failure is an error that took long to come by. The kernel asks again at once
// for a page that its read-ahead did not get; the same wait again would double
// the bound that a reader was promised.
type failure struct {
	err error
	at  time.Time
}

const (
	longWait = time.Second // what makes a failure worth remembering
	askAgain = time.Second // for how long it answers who asks again
)

// ops counts requests by kind, and what became of them.
type ops struct {
	lookups, getattrs, opens, reads, readDirs, forgets     atomic.Int64
	readBytes, misses, interrupts, staled, errors, lent    atomic.Int64
	entryTimeout, negativeTimeout, complaints, largestRead atomic.Int64
	reading                                                atomic.Int64 // READs under way

	opened, read took
}

func newFileSystem(o *Options) *fileSystem {
	return &fileSystem{
		readOnly: readOnly{gofuse.NewDefaultRawFileSystem()},
		o:        o,
		tree:     o.Tree,
		holds:    newHolds(),
		records:  newLRU[*record](maxRecords),
		readers:  newReaders(maxReaders, o),
		tickets:  newTickets(ticketBytes),
		misses:   make(chan struct{}, maxMisses),
		across:   make(chan struct{}, maxAcross),
		grace:    grace,
	}
}

// String names the file system in go-fuse's messages.
func (f *fileSystem) String() string { return "hearth" }

// toTree and toKernel translate node ids: the mount's root is 1 to the kernel,
// whatever directory of the tree it is. The ids of all others are the tree's;
// the tree's own root cannot be met below another directory.
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

// request is one that, where it waits, waits for names.
func (f *fileSystem) request(cancel <-chan struct{}, in *gofuse.InHeader) *request {
	return &request{cancel: cancel, grace: f.grace, ledger: f.o.Events.Waits, thread: in.Pid, names: f.o.FSName}
}

// requestIn is a request for which the kernel holds a directory's lock.
func (f *fileSystem) requestIn(cancel <-chan struct{}, in *gofuse.InHeader) *request {
	r := f.request(cancel, in)
	r.news, r.dir = f.news, in.NodeId
	return r
}

// Lookup answers LOOKUP. It writes nothing: the id was there before.
func (f *fileSystem) Lookup(cancel <-chan struct{}, in *gofuse.InHeader, name string, out *gofuse.EntryOut) gofuse.Status {
	f.ops.lookups.Add(1)
	r := f.requestIn(cancel, in)
	defer r.finish()
	n, err := f.tree.Lookup(r, f.toTree(in.NodeId), name)
	if err != nil {
		var absent *namespace.Absent
		if errors.As(err, &absent) && absent.TTL > 0 {
			f.ops.negativeTimeout.Store(int64(absent.TTL))
			out.SetEntryTimeout(absent.TTL) // node id 0: the kernel remembers that there is none
			return gofuse.OK
		}
		return f.status(r, err)
	}
	if !n.Dir {
		f.records.put(n.ID, &record{node: n, until: time.Now().Add(n.TTL)})
	}
	f.enter(&n, out)
	return gofuse.OK
}

// enter fills an answer that makes the kernel hold the node, and counts that.
func (f *fileSystem) enter(n *namespace.Node, out *gofuse.EntryOut) {
	out.NodeId = n.ID
	ttl := max(n.TTL, 0)
	f.ops.entryTimeout.Store(int64(ttl))
	out.SetEntryTimeout(ttl)
	out.SetAttrTimeout(ttl)
	f.attr(n, &out.Attr)
	f.holds.add(n.ID)
}

// Forget takes back n of the times that the kernel was told of a node.
func (f *fileSystem) Forget(id, n uint64) {
	f.ops.forgets.Add(1)
	if id != rootID {
		f.holds.drop(id, n) // the tree asks when it wants to know
	}
}

// GetAttr answers GETATTR without asking the origin.
func (f *fileSystem) GetAttr(cancel <-chan struct{}, in *gofuse.GetAttrIn, out *gofuse.AttrOut) gofuse.Status {
	f.ops.getattrs.Add(1)
	r := f.request(cancel, &in.InHeader)
	defer r.finish()
	id := f.toTree(in.NodeId)
	now := time.Now()
	if rec, ok := f.records.get(id); ok && now.Before(rec.until) {
		out.SetTimeout(rec.until.Sub(now))
		f.attr(&rec.node, &out.Attr)
		return gofuse.OK
	}
	n, err := f.tree.Node(r, id)
	if err != nil {
		return f.status(r, err)
	}
	if !n.Dir {
		f.records.put(id, &record{node: n, until: now.Add(n.TTL)})
	}
	out.SetTimeout(max(n.TTL, 0))
	f.attr(&n, &out.Attr)
	return gofuse.OK
}

// record is what is known of a file's id, from memory or the tree.
func (f *fileSystem) record(ctx context.Context, id uint64) (*record, error) {
	if rec, ok := f.records.get(id); ok {
		return rec, nil
	}
	n, err := f.tree.Node(ctx, f.toTree(id))
	if err != nil {
		return nil, err
	}
	rec := &record{node: n, until: time.Now().Add(n.TTL)}
	if !n.Dir {
		f.records.put(id, rec)
	}
	return rec, nil
}

// attr fills a node's attributes. A directory has one link: two would tell find
// that there is nothing below it.
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
}

// StatFs answers statfs(2): a bucket has no size that we know, and all of it is free.
func (f *fileSystem) StatFs(_ <-chan struct{}, _ *gofuse.InHeader, out *gofuse.StatfsOut) gofuse.Status {
	const blocks = 1 << 50 / 4096 // 1 PiB
	*out = gofuse.StatfsOut{Blocks: blocks, Bfree: blocks, Bavail: blocks, Files: 1 << 32, Ffree: 1 << 32,
		Bsize: 4096, Frsize: 4096, NameLen: 255}
	return gofuse.OK
}

// status is the errno of an error: the one table of this front end.
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
		return gofuse.Status(syscall.ENODATA) // neither a fault nor a matter of rights
	}
	// A 403 too: EACCES would send its reader to look at modes and owners here,
	// while what is wrong is the node's credentials, as log and status say.
	return gofuse.EIO
}
