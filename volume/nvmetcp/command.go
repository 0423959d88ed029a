package nvmetcp

import (
	"encoding/binary"
	"time"
)

// Opcodes of I/O commands (Base, 5 and NVM Command Set, 3), admin commands, and Fabrics commands with their types
// (Fabrics, 3).
const (
	opFlush      = 0x00
	opWrite      = 0x01
	opRead       = 0x02
	opDeallocate = 0x09 // Dataset Management

	opGetLogPage  = 0x02
	opIdentify    = 0x06
	opSetFeatures = 0x09
	opAsyncEvent  = 0x0c
	opKeepAlive   = 0x18

	opFabrics       = 0x7f
	typePropertySet = 0x00
	typeConnect     = 0x01
	typePropertyGet = 0x04
	typeAuthSend    = 0x05
	typeAuthReceive = 0x06
)

const (
	// CNS values of Identify (Base, 5.17.1).
	cnsNamespace   = 0x00
	cnsController  = 0x01
	cnsActiveList  = 0x02
	cnsDescriptors = 0x03
	// Log pages (Base, 5.16.1, and Fabrics, 5).
	logError      = 0x01
	logNamespaces = 0x04 // Changed Namespace List
	logANA        = 0x0c
	logDiscovery  = 0x70
	// Features (Base, 5.27.1).
	featureQueues = 0x07
	featureEvents = 0x0b
	// Offsets of properties (Base, 3.1.3).
	propertyCAP  = 0x00
	propertyCC   = 0x14
	propertyCSTS = 0x1c
	// Enable, 64-byte submission and 16-byte completion entries (Base, 3.1.3.5).
	ccEnable   = 1 | 6<<16 | 4<<20
	ccShutdown = ccEnable | 1<<14 // normal
	cstsReady  = 1 << 0
	cstsFatal  = 1 << 1
	// Notices of namespaces and of ANA: bits of the feature, of OAES, and values of an event (Base, figure 146).
	noticeNamespaces = 1 << 8
	noticeANA        = 1 << 11
	eventNotice      = 2
	infoNamespaces   = 0x00
	infoANA          = 0x03

	connectFlowOff = 1 << 2 // CATTR of Connect: disable SQ flow control (Fabrics, 3.3)
	connectDataLen = 1024
	anyController  = 0xffff // CNTLID that asks for a new controller
	identifyLen    = 4096
	rangeLen       = 16 // of Dataset Management
)

// command is a submission queue entry in parts. Fabrics commands have their own fields from byte 40 on, which are
// given as the same double words.
type command struct {
	opcode byte
	fabric byte // type of a Fabrics command
	nsid   uint32
	dw     [6]uint32 // 10 to 15: bytes 40 to 63
	// out tells that the data goes to the target.
	out bool
	// endless is the command whose answer may take for ever: it waits for an event.
	endless bool
}

// put makes the entry of 64 bytes (Base, 3.3.3.1; Fabrics, 3). Data in the capsule is described by its offset, other
// data is the transport's (TCP, 3.4.1).
func (c command) put(b []byte, cid uint16, data int, inCapsule bool) {
	const (
		sglUsed      = 1 << 6 // PSDT: SGLs; metadata, of which there is none, contiguous
		sglOffset    = 0x01   // data block, offset
		sglTransport = 0x5a   // transport data block, transport specific
	)
	le := binary.LittleEndian
	clear(b[:64])
	b[0], b[1] = c.opcode, sglUsed
	le.PutUint16(b[2:], cid)
	if c.opcode == opFabrics {
		b[4] = c.fabric
	} else {
		le.PutUint32(b[4:], c.nsid)
	}
	le.PutUint32(b[32:], uint32(data))
	b[39] = sglTransport
	if inCapsule {
		b[39] = sglOffset
	}
	for i, dw := range c.dw {
		le.PutUint32(b[40+4*i:], dw)
	}
}

