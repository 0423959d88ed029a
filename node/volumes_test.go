package node

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/fuse"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/node/config"
	"github.com/hearthfs/hearth/node/status"
	"github.com/hearthfs/hearth/volume"
	"github.com/hearthfs/hearth/warmup"
)

// volumeFile makes a volume in a file, for nodes with the ring's settings r.
func volumeFile(t *testing.T, size int64, r config.Membership) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "volume")
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(name, size); err != nil {
		t.Fatal(err)
	}
	f, err := volume.OpenFile(name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	cluster, err := config.ClusterID(r)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := volume.MakeVolume(f, volume.FormatOptions{Cluster: cluster, Segment: 4 << 20, Label: "test"}); err != nil {
		t.Fatal(err)
	}
	return name
}

// learned waits until the node knows its volumes.
func learned(t *testing.T, n *Node) {
	t.Helper()
	if !hearthtest.Eventually(t.Context(), time.Minute, func() bool {
		return !slices.ContainsFunc(n.volumeTier().Volumes, func(v status.Volume) bool { return v.Away != "" || v.Learned < v.Segments })
	}) {
		t.Fatalf("not known: %+v", n.volumeTier())
	}
}

func TestWhatNoDiskKeepsComesFromTheVolume(t *testing.T) {
	// A node without a disk keeps what it reads on its volume. A new node, which has that volume alone, reads all of
	// it without the bucket, and says where it comes from.
	const probes = 2 // GETs by which a start asks whether the origin can be read; they may be counted late
	files, want := map[string]string{}, 0
	for i := range 40 {
		text := strings.Repeat(fmt.Sprint(i, " "), 9000)
		files[fmt.Sprint("f", i)], want = text, want+len(text)
	}
	url, vol := bucket(t, files), volumeFile(t, 64<<20, config.Membership{})
	for round := range 2 {
		n := start(t, url, func(c *Config) {
			c.Cache.NoDisk, c.Cache.Disks = true, nil
			c.Volumes.Devices = []config.Volume{{URL: vol}}
		})
		learned(t, n)
		for name, text := range files {
			var out strings.Builder
			if err := client(t, n).Cat(t.Context(), "/"+name, 0, -1, &out); err != nil || out.String() != text {
				t.Fatalf("round %d: %s: %d bytes, %v", round, name, out.Len(), err)
			}
		}
		s := n.Status(t.Context())
		v := s.Tiers[len(s.Tiers)-1]
		if round == 0 {
			if err := n.volumes.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			v := n.volumeTier().Volumes[0]
			if v.Kept != 40 || v.Hits != 0 || v.Label != "test" {
				t.Errorf("%+v", v)
			}
			u, err := client(t, n).Usage(t.Context(), "/")
			if err != nil || u.VolumeBytes == nil || *u.VolumeBytes != int64(want) {
				t.Errorf("%+v, %v", u, err)
			}
		} else if gets := s.Origin.Verbs["get"]; gets > probes || v.Hits != 40 || v.Misses != 0 || s.Egress.Avoided["volume"].Requests != 40 {
			t.Errorf("%d GETs of the origin, %+v", gets, v)
		}
		if round == 1 {
			e, err := n.explain(t.Context(), "/f1", 0)
			if err != nil || e.Held[0].Volume != vol {
				t.Errorf("%+v, %v", e, err)
			}
		}
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestVolumesComeAndGo(t *testing.T) {
	// A volume is attached and detached while the node runs. What cannot be attached is refused with the reason and
	// not kept. A configured volume that is not there is a line of the status, and the node runs.
	away := filepath.Join(t.TempDir(), "away")
	n := start(t, bucket(t, map[string]string{"a": "1"}), func(c *Config) { c.Volumes.Devices = []config.Volume{{URL: away}} })
	hearthtest.Eventually(t.Context(), time.Minute, func() bool { return n.volumeTier().Volumes[0].Away != "it is being attached" })
	s := n.Status(t.Context())
	if len(s.Problems) != 1 || !strings.Contains(s.Problems[0], "volume "+away+" is out of use: open volume "+away+": no such file") {
		t.Errorf("%q", s.Problems)
	}
	c := client(t, n)
	for url, want := range map[string]string{"volume": "no volume's address", away: "attached already", "/dev/null": "neither a block device", t.TempDir() + "/x": "no such file"} {
		if _, err := c.Attach(t.Context(), config.Volume{URL: url}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", url, err)
		}
	}
	foreign := volumeFile(t, 64<<20, config.Membership{Cluster: "other"})
	if _, err := c.Attach(t.Context(), config.Volume{URL: foreign}); err == nil || !strings.Contains(err.Error(), "another cluster") {
		t.Error(err)
	}
	n.volumes.Detach(n.volumes.Find(away))
	if err := os.Rename(foreign, away); err != nil {
		t.Fatal(err)
	}
	if _, err := n.attach(config.Volume{URL: away}, false); err != nil {
		t.Fatal(err)
	}
	hearthtest.Eventually(t.Context(), time.Minute, func() bool { return n.volumeTier().Volumes[0].Away != "it is being attached" })
	if s := n.Status(t.Context()); len(s.Problems) != 1 || !strings.Contains(s.Problems[0], "volume "+away+" is out of use: attach the volume: the volume belongs to another cluster") {
		t.Errorf("%q", s.Problems)
	}
	vol := volumeFile(t, 64<<20, config.Membership{})
	if v, err := c.Attach(t.Context(), config.Volume{URL: vol}); err != nil || v.Label != "test" {
		t.Errorf("%+v, %v", v, err)
	}
	if all, err := c.Volumes(t.Context()); err != nil || len(all) != 2 {
		t.Errorf("%+v, %v", all, err)
	}
	if _, err := c.Detach(t.Context(), "none"); err == nil || !strings.Contains(err.Error(), "hearth volume list") {
		t.Error(err)
	}
	if v, err := c.Detach(t.Context(), "test"); err != nil || v.Address != vol || v.Label != "test" || v.Size == 0 {
		t.Errorf("%+v, %v", v, err)
	}
}

func TestWhatTheDiskEvictsComesFromTheVolume(t *testing.T) {
	// A disk of 64 MiB and a volume hold a set of twice the disk's size: what the disk has evicted or had no room for
	// lies on the volume. A second pass reads nothing of it from the bucket.
	files := map[string]string{}
	for i := range 128 {
		files[fmt.Sprint("f", i)] = strings.Repeat(fmt.Sprintf("%07d ", i), 1<<17)
	}
	url, vol := bucket(t, files), volumeFile(t, 256<<20, config.Membership{})
	n := start(t, url, func(c *Config) {
		c.Cache.NoDisk, c.Cache.Disks = false, []Disk{{Path: t.TempDir(), Size: Size{Bytes: 64 << 20}}}
		c.Volumes.Devices = []config.Volume{{URL: vol}}
	})
	learned(t, n)
	pass := func() int64 {
		before := n.Status(t.Context()).Egress.Asked["readers"].Bytes
		for name, text := range files {
			var out strings.Builder
			if err := client(t, n).Cat(t.Context(), "/"+name, 0, -1, &out); err != nil || out.String() != text {
				t.Fatalf("%s: %d bytes, %v", name, out.Len(), err)
			}
			if err := n.disk.Flush(t.Context()); err != nil { // in an idle moment writes do not lag
				t.Fatal(err)
			}
			if err := n.volumes.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		return n.Status(t.Context()).Egress.Asked["readers"].Bytes - before
	}
	if first, second := pass(), pass(); first < 128<<20 || second > 0 {
		t.Errorf("%d bytes from the bucket at first, then %d", first, second)
	}
	v := n.volumeTier().Volumes[0]
	if v.Hits == 0 || v.Kept < 64 || v.Lost > 0 {
		t.Errorf("%+v", v)
	}
}

func TestWhatAVolumeHoldsIsNotPrefetched(t *testing.T) {
	// Small files are read in random order. Without a volume their directory is filled from the bucket. Where a volume
	// has them nothing is brought: it would be read twice.
	files := map[string]string{}
	for i := range 200 {
		files[fmt.Sprint("d/f", i)] = strings.Repeat(fmt.Sprint(i, " "), 3000)
	}
	url, vol := bucket(t, files), volumeFile(t, 64<<20, config.Membership{})
	for _, c := range []struct {
		disk, volume, brings bool
	}{{false, true, false}, {true, true, false}, {true, false, true}} { // the first one fills the volume
		n := start(t, url, func(o *Config) {
			if o.Cache.NoDisk = !c.disk; c.disk {
				o.Cache.Disks = []Disk{{Path: t.TempDir(), Size: Size{Bytes: 256 << 20}}}
			}
			if c.volume {
				o.Volumes.Devices = []config.Volume{{URL: vol}}
			}
		})
		if c.volume {
			learned(t, n)
		}
		read := n.small(Mount{}, fuse.Events{Read: func(*hearth.Object, int, bool) {}}).Read
		for i := range 100 {
			x, err := n.tree.Resolve(t.Context(), fmt.Sprint("/d/f", i*37%200))
			if err != nil {
				t.Fatal(err)
			}
			if o := &x.Object; !c.disk {
				var out strings.Builder
				if err := client(t, n).Cat(t.Context(), fmt.Sprint("/d/f", i*37%200), 0, -1, &out); err != nil {
					t.Fatal(err)
				}
			} else {
				read(o, int(o.Size), n.has(o.Block(0).ID()))
			}
		}
		if !c.disk {
			if err := n.volumes.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
		} else if c.brings && !hearthtest.Eventually(t.Context(), time.Minute, func() bool { return n.jobs.ahead.Stats().Files > 0 }) {
			t.Error("nothing was brought")
		} else if s := n.jobs.ahead.Stats(); !c.brings && (s.Areas > 0 || s.Files > 0) {
			t.Errorf("brought what the volume has: %+v", s)
		}
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// lines is a log that a test reads.
type lines struct {
	mu sync.Mutex // guards text
	bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Buffer.Write(b)
}

// String is all of it.
func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Buffer.String()
}

// about are the lines about volumes, without their beginnings.
func (l *lines) about() (all []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.Buffer.String()) {
		if i := strings.Index(line, "msg=\"volume "); i >= 0 {
			all = append(all, line[i:])
		}
	}
	return all
}

func TestTheLogsLastWordOnAVolume(t *testing.T) {
	// An attempt by hand that is refused leaves no line in the log. A volume that is attached, is lost, and comes back
	// is three lines, of which the last is how it is.
	var log lines
	n := start(t, bucket(t, map[string]string{"a": "1"}), func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	c := client(t, n)
	if _, err := c.Attach(t.Context(), config.Volume{URL: t.TempDir() + "/none"}); err == nil {
		t.Error("nothing is there")
	}
	vol := volumeFile(t, 64<<20, config.Membership{})
	if _, err := c.Attach(t.Context(), config.Volume{URL: vol}); err != nil {
		t.Fatal(err)
	}
	said := func(want ...string) {
		t.Helper()
		if !hearthtest.Eventually(t.Context(), time.Minute, func() bool { return len(log.about()) >= len(want) }) {
			t.Fatalf("%q", log.about())
		}
		for i, line := range log.about() {
			if i >= len(want) || !strings.HasPrefix(line, "msg=\"volume "+want[i]) {
				t.Errorf("%q, want %q", log.about(), want)
			}
		}
	}
	said("is in use")
	head := make([]byte, 4096)
	f, err := os.OpenFile(vol, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if _, err := f.ReadAt(head, 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(1 << 20); err != nil {
		t.Fatal(err)
	}
	if v := ended(t, c, warmup.Request{Targets: []string{"/"}, ToVolume: true}, ""); v.State == warmup.Done {
		t.Errorf("%s %s", v.State, v.Error)
	}
	said("is in use", "is out of use")
	if err := f.Truncate(64 << 20); err != nil {
		t.Fatal(err)
	}
	if !hearthtest.Eventually(t.Context(), time.Minute, func() bool { return strings.Contains(log.about()[len(log.about())-1], "is in use") }) {
		t.Errorf("%q", log.about())
	}
}

func TestAVolumeThatComesAndGoesIsLoggedLittle(t *testing.T) {
	// Each change is logged once. Of one that changes all the time the log has four changes a minute, and then the
	// state that it is in, with the number of changes since.
	now := time.Unix(1800000000, 0)
	var v volumeSaid
	var said []string
	look := func(state string) time.Duration {
		say, changes, wait := v.next(state, now)
		if say {
			said = append(said, fmt.Sprint(state, changes))
		}
		return wait
	}
	for i := range 20 {
		look([]string{"in", "out"}[i%2])
		look([]string{"in", "out"}[i%2])
		now = now.Add(time.Second)
	}
	look("in")
	wait := look("in")
	now = now.Add(wait)
	if look("in") != 0 || wait != 40*time.Second {
		t.Errorf("to be looked at again after %v", wait)
	}
	now = now.Add(time.Second)
	look("in")
	look("out")
	if want := []string{"in1", "out1", "in1", "out1", "in17", "out1"}; !slices.Equal(said, want) {
		t.Errorf("%q, want %q", said, want)
	}
}
