package owners

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/hearthfs/hearth"
)

// Calls between nodes that warm up, prefetch and check have the numbers 16 to 31. All
// bodies but those of callHeld and callSlowed are JSON.
const (
	// callHeld asks which blocks the disk tier holds. The body has 24 bytes for each:
	// version and index (little-endian). The answer has a bit for each, the lowest bit of
	// a byte first.
	callHeld uint16 = 16 + iota
	// callOffered brings small objects, where the disk tier evicts nothing of worth for
	// them.
	callOffered
	// callFlush flushes what the disk tier was given to its devices.
	callFlush
	// callRoom asks what the disk tier may hold.
	callRoom
	// callCheck reads blocks of one extent from the device and compares checksums.
	callCheck
	// callSlowed asks how many answers of origins have asked to slow down: 8 bytes.
	callSlowed
	// callKeep has blocks of one extent loaded and kept. The answer is a byte: how many of the first are kept. Only
	// volumes know it; disks are loaded by Fills.
	callKeep
	// callSeeded has blocks of one extent, which were just written, fetched from the node that wrote them. The answer is a byte
	// for each.
	callSeeded

	// ofVolumes is added to the number of a call that is about volumes, in the place of the disk tier.
	ofVolumes = 8
)

const (
	idBytes = 24
	// mostIDs is how many blocks one Call asks for: 96 KiB.
	mostIDs = 4096
	// mostOffered objects are in one Call, as many as Fills in a frame.
	mostOffered = 64
	// mostText bounds the text of a cause in a message, in bytes.
	mostText = 1 << 10
)

var errBody = errors.New("the body does not fit this call: run the same release on all nodes")

// object is a hearth.Object in a message. Names are bytes here, since JSON strings must
// be text.
type object struct {
	Version []byte `json:"v"`
	Link    []byte `json:"l"`
	Key     []byte `json:"k"`
	ETag    []byte `json:"e"`
	Size    int64  `json:"s"`
	Sec     int64  `json:"t"`
	Nano    int64  `json:"n"`
}

func objectOf(o *hearth.Object) object {
	return object{Version: o.Version[:], Link: []byte(o.Link), Key: []byte(o.Key), ETag: []byte(o.ETag), Size: o.Size,
		Sec: o.ModTime.Unix(), Nano: int64(o.ModTime.Nanosecond())}
}

// These bound the bytes of names, as in package wire.
const mostLink, mostKey, mostETag = 255, 4096, 1024

func (x *object) object() (*hearth.Object, error) {
	if len(x.Version) != 16 || x.Size <= 0 || x.Nano < 0 || x.Nano >= int64(time.Second) ||
		len(x.Link) > mostLink || len(x.Key) > mostKey || len(x.ETag) > mostETag {
		return nil, errBody
	}
	return &hearth.Object{Version: [16]byte(x.Version), Link: string(x.Link), Key: string(x.Key), ETag: string(x.ETag), Size: x.Size,
		ModTime: time.Unix(x.Sec, x.Nano).UTC()}, nil
}

// run is the body of callCheck and callKeep, and a part of callSeeded's: N blocks of an extent.
type run struct {
	Object object `json:"object"`
	First  int64  `json:"first"`
	N      int64  `json:"n"`
}

func parseRun(body []byte) (first hearth.Block, n int, err error) {
	var r run
	if json.Unmarshal(body, &r) != nil {
		return first, 0, errBody
	}
	return r.blocks()
}

func (r *run) blocks() (first hearth.Block, n int, err error) {
	o, err := r.Object.object()
	if err != nil {
		return first, 0, err
	}
	if r.First < 0 || r.N <= 0 || r.N > hearth.ExtentBlocks || r.First >= o.Blocks() || r.N > o.Blocks()-r.First ||
		r.First/hearth.ExtentBlocks != (r.First+r.N-1)/hearth.ExtentBlocks {
		return first, 0, errBody
	}
	return o.Block(r.First), int(r.N), nil
}

// offer is the body of callOffered: small objects. A block that the owner's readers used
// in the last SinceS seconds is worth more than they are.
type offer struct {
	Objects []object `json:"objects"`
	SinceS  int64    `json:"since_s"`
}

// longAgo is the highest SinceS. An offer that has no such time says longAgo.
const longAgo = 1 << 31

func parseOffer(body []byte) (all []*hearth.Object, since time.Duration, err error) {
	var x offer
	if json.Unmarshal(body, &x) != nil || len(x.Objects) == 0 || len(x.Objects) > mostOffered || x.SinceS < 0 || x.SinceS > longAgo {
		return nil, 0, errBody
	}
	for i := range x.Objects {
		o, err := x.Objects[i].object()
		if err != nil || o.Blocks() != 1 {
			return nil, 0, errBody
		}
		all = append(all, o)
	}
	return all, time.Duration(x.SinceS) * time.Second, nil
}

// These say what became of an object that was offered, or of a block.
const (
	wasDeclined = iota // nothing was read
	wasHeld
	wasBrought
	wasStale
	wasFailed
)

// room is the answer of callRoom, in bytes.
type room struct {
	// Room is what may be held of blocks: the budget, less what the file system lacks,
	// names, and what is pinned. Free is what is taken without an eviction.
	Room int64 `json:"room"`
	Free int64 `json:"free"`
}

func appendIDs(body []byte, blocks []hearth.Block) []byte {
	for _, b := range blocks {
		body = append(body, b.Object.Version[:]...)
		body = binary.LittleEndian.AppendUint64(body, uint64(b.Index))
	}
	return body
}

func parseIDs(body []byte) ([]hearth.ID, error) {
	if len(body) == 0 || len(body)%idBytes != 0 || len(body) > mostIDs*idBytes {
		return nil, errBody
	}
	all := make([]hearth.ID, len(body)/idBytes)
	for i := range all {
		at := body[i*idBytes:]
		all[i] = hearth.ID{Version: [16]byte(at), Index: int64(binary.LittleEndian.Uint64(at[16:]))}
		if all[i].Index < 0 {
			return nil, errBody
		}
	}
	return all, nil
}

// bits is the answer of callHeld.
type bits []byte

func newBits(n int) bits { return make(bits, (n+7)/8) }

func (b bits) set(i int)      { b[i/8] |= 1 << (i % 8) }
func (b bits) has(i int) bool { return b[i/8]&(1<<(i%8)) != 0 }

// view makes a document a body or an answer. Its few bytes are counted against no budget.
func view(document any) (*hearth.View, error) {
	text, err := json.Marshal(document)
	if err != nil {
		return nil, fmt.Errorf("write a call: %w", err)
	}
	return hearth.NewView(text), nil
}

func cut(text string) string { return text[:min(len(text), mostText)] }

func parseRoom(answer []byte) (x room, ok bool) {
	ok = json.Unmarshal(answer, &x) == nil && x.Room >= 0 && x.Free >= 0
	return x, ok
}
