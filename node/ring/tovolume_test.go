package ring_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/node"
	"github.com/hearthfs/hearth/node/config"
	"github.com/hearthfs/hearth/volume"
	"github.com/hearthfs/hearth/warmup"
)

// volume makes a file with an empty volume, which nodes that are started from now on attach.
func (r *rig) volume(size int64) {
	r.Helper()
	name := filepath.Join(r.TempDir(), "volume")
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		r.Fatal(err)
	}
	if err := os.Truncate(name, size); err != nil {
		r.Fatal(err)
	}
	f, err := volume.OpenFile(name)
	if err != nil {
		r.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	cluster, err := config.ClusterID(config.Membership{})
	if err != nil {
		r.Fatal(err)
	}
	if _, err := volume.MakeVolume(f, volume.FormatOptions{Cluster: cluster}); err != nil {
		r.Fatal(err)
	}
	r.change = func(c *node.Config) { c.Volumes.Devices = []config.Volume{{URL: name}} }
}

// kept is how many blocks members have written to volumes.
func (r *rig) kept(all ...*member) (sum int64) {
	for _, m := range all {
		for _, t := range m.Node.Status(r.Context()).Tiers {
			for _, v := range t.Volumes {
				sum += v.Kept
			}
		}
	}
	return sum
}

func TestMembersWarmUpVolumesAtOwners(t *testing.T) {
	// Three nodes share a volume, and two of them warm up the same to it at once. Each byte is read from the bucket
	// once and written once, by its owner, and is on no disk. A check finds all of it. Then all nodes go, and new
	// ones with empty cache directories have all of it without the bucket.
	sizes := []int{40<<20 + 7, 17 << 20}
	for i := range 100 {
		sizes = append(sizes, 10_000+100*i)
	}
	r := newRig(t, sizes...)
	r.volume(2 << 30) // each node owns enough of its ranges, however they fall
	a := r.start("a")
	b := r.start("b", a)
	c := r.start("c", a, b)
	all := []*member{a, b, c}
	r.agree(all...)
	first, second := r.warm(a, warmup.Request{ToVolume: true}), r.warm(b, warmup.Request{ToVolume: true})
	want := warmup.Tally{Files: int64(len(sizes)), Bytes: r.size()}
	for m, id := range map[*member]string{a: first, b: second} {
		if v := r.over(m, id); v.State != warmup.Done || v.Counters.Held() != want {
			t.Errorf("%s: %s %s, %+v; want %+v", m.name, v.State, v.Error, v.Record, want)
		}
	}
	if _, size := r.fetched(all...); size != r.size() {
		t.Errorf("%d bytes from the bucket of %d", size, r.size())
	}
	blocks := int64(0)
	for _, size := range sizes {
		blocks += (int64(size) + hearth.BlockSize - 1) / hearth.BlockSize
	}
	if n := r.kept(all...); n != blocks {
		t.Errorf("%d blocks are written of %d", n, blocks)
	}
	if n := r.kept(c); n == 0 {
		t.Error("c, which nobody asked for a job, has written nothing")
	}
	if v := r.over(c, r.warm(c, warmup.Request{DryRun: true, ToVolume: true})); v.Plan.Held != want || v.Plan.Lacks != "" || v.Plan.Room > 2<<30 {
		t.Errorf("a dry run: %+v", v.Plan)
	}
	if v := r.over(c, r.warm(c, warmup.Request{DryRun: true})); v.Plan.Held.Bytes != 0 {
		t.Errorf("%d bytes are on disks", v.Plan.Held.Bytes)
	}
	if v := r.over(a, r.warm(a, warmup.Request{Check: true, ToVolume: true})); v.State != warmup.Done || v.Checked.Whole != want {
		t.Errorf("a check: %s %s, %+v, %+v", v.State, v.Error, v.Checked, v.Samples[:min(3, len(v.Samples))])
	}
	for _, m := range all {
		if err := m.Node.Close(); err != nil {
			t.Error(err)
		}
	}
	a = r.start("a2")
	b = r.start("b2", a)
	r.agree(a, b)
	if v := r.over(b, r.warm(b, warmup.Request{ToVolume: true})); v.State != warmup.Done || v.Counters.Present != want {
		t.Errorf("by new nodes: %s %s, %+v, %+v", v.State, v.Error, v.Counters, v.Samples[:min(3, len(v.Samples))])
	}
	r.readAll(a, b)
	if _, size := r.fetched(a, b); size != 0 {
		t.Errorf("new nodes read %d bytes from the bucket", size)
	}
}

func TestAMemberWithoutAVolumeKeepsNothing(t *testing.T) {
	// One of two nodes has no volume. What it owns is not kept, and the job says where and what to do. It reads
	// nothing for that from the bucket. The rest is kept.
	var sizes []int
	for i := range 60 {
		sizes = append(sizes, 10_000+100*i)
	}
	r := newRig(t, sizes...)
	b := r.start("b")
	r.volume(64 << 20)
	a := r.start("a", b)
	r.agree(a, b)
	v := r.over(a, r.warm(a, warmup.Request{ToVolume: true}))
	c := v.Counters
	if v.State != warmup.Partly || c.NotKept.Files == 0 || c.Done.Files == 0 || c.NotKept.Files+c.Done.Files != 60 {
		t.Fatalf("%s %s: %+v", v.State, v.Error, c)
	}
	if s := v.Samples[0]; !strings.HasPrefix(s.Cause, "at node b: no volume is attached: attach one by hearth volume attach") {
		t.Errorf("%+v", s)
	}
	if _, size := r.fetched(a, b); size != c.Done.Bytes {
		t.Errorf("%d bytes from the bucket for %d", size, c.Done.Bytes)
	}
	if x := r.over(a, r.warm(a, warmup.Request{Check: true, ToVolume: true})); x.State != warmup.Partly || x.Checked.Whole.Files != c.Done.Files ||
		!strings.HasPrefix(x.Samples[0].Cause, "at node b: no volume is attached") {
		t.Errorf("a check: %+v, %+v", x.Checked, x.Samples[:1])
	}
}

func TestAnOwnerOfVolumesGoesDuringAWarmUp(t *testing.T) {
	// An owner ends while another node warms up to a volume. Those who own its blocks now find on the volume what it
	// had written, and write the rest.
	sizes := []int{40<<20 + 7}
	for i := range 300 {
		sizes = append(sizes, 10_000+10*i)
	}
	r := newRig(t, sizes...)
	r.volume(256 << 20)
	a := r.start("a")
	b := r.start("b", a)
	r.agree(a, b)
	id := r.warm(a, warmup.Request{Rate: 24 << 20, ToVolume: true}) // so that there is a middle
	ended := make(chan error, 1)
	gone := false
	err := a.Jobs().Watch(t.Context(), id, func(v warmup.View) bool {
		if !gone && (v.BytesDone > 0 || v.State.Over()) {
			gone = true
			go func() { ended <- b.Node.Close() }()
		}
		return true
	})
	if err := <-ended; err != nil {
		t.Error(err)
	}
	v := r.over(a, id)
	if err != nil || v.Counters.Sum() != (warmup.Tally{Files: int64(len(sizes)), Bytes: r.size()}) {
		t.Errorf("%v: %s %s, %+v", err, v.State, v.Error, v.Record)
	}
	if !hearthtest.Eventually(t.Context(), patience, func() bool {
		v = r.over(a, r.warm(a, warmup.Request{ToVolume: true}))
		return v.State == warmup.Done && v.Counters.Present.Bytes == r.size()
	}) {
		t.Errorf("again: %s %s, %+v, %+v", v.State, v.Error, v.Counters, v.Samples)
	}
}
