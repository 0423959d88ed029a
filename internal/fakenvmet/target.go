// Package fakenvmet is an NVMe/TCP target in this process, for tests and benchmarks: it is strict
// about its host, and fails on purpose. It never replaces a real target; it does what a real one
// cannot do.
//
//	t, err := fakenvmet.New(fakenvmet.Options{Queues: 2})
//	defer t.Close()
//	... a host connects to t.Address() and t.NQN(), and then:
//	t.SetFault(func(p *fakenvmet.PDU) { p.BadDataDigest = p.Type == fakenvmet.C2HData })
//	... and at the end t.Violations() must be empty.
//
// It is written from the specifications (NVMe Base 2.0, NVM Command Set 1.0, NVMe over Fabrics 1.1,
// NVMe/TCP 1.0) and shares no code with an initiator, so that each proves the other. The hosts of
// Linux 6.1 and 6.12 used it without a violation.
//
// A Target is one NVM subsystem with namespaces, behind one or more Ports, and a discovery
// controller on each of them. A connection is a queue. One goroutine reads its PDUs, does each
// command and appends the answer to the queue's output, which goes out in one write when no whole
// PDU is left in the input. So a command costs no goroutine, no timer and no allocation. Data is
// read from the namespace straight into the output. Written data goes through a buffer of the
// command, as its digest must be right before a byte reaches the namespace.
//
// An admin Connect makes a controller, the state of one association: its queues, its keep-alive
// timer, its asynchronous events. The end of any of its queues ends them all, but for an I/O queue
// that the host closes between two PDUs.
//
// A host that breaks a rule is recorded (Violations). If the connection can go on it does, and else
// ends with a C2HTermReq. Commands in flight are counted as a host must count them: a command is in
// flight until its completion was written before the read that brought the next one. That never
// blames a host wrongly, and finds every burst.
//
// A Fault (fault.go) sees each PDU that would go out, and may change, hold, drop, repeat, cut or
// replace it. While one is set, PDUs are made one by one; the plain path has no trace of it.
//
// Where the specifications leave a choice: namespaces report the statuses of the NVM Command Set
// (0/80h, 2/80h, 2/81h), for which Linux has 0/06h. The queue head moves with completions. Number
// of Queues answers what the target has, not what was asked. All namespaces are in ANA group 1.
// Keep Alive is command based: other commands do not restart the timer.
package fakenvmet

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
)

// NQN is the subsystem's name where Options name none.
const NQN = "nqn.2014-08.org.nvmexpress:fakenvmet"

// DiscoveryNQN is the well-known discovery subsystem (NVMe Base 2.0, section 4.5).
const DiscoveryNQN = "nqn.2014-08.org.nvmexpress.discovery"

// Options describe a Target. The zero Options serve 64 MiB of memory on a free port.
type Options struct {
	// Listen has an address for each port. None means one free port of 127.0.0.1.
	Listen []string
	// NQN names the subsystem. "" means the constant NQN.
	NQN string
	// Hosts are the host NQNs that may connect. None means everybody.
	Hosts []string
	// Secret, "DHHC-1:00:...:", must be proven by every host (DH-HMAC-CHAP). "" asks for nothing.
	Secret string
	// ControllerSecret proves the target to hosts that ask for it. "" means that it cannot.
	ControllerSecret string
	// FFDHE prefers ffdhe2048 to the NULL group, if a host offers both.
	FFDHE bool
	// Namespaces to begin with. None means one of 64 MiB.
	Namespaces []NamespaceOptions

	// Queues is how many I/O queues a controller has. 0 means 8.
	Queues int
	// QueueSize is the largest queue, in entries. 0 means 128.
	QueueSize int
	// InCapsule is what the capsule of an I/O command may carry, in bytes, a multiple of 16.
	// 0 means 16 KiB, -1 nothing.
	InCapsule int
	// MaxData is MAXH2CDATA, a multiple of 4. 0 means 1 MiB.
	MaxData int
	// MDTS bounds a command's data: 2^MDTS pages of 4 KiB. 0 means no bound but MaxTransfer.
	MDTS int
	// R2T bounds the data of one R2T. 0 means all in one.
	R2T int
	// C2HData bounds the data of one C2HData. 0 means all in one.
	C2HData int
	// CPDA is the alignment of data that hosts send, in units of 4 bytes, 0's based: 0 to 31.
	CPDA int
	// NoDigests refuses the digests that hosts ask for.
	NoDigests bool
	// Success ends a read by the SUCCESS flag of its last C2HData, if the queue has no flow control.
	Success bool
	// FlowControl keeps SQ flow control though the host asks it off.
	FlowControl bool

	// Fault sees every PDU. nil means none. SetFault changes it.
	Fault Fault
}

