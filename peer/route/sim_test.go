//go:build !race

package route

import (
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/peer/place"
)

// The simulation runs the production Router, Tiers and flights of a thousand nodes.
// Transport and bucket are fakes, time is virtual, and a seed decides everything. Nodes
// join, leave and die, and each hears of it at a time of its own.
const (
	// simMoves nodes of a thousand join or leave at a time.
	simMoves   = 20
	simObjects = 1500
	// simLarge more objects are read by runs of blocks. Each has two extents.
	simLarge   = 100
	simReaders = 150
	// simReads is how often each reader reads while the ring changes, simCalm how often
	// afterwards, when all know the same.
	simReads, simCalm = 60, 30
	// simHears is the time within which all have heard of a change. simSilence is the
	// time after which a dead node is given up.
	simHears, simSilence = 3 * time.Second, 500 * time.Millisecond
)

type sim struct {
	size        int // how many nodes at first
	changes     int // how many changes of the ring
	bucketTakes time.Duration
	wrong       func(n *simNode) // makes a router wrong

	bytes []byte // of every View; nobody writes to it

	mu      sync.Mutex // guards the rest
	nodes   map[string]*simNode
	maps    []simMap
	dead    map[string]time.Time
	fetches map[hearth.ID][]fetch // of the bucket, by owners
	strays  map[hearth.ID][]fetch // of the bucket, by other nodes
	faults  map[string]int
}

// simMap is a map, and when nodes began to hear of it.
type simMap struct {
	*place.Map
	told time.Time
}

// fetch is when a node began to ask the bucket.
type fetch struct {
	node string
	at   time.Time
}

type simNode struct {
	*sim
	id     string
	router *Router
	store  *simStore
	own    hearth.Source // the Source from which peers may Fill
	reads  hearth.Source
	deaf   int  // stuck or lonely; 0 hears of all rings
	forgot bool // does not know that owners have changed

	mu    sync.Mutex // guards heard, and taking the ring
	heard time.Time  // when the ring that it knows was announced
}

const (
	stuck  = 1 + iota // hears of the first ring only
	lonely            // hears of none
)

func (s *sim) fault(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults[fmt.Sprintf(format, args...)]++
}

// random is a duration below most. Each actor has a generator of its own, so that a seed
// is one course of events, whatever runs first.
func random(rng *rand.Rand, most time.Duration) time.Duration {
	return time.Duration(rng.Int64N(int64(most)))
}

// distance is how long a hop between two nodes takes.
func distance(from, to string) time.Duration {
	h := fnv.New32a()
	_, _ = h.Write([]byte(from + to))
	return 50*time.Microsecond + time.Duration(h.Sum32()%1000)*time.Microsecond
}

func (s *sim) isDead(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.dead[id].IsZero()
}

func (s *sim) view(n int) *hearth.View {
	if n == 0 {
		return nil
	}
	return hearth.NewView(s.bytes[:n:n])
}

func (s *sim) add(id string) {
	n := &simNode{sim: s, id: id, router: New(id), store: &simStore{sim: s, held: map[hearth.ID]bool{}}}
	if s.wrong != nil {
		s.wrong(n)
	}
	bucket, stray := &simBucket{s, id, s.fetches}, &simBucket{s, id, s.strays}
	own := cache.Through(n.store, n.router.Former(bucket), cache.Always)
	theirs := cache.Through(n.store, n.router.Fill(own, stray), cache.Always)
	n.reads = n.router.Route(own, theirs)
	if n.own == nil {
		n.own = own
	} else {
		n.own = n.reads // a wrong one forwards
	}
	s.nodes[id] = n
}

