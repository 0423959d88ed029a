package prefetch

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"
)

func TestUnread(t *testing.T) {
	// What is noted is found once, with its area and size. A sweep returns the bytes of
	// one area alone.
	rapid.Check(t, func(t *rapid.T) {
		type noted struct {
			area int
			size int64
		}
		u, model := newUnread(leastSets), map[uint64]noted{}
		hash := rapid.Custom(func(t *rapid.T) uint64 { return rapid.Uint64Range(1, 300).Draw(t, "h") * 0x9e3779b97f4a7c15 })
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				h, x := hash.Draw(t, "hash"), noted{rapid.IntRange(0, mostAreas-1).Draw(t, "area"), rapid.Int64Range(1, 1<<20).Draw(t, "size")}
				if _, there := model[h]; u.put(h, x.area, x.size) == there {
					t.Fatalf("put of one that is there: %v", there)
				} else if !there {
					model[h] = x
				}
			},
			"take": func(t *rapid.T) {
				h := hash.Draw(t, "hash")
				if area, size := u.take(h); (noted{area, size}) != model[h] {
					t.Fatalf("took %d, %d, want %v", area, size, model[h])
				}
				delete(model, h)
			},
			"sweep": func(t *rapid.T) {
				area, want := rapid.IntRange(0, mostAreas-1).Draw(t, "area"), int64(0)
				for h, x := range model {
					if x.area == area {
						want += x.size
						delete(model, h)
					}
				}
				if got := u.sweep(area); got != want {
					t.Fatalf("swept %d bytes, want %d", got, want)
				}
			},
			"": func(t *rapid.T) {
				if u.words.Load() != int64(len(model)) {
					t.Fatalf("%d words for %d", u.words.Load(), len(model))
				}
			},
		})
	})
}

func TestUnreadIsTakenOnce(t *testing.T) {
	// Many goroutines take the same objects while these are noted. Each object goes to
	// one of them.
	u := newUnread(setsFor(256 << 20))
	var put, got atomic.Int64
	var all sync.WaitGroup
	for k := range 4 {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(k), 9))
			for range 20_000 {
				h := uint64(rng.IntN(5000)+1) * 0x9e3779b97f4a7c15
				if k == 0 {
					if u.put(h, 3, 10) {
						put.Add(10)
					}
				} else {
					_, size := u.take(h)
					got.Add(size)
				}
			}
		})
	}
	all.Wait()
	if left := u.sweep(3); put.Load() != got.Load()+left || put.Load() == 0 || u.words.Load() != 0 {
		t.Errorf("%d noted, %d taken, %d left", put.Load(), got.Load(), left)
	}
}

func TestUnreadDoesNotRunOver(t *testing.T) {
	// Nearly all objects find a place until the table is full. Its size follows the
	// memory.
	u := newUnread(setsFor(64 << 20))
	rng, refused := rand.New(rand.NewPCG(1, 9)), 0
	for !u.full() {
		if !u.put(rng.Uint64(), 1, 1) {
			refused++
		}
	}
	if noted := u.words.Load(); int64(refused) > noted/1000 {
		t.Errorf("%d refused beside %d noted", refused, noted)
	}
	if a, b := newUnread(setsFor(1<<40)).bytes(), newUnread(setsFor(1)).bytes(); a != 32<<20 || b != leastSets*ways*8 {
		t.Errorf("%d and %d bytes", a, b)
	}
}
