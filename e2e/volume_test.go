package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/hearthfs/hearth/e2e/nets"
	"github.com/hearthfs/hearth/internal/fakenvmet"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/node/config"
	"github.com/hearthfs/hearth/node/status"
	"github.com/hearthfs/hearth/volume"
)

// volumeSegment is the size of the segments of volumes here: the least, so that a small set fills several.
const volumeSegment = 4 << 20

// volumeScenarios are the scenarios of one node with a volume.
func volumeScenarios() []scenario {
	const behind = "versitygw behind the fault proxy"
	size := func(l level) string {
		return map[level]string{core: "600 files (REDUCED)", all: "2,000 files (REDUCED)", full: "20,000 files"}[l]
	}
	return []scenario{
		{name: "volume-file", issue: "volumes", from: core, limit: 2 * time.Minute, origin: behind, size: size, run: volumeInFile},
		{name: "volume-tcp", issue: "volumes", from: core, limit: 2 * time.Minute, origin: behind, size: size, run: volumeOverTCP},
	}
}

// volumeSet is the set of these scenarios, and twice what a disk of half of it holds.
func (e *env) volumeSet() hearthtest.DataSet {
	e.Helper()
	return e.set("D1", 6, 100, 10, 200)
}

// volumeFile makes a volume of a cluster in a sparse file, with room for a set several times.
func (e *env) volumeFile(name string, list []hearthtest.File, r config.Membership) string {
	e.Helper()
	path := e.path(name)
	f, err := os.Create(path)
	e.must(err, "make a volume's file")
	e.must(f.Truncate((4*sum(list)+64<<20)&^(1<<20-1)), "give %s a size", path)
	e.must(f.Close(), "close %s", path)
	cluster, err := config.ClusterID(r)
	e.must(err, "work out the cluster's id")
	d, err := volume.OpenFile(path)
	e.must(err, "open %s", path)
	_, err = volume.MakeVolume(d, volume.FormatOptions{Cluster: cluster, Label: name, Segment: volumeSegment})
	e.must(err, "format %s", path)
	e.must(d.Close(), "close %s", path)
	return path
}

// volumeLines are a node's lines on its volumes.
func volumeLines(fill string, copies int, urls ...string) string {
	var devices []string
	for _, url := range urls {
		devices = append(devices, fmt.Sprintf("{url: %q}", url))
	}
	return fmt.Sprintf("volumes: {fill: %s, copies: %d, devices: [%s]}\n", fill, copies, strings.Join(devices, ", "))
}

// volumes are the node's.
func (h *hearth) volumes() []status.Volume {
	h.e.Helper()
	all, err := h.client.Volumes(h.e.ctx)
	h.e.must(err, "ask for the volumes")
	return all
}

// rests waits until the node knows its volumes, and nothing waits to be written.
func (h *hearth) rests() {
	h.e.Helper()
	h.e.eventually("volumes that are known and have everything", func() bool {
		return h.diskTier().Dirs[0].Queued == 0 && !slices.ContainsFunc(h.volumes(), func(v status.Volume) bool {
			return v.Away != "" || v.Learned < v.Segments || v.Queued > 0
		})
	})
}

// onVolume are the files of which the node says that a volume holds all.
func (h *hearth) onVolume(list []hearthtest.File) (held []hearthtest.File) {
	h.e.Helper()
	for _, f := range list {
		x, err := h.client.Explain(h.e.ctx, "/"+f.Path, 0)
		h.e.must(err, "explain %s", f.Path)
		if !slices.ContainsFunc(x.Held, func(r status.HeldRange) bool { return r.Volume == "" }) {
			held = append(held, f)
		}
	}
	return held
}

// without are the files of one list that are not in another, which has the same order.
func without(list, held []hearthtest.File) (rest []hearthtest.File) {
	for _, f := range list {
		if len(held) > 0 && held[0] == f {
			held = held[1:]
			continue
		}
		rest = append(rest, f)
	}
	return rest
}

// afresh kills the node, takes its cache directory away and starts it again on the same volume.
func (h *hearth) afresh(o *server, set settings, between func()) {
	h.e.Helper()
	h.kill9()
	h.e.must(os.RemoveAll(h.e.path("cache")), "take the cache directory away")
	between()
	h.launch(o, set)
}

