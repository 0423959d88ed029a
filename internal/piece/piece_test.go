package piece

import (
	"bytes"
	"testing"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

func TestSumsAreNoted(t *testing.T) {
	// Any number of bytes match the checksums that they are sent with, and no others. The checksums
	// are noted unless the bytes are few, and noted ones are not computed again.
	if Size != hearth.PieceSize {
		t.Fatalf("pieces have %d bytes and %d", Size, hearth.PieceSize)
	}
	for _, n := range []int{1, 4096, notedFrom - 1, notedFrom, Size, Size + 1, 100 << 10, hearth.BlockSize} {
		v, same := hearth.NewView(make([]byte, n)), hearth.NewView(make([]byte, n))
		hearthtest.Fill(v.Bytes(), "data", 0, 1)
		copy(same.Bytes(), v.Bytes())
		sums := Append([]byte("head"), v.Bytes(), v.Sums())[4:]
		if len(sums) != 8*Count(n) || !Match(same.Bytes(), sums, same.Sums()) {
			t.Fatalf("%d bytes do not have their sums %x", n, sums)
		}
		for _, x := range []*hearth.View{v, same} {
			if hearthtest.CheckSums(t, x); (Known(x.Sums()) != nil) != (n >= notedFrom) {
				t.Errorf("noted of %d bytes: %x", n, Known(x.Sums()))
			}
		}
		other, noted := bytes.Clone(v.Bytes()), &Noted{}
		if other[n-1] ^= 1; Match(other, sums, noted) || Known(noted) != nil {
			t.Errorf("%d other bytes match, and have %x", n, Known(noted))
		}
		wrong := make([]uint64, Count(n))
		v.Sums().Store(&wrong)
		if Match(same.Bytes(), Append(nil, v.Bytes(), v.Sums()), same.Sums()) {
			t.Errorf("the sums of %d bytes were made again", n)
		}
	}
}
