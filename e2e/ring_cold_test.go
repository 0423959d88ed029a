package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// ringCold reads one set on all nodes at once, each in its own order, on an empty ring: the
// origin sends it once, and nothing when they read it again.
func ringCold(set string) func(e *env) {
	return func(e *env) {
		r := e.ring(originLink)
		if r == nil {
			return
		}
		list := r.load(r.o, r.part(set, 10))
		r.set.fresh = "bounded(10m)" // each directory is listed once, however slow the machine
		r.up(5, nodeLink)
		before, start := r.p.Stats(), time.Now()
		r.once("origin", list, r.nodes, func() { r.all("cold", list, 1, r.nodes...) })
		r.shows("%v", time.Since(start).Round(100*time.Millisecond))
		r.listed(before, list)
		r.links(time.Since(start))
		r.again("again", list, r.nodes, func() { r.all("again", list, 2, r.nodes...) })
		r.quit(r.nodes...)
	}
}

// part is a set in the size of the level: so many of its directories, or all at full.
func (r *ring) part(name string, dirs int) hearthtest.DataSet {
	r.Helper()
	return r.env.set(name, dirs, 80, dirs, 80)
}

// links has the log say what passed each link, and how much of it that is of the link.
func (r *ring) links(took time.Duration) {
	r.Helper()
	say := func(name string, sent, received int64, mbit float64) {
		could := mbit / 8 * 1e6 * took.Seconds()
		r.Logf("link of %s: %d bytes sent (%.0f %%), %d received (%.0f %%)", name, sent, 100*float64(sent)/could, received, 100*float64(received)/could)
	}
	sent, received, err := r.bucket.Traffic()
	r.must(err, "read the origin's traffic")
	say("the origin", sent, received, originLink)
	for _, m := range r.nodes {
		sent, received, err := m.at.Traffic()
		r.must(err, "read a node's traffic")
		say(m.name, sent, received, nodeLink)
	}
}

// ringLarge reads one large file on all nodes at once: the origin sends it once, no node
// serves more than twice what the mean does, and a large one takes at most twice as long as
// the busiest kind of link.
func ringLarge(e *env) {
	r := e.ring(originLink)
	if r == nil {
		return
	}
	r.set.fresh = "bounded(1s)" // files come while the nodes run
	nodes := r.up(5, nodeLink)
	f := r.spread(map[level]int64{core: 64 << 20, all: 128 << 20, full: 1 << 30}[e.level])
	list := []hearthtest.File{f}
	before, start := r.served(), time.Now()
	r.once("origin", list, nodes, func() { r.all("cold", list, 1, nodes...) })
	took := time.Since(start)
	r.links(took)
	var total, most int64
	for name, bytes := range r.served() {
		bytes -= before[name]
		total, most = total+bytes, max(most, bytes)
	}
	mean := float64(total) / float64(len(nodes))
	if float64(most) > 2*mean {
		r.Errorf("one node served %d bytes, the mean is %.0f", most, mean)
	}
	r.shows("the busiest served %.2f of the mean", float64(most)/mean)
	n := float64(len(nodes))
	least := float64(f.Size) * 8 / 1e6 * max(1/float64(originLink), (n-1)/n/nodeLink)
	r.shows("%.1f s, the links take %.1f", took.Seconds(), least)
	if r.level == full && !r.race && took.Seconds() > 2*least+2 {
		r.Errorf("that is more than twice")
	}
	r.quit(nodes...)
}

// block is what is kept as one, and extent what is placed as one, in bytes.
const block, extent = 1 << 20, 16 << 20

