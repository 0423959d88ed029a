package fakenvmet

import (
	"encoding/binary"
	"hash/crc32"
	"time"
)

// bodyPiece is the data that is read and written at a time: half of a processor's cache of one core,
// which 1 MiB is not. Reads of 1 MiB take twice as long without.
const bodyPiece = 128 << 10

// respond completes a command. The controller's part of the entry is as in figure 25 and NVMe Base
// 2.0, section 3.3.3.2: result, SQHD, CID, status.
func (q *queue) respond(c *command, result uint64, s Status) {
	f := q.t.fault.Load()
	q.out.mu.Lock()
	h := q.headerLocked(f)
	putHeader(h, CapsuleResp, q.headFlag(), 0, q.wire(0))
	cqe := h[atCQE:]
	binary.LittleEndian.PutUint64(cqe, result)
	binary.LittleEndian.PutUint16(cqe[8:], q.out.window.advance())
	binary.LittleEndian.PutUint16(cqe[12:], c.cid)
	binary.LittleEndian.PutUint16(cqe[14:], uint16(s)<<1)
	if f == nil {
		q.endHeaderLocked(h)
		q.out.window.complete(c.cid)
		q.out.mu.Unlock()
		return
	}
	q.out.mu.Unlock()
	q.pass(*f, c.pdu(CapsuleResp, h, true))
}

// headerLocked makes room for a header: in the output, or apart if a Fault is to see it.
func (q *queue) headerLocked(f *Fault) []byte {
	if f != nil {
		return make([]byte, shortLen)
	}
	at := len(q.out.bytes)
	q.out.bytes = grow(q.out.bytes, shortLen)
	clear(q.out.bytes[at:])
	return q.out.bytes[at:]
}

// endHeaderLocked ends a header in the output.
func (q *queue) endHeaderLocked(h []byte) {
	q.out.pdus++
	if q.digests.header {
		q.out.bytes = binary.LittleEndian.AppendUint32(q.out.bytes, digest(h))
	}
}

// ask sends an R2T (figure 28).
func (q *queue) ask(c *command, tag uint16, offset, length int) {
	q.t.counts.r2ts.Add(1)
	f := q.t.fault.Load()
	q.out.mu.Lock()
	h := q.headerLocked(f)
	putHeader(h, R2T, q.headFlag(), 0, q.wire(0))
	putTransfer(h, c.cid, offset, length)
	binary.LittleEndian.PutUint16(h[atTTAG:], tag)
	if f == nil {
		q.endHeaderLocked(h)
		q.out.mu.Unlock()
		return
	}
	q.out.mu.Unlock()
	q.pass(*f, c.pdu(R2T, h, false))
}

func putTransfer(h []byte, cid uint16, offset, length int) {
	binary.LittleEndian.PutUint16(h[atCCCID:], cid)
	binary.LittleEndian.PutUint32(h[atDATAO:], uint32(offset))
	binary.LittleEndian.PutUint32(h[atDATAL:], uint32(length))
}

// sendData sends one C2HData (figure 27), filled by the command. What it refuses is not sent.
func (q *queue) sendData(c *command, offset, length int, flags byte) Status {
	flags |= q.headFlag()
	if q.digests.data {
		flags |= flagDDGST
	}
	done := flags&flagSuccess != 0
	if f := q.t.fault.Load(); f != nil {
		p := c.pdu(C2HData, make([]byte, shortLen), done)
		putHeader(p.Header, C2HData, flags, q.wire(0), q.wire(length))
		putTransfer(p.Header, c.cid, offset, length)
		p.Data = make([]byte, length)
		if s := c.fill(p.Data, offset); s != Success {
			return s
		}
		q.pass(*f, p)
		return Success
	}
	q.out.mu.Lock()
	defer q.out.mu.Unlock()
	before := len(q.out.bytes)
	h := q.headerLocked(nil)
	putHeader(h, C2HData, flags, q.wire(0), q.wire(length))
	putTransfer(h, c.cid, offset, length)
	q.endHeaderLocked(h)
	if s := q.bodyLocked(c, offset, length); s != Success {
		q.out.bytes = q.out.bytes[:before] // nothing of it was written
		return s
	}
	if done {
		q.out.window.advance()
		q.out.window.complete(c.cid)
	}
	if len(q.out.bytes) >= flushAt {
		_ = q.flushLocked() // the next read finds the connection broken
	}
	return Success
}

