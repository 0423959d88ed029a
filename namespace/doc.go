// Package namespace shows the flat keys of buckets as a tree of directories.
//
// A table of links binds prefixes of origins to paths of the tree; the longest
// path wins, and the directories that lead to links are made up. What an origin
// has is kept in a sorted database: (directory, sort name) to an record.Entry, in the
// order in which a bucket lists, so that a directory can be read while it is being
// listed. It is a cache: whatever happens to it costs questions, never an answer.
//
//	Lookup   the database, if it may still be believed;
//	         else a known name costs a HEAD (a directory: a LIST of one key),
//	         an unknown one both together, with the directory's listing begun
//	         beside them, and the first answer wins
//	ReadDir  the database, if its listing may still be believed;
//	         else behind the cursor of a listing, which all readers share
//	listing  pages of 1,000, each merged with what the database has in its range:
//	         equal stays, different and new is written, missing is removed
//
// How long a name may be believed is its link's freshness: for ever, for a bound
// (a directory's listing for at least twenty times what it took), or not at all.
// In the last quarter of that a listing runs behind those who ask. When an origin cannot
// be asked, names known last go on where the link says so; a 404 is an answer.
// What somebody asked for alone, after a page of a listing was asked for, is newer
// than the page.
//
// In a ring a directory belongs to one node (Sharer). Another's listing copies it from that
// one, a page at a time, and its question about a name goes there; what comes is as old as
// it says, and what does not come the origin is asked for. Names and Find are the owner's
// side. Who waits for another node holds none of the places that an answer may need.
//
// Every name means a node id: a number that is never used again. A file's belongs
// to (directory, name, version): it is written with the record.Entry, and with a reverse
// record. Another version gets another id, and the old one's record then tells
// what it was, while a kernel holds it. A directory's id belongs to its path.
//
// Front ends write at origins past the tree (Writes). What a write may have changed is asked for again
// before the writer is answered. A write whose outcome is unknown, as its answer was lost, is asked for
// several times more, and doubted at the end.
//
// Changes are told to subscribers after they are written, under no lock.
//
// Lock order: directory.mu, ids.place, ids.mu, directories' shards, the store's
// own; asks, absences, listings' progress, Writes.mu and subscribers are leaves.
package namespace
