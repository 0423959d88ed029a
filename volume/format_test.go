package volume

import (
	"bytes"
	"testing"

	"github.com/hearthfs/hearth/cache/record"
)

func TestTheFormatByteByByte(t *testing.T) {
	// Pages made by hand, as docs/volume-format.md has them, are read; any byte of them that differs makes
	// them unknown.
	g := geometry{format: 1, copy: 1, volume: [16]byte{0x11}, cluster: [16]byte{0x22}, size: 64 << 20, segment: 4 << 20, count: 15, span: 2,
		created: 0x65000000, label: "scratch"}
	super := make([]byte, pageSize)
	copy(super, "hearthvl\x01\x00\x00\x00\x01\x00\x00\x00\x11")
	super[32] = 0x22
	copy(super[48:], "\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x40\x00\x00\x00\x00\x00\x0f\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x65\x00\x00\x00\x00scratch")
	seal(super)
	if got, ok := parseGeometry(super); !ok || got != g {
		t.Errorf("%+v", got)
	}
	h := header{format: 1, segment: 3, volume: [16]byte{0x11}, generation: 7, salt: 0x0102030405060708, node: [16]byte{0x33}, began: 0x0a0b}
	head := make([]byte, pageSize)
	copy(head, "hearthvs\x01\x00\x00\x00\x03\x00\x00\x00\x11")
	copy(head[32:], "\x07\x00\x00\x00\x00\x00\x00\x00\x08\x07\x06\x05\x04\x03\x02\x01\x33")
	copy(head[64:], "\x0b\x0a")
	seal(head)
	if got, ok := parseHeader(head); !ok || got != h {
		t.Errorf("%+v", got)
	}
	again := make([]byte, pageSize)
	if g.put(again); !bytes.Equal(again, super) {
		t.Error("a superblock is written in another way")
	}
	if h.put(again); !bytes.Equal(again, head) {
		t.Error("a segment's header is written in another way")
	}
	for i := range pageSize {
		super[i] ^= 4
		head[i] ^= 4
		_, a := parseGeometry(super)
		_, b := parseHeader(head)
		if a || b {
			t.Fatalf("byte %d may differ", i)
		}
		super[i] ^= 4
		head[i] ^= 4
	}
	index := make([]byte, indexSize(2))
	x := record.Note{ID: blockID(5), Unit: pageSize / record.UnitSize, Length: 100}
	y := record.Note{ID: blockID(6), Unit: pageSize/record.UnitSize + 3, Length: 200}
	record.AppendNote(record.AppendNote(index[:0], x), y)
	putIndex(index, &h, 2, 4<<20)
	tr, ok := parseTrailer(index[len(index)-trailerSize:])
	if !ok || !tr.closes(&h, 4<<20) || tr.offset != 4<<20-pageSize || tr.count != 2 {
		t.Fatalf("%+v", tr)
	}
	var got []record.Note
	if !parseIndex(index, &tr, func(n record.Note) { got = append(got, n) }) || len(got) != 2 || got[0] != x || got[1] != y {
		t.Errorf("%+v", got)
	}
	index[30] ^= 1
	if parseIndex(index, &tr, func(record.Note) {}) {
		t.Error("a damaged index is believed")
	}
	for _, other := range []header{{segment: 4, generation: 7, salt: h.salt}, {segment: 3, generation: 8, salt: h.salt}, {segment: 3, generation: 7, salt: 1}} {
		if tr.closes(&other, 4<<20) {
			t.Errorf("it closes %+v", other)
		}
	}
}
