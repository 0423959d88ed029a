package members

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// triesARound addresses are asked in a round, joinsATime of them at once. A thousand
	// nodes that look for five hundred must not drown in each other's states.
	triesARound = 16
	joinsATime  = 4
	// enoughJoins answers end a round: each node that answers knows the rest, and gossip
	// spreads it. Start waits for one.
	enoughJoins = 3
	// challenges are sent to a rival before it counts as silent.
	challenges = 3
	maxRivals  = 16
	// maxResolved addresses of one seed are used.
	maxResolved = 1024
)

// rival is another node that has what must be unique: this node's id or its name.
type rival struct {
	id     ID
	at     netip.AddrPort
	claims string
}

// meet notes a rival. keepJoined finds out whether it lives.
func (m *Members) meet(r rival) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.rivals) < maxRivals {
		m.rivals[r.at] = r
	}
}

func (m *Members) takeRivals() []rival {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []rival
	for at, r := range m.rivals {
		all = append(all, r)
		delete(m.rivals, at)
	}
	return all
}

// outcome is the outcome of a round.
type outcome struct {
	joined  int
	refused []string // why this node cannot be in one ring with seeds that answered
	silent  []error  // errors of addresses that did not answer, and of names
	rival   string   // what a live node has, too
	pending string   // what a silent node had; it still keeps this node out
}

// apart is what Stats shows of the outcome.
func (o outcome) apart() *Apart {
	return &Apart{Refusal: strings.Join(o.refused[:min(len(o.refused), 1)], ""), Rival: o.rival}
}

// keepJoined looks for missing members until the node leaves or closes.
func (m *Members) keepJoined() {
	pace := pace{Timing: m.cfg.Timing}
	again, accepted := false, false
	for first := true; ; first = false {
		m.table.expire()
		o, ended := m.round(again, first)
		if m.joining.Err() != nil {
			<-ended
			return
		}
		again = o.pending != "" || o.rival != ""
		alone := m.alone()
		m.apart.Store(o.apart())
		m.tell(o, alone, accepted, first)
		accepted = accepted || !again
		if first {
			m.first <- o
		}
		timer := time.NewTimer(pace.wait(again, alone && (len(m.cfg.Seeds) > 0 || len(o.silent) > 0)))
		select {
		case <-timer.C:
		case <-m.joining.Done():
			timer.Stop()
		}
		<-ended
	}
}

// pace is how often rounds begin.
type pace struct {
	Timing
	lonely time.Duration // the last wait of a node that is alone
}

// wait is the time to the next round. again means that this node may not be let in yet.
// lonely means that nobody else is in the ring though somebody should be.
func (p *pace) wait(again, lonely bool) time.Duration {
	usual := p.Rejoin - time.Duration(rand.Int64N(int64(p.Rejoin)/10+1)) // so that not all nodes look at once
	switch {
	case again:
		return min(usual, 2*p.Retry)
	case lonely:
		p.lonely = min(max(p.Retry, 2*p.lonely), p.Rejoin)
		return min(usual, p.lonely)
	}
	p.lonely = 0
	return usual
}

// alone reports whether nobody else is in the ring.
func (m *Members) alone() bool { return len(m.table.addresses()) <= 1 }

// tell logs how a round ended, and does not repeat the same kind of outcome for a while.
func (m *Members) tell(o outcome, alone, accepted, first bool) {
	switch {
	case o.rival != "" && !first: // in the first round Start reports it
		m.log.once("rival", levelError, o.rival)
	case o.pending != "" && !accepted: // once accepted, the other node must wait
		m.log.once("pending", levelInfo, o.pending)
	case alone && len(o.silent) > 0:
		m.log.once("alone", levelWarn, "no seed and no former member answers: this node goes on alone and keeps trying",
			"seeds", strings.Join(m.cfg.Seeds, ","), "error", brief(o.silent))
	case !alone:
		m.log.forget("alone")
	}
	for _, why := range o.refused {
		m.log.once("refused "+why, levelError, why)
	}
}

// brief is the first of several errors.
func brief(errs []error) string {
	switch len(errs) {
	case 0:
		return ""
	case 1:
		return errs[0].Error()
	}
	return fmt.Sprintf("%v, and %d more", errs[0], len(errs)-1)
}

// round asks for missing members once. again asks present members, too, since they may
// not have let this node in. With first, one answer is enough. The channel is closed when
// the slow attempts have ended, too.
func (m *Members) round(again, first bool) (outcome, <-chan struct{}) {
	seeds, errs := m.seeds()
	to := m.missing(seeds)
	to = to[:min(len(to), triesARound)]
	if again {
		here := m.table.addresses()
		delete(here, m.Address())
		for at := range here { // in random order
			if to = append(to, at); len(to) >= triesARound+enoughJoins {
				break
			}
		}
	}
	enough := enoughJoins
	if first {
		enough = 1
	}
	o, ended := m.ask(to, seeds, enough)
	o.silent = append(o.silent, errs...)
	for _, r := range m.takeRivals() {
		if r.at != m.Address() && m.answers(r) { // at its own address the node replaces what was there before
			o.rival = fmt.Sprintf("a node at %v has %s, too: if a cache directory was copied, delete the copy; else give one of the two another name", r.at, r.claims)
		} else {
			o.pending = fmt.Sprintf("a node at %v, silent now, had %s: the ring lets this node in when it has noticed", r.at, r.claims)
		}
	}
	return o, ended
}

