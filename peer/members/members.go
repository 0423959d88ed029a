// Package members says who is in the ring. It keeps this node in touch with the others by gossip
// (memberlist), and shows them as immutable snapshots. Gossip carries membership only.
//
// A node is its id, 16 random bytes of its cache directory, which is also its name in memberlist.
// The rest that others know of it are 512 bytes of metadata: its data address, zone, donated bytes,
// state, protocol versions and names. Events of memberlist change a table under one short lock.
// From the table comes a snapshot: at once after the first change, and then at most one each 250
// ms, so that a thousand events make a few snapshots. There is none while Start looks for the
// others, and then one of all that it found.
//
// memberlist forgets the dead after 30 s and does not heal longer partitions. So each 30 s a round
// asks the missing nodes whether they are there by now: every seed, whose names are resolved again,
// and every former member. It asks few at a time, and stops once some have answered, since they
// know the rest. Former members are kept on disk, for the time after a restart. All nodes keep
// them, so that one node that finds another joins two halves. A node that nobody answers is a ring
// of one, says so, and asks more often.
//
// Both sides refuse a node with another key (no message is understood). They refuse another
// cluster's name or a protocol that this node does not understand (no state is merged and no
// message believed). A node with another member's id or name is refused by those who know that
// member, until the member is silent for some seconds. So a node may come back at another address,
// or with an empty cache directory. The node itself learns of its rival by the rival's message, and
// asks it. If the rival answers, the directory was copied or the name given twice, and Start fails.
// If not, the node asks to be let in until it is.
//
// Only this process's monotonic clock is used. The same holds for ages on disk, which grow only
// while a node runs.
package members

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
)

const (
	// leaveWithin is how long the news of this node may take until it has been sent.
	// closeWithin is how long Close waits for a slow disk or logger.
	leaveWithin = 5 * time.Second
	closeWithin = 10 * time.Second
	// tellApart changes of one snapshot get a log line each. More share one line.
	tellApart = 8
)

// ErrRefused is returned by Start when the ring answers and does not let this node in.
var ErrRefused = errors.New("the ring refuses this node")

// ErrPort is returned by Start when another process has the port, or this process may not
// have it.
var ErrPort = errors.New("this node cannot have its port (give node.listen another address or port)")

// ErrLeft and ErrClosed are returned after Leave and Close.
var (
	ErrLeft   = errors.New("the node has left the ring")
	ErrClosed = errors.New("the node has closed its membership")
)

// Members is this node's part in the ring.
type Members struct {
	cfg       Config
	list      *memberlist.Memberlist
	transport *transport
	table     *table
	log       *journal
	state     atomic.Uint32 // a State

	stop, joining         context.Context // both end with Close; joining ends with Leave, too
	cancel, cancelJoining context.CancelFunc
	working               sync.WaitGroup // publish, keepJoined, keepKnown, repeat
	quiet                 chan struct{}  // closed when those have ended, so that the journal may end
	logged                chan struct{}  // closed when the journal has ended
	first                 chan outcome   // capacity 1: the outcome of the first round

	life  sync.Mutex // guards ended, and that memberlist is not asked after its end; locked before memberlist's locks
	ended error      // ErrLeft, then ErrClosed

	mu     sync.Mutex // guards rivals; locked under memberlist's locks, and no lock is taken under it
	rivals map[netip.AddrPort]rival

	apart atomic.Pointer[Apart] // of the last round; nil before the first

	counters
}

type counters struct{ refused, joins, joinsFailed atomic.Int64 }

// Stats are counts since Start, and figures of now.
type Stats struct {
	// Live and Missing are the numbers of members now. This node is among the live.
	Live, Missing int64
	// Refused counts messages of nodes that may not be in this ring.
	Refused int64
	// Cut counts connections that had not shown the key when others took their places.
	Cut int64
	// Joins counts attempts to find a seed or a former member, JoinsFailed those
	// without a good answer.
	Joins, JoinsFailed int64
	// LinesDropped counts lines that were not logged, because the logger was slow, or
	// because there were more than 256 different ones within ten minutes.
	LinesDropped int64
	Apart
}

// Apart is what keeps this node and others from being one ring, as the last round found
// it, with the cure. "" means nothing.
type Apart struct {
	// Refusal is why this node cannot be in one ring with a seed that answers.
	Refusal string
	// Rival is another live node that has this one's id or name.
	Rival string
}

