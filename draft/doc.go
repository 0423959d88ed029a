// Package draft has the files that are being written, until each is published as one object of a bucket.
//
// A draft is a base object (or none) and written bytes: a sparse file RANDOM.data with the bytes at their offsets, and a record
// RANDOM.json beside it. Node ids are used again, so they name no files. If it has a base, a journal RANDOM.extents has which
// bytes are written (extents.go): all else is read from the base when it is wanted, and copied in the bucket where a whole part
// has none of the draft's own.
//
// A write is one pwrite under the draft's lock, and one more generation. Publishing takes bytes into memory while writers
// are kept out, and sends them from there: no lock is held over the network, and what is sent is what the draft was at
// one moment.
//
//   - A draft of at most one part is one Put.
//   - A larger one is sent in parts. Each is remembered with the generation of its bytes, and is sent again if they were
//     written since. The last parts that are missing are taken at one moment, all together; with the parts that were
//     not written since they were taken they are that moment's file, and Complete makes the object of them. Writers
//     may go on meanwhile: that is the next publish's.
//   - While a writer goes on sequentially, the parts that it is beyond by a part are sent ahead.
//
// The state is in the record before the step that it allows. Each attempt has a token of its own, which the object
// has in its metadata: after a lost answer the origin is asked whether its object has it (Written), before anything
// else is sent. A restart compares the parts that the origin has, and the bytes of an attempt, by their hashes with the
// file: whatever a kill or a power cut did to the file, what is wrong is sent again.
//
// The record becomes durable with the first Sync, and stays so. Before that it survives a kill, and after a power cut
// nothing was promised, and it overwrites nothing. What cannot be read is set aside (.aside), never dropped: only a draft whose object the
// bucket has, or that was removed, goes.
//
// A Seed has the bytes of the object that was published last, for caches, as long as the file has them: each part is compared with
// the hash of what was sent. The files stay for it.
//
// A kill between the origin's answer to Begin and the record with its id leaves an upload that nobody knows. The record has
// said before that one begins, when, and for which key: so it is found in the origin's list of uploads, and aborted.
package draft
