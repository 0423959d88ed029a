package prefetch

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/hearthfs/hearth"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func object(dir string, i int, size int64) *hearth.Object {
	key := fmt.Sprintf("%s%06d.jpg", dir, i)
	return &hearth.Object{Link: "l", Key: key, ETag: "e", Size: size, Version: hearth.VersionOf("id", key, "e", size)}
}

// misses of a directory in an order.
func inOrder(order []int) (all []miss) {
	for _, i := range order {
		all = append(all, missed(object("d/", i, 1000), time.Time{}))
	}
	return all
}

func TestWhatLiesInNoOrder(t *testing.T) {
	// Of 64 misses each, these lie in order: of one reader in order, of sixteen readers
	// that share an order, of seven with parts of their own, and of one that begins
	// again. A shuffled directory does not, nor do 32 of its misses.
	rng := rand.New(rand.NewPCG(hearthtest.Seed(t), 0))
	up := make([]int, windowMisses)
	for i := range up {
		up[i] = i
	}
	jitter := append([]int(nil), up...)
	for i := range jitter { // each overtakes a few
		j := min(len(jitter)-1, i+rng.IntN(5))
		jitter[i], jitter[j] = jitter[j], jitter[i]
	}
	var parts, again []int
	at := [7]int{}
	for range windowMisses {
		k := rng.IntN(len(at))
		parts = append(parts, k*1000+at[k])
		at[k]++
		again = append(again, (len(again)+40)%windowMisses)
	}
	for name, order := range map[string][]int{"ordered": up, "jitter": jitter, "parts": parts, "again": again, "few": rng.Perm(1000)[:enoughMisses-1]} {
		if unordered(inOrder(order)) {
			t.Errorf("%s is taken for no order: %v", name, order)
		}
	}
	half := 0
	for range 1000 {
		order := rng.Perm(1000)[:windowMisses]
		if !unordered(inOrder(order)) {
			t.Errorf("no order is taken for one: %v", order)
		}
		if unordered(inOrder(order[:enoughMisses])) {
			half++
		}
	}
	if half < 400 {
		t.Errorf("32 of %d shuffled directories of 1000 are seen", half)
	}
}

func TestPilesAreTheFewestRuns(t *testing.T) {
	// The rule agrees with the longest falling sequence of keys, computed the slow way.
	rapid.Check(t, func(t *rapid.T) {
		order := rapid.Permutation(func() (p []int) {
			for i := range 40 {
				p = append(p, i)
			}
			return p
		}()).Draw(t, "order")
		longest, most := make([]int, len(order)), 0
		for i := range order {
			longest[i] = 1
			for j := range i {
				if order[j] > order[i] {
					longest[i] = max(longest[i], longest[j]+1)
				}
			}
			most = max(most, longest[i])
		}
		if got := unordered(inOrder(order)); got != (most >= someRuns) {
			t.Fatalf("%v: unordered %v, the longest falling sequence has %d", order, got, most)
		}
	})
}

// readTo misses objects until there is an area, at most so many.
func readTo(d *detector, most int, now time.Time, next func(i int) *hearth.Object) (a *area, after int) {
	return readSlowly(d, most, now, 0, next)
}

func readSlowly(d *detector, most int, now time.Time, pause time.Duration, next func(i int) *hearth.Object) (a *area, after int) {
	for i := range most {
		if a, fresh := d.miss(next(i), 1000, now.Add(time.Duration(i)*pause)); fresh {
			return a, i + 1
		}
	}
	return nil, most
}

func TestADirectoryBecomesAnArea(t *testing.T) {
	// A directory that is read in random order becomes an area after 64 misses at most.
	// These make no area: a read in order, the same objects again and again, misses of
	// another link, and one miss a second.
	now, order := time.Unix(1000, 0), rand.New(rand.NewPCG(1, 2)).Perm(1000)
	d := newDetector()
	a, after := readTo(&d, 64, now, func(i int) *hearth.Object { return object("a/d/", order[i], 1000) })
	if a == nil || a.tree || a.prefix != "a/d/" || after < enoughMisses || len(a.queue) != 1 || a.reads.Load() != int64(after)*1000 {
		t.Fatalf("after %d misses: %+v", after, a)
	}
	for name, next := range map[string]func(i int) *hearth.Object{
		"in order":  func(i int) *hearth.Object { return object("b/d/", i, 1000) },
		"the same":  func(i int) *hearth.Object { return object("b/d/", order[i%20], 1000) },
		"two links": func(i int) *hearth.Object { o := object("b/d/", order[i], 1000); o.Link = fmt.Sprint(i % 40); return o },
	} {
		d := newDetector()
		if a, _ := readTo(&d, 900, now, next); a != nil {
			t.Errorf("%s: %+v", name, a.where)
		}
	}
	d = newDetector()
	if a, _ = readSlowly(&d, 900, now, time.Second, func(i int) *hearth.Object { return object("c/d/", order[i], 1000) }); a != nil {
		t.Errorf("slowly: %+v", a.where)
	}
}

