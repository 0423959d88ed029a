package fakenvmet

import (
	"encoding/binary"
	"slices"
	"strings"
	"time"
)

// controller is the state of one association. Target.mu guards all of it but what is constant.
type controller struct {
	t         *Target
	port      *Port
	id        uint16
	hostNQN   string
	hostID    [16]byte
	discovery bool
	secret    string // what the host must prove: "" means nothing

	queues   map[uint16]*queue
	limit    int // I/O queues
	config   uint32
	status   uint32
	lifetime time.Duration // KATO
	timer    *time.Timer   // nil without KATO
	expires  time.Time     // a timer that fired before its restart finds that it is too early
	ended    bool

	requests []request // Async Event Requests that wait
	enabled  uint32    // Asynchronous Event Configuration
	pending  [events]bool
	masked   [events]bool // reported, and the log page not read since
	changed  []uint32     // Changed Namespace List
}

// request is an Async Event Request that is not answered.
type request struct {
	q   *queue
	cid uint16
}

// event is a kind of asynchronous event: all are notices (NVMe Base 2.0, section 5.2).
type event int

const (
	eventNamespace event = iota
	eventANA
	events
)

// What an event says: the bit in Asynchronous Event Configuration that enables it (section
// 5.27.1.9), and dword 0 of its completion: type 2h, information, log page.
func (e event) enableBit() uint32 { return [...]uint32{1 << 8, 1 << 11}[e] }
func (e event) result() uint64 {
	return [...]uint64{0x2 | 0x00<<8 | logChangedNamespaces<<16, 0x2 | 0x03<<8 | logANA<<16}[e]
}

const (
	maxRequests = 4 // Async Event Requests, as Linux; AERL says it 0's based
	// keepAliveUnit is KAS: the granularity of the keep-alive timer in units of 100 ms.
	keepAliveUnit = 1
)

// Fields of Connect and of its data (NVMe over Fabrics 1.1, section 3.3; NVMe Base 2.0, section
// 6.3).
const (
	atRECFMT, atQID, atSQSIZE, atCATTR, atKATO = 40, 42, 44, 46, 48

	connectData                                     = 1024
	atHostID, atCNTLID, atSubNQN, atHostNQN, nqnLen = 0, 16, 256, 512, 256

	noFlowControl  = 1 << 2  // in CATTR
	inConnectData  = 1 << 16 // IATTR: the wrong field is in the data, not in the entry
	authentication = 1 << 17 // in the result: the host must authenticate
	anyController  = 0xFFFF
)

// beforeConnect does a command of a queue that belongs to no controller: a Connect. After a refusal
// the host may try again, or close.
func (q *queue) beforeConnect(c *command) {
	if c.opcode != OpFabrics || c.kind != fcConnect {
		q.note("%v before Connect", c)
		q.respond(c, 0, invalidOpcodeForever)
		return
	}
	result, s := q.connect(c)
	q.respond(c, result, s)
}

// connect makes a controller, or adds a queue to one.
func (q *queue) connect(c *command) (uint64, Status) {
	if len(c.data) != connectData {
		q.note("Connect with %d bytes of data", len(c.data))
		return 0, invalidDataSize
	}
	if binary.LittleEndian.Uint16(c.entry[atRECFMT:]) != 0 {
		return 0, ConnectFormat | DNR
	}
	size := int(binary.LittleEndian.Uint16(c.entry[atSQSIZE:])) + 1
	if size < 2 || size > q.t.o.QueueSize {
		return atSQSIZE, connectInvalidForever
	}
	q.t.mu.Lock()
	defer q.t.mu.Unlock()
	qid := binary.LittleEndian.Uint16(c.entry[atQID:])
	var ctrl *controller
	var wrong uint64
	var s Status
	if qid == 0 {
		ctrl, wrong, s = q.t.newController(q.port, c)
	} else {
		ctrl, wrong, s = q.t.findController(qid, c)
	}
	if s != Success {
		return wrong, s
	}
	q.ctrl = ctrl
	ctrl.queues[qid] = q
	q.out.mu.Lock()
	q.qid, q.out.window.size = qid, size
	q.out.window.noFlow = c.entry[atCATTR]&noFlowControl != 0 && !q.t.o.FlowControl
	q.out.mu.Unlock()
	if qid != 0 {
		q.t.counts.ioQueues.Add(1)
	}
	q.authenticated = ctrl.secret == ""
	result := uint64(ctrl.id)
	if !q.authenticated {
		result |= authentication
	}
	return result, Success
}

