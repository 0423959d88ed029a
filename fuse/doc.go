// Package fuse shows a tree of a namespace as a read-only file system.
//
// An inode is a version: a file's node id belongs to (directory, name, version)
// and comes from the namespace, so a READ needs no handle. It finds the object
// by node id, in a bounded cache of records or in the tree, and asks the cache
// for the bytes: an object of one block straight from the Source, whose View is
// written to the kernel as it is; a larger one through a Reader, kept by node id
// in a bounded LRU, because read-ahead has a memory. What lies in one block of it
// is a View as well; what lies in two is copied into the buffer that go-fuse made
// for the request. A READ of what is not held on this node first takes one of a
// fixed number of slots, which a READ of what is held never needs, and while many
// READs are under way their buffers are given back to the kernel until there are
// bytes for them. A short answer would be read as zeroes, so anything but the exact
// range is EIO.
//
// Open modes: where OPEN is answered ENOSYS the kernel opens files alone
// (none); else each OPEN is answered, and an object that is whole in one local
// file is lent to the kernel (passthrough). While any open of a node id stands,
// every further open of it gets the same mode and the same backing id: the
// kernel answers EIO to a mixture.
//
// Names: every answer carries the time that the namespace allows (Node.TTL).
// Listings are READDIRPLUS and stay in the kernel; an offset is an entry's node id,
// whose name a listing goes on behind, so it may change while it is read, and be
// paused for as long as its reader likes. News of the tree go through one bounded queue to one goroutine, which
// drops the directory's listing first and its changed names next; when the queue
// is full, names merge into "the directory changed" and their timeouts do the
// rest. A listing whose time has passed is dropped the same way, so that the
// next walk brings all attributes along again.
//
// A READ that learns that its version is gone has the tree forget it, waits a
// moment until the kernel knows, and answers ESTALE. An INTERRUPT alone never
// ends a request (a signal to a thread is no reason to kill a mapped page): it
// leaves it two more seconds. A thread that was killed waits no longer.
//
// The process that serves a mount never touches it: mount(2) or fusermount3
// hands us the descriptor, INIT is answered before Mount returns, and what must
// be known of a mount point is read in /proc and /sys. The one exception, a
// statfs that tells a dead mount point from a live one, runs in a goroutine of
// its own under a deadline, before anything of ours is mounted there.
package fuse
