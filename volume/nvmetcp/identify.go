package nvmetcp

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
)

// maxTransfer is the most bytes of one command. nvmet takes no more, though it says that it has no limit (MDTS 0).
const maxTransfer = 4 << 20

// capabilities is the CAP property (Base, 3.1.3.1).
type capabilities uint64

func (c capabilities) maxEntries() int { return int(c&0xffff) + 1 }   // MQES, 0's based
func (c capabilities) timeout() int    { return int(c >> 24 & 0xff) } // TO, in 500 ms
func (c capabilities) minPage() uint   { return uint(12 + c>>48&0xf) }

// controllerInfo is what Identify says of a controller (Base, 5.17.2.1; Fabrics, 4.1).
type controllerInfo struct {
	maxTransfer int    // MDTS, in bytes
	inline      int    // IOCCSZ, without the entry of 64 bytes
	maxCommands int    // MAXCMD, of an I/O queue; 0 means no word
	events      uint32 // OAES
	volatile    bool   // VWC: writes are durable only after Flush
	deallocates bool   // ONCS
	ana         bool   // CMIC
}

func parseController(b []byte, minPage uint) (controllerInfo, error) {
	le := binary.LittleEndian
	i := controllerInfo{maxTransfer: maxTransfer, maxCommands: int(le.Uint16(b[514:])), events: le.Uint32(b[92:]),
		volatile: b[525]&1 != 0, deallocates: le.Uint16(b[520:])&(1<<2) != 0, ana: b[76]&(1<<3) != 0}
	if mdts := uint(b[77]); mdts != 0 && mdts+minPage < 22 {
		i.maxTransfer = 1 << (mdts + minPage)
	}
	const entry, unit = 64, 16 // bytes
	capsule, offset := le.Uint32(b[1792:]), le.Uint16(b[1800:])
	switch {
	case capsule < entry/unit:
		return i, protocolError("Identify Controller has IOCCSZ %d, and %d is the least", capsule, entry/unit)
	case offset != 0: // TCP, 3.4.1
		return i, protocolError("Identify Controller has ICDOFF %d, and 0 is the rule", offset)
	}
	i.inline = int(min(capsule, maxTransfer/unit)*unit) - entry
	return i, nil
}

// namespaceInfo is what Identify says of a namespace (NVM Command Set, 4.1.5.1).
type namespaceInfo struct {
	blocks    uint64
	blockBits uint
	readOnly  bool
	group     uint32 // ANAGRPID
	id        string // its EUI64, NGUID and UUID; "" if it has none
}

func parseNamespace(b []byte) (namespaceInfo, error) {
	le := binary.LittleEndian
	format := b[26]&0xf | b[26]>>5&3<<4
	lbaf := le.Uint32(b[128+4*int(format):])
	i := namespaceInfo{blocks: le.Uint64(b), blockBits: uint(lbaf >> 16 & 0xff), readOnly: b[99]&1 != 0,
		group: le.Uint32(b[92:])}
	switch {
	case i.blocks == 0:
		return i, fmt.Errorf("%w: it has no blocks: it is not attached to this controller, or disabled", ErrNamespace)
	case i.blockBits < 9 || i.blockBits > 16:
		return i, fmt.Errorf("%w: its blocks have 2^%d bytes: 2^9 to 2^16 are possible", ErrNamespace, i.blockBits)
	case lbaf&0xffff != 0:
		return i, fmt.Errorf("%w: its blocks carry %d bytes of metadata: format it without", ErrNamespace, lbaf&0xffff)
	case i.blocks > 1<<62>>i.blockBits:
		return i, fmt.Errorf("%w: it says that it has %d blocks", ErrNamespace, i.blocks)
	}
	return i, nil
}

func (i namespaceInfo) size() int64 { return int64(i.blocks << i.blockBits) }

// parseDescriptors makes one string of a Namespace Identification Descriptor list (Base, 5.17.2.3).
func parseDescriptors(b []byte) string {
	var ids []string
	for len(b) >= 4 && b[1] != 0 && len(b) >= 4+int(b[1]) {
		kind, id := b[0], b[4:4+int(b[1])]
		b = b[4+len(id):]
		if kind >= 1 && kind <= 3 && slices.ContainsFunc(id, func(c byte) bool { return c != 0 }) {
			ids = append(ids, fmt.Sprintf("%s.%x", [...]string{1: "eui", "nguid", "uuid"}[kind], id))
		}
	}
	slices.Sort(ids)
	return strings.Join(slices.Compact(ids), " ")
}

// parseActive reads an Active Namespace ID list. It ends with the first 0.
func parseActive(b []byte) (ids []uint32) {
	for ; len(b) >= 4; b = b[4:] {
		id := binary.LittleEndian.Uint32(b)
		if id == 0 {
			break
		}
		ids = append(ids, id)
	}
	return ids
}

// access is the state of a path to a namespace (Base, 5.16.1.13 and 8.1).
type access byte

// Optimized is also the path of a target that does not report access states.
const (
	optimized      access = 0x1
	nonOptimized   access = 0x2
	inaccessible   access = 0x3
	persistentLoss access = 0x4
	transition     access = 0xf
)

func (a access) usable() bool { return a == optimized || a == nonOptimized }

// String is the state as Linux names it.
func (a access) String() string {
	switch a {
	case optimized:
		return "optimized"
	case nonOptimized:
		return "non-optimized"
	case inaccessible:
		return "inaccessible"
	case persistentLoss:
		return "persistent-loss"
	case transition:
		return "change"
	}
	return fmt.Sprintf("reserved state %d", byte(a))
}

// anaLogLen takes the header and 511 groups without their namespaces: nvmet has at most 128.
const anaLogLen = 16 << 10

// parseAccess finds the state of a group in an ANA log page without namespaces. Without the group it is optimized:
// the target then says nothing about the path.
func parseAccess(b []byte, group uint32) access {
	le := binary.LittleEndian
	groups := int(le.Uint16(b[8:]))
	for b = b[16:]; groups > 0 && len(b) >= 32; groups-- {
		if le.Uint32(b) == group {
			return access(b[16] & 0xf)
		}
		skip := 32 + 4*int64(le.Uint32(b[4:])) // namespaces, if the target lists them all the same
		if skip > int64(len(b)) {
			break
		}
		b = b[skip:]
	}
	return optimized
}
