package nvmetcp

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// Types of PDUs (TCP, 3.6.1, "PDU Types").
const (
	pduICReq       = 0x00
	pduICResp      = 0x01
	pduH2CTermReq  = 0x02
	pduC2HTermReq  = 0x03
	pduCapsuleCmd  = 0x04
	pduCapsuleResp = 0x05
	pduH2CData     = 0x06
	pduC2HData     = 0x07
	pduR2T         = 0x09
)

// Flags of the common header (TCP, 3.6.1). Those of data PDUs are 04h and 08h.
const (
	flagHeaderDigest = 0x01
	flagDataDigest   = 0x02
	flagLast         = 0x04
	flagSuccess      = 0x08
)

// Lengths in bytes (TCP, 3.6.2).
const (
	commonLen   = 8
	icLen       = 128
	commandLen  = 72 // the common header and a submission queue entry
	shortLen    = 24 // responses, data, R2T and termination requests
	digestLen   = 4
	maxTermLen  = 152 // a termination request with the header that it is about
	maxHeadLen  = 128 // header, digest and padding: CPDA of 31 is 128 bytes
	maxCPDA     = 31
	minH2CData  = 4096    // the least MAXH2CDATA (TCP, 3.6.2.3)
	maxR2T      = 4       // R2Ts of one command at once, as ICReq says
	maxSendData = 1 << 17 // data of one PDU that we send: others wait meanwhile, about 0.1 ms at 10 Gbit/s
)

// common is the common header of all PDUs.
type common struct {
	kind, flags byte
	headLen     int // HLEN, of the header without digest
	dataOff     int // PDO, from the beginning of the PDU
	length      int // PLEN, of the whole PDU
}

func (h common) put(b []byte) {
	b[0], b[1], b[2], b[3] = h.kind, h.flags, byte(h.headLen), byte(h.dataOff)
	binary.LittleEndian.PutUint32(b[4:], uint32(h.length))
}

// parseCommon reads the first 8 bytes of a PDU.
func parseCommon(b []byte) common {
	return common{kind: b[0], flags: b[1], headLen: int(b[2]), dataOff: int(b[3]),
		length: int(binary.LittleEndian.Uint32(b[4:]))}
}

// digests are the CRC32C that both sides put into PDUs: of headers, of data.
type digests struct{ header, data bool }

func (d digests) headerLen() int { return lenIf(d.header) }
func (d digests) dataLen() int   { return lenIf(d.data) }

func lenIf(digest bool) int {
	if digest {
		return digestLen
	}
	return 0
}

// check holds the common header of a PDU from the target against its type and what was agreed on. Afterwards
// headLen is that of the type, and the lengths are consistent.
func (h common) check(d digests) error {
	want := common{kind: h.kind, headLen: shortLen, flags: h.flags &^ (flagHeaderDigest | flagDataDigest)}
	head := shortLen + d.headerLen()
	if d.header {
		want.flags |= flagHeaderDigest
	}
	ok := false
	switch h.kind {
	case pduCapsuleResp, pduR2T:
		ok = h.length == head && h.dataOff == 0
	case pduC2HData:
		if d.data {
			want.flags |= flagDataDigest
		}
		ok = h.dataOff >= head && h.length > h.dataOff+d.dataLen()
	case pduC2HTermReq: // it has no digests (TCP, 3.6.2.5)
		want.flags = h.flags
		ok = h.length >= shortLen && h.length <= maxTermLen
	default:
		return protocolError("a PDU of type %02xh", h.kind)
	}
	if !ok || h.headLen != want.headLen || h.flags != want.flags {
		return protocolError("a PDU of type %02xh with flags %02xh, HLEN %d, PDO %d, PLEN %d",
			h.kind, h.flags, h.headLen, h.dataOff, h.length)
	}
	return nil
}

// protocolError is what the target did against the rules. It ends the connection.
func protocolError(format string, args ...any) error {
	return fmt.Errorf("%w: the target broke the protocol: "+format, append([]any{ErrPath}, args...)...)
}

// icReq is the first PDU of a connection (TCP, 3.6.2.2). HPDA is 0: nvmet closes the connection on another.
func icReq(d digests) []byte {
	b := make([]byte, icLen)
	common{kind: pduICReq, headLen: icLen, length: icLen}.put(b)
	b[11] = d.bits()
	binary.LittleEndian.PutUint32(b[12:], maxR2T-1) // 0's based
	return b
}

func (d digests) bits() (b byte) {
	if d.header {
		b |= 1
	}
	if d.data {
		b |= 2
	}
	return b
}

