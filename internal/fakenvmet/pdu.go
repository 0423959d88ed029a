package fakenvmet

import (
	"encoding/binary"
	"hash/crc32"
)

// Type is the type of a PDU (NVMe/TCP 1.0, figure 10).
type Type byte

// The PDU types.
const (
	ICReq       Type = 0x00
	ICResp      Type = 0x01
	H2CTermReq  Type = 0x02
	C2HTermReq  Type = 0x03
	CapsuleCmd  Type = 0x04
	CapsuleResp Type = 0x05
	H2CData     Type = 0x06
	C2HData     Type = 0x07
	R2T         Type = 0x09
)

// Lengths of headers: the common header and what is specific to the type, without digest.
const (
	commonLen  = 8   // figure 19
	icLen      = 128 // figures 20 and 21
	termLen    = 24  // figures 22 and 23
	capsuleLen = 72  // figure 24: the common header and 64 bytes of submission queue entry
	shortLen   = 24  // figures 25 to 28: CapsuleResp, H2CData, C2HData, R2T
	digestLen  = 4   // section 3.3.1: CRC32C
)

// Offsets within a PDU.
const (
	atType, atFlags, atHLEN, atPDO, atPLEN = 0, 1, 2, 3, 4 // figure 19

	atPFV, atHPDA, atDGST, atMAXR2T = 8, 10, 11, 12 // figure 20; CPDA and MAXH2CDATA of figure 21 lie there, too

	atFES, atFEI = 8, 10 // figures 22 and 23

	atCQE = 8 // figure 25

	atCCCID, atTTAG, atDATAO, atDATAL = 8, 10, 12, 16 // figures 26 to 28; R2TO and R2TL of figure 28 lie there, too
)

// Flags of the common header (figures 19 and 24 to 28).
const (
	flagHDGST   byte = 1 << 0 // a header digest follows the header
	flagDDGST   byte = 1 << 1 // a data digest follows the data
	flagLast    byte = 1 << 2 // the last PDU of an R2T, or of a command's data
	flagSuccess byte = 1 << 3 // no CapsuleResp follows (figure 27)
)

// Fatal error status of a TermReq (figures 22 and 23).
const (
	fesHeader      = 0x01 // invalid PDU header field
	fesSequence    = 0x02 // PDU sequence error
	fesDigest      = 0x03 // header digest error
	fesRange       = 0x04 // data transfer out of range
	fesLimit       = 0x05 // data transfer limit exceeded
	fesUnsupported = 0x06 // unsupported parameter
)

// adminCapsule is the data that every command capsule of the admin queue may carry, and every
// Fabrics command (figure 11).
const adminCapsule = 8192

// Opcodes of I/O commands (NVM Command Set 1.0, section 3). They count in Stats.IO.
const (
	OpFlush             = 0x00
	OpWrite             = 0x01
	OpRead              = 0x02
	OpWriteZeroes       = 0x08
	OpDatasetManagement = 0x09
)

// Opcodes of admin commands (NVMe Base 2.0, section 5). They count in Stats.Admin.
const (
	OpGetLogPage  = 0x02
	OpIdentify    = 0x06
	OpAbort       = 0x08
	OpSetFeatures = 0x09
	OpGetFeatures = 0x0A
	OpAsyncEvent  = 0x0C
	OpKeepAlive   = 0x18
	OpFabrics     = 0x7F
)

// Types of Fabrics commands, in byte 4 of the entry (NVMe Base 2.0, section 6).
const (
	fcPropertySet = 0x00
	fcConnect     = 0x01
	fcPropertyGet = 0x04
	fcAuthSend    = 0x05
	fcAuthReceive = 0x06
)

// Status is SCT and SC of a completion as they are usually written: 0x182 is 1/82h. Bit 14 is
// Do Not Retry (NVMe Base 2.0, section 3.3.3.2.1).
type Status uint16

// DNR is the bit Do Not Retry.
const DNR Status = 1 << 14

// Statuses that the target gives (NVMe Base 2.0, section 3.3.3.2.1; 0x180 and above section 6).
const (
	Success               Status = 0x000
	InvalidOpcode         Status = 0x001
	InvalidField          Status = 0x002
	InternalError         Status = 0x006
	InvalidNamespace      Status = 0x00B
	SequenceError         Status = 0x00C
	SGLLengthInvalid      Status = 0x00F
	WriteProtected        Status = 0x020
	LBAOutOfRange         Status = 0x080
	AsyncEventLimit       Status = 0x105
	InvalidLogPage        Status = 0x109
	ConnectFormat         Status = 0x180
	ConnectBusy           Status = 0x181
	ConnectInvalid        Status = 0x182
	ConnectHost           Status = 0x184
	AuthRequired          Status = 0x191
	WriteFault            Status = 0x280
	UnrecoveredRead       Status = 0x281
	PathError             Status = 0x300
	PathPersistentLoss    Status = 0x301
	PathInaccessible      Status = 0x302
	PathTransition        Status = 0x303
	invalidDataSize       Status = SGLLengthInvalid | DNR
	invalidFieldForever   Status = InvalidField | DNR
	invalidOpcodeForever  Status = InvalidOpcode | DNR
	sequenceErrorForever  Status = SequenceError | DNR
	connectInvalidForever Status = ConnectInvalid | DNR
)

// Types of a scatter-gather descriptor, in byte 39 of the entry. The high half is the descriptor's
// type, the low half its subtype (NVMe Base 2.0, section 4.1.2; NVMe/TCP 1.0, figure 14).
const (
	sglInCapsule = 0x01 // data block, by offset: in the capsule
	sglTransport = 0x5A // transport data block: by H2CData or C2HData
)

// digest is CRC32C (NVMe/TCP 1.0, section 3.3.1). crc32 keeps the Castagnoli table and finds it by
// its address, so MakeTable costs a comparison.
func digest(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }

// putHeader fills the common header.
func putHeader(h []byte, kind Type, flags byte, pdo, plen int) {
	h[atType], h[atFlags], h[atHLEN], h[atPDO] = byte(kind), flags, byte(len(h)), byte(pdo)
	binary.LittleEndian.PutUint32(h[atPLEN:], uint32(plen))
}

// hasDigests reports whether PDUs of this type carry digests at all (NVMe/TCP 1.0, figures 12 and
// 13).
func (k Type) hasDigests() bool {
	return k != ICReq && k != ICResp && k != H2CTermReq && k != C2HTermReq
}