// nqn reads a name of 256 bytes.
func nqn(b []byte) string {
	text, _, _ := strings.Cut(string(b[:nqnLen]), "\x00")
	return text
}

// newController makes the controller of an admin Connect. Target.mu is held.
func (t *Target) newController(p *Port, c *command) (*controller, uint64, Status) {
	host, subsystem := nqn(c.data[atHostNQN:]), nqn(c.data[atSubNQN:])
	switch {
	case binary.LittleEndian.Uint16(c.data[atCNTLID:]) != anyController:
		return nil, inConnectData | atCNTLID, connectInvalidForever
	case subsystem != t.o.NQN && subsystem != DiscoveryNQN:
		return nil, inConnectData | atSubNQN, connectInvalidForever
	case host == "":
		return nil, inConnectData | atHostNQN, connectInvalidForever
	case subsystem != DiscoveryNQN && len(t.hosts) > 0 && !slices.Contains(t.hosts, host):
		return nil, inConnectData | atHostNQN, ConnectHost | DNR
	}
	t.lastID++
	ctrl := &controller{t: t, port: p, id: t.lastID, hostNQN: host, discovery: subsystem == DiscoveryNQN,
		queues: map[uint16]*queue{}, limit: t.limit}
	if !ctrl.discovery {
		ctrl.secret = t.o.Secret
	}
	copy(ctrl.hostID[:], c.data[atHostID:])
	t.controllers[ctrl.id] = ctrl
	t.counts.controllers.Add(1)
	ctrl.keepAliveLocked(time.Duration(c.dword(atKATO)) * time.Millisecond)
	return ctrl, 0, Success
}

// findController finds the controller of an I/O Connect. Target.mu is held.
func (t *Target) findController(qid uint16, c *command) (*controller, uint64, Status) {
	ctrl := t.controllers[binary.LittleEndian.Uint16(c.data[atCNTLID:])]
	switch {
	case ctrl == nil || ctrl.ended:
		return nil, inConnectData | atCNTLID, connectInvalidForever
	case nqn(c.data[atSubNQN:]) != t.o.NQN || ctrl.discovery:
		return nil, inConnectData | atSubNQN, connectInvalidForever
	case nqn(c.data[atHostNQN:]) != ctrl.hostNQN:
		return nil, inConnectData | atHostNQN, connectInvalidForever
	case [16]byte(c.data[atHostID:]) != ctrl.hostID:
		return nil, inConnectData | atHostID, connectInvalidForever
	case ctrl.status&csReady == 0:
		return nil, 0, sequenceErrorForever // NVMe Base 2.0, section 3.5.1: I/O queues come after CSTS.RDY
	case int(qid) > min(ctrl.limit, t.limit) || ctrl.queues[qid] != nil:
		return nil, atQID, connectInvalidForever
	}
	return ctrl, 0, Success
}

// leave takes a queue that ended out of its controller. A host may close an I/O queue by itself, as
// Linux closes them before it shuts a controller down. Every other end is the association's: all
// other queues end, too.
func (c *controller) leave(q *queue, err error) {
	c.t.mu.Lock()
	delete(c.queues, q.qid)
	if q.qid != 0 {
		c.t.counts.ioQueues.Add(-1)
	}
	var others []*queue
	if q.qid == 0 || err != errClosed {
		c.ended = true
		delete(c.t.controllers, c.id)
		if c.timer != nil {
			c.timer.Stop()
		}
		for _, o := range c.queues {
			others = append(others, o)
		}
	}
	c.t.mu.Unlock()
	for _, o := range others {
		o.end()
	}
}

// keepAliveLocked starts the keep-alive timer anew with another lifetime; 0 means none.
func (c *controller) keepAliveLocked(lifetime time.Duration) {
	if c.timer != nil {
		c.timer.Stop()
		c.timer = nil
	}
	c.lifetime = lifetime
	if lifetime > 0 {
		c.expires = time.Now().Add(lifetime)
		c.timer = time.AfterFunc(lifetime, c.expire)
	}
}