// icResp is the target's answer (TCP, 3.6.2.3).
type icResp struct {
	digests
	align   int // of data in the PDUs that we send, in bytes
	maxData int // of one H2CData PDU, in bytes
}

// parseICResp checks 128 bytes. A target that cannot do what we asked for is refused.
func parseICResp(b []byte, asked digests) (r icResp, err error) {
	h := parseCommon(b)
	if h.kind != pduICResp || h.headLen != icLen || h.length != icLen {
		return r, protocolError("instead of an ICResp a PDU of type %02xh, HLEN %d, PLEN %d", h.kind, h.headLen, h.length)
	}
	version, cpda, dgst := binary.LittleEndian.Uint16(b[8:]), b[10], b[11]
	most := binary.LittleEndian.Uint32(b[12:])
	r = icResp{digests: asked, align: 4 * (int(cpda) + 1), maxData: int(min(most, maxTransfer)) &^ 3}
	if !asked.data { // nvmet 6.1 takes the data digest of each PDU for one of all the data of its command
		r.maxData = min(r.maxData, maxSendData)
	}
	switch {
	case version != 0:
		err = protocolError("ICResp has format version %d", version)
	case cpda > maxCPDA:
		err = protocolError("ICResp has CPDA %d, and %d is the most", cpda, maxCPDA)
	case most < minH2CData:
		err = protocolError("ICResp has MAXH2CDATA %d, and %d is the least", most, minH2CData)
	case dgst != asked.bits():
		err = fmt.Errorf("%w: it answered with digests %02xh to %02xh: ask for others", ErrRefused, dgst, asked.bits())
	}
	return r, err
}

// transfer is the header of R2T, C2HData and H2CData: bytes of a command's data.
type transfer struct {
	cid, tag    uint16
	off, length uint32
}

// parseTransfer reads a header of 24 bytes.
func parseTransfer(b []byte) transfer {
	le := binary.LittleEndian
	return transfer{cid: le.Uint16(b[8:]), tag: le.Uint16(b[10:]), off: le.Uint32(b[12:]), length: le.Uint32(b[16:])}
}

// framing puts headers before data, as one side of a connection agreed on.
type framing struct {
	digests
	align int
}

// command completes the header in b[:128], whose submission queue entry is there, for so many bytes of data in the
// capsule. It returns the bytes before the data.
func (f framing) command(b []byte, data int) []byte {
	return f.seal(b, common{kind: pduCapsuleCmd, headLen: commandLen}, data)
}

// h2cData makes the header of an H2CData PDU in b[:128].
func (f framing) h2cData(b []byte, t transfer, last bool) []byte {
	clear(b[:maxHeadLen])
	le := binary.LittleEndian
	le.PutUint16(b[8:], t.cid)
	le.PutUint16(b[10:], t.tag)
	le.PutUint32(b[12:], t.off)
	le.PutUint32(b[16:], t.length)
	h := common{kind: pduH2CData, headLen: shortLen}
	if last {
		h.flags = flagLast
	}
	return f.seal(b, h, int(t.length))
}

// seal puts the common header, the digest and the padding around the rest of a header.
func (f framing) seal(b []byte, h common, data int) []byte {
	end := h.headLen
	if f.header {
		h.flags |= flagHeaderDigest
		end += digestLen
	}
	if data > 0 {
		if f.digests.data {
			h.flags |= flagDataDigest
		}
		h.dataOff = (end + f.align - 1) / f.align * f.align
		end = h.dataOff
		h.length = end + data + f.dataLen()
	} else {
		h.length = end
	}
	clear(b[h.headLen:end])
	h.put(b)
	if f.header {
		binary.LittleEndian.PutUint32(b[h.headLen:], crc32c(b[:h.headLen]))
	}
	return b[:end]
}

// crc32c is the digest of headers and data (TCP, 3.3.1.1): crc32 keeps one table for this polynomial.
func crc32c(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }

// termination says why a target ends a connection: the fatal error status and where it was (TCP, 3.6.2.5).
func termination(b []byte) error {
	fes, info := binary.LittleEndian.Uint16(b[8:]), binary.LittleEndian.Uint32(b[10:])
	names := [...]string{1: "invalid PDU header field", "PDU sequence error", "header digest error",
		"data transfer out of range", "data transfer limit exceeded", "unsupported parameter"}
	name := "reserved"
	if int(fes) < len(names) && fes > 0 {
		name = names[fes]
	}
	return fmt.Errorf("%w: the target ended the connection: %s (%02xh, %xh)", ErrPath, name, fes, info)
}
