// Package prefetch fills the rest of a directory whose small objects are read in no
// order: eight readers of small files over a 20 ms first byte get 400 files a second
// whatever the cache, and 128 requests get up to 6,400.
//
// It hears of each READ of an object of one block. A READ of what the node holds costs
// one atomic load, or, while something was brought, one line of a table. A READ of
// anything else is a miss, and waits for the origin anyway: it is noted in the window
// of its directory and in those of three directories above, which have the last 64
// objects that were missed there, none older than 30 s.
//
//	misses -> windows -> areas -> directories, up to eight at a time -> at most 128 requests
//
// A directory becomes an area when 32 objects of its window lie in no order: they
// cannot be laid out in fewer than eight ascending runs. One reader in order is one
// run, some readers who share an order or have parts of their own are a few, and 32
// objects drawn at random take eight or more. Where the misses of a window lie in
// eight directories or more, no directory among a thousand would see 32 for long: then
// the directory above them all becomes the area, and each directory below it is filled
// from the first miss in it on. So it does when two of its directories have become
// areas. What was missed in a tree that is an area says nothing of those beside it. A
// directory in which nobody misses anything is never filled.
//
// What is brought goes the way of a Put, and only where nothing of worth is lost: into
// space that is free, that holds replaced versions or others' blocks, or what the store's
// policy gives up for any miss and nobody has used since the area began. What was read
// since is worth more than what nobody has asked for. Where the store declines, the area
// is filled no more.
// A block that is on its way, for whomever, is shared. Requests for it begin only while
// connections are free that readers do not use, half of the write queue is empty and
// little memory is in flight; an origin that asks to slow down halves their number,
// which grows again two seconds later.
//
// Each object brought has a word in a table until somebody reads it. What is unread in
// an area is at most sixteen times what was read there: 128 requests bring as much for
// eight readers at first, and in random order these have used a few in a hundred of
// what was brought when half of all is there, so that whether it is used shows at the end
// alone. An area ends after 30 s without a read, or once more of it was evicted unread
// than was read: what nobody has read by then is wasted. Where fewer than half of what
// was brought had been read, it becomes no area again for an hour.
package prefetch
