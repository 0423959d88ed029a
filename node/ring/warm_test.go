package ring_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/node"
	"github.com/hearthfs/hearth/warmup"
)

// warm begins a job at a member.
func (r *rig) warm(m *member, q warmup.Request) string {
	r.Helper()
	q.Targets = []string{"/"}
	v, err := m.Jobs().Submit(r.Context(), q, nil, false)
	if err != nil {
		r.Fatal(err)
	}
	return v.ID
}

// over waits until a job is over.
func (r *rig) over(m *member, id string) (v warmup.View) {
	r.Helper()
	err := m.Jobs().Watch(r.Context(), id, func(x warmup.View) bool { v = x; return true })
	if err != nil || !v.State.Over() {
		r.Fatalf("job %s of %s: %s, %v", id, m.name, v.State, err)
	}
	return v
}

// check runs a check at a member. If an owner said nothing for half a second, as on a busy machine, the check
// does not know what that owner holds, and is done again.
func (r *rig) check(m *member) (v warmup.View) {
	r.Helper()
	for over := time.Now().Add(patience); time.Now().Before(over); {
		v = r.over(m, r.warm(m, warmup.Request{Check: true}))
		if !slices.ContainsFunc(v.Samples, func(s warmup.Sample) bool { return strings.Contains(s.Cause, "no owner answers") }) {
			break
		}
	}
	return v
}