// Start begins to listen and asks seeds and former members. It returns when one of them
// has answered, when all have failed, or when Timing.First is over. If nobody answers,
// the node is a ring of one and keeps asking. The error is ErrRefused if the seeds that
// answer refuse this node, or if a live node has its id or name. It is ErrPort if the
// port cannot be had. Other errors are those of the configuration, the address or the
// context.
func Start(ctx context.Context, cfg Config) (*Members, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	cfg, err := cfg.filled()
	if err != nil {
		return nil, err
	}
	at, err := ResolveListen(cfg.Listen, DefaultPort)
	if err != nil {
		return nil, err
	}
	if err := cfg.mayListen(at.Addr()); err != nil {
		return nil, err
	}
	m := &Members{cfg: cfg, table: newTable(cfg.ID, cfg.Timing.Absent), log: newJournal(cfg.Log), quiet: make(chan struct{}),
		logged: make(chan struct{}), first: make(chan outcome, 1), rivals: map[netip.AddrPort]rival{}}
	known, err := loadKnown(cfg.Dir, cfg.Cluster)
	if err != nil {
		m.log.say(levelWarn, err.Error())
	}
	if err := m.gossip(at); err != nil {
		return nil, err
	}
	m.table.miss(known)
	m.table.replace(nil)
	m.run()
	if err := m.admitted(ctx); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	m.table.replace(m.told)
	m.working.Go(func() { m.table.publish(m.stop.Done(), m.cfg.Timing.Batch, m.told) })
	return m, nil
}

// Tells is how often a node passes a change on, times the logarithm of the ring's size.
// With memberlist's 4, a change missed some node in 4 of 190 rings of five that began at
// once. That node heard of it up to a minute later, when it compared its state with
// another. With 8 that happened in none of 450.
const Tells = 8

// gossip starts memberlist.
func (m *Members) gossip(at netip.AddrPort) error {
	t := m.cfg.Timing
	logger := log.New(heard{m}, "", 0)
	tr, err := listen(at, m.cfg.reach, m.knows, memberlist.NetTransportConfig{Logger: logger})
	if err != nil {
		return err
	}
	m.transport = tr
	c := memberlist.DefaultLANConfig()
	c.Name, c.Transport, c.Logger = m.cfg.ID.String(), tr, logger
	c.BindAddr, c.BindPort = at.Addr().String(), int(tr.address.Port())
	c.AdvertisePort = c.BindPort
	c.SecretKey = m.cfg.Key
	c.TCPTimeout = t.Dial
	c.ProbeInterval, c.ProbeTimeout, c.SuspicionMult = t.Probe, t.ProbeTimeout, t.Suspicion
	c.GossipInterval, c.GossipToTheDeadTime, c.PushPullInterval = t.Gossip, t.Forget, t.PushPull
	c.RetransmitMult = Tells
	// An id that died may come back elsewhere at once: ids are random, so it is the same
	// node.
	c.DeadNodeReclaimTime = time.Nanosecond
	c.EnableCompression = false // states are short, and mostly random bytes
	calls := callbacks{m}
	c.Delegate, c.Events, c.Alive, c.Merge, c.Conflict, c.Ping = calls, calls, calls, calls, calls, calls
	if m.list, err = memberlist.Create(c); err != nil {
		return errors.Join(fmt.Errorf("gossip at %v: %w", at, err), tr.Shutdown())
	}
	return nil
}

// run starts the goroutines that work beside memberlist. Close ends them.
func (m *Members) run() {
	m.stop, m.cancel = context.WithCancel(context.Background())
	m.joining, m.cancelJoining = context.WithCancel(m.stop)
	go func() {
		defer close(m.logged)
		m.log.run(m.quiet)
	}()
	m.working.Go(m.keepJoined)
	m.working.Go(m.keepKnown)
}

