package wire

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"github.com/zeebo/xxh3"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/piece"
)

// A frame is a header, meta, and a payload.
//
//	header: meta bytes 4, payload bytes 4, request 8, kind 1, code 1, item 2, zero 4,
//	        checksum of these 8, seeded by the connection and the direction
//	meta:   depends on the kind; ends with a seal of 8, its checksum. The seal is seeded by the
//	        header's checksum and, in an answer, by the seal of its request
const (
	headerSize = 32
	sealSize   = 8
	// maxMeta makes a frame without its payload fit into the buffer that reads it.
	maxMeta    = bufferSize - headerSize
	bufferSize = 16 << 10
	// maxSums is the size in bytes of a block's piece sums.
	maxSums = hearth.BlockSize / hearth.PieceSize * 8
)

type kind uint8

const (
	kindFill   = kind(Fill)
	kindPeek   = kind(Peek)
	kindCall   = kind(3) // its number is in item
	kindCancel = kind(4)

	kindData      = kind(16) // meta: piece sums
	kindMiss      = kind(17)
	kindRefused   = kind(18)
	kindStale     = kind(19)
	kindError     = kind(20) // meta: text; its class is in code
	kindCancelled = kind(21)
	kindFilling   = kind(22) // no answer; may come often
	kinds         = kind(23)
)

// isRequest also tells the directions apart: an asker sends nothing else.
func (k kind) isRequest() bool { return k >= kindFill && k <= kindCancel }

func (k kind) isAnswer() bool { return k >= kindData && k < kinds }

type header struct {
	meta, payload int
	id            uint64 // counted from 1
	kind          kind
	code          uint8
	item          uint16
}

// put writes the header and returns its checksum.
func (h *header) put(dst []byte, seed uint64) uint64 {
	binary.LittleEndian.PutUint32(dst, uint32(h.meta))
	binary.LittleEndian.PutUint32(dst[4:], uint32(h.payload))
	binary.LittleEndian.PutUint64(dst[8:], h.id)
	dst[16], dst[17] = byte(h.kind), h.code
	binary.LittleEndian.PutUint16(dst[18:], h.item)
	clear(dst[20:24])
	sum := xxh3.HashSeed(dst[:24], seed)
	binary.LittleEndian.PutUint64(dst[24:], sum)
	return sum
}

// parseHeader returns a well-formed header and its checksum.
func parseHeader(b []byte, seed uint64) (h header, sum uint64, err error) {
	sum = xxh3.HashSeed(b[:24], seed)
	if sum != binary.LittleEndian.Uint64(b[24:]) {
		return h, 0, fmt.Errorf("%w: a header's checksum is wrong", ErrProtocol)
	}
	meta, payload := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])
	h = header{id: binary.LittleEndian.Uint64(b[8:]), kind: kind(b[16]), code: b[17], item: binary.LittleEndian.Uint16(b[18:])}
	if meta > maxMeta || payload > hearth.BlockSize {
		return h, 0, fmt.Errorf("%w: frame of kind %d with %d and %d bytes, at most %d and %d", ErrProtocol, h.kind, meta, payload, maxMeta, hearth.BlockSize)
	}
	h.meta, h.payload = int(meta), int(payload)
	if !h.kind.isRequest() && !h.kind.isAnswer() {
		return h, 0, fmt.Errorf("%w: unknown kind of frame %d", ErrProtocol, h.kind)
	}
	if !h.shaped() || h.id == 0 || binary.LittleEndian.Uint32(b[20:]) != 0 {
		return h, 0, fmt.Errorf("%w: malformed frame of kind %d: request %d, item %d, code %d, %d and %d bytes", ErrProtocol, h.kind, h.id, h.item, h.code, meta, payload)
	}
	return h, sum, nil
}

// shaped reports whether the sizes and fields fit the kind.
func (h *header) shaped() bool {
	switch h.kind {
	case kindFill, kindPeek:
		return h.meta >= requestFixed+itemFixed+sealSize && h.payload == 0 && h.item == 0 && h.code == 0
	case kindCall:
		return h.meta == callFixed+sumsSize(h.payload)+sealSize && h.code == 0
	case kindData:
		return h.meta == sumsSize(h.payload)+sealSize && h.code == 0
	case kindError:
		return h.meta >= sealSize && h.meta <= MaxText+sealSize && h.payload == 0 && h.code < uint8(classes)
	}
	return h.meta == 0 && h.payload == 0 && h.code == 0
}

