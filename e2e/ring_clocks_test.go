package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/node/config"
)

const (
	// clockBound is how old a name may be in the test of clocks. A node that went by a clock that
	// jumps would be an hour late or more, so seenWithin tells that from any machine.
	clockBound, seenWithin = 2 * time.Second, 80 * time.Second
	// jumps of clocks, a second apart.
	jumps = 4
)

// ringClocks has nodes whose clocks are hours apart and jump both ways while all read: no
// read fails, nobody is taken for dead, names are asked for as often as their bound has it,
// and a changed object is seen by all and stays seen, also by a node that starts with a clock
// that has gone back.
func ringClocks(e *env) {
	r := e.ring(0)
	if r == nil {
		return
	}
	binary := e.program("wired")
	list := r.load(r.o, r.few(4, 50))
	one := hearthtest.File{Path: "changing/one", Size: 50_000}
	r.must(r.o.PutFile(r.ctx, r.o.bucket, "", one, 0), "put a file")
	for i, m := range r.add(5, 0) {
		m.set.binary, m.clock = binary, e.path(fmt.Sprintf("clock-%d", i))
		m.moved([]string{"0s", "1h", "-1h", "26h", "-90m"}[i])
	}
	nodes := r.nodes
	r.start(nodes[0])
	r.start(nodes[1:]...)
	r.agree(nodes...)
	r.all("clocks apart", append(list, one), 1, nodes...)
	generations := r.generations()
	readers, began, lists := r.readers(list, true, nodes...), time.Now(), r.p.Stats().List.Requests
	for i := range jumps {
		for k, m := range nodes {
			m.moved([]string{"-1h", "1h", "-26h", "26h", "1m"}[(i+k)%5])
			r.must(m.Process.Signal(syscall.SIGUSR1), "move a clock")
		}
		began := time.Now()
		r.must(r.o.PutFile(r.ctx, r.o.bucket, "", one, i+1), "change a file")
		r.seen(one, i+1, began, nodes...)
		<-time.After(time.Until(began.Add(time.Second))) // the schedule of the jumps
	}
	longest := r.well(readers)
	r.listedSeldom(r.p.Stats().List.Requests-lists, time.Since(began), append(list, one))
	if now := r.generations(); !slices.Equal(now, generations) {
		r.Errorf("nodes knew of rings %v, and while nobody came or went of %v", generations, now)
	}
	r.bounded(longest)
	back := nodes[1]
	back.kill9()
	r.must(r.o.PutFile(r.ctx, r.o.bucket, "", one, jumps+1), "change a file")
	back.moved("-50h")
	r.start(back)
	r.seen(one, jumps+1, time.Now(), back)
	r.agree(nodes...)
	r.all("after all", list, 2, nodes...)
	r.quit(nodes...)
}

// moved has the node's clock be so much ahead, such as -6h, once it looks.
func (m *member) moved(by string) {
	m.ring.Helper()
	m.ring.must(os.WriteFile(m.clock, []byte(by), 0o600), "set a clock")
}

// wired is what a node is told whose clock can be moved.
func (m *member) wired(set settings) []string {
	m.ring.Helper()
	var join []string
	for _, x := range m.join {
		join = append(join, x.listen())
	}
	part, err := json.Marshal(config.Membership{Name: m.name, Listen: m.listen(), Join: join, Cluster: "e2e", KeyFile: m.ring.key})
	m.ring.must(err, "write a node's part")
	return []string{"WIRED_RING=" + string(part), "WIRED_ENDPOINT=" + set.endpoint, "WIRED_SOCKET=" + m.socket(), "WIRED_CACHE=" + m.ring.path(set.cache),
		"WIRED_CLOCK=" + m.clock, fmt.Sprintf("WIRED_FRESHNESS=bounded(%v)", clockBound)}
}

// seen waits until nodes give a version of a file, which was put at a time, and has each give it
// once more when all do: none goes back. How soon is a bound's affair, and tested in virtual time.
func (r *ring) seen(f hearthtest.File, version int, put time.Time, nodes ...*member) {
	r.Helper()
	for _, m := range nodes {
		r.eventually(fmt.Sprintf("version %d at %s", version, m.name), func() bool {
			late := time.Since(put) > seenWithin // looked at before the file is
			errs := epoch(m.dir, []hearthtest.File{f}, 1, 1, version).errors
			if len(errs) > 0 && late {
				r.Fatalf("%s has not version %d after %v, and names are %v old at most: %v", m.name, version, time.Since(put), clockBound, errs)
			}
			return len(errs) == 0
		})
	}
	for _, m := range nodes {
		if errs := epoch(m.dir, []hearthtest.File{f}, 1, 1, version).errors; len(errs) > 0 {
			r.Errorf("%s had version %d and has it no more: %v", m.name, version, errs)
		}
	}
}

// generations are the numbers of the rings that nodes know.
func (r *ring) generations() (all []uint64) {
	r.Helper()
	for _, m := range r.nodes {
		s := m.sees()
		if s == nil {
			r.Fatalf("%s does not say how it sees the ring", m.name)
		}
		all = append(all, s.Generation)
	}
	return all
}

// listedSeldom: in so much time each directory was listed for all nodes as often as its names
// grow older than half of their bound, when they are asked for again behind a reader.
func (r *ring) listedSeldom(lists int64, took time.Duration, list []hearthtest.File) {
	r.Helper()
	dirs, _ := listable(list)
	most := int64(dirs) * (1 + int64(2*took/clockBound))
	if lists > most {
		r.Errorf("%d LISTs of %d directories in %v, whose names may be %v old", lists, dirs, took, clockBound)
	}
	r.shows("%d LISTs of at most %d", lists, most)
}
