package pins

import (
	"fmt"
	"testing"

	"github.com/hearthfs/hearth"
)

func TestPins(t *testing.T) {
	// What a job has pinned is pinned until the job is over, and few other objects are.
	// Memory is counted and given back. Without memory nothing more is pinned.
	version := func(i int) [16]byte { return hearth.VersionOf("id", fmt.Sprint(i), "e", 1) }
	var used, budget int64 = 0, 1 << 20
	p := &Pins{Reserve: func(n int64) bool {
		if used+n > budget {
			return false
		}
		used += n
		return true
	}, Unreserve: func(n int64) { used -= n }}
	a, b := p.Open(), p.Open()
	const many = 50_000
	for i := range many {
		if !a.Add(version(i)) {
			t.Fatalf("no memory for pin %d, with %d of %d used", i, used, budget)
		}
	}
	b.Add(version(-1))
	strangers := 0
	for i := range many {
		if !p.Has(version(i)) {
			t.Fatalf("%d is not pinned", i)
		}
		if p.Has(version(many + i)) {
			strangers++
		}
	}
	if strangers > many/25 || used > many*pinBits/8*4 {
		t.Errorf("%d strangers of %d are pinned, %d bytes used", strangers, many, used)
	}
	budget = used
	refused := false
	for i := many; i < 4*many && !refused; i++ {
		refused = !b.Add(version(i)) // in its second Bloom filter
	}
	if !refused {
		t.Error("memory beyond the budget")
	}
	a.Close()
	if p.Has(version(1)) || !p.Has(version(-1)) {
		t.Error("a job's end unpins what it had, and nothing else")
	}
	b.Close()
	if b.Close(); used != 0 || a.Add(version(1)) {
		t.Errorf("%d bytes are not given back", used)
	}
	if none := (*Pins)(nil).Open(); !none.Add(version(1)) || none.Has(version(1)) {
		t.Error("pins that nobody asks for")
	}
}