// seal completes a frame. buf has room for the header, and the meta so far. own is the
// seal, which seeds the seals of the answers.
func seal(buf []byte, h header, seed, question uint64) (frame []byte, own uint64) {
	if h.kind == kindData || h.kind == kindError || h.kind.isRequest() && h.kind != kindCancel {
		h.meta = len(buf) - headerSize + sealSize
	}
	sum := h.put(buf, seed)
	if h.meta == 0 {
		return buf, 0
	}
	own = xxh3.HashSeed(buf[headerSize:], sum+question)
	return binary.LittleEndian.AppendUint64(buf, own), own
}

// unseal checks the seal of meta. It returns the meta without the seal, and the seal.
func unseal(meta []byte, sum, question uint64) (inner []byte, own uint64, err error) {
	n := len(meta) - sealSize
	own = binary.LittleEndian.Uint64(meta[n:])
	if xxh3.HashSeed(meta[:n], sum+question) != own {
		return nil, 0, ErrChecksum
	}
	return meta[:n], own, nil
}

func sumsSize(n int) int { return piece.Count(n) * 8 }

// These are the versions of the protocol that this package speaks.
const (
	oldestVersion = 1
	newestVersion = 1
)

// hello is what each side sends first: magic 8, oldest 2, newest 2, refused 1, zero 3,
// nonce 8, places 4, zero 4, checksum 8. Its layout is the same in all versions.
type hello struct {
	oldest, newest uint16
	refused        bool // too many connections already
	nonce          uint64
	places         uint32 // items that may be unanswered at a time
}

const (
	helloSize  = 40
	helloMagic = "hearth\x00w"
)

func newHello() hello {
	return hello{oldest: oldestVersion, newest: newestVersion, nonce: rand.Uint64()}
}

func (h *hello) append(dst []byte) []byte {
	dst = append(dst, helloMagic...)
	dst = binary.LittleEndian.AppendUint16(dst, h.oldest)
	dst = binary.LittleEndian.AppendUint16(dst, h.newest)
	refused := byte(0)
	if h.refused {
		refused = 1
	}
	dst = append(dst, refused, 0, 0, 0)
	dst = binary.LittleEndian.AppendUint64(dst, h.nonce)
	dst = binary.LittleEndian.AppendUint32(dst, h.places)
	dst = append(dst, 0, 0, 0, 0)
	return binary.LittleEndian.AppendUint64(dst, xxh3.Hash(dst[len(dst)-helloSize+8:]))
}

func parseHello(b []byte) (h hello, err error) {
	switch {
	case string(b[:8]) != helloMagic:
		return h, fmt.Errorf("%w: it does not speak Hearth's block protocol; is the port that of its data?", ErrProtocol)
	case binary.LittleEndian.Uint64(b[32:]) != xxh3.Hash(b[:32]):
		return h, fmt.Errorf("%w: its hello has a wrong checksum", ErrProtocol)
	}
	return hello{
		oldest: binary.LittleEndian.Uint16(b[8:]), newest: binary.LittleEndian.Uint16(b[10:]), refused: b[12] != 0,
		nonce: binary.LittleEndian.Uint64(b[16:]), places: binary.LittleEndian.Uint32(b[24:]),
	}, nil
}

// agree fails if no version is common to both.
func (h *hello) agree(other hello) error {
	if min(h.newest, other.newest) < max(h.oldest, other.oldest) {
		return fmt.Errorf("%w: it speaks versions %d to %d, this node %d to %d", ErrIncompatible, other.oldest, other.newest, h.oldest, h.newest)
	}
	return nil
}

// seeds are the seeds of the asker's frames and of the answerer's.
func seeds(asker, answerer hello) (ask, answer uint64) {
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:], asker.nonce)
	binary.LittleEndian.PutUint64(b[8:], answerer.nonce)
	return xxh3.HashSeed(b[:], 1), xxh3.HashSeed(b[:], 2)
}