// expire ends an association that sent no Keep Alive in time. A paused target's time stands still.
func (c *controller) expire() {
	c.t.mu.Lock()
	admin := c.queues[0]
	switch {
	case c.ended || c.timer == nil || admin == nil || time.Until(c.expires) > 0:
		admin = nil
	case c.t.paused.Load() != nil:
		c.keepAliveLocked(c.lifetime)
		admin = nil
	default:
		c.t.counts.expired.Add(1)
	}
	c.t.mu.Unlock()
	if admin != nil {
		admin.end() // the others follow
	}
}

// namespaceChanged tells all hosts that a namespace came, went or changed.
func (t *Target) namespaceChanged(id uint32) { t.raise(nil, eventNamespace, id) }

// raise makes an event pending for the controllers of a port, nil for all, and reports it where
// it can be.
func (t *Target) raise(p *Port, e event, id uint32) {
	var reports []report
	t.mu.Lock()
	for _, c := range t.controllers {
		if p != nil && c.port != p || c.discovery {
			continue
		}
		if e == eventNamespace && !slices.Contains(c.changed, id) {
			c.changed = append(c.changed, id)
		}
		if c.enabled&e.enableBit() != 0 && !c.masked[e] {
			c.pending[e] = true
		}
		reports = append(reports, c.reportsLocked()...)
	}
	t.mu.Unlock()
	for _, r := range reports {
		r.send()
	}
}

// report is an Async Event Request and what answers it.
type report struct {
	request
	result uint64
}

// reportsLocked takes the requests that pending events answer.
func (c *controller) reportsLocked() []report {
	var reports []report
	for e := range events {
		if c.pending[e] && !c.masked[e] && len(c.requests) > 0 {
			reports = append(reports, report{c.requests[0], e.result()})
			c.requests = c.requests[1:]
			c.pending[e], c.masked[e] = false, true
		}
	}
	return reports
}

func (r report) send() {
	r.q.t.counts.events.Add(1)
	r.q.respond(&command{opcode: OpAsyncEvent, cid: r.cid}, r.result, Success)
	r.q.push()
}

// Properties (NVMe Base 2.0, section 3.1.3): offset and, of those that are 8 bytes, size.
const (
	propCAP, propVS, propCC, propCSTS = 0x00, 0x08, 0x14, 0x1C

	version = 1<<16 | 4<<8 // 1.4, the last one whose hosts need no I/O Command Set independent data

	ccEnable, ccShutdown         = 1 << 0, 3 << 14
	csReady, csFatal, csShutdown = 1 << 0, 1 << 1, 2 << 2
	// ccFixed are the fields of CC that have one right value here: CSS, MPS, AMS, IOSQES, IOCQES.
	ccFixed, ccRight = 0x7<<4 | 0xF<<7 | 0x7<<11 | 0xF<<16 | 0xF<<20, 6<<16 | 4<<20
)

// capabilities is CAP: MQES, CQR, TO in units of 500 ms, and the NVM command set in CSS.
func (t *Target) capabilities() uint64 {
	return uint64(t.o.QueueSize-1) | 1<<16 | 15<<24 | 1<<37
}

// property does Property Get and Set (NVMe over Fabrics 1.1, sections 3.4 and 3.5): the size in
// bits 2:0 of byte 40, the offset at 44, the value at 48.
func (q *queue) property(c *command) (uint64, Status) {
	offset, wide := c.dword(44), c.entry[40]&7 == 1
	q.t.mu.Lock()
	defer q.t.mu.Unlock()
	ctrl := q.ctrl
	if c.kind == fcPropertySet {
		if offset != propCC || wide {
			return 0, invalidFieldForever
		}
		ctrl.configureLocked(c.dword(48))
		return 0, Success
	}
	switch {
	case offset == propCAP && wide:
		return q.t.capabilities(), Success
	case offset == propVS && !wide:
		return version, Success
	case offset == propCC && !wide:
		return uint64(ctrl.config), Success
	case offset == propCSTS && !wide:
		return uint64(ctrl.status), Success
	}
	return 0, invalidFieldForever
}

// configureLocked takes a new CC.
func (c *controller) configureLocked(cc uint32) {
	old := c.config
	c.config = cc
	switch {
	case cc&ccEnable == 0:
		c.status &^= csReady | csFatal
	case old&ccEnable == 0 && cc&ccFixed != ccRight && !c.discovery:
		c.status |= csFatal
	case old&ccEnable == 0:
		c.status = csReady
	}
	if cc&ccShutdown != 0 {
		c.status |= csShutdown
	} else {
		c.status &^= csShutdown
	}
}