// tell has nodes hear of the last map, each after a delay of its own; nil means at once.
// They are the nodes of the map and those that have left since, which are readers then.
func (s *sim) tell(rng *rand.Rand) {
	m := s.maps[len(s.maps)-1]
	peers := map[string]Peer{}
	for _, n := range m.Nodes() {
		peers[n.ID] = simPeer{to: s.nodes[n.ID]}
	}
	for _, id := range slices.Sorted(maps.Keys(s.nodes)) {
		node, table := s.nodes[id], Table{Map: m.Map, Peers: peers}
		if rng == nil {
			node.hear(table, m.told)
			continue
		}
		table.Changed = m.told
		time.AfterFunc(random(rng, simHears), func() { node.hear(table, m.told) })
	}
}

// hear takes a ring, unless the node knows a later one.
func (n *simNode) hear(table Table, told time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.deaf == lonely || n.deaf == stuck && !n.heard.IsZero() || told.Before(n.heard) {
		return
	}
	n.heard = told
	if n.forgot {
		table.Changed = time.Time{}
	}
	n.router.Set(table)
}

// churn changes the ring: some join, some leave, one dies and is missed later.
func (s *sim) churn(t *testing.T, rng *rand.Rand, list []place.Node) {
	for i := range s.changes {
		time.Sleep(time.Second + random(rng, 3*time.Second))
		if i%4 == 3 {
			time.Sleep(2 * simHears) // all know the same for a while
		}
		switch i % 3 {
		case 0:
			for k := range simMoves {
				id := fmt.Sprintf("late-%02d-%d", i, k)
				s.mu.Lock()
				s.add(id)
				s.mu.Unlock()
				list = append(list, place.Node{ID: id, Weight: 4 << 40})
			}
		case 1:
			at := rng.IntN(len(list) - simMoves)
			list = slices.Delete(slices.Clone(list), at, at+simMoves) // they still answer others that have not heard
		case 2:
			at := rng.IntN(len(list))
			s.mu.Lock()
			s.dead[list[at].ID] = time.Now()
			s.mu.Unlock()
			time.Sleep(2 * time.Second) // the failure detector's
			list = slices.Delete(slices.Clone(list), at, at+1)
		}
		next, err := s.maps[len(s.maps)-1].Next(list)
		if err != nil {
			t.Error(err)
			return
		}
		s.mu.Lock()
		s.maps = append(s.maps, simMap{next, time.Now()})
		s.mu.Unlock()
		s.tell(rng)
	}
}

// run runs everything and returns what was wrong.
func (s *sim) run(t *testing.T, seed uint64) map[string]int {
	chance := func(who uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, who)) }
	rng := chance(simReaders)
	s.nodes, s.dead, s.bytes = map[string]*simNode{}, map[string]time.Time{}, make([]byte, hearth.BlockSize)
	s.fetches, s.strays, s.faults = map[hearth.ID][]fetch{}, map[hearth.ID][]fetch{}, map[string]int{}
	var list []place.Node
	for i := range s.size {
		id := fmt.Sprintf("node-%04d", i)
		list = append(list, place.Node{ID: id, Zone: fmt.Sprint(i % 3), Weight: (1 + rng.Int64N(8)) << 40})
		s.add(id)
	}
	m, err := place.New(list)
	if err != nil {
		t.Fatal(err)
	}
	s.maps = append(s.maps, simMap{m, time.Now()})
	s.tell(nil)
	readers, chances := make([]*simNode, simReaders), make([]*rand.Rand, simReaders)
	for i := range readers {
		readers[i], chances[i] = s.nodes[list[rng.IntN(len(list))].ID], chance(uint64(i))
	}
	var work sync.WaitGroup
	phase := func(reads int) {
		for i, reader := range readers {
			work.Go(func() { reader.readAll(t.Context(), chances[i], reads) })
		}
	}
	phase(simReads)
	work.Go(func() { s.churn(t, rng, list) })
	work.Wait()
	time.Sleep(simHears + s.lag())
	phase(simCalm)
	work.Wait()
	s.judge()
	return s.faults
}

