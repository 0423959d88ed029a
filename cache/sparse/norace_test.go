//go:build !race

package sparse

import (
	"math/rand/v2"
	"os"
	"testing"

	"pgregory.net/rapid"

	"github.com/hearthfs/hearth"
)

// One goroutine works here after another: the race detector finds nothing in it, and makes it take
// several times as long.

func TestFilesAgainstAMap(t *testing.T) {
	// Random puts, reads, evictions, hand-outs and restarts on objects of awkward
	// sizes: at each step the files hold exactly what a map says.
	sizes := []int64{100, mib, 2*mib + 4096, 18*mib + 12345}
	var objects []*hearth.Object
	var data [][]byte
	for i, size := range sizes {
		o, d := sample(uint64(i), size)
		objects, data = append(objects, o), append(data, d)
	}
	rapid.Check(t, func(rt *rapid.T) {
		m := &model{fixture: start(t, Options{MaxOpen: 2, Shared: rapid.Bool().Draw(rt, "shared")}), objects: objects, data: data}
		defer m.stop()
		for range sizes {
			m.held = append(m.held, make(map[int64]bool))
			m.fresh = append(m.fresh, make(map[int64]bool))
		}
		m.opened, m.doomed = make([]func(), len(sizes)), make([]bool, len(sizes))
		rt.Repeat(map[string]func(*rapid.T){
			"put": m.put, "putMore": m.put, "putAgain": m.put, "get": m.get, "evictExtent": m.evictExtent,
			"evictObject": m.evictObject, "localFile": m.localFile, "release": m.release, "restart": m.restart, "": m.check,
		})
		for _, release := range m.opened {
			if release != nil {
				release()
			}
		}
	})
}

func TestBitFlipsAreMisses(t *testing.T) {
	// One bit of data or sidecar is flipped, anywhere: every Get gives the right
	// bytes or a miss, no file with the flip is handed out, and it heals.
	x := start(t, Options{})
	o, data := sample(1, 2*mib+70_001)
	rng := rand.New(rand.NewPCG(5, 6))
	flips := int64(0)
	for round := range 60 {
		x.putAll(o, data)
		x.stop()
		name := x.dataFile(o)
		if round%2 == 1 {
			name = x.sumsFile(o)
		}
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		at := rng.IntN(len(content))
		content[at] ^= 1 << rng.IntN(8)
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
		x.reopen()
		if round%4 < 2 { // the kernel asks first, or a reader does
			if release := x.local(o, data); release != nil {
				t.Fatal("handed out before it was verified")
			}
			if x.Stats().Objects > 0 && x.Stats().Damaged == 0 && <-x.verified {
				t.Fatalf("round %d: the flip at %d was verified", round, at)
			}
		}
		held := int64(0)
		for i := range o.Blocks() {
			if x.has(o, data, i) {
				held++
			}
		}
		if held == o.Blocks() {
			t.Fatalf("round %d: the flip of byte %d of %s went unnoticed", round, at, name)
		}
		flips += x.Stats().Damaged
		x.checkUsed()
	}
	if flips < 50 { // a flip of the state byte to zero is no damage
		t.Errorf("%d flips were counted", flips)
	}
}
