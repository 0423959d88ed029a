// Package owners has warm-up, the prefetch of siblings and checks work at the nodes of a
// ring that own what they are about. Two sides meet here: Owners is who asks, Served who
// is asked.
//
// A block that this node owns is loaded and asked for here, as without a ring. Of all others:
//
//	load   by Fills without payload, as many in a frame as wait for one owner. Of a large
//	       object a run of an extent lies in one frame, and the owner makes one request to its
//	       origin of it. The owner has its disk tier keep each block before it answers, and
//	       says why where that does not.
//	held   many blocks by one Call of their IDs; the answer is a bit each. What is in an
//	       owner's memory alone is not held: nobody knows for how long.
//	flush  before anything is counted, at each owner where something was found or loaded
//	       since. An owner that cannot be asked is not believed to hold anything until it
//	       could be flushed.
//	check  a part of an extent at a time: the owner reads it from its device.
//
// Each asks the ranks of an extent as a reader does: the owner; where that is silent or
// down, or refuses for longer, the next rank, which may be this node; then nobody.
// So an owner that dies is found by those of its blocks that are not held any more, and who
// owns them then loads them. What an owner says went wrong at its origin is the answer.
//
// Served lets loads and checks of others through a gate of its own, as warm-up has one:
// few while readers of this node are active, fewer when an origin asks to slow down. Who
// asks hears of the latter by a Call that is made while loads are under way, and begins fewer.
//
// All is bounded: what is under way to one owner, frames, bodies, and who is asked at a time.
package owners
