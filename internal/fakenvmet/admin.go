package fakenvmet

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strconv"
	"time"
)

// Features (NVMe Base 2.0, section 5.27.1) and log pages (section 5.16.1).
const (
	featureWriteCache, featureQueues, featureEvents, featureKeepAlive = 0x06, 0x07, 0x0B, 0x0F

	logError, logHealth, logFirmware, logChangedNamespaces = 0x01, 0x02, 0x03, 0x04
	logANA, logDiscovery                                   = 0x0C, 0x70
)

// pageSize is what Identify returns, always.
const pageSize = 4096

// doAdmin does a command of the admin queue.
func (q *queue) doAdmin(c *command) {
	ctrl := q.ctrl
	q.t.mu.Lock()
	ready := ctrl.status&csReady != 0
	q.t.mu.Unlock()
	var result uint64
	s := invalidOpcodeForever
	switch {
	case !ready && c.opcode != OpKeepAlive:
		q.note("%v before the controller is ready", c)
		s = sequenceErrorForever
	case c.opcode == OpIdentify:
		s = q.identify(c)
	case c.opcode == OpGetLogPage:
		s = q.logPage(c)
	case c.opcode == OpAsyncEvent:
		q.awaitEvent(c)
		return
	case c.opcode == OpKeepAlive:
		q.t.mu.Lock()
		ctrl.keepAliveLocked(ctrl.lifetime)
		q.t.mu.Unlock()
		s = Success
	case c.opcode == OpSetFeatures:
		result, s = q.setFeatures(c)
	case c.opcode == OpGetFeatures:
		result, s = q.getFeatures(c)
	case c.opcode == OpAbort && !ctrl.discovery:
		result, s = 1, Success // section 5.1: not aborted
	}
	if c.reply != nil && s == Success {
		q.reply(c, c.length)
		return
	}
	q.respond(c, result, s)
}

// doFabrics does a Fabrics command of a queue that is connected.
func (q *queue) doFabrics(c *command) error {
	var result uint64
	s := invalidOpcodeForever
	switch c.kind {
	case fcPropertyGet, fcPropertySet:
		if q.qid == 0 {
			result, s = q.property(c)
		}
	case fcConnect:
		q.note("%v on a queue that is connected", c)
		s = sequenceErrorForever
	case fcAuthSend:
		s = q.authSend(c)
	case fcAuthReceive:
		return q.authReceive(c)
	}
	q.respond(c, result, s)
	return nil
}

// awaitEvent keeps an Async Event Request by its CID, and answers it if there is something to
// report.
func (q *queue) awaitEvent(c *command) {
	q.t.mu.Lock()
	full := len(q.ctrl.requests) >= maxRequests
	var reports []report
	if !full {
		q.ctrl.requests = append(q.ctrl.requests, request{q, c.cid})
		reports = q.ctrl.reportsLocked()
	}
	q.t.mu.Unlock()
	if full {
		q.respond(c, 0, AsyncEventLimit|DNR)
	}
	for _, r := range reports {
		r.send()
	}
}

// setFeatures is the command of that name. What it may set is kept by the controller.
func (q *queue) setFeatures(c *command) (uint64, Status) {
	value := c.dword(atDW11)
	q.t.mu.Lock()
	defer q.t.mu.Unlock()
	switch c.dword(atDW10) & 0xFF {
	case featureQueues:
		if value&0xFFFF == 0xFFFF || value>>16 == 0xFFFF || q.ctrl.discovery {
			return 0, invalidFieldForever
		}
		return q.queueCountLocked(), Success
	case featureEvents:
		q.ctrl.enabled = value
		return uint64(value), Success
	case featureKeepAlive:
		q.ctrl.keepAliveLocked(time.Duration(value) * time.Millisecond)
		return 0, Success
	}
	return 0, invalidFieldForever
}

// getFeatures returns current values, whatever SEL asks for.
func (q *queue) getFeatures(c *command) (uint64, Status) {
	q.t.mu.Lock()
	defer q.t.mu.Unlock()
	switch c.dword(atDW10) & 0xFF {
	case featureQueues:
		return q.queueCountLocked(), Success
	case featureEvents:
		return uint64(q.ctrl.enabled), Success
	case featureKeepAlive:
		return uint64(q.ctrl.lifetime / time.Millisecond), Success
	case featureWriteCache:
		return uint64(q.t.writeCache()), Success
	}
	return 0, invalidFieldForever
}

// queueCountLocked is NSQA and NCQA, 0's based. The controller keeps to what it answered.
func (q *queue) queueCountLocked() uint64 {
	q.ctrl.limit = q.t.limit
	n := uint64(max(q.ctrl.limit, 1) - 1)
	return n | n<<16
}

// writeCache is 1 if a namespace has a volatile write cache.
func (t *Target) writeCache() int {
	for _, n := range *t.namespaces.Load() {
		if n.volatile {
			return 1
		}
	}
	return 0
}

