// Package hearth is the vocabulary of a peer-to-peer cache for object storage.
//
// An Object is one immutable version of one object in a bucket. It is cut into
// Blocks of 1 MiB; a small object is one short block. Bytes travel as Views,
// counted against one Pool. A Store holds blocks, in memory, on a disk or on a
// volume; a Source yields them from wherever they are: a tier over a Store, a
// peer, the bucket. So the whole read side is one expression in package node.
//
// Blocks are named by version and therefore never change: there is no
// invalidation in the data path. Only package namespace knows which version a
// name means today.
package hearth

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"strings"
	"time"
)

const (
	// BlockSize is the size in bytes of every block but the last of an object:
	// large enough that a block's fixed costs vanish, small enough that a random
	// read does not fetch much that nobody asked for.
	BlockSize = 1 << 20
	// ExtentBlocks is the number of consecutive blocks that are placed on one
	// node and fetched from the bucket in one ranged request.
	ExtentBlocks = 16
	// PieceSize is the unit of checksums in bytes, so that a small range is
	// verified without reading its whole block.
	PieceSize = 64 << 10
)

var (
	// ErrMiss is returned by a Store for a block that it does not hold. It is
	// never a verdict on the object, only on this store.
	ErrMiss = errors.New("not held here")
	// ErrStale says that a version is gone: the object was changed or deleted.
	ErrStale = errors.New("object changed or deleted at the origin")
	// ErrRefused says that a peer (or, for lack of room, this side) does not take a request
	// now; the reader goes elsewhere. Whoever answers peers returns it to shed load.
	ErrRefused = errors.New("refused: too much to do")
	// ErrArchived says that an object lies in an archive of its origin: nobody can read it
	// before it is restored there.
	ErrArchived = errors.New("object is archived at the origin")
)

// Object is one immutable version of one object.
type Object struct {
	// Link names the link (origin and prefix) that the object was found through.
	Link string
	// Key is the whole key at the origin, byte for byte.
	Key string
	// ETag as the origin gave it, without quotes. Empty or weak ("W/" in front):
	// the object is served uncached.
	ETag string
	// Size in bytes. PrefixSize marks a common prefix in a listing.
	Size int64
	// ModTime as the origin reports it.
	ModTime time.Time
	// Exact is set of a ModTime in whole seconds whose origin would have told a fraction. HEADs
	// tell none; listings of MinIO, Ceph and others do.
	Exact bool
	// Class is the storage class as the origin reports it, and no part of the version;
	// "": STANDARD, or it says nothing.
	Class string
	// Version is VersionOf the fields above; computed, never taken from outside.
	Version [16]byte
}

// PrefixSize is the Size of an Object that stands for a common prefix in a
// listing; its Key then ends in "/" and it has no version.
const PrefixSize = -1

// VersionOf computes the Version of an object: the first 16 bytes of a SHA-256
// over the origin's identity and the length-prefixed key, ETag and size.
func VersionOf(identity, key, etag string, size int64) [16]byte {
	buf := make([]byte, 0, 4*8+len(identity)+len(key)+len(etag))
	for _, s := range []string{identity, key, etag} {
		buf = binary.LittleEndian.AppendUint64(buf, uint64(len(s)))
		buf = append(buf, s...)
	}
	buf = binary.LittleEndian.AppendUint64(buf, uint64(size))
	sum := sha256.Sum256(buf)
	return [16]byte(sum[:16])
}

// IsPrefix reports whether o stands for a common prefix in a listing.
func (o *Object) IsPrefix() bool { return o.Size == PrefixSize }

// Cacheable reports whether the object's version is strong enough to keep its
// bytes: it has an ETag, and that is not a weak one.
func (o *Object) Cacheable() bool {
	return o.ETag != "" && !strings.HasPrefix(o.ETag, "W/")
}

// Archived reports whether the storage class is one whose objects are read only once they
// are restored. It is no more than a guess: a restored copy has this class, too, and some
// objects are archived under another one. A read tells.
func (o *Object) Archived() bool { return o.Class == "GLACIER" || o.Class == "DEEP_ARCHIVE" }

// emptyMD5 is the ETag of an empty object, where ETags are MD5s.
const emptyMD5 = "d41d8cd98f00b204e9800998ecf8427e"

// Vague reports whether a listing that says this of an object is not to be believed by itself: that it
// is empty, under the ETag of what is not. Some servers list no sizes, or zeros. An object may be
// empty all the same, as one that is encrypted by KMS.
func (o *Object) Vague() bool { return o.Size == 0 && o.ETag != emptyMD5 }

// Blocks is the number of blocks of the object; an empty object has none.
func (o *Object) Blocks() int64 { return (o.Size + BlockSize - 1) / BlockSize }

// Block returns the object's block at index, 0 <= index < Blocks().
func (o *Object) Block(index int64) Block { return Block{Object: o, Index: index} }

// Block is a piece of an Object of at most BlockSize bytes.
type Block struct {
	Object *Object
	Index  int64
}

// ID returns what names the block's bytes everywhere, for ever.
func (b Block) ID() ID { return ID{Version: b.Object.Version, Index: b.Index} }

// Offset is the block's first byte within its object.
func (b Block) Offset() int64 { return b.Index * BlockSize }

// Len is the block's length in bytes: BlockSize but for the object's last block.
func (b Block) Len() int {
	return int(min(BlockSize, b.Object.Size-b.Offset()))
}

// ID names a block: (version, index).
type ID struct {
	Version [16]byte
	Index   int64
}

// Extent is the index of the extent that the block lies in.
func (id ID) Extent() int64 { return id.Index / ExtentBlocks }

// Hash is a well mixed 64-bit hash of the ID. Versions are SHA-256 output, so
// only the index needs mixing in (the constants are those of SplitMix64).
func (id ID) Hash() uint64 {
	h := binary.LittleEndian.Uint64(id.Version[:8]) + uint64(id.Index)*0x9e3779b97f4a7c15
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}

// String gives the ID as VERSION/INDEX, for logs.
func (id ID) String() string {
	var index [8]byte
	binary.BigEndian.PutUint64(index[:], uint64(id.Index))
	return hex.EncodeToString(id.Version[:]) + "/" + hex.EncodeToString(index[4:])
}

// Listing says what to list at an origin.
type Listing struct {
	// Prefix that all keys have; "" lists everything.
	Prefix string
	// After leaves out the names up to and including it (S3's StartAfter).
	After string
	// Limit ends the listing after so many results; 0: no limit.
	Limit int
	// Recursive lists every key below Prefix; otherwise keys are grouped at the
	// next "/" and the groups delivered as Objects with Size PrefixSize.
	Recursive bool
	// Hidden is told each name that is there and that a listing cannot deliver: a
	// file that is no regular one, a key that the answer garbles. nil: nobody asks.
	Hidden func(key string)
}

// Hide tells of a name that cannot be delivered.
func (l *Listing) Hide(key string) {
	if l.Hidden != nil {
		l.Hidden(key)
	}
}