func TestATreeBecomesAnArea(t *testing.T) {
	// An epoch in random order over a thousand directories, with one or two levels of
	// them, makes the tree an area after 64 misses. A directory is filled once there is a
	// miss in it, and no other is. Walks in order make no area.
	now, rng := time.Unix(1000, 0), rand.New(rand.NewPCG(3, 4))
	for name, dir := range map[string]func(i int) string{
		"train/": func(i int) string { return fmt.Sprintf("train/n%04d/", i) },
		"data/":  func(i int) string { return fmt.Sprintf("data/%02d/%02d/", i/32, i%32) },
	} {
		d := newDetector()
		missedIn := map[string]bool{}
		a, after := readTo(&d, 64, now, func(int) *hearth.Object {
			in := dir(rng.IntN(1000))
			missedIn[in] = true
			return object(in, rng.IntN(1000), 1000)
		})
		if a == nil || !a.tree || a.prefix != name || after < enoughMisses {
			t.Fatalf("%s: after %d misses: %+v", name, after, a)
		}
		if len(a.taken) == 0 || len(a.taken) > len(missedIn) {
			t.Errorf("%s: %d directories of %d are filled", name, len(a.taken), len(missedIn))
		}
		for in := range a.taken {
			if !missedIn[in] {
				t.Errorf("%s: nobody missed anything in %s", name, in)
			}
		}
		b, fresh := d.miss(object(name+"other/", 1, 1000), 1000, now)
		if b != a || fresh || !a.taken[name+"other/"] {
			t.Errorf("%s: a further directory: %+v, %v", name, b, fresh)
		}
		if b, _ := d.miss(object("elsewhere/", 1, 1000), 1000, now); b != nil {
			t.Errorf("%s: another tree belongs to it", name)
		}
		if b, _ := readTo(&d, 100, now, func(i int) *hearth.Object { return object("elsewhere/", i, 1000) }); b != nil {
			t.Errorf("%s: it has another that is read in order become an area: %+v", name, b.where)
		}
		d = newDetector()
		if a, _ := readTo(&d, 900, now, func(i int) *hearth.Object { return object(dir(i/20), i%20, 1000) }); a != nil {
			t.Errorf("%s in order: %+v", name, a.where)
		}
	}
}

func TestTheNextDirectoriesFollow(t *testing.T) {
	// A reader takes one directory after the other, each in random order. The third one
	// is filled from the first miss on.
	now, rng := time.Unix(1000, 0), rand.New(rand.NewPCG(5, 6))
	d := newDetector()
	var last *area
	for k := range 2 {
		order := rng.Perm(1000)
		if last, _ = readTo(&d, 64, now, func(i int) *hearth.Object { return object(fmt.Sprintf("t/%d/", k), order[i], 1000) }); last == nil {
			t.Fatalf("directory %d is none", k)
		}
	}
	if !last.tree || last.prefix != "t/" || !last.taken["t/1/"] || last.taken["t/2/"] {
		t.Fatalf("after two: %+v", last)
	}
	if a, fresh := d.miss(object("t/2/", 7, 1000), 1000, now); a != last || fresh || !a.taken["t/2/"] {
		t.Errorf("the third: %+v, %v", a, fresh)
	}
}

func TestWasteIsNotTrusted(t *testing.T) {
	// A directory of whose prefetch less than half was read becomes no area for an hour.
	// A directory of whose prefetch half was read becomes one again.
	now, order := time.Unix(1000, 0), rand.New(rand.NewPCG(7, 8)).Perm(1000)
	d := newDetector()
	again := func() *area {
		a, _ := readTo(&d, 200, now, func(i int) *hearth.Object { return object("d/", order[i], 1000) })
		return a
	}
	a := again()
	a.brought.Store(1000)
	a.used.Store(500)
	d.end(a, now)
	if a = again(); a == nil {
		t.Fatal("half of it was read, and it is not trusted")
	}
	a.brought.Store(1000)
	a.used.Store(499)
	d.end(a, now)
	if again() != nil {
		t.Error("it is trusted at once")
	}
	now = now.Add(distrust)
	if again() == nil {
		t.Error("it is not trusted an hour later")
	}
	for i := range 2 * mostDistrusted {
		x := d.add(where{"l", fmt.Sprint(i)}, false, now)
		x.brought.Store(1)
		d.end(x, now)
	}
	if len(d.distrusted) > mostDistrusted {
		t.Errorf("%d are remembered", len(d.distrusted))
	}
}

func TestDetectorIsBounded(t *testing.T) {
	// Misses in very many directories keep a bounded number of windows.
	d := newDetector()
	for i := range 10_000 {
		d.miss(object(fmt.Sprintf("%d/%d/%d/%d/", i%7, i%11, i%13, i), 1, 1), 1, time.Unix(1, 0))
		for _, a := range d.areas {
			d.drop(a)
		}
	}
	if len(d.windows) > mostWindows || d.order.Len() != len(d.windows) || d.taken != 0 {
		t.Errorf("%d windows, %d directories", len(d.windows), d.taken)
	}
	a := d.add(where{"l", ""}, true, time.Unix(1, 0))
	for i := range 2 * mostDirectories {
		d.miss(object(fmt.Sprintf("%d/", i), 1, 1), 1, time.Unix(1, 0))
	}
	if len(a.taken) != mostDirectories || d.taken != mostDirectories {
		t.Errorf("%d directories, %d in all", len(a.taken), d.taken)
	}
	if d.end(a, time.Unix(1, 0)); d.taken != 0 {
		t.Errorf("%d directories of none", d.taken)
	}
}