// identify does Identify (NVMe Base 2.0, section 5.17).
func (q *queue) identify(c *command) Status {
	if c.length != pageSize {
		q.note("Identify with an SGL of %d bytes", c.length)
		return invalidDataSize
	}
	c.reply = make([]byte, pageSize)
	id := c.dword(atNSID)
	all := *q.t.namespaces.Load()
	if q.ctrl.discovery {
		all = nil
	}
	switch c.dword(atDW10) & 0xFF { // CNS
	case 0x00:
		switch n := all[id]; {
		case id == 0 || id == 0xFFFFFFFF:
			return InvalidNamespace | DNR
		case n != nil:
			n.identify(c.reply)
		}
	case 0x01:
		q.ctrl.identify(c.reply)
	case 0x02:
		at := 0
		for _, n := range sorted(all) {
			if _, _, disabled := n.geometry(); n.id > id && !disabled && at < pageSize {
				binary.LittleEndian.PutUint32(c.reply[at:], n.id)
				at += 4
			}
		}
	case 0x03:
		n := all[id]
		if n == nil {
			return InvalidNamespace | DNR
		}
		c.reply[0], c.reply[1] = 3, 16 // NIDT: UUID, NIDL
		copy(c.reply[4:], n.uuid())
	default:
		return invalidFieldForever
	}
	return Success
}

func sorted(all map[uint32]*Namespace) []*Namespace {
	var list []*Namespace
	for _, n := range all {
		list = append(list, n)
	}
	slices.SortFunc(list, func(a, b *Namespace) int { return int(a.id) - int(b.id) })
	return list
}

// uuid names a namespace for as long as its target lives. One that is added in another's place has another one.
func (n *Namespace) uuid() []byte {
	id := make([]byte, 16)
	copy(id, n.target.serial[:8])
	id[6], id[8] = 0x40|id[6]&0xF, 0x80|id[8]&0x3F // version 4
	binary.LittleEndian.PutUint32(id[12:], n.made)
	return id
}

// identify fills the Identify Namespace data structure (NVM Command Set 1.0, section 4.1.5.1).
func (n *Namespace) identify(b []byte) {
	le := binary.LittleEndian
	blocks, readOnly, disabled := n.geometry()
	if disabled {
		return // inactive: zeros
	}
	le.PutUint64(b[0:], uint64(blocks))  // NSZE
	le.PutUint64(b[8:], uint64(blocks))  // NCAP
	le.PutUint64(b[16:], uint64(blocks)) // NUSE
	b[30] = 1 << 0                       // NMIC: shared
	b[33] = 1 << 0                       // DLFEAT: deallocated blocks read as zeros
	le.PutUint32(b[92:], 1)              // ANAGRPID
	if readOnly {
		b[99] = 1 << 0 // NSATTR
	}
	copy(b[104:], n.uuid()) // NGUID
	shift := byte(12)
	if n.blockSize == 512 {
		shift = 9
	}
	b[130] = shift // LBADS of LBA format 0 at 128
}

// identify fills the Identify Controller data structure (NVMe Base 2.0, section 5.17.2.1).
func (c *controller) identify(b []byte) {
	le := binary.LittleEndian
	o := &c.t.o
	pad(b[4:24], c.t.serial)   // SN
	pad(b[24:64], "fakenvmet") // MN
	pad(b[64:72], "1")         // FR
	b[76] = 1<<0 | 1<<1 | 1<<3 // CMIC: several ports, several controllers, ANA
	b[77] = byte(o.MDTS)
	le.PutUint16(b[78:], c.id)                                            // CNTLID
	le.PutUint32(b[80:], version)                                         // VER
	le.PutUint32(b[92:], eventNamespace.enableBit()|eventANA.enableBit()) // OAES
	le.PutUint32(b[96:], 1<<0)                                            // CTRATT: 128-bit host identifiers
	b[111] = 1                                                            // CNTRLTYPE: I/O
	b[258] = 3                                                            // ACL
	b[259] = maxRequests - 1                                              // AERL
	b[261] = 1 << 2                                                       // LPA: extended data of Get Log Page
	le.PutUint16(b[320:], keepAliveUnit)                                  // KAS
	b[342] = 10                                                           // ANATT, in seconds
	b[343] = 0x1F                                                         // ANACAP: all five states
	le.PutUint32(b[344:], 1)                                              // ANAGRPMAX
	le.PutUint32(b[348:], 1)                                              // NANAGRPID
	b[512], b[513] = 0x66, 0x44                                           // SQES, CQES: 64 and 16 bytes
	le.PutUint16(b[514:], uint16(min(o.QueueSize, 0xFFFF)))               // MAXCMD
	le.PutUint32(b[516:], 1024)                                           // NN
	le.PutUint16(b[520:], 1<<2|1<<3)                                      // ONCS: Dataset Management, Write Zeroes
	b[525] = byte(c.t.writeCache())                                       // VWC
	le.PutUint32(b[536:], 1<<0|1<<20)                                     // SGLS: supported, offsets (in-capsule data)
	le.PutUint32(b[540:], 1024)                                           // MNAN
	name := o.NQN
	if c.discovery {
		name = DiscoveryNQN
		b[111] = 2 // CNTRLTYPE: discovery
		le.PutUint32(b[516:], 0)
		le.PutUint32(b[92:], 0)
	}
	copy(b[768:1024], name)                           // SUBNQN
	le.PutUint32(b[1792:], uint32(64+o.InCapsule)/16) // IOCCSZ, in units of 16 bytes
	le.PutUint32(b[1796:], 1)                         // IORCSZ
	b[1803] = 1                                       // MSDBD: one descriptor
}

