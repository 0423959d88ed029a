package owners

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/peer/route"
	"github.com/hearthfs/hearth/warmup"
	"github.com/hearthfs/hearth/warmup/pins"
)

// Join turns this node's Checker and Room into those of the ring. From then on, this node
// answers other nodes with its own.
func (o *Owners) Join(checker warmup.Checker, room warmup.Room) (warmup.Checker, warmup.Room) {
	if o.o.Served != nil {
		o.o.Served.side(o.o.Volumes).parts.Store(&parts{checker, room})
	}
	return checks{checker, o}, &ringRoom{o, room}
}

// checks is the warmup.Checker of a ring. Names, and files that belong to no object, are
// checked at this node.
type checks struct {
	warmup.Checker
	of *Owners
}

// Verify is warmup.Checker's. The owner reads the blocks, and is named with what it
// finds. Blocks that nobody could be asked for are missing.
func (c checks) Verify(ctx context.Context, x *hearth.Object, first, n int64, pace warmup.Pace) warmup.Verdict {
	o, b := c.of, x.Block(first)
	if !x.Cacheable() {
		return c.Checker.Verify(ctx, x, first, n, pace)
	}
	bytes := int64(0)
	for i := range n {
		bytes += int64(x.Block(first + i).Len())
	}
	w := o.way(b)
	paced := false
	for {
		id, at := o.step(&w)
		switch at {
		case route.Nobody:
			return warmup.Verdict{Missing: bytes, Cause: w.nobody(b).Error()}
		case route.Here:
			v := c.Checker.Verify(ctx, x, first, n, pace)
			return o.found(id, v)
		}
		if !paced {
			if err := pace(ctx, bytes); err != nil {
				return warmup.Verdict{Missing: bytes, Cause: err.Error()}
			}
			paced = true
		}
		v, err := o.verify(ctx, id, run{objectOf(x), first, n}, bytes)
		switch {
		case err == nil:
			return o.found(id, v)
		case !elsewhere(ctx, err):
			return warmup.Verdict{Missing: bytes, Cause: err.Error()}
		}
		w.why = err
	}
}

func (o *Owners) found(id string, v warmup.Verdict) warmup.Verdict {
	for _, says := range []*string{&v.Cause, &v.Unable} {
		if *says != "" {
			*says = "at node " + o.name(id) + ": " + *says
		}
	}
	return v
}

// verify has a node check blocks of so many bytes.
func (o *Owners) verify(ctx context.Context, id string, r run, bytes int64) (warmup.Verdict, error) {
	body, err := view(r)
	if err != nil {
		return warmup.Verdict{}, err
	}
	answer, err := o.call(ctx, id, o.number(callCheck), body)
	if err != nil {
		return warmup.Verdict{}, err
	}
	v, err := parseVerdict(answer, bytes)
	if err != nil {
		return v, o.at(id, err)
	}
	return v, nil
}

const (
	// roomEvery is how old the answers of nodes about their room may be. roomWithin is
	// how long they are waited for. An earlier answer counts for a node that gives none.
	roomEvery, roomWithin = time.Second, 2 * time.Second
)

// rooms are the last answers of other nodes. Owners' lock guards them.
type rooms struct {
	told  map[string]room
	at    time.Time
	asked chan struct{} // closed when the question in flight has been answered; nil means that none is
}

// ringRoom is the warmup.Room of a ring. It has one directory, since nobody chooses where
// a block lies.
type ringRoom struct {
	of    *Owners
	local warmup.Room
}

// Needs is warmup.Room's.
func (r *ringRoom) Needs(o *hearth.Object) (int, int64) {
	_, bytes := r.local.Needs(o)
	return 0, bytes
}

// Rooms is warmup.Room's: the sum over the nodes, as far as they tell.
func (r *ringRoom) Rooms(targets []string) []int64 {
	sum := roomOf(r.local, targets).Room
	for _, x := range r.of.roomsNow() {
		sum += x.Room
	}
	return []int64{sum}
}

// Free is warmup.Room's: what all nodes can take evenly, since each takes its share.
func (r *ringRoom) Free() []int64 {
	mine := roomOf(r.local, nil)
	least, sum := share(mine), mine.Room
	for _, x := range r.of.roomsNow() {
		least, sum = min(least, share(x)), sum+x.Room
	}
	return []int64{int64(least * float64(sum))}
}

// share is the fraction of a node's room that is free.
func share(x room) float64 {
	if x.Room <= 0 {
		return 0
	}
	return min(1, float64(x.Free)/float64(x.Room))
}

// Covered is warmup.Room's. A pin covers what lies at its node, which is not all.
func (*ringRoom) Covered(string, []string) bool { return false }

// Within is warmup.Room's.
func (*ringRoom) Within([]string) []*warmup.Set { return nil }

// Of says what the room belongs to.
func (r *ringRoom) Of() (p pins.Place) {
	nodes, told := r.of.o.Names(), len(r.of.roomsNow())
	what := "cache directories"
	if local, ok := r.local.(interface{ Of() pins.Place }); ok {
		p = local.Of()
		what = p.Of
	}
	p.Of = fmt.Sprintf("the %s of the ring's %d nodes", strings.TrimPrefix(what, "the "), len(nodes))
	if silent := len(nodes) - 1 - told; silent > 0 {
		p.Of += fmt.Sprintf(" (%d did not say what they have)", silent)
	}
	p.Of += ","
	return p
}

// roomOf is the sum over a node's directories.
func roomOf(r warmup.Room, targets []string) (x room) {
	for _, n := range r.Rooms(targets) {
		x.Room += n
	}
	for _, n := range r.Free() {
		x.Free += n
	}
	return x
}

// roomsNow are the last answers of the other nodes.
func (o *Owners) roomsNow() map[string]room {
	o.mu.Lock()
	r := &o.rooms
	if r.asked == nil && time.Since(r.at) >= roomEvery {
		asked := make(chan struct{})
		if o.goLocked(func() { o.askRooms(asked) }) {
			r.asked = asked
		}
	}
	asked := r.asked
	o.mu.Unlock()
	if asked != nil {
		<-asked
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.rooms.told // the map is replaced, never changed
}

// askRooms asks all other nodes.
func (o *Owners) askRooms(asked chan struct{}) {
	ctx, cancel := context.WithTimeout(o.ctx, roomWithin)
	defer cancel()
	nodes := maps.Clone(o.o.Names())
	delete(nodes, o.o.Router.Self())
	o.mu.Lock()
	before := o.rooms.told
	o.mu.Unlock()
	told := map[string]room{}
	var mu sync.Mutex // guards told
	beside(nodes, func(id, _ string) {
		answer, err := o.call(ctx, id, o.number(callRoom), nil)
		x, ok := parseRoom(answer)
		if err != nil || !ok {
			x, ok = before[id]
		}
		mu.Lock()
		defer mu.Unlock()
		if ok {
			told[id] = x
		}
	})
	o.mu.Lock()
	defer o.mu.Unlock()
	o.rooms = rooms{told: told, at: time.Now()}
	close(asked)
}
