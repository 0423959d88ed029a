package namespace

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearthfs/hearth"
)

// writesThatAsk are Writes without a tree. They ask for uncertain ones with ask.
func writesThatAsk(ask func(ctx context.Context, x *Write)) *Writes {
	w := (*Tree)(nil).Writes(WritesOptions{})
	w.ask = ask
	return w
}

// keysOf is how many keys are uncertain.
func keysOf(w *Writes) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.keys
}

// ofKey is a write of one key.
func ofKey(key string) Write { return Write{Bucket: "/", Keys: []string{key}} }

func TestUncertainWritesAreAskedForAgain(t *testing.T) {
	// Uncertain writes are asked for at their times, and then no more. One that becomes uncertain again
	// begins anew. What is left at Close is doubted at once, with a context that is over.
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		var mu sync.Mutex
		seen := map[string][]time.Duration{}
		w := writesThatAsk(func(ctx context.Context, x *Write) {
			mu.Lock()
			defer mu.Unlock()
			at := time.Since(begun)
			if ctx.Err() != nil {
				at = -at
			}
			seen[x.Keys[0]] = append(seen[x.Keys[0]], at)
		})
		b := Write{Bucket: "/", Keys: []string{"b", "b2", "b3"}}
		w.again(ofKey("a"))
		time.Sleep(30 * time.Second)
		w.again(b)
		time.Sleep(15 * time.Second)
		w.again(b)
		if n := keysOf(w); n != 4 {
			t.Errorf("%d keys are uncertain, want 4", n)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if w.keys != 0 || len(w.uncertain) != 0 {
			t.Errorf("%d keys are uncertain still", w.keys)
		}
		w.again(ofKey("c"))
		time.Sleep(10 * time.Second)
		w.Close()
		end := time.Since(begun)
		w.Ended(ofKey("d"), Unknown) // after Close
		if w.keys != 0 {
			t.Errorf("after the end %d keys are uncertain", w.keys)
		}
		for name, want := range map[string][]time.Duration{
			"a": {5 * time.Second, time.Minute, finishWithin},
			"b": {35 * time.Second, 50 * time.Second, 105 * time.Second, 45*time.Second + finishWithin},
			"c": {end - 5*time.Second, -end},
			"d": {-end, -end},
		} {
			if !slices.Equal(seen[name], want) {
				t.Errorf("%s: %v, want %v", name, seen[name], want)
			}
		}
	})
}

func TestUncertainWritesAreBounded(t *testing.T) {
	// Keys are counted, those of one write once. A write without keys always has room. An origin that hangs
	// holds none up for ever, and Close does not wait for it.
	synctest.Test(t, func(t *testing.T) {
		var calls, over atomic.Int64
		w := writesThatAsk(func(ctx context.Context, _ *Write) {
			if <-ctx.Done(); context.Cause(ctx) == context.DeadlineExceeded {
				over.Add(1)
			}
			calls.Add(1)
		})
		for i := range mostUncertain {
			if !w.again(ofKey(fmt.Sprint(i))) {
				t.Fatalf("no room after %d", i)
			}
		}
		all := Write{Bucket: "/", Below: []string{""}}
		if w.again(ofKey("more")) || !w.again(ofKey("0")) || !w.again(all) || keysOf(w) != mostUncertain {
			t.Errorf("%d keys", keysOf(w))
		}
		time.Sleep(5*time.Second + allWithin + time.Second)
		synctest.Wait()
		if n := calls.Load(); n < mostUncertain+1 || over.Load() == 0 {
			t.Errorf("after a minute %d of %d were asked for", n, mostUncertain+1)
		}
		begun := time.Now()
		w.Close()
		if took := time.Since(begun); took > 0 || w.keys != 0 {
			t.Errorf("the end takes %v, and leaves %d keys", took, w.keys)
		}
	})
}