// pad fills a field of ASCII with blanks.
func pad(b []byte, text string) {
	for i := copy(b, text); i < len(b); i++ {
		b[i] = ' '
	}
}

// logPage does Get Log Page (NVMe Base 2.0, section 5.16).
func (q *queue) logPage(c *command) Status {
	dw10 := c.dword(atDW10)
	size := (int(dw10>>16) | int(c.dword(atDW11)&0xFFFF)<<16) + 1 // NUMD, 0's based
	offset := binary.LittleEndian.Uint64(c.entry[atDW12:])        // LPO
	if c.length != size*4 || c.length > MaxTransfer {
		q.note("Get Log Page of %d dwords with an SGL of %d bytes", size, c.length)
		return invalidDataSize
	}
	if offset%4 != 0 {
		return invalidFieldForever
	}
	keep := dw10&(1<<15) != 0 // RAE
	var page []byte
	switch id := dw10 & 0xFF; {
	case id == logDiscovery && q.ctrl.discovery:
		page = q.t.discoveryPage()
	case q.ctrl.discovery:
		return InvalidLogPage | DNR
	case id == logChangedNamespaces:
		page = q.ctrl.changedPage(keep)
	case id == logANA:
		page = q.ctrl.anaPage(keep, dw10&(1<<8) != 0)
	case id == logError || id == logHealth || id == logFirmware:
		page = make([]byte, 512)
	default:
		return InvalidLogPage | DNR
	}
	c.reply = make([]byte, c.length)
	if offset < uint64(len(page)) {
		copy(c.reply, page[offset:])
	}
	return Success
}

// changedPage is the Changed Namespace List (section 5.16.1.5). Reading it allows the next event.
func (c *controller) changedPage(keep bool) []byte {
	c.t.mu.Lock()
	defer c.t.mu.Unlock()
	page := make([]byte, pageSize)
	slices.Sort(c.changed)
	for i, id := range c.changed[:min(len(c.changed), pageSize/4)] {
		binary.LittleEndian.PutUint32(page[4*i:], id)
	}
	if len(c.changed) > pageSize/4 {
		clear(page)
		binary.LittleEndian.PutUint32(page, 0xFFFFFFFF) // more than fit
	}
	c.changed = nil
	if !keep {
		c.masked[eventNamespace] = false
	}
	return page
}

// anaPage is the Asymmetric Namespace Access page (section 5.16.1.13): one group, by groups only if
// RGO asks for it.
func (c *controller) anaPage(keep, groupsOnly bool) []byte {
	le := binary.LittleEndian
	all := sorted(*c.t.namespaces.Load())
	c.t.mu.Lock()
	defer c.t.mu.Unlock()
	if groupsOnly {
		all = nil
	}
	page := make([]byte, 16+32+4*len(all))
	changes := c.port.changes.Load()
	le.PutUint64(page[0:], changes)
	le.PutUint16(page[8:], 1) // descriptors
	group := page[16:]
	le.PutUint32(group[0:], 1) // group
	le.PutUint32(group[4:], uint32(len(all)))
	le.PutUint64(group[8:], changes)
	group[16] = byte(c.port.ana.Load())
	for i, n := range all {
		le.PutUint32(group[32+4*i:], n.id)
	}
	if !keep {
		c.masked[eventANA] = false
	}
	return page
}

// discoveryPage is the Discovery log (section 5.16.1.23): a header and an entry for each port that
// is on, of 1024 bytes each.
func (t *Target) discoveryPage() []byte {
	le := binary.LittleEndian
	t.mu.Lock()
	defer t.mu.Unlock()
	page := make([]byte, 1024)
	count := 0
	for _, p := range t.ports {
		if p.listener == nil {
			continue
		}
		count++
		e := make([]byte, 1024)
		e[0], e[1], e[2] = 3, 1, 2 // TRTYPE TCP, ADRFAM IPv4, SUBTYPE NVM subsystem
		e[3] = 1<<2 | 2            // TREQ: no secure channel; SQ flow control may be off
		le.PutUint16(e[4:], uint16(p.id))
		le.PutUint16(e[6:], anyController)
		le.PutUint16(e[8:], uint16(min(t.o.QueueSize, 32))) // ASQSZ
		a := netip.AddrPort(p.address.AddrPort())
		pad(e[32:64], strconv.Itoa(int(a.Port()))) // TRSVCID
		copy(e[256:512], t.o.NQN)                  // SUBNQN
		pad(e[512:768], a.Addr().Unmap().String()) // TRADDR
		page = append(page, e...)
	}
	le.PutUint64(page[8:], uint64(count)) // NUMREC
	return page
}
