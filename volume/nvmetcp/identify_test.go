package nvmetcp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
)

func TestIdentifyNamespace(t *testing.T) {
	// A namespace's fields lie where the NVM Command Set puts them; a shape that we cannot use is refused.
	le := binary.LittleEndian
	space := func(blocks uint64, format byte, lbaf uint32) []byte {
		b := make([]byte, identifyLen)
		le.PutUint64(b, blocks)
		b[26], b[99] = format, 1
		le.PutUint32(b[92:], 7)
		le.PutUint32(b[128+4*(int(format&0xf)+int(format>>5&3)*16):], lbaf)
		return b
	}
	for _, c := range []struct {
		story string
		b     []byte
		want  string
	}{
		{"4096", space(16384, 0, 12<<16), "{16384 12 true 7 }"},
		{"512, format 19, metadata at the end", space(1, 1<<5|1<<4|3, 9<<16), "{1 9 true 7 }"},
		{"nothing", space(0, 0, 12<<16), ""},
		{"blocks of 256", space(1, 0, 8<<16), ""},
		{"blocks of 128 KiB", space(1, 0, 17<<16), ""},
		{"metadata of 8", space(1, 0, 12<<16|8), ""},
		{"more bytes than there are numbers", space(1<<51, 0, 12<<16), ""},
		{"all ones", space(1<<64-1, 0, 9<<16), ""},
	} {
		got, err := parseNamespace(c.b)
		if c.want == "" && !errors.Is(err, ErrNamespace) || c.want != "" && (err != nil || fmt.Sprint(got) != c.want) {
			t.Errorf("%s: %v %v, want %s", c.story, got, err, c.want)
		}
	}
}

func TestIdentifyController(t *testing.T) {
	// A controller's limits lie where the specifications put them; transfers are never above 4 MiB.
	le := binary.LittleEndian
	b := make([]byte, identifyLen)
	b[76], b[525] = 8, 1
	le.PutUint32(b[92:], 0x900)
	le.PutUint16(b[514:], 128)
	le.PutUint16(b[520:], 4)
	le.PutUint32(b[1792:], (64+16384)/16)
	for mdts, want := range map[byte]int{0: 4 << 20, 1: 8 << 10, 5: 128 << 10, 10: 4 << 20, 11: 4 << 20, 255: 4 << 20} {
		b[77] = mdts
		got, err := parseController(b, 12)
		if err != nil || got != (controllerInfo{want, 16384, 128, 0x900, true, true, true}) {
			t.Errorf("MDTS %d: %+v %v", mdts, got, err)
		}
	}
	le.PutUint16(b[1800:], 1)
	if _, err := parseController(b, 12); !errors.Is(err, ErrPath) {
		t.Errorf("ICDOFF 1: %v", err)
	}
	le.PutUint32(b[1792:], 3)
	if _, err := parseController(b, 12); !errors.Is(err, ErrPath) {
		t.Errorf("IOCCSZ 3: %v", err)
	}
	c := capabilities(127 | 15<<24 | 2<<48)
	if c.maxEntries() != 128 || c.timeout() != 15 || c.minPage() != 14 {
		t.Errorf("%d %d %d", c.maxEntries(), c.timeout(), c.minPage())
	}
}

func TestAccess(t *testing.T) {
	// The state of a group is found behind others, with their namespaces or without; a log that ends says nothing.
	b := raw(t, "00*8 0300 00*6 01000000 00*12 02 00*15 02000000 02000000 00*8 03 00*15 01000000 05000000 09000000 00*12 0f 00*15 00*64")
	for group, want := range map[uint32]access{1: nonOptimized, 2: inaccessible, 9: transition, 4: optimized} {
		if got := parseAccess(b, group); got != want {
			t.Errorf("group %d: %v, want %v", group, got, want)
		}
	}
	if got := parseAccess(raw(t, "00*8 ffff 00*6 01000000 ffffffff 00*24"), 2); got != optimized {
		t.Errorf("a group of 2^32-1 namespaces: %v", got)
	}
}

func TestDescriptors(t *testing.T) {
	// The identity has what is not zero, whatever its order, and ends with the list.
	one := parseDescriptors(raw(t, "01 08 0000 0102030405060708 03 10 0000 11*16 02 10 0000 00*16 00 00 00*40"))
	two := parseDescriptors(raw(t, "03 10 0000 11*16 04 01 0000 00 01 08 0000 0102030405060708 00*4"))
	if want := "eui.0102030405060708 uuid.11111111111111111111111111111111"; one != want || two != want {
		t.Errorf("%q %q, want %q", one, two, want)
	}
	if got := parseDescriptors(raw(t, "03 ff 0000 11*16")); got != "" {
		t.Errorf("a cut list: %q", got)
	}
	if got := parseActive(raw(t, "01000000 05000000 00000000 07000000")); fmt.Sprint(got) != "[1 5]" {
		t.Errorf("%v", got)
	}
}