// admitted waits for the first round, within bounds.
func (m *Members) admitted(ctx context.Context) error {
	timer := time.NewTimer(m.cfg.Timing.First)
	defer timer.Stop()
	select {
	case o := <-m.first:
		if o.rival != "" {
			return fmt.Errorf("%w: %s", ErrRefused, o.rival)
		}
		if len(o.refused) > 0 && o.joined == 0 && m.alone() {
			return fmt.Errorf("%w: %s", ErrRefused, o.refused[0])
		}
		return nil
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// told logs what changed between two snapshots.
func (m *Members) told(old, next *Snapshot) {
	var lines []line
	for _, x := range next.Members {
		if _, ok := old.Find(x.ID); !ok {
			lines = append(lines, line{levelInfo, "a node is in the ring", []any{"node", x.Name, "address", x.Address.String(), "zone", x.Zone}})
		}
	}
	for _, x := range old.Members {
		if _, ok := next.Find(x.ID); ok {
			continue
		}
		l := line{levelInfo, "a node left the ring", []any{"node", x.Name, "address", x.Address.String()}}
		if x.State != Leaving && next.misses(x.ID) {
			l.level, l.text = levelWarn, "a node is silent and counts as dead; the ring goes on without it"
		}
		lines = append(lines, l)
	}
	if len(lines) > tellApart {
		lines = []line{{levelInfo, "many nodes came or went", []any{"changes", len(lines), "members", len(next.Members), "missing", len(next.Missing)}}}
	}
	for _, l := range lines {
		m.log.say(l.level, l.text, l.args...)
	}
}

// Snapshot is who is in the ring now. It is never nil.
func (m *Members) Snapshot() *Snapshot { return m.table.current.Load() }

// knows reports whether a live or missing member is at an address.
func (m *Members) knows(a netip.Addr) bool {
	s := m.Snapshot()
	return s != nil && s.Knows(a)
}

// Address is where this node gossips.
func (m *Members) Address() netip.AddrPort { return m.transport.address }

// Stats returns the present figures.
func (m *Members) Stats() Stats {
	s := m.Snapshot()
	m.log.mu.Lock()
	dropped := m.log.dropped
	m.log.mu.Unlock()
	stats := Stats{Live: int64(len(s.Members)), Missing: int64(len(s.Missing)), Refused: m.refused.Load(),
		Cut: m.transport.unheard.Evicted() + m.transport.large.Evicted(), Joins: m.joins.Load(), JoinsFailed: m.joinsFailed.Load(), LinesDropped: dropped}
	if apart := m.apart.Load(); apart != nil {
		stats.Apart = *apart
	}
	return stats
}

// Announce tells the others this node's new state. It takes up to 5 s, or until the
// context's deadline. If nobody may have heard of the state by then, Announce logs that,
// and the node announces it once more in the background. An error is ErrLeft or
// ErrClosed.
func (m *Members) Announce(ctx context.Context, s State) error {
	m.life.Lock()
	defer m.life.Unlock()
	err := m.announceLocked(ctx, s)
	if err == nil || m.ended != nil {
		return err
	}
	m.log.say(levelWarn, err.Error()+"; this node announces it once more")
	m.working.Go(m.repeat)
	return nil
}

func (m *Members) announceLocked(ctx context.Context, s State) error {
	if m.ended != nil {
		return m.ended
	}
	m.state.Store(uint32(s))
	if m.alone() && s != Leaving {
		m.working.Go(m.repeat)
	}
	if err := m.list.UpdateNode(within(ctx)); err != nil {
		return fmt.Errorf("announce that this node is %v: %w", s, err)
	}
	return nil
}

// repeat announces the state once more, some time after the first other member is here.
// This works around memberlist 0.7.0 (queueBroadcast), which restarts the numbers of its
// messages when one replaces the only one that waits. This node's second message does
// that while the node is alone, and so does a denial that it is dead. The next message
// that it passes on then has the number of this node's own, and replaces that too if both
// are equally long. An example is the message of a node that came at the same time. This
// node's own next message would remove whatever has that number. So repeat waits twice as
// long as sending that takes. Otherwise one of two nodes that came at once would not be
// announced. The other nodes would hear of it up to a minute later, when they compare
// their states.
func (m *Members) repeat() {
	for s := m.Snapshot(); m.alone(); s = m.Snapshot() { // s first: a member that comes after the look supersedes it
		select {
		case <-s.Superseded():
		case <-m.joining.Done():
			return
		}
	}
	out := time.NewTimer(2 * Tells * m.cfg.Timing.Gossip)
	defer out.Stop()
	select {
	case <-out.C:
	case <-m.joining.Done():
		return
	}
	m.life.Lock()
	defer m.life.Unlock()
	if err := m.announceLocked(m.joining, State(m.state.Load())); err != nil && m.joining.Err() == nil {
		m.log.say(levelWarn, err.Error())
	}
}

// Leave tells the others that this node goes. It takes up to 10 s, or until the context's
// deadline. None of them then takes the node for dead, or looks for it. Close comes next.
func (m *Members) Leave(ctx context.Context) error {
	m.cancelJoining()
	m.life.Lock()
	defer m.life.Unlock()
	if m.ended != nil {
		return m.ended
	}
	err := m.announceLocked(ctx, Leaving)
	m.ended = ErrLeft
	if e := m.list.Leave(within(ctx)); e != nil {
		err = errors.Join(err, fmt.Errorf("leave the ring: %w", e))
	}
	return err
}

// within is how long to wait. It is never 0, which would mean for ever.
func within(ctx context.Context) time.Duration {
	left := leaveWithin
	if deadline, ok := ctx.Deadline(); ok {
		left = min(left, time.Until(deadline))
	}
	return max(left, time.Millisecond)
}

// Close ends gossip without telling the others, who find this node silent unless it left.
// It takes 10 s at most, after an Announce or Leave in flight. Later calls do nothing. A
// last probe of memberlist's ends up to eight of its intervals later, and tells nobody.
func (m *Members) Close() error {
	m.cancel()
	m.life.Lock()
	defer m.life.Unlock()
	if errors.Is(m.ended, ErrClosed) {
		return nil
	}
	m.ended = ErrClosed
	err := m.list.Shutdown()
	go func() { // outlives Close only if the wait below fails
		m.working.Wait()
		close(m.quiet)
	}()
	timer := time.NewTimer(closeWithin)
	defer timer.Stop()
	select {
	case <-m.logged:
	case <-timer.C:
		err = errors.Join(err, fmt.Errorf("close the membership: a write of the last known members or of the log takes more than %v", closeWithin))
	}
	return err
}

// refuse counts a node that may not be in this ring, and logs that once in a while. A
// warning means that the node may not be in the ring yet.
func (m *Members) refuse(key string, level slog.Level, why string) {
	m.refused.Add(1)
	m.log.once(key, level, why)
}