func TestAWriteLastsBeyondItsWriter(t *testing.T) {
	// When the client goes, the write goes on until its time is over, or until Close. A write whose client
	// stays has no such limit.
	synctest.Test(t, func(t *testing.T) {
		w := writesThatAsk(nil)
		type name struct{}
		client, leave := context.WithCancel(context.WithValue(t.Context(), name{}, "value"))
		stays, stop := context.WithCancel(t.Context())
		defer stop()
		left, end := w.Begin(client)
		defer end()
		staying, end2 := w.Begin(stays)
		defer end2()
		leave()
		time.Sleep(finishWithin - time.Second)
		synctest.Wait()
		if left.Err() != nil || left.Value(name{}) != "value" {
			t.Errorf("it ended with its client: %v", context.Cause(left))
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if left.Err() == nil || staying.Err() != nil {
			t.Errorf("%v and %v", left.Err(), staying.Err())
		}
		w.Close()
		synctest.Wait()
		if cause := context.Cause(staying); !errors.Is(cause, errWritesEnd) || !errors.Is(cause, context.Canceled) {
			t.Errorf("at the end: %v", cause)
		}
	})
}

func TestWhatAnOutcomeAsksFor(t *testing.T) {
	// An undone write asks for nothing, a done one for its keys, and one that keeps names for none. Before
	// that the front end hears of the keys, or that any key may be changed.
	w := open(t, func(o *Options) { o.Links[0].Freshness = Freshness{Mode: Immutable} })
	w.b.put("d/a", "1", 3)
	w.b.put("d/b", "1", 3)
	var heard [][]string
	settled := 0
	writes := w.tree.Writes(WritesOptions{
		Changed: func(keys []string) { heard = append(heard, keys) },
		Settle:  func(context.Context) { settled++ },
		Links:   func(bucket string) []string { return []string{"gone", map[string]string{"bucket": "/"}[bucket]} },
	})
	defer writes.Close()
	w.names("/")
	w.names("/d")
	keys := []string{"d/a", "d/b"}
	for i, c := range []struct {
		write    Write
		outcome  Outcome
		requests int
		heard    [][]string
	}{
		{Write{Bucket: "bucket", Keys: keys}, Undone, 0, nil},
		{Write{Bucket: "bucket", Keys: keys, KeepsNames: true}, Done, 0, [][]string{keys}},
		{Write{Bucket: "bucket"}, Done, 0, nil},
		{Write{Bucket: "other", Keys: keys}, Done, 0, [][]string{keys}},
		{Write{Bucket: "bucket", Keys: keys}, Done, 2, [][]string{keys}},
		{Write{Bucket: "bucket", Below: []string{"d/"}}, Done, 1, [][]string{nil}},
		{Write{Bucket: "bucket", Below: []string{""}}, Done, 2, [][]string{nil}},
	} {
		heard, settled = nil, 0
		before := w.b.requests()
		w.clock.add(time.Second)
		writes.Ended(c.write, c.outcome)
		w.settle()
		if n := w.b.requests() - before; n != c.requests || !slices.EqualFunc(heard, c.heard, slices.Equal) {
			t.Errorf("%d: %d requests, want %d; heard %q, want %q", i, n, c.requests, heard, c.heard)
		}
		if c.requests > 0 && settled != 1 {
			t.Errorf("%d: settled %d times", i, settled)
		}
	}
	if len(writes.uncertain) != 0 {
		t.Error("known outcomes are uncertain")
	}
}

func TestAnUncertainWriteIsDoubtedAtTheEnd(t *testing.T) {
	// The answer to a write is lost, and the write is done after Close. The key is doubted, also after a
	// restart, though names hold for ever.
	w := open(t, func(o *Options) { o.Dir, o.Links[0].Freshness = t.TempDir(), Freshness{Mode: Immutable} })
	w.b.put("d/a", "1", 3)
	if n := w.resolve("/d/a"); n.Object.ETag != "1" {
		t.Fatalf("%+v", n)
	}
	writes := w.tree.Writes(WritesOptions{})
	writes.Ended(ofKey("d/a"), Unknown)
	before := w.b.requests()
	if n := w.resolve("/d/a"); n.Object.ETag != "1" || w.b.requests() != before {
		t.Errorf("what was found after the answer was lost is not believed: %+v", n)
	}
	writes.Close()
	w.b.put("d/a", "2", 4)
	w.reopen()
	if n, err := w.tree.File(t.Context(), "/", "d/a"); err != nil || n.Object.ETag != "2" {
		t.Errorf("%+v, %v", n.Object, err)
	}
}

// hearing is an owner of directories that hears what changed.
type hearing struct {
	fakeOwner
	heard *[]string
}

func (h hearing) Changed(dir hearth.Directory, segments []string, _ time.Duration) {
	for _, segment := range segments {
		*h.heard = append(*h.heard, dir.Prefix+segment)
	}
}

func TestManyKeysOfADirectoryAreListedAndTold(t *testing.T) {
	// More keys of a directory are written than are asked for one by one. The directory is listed once, and
	// the ring hears of every key, though nothing has changed for this node. One key is asked for by itself,
	// for the directory's own name.
	var heard []string
	w := open(t, func(o *Options) { o.Links[0].Origin = hearing{fakeOwner{o.Links[0].Origin.(*bucket)}, &heard} })
	var keys []string
	for i := range mostAsked + 4 {
		keys = append(keys, fmt.Sprintf("d/%02d", i))
		w.b.put(keys[i], "1", 3)
	}
	w.names("/")
	w.names("/d")
	w.settle()
	writes := w.tree.Writes(WritesOptions{})
	defer writes.Close()
	w.clock.add(time.Second)
	heard = nil
	heads, lists := w.b.heads, w.b.lists
	writes.Ended(Write{Bucket: "/", Keys: keys}, Done)
	slices.Sort(heard)
	if !slices.Equal(heard, keys) || w.b.lists-lists != 1 || w.b.heads-heads > 1 {
		t.Errorf("told of %q; %d LISTs, %d HEADs", heard, w.b.lists-lists, w.b.heads-heads)
	}
}

func TestNotAllThatWasListedIsListedAgain(t *testing.T) {
	// After a write of which nobody can say what it touched, up to mostListed directories are listed again:
	// those that were listed before, the upper ones first.
	w := open(t, func(o *Options) { o.Links[0].Freshness = Freshness{Mode: Immutable} })
	for i := range mostListed + 40 {
		w.b.put(fmt.Sprintf("d/%03d/f", i), "1", 3)
	}
	w.b.put("other/f", "1", 3)
	w.names("/")
	w.names("/d")
	for i := range mostListed + 40 {
		w.names(fmt.Sprintf("/d/%03d", i))
	}
	w.settle()
	writes := w.tree.Writes(WritesOptions{})
	defer writes.Close()
	var mu sync.Mutex
	var listed []string
	w.b.onPage = func(prefix string, _ int) {
		mu.Lock()
		defer mu.Unlock()
		listed = append(listed, prefix)
	}
	for _, c := range []struct{ below, first string }{{"", ""}, {"d/", "d/"}} {
		listed = nil
		w.clock.add(time.Second)
		writes.Ended(Write{Bucket: "/", Below: []string{c.below}}, Done)
		w.settle()
		if len(listed) != mostListed || listed[0] != c.first || slices.Contains(listed, "other/") != (c.below == "") {
			t.Errorf("below %q: %d listed, the first %q", c.below, len(listed), listed[0])
		}
	}
}
