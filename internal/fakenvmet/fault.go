package fakenvmet

import (
	"bytes"
	"encoding/binary"
	"slices"
)

// Fault sees each PDU before the target sends it, and may change what becomes of it. It is called
// on the connection's goroutine, or on the one that raised an event, with no lock held. It must
// return at once: who wants a late PDU sets Until, and Drop, Kill, Off and Close wait for it. Several
// connections may call it at a time.
type Fault func(p *PDU)

// PDU is a PDU that the target is about to send.
type PDU struct {
	// Connection counts the target's connections from 1, and QID is the queue's number: 0 for the
	// admin queue, and before Connect.
	Connection int
	QID        uint16
	// N counts the PDUs of the connection, ICResp being 0, and Sent the bytes before this one.
	N    int
	Sent int64
	// Type is the PDU's, Opcode and CID are those of the command that it answers.
	Type   Type
	Opcode byte
	CID    uint16

	// Header is the common header and what is specific to the type; Data follows after Pad bytes.
	// PLEN and PDO follow a changed Pad or Data, unless the Fault writes them itself.
	Header []byte
	Pad    int
	Data   []byte
	// BadHeaderDigest and BadDataDigest spoil a digest, if the host asked for it.
	BadHeaderDigest, BadDataDigest bool

	// Drop does not send the PDU. What is in Then is sent in any case, after it.
	Drop bool
	Then []*PDU
	// Until holds the PDU, and Then, until it is closed. Other PDUs overtake them; those of one
	// channel keep their order. nil means no wait.
	Until <-chan struct{}
	// Cut ends the connection after so many of the PDU's bytes. 0 means that it does not: End with
	// Drop ends it before the PDU.
	Cut int
	// End ends the connection after the PDU: EOF, with nothing lost before it.
	End bool
	// Drip sends byte by byte, and is called before each one.
	Drip func()

	done   bool // the command's last PDU
	sealed sealed
}

// sealed is what a PDU was before the Fault saw it.
type sealed struct {
	pdo     byte
	plen    [4]byte
	digests digests // those of the connection
}

// Clone returns a copy that shares no bytes, with no fault in it.
func (p *PDU) Clone() *PDU {
	return &PDU{Connection: p.Connection, QID: p.QID, N: p.N, Sent: p.Sent, Type: p.Type, Opcode: p.Opcode, CID: p.CID,
		Header: slices.Clone(p.Header), Pad: p.Pad, Data: slices.Clone(p.Data), done: p.done,
		sealed: p.sealed}
}

// Len is the PDU's length on the wire.
func (p *PDU) Len() int {
	n := len(p.Header) + p.Pad + len(p.Data)
	if p.sealed.digests.header && p.Type.hasDigests() {
		n += digestLen
	}
	if p.sealed.digests.data && len(p.Data) > 0 && p.Type.hasDigests() {
		n += digestLen
	}
	return n
}

// SetPLEN writes the length in the common header.
func (p *PDU) SetPLEN(n uint32) { binary.LittleEndian.PutUint32(p.Header[atPLEN:], n) }

// SetCID writes the command identifier: of a completion, of data or of an R2T.
func (p *PDU) SetCID(cid uint16) {
	at := atCCCID
	if p.Type == CapsuleResp {
		at = atCQE + 12
	}
	binary.LittleEndian.PutUint16(p.Header[at:], cid)
}

// SetStatus writes a completion's status.
func (p *PDU) SetStatus(s Status) { binary.LittleEndian.PutUint16(p.Header[atCQE+14:], uint16(s)<<1) }

// SetResult writes dword 0 of a completion.
func (p *PDU) SetResult(dword uint32) { binary.LittleEndian.PutUint32(p.Header[atCQE:], dword) }

// Offset and Length are DATAO and DATAL of data, R2TO and R2TL of an R2T.
func (p *PDU) Offset() uint32 { return binary.LittleEndian.Uint32(p.Header[atDATAO:]) }

// Length is DATAL of data, R2TL of an R2T.
func (p *PDU) Length() uint32 { return binary.LittleEndian.Uint32(p.Header[atDATAL:]) }

// SetOffset writes DATAO of data, R2TO of an R2T.
func (p *PDU) SetOffset(n uint32) { binary.LittleEndian.PutUint32(p.Header[atDATAO:], n) }

// SetLength writes DATAL of data, R2TL of an R2T.
func (p *PDU) SetLength(n uint32) { binary.LittleEndian.PutUint32(p.Header[atDATAL:], n) }

// TermReq returns a C2HTermReq with a fatal error status, for Then. End belongs to it: a
// controller closes the connection behind it.
func TermReq(status uint16) *PDU {
	h := make([]byte, termLen)
	putHeader(h, C2HTermReq, 0, 0, termLen)
	binary.LittleEndian.PutUint16(h[atFES:], status)
	return &PDU{Type: C2HTermReq, Header: h}
}

// CutAt ends a connection with EOF after n bytes of its output.
func CutAt(n int64) Fault {
	return func(p *PDU) {
		switch at := n - p.Sent; {
		case at <= 0:
			p.Drop, p.End = true, true
		case at <= int64(p.Len()):
			p.Cut = int(at)
		}
	}
}

// seal remembers the lengths that the target wrote, to see whether the Fault wrote others.
func (p *PDU) seal() {
	p.sealed.pdo = p.Header[atPDO]
	copy(p.sealed.plen[:], p.Header[atPLEN:])
}

// encode appends the PDU's bytes.
func (p *PDU) encode(out []byte) []byte {
	head := p.sealed.digests.header && p.Type.hasDigests()
	tail := p.sealed.digests.data && p.Type.hasDigests() && len(p.Data) > 0
	if len(p.Header) >= commonLen {
		if bytes.Equal(p.sealed.plen[:], p.Header[atPLEN:atPLEN+4]) {
			p.SetPLEN(uint32(p.Len()))
		}
		if p.Header[atPDO] == p.sealed.pdo && p.sealed.pdo != 0 {
			p.Header[atPDO] += byte(p.Pad)
		}
	}
	out = append(out, p.Header...)
	if head {
		sum := digest(p.Header)
		if p.BadHeaderDigest {
			sum ^= 1
		}
		out = binary.LittleEndian.AppendUint32(out, sum)
	}
	out = append(out, make([]byte, p.Pad)...)
	out = append(out, p.Data...)
	if tail {
		sum := digest(p.Data)
		if p.BadDataDigest {
			sum ^= 1
		}
		out = binary.LittleEndian.AppendUint32(out, sum)
	}
	return out
}