// spread stores a large file of which no node owns more than one and a half of the mean: few
// parts of few nodes are not spread by themselves as many are: of eight parts of five nodes one
// name in six does it.
func (r *ring) spread(size int64) hearthtest.File {
	r.Helper()
	parts := (size + extent - 1) / extent
	for try := range 100 {
		f := hearthtest.File{Path: fmt.Sprintf("large-%d/one.safetensors", try), Size: size}
		r.must(r.o.PutFile(r.ctx, r.o.bucket, "", f, 0), "put a large file")
		o := r.owners(r.nodes[0], f)
		owns, most := map[string]int64{}, int64(0)
		for _, x := range o.Extents {
			owns[x.Owners[0]]++
			most = max(most, owns[x.Owners[0]])
		}
		if 2*most*int64(len(r.nodes)) <= 3*parts+int64(len(r.nodes)) {
			return f
		}
		r.must(r.o.Delete(r.ctx, r.o.bucket, f.Path), "delete a file")
	}
	r.Fatal("no file is spread over the nodes")
	return hearthtest.File{}
}

// served are the bytes that each node has sent its peers. A node that the machine lets wait for half a second says nothing
// of itself, and is asked again.
func (r *ring) served() (served map[string]int64) {
	r.Helper()
	r.eventually("what each node has sent", func() bool {
		s := r.nodes[0].sees()
		if s == nil {
			return false
		}
		served = map[string]int64{}
		for _, m := range s.Members {
			if m.Silent != "" {
				return false
			}
			served[m.Name] = m.Served
		}
		return true
	})
	return served
}

// ringSlowOrigin reads files on all nodes at once from an origin whose first byte takes two
// seconds, one of them of many blocks and two parts: each block is asked for once, however
// long the others wait for it and whatever runs of blocks they ask for.
func ringSlowOrigin(e *env) {
	r := e.ring(0)
	if r == nil {
		return
	}
	list := r.load(r.o, r.few(1, map[level]int{core: 10, all: 20, full: 200}[e.level]))
	large := hearthtest.File{Path: "large/one.safetensors", Size: 20<<20 + 12345}
	r.must(r.o.PutFile(r.ctx, r.o.bucket, "", large, 0), "put a large file")
	blocks := int64(len(list)) + (large.Size+block-1)/block
	list = append(list, large)
	r.up(5, 0)
	r.p.SetFirstByte(2 * time.Second)
	defer r.p.SetFirstByte(0)
	before := r.events(r.nodes...)
	got, gets := r.asked(func() { r.all("a slow origin", list, 1, r.nodes...) })
	since := r.events(r.nodes...).since(before)
	twice := since.passed + since.retries
	r.shows("%d requests for %d blocks", gets, blocks)
	if gets > blocks+twice || got < sum(list) || got > sum(list)+twice*block {
		r.Errorf("%d blocks of %d bytes were asked for by %d requests, %d bytes; %v", blocks, sum(list), gets, got, since)
	}
	r.steady("a slow origin", since)
	r.excuses("a slow origin", twice, blocks)
	r.p.SetFirstByte(0)
	r.quit(r.nodes...)
}

// ringThird has each node donate a third of the set: what no node holds alone the ring
// holds, and the second epoch asks the origin for nothing.
func ringThird(e *env) {
	r := e.ring(0)
	if r == nil {
		return
	}
	list := r.load(r.o, r.donated())
	r.set.ram, r.set.disk = "32MiB", fmt.Sprintf("%dMiB", sum(list)/3>>20)
	r.up(map[level]int{core: 5, all: 5, full: 8}[e.level], 0)
	// These readers leave nothing in the page cache.
	r.well(r.readers(list, false, r.nodes...))
	r.held(list)
	r.nothing("the second epoch", list, r.nodes)
	r.hits(list, 2)
	r.quit(r.nodes...)
}

