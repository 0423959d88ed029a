// Package volume keeps blocks on a device that several nodes share: an NVMe-oF namespace, a block device
// or a plain file. What falls out of donated RAM and disks is still there, for all nodes and after a
// restart of all of them. docs/volume-format.md is the format.
//
//	| super | segment 0 | segment 1 | ... | super |
//	        | header | record record ...  | index |
//
// There is no lock and no journal on the volume. Correctness rests on two things. Blocks are named by
// version, so a record that verifies is right, whoever wrote it. Each segment has a random salt, drawn
// anew when it is written from its beginning, with which the records' checksums are seeded. So a place
// that was overwritten meanwhile reads as a miss, and an entry of the index counts for one salt alone. Which
// node appends to which segments follows from the ring's placement of ranges (Options.Owns). Two nodes that
// disagree about that waste room.
//
// Writing. Put and Keep fill a queue; Put declines when it is full, so that eviction never waits. One
// goroutine, the writer, packs blocks into a buffer and writes it behind the last record of the open segment.
// A full segment is closed by its index, and so is one whose range is no longer this node's. Flush asks the
// device to make everything durable. What was lost instead is not held any more. Nothing else writes, so once
// Close has returned nil, nothing does.
//
// Reclaim is FIFO with reinsertion. When no free segment is left, the oldest of this node's is the next.
// Its blocks that were hit since they were written move to the open segment, up to half of a segment. The
// others are evicted. One segment is always reserved, and the device is flushed before a segment is
// overwritten whose blocks have moved. Other nodes may have begun a segment meanwhile: its header is read
// before this node begins it, before it writes the index, and at each Flush.
//
// Learning. Attach reads the header and index of each segment in the background, and keeps the places of
// the blocks for which this node answers (Options.Mine) in memory. A segment without an index was open
// when its node ended; its records are found by their headers, and the writer of the range's owner closes it
// once all is learned. What cannot be read is left out.
//
// Faults. All operations run under a device.Guard, so that a reader can leave a device that does not
// answer. A hang, or four failures in a row, take the volume out of use: everything is a miss, and Away
// says why. It is tried again, and learned again once it is back. A bad sector is no such failure of the
// device. After a write that failed, its pages are left alone: the device may write them yet.
//
// Locks: Volume.turn is held by the goroutine that changes segments. queue.mu is never held while
// anything waits.
package volume
