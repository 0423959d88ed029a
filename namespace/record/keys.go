package record

import (
	"crypto/sha256"
	"encoding/binary"
)

// Kinds of records: the first byte of a key. A directory takes 16 bytes, a node id 8 in big-endian
// order. Keys that begin with m belong to a few single records.
const (
	KindEntry      = 'e' // directory, sort name: an Entry
	KindHashed     = 'h' // directory, mount name: the sort name of a shortened name
	KindDirectory  = 'd' // directory: its node id and the state of its listing
	KindReverse    = 'i' // node id: what the id stands for
	KindSuperseded = 's' // node id: when the id's version was superseded
	KindAttr       = 'a' // node id: an Attr
	KindPin        = 'p' // path of the tree: a pin, as namespace.PinTable has it
)

const (
	// FormatKey is the key of the record that holds the format of the database.
	FormatKey = "mformat"
	// Format is the format that this version writes, in one byte. A newer one is refused.
	Format = 1
)

// Newer reports whether a newer version wrote the record at FormatKey.
func Newer(value []byte) bool { return len(value) != 1 || value[0] > Format }

// NameKey appends the key of a name in a directory to buf.
func NameKey(buf []byte, kind byte, dir [16]byte, name string) []byte {
	buf = append(buf, kind)
	buf = append(buf, dir[:]...)
	return append(buf, name...)
}

// IDKey appends the key of a node id to buf.
func IDKey(buf []byte, kind byte, id uint64) []byte {
	return binary.BigEndian.AppendUint64(append(buf, kind), id)
}

// DirectoryEnd is the first key after all of a directory's entries.
func DirectoryEnd(dir [16]byte) []byte {
	key := NameKey(nil, KindEntry, dir, "")
	for i := len(key) - 1; ; i-- {
		if key[i]++; key[i] != 0 {
			return key[:i+1]
		}
	}
}

// DirectoryHash is a directory's key in the database, the same on every node.
func DirectoryHash(link, origin, path string) [16]byte {
	h := sha256.New()
	var n [8]byte
	for _, s := range []string{link, origin, path} {
		binary.LittleEndian.PutUint64(n[:], uint64(len(s)))
		h.Write(n[:])
		h.Write([]byte(s))
	}
	return [16]byte(h.Sum(nil)[:16])
}
