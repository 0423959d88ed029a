package fakenvmet

import "encoding/binary"

import "fmt"

// String names a command in a violation.
func (c *command) String() string {
	if c.opcode == OpFabrics {
		return fmt.Sprintf("Fabrics command %02xh, CID %d", c.kind, c.cid)
	}
	return fmt.Sprintf("command %02xh, CID %d", c.opcode, c.cid)
}

// forceAccess is FUA, in dword 12 of Write (NVM Command Set 1.0, section 3.2.6).
const forceAccess = 1 << 30

// doIO does an I/O command (NVM Command Set 1.0, section 3.2).
func (q *queue) doIO(c *command) {
	ns, at, s := q.check(c)
	if s != Success {
		q.respond(c, 0, s)
		return
	}
	switch c.opcode {
	case OpRead:
		q.t.counts.bytesRead.Add(int64(c.length))
		c.ns, c.at = ns, at
		q.reply(c, c.length)
		return
	case OpWrite:
		s = ns.write(c.data, at, c.dword(atDW12)&forceAccess != 0)
		if s == Success {
			q.t.counts.bytesWritten.Add(int64(c.length))
		}
	case OpFlush:
		s = ns.flush()
	case OpWriteZeroes:
		s = ns.zero(at, blocks(c)*ns.blockSize)
	case OpDatasetManagement:
		s = q.deallocate(c, ns)
	}
	q.respond(c, 0, s)
}

// blocks is NLB, 0's based in dword 12.
func blocks(c *command) int64 { return int64(c.dword(atDW12)&0xFFFF) + 1 }

// check finds a command's namespace and range, and what speaks against it before its data moves.
func (q *queue) check(c *command) (ns *Namespace, at int64, s Status) {
	id := c.dword(atNSID)
	switch c.opcode {
	case OpRead, OpWrite, OpFlush, OpWriteZeroes, OpDatasetManagement:
	default:
		return nil, 0, invalidOpcodeForever
	}
	ns = q.t.Namespace(id)
	if ns == nil {
		return nil, 0, InvalidNamespace | DNR
	}
	if s := q.port.status(); s != Success {
		return nil, 0, s
	}
	write, size := c.opcode != OpRead && c.opcode != OpFlush, int64(0)
	if c.opcode == OpRead || c.opcode == OpWrite || c.opcode == OpWriteZeroes {
		block := binary.LittleEndian.Uint64(c.entry[atDW10:])
		size = blocks(c) * ns.blockSize
		at = int64(min(block, 1<<50)) * ns.blockSize
	}
	if c.opcode != OpFlush && c.opcode != OpWriteZeroes && c.opcode != OpDatasetManagement {
		if int64(c.length) != size {
			q.note("%v of %d blocks of %d with an SGL of %d bytes", c, blocks(c), ns.blockSize, c.length)
			return nil, 0, invalidDataSize
		}
		if c.length > MaxTransfer || q.t.o.MDTS > 0 && c.length > 4096<<q.t.o.MDTS {
			q.note("%v of %d bytes, MDTS is %d", c, c.length, q.t.o.MDTS)
			return nil, 0, invalidFieldForever
		}
	}
	s, beyond := ns.state(at, size, write)
	if beyond {
		q.note("%v of %d bytes at %d, outside namespace %d", c, size, at, id)
	}
	return ns, at, s
}

// deallocate does Dataset Management (NVM Command Set 1.0, section 3.2.3): NR ranges of 16 bytes,
// 0's based in dword 10, each with a length in blocks at 4 and a block at 8.
func (q *queue) deallocate(c *command, ns *Namespace) Status {
	count := int(c.dword(atDW10)&0xFF) + 1
	if len(c.data) < count*16 { // more is allowed: Linux always sends room for 256 ranges
		q.note("%v with %d ranges in %d bytes", c, count, len(c.data))
		return invalidDataSize
	}
	if c.dword(atDW11)&(1<<2) == 0 { // AD
		return Success // the other attributes are hints
	}
	for r := c.data[:count*16]; len(r) > 0; r = r[16:] {
		at := int64(min(binary.LittleEndian.Uint64(r[8:]), 1<<50)) * ns.blockSize
		size := int64(binary.LittleEndian.Uint32(r[4:])) * ns.blockSize
		s, beyond := ns.state(at, size, true)
		if beyond {
			q.note("%v: a range of %d bytes at %d, outside namespace %d", c, size, at, ns.id)
		}
		if s == Success {
			s = ns.zero(at, size)
		}
		if s != Success {
			return s
		}
	}
	return Success
}
