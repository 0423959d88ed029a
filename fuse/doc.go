// Package fuse shows a tree of a namespace as a read-only file system.
//
// An inode is a version: a file's node id belongs to (directory, name, version) and comes from the
// namespace. So a READ needs no handle.
//
// A READ finds its object by node id, in a bounded cache of records or in the tree, and asks the
// cache for the bytes. An object of one block comes straight from the Source, and its View is
// written to the kernel as it is. A larger object is read through a Reader, because read-ahead has
// a memory. Readers are kept by node id in a bounded LRU. Bytes in one block of it are a View as
// well. Bytes that span two blocks are copied into the buffer that go-fuse made for the request.
//
// A READ that misses on this node first takes one of a fixed number of slots, a semaphore. A hit
// needs none. While many READs are under way, their buffers are given back to the kernel until
// there are bytes for them. The kernel would read a short answer as zeroes, so anything but the
// exact range is EIO.
//
// Open modes. Where OPEN is answered with ENOSYS, the kernel opens files alone (none). Otherwise
// each OPEN is answered, and an object that is whole in one local file is lent to the kernel
// (passthrough). While any open of a node id stands, every further open of it gets the same mode
// and the same backing id: the kernel answers a mixture with EIO.
//
// Names. Every answer carries the time that the namespace allows (Node.TTL). Listings are
// READDIRPLUS and stay in the kernel. The offset in a listing is an entry's node id, and the
// listing continues behind that entry's name. So a directory may change while it is read, and its
// reader may pause for any time.
//
// News of the tree go through one bounded queue to one goroutine. It drops the directory's listing
// first and the changed names next. When the queue is full, names merge into "the directory
// changed", and their timeouts do the rest. An expired listing is dropped the same way, so that the
// next walk brings all attributes along again.
//
// A READ that learns that its version is gone has the tree forget it, waits a moment until the
// kernel knows, and answers ESTALE. An INTERRUPT alone never ends a request, since a signal to a
// thread is no reason to kill a mapped page. It leaves the request two more seconds. A thread that
// was killed waits no longer.
//
// A mount outlives its process where another one has its connection (Kept, package keep). The next process gets the
// kernel's INIT as it was, through a pair of sockets, and has the kernel ask again for what nobody answered
// (FUSE_NOTIFY_RESEND). It counts each node id of that time as held until the kernel forgets it, opens files as they were
// opened, and drops the listings that the kernel kept (table). Notifications go by the keeper (Tell), since a process that
// waits in one cannot end.
//
// The process that serves a mount never touches it. mount(2) or fusermount3 gives us the
// descriptor, INIT is answered before Mount returns, and facts about a mount point are read from
// /proc and /sys. There is one exception: a statfs that tells a dead mount point from a live one.
// It runs in a goroutine of its own with a deadline, before anything of ours is mounted there.
package fuse