// ask joins by each address until enough have answered. Attempts that are still in flight
// end later, and then close the channel.
func (m *Members) ask(to, seeds []netip.AddrPort, enough int) (outcome, <-chan struct{}) {
	var mu sync.Mutex // guards o, and answered against a second close
	var o outcome
	answered, ended := make(chan struct{}), make(chan struct{})
	one := func(at netip.AddrPort) {
		select {
		case <-answered:
			return
		case <-m.joining.Done():
			return
		default:
		}
		_, err := m.list.Join([]string{at.String()})
		m.joins.Add(1)
		mu.Lock()
		defer mu.Unlock()
		if err == nil {
			if o.joined++; o.joined == enough {
				close(answered)
			}
			return
		}
		m.joinsFailed.Add(1)
		if why := refusal(err, at, m.cfg.Cluster); why != "" && slices.Contains(seeds, at) {
			o.refused = append(o.refused, why)
		} else {
			o.silent = append(o.silent, fmt.Errorf("%v: %s", at, plain(err, at)))
		}
	}
	go func() {
		defer close(ended)
		var g errgroup.Group
		g.SetLimit(joinsATime)
		for _, at := range to {
			g.Go(func() error { one(at); return nil })
		}
		_ = g.Wait() // none of them returns an error
	}()
	select {
	case <-answered:
	case <-ended:
	}
	mu.Lock()
	defer mu.Unlock()
	return outcome{joined: o.joined, refused: slices.Clone(o.refused), silent: slices.Clone(o.silent)}, ended
}

// refusal is why the node at an address and this one cannot be in one ring. "" means that
// it did not say.
func refusal(err error, at netip.AddrPort, cluster string) string {
	if _, why, ok := strings.Cut(err.Error(), refusedMark); ok {
		why, _, _ = strings.Cut(why, "\n")
		return why
	}
	if wrongKey(err.Error()) {
		return fmt.Sprintf("the node at %v has another cluster key or another cluster.name than this one (what is used is made of both), or only one of the two has a key: give all nodes of cluster %q the same key and name", at, cluster)
	}
	return ""
}

// plain is an error of memberlist's Join, without its list of one error.
func plain(err error, at netip.AddrPort) string {
	text := strings.Join(strings.Fields(err.Error()), " ")
	_, text, _ = strings.Cut(text, "* ")
	return strings.TrimPrefix(text, "failed to join "+at.String()+": ")
}

// answers reports whether a rival lives.
func (m *Members) answers(r rival) bool {
	for range challenges {
		if m.joining.Err() != nil {
			return false
		}
		if _, err := m.list.Ping(r.id.String(), net.UDPAddrFromAddrPort(r.at)); err == nil {
			return true
		}
	}
	return false
}

// missing are the addresses of seeds and of former members where no live member is. Seeds
// come first.
func (m *Members) missing(seeds []netip.AddrPort) []netip.AddrPort {
	here := m.table.addresses()
	var to []netip.AddrPort
	add := func(at netip.AddrPort) {
		if !here[at] && !slices.Contains(to, at) {
			to = append(to, at)
		}
	}
	for _, at := range seeds {
		add(at)
	}
	former := m.table.former()
	rand.Shuffle(len(former), func(i, j int) { former[i], former[j] = former[j], former[i] })
	for _, at := range former {
		add(at)
	}
	return to
}

// seeds resolves the seeds, and returns their addresses in random order.
func (m *Members) seeds() ([]netip.AddrPort, []error) {
	ctx, cancel := context.WithTimeout(m.joining, m.cfg.Timing.Dial)
	defer cancel()
	var mu sync.Mutex // guards all and errs
	var all []netip.AddrPort
	var errs []error
	var g errgroup.Group
	g.SetLimit(joinsATime)
	for _, s := range m.cfg.Seeds {
		g.Go(func() error {
			found, err := m.resolve(ctx, s)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, found...)
			if err != nil {
				errs = append(errs, fmt.Errorf("seed %s: %w", s, err))
			}
			return nil
		})
	}
	_ = g.Wait() // none of them returns an error
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all, errs
}

func (m *Members) resolve(ctx context.Context, seed string) ([]netip.AddrPort, error) {
	host, port, err := SplitHost(seed, DefaultPort)
	if err != nil {
		return nil, err
	}
	var addrs []netip.Addr
	if a, err := netip.ParseAddr(host); err == nil {
		addrs = []netip.Addr{a}
	} else if addrs, err = m.cfg.Resolve(ctx, host); err != nil {
		return nil, err
	}
	var found []netip.AddrPort
	for _, a := range addrs[:min(len(addrs), maxResolved)] {
		// A node talks to others from the address at which it listens.
		if a = a.Unmap(); a.Is4() == m.Address().Addr().Is4() {
			found = append(found, netip.AddrPortFrom(a, port))
		}
	}
	if len(found) == 0 {
		return nil, errors.New("it has no address of the kind that this node listens at, " + m.Address().Addr().String())
	}
	return found, nil
}
