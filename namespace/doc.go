// Package namespace shows the flat keys of buckets as a tree of directories.
//
// A table of links binds prefixes of origins to paths of the tree. The longest path wins, and the
// directories that lead to links are synthesized. A sorted database keeps what an origin has:
// (directory, sort name) maps to a record.Entry. Its order is the order in which a bucket lists, so a
// directory can be read while it is being listed. The database is a cache: losing it costs requests to
// the origin, never a wrong answer.
//
//	Lookup   the database, if its entry may still be believed;
//	         else a known name costs a HEAD (a directory: a LIST of one key),
//	         an unknown one costs both at once, with the directory's listing begun
//	         beside them, and the first answer wins
//	ReadDir  the database, if its listing may still be believed;
//	         else behind the cursor of a listing, which all readers share
//	listing  pages of 1,000, each merged with what the database has in its range:
//	         equal entries stay, different and new ones are written, missing ones are removed
//
// A link's freshness says how long its names may be believed: for ever, for a bound, or not at all. A
// directory's listing is believed for at least twenty times the time that it took. In the last quarter
// of its life a listing is renewed in the background. While an origin is unreachable, the last known
// names are served where the link allows it; a 404 is an answer. A page of a listing never overrides an
// answer about a single name that was asked for after the page was.
//
// In a ring each directory has one owner (Sharer). Another node copies the owner's listing, a page at a
// time, and asks the owner about single names. The owner says how old its answers are. What the owner
// does not answer is asked of the origin. Names and Find are the owner's side. A node that waits for
// another node holds no semaphore that the other's answer may need.
//
// Every name has a node id, a number that is never used again. A file's id belongs to (directory, name,
// version): it is written with the record.Entry, and with a reverse record. Another version gets
// another id. The reverse record of the old id then keeps what the id stood for while a kernel holds
// it. A directory's id belongs to its path.
//
// Front ends write at origins past the tree (Writes). The tree asks the origin again for what a write
// may have changed before the writer is answered. A write whose answer was lost has an unknown outcome:
// the tree asks several times more, and doubts the names at the end.
//
// Changes are told to subscribers after they are written, under no lock.
//
// Lock order: directory.mu, ids.place, ids.mu, directories' shards, the store's own. The locks of asks,
// absences, listings' progress, Writes and subscribers are leaves.
package namespace