func TestASeedIsOneCourse(t *testing.T) {
	// A seed gives the same run twice: the same fetches by the same nodes, the same
	// strays, and as many requests.
	type course struct {
		fetches, strays map[hearth.ID]map[string]int
		sums            [5]int64
	}
	run := func(seed uint64) (c course) {
		synctest.Test(t, func(t *testing.T) {
			s := &sim{size: 200, changes: 6, bucketTakes: 20 * time.Millisecond}
			if faults := s.run(t, seed); len(faults) > 0 {
				t.Errorf("seed %d: %v", seed, faults)
			}
			c.fetches, c.strays = counted(s.fetches), counted(s.strays)
			for _, n := range s.nodes {
				x := n.router.Stats()
				for i, n := range []int64{x.Asked, x.Detours, x.Peeks, x.Found, x.Late} {
					c.sums[i] += n
				}
			}
		})
		return c
	}
	seed := hearthtest.Seed(t)
	first, again, other := run(seed), run(seed), run(seed+1)
	if !reflect.DeepEqual(first, again) {
		t.Errorf("seed %d: %v, and then %v", seed, first.sums, again.sums)
	}
	if reflect.DeepEqual(first, other) {
		t.Errorf("seeds %d and %d are one course", seed, seed+1)
	}
}

func TestAThousandNodes(t *testing.T) {
	// No read takes more than one Fill that leads anywhere. None waits in a circle:
	// virtual time would stand still, which synctest reports. None fails or takes longer
	// than two silences and the bucket. A block is fetched only by its owners in the maps
	// that coexist at the time. It is not fetched again if all know one map and an owner
	// asks a node that has it.
	seed := hearthtest.Seed(t)
	for _, takes := range []time.Duration{20 * time.Millisecond, 2 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			s := &sim{size: 1000, changes: 12, bucketTakes: takes}
			if faults := s.run(t, seed); len(faults) > 0 {
				t.Errorf("seed %d, bucket %v: %v", seed, takes, faults)
			}
			asked, detours, found, fetched := int64(0), int64(0), int64(0), 0
			for _, n := range s.nodes {
				f := n.router.Stats()
				asked, detours, found = asked+f.Asked, detours+f.Detours, found+f.Found
			}
			for by := range maps.Values(s.fetches) {
				fetched += len(by)
			}
			runs := 0
			for i := range simLarge {
				runs += len(s.fetches[largeObject(i).Block(1).ID()])
			}
			t.Logf("bucket %v: %d blocks were fetched %d times, %d of them first of a run's; %d Fills, %d detours, %d found at former owners", takes, len(s.fetches), fetched, runs, asked, detours, found)
			if asked < simReaders*simReads/4 || len(s.fetches) < simObjects/2 || runs < simLarge/2 || found == 0 {
				t.Errorf("%d Fills, %d blocks fetched, %d in runs, %d found at former owners show nothing", asked, len(s.fetches), runs, found)
			}
		})
	}
}

func TestWrongRoutersAreFound(t *testing.T) {
	// The judge catches every wrong router. One answers a Fill as it reads itself, and so
	// forwards it. One does not know itself and asks itself. One keeps nothing and
	// fetches again and again. One knows nobody and takes everything for its own. One
	// hears of no change and fetches what it owned once. One forgets that there was a
	// change, and long afterwards fetches what a former owner has.
	for want, wrong := range map[string]func(n *simNode){
		"a Fill leads to a Fill":                        func(n *simNode) { n.own = hearthtest.Source(nil) },
		"a node asks itself":                            func(n *simNode) { n.router.self = "somebody" },
		"a node fetched a block twice":                  func(n *simNode) { n.store.full = true },
		"a node fetched what it did not own":            func(n *simNode) { n.deaf = lonely },
		"a node fetched what another one owned by then": func(n *simNode) { n.deaf = stuck },
		"a node fetched what a former owner has":        func(n *simNode) { n.forgot = true },
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &sim{size: 60, changes: 1, bucketTakes: 20 * time.Millisecond, wrong: wrong}
			if faults := s.run(t, 1); faults[want] == 0 {
				t.Errorf("%s: not found in %v", want, faults)
			}
		})
	}
}
