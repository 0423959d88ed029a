// Package segment keeps small objects and blocks packed: an append-only log in
// one directory.
//
// The log is cut into segments, one file each. A segment is a header page, then
// records, then a footer. A record is a header (magic, format, ID, length, where
// it lies, one XXH3-64 per 64 KiB piece, own checksum) and the block's bytes
// right behind it, so that one read brings all that is needed to verify it.
//
//	| header page | record record record ... padding | ... | footer entries, trailer |
//
// Append packs a batch into one aligned buffer and writes it with few large
// O_DIRECT writes; only then the index learns the blocks. A batch starts on a
// page of 4 KiB and no later batch touches its pages. A block of more than one
// piece has pages of its own; shorter ones share pages, packed at 64 bytes, and
// a shared page is counted by its living records.
//
// Get looks the place up, reads the pages of the header and of the pieces that
// cover the range into one aligned View, verifies header and pieces, and lends a
// Slice of it. What does not verify is a miss: if the index says something else
// by then, somebody evicted or moved the block meanwhile and Get asks again;
// if not, the bytes are bad, the block is dropped and counted.
//
// Evict takes a block out of the index, appends 16 bytes to the file of deaths
// (synced by Sync only: after a power loss a block may be there again, its bytes
// are right or do not verify), and punches the pages that no living record
// needs, also where a full file system has no room for the note, which is written
// behind the next punch. A closed segment without living records is unlinked; Compact rewrites
// the one with the fewest when under 15 % of it live: the copies are on the device
// before the old records go, so that what Sync answered for outlives a power cut.
//
// A full segment is closed by its footer: 28 bytes per record, checksummed,
// synced behind the writer. Open reads footers only. A segment without a valid
// footer - the one that was open when the process died - is recovered by its
// record headers and closed then. Pages that no living record needs, which a death
// without its punch or a torn write left, are punched. Header checksums are seeded
// with a random salt of the segment, so that nothing inside a block's bytes can
// pass for a record. When one ID lies in two segments, the later segment counts,
// unless its record does not verify: the power failed before all of it was written.
//
// The index is 256 tables without pointers, 32 bytes an entry, filled to 80-90 %,
// claimed in the Pool, where the tier in memory gives way to it; where even so there is
// no memory, Append declines. A segment that Open has no memory for stays unindexed, the
// oldest first: its blocks are misses and count in Used, nothing punches, moves or
// unlinks them, Recall indexes them once there is memory, and Shed gives them up when
// room is needed, but for what is pinned.
//
// Locks: Log.turn is held by the one who appends, compacts or closes; shard.mu
// and segment.mu are never held together; deaths.mu is innermost.
package segment