// MaxTransfer is the most data that a command may have, whatever MDTS says: that of Linux.
const MaxTransfer = 4 << 20

// Target is a running target.
type Target struct {
	o          Options
	serial     string
	namespaces atomic.Pointer[map[uint32]*Namespace] // replaced whole, under mu
	made       atomic.Uint32                         // namespaces, ever
	fault      atomic.Pointer[Fault]
	paused     atomic.Pointer[chan struct{}] // nil while running; closed by Resume
	counts     counts
	wait       sync.WaitGroup

	mu          sync.Mutex // guards what follows; taken before a queue's lock, and never held across I/O
	ports       []*Port
	hosts       []string
	limit       int // I/O queues of a controller
	controllers map[uint16]*controller
	queues      map[*queue]struct{} // every connection
	connections int
	lastID      uint16
	lastTry     int // authentication transactions and challenges
	closed      bool
	violations  []string
}

// New starts a target. Close ends it.
func New(o Options) (*Target, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	t := &Target{o: o, serial: fmt.Sprintf("%016x", rand.Uint64()), controllers: map[uint16]*controller{},
		queues: map[*queue]struct{}{}, hosts: o.Hosts, limit: o.Queues}
	t.namespaces.Store(&map[uint32]*Namespace{})
	t.SetFault(o.Fault)
	for _, n := range o.Namespaces {
		if _, err := t.AddNamespace(n); err != nil {
			return nil, err
		}
	}
	for i, address := range o.Listen {
		p, err := newPort(t, i+1, address)
		if err == nil {
			t.ports = append(t.ports, p)
			err = p.On()
		}
		if err != nil {
			t.Close()
			return nil, err
		}
	}
	return t, nil
}

func (o *Options) complete() error {
	if len(o.Listen) == 0 {
		o.Listen = []string{"127.0.0.1:0"}
	}
	if len(o.Namespaces) == 0 {
		o.Namespaces = []NamespaceOptions{{}}
	}
	if o.NQN == "" {
		o.NQN = NQN
	}
	set := func(n *int, usual int) {
		if *n == 0 {
			*n = usual
		}
	}
	set(&o.Queues, 8)
	set(&o.QueueSize, 128)
	set(&o.InCapsule, 16<<10)
	set(&o.MaxData, 1<<20)
	set(&o.R2T, MaxTransfer)
	set(&o.C2HData, MaxTransfer)
	o.InCapsule = max(o.InCapsule, 0)
	if o.InCapsule%16 != 0 || o.MaxData%4 != 0 || o.CPDA < 0 || o.CPDA > 31 || o.QueueSize < 2 || o.QueueSize > 1<<16 {
		return errors.New("a fake NVMe target wants InCapsule in units of 16, MaxData of 4, CPDA to 31, QueueSize 2 to 65536")
	}
	return nil
}

// Port returns the nth port, from 0.
func (t *Target) Port(n int) *Port { return t.ports[n] }

// Address is the first port's.
func (t *Target) Address() string { return t.ports[0].Address() }

// NQN is the subsystem's.
func (t *Target) NQN() string { return t.o.NQN }

