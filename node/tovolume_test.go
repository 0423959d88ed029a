package node

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/node/config"
	"github.com/hearthfs/hearth/warmup"
)

// withVolumes adds volumes to a node's configuration.
func withVolumes(names ...string) func(*Config) {
	return func(c *Config) {
		for _, name := range names {
			c.Volumes.Devices = append(c.Volumes.Devices, config.Volume{URL: name})
		}
	}
}

func both(all ...func(*Config)) func(*Config) {
	return func(c *Config) {
		for _, f := range all {
			f(c)
		}
	}
}

// setOf is a set of small and large objects, and its sum.
func setOf() (objects map[string]string, sum warmup.Tally) {
	objects = map[string]string{"set/large": strings.Repeat("0123456789abcdef", 20<<20/16+3)}
	for i := range 60 {
		key := fmt.Sprintf("set/d%d/f%02d", i%3, i)
		objects[key] = strings.Repeat(key, 1+i*80)
	}
	for _, text := range objects {
		sum.Add(warmup.Tally{Files: 1, Bytes: int64(len(text))})
	}
	return objects, sum
}

// volumesOf is what a node says of its volumes.
func volumesOf(n *Node) (appended, written int64) {
	for _, a := range n.volumes.All() {
		s := a.Stats()
		appended, written = appended+s.Stats.AppendedBytes, written+s.Stats.Written
	}
	return appended, written
}

