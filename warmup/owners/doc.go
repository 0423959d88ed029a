// Package owners has warm-up, prefetch and checks work at the nodes of a ring that own
// the blocks. It has both sides: Owners asks, Served answers.
//
// A block that this node owns is loaded and asked for here, as without a ring. For all
// others:
//
//	load   by Fills without payload. Those that wait for one owner share a frame. A run of
//	       blocks of a large object, within an extent, lies in one frame, and the owner makes
//	       one request to its origin for it. The owner has its disk tier keep each block before
//	       it answers. If the disk tier does not keep it, the owner says why.
//	held   one Call asks for many blocks by ID; the answer is a bit each. A block that is only
//	       in an owner's memory is not held: nobody knows for how long it stays.
//	flush  before anything is counted, at each owner where something was found or loaded
//	       since the last flush. An owner that cannot be asked is believed to hold nothing
//	       until it could be flushed.
//	seed   what was just written is offered to its owner by a Call. If the owner's disk has room
//	       by its policy, the owner fetches it by Peeks from the node that wrote it.
//	check  a part of an extent at a time: the owner reads it from its device.
//
// All of them ask the ranks of an extent as a reader does. First comes the owner. If it
// is silent or down, or refuses for long, the next rank is asked, which may be this node.
// After the last rank there is no answer. So a dead owner shows by its blocks, which are not
// held any more. Whoever owns them then loads them. If an owner reports an error of its
// origin, that is the answer.
//
// Served lets the loads and checks of others through a gate of its own, as warm-up has
// one. The gate is narrow while readers of this node are active, and narrower when an
// origin asks to slow down. The asking node learns of the latter by a Call while its
// loads are in flight, and then begins fewer.
//
// All is bounded: what is in flight to one owner, frames, bodies, and how many nodes are
// asked at a time.
package owners
