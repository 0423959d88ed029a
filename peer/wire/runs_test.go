package wire

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// asked is a run that the owner was asked for.
type asked struct {
	first int64
	n     int
	load  bool
}

// askedRuns are those of a test; they come from many goroutines.
type askedRuns struct {
	mu  sync.Mutex // guards all
	all []asked
}

func (a *askedRuns) add(x asked) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = append(a.all, x)
	slices.SortFunc(a.all, func(a, b asked) int { return int(a.first - b.first) })
}

// runner answers runs by the owner's fill, up to the first block that fails.
func (o *owner) runner(runs *askedRuns, failAt int64) Run {
	return func(ctx context.Context, first hearth.Block, n int, load bool, each func(hearth.Block, *hearth.View, error) bool) {
		runs.add(asked{first.Index, n, load})
		for i := range int64(n) {
			b := first.Object.Block(first.Index + i)
			if b.Index == failAt {
				if first.Object.Key == "panic" {
					panic("a handler's bug")
				}
				each(b, nil, hearth.ErrStale)
				return
			}
			size := b.Len()
			if load {
				size = 0
			}
			v, err := o.get(ctx, b, 0, size)
			if !each(b, v, err) || err != nil {
				return
			}
		}
	}
}

func TestBlocksThatFollowEachOtherAreOneRun(t *testing.T) {
	// What one request asks for in consecutive whole blocks of an extent, the handler
	// gets as a run. Loads make runs of their own. Ranges, gaps and other objects are
	// asked for one by one. All are answered, each once, whatever the run does.
	for name, c := range map[string]struct {
		key    string
		failAt int64
		queued int64
	}{
		"all": {"data", -1, 0}, "one gone": {"data", 5, 0}, "panic": {"panic", 5, 0}, "little room": {"data", -1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			var runs askedRuns
			o := hearthtest.NewObject(c.key, 40*hearth.BlockSize+5, 1)
			run := (&owner{pool: hearth.NewPool(64 << 20)}).runner(&runs, c.failAt)
			r := newRig(t, loopback, ServerOptions{QueuedBytes: c.queued, Handler: Handler{Run: run}}, PeerOptions{})
			var wants []Want
			for i := range int64(8) { // a run of 8
				wants = append(wants, Want{o.Block(i), 0, hearth.BlockSize})
			}
			wants = append(wants, Want{o.Block(8), 5, 10}, Want{o.Block(9), 0, 10}) // ranges
			for i := range int64(4) {                                               // loads, the last block among them
				wants = append(wants, Want{o.Block(37 + i), 0, 0})
			}
			wants = append(wants, Want{o.Block(20), 0, hearth.BlockSize}, Want{o.Block(22), 0, hearth.BlockSize})
			for i := range int64(4) { // two of an extent, two of the next
				wants = append(wants, Want{o.Block(30 + i), 0, hearth.BlockSize})
			}
			seen := make([]int, len(wants))
			r.peer.Many(t.Context(), Fill, wants, func(i int, v *hearth.View, err error) {
				seen[i]++
				w := wants[i]
				switch {
				case c.failAt >= 0 && i >= 5 && i < 8:
					if v != nil || err == nil || name == "one gone" && !errors.Is(err, hearth.ErrStale) {
						t.Errorf("item %d: %v", i, err)
					}
				case c.key == "panic": // of a range, the handler's Fill panics, too
				case err != nil:
					t.Errorf("item %d: %v", i, err)
				case w.N > 0:
					if err := hearthtest.Check(v.Bytes(), c.key, w.Block.Offset()+int64(w.Off), 1); err != nil {
						t.Errorf("item %d: %v", i, err)
					}
				}
				if v != nil {
					v.Release()
				}
			})
			for i, n := range seen {
				if n != 1 {
					t.Errorf("item %d was answered %d times", i, n)
				}
			}
			runs.mu.Lock()
			defer runs.mu.Unlock()
			if !slices.Equal(runs.all, []asked{{0, 8, false}, {30, 2, false}, {32, 2, false}, {37, 4, true}}) {
				t.Errorf("runs %+v", runs.all)
			}
		})
	}
}
