// Package hearth is the vocabulary of a peer-to-peer cache for object storage.
//
// An Object is one immutable version of one object in a bucket. It is cut into Blocks of 1 MiB; a
// small object is one short block. Bytes travel as Views, counted against one Pool. A Store holds
// blocks: in memory, on a disk or on a volume. A Source yields blocks from wherever they are: a
// tier over a Store, a peer, the bucket. So the whole read side is one expression in package node.
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
	// BlockSize is the size in bytes of every block but the last of an object. It is large enough
	// that a block's fixed costs vanish. It is small enough that a random read fetches few bytes
	// that nobody asked for.
	BlockSize = 1 << 20
	// ExtentBlocks is the number of consecutive blocks that are placed on one
	// node and fetched from the bucket in one ranged request.
	ExtentBlocks = 16
	// PieceSize is the unit of checksums in bytes, so that a small range is
	// verified without reading its whole block.
	PieceSize = 64 << 10
)

var (
	// ErrMiss is returned by a Store for a block that it does not hold. It is a statement about
	// this store only, never about the object.
	ErrMiss = errors.New("not held here")
	// ErrStale says that a version is gone: the object was changed or deleted.
	ErrStale = errors.New("object changed or deleted at the origin")
	// ErrRefused says that a peer does not take a request now, or that this side has no room for
	// one. The reader goes elsewhere. The side that answers peers returns it for load shedding.
	ErrRefused = errors.New("refused: too much to do")
	// ErrArchived says that an object lies in an archive of its origin. It cannot be read before it
	// is restored there.
	ErrArchived = errors.New("object is archived at the origin")
)

// Object is one immutable version of one object.
type Object struct {
	// Link names the link (origin and prefix) that the object was found through.
	Link string
	// Key is the whole key at the origin, byte for byte.
	Key string
	// ETag as the origin gave it, without quotes. An object with an empty or a weak ETag ("W/" in
	// front) is served uncached.
	ETag string
	// Size in bytes. PrefixSize marks a common prefix in a listing.
	Size int64
	// ModTime as the origin reports it.
	ModTime time.Time
	// Exact says that ModTime is in whole seconds, and that the origin would have told a fraction
	// if there were one. HEADs tell no fractions; listings of MinIO, Ceph and others do.
	Exact bool
	// Class is the storage class as the origin reports it. It is not part of the version. "" means
	// STANDARD, or that the origin says nothing.
	Class string
	// Version is VersionOf the fields above. It is computed, never taken from outside.
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

// Cacheable reports whether the object's version is strong enough to cache its bytes: it has an
// ETag that is not weak.
func (o *Object) Cacheable() bool {
	return o.ETag != "" && !strings.HasPrefix(o.ETag, "W/")
}

// Archived reports whether objects of this storage class can be read only after they are restored.
// It is only a guess: a restored copy has this class, too, and some objects are archived under
// another one. Only a read tells for certain.
func (o *Object) Archived() bool { return o.Class == "GLACIER" || o.Class == "DEEP_ARCHIVE" }

// emptyMD5 is the ETag of an empty object, where ETags are MD5s.
const emptyMD5 = "d41d8cd98f00b204e9800998ecf8427e"

// Vague reports whether a listing's entry for this object needs a second source: it says that the
// object is empty, under an ETag that is not the one of an empty object. Some servers list no
// sizes, or zeros. The object may still be empty, for example one that is encrypted by KMS.
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

// ID returns the name of the block's bytes. It is the same everywhere and for ever.
func (b Block) ID() ID { return ID{Version: b.Object.Version, Index: b.Index} }

// Offset is the block's first byte within its object.
func (b Block) Offset() int64 { return b.Index * BlockSize }

// Len is the block's length in bytes: BlockSize, except for the object's last block.
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
	// Limit ends the listing after this many results. 0 means no limit.
	Limit int
	// Recursive lists every key below Prefix. Otherwise keys are grouped at the next "/", and each
	// group is delivered as an Object with Size PrefixSize.
	Recursive bool
	// Hidden is called for each name that exists and that a listing cannot deliver: a file that is
	// not a regular one, a key that the answer garbles. nil means that nobody wants to know.
	Hidden func(key string)
}

// Hide reports a name that cannot be delivered.
func (l *Listing) Hide(key string) {
	if l.Hidden != nil {
		l.Hidden(key)
	}
}
