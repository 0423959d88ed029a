// Package nvmetcp is an NVMe/TCP initiator in user space: it reads and writes one namespace of a remote target,
// without a kernel module and without root. Section numbers in its comments are those of the NVMe specifications:
// Base 2.0, over Fabrics 1.1 (Fabrics), TCP Transport 1.0 (TCP).
//
// A Namespace is reached over one controller at a time. A controller is one association with the target: an admin
// queue and some I/O queues, each a TCP connection of its own.
//
//	host                                              target
//	  | ICReq: digests, HPDA 0 ---------------------->  |  on each connection
//	  | <---------------- ICResp: digests, MAXH2CDATA   |
//	  | Connect: NQNs, queue, SQSIZE ---------------->  |  then properties, Identify, features
//	  |                                                 |
//	  | capsule(Read) ------------------------------->  |
//	  | <-- C2HData ... C2HData (last, perhaps success) |
//	  | <----------------------------- capsule(status)  |  unless the last data said success
//	  |                                                 |
//	  | capsule(Write, data) ------------------------>  |  if the data fits the capsule
//	  | <----------------------------- capsule(status)  |
//	  |                                                 |
//	  | capsule(Write) ------------------------------>  |  if it does not
//	  | <------------------------ R2T: offset, length   |  several, one after another or at once
//	  | H2CData ... H2CData (last) ------------------>  |  each at most MAXH2CDATA
//	  | <----------------------------- capsule(status)  |
//
// A command takes a slot of a queue, writes its capsule, and waits for the slot. A queue has a fixed number of
// slots, never more than its SQSIZE, so a command needs no goroutine, no timer and no memory of its own. One reader
// goroutine per queue receives data into the caller's buffer, and it alone completes commands. So the buffer belongs
// to the queue until the call returns, whatever happens to the connection. The reader never writes: the goroutine of
// a command sends the data that an R2T asks for, one writev for each PDU, so that small commands pass between the
// PDUs of a large write. A target that stops reading thus never stops us from reading. With data digests an R2T is
// answered by one PDU of up to MAXH2CDATA: nvmet takes the digest of a PDU for that of all data of its command.
//
// The target is not trusted with memory. Each length that it names is held against the slot before a byte is read;
// data must come in order, without gaps, as often as it was asked for. What is against the rules ends the
// connection. It may send wrong bytes: nobody but the reader of the bytes can tell.
//
// Whatever goes wrong ends the whole controller: the end of a connection, a wrong digest, a PDU against the rules,
// a command or a keep-alive without an answer within Options.Timeout, a status that blames the path. The commands
// in flight are then repeated on the next controller. That is right for reads, and for writes whose bytes have one
// owner. One goroutine connects again, after pauses from 10 ms to 2 s, to the portals in turn:
//
//	   +---------- up <---------+
//	   | it ended               | connected, the path is usable
//	   v                        |
//	commands wait -------> connecting <--+
//	   | Options.Patience        |       | pause
//	   v is over                 +-------+
//	commands fail at once, while it goes on connecting
//
// A command that was repeated for longer than Patience and Timeout fails too, so that a target that accepts every
// connection and answers nothing cannot hold it for ever.
//
// A read that ends in Internal Error is done again in pages, once: a target that buffers in its page cache fails so
// on what it holds a part of.
//
// Two limits follow from the protocol. First, a write in flight when its path died may still take effect for as long
// as the target works on it. Do not write other bytes to the same place within Options.KeepAlive. Second, a new
// controller may be a new power cycle: what was written and not flushed may be gone. The next Flush then fails with
// ErrUnflushed, once.
//
// Asynchronous events keep the size, the write protection and the path's state (ANA) current. With several portals,
// a path whose state is optimized is taken before one that is not. A path that is inaccessible is left.
//
// There is no TLS. Without Options.Secret nobody is authenticated, and with it the bytes are still neither hidden
// nor sealed: use a tunnel (WireGuard, stunnel) across networks that others can reach.
package nvmetcp
