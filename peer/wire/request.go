package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/hearthfs/hearth"
)

// The meta of Fill and Peek: milliseconds until the deadline 4 (0: none), items 4. Then
// each item: version 16, index 8, offset 4, length 4, size 8, mod time 8 and nanoseconds
// 4, the lengths of link, key and ETag 2 each, and these. The meta of a Call:
// milliseconds 4, and the piece sums of its body.
const (
	requestFixed = 8
	itemFixed    = 58
	callFixed    = 4
	// The range of a block lies between these offsets of an item.
	itemRange  = 16
	itemObject = 32

	// These bound the bytes of names. S3 allows 1,024 for a key; a path has 4,096.
	maxLink = 255
	maxKey  = 4096
	maxETag = 1024
)

// milliseconds is a duration as it travels, rounded up. 0 means none.
func milliseconds(d time.Duration) uint32 {
	return uint32(min(max(0, (d+time.Millisecond-1)/time.Millisecond), 1<<32-1))
}

// check refuses a want that no peer would take.
func (w Want) check() error {
	o := w.Block.Object
	switch {
	case o == nil || o.Size <= 0 || w.Block.Index < 0 || w.Block.Index >= o.Blocks():
		return fmt.Errorf("%w: no such block", errRange)
	case w.Off < 0 || w.N < 0 || w.Off > w.Block.Len() || w.N > w.Block.Len()-w.Off:
		return fmt.Errorf("%w: bytes %d and %d more of a block of %d", errRange, w.Off, w.N, w.Block.Len())
	case w.N == 0 && w.Off != 0:
		return fmt.Errorf("%w: nothing asked for", errRange)
	case len(o.Link) > maxLink || len(o.Key) > maxKey || len(o.ETag) > maxETag:
		return fmt.Errorf("%w: link, key and ETag of %d, %d and %d bytes, at most %d, %d and %d", errRange, len(o.Link), len(o.Key), len(o.ETag), maxLink, maxKey, maxETag)
	}
	return nil
}

func (w Want) size() int {
	o := w.Block.Object
	return itemFixed + len(o.Link) + len(o.Key) + len(o.ETag)
}

func (w Want) append(dst []byte) []byte {
	o := w.Block.Object
	dst = append(dst, o.Version[:]...)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(w.Block.Index))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(w.Off))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(w.N))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(o.Size))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(o.ModTime.Unix()))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(o.ModTime.Nanosecond()))
	for _, s := range []string{o.Link, o.Key, o.ETag} {
		dst = binary.LittleEndian.AppendUint16(dst, uint16(len(s)))
	}
	dst = append(dst, o.Link...)
	dst = append(dst, o.Key...)
	return append(dst, o.ETag...)
}

func appendRequest(dst []byte, left time.Duration, wants []Want) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, milliseconds(left))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(wants)))
	for _, w := range wants {
		dst = w.append(dst)
	}
	return dst
}

// parseCount returns the time until the deadline and the number of items of a request.
func parseCount(b []byte) (left time.Duration, items int, err error) {
	n := binary.LittleEndian.Uint32(b[4:])
	if n == 0 || n > MaxItems {
		return 0, 0, fmt.Errorf("%w: a request of %d items, at most %d", ErrProtocol, n, MaxItems)
	}
	return time.Duration(binary.LittleEndian.Uint32(b)) * time.Millisecond, int(n), nil
}

// seen is the object of the last item, and the item's bytes. Successive reads often are
// of one object, whose Object is then made once.
type seen struct {
	object *hearth.Object
	bytes  []byte
}

// seenMost is the longest item that is kept for that: one with a path as people name
// them.
const seenMost = 512

// is reports whether an item of n bytes names the same object.
func (s *seen) is(b []byte, n int) bool {
	return s.object != nil && n == len(s.bytes) && bytes.Equal(b[:itemRange], s.bytes[:itemRange]) && bytes.Equal(b[itemObject:n], s.bytes[itemObject:])
}

// parseWants fills wants from the items that follow the count.
func parseWants(b []byte, wants []Want, last *seen) error {
	for i := range wants {
		n, err := wants[i].parse(b, last)
		if err == nil {
			err = wants[i].check()
		}
		if err != nil {
			return fmt.Errorf("%w: item %d of %d: %w", ErrProtocol, i, len(wants), err)
		}
		b = b[n:]
	}
	if len(b) > 0 {
		return fmt.Errorf("%w: %d bytes behind the last item", ErrProtocol, len(b))
	}
	return nil
}

// parse reads an item and returns its length. The object is a new one, or that of last.
func (w *Want) parse(b []byte, last *seen) (n int, err error) {
	if len(b) < itemFixed {
		return 0, errShort
	}
	link, key, etag := int(binary.LittleEndian.Uint16(b[52:])), int(binary.LittleEndian.Uint16(b[54:])), int(binary.LittleEndian.Uint16(b[56:]))
	n = itemFixed + link + key + etag
	nanoseconds := binary.LittleEndian.Uint32(b[48:])
	if len(b) < n {
		return 0, errShort
	}
	if nanoseconds >= 1e9 {
		return 0, fmt.Errorf("%w: %d nanoseconds", errRange, nanoseconds)
	}
	if !last.is(b, n) {
		names := string(b[itemFixed:n])
		last.object = &hearth.Object{
			Version: [16]byte(b), Size: int64(binary.LittleEndian.Uint64(b[32:])),
			ModTime: time.Unix(int64(binary.LittleEndian.Uint64(b[40:])), int64(nanoseconds)).UTC(),
			Link:    names[:link], Key: names[link : link+key], ETag: names[link+key:],
		}
		last.bytes = append(last.bytes[:0], b[:min(n, seenMost)]...) // too little of a longer one to match
	}
	*w = Want{
		Block: hearth.Block{Object: last.object, Index: int64(binary.LittleEndian.Uint64(b[16:]))},
		Off:   int(binary.LittleEndian.Uint32(b[24:])), N: int(binary.LittleEndian.Uint32(b[28:])),
	}
	return n, nil
}