// volumeInFile has a node with a disk for half of a set and a volume in a file lose its process and its disk. What
// the disk evicted comes from the volume then, and the bucket is not asked for it. Bytes of the volume that change are
// misses. Another cluster's volume in its place is named and not used, and the right one is used again by itself.
func volumeInFile(e *env) {
	o := e.origin()
	list := e.load(o, e.volumeSet())
	p := e.proxy(o)
	file := e.volumeFile("volume", list, config.Membership{})
	// Without a prefetch the bucket sends what was read. Names are fresh for long: they count as no GET anyway.
	set := settings{endpoint: p.endpoint, ram: "32MiB", disk: fmt.Sprintf("%dMiB", sum(list)/2>>20), fresh: "immutable",
		mount: []string{"--no-prefetch"}, extra: volumeLines("evicted", 1, file)}
	h := e.mount(o, set)
	h.rests()
	e.good("cold", epoch(h.dir, list, 1, 4, 0))
	h.rests()
	held := h.onVolume(list)
	// The disk holds less than half of the set, since names take room, too. The others were evicted, or never taken,
	// and a volume whose writes lag drops them: a quarter is far from all of those.
	e.shows("the volume holds %d of %d", len(held), len(list))
	if len(held) < len(list)/4 {
		e.Errorf("the volume holds %d of %d files, of which the disk holds less than half: %+v", len(held), len(list), h.volumes())
	}

	h.afresh(o, set, func() {})
	h.rests()
	if lost := without(held, h.onVolume(held)); len(lost) > 0 {
		e.Errorf("the volume has lost %d of %d files with the node, such as %v", len(lost), len(held), lost[0])
	}
	before := p.bytes()
	e.good("from the volume", epoch(h.dir, held, 2, 4, 0))
	h.spared("after kill -9", p.bytes()-before, 0)
	before = p.bytes()
	e.good("all, after kill -9", epoch(h.dir, list, 3, 4, 0))
	h.spared("all, after kill -9", p.bytes()-before, sum(without(list, held)))
	h.rests()
	held = h.onVolume(list)

	h.afresh(o, set, func() { e.flipVolume(file) })
	h.rests()
	still := h.onVolume(held)
	before = p.bytes()
	e.good("from a volume with flipped bytes", epoch(h.dir, held, 4, 4, 0))
	lost := h.volumes()[0].Lost
	e.shows("%d of %d files lost their places to flips, %d their bytes", len(held)-len(still), len(held), lost)
	if lost == 0 || len(still) < len(held)/2 {
		e.Errorf("%d bytes were flipped: %d files lost their bytes, %d their places, of %d", flipped, lost, len(held)-len(still), len(held))
	}
	h.spared("after the flips", p.bytes()-before, sum(without(held, still))+lost*largestOfD1)

	foreign := e.volumeFile("another", list, config.Membership{Cluster: "another"})
	h.afresh(o, set, func() {
		e.must(os.Rename(file, file+".kept"), "set the volume aside")
		e.must(os.Rename(foreign, file), "put another cluster's in its place")
	})
	e.eventually("the line on a foreign volume", func() bool { return h.problem("volume "+file, "belongs to another cluster") })
	e.good("beside another cluster's volume", epoch(h.dir, list, 5, 4, 0))
	if v := h.volumes()[0]; v.Hits > 0 || v.Written > 0 {
		e.Errorf("another cluster's volume is used: %+v", v)
	}
	e.must(os.Rename(file+".kept", file), "put the volume back")
	h.rests()
	e.eventually("no line any more", func() bool { return !h.problem("volume " + file) })
	h.quit()
}

// problem reports whether a problem in the status has all of some words.
func (h *hearth) problem(words ...string) bool {
	h.e.Helper()
	return slices.ContainsFunc(h.status().Problems, func(line string) bool {
		return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) })
	})
}

// largestOfD1 is the size of D1's largest file.
const largestOfD1 = 160 << 10

// spared fails the scenario where the bucket sent more bytes than the volume does not hold. In how many requests is the
// mount's affair: a READ may be shorter than a file. A request that was sent again counts, and a device that did not answer
// for two seconds accounts for anything.
func (h *hearth) spared(what string, sent, most int64) {
	h.e.Helper()
	v, again := h.volumes()[0], h.status().Origin.Retries
	h.e.Logf("%s: %d bytes of %d that may be, %d requests sent again, %+v", what, sent, most, again, v)
	if sent > most+again*largestOfD1 && v.Outages == 0 {
		h.e.Errorf("%s: the bucket sent %d bytes, and the volume does not hold %d: %+v", what, sent, most, v)
	}
}

// flipped is how many bytes of a volume change, beside one of the superblock, a header and a trailer.
const flipped = 24

// flipVolume changes bytes of a volume in a file: of the first superblock, of the header of one segment, of the trailer
// of another, and in the midst of any that were written.
func (e *env) flipVolume(file string) {
	e.Helper()
	d, err := volume.OpenFile(file)
	e.must(err, "open %s", file)
	info, err := volume.Look(d)
	e.must(err, "look at %s", file)
	e.must(d.Close(), "close %s", file)
	f, err := os.Open(file)
	e.must(err, "open %s", file)
	defer func() { _ = f.Close() }()
	var written []int64 // where segments begin
	for n := range int64(info.Segments) {
		var first [1]byte
		_, err := f.ReadAt(first[:], 1<<20+n*info.Segment)
		e.must(err, "read a segment's header")
		if first[0] != 0 {
			written = append(written, 1<<20+n*info.Segment)
		}
	}
	if len(written) < 3 {
		e.Fatalf("only %d segments of %+v were written", len(written), info)
	}
	rng := rand.New(rand.NewPCG(e.seed(), 26))
	rng.Shuffle(len(written), func(i, j int) { written[i], written[j] = written[j], written[i] })
	hearthtest.FlipByte(e, file, 50, 0x40)
	hearthtest.FlipByte(e, file, written[0]+40, 0x40)
	hearthtest.FlipByte(e, file, written[1]+info.Segment-20, 0x40)
	for range flipped {
		hearthtest.FlipByte(e, file, written[rng.IntN(len(written))]+4096+rng.Int64N(info.Segment-8192), byte(1+rng.IntN(255)))
	}
}