// SetFault replaces the Fault. nil means none.
func (t *Target) SetFault(f Fault) {
	if f == nil {
		t.fault.Store(nil)
		return
	}
	t.fault.Store(&f)
}

// SetQueues changes how many I/O queues a controller may have. Controllers that have more keep them.
func (t *Target) SetQueues(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.limit = n
}

// SetHosts changes which host NQNs may connect. None means everybody.
func (t *Target) SetHosts(hosts ...string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.hosts = hosts
}

// AddNamespace adds a namespace and tells the hosts.
func (t *Target) AddNamespace(o NamespaceOptions) (*Namespace, error) {
	n, err := newNamespace(t, o)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	all := maps.Clone(*t.namespaces.Load())
	if all[n.id] != nil {
		t.mu.Unlock()
		return nil, fmt.Errorf("add namespace %d: it exists", n.id)
	}
	all[n.id] = n
	t.namespaces.Store(&all)
	t.mu.Unlock()
	t.namespaceChanged(n.id)
	return n, nil
}

// RemoveNamespace removes a namespace, if there is one of that ID, and tells the hosts.
func (t *Target) RemoveNamespace(id uint32) {
	t.mu.Lock()
	all := maps.Clone(*t.namespaces.Load())
	delete(all, id)
	t.namespaces.Store(&all)
	t.mu.Unlock()
	t.namespaceChanged(id)
}

// Namespace returns the namespace of that ID, nil if there is none.
func (t *Target) Namespace(id uint32) *Namespace { return (*t.namespaces.Load())[id] }

// Drop ends every association. Hosts may connect again at once.
func (t *Target) Drop() { t.endQueues(nil) }

// Kill is a power loss: every port refuses, every connection ends, and what volatile namespaces had
// not flushed is lost. It returns when no command is under way.
func (t *Target) Kill() {
	for _, p := range t.ports {
		p.Off()
	}
	t.Resume()
	t.endQueues(nil)
	for _, n := range *t.namespaces.Load() {
		n.lose()
	}
}

// Restart brings a killed target back on the same ports. It knows no controller of before.
func (t *Target) Restart() error {
	for _, p := range t.ports {
		if err := p.On(); err != nil {
			return err
		}
	}
	return nil
}

// Pause freezes the target: connections stay open, nothing is read, answered or expired until
// Resume. New connections are accepted by the kernel alone.
func (t *Target) Pause() {
	gate := make(chan struct{})
	t.paused.CompareAndSwap(nil, &gate)
}

// Resume ends a pause. Everything outstanding is answered.
func (t *Target) Resume() {
	gate := t.paused.Swap(nil)
	if gate == nil {
		return
	}
	close(*gate)
	for _, q := range t.connected(nil) {
		q.push() // events that were raised in between
	}
}

// Close ends the target and waits for its goroutines.
func (t *Target) Close() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.Resume()
	for _, p := range t.ports {
		p.close()
	}
	t.endQueues(nil)
	t.wait.Wait()
}

// connected returns the connections of a port, nil for all.
func (t *Target) connected(p *Port) []*queue {
	t.mu.Lock()
	defer t.mu.Unlock()
	var found []*queue
	for q := range t.queues {
		if p == nil || q.port == p {
			found = append(found, q)
		}
	}
	return found
}

// endQueues ends the connections of a port, nil for all, and waits for them.
func (t *Target) endQueues(p *Port) {
	ended := t.connected(p)
	for _, q := range ended {
		q.end()
	}
	for _, q := range ended {
		<-q.done
	}
}

// maxViolations is how many are kept: a host that breaks one rule breaks it often.
const maxViolations = 100

// Violations returns what hosts did against the specifications, in order, the first 100.
func (t *Target) Violations() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.violations)
}

func (t *Target) violation(text string) {
	t.counts.violations.Add(1)
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.violations) < maxViolations {
		t.violations = append(t.violations, text)
	}
}