// bodyLocked appends data, and writes it out in pieces that stay in the processor's cache. What
// fails after the first piece ends the connection: its header is with the host already.
func (q *queue) bodyLocked(c *command, offset, length int) Status {
	sum := uint32(0)
	for done := 0; done < length; {
		at := len(q.out.bytes)
		q.out.bytes = grow(q.out.bytes, min(length-done, bodyPiece))
		piece := q.out.bytes[at:]
		if s := c.fill(piece, offset+done); s != Success && done == 0 {
			return s
		} else if s != Success {
			q.end()
			return Success
		}
		if q.digests.data {
			sum = crc32.Update(sum, crc32.MakeTable(crc32.Castagnoli), piece)
		}
		if done += len(piece); done < length && len(q.out.bytes) >= flushAt {
			_ = q.flushLocked() // the next read finds the connection broken
		}
	}
	if q.digests.data {
		q.out.bytes = binary.LittleEndian.AppendUint32(q.out.bytes, sum)
	}
	return Success
}

// grow lengthens b by n bytes, whatever they are.
func grow(b []byte, n int) []byte {
	if cap(b)-len(b) < n {
		b = append(make([]byte, 0, max(len(b)+n, 2*cap(b))), b...)
	}
	return b[:len(b)+n]
}

// wire is the length of a short PDU with so much data.
func (q *queue) wire(data int) int {
	n := shortLen + data
	if q.digests.header {
		n += digestLen
	}
	if q.digests.data && data > 0 {
		n += digestLen
	}
	return n
}

func (q *queue) headFlag() byte {
	if q.digests.header {
		return flagHDGST
	}
	return 0
}

// pdu describes a PDU that answers the command.
func (c *command) pdu(kind Type, header []byte, done bool) *PDU {
	return &PDU{Type: kind, Opcode: c.opcode, CID: c.cid, Header: header, done: done}
}

// send sends a PDU that is no plain answer.
func (q *queue) send(p *PDU) {
	f := q.t.fault.Load()
	if f == nil {
		none := Fault(func(*PDU) {})
		f = &none
	}
	q.pass(*f, p)
}

// pass shows a PDU to the fault and does what it wants.
func (q *queue) pass(f Fault, p *PDU) {
	q.out.mu.Lock()
	p.Connection, p.QID, p.N, p.Sent = q.number, q.qid, q.out.pdus, q.out.written+int64(len(q.out.bytes))
	p.sealed.digests = q.digests
	p.seal()
	q.out.pdus++
	q.out.mu.Unlock()
	f(p)
	q.out.mu.Lock()
	defer q.out.mu.Unlock()
	if p.Until == nil {
		q.writeLocked(p)
		return
	}
	list, waits := q.out.held[p.Until]
	if !waits {
		select {
		case <-p.Until:
			q.writeLocked(p)
			return
		default:
		}
		q.t.wait.Add(1) // the caller is counted, so this is not from zero
		go q.release(p.Until)
	}
	q.out.held[p.Until] = append(list, p)
}

// release writes what was held for one channel, in order.
func (q *queue) release(until <-chan struct{}) {
	defer q.t.wait.Done()
	select {
	case <-until:
	case <-q.dead:
		return
	}
	q.out.mu.Lock()
	defer q.out.mu.Unlock()
	for _, p := range q.out.held[until] {
		q.writeLocked(p)
	}
	delete(q.out.held, until)
	_ = q.flushLocked() // the reader finds the connection broken
}

// writeLocked writes a PDU as its fault wants it, and what follows it.
func (q *queue) writeLocked(p *PDU) {
	if q.out.closing {
		return
	}
	if !p.Drop {
		at := len(q.out.bytes)
		q.out.bytes = p.encode(q.out.bytes)
		if p.Cut > 0 && at+p.Cut < len(q.out.bytes) {
			q.out.bytes = q.out.bytes[:at+p.Cut]
		}
		if p.Drip != nil {
			q.dripLocked(at, p.Drip)
		}
		if p.done {
			q.out.window.complete(p.CID)
		}
	}
	for _, next := range p.Then {
		q.writeLocked(next)
	}
	if p.End || p.Cut > 0 {
		_ = q.flushLocked()     // the host sees the end in any case
		_ = q.conn.CloseWrite() // the same
		q.out.closing = true
		_ = q.conn.SetReadDeadline(time.Now()) // wakes the reader, which then waits for the host's end
	} else if len(q.out.bytes) >= flushAt {
		_ = q.flushLocked() // the next read finds the connection broken
	}
}

// dripLocked writes what stands before at, and then byte by byte.
func (q *queue) dripLocked(at int, drip func()) {
	slow := append([]byte(nil), q.out.bytes[at:]...)
	q.out.bytes = q.out.bytes[:at]
	_ = q.flushLocked() // the next write fails, too
	for i := range slow {
		drip()
		if _, err := q.conn.Write(slow[i : i+1]); err != nil {
			return
		}
		q.out.written++
	}
}