// hits compares the hit ratios that nodes give, of which each has read the set so often, with what
// the origin counts by their addresses. A part of what a node fetched was for others' readers.
func (r *ring) hits(list []hearthtest.File, epochs int) {
	r.Helper()
	s := r.nodes[0].sees()
	if s == nil {
		r.Fatal("a node does not say how it sees the ring")
	}
	for _, x := range s.Members {
		got, _ := r.fetched(r.named(x.Name))
		want := 1 - float64(got)/float64(int64(epochs)*sum(list))
		r.Logf("%s has a hit ratio of %.3f, by the origin %.3f", x.Name, x.HitRatio, want)
		if x.HitRatio < want-0.01 || x.HitRatio >= 1 {
			r.Errorf("%s says that its hit ratio is %.3f, by the origin's count it is %.3f or more, and not all", x.Name, x.HitRatio, want)
		}
	}
}

// donated is a set of which a third is more than the 64 MiB in which nodes count what they
// donate, and whose parts are so many that each node owns about as much as any other.
func (r *ring) donated() hearthtest.DataSet {
	r.Helper()
	return r.env.set("D1", 10, 200, 10, 200)
}

// ringOwners asks every node who owns a thousand files of many, at random, and reads them on all: the answers
// are the same, and what each node serves is what they say.
func ringOwners(e *env) {
	r := e.ring(0)
	if r == nil {
		return
	}
	list := r.load(r.o, r.env.set("D1s", 2, 100, 10, 200))
	nodes := r.up(5, 0)
	// The first ones lie in few directories.
	asked := slices.Clone(list)
	rand.New(rand.NewPCG(r.seed, 1000)).Shuffle(len(asked), func(i, j int) { asked[i], asked[j] = asked[j], asked[i] })
	asked = asked[:min(1000, len(asked))]
	first := r.told(nodes[0], asked)
	for _, m := range nodes[1:] {
		if r.told(m, asked) != first {
			r.Errorf("%s says otherwise than %s who owns what", m.name, nodes[0].name)
		}
	}
	owned := r.owned(first, asked)
	r.all("cold", list, 1, nodes...)
	worst := 0.0
	s := nodes[0].sees()
	for _, m := range s.Members {
		predicted := m.Share * float64(sum(list)) * float64(len(nodes)-1)
		off := float64(m.Served)/predicted - 1
		r.Logf("%s owns %.3f by its share, %.3f of those asked for, and served %d bytes, %+.1f %% of what was predicted",
			m.Name, m.Share, float64(owned[m.Name])/float64(len(asked)), m.Served, 100*off)
		if worst = max(worst, off, -off); off > 0.2 || off < -0.2 {
			r.Errorf("%s served %d bytes, its share predicts %.0f", m.Name, m.Served, predicted)
		}
	}
	r.shows("served is within %.0f %% of the shares", 100*worst)
	r.quit(nodes...)
}

// told is what `hearth ring owners` says at a node of files.
func (r *ring) told(by *member, list []hearthtest.File) string {
	r.Helper()
	args := []string{"ring", "owners", "-o", "json", "--node", "unix://" + by.socket()}
	for _, f := range list {
		args = append(args, "/"+f.Path)
	}
	out, code := r.run(r.env.hearth, args...)
	if code != 0 {
		r.Fatalf("hearth ring owners at %s: exit %d: %s", by.name, code, out[:min(2000, len(out))])
	}
	return out
}

// owned counts the files of each node in the output of `hearth ring owners`, which names
// each that was asked for.
func (r *ring) owned(out string, asked []hearthtest.File) map[string]int {
	r.Helper()
	var all []struct {
		Path    string
		Extents []struct{ Owners []string }
	}
	r.must(json.Unmarshal([]byte(out), &all), "read what hearth ring owners says")
	owned, paths := map[string]int{}, map[string]bool{}
	for _, o := range all {
		if len(o.Extents) != 1 || len(o.Extents[0].Owners) == 0 {
			r.Fatalf("%s has not one owner: %+v", o.Path, o.Extents)
		}
		owned[o.Extents[0].Owners[0]]++
		paths[strings.Trim(o.Path, "/")] = true
	}
	for _, f := range asked {
		if !paths[f.Path] {
			r.Fatalf("nothing is said of %s", f.Path)
		}
	}
	return owned
}