func TestMembersWarmUpAtOwners(t *testing.T) {
	// Three nodes warm up the same at once. Each byte is read from the bucket once and stands at its owner. A
	// check finds all of it there, and names the node at which a block is damaged. A pin is refused.
	sizes := []int{40<<20 + 7, 17 << 20}
	for i := range 200 {
		sizes = append(sizes, 10_000+100*i)
	}
	r := newRig(t, sizes...)
	a := r.start("a")
	b := r.start("b", a)
	c := r.start("c", a, b)
	all := []*member{a, b, c}
	r.agree(all...)
	var ids []string
	for _, m := range all {
		ids = append(ids, r.warm(m, warmup.Request{}))
	}
	want := warmup.Tally{Files: int64(len(sizes)), Bytes: r.size()}
	for i, m := range all {
		if v := r.over(m, ids[i]); v.State != warmup.Done || v.Counters.Held() != want {
			t.Errorf("%s: %s %s, %+v; want %+v", m.name, v.State, v.Error, v.Record, want)
		}
	}
	gets, size := r.fetched(all...)
	strays := int64(0) // bytes that went past an owner which did not answer, as on a machine with other work
	for _, m := range all {
		strays += r.ring(m).Reads.Strays
	}
	t.Logf("%d GETs, %d of %d bytes, %d past owners", gets, size, r.size(), strays)
	if size < r.size() || size > r.size()+strays {
		t.Errorf("%d bytes from the bucket of %d", size, r.size())
		r.say(all...)
	}
	if v := r.over(b, r.warm(b, warmup.Request{})); v.Counters.Present != want {
		t.Errorf("again: %+v", v.Counters)
	}
	if v := r.over(c, r.warm(c, warmup.Request{DryRun: true})); v.Plan.Held != want || v.Plan.Room < 2*256<<20 {
		t.Errorf("a dry run: %+v", v.Plan)
	}
	if v := r.check(a); v.State != warmup.Done || v.Checked.Whole != want {
		t.Errorf("a check: %s %s, %+v, %+v", v.State, v.Error, v.Checked, v.Samples[:min(3, len(v.Samples))])
	}
	for name, text := range r.files {
		for _, m := range all { // who has not got it names who has
			e, err := m.Explain(t.Context(), "/"+name, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, h := range e.Held {
				mine := e.Read.Owners[0] == m.name || len(text) > hearth.ExtentBlocks*hearth.BlockSize // whose parts have several owners
				if here := h.RAM || h.Disk != ""; here && h.Peer != "" || !here && (h.Peer == "" || h.Peer == m.name) || !mine && !here && h.Peer != e.Read.Owners[0] {
					t.Errorf("%s of %s at %s: %+v", name, e.Read.Owners, m.name, h)
				}
			}
			if e.Read.By == "peer" && !strings.Contains(e.Read.Says, e.Held[0].Peer+" has it on disk") {
				t.Errorf("%s at %s: %+v", name, m.name, e.Read)
			}
		}
	}
	r.damage(b)
	v := r.check(a)
	if v.State != warmup.Partly || v.Checked.Corrupt.Files+v.Checked.Missing.Files == 0 {
		t.Fatalf("a check of what is damaged: %s %s, %+v", v.State, v.Error, v.Checked)
	}
	for _, s := range v.Samples {
		if !strings.HasPrefix(s.Cause, "at node b: ") {
			t.Errorf("%+v", s)
		}
	}
	if _, err := a.Jobs().Submit(t.Context(), warmup.Request{Targets: []string{"/"}, PinS: warmup.Forever}, nil, false); err == nil || !strings.Contains(err.Error(), "ring") {
		t.Errorf("a pin: %v", err)
	}
}

func TestAMemberWithoutADiskKeepsNothing(t *testing.T) {
	// One of two nodes has no disk tier. What it owns is not kept, and the job says where and what to do. The
	// rest is kept.
	var sizes []int
	for i := range 60 {
		sizes = append(sizes, 10_000+100*i)
	}
	r := newRig(t, sizes...)
	a := r.start("a")
	r.change = func(c *node.Config) { c.Cache.NoDisk = true }
	b := r.start("b", a)
	r.agree(a, b)
	v := r.over(a, r.warm(a, warmup.Request{}))
	if c := v.Counters; v.State != warmup.Partly || c.NotKept.Files == 0 || c.Done.Files == 0 || c.NotKept.Files+c.Done.Files != 60 {
		t.Fatalf("%s %s: %+v", v.State, v.Error, c)
	}
	if s := v.Samples[0]; !strings.HasPrefix(s.Cause, "at node b: it has no disk tier") {
		t.Errorf("%+v", s)
	}
}

func TestAMemberGoesDuringAWarmUp(t *testing.T) {
	// An owner ends while another node warms up. In the end the others hold what it had, and what it would have
	// had.
	sizes := []int{40<<20 + 7}
	for i := range 1000 {
		sizes = append(sizes, 10_000+10*i)
	}
	r := newRig(t, sizes...)
	a := r.start("a")
	b := r.start("b", a)
	c := r.start("c", a, b)
	r.agree(a, b, c)
	id := r.warm(a, warmup.Request{Rate: 24 << 20}) // so that there is a middle
	var ending sync.WaitGroup
	var once sync.Once
	err := a.Jobs().Watch(t.Context(), id, func(v warmup.View) bool {
		if v.BytesDone > 0 || v.State.Over() {
			once.Do(func() {
				t.Logf("c goes after %d bytes", v.BytesDone)
				ending.Go(func() { _ = c.Node.Close() })
			})
		}
		return true
	})
	ending.Wait()
	v := r.over(a, id)
	want := warmup.Tally{Files: int64(len(sizes)), Bytes: r.size()}
	if err != nil || v.State != warmup.Done && v.Lost == 0 || v.Counters.Held() != want {
		t.Errorf("%v: %s %s, %+v", err, v.State, v.Error, v.Record)
	}
	r.agree(a, b)
	if v := r.over(b, r.warm(b, warmup.Request{})); v.State != warmup.Done || v.Counters.Held() != want {
		t.Errorf("again: %s, %+v", v.State, v.Counters)
	}
	if v := r.over(a, r.warm(a, warmup.Request{})); v.Counters.Present != want {
		t.Errorf("once more: %s, %+v", v.State, v.Counters)
	}
}

// damage changes bytes of every segment in a member's cache.
func (r *rig) damage(m *member) {
	r.Helper()
	n := 0
	status := m.Node.Status(r.Context())
	for _, t := range status.Tiers {
		for _, d := range t.Dirs {
			files, err := filepath.Glob(filepath.Join(d.Path, "segments", "*"))
			if err != nil {
				r.Fatal(err)
			}
			for _, name := range files {
				n += r.spoil(name)
			}
		}
	}
	if n == 0 {
		r.Fatalf("there is nothing of %s to damage", m.name)
	}
}

// spoil changes some bytes of large files, and returns in how many files.
func (r *rig) spoil(name string) int {
	r.Helper()
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		r.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil || info.Size() < 64<<10 {
		return 0
	}
	if _, err := f.WriteAt([]byte("damaged"), 10<<10); err != nil {
		r.Fatal(err)
	}
	return 1
}
