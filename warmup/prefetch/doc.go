// Package prefetch fills the rest of a directory whose small objects are read in random
// order. Eight readers of small files get 400 files a second if the first byte takes 20
// ms, whatever the cache. With 128 requests in flight it is up to 6,400.
//
// It hears of each READ of an object of one block. A READ of a block that the node holds
// costs one atomic load, or one line of a table while something was prefetched. Any other
// READ is a miss, and waits for the origin anyway. The miss is noted in the window of its
// directory, and in those of the three directories above. A window has the last 64
// objects that were missed there, none older than 30 s.
//
//	misses -> windows -> areas -> directories, up to eight at a time -> at most 128 requests
//
// A directory becomes an area when 32 objects of its window lie in no order: they cannot
// be laid out in fewer than eight ascending runs. One reader in order is one run. Some
// readers that share an order, or read parts of their own, are a few runs. Objects drawn
// at random, 32 of them, take eight runs or more.
//
// A whole tree becomes an area in two cases. First, the misses of a window lie in eight
// directories or more: no directory among a thousand would see 32 of them for long. Then
// the directory above them all becomes the area, and each directory below it is filled
// from the first miss in it on. Second, two directories below one have become areas. What
// was missed in a tree that is an area says nothing of the trees beside it. A directory
// without a miss is never filled.
//
// A prefetched block is kept as by Put, and only where no block of worth is evicted for
// it. It goes into free space, or takes the space of replaced versions or of others'
// blocks. It may also replace a block that nobody has used since the area began, if the
// store's policy would evict that for any miss. A block read since then is worth more
// than one that nobody has asked for. If the store declines, the area is no longer
// filled.
//
// A block that is in flight already, for whomever, is shared. A prefetch request begins
// only while readers leave connections free, half of the write queue is empty, and little
// memory is in flight. An origin that asks to slow down halves the number of requests,
// which grows again two seconds later.
//
// Each prefetched object has a word in a table until somebody reads it. The bytes of an
// area that are unread are at most sixteen times those that were read in it. The limit is
// not lower, because 128 requests bring that much for eight readers at first. In random
// order, these have used a few in a hundred of what was brought when half of all is
// there. So whether it is used shows only at the end.
//
// An area ends after 30 s without a read, or once more of it was evicted unread than was
// read. What nobody has read by then is wasted. If less than half of what was brought had
// been read, the directory does not become an area again for an hour.
package prefetch