// name is the command's, as the specification has it. The same opcode is another command on the admin queue.
func (c command) name(admin bool) string {
	if c.opcode == opFabrics {
		return fabricName(c.fabric)
	}
	if admin {
		return adminName(c.opcode)
	}
	switch c.opcode {
	case opFlush:
		return "Flush"
	case opWrite:
		return "Write"
	case opRead:
		return "Read"
	}
	return "Dataset Management"
}

func fabricName(kind byte) string {
	switch kind {
	case typePropertySet:
		return "Property Set"
	case typeConnect:
		return "Connect"
	case typePropertyGet:
		return "Property Get"
	case typeAuthSend:
		return "Authentication Send"
	}
	return "Authentication Receive"
}

func adminName(opcode byte) string {
	switch opcode {
	case opGetLogPage:
		return "Get Log Page"
	case opIdentify:
		return "Identify"
	case opSetFeatures:
		return "Set Features"
	case opAsyncEvent:
		return "Asynchronous Event Request"
	}
	return "Keep Alive"
}

// The commands of an I/O queue.

func ioCommand(opcode byte, nsid uint32, lba uint64, blocks int) command {
	return command{opcode: opcode, nsid: nsid, out: opcode == opWrite,
		dw: [6]uint32{uint32(lba), uint32(lba >> 32), uint32(blocks-1) & 0xffff}}
}

// deallocate takes one range as its data.
func deallocate(nsid uint32) command {
	return command{opcode: opDeallocate, nsid: nsid, out: true, dw: [6]uint32{0, 1 << 2}} // one range; AD
}

func putRange(b []byte, lba uint64, blocks uint32) {
	binary.LittleEndian.PutUint32(b[0:], 0)
	binary.LittleEndian.PutUint32(b[4:], blocks)
	binary.LittleEndian.PutUint64(b[8:], lba)
}

// The commands of the admin queue, and Connect of all queues.

func connectCommand(queue uint16, size int, flow bool, kato time.Duration) command {
	var attributes uint32
	if !flow {
		attributes = connectFlowOff
	}
	return command{opcode: opFabrics, fabric: typeConnect, out: true, dw: [6]uint32{
		uint32(queue) << 16, uint32(size-1) | attributes<<16, uint32(kato.Milliseconds())}}
}

func connectData(o *Options, controller uint16) []byte {
	b := make([]byte, connectDataLen)
	copy(b, o.HostID[:])
	binary.LittleEndian.PutUint16(b[16:], controller)
	copy(b[256:512], o.SubsystemNQN)
	copy(b[512:768], o.HostNQN)
	return b
}

func propertyGet(offset uint32, eight bool) command {
	c := command{opcode: opFabrics, fabric: typePropertyGet, dw: [6]uint32{0, offset}}
	if eight {
		c.dw[0] = 1
	}
	return c
}

func propertySet(offset, value uint32) command {
	return command{opcode: opFabrics, fabric: typePropertySet, dw: [6]uint32{0, offset, value}}
}

func identify(cns, nsid uint32) command {
	return command{opcode: opIdentify, nsid: nsid, dw: [6]uint32{cns}}
}

func setFeatures(feature, value uint32) command {
	return command{opcode: opSetFeatures, dw: [6]uint32{feature, value}}
}

// getLogPage reads so many bytes of a log page from an offset, and clears the event that it belongs to. specific is
// the log's own field.
func getLogPage(page, specific uint32, length int, offset uint64) command {
	words := uint32(length/4 - 1)
	return command{opcode: opGetLogPage, nsid: 0xffffffff, dw: [6]uint32{
		page | specific<<8 | words<<16, words >> 16, uint32(offset), uint32(offset >> 32)}}
}

// completion is a completion queue entry (Base, 3.3.3.2).
type completion struct {
	result uint64
	cid    uint16
	status Status
}

// parseCompletion reads the 16 bytes behind the common header of a response.
func parseCompletion(b []byte) completion {
	le := binary.LittleEndian
	return completion{result: le.Uint64(b), cid: le.Uint16(b[12:]), status: Status(le.Uint16(b[14:]) >> 1)}
}
