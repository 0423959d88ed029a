package record

import (
	"encoding/binary"
	"time"
)

// Attr is the record of what somebody has set of a file or directory on this node.
type Attr struct {
	// Mode has the permission bits (07777), UID and GID the owner.
	Mode, UID, GID uint32
	// ModTime and ATime are kept to the nanosecond. A directory has none: zero.
	ModTime, ATime time.Time
}

// Append appends the record to buf.
func (a *Attr) Append(buf []byte) []byte {
	for _, n := range []uint32{a.Mode, a.UID, a.GID} {
		buf = binary.AppendUvarint(buf, uint64(n))
	}
	for _, t := range []time.Time{a.ModTime, a.ATime} {
		buf = binary.AppendVarint(buf, t.Unix()-Epoch)
		buf = binary.AppendUvarint(buf, uint64(t.Nanosecond()))
	}
	return buf
}

// ParseAttr reads a record.
func ParseAttr(b []byte) (Attr, error) {
	r := reader{b: b}
	a := Attr{Mode: uint32(r.uvarint()), UID: uint32(r.uvarint()), GID: uint32(r.uvarint())}
	a.ModTime, a.ATime = r.time(), r.time()
	return a, r.end()
}

func (r *reader) time() time.Time {
	t := time.Unix(r.varint()+Epoch, 0).Add(time.Duration(r.uvarint() % 1e9))
	if t.IsZero() {
		return time.Time{}
	}
	return t
}