func TestWarmUpToVolume(t *testing.T) {
	// A set is warmed up to a volume: each byte is read from the bucket once, is written to the volume once, and is
	// not on the disk. The node goes and its cache directory is deleted. A new node with the same volume finds all of
	// it there, without loading, and reads it without the origin.
	objects, sum := setOf()
	server := hearthtest.StartS3(t)
	fill(t, server, server.Bucket(t, "data"), objects)
	vol := volumeFile(t, 64<<20, config.Membership{})
	dir := filepath.Join(t.TempDir(), "cache")
	n := start(t, "s3://data", both(withDisk(dir, 64<<20), withVolumes(vol)))
	c := client(t, n)
	dry := ended(t, c, warmup.Request{Targets: []string{"/set"}, DryRun: true, ToVolume: true}, "")
	if p := dry.Plan; p.Lacks != "" || p.Held.Bytes != 0 || p.Needs < sum.Bytes || p.Needs > p.Room || p.Room > 64<<20 {
		t.Errorf("a dry run: %+v", p)
	}
	v := ended(t, c, warmup.Request{Targets: []string{"/set"}, ToVolume: true}, "")
	if v.State != warmup.Done || v.Counters.Done != sum || v.What() != "/set on volumes" {
		t.Fatalf("%s %s: %+v", v.State, v.Error, v.Record)
	}
	if appended, written := volumesOf(n); appended != sum.Bytes || written > dry.Plan.Needs+8<<20 {
		t.Errorf("%d bytes of %d are appended, %d written, where %d were planned", appended, sum.Bytes, written, dry.Plan.Needs)
	}
	if got := n.seen.egress.WarmUp().Bytes; got != sum.Bytes {
		t.Errorf("%d bytes from the origin for %d", got, sum.Bytes)
	}
	if on := ended(t, c, warmup.Request{Targets: []string{"/set"}, DryRun: true}, ""); on.Plan.Held.Bytes != 0 {
		t.Errorf("%d bytes are on the disk", on.Plan.Held.Bytes)
	}
	if again := ended(t, c, warmup.Request{Targets: []string{"/set"}, ToVolume: true}, ""); again.State != warmup.Done || again.Counters.Present != sum {
		t.Errorf("again: %+v", again.Counters)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	n = start(t, "s3://data", both(withDisk(dir, 64<<20), withVolumes(vol)))
	c = client(t, n)
	if again := ended(t, c, warmup.Request{Targets: []string{"/set"}, ToVolume: true}, ""); again.State != warmup.Done || again.Counters.Present != sum {
		t.Errorf("by a new node: %s %s, %+v", again.State, again.Error, again.Counters)
	}
	if x := ended(t, c, warmup.Request{Targets: []string{"/set"}, Check: true, ToVolume: true}, ""); x.State != warmup.Done || x.Checked.Whole != sum {
		t.Errorf("a check: %s %s, %+v, %+v", x.State, x.Error, x.Checked, x.Samples)
	}
	if got := n.seen.egress.WarmUp().Bytes; got != 0 {
		t.Errorf("%d bytes from the origin for what a volume holds", got)
	}
	server.Stop()
	for key, want := range objects {
		var out strings.Builder
		if err := c.Cat(t.Context(), "/"+key, 0, -1, &out); err != nil || out.String() != want {
			t.Errorf("%s without an origin: %d bytes, %v", key, out.Len(), err)
		}
	}
	if got := n.seen.egress.Readers().Bytes; got != 0 {
		t.Errorf("readers got %d bytes from the origin", got)
	}
}

func TestACheckOfAVolumeReadsIt(t *testing.T) {
	// Bytes of a volume change behind the node's back. A check names the file, drops the block, and a warm-up
	// brings it back. A check of what was never there says so.
	objects, sum := setOf()
	vol := volumeFile(t, 64<<20, config.Membership{})
	c := client(t, start(t, bucket(t, objects), both(withDisk(filepath.Join(t.TempDir(), "cache"), 64<<20), withVolumes(vol))))
	if x := ended(t, c, warmup.Request{Targets: []string{"/set"}, Check: true, ToVolume: true}, ""); x.State != warmup.Partly || x.Checked.Missing != sum || !strings.Contains(x.Samples[0].Cause, "on no volume") {
		t.Errorf("a check of nothing: %s %s, %+v, %+v", x.State, x.Error, x.Checked, x.Samples)
	}
	if v := ended(t, c, warmup.Request{Targets: []string{"/set"}, ToVolume: true}, ""); v.State != warmup.Done {
		t.Fatalf("%s %s", v.State, v.Error)
	}
	raw, err := os.ReadFile(vol)
	if err != nil {
		t.Fatal(err)
	}
	text := objects["set/d0/f57"]
	at := strings.Index(string(raw), text[:4000])
	if at < 0 {
		t.Fatal("the file's bytes are not on the volume")
	}
	f, err := os.OpenFile(vol, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("harmed"), int64(at)+100); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	x := ended(t, c, warmup.Request{Targets: []string{"/set"}, Check: true, ToVolume: true}, "")
	if x.State != warmup.Partly || x.Checked.Corrupt != (warmup.Tally{Files: 1, Bytes: int64(len(text))}) || x.Checked.Whole.Files != sum.Files-1 || x.Samples[0].Path != "/set/d0/f57" {
		t.Errorf("a check: %s %s, %+v, %+v", x.State, x.Error, x.Checked, x.Samples)
	}
	if v := ended(t, c, warmup.Request{Targets: []string{"/set"}, ToVolume: true}, ""); v.State != warmup.Done || v.Counters.Done.Files != 1 {
		t.Errorf("loaded again: %s, %+v", v.State, v.Counters)
	}
}

func TestACheckOfAVolumeThatIsCutShort(t *testing.T) {
	// The volume's file loses its end, and a check begins. What it cannot look at is called missing or corrupt
	// nowhere, and the volume and the reason are named. Once the file is whole again, without what was behind its
	// end, the check finds that.
	objects, sum := setOf()
	vol := volumeFile(t, 64<<20, config.Membership{})
	n := start(t, bucket(t, objects), both(withDisk(filepath.Join(t.TempDir(), "cache"), 64<<20), withVolumes(vol)))
	c := client(t, n)
	if v := ended(t, c, warmup.Request{Targets: []string{"/set"}, ToVolume: true}, ""); v.State != warmup.Done {
		t.Fatalf("%s %s", v.State, v.Error)
	}
	if err := os.Truncate(vol, 6<<20); err != nil {
		t.Fatal(err)
	}
	x := ended(t, c, warmup.Request{Targets: []string{"/set"}, Check: true, ToVolume: true}, "")
	says := x.Error
	for _, s := range x.Samples {
		if says = s.Cause; s.What != "unread" || strings.Contains(s.Cause, "not held") {
			t.Errorf("%+v", s)
		}
	}
	if k := x.Checked; x.State != warmup.Partly && x.State != warmup.Failed || k.Missing.Files+k.Corrupt.Files != 0 || !strings.Contains(says, "volume "+vol) || !strings.Contains(says, "made smaller") {
		t.Errorf("%s %s: %+v, %q", x.State, x.Error, x.Checked, says)
	}
	x = ended(t, c, warmup.Request{Targets: []string{"/set"}, Check: true, ToVolume: true}, "")
	if x.State != warmup.Failed || x.Kind != string(admin.KindRefused) || !strings.HasPrefix(x.Error, "the volumes cannot be checked: volume "+vol) {
		t.Errorf("a volume out of use: %s %s", x.State, x.Error)
	}
	if err := os.Truncate(vol, 64<<20); err != nil {
		t.Fatal(err)
	}
	learned(t, n)
	x = ended(t, c, warmup.Request{Targets: []string{"/set"}, Check: true, ToVolume: true}, "")
	if k := x.Checked; x.State != warmup.Partly || k.Unread.Files != 0 || k.Whole.Files == 0 || k.Corrupt.Files+k.Missing.Files == 0 || k.Whole.Bytes >= sum.Bytes {
		t.Errorf("whole again: %s %s, %+v", x.State, x.Error, x.Checked)
	}
}

func TestWarmUpToVolumeThatIsRefused(t *testing.T) {
	// Nothing is kept without a volume, nor of a set that is larger than the volume: what was there stays. Pins and
	// names alone are wrong use. A volume that cannot be had is named.
	objects, _ := setOf()
	for i := range 2 {
		objects[fmt.Sprintf("two/f%d", i)] = strings.Repeat(fmt.Sprint(i), 6<<20)
	}
	url := bucket(t, objects)
	disk := withDisk(filepath.Join(t.TempDir(), "cache"), 64<<20)
	n := start(t, url, disk)
	c := client(t, n)
	ask := func(q warmup.Request) error {
		q.Targets = []string{"/set"}
		_, err := c.Jobs().Submit(t.Context(), q, nil, false)
		return err
	}
	if err := ask(warmup.Request{ToVolume: true}); admin.KindOf(err) != admin.KindRefused || !strings.Contains(err.Error(), "hearth volume attach") {
		t.Errorf("without a volume: %v", err)
	}
	if err := ask(warmup.Request{ToVolume: true, PinS: warmup.Forever}); admin.KindOf(err) != admin.KindUsage {
		t.Errorf("with a pin: %v", err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	n = start(t, url, both(disk, withVolumes(volumeFile(t, 24<<20, config.Membership{}))))
	c = client(t, n)
	if v := ended(t, c, warmup.Request{Targets: []string{"/two"}, ToVolume: true}, ""); v.State != warmup.Done {
		t.Errorf("12 MiB into 24: %s %s", v.State, v.Error)
	}
	if v := ended(t, c, warmup.Request{Targets: []string{"/set"}, ToVolume: true}, ""); v.State != warmup.Failed || v.Kind != string(admin.KindRefused) ||
		!strings.Contains(v.Error, "of the volumes in which") || !strings.Contains(v.Error, "hearth volume attach") {
		t.Errorf("22 MiB into 24 less a segment: %s %s", v.State, v.Error)
	}
	if v := ended(t, c, warmup.Request{Targets: []string{"/two"}, ToVolume: true}, ""); v.Counters.Present.Files != 2 {
		t.Errorf("after the refusal: %+v", v.Counters)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	n = start(t, url, both(disk, withVolumes(filepath.Join(t.TempDir(), "none"))))
	if v := ended(t, client(t, n), warmup.Request{Targets: []string{"/set"}, ToVolume: true}, ""); v.State != warmup.Failed || v.Kind != string(admin.KindRefused) || !strings.Contains(v.Error, "none") {
		t.Errorf("without the volume's file: %s %s", v.State, v.Error)
	}
}

func TestAWarmUpToVolumeGoesOn(t *testing.T) {
	// A node without a disk has a volume and no jobs of another node. What its first job has brought to the volume by
	// the time that it is cancelled, the next one finds, and brings the rest.
	objects, sum := setOf()
	url, vol := bucket(t, objects), volumeFile(t, 64<<20, config.Membership{})
	n := start(t, url, withVolumes(vol))
	c := client(t, n)
	v, err := c.Jobs().Submit(t.Context(), warmup.Request{Targets: []string{"/set"}, ToVolume: true, Rate: 4 << 20}, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Jobs().Watch(t.Context(), v.ID, func(now warmup.View) bool { return now.BytesDone == 0 }); err != nil {
		t.Fatal(err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	n = start(t, url, withVolumes(vol))
	x := ended(t, client(t, n), warmup.Request{Targets: []string{"/set"}, ToVolume: true}, "")
	if x.State != warmup.Done || x.Counters.Held() != sum || x.Counters.Present.Bytes == 0 {
		t.Errorf("%s %s: %+v", x.State, x.Error, x.Counters)
	}
	if brought := n.seen.egress.WarmUp().Bytes; brought != sum.Bytes-x.Counters.Present.Bytes {
		t.Errorf("%d bytes were brought, where %+v was there", brought, x.Counters.Present)
	}
}