// target is an NVMe/TCP target of this process with a volume in a file behind it.
type target struct {
	*fakenvmet.Target
	e    *env
	at   *nets.Host // nil: the machine itself
	name string
}

// target starts one on a machine, at an address that it keeps.
func (e *env) target(at *nets.Host, file string, volatile bool) *target {
	e.Helper()
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	e.must(err, "open %s", file)
	e.Cleanup(func() { _ = f.Close() })
	s, err := f.Stat()
	e.must(err, "stat %s", file)
	t := &target{e: e, at: at, name: s.Name()}
	o := fakenvmet.Options{NQN: "nqn.2014-08.org.example:" + t.name, Listen: []string{"127.0.0.1:0"},
		Namespaces: []fakenvmet.NamespaceOptions{{Size: s.Size(), Backing: f, Volatile: volatile}}}
	if at != nil {
		o.Listen[0] = at.Addr().String() + ":0"
	}
	t.there(func() (err error) { t.Target, err = fakenvmet.New(o); return err })
	e.Cleanup(t.Close)
	return t
}

// there does something on the target's machine. Sockets that it makes are of that.
func (t *target) there(do func() error) {
	t.e.Helper()
	if t.at == nil {
		t.e.must(do(), "have target %s start", t.name)
		return
	}
	t.e.must(t.at.Do(do), "have target %s start", t.name)
}

// url is the volume's address.
func (t *target) url() string { return volume.Scheme + t.Address() + "/" + t.NQN() }

// restart brings a killed target back.
func (t *target) restart() {
	t.e.Helper()
	t.there(t.Restart)
}

// conforms fails the scenario where a host did not keep to the specifications, or found that the target did not.
func (t *target) conforms() {
	t.e.Helper()
	s := t.Stats()
	if bad := t.Violations(); len(bad) > 0 || s.HostTermReqs > 0 {
		t.e.Errorf("target %s: %d H2CTermReqs, and against the specifications: %q", t.name, s.HostTermReqs, bad)
	}
	t.e.Logf("target %s: %d bytes read, %d written, %d controllers", t.name, s.BytesRead, s.BytesWritten, s.Controllers)
}

// hits are the reads that the node's volumes answered.
func (h *hearth) hits() (n int64) {
	h.e.Helper()
	for _, v := range h.volumes() {
		n += v.Hits
	}
	return n
}

// volumeOverTCP kills the target of a volume while a reader reads from it: nobody gets an error or a wrong byte, and a
// line names the volume. Once the target is back the volume is in use again by itself, though the target has lost what
// was never flushed.
func volumeOverTCP(e *env) {
	o := e.origin()
	list := e.load(o, e.volumeSet())
	p := e.proxy(o)
	t := e.target(nil, e.volumeFile("volume", list, config.Membership{}), true)
	h := e.mount(o, settings{endpoint: p.endpoint, ram: "32MiB", disk: fmt.Sprintf("%dMiB", sum(list)/2>>20), fresh: "immutable",
		extra: volumeLines("all", 1, t.url())})
	h.rests()
	e.good("cold", epoch(h.dir, list, 1, 4, 0))
	h.rests()
	kills := map[level]int64{core: 1, all: 2, full: 10}[e.level]
	for range kills {
		before, outages := h.hits(), h.volumes()[0].Outages
		r := e.reader(job{Op: "read", Dir: h.dir, Files: list, Loop: true}) // which leaves nothing in the page cache
		e.eventually("reads from the volume", func() bool { return h.hits() > before+10 })
		t.Kill()
		e.eventually("the line on the volume", func() bool { return h.problem("volume " + t.url() + " is out of use") })
		// Reads wait for a target that comes back soon. This one stays away until the volume is given up.
		e.eventually("an outage", func() bool { return h.volumes()[0].Outages > outages })
		t.restart()
		e.eventually("no line any more", func() bool { return !h.problem("volume " + t.url()) })
		before = h.hits()
		e.eventually("reads from the volume again", func() bool { return h.hits() > before+10 })
		r.end()
		if a := r.result(readWithin * 10); a.Done == 0 || len(a.Errors) > 0 || len(a.Wrong) > 0 {
			e.Errorf("the reader read all %d times; errors %v, wrong %q", a.Done, a.Errors, a.Wrong[:min(3, len(a.Wrong))])
		}
	}
	v := h.volumes()[0]
	e.shows("%d hits, %d blocks lost by the target, %d outages", v.Hits, v.Lost, v.Outages)
	if v.Outages < kills || v.Remote == nil || v.Remote.Connections <= kills {
		e.Errorf("%d kills of the target were %+v, %+v", kills, v, v.Remote)
	}
	h.rests()
	h.quit()
	t.conforms()
}
