// Package segment keeps small objects and blocks packed: an append-only log in
// one directory.
//
// The log is cut into segments, one file each. A segment is a header page, then records, then a
// footer. A record is a header and the block's bytes right behind it, so that one read brings all
// that is needed to verify it. The header holds magic, format, ID, length, place, one XXH3-64 per
// 64 KiB piece, and its own checksum.
//
//	| header page | record record record ... padding | ... | footer entries, trailer |
//
// Append packs a batch into one aligned buffer and writes it with few large O_DIRECT writes; only
// then the index learns the blocks. A batch starts on a page of 4 KiB, and no later batch touches
// its pages. A block of more than one piece has pages of its own. Shorter blocks share pages,
// packed at 64 bytes, and a shared page counts its live records.
//
// Get looks the place up in the index. It reads the pages of the header and of the pieces that
// cover the range into one aligned View. It verifies header and pieces, and lends a Slice of the
// View. A record that does not verify is a miss. If the index has changed by then, the block was
// evicted or moved meanwhile, and Get tries again. If not, the bytes are bad; the block is dropped
// and counted.
//
// Peek reads a whole block that is about to be evicted. It changes nothing, not even the policy's State.
//
// Evict removes a block from the index and appends a tombstone of 16 bytes to the file of deaths.
// Only Sync syncs that file. After a power loss an evicted block may be there again; its bytes are
// right or do not verify. Then Evict punches the pages that no live record needs. It does so even
// if a full file system has no room for the tombstone, which is then written after the next punch.
// A closed segment without live records is unlinked. Compact rewrites the segment with the fewest
// live bytes when under 15 % of it live. The copies are on the device before the old records go, so
// what Sync has confirmed outlives a power cut.
//
// A full segment is closed by its footer: 28 bytes per record, checksummed, synced behind the
// writer. Open reads footers only. A segment without a valid footer is the one that was open when
// the process died. Open recovers it by its record headers and then closes it. Some pages are
// needed by no live record: a tombstone without its punch left them, or a torn write. Open punches
// these. Header checksums are seeded with a random salt of the segment, so that no bytes inside a
// block can pass for a record. When one ID lies in two segments, the later segment counts, unless
// its record does not verify: then the power failed before all of it was written.
//
// The index is 256 tables without pointers, 32 bytes an entry, filled to 80-90 %. Its memory is
// claimed in the Pool, where the RAM tier gives way to it. If there is still no memory, Append
// declines. Segments that Open has no memory for stay unindexed, the oldest first. Their blocks are
// misses and count in Used; nothing punches, moves or unlinks them. Recall indexes them once there
// is memory. Shed evicts them when room is needed, except pinned blocks.
//
// Locks: Log.turn is held by the goroutine that appends, compacts or closes; shard.mu and
// segment.mu are never held together; deaths.mu is innermost.
package segment
