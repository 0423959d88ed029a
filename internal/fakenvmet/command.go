package fakenvmet

import "encoding/binary"

// command is one submission queue entry at work. Queues keep those that ended for the next ones.
type command struct {
	entry  [64]byte // NVMe Base 2.0, section 3.3.3.1
	opcode byte
	kind   byte // a Fabrics command's type
	cid    uint16
	length int // of its data, from the SGL

	data []byte // from the host
	got  int    // bytes of data that arrived
	next int    // the offset of the next R2T
	r2ts []transfer

	ns    *Namespace // a Read's
	at    int64      // its offset there, in bytes
	reply []byte     // an admin command's data
}

// commands are those of a queue whose data is on its way, by CID, and some that ended, for reuse.
type commands struct {
	waiting map[uint16]*command
	free    []*command
	maxR2T  int // R2Ts at a time for one command
	lastTag uint16
}

func (s *commands) get() *command {
	if n := len(s.free); n > 0 {
		c := s.free[n-1]
		s.free = s.free[:n-1]
		return c
	}
	return &command{}
}

// put keeps a command that was answered, with its buffer.
func (s *commands) put(c *command) {
	*c = command{data: c.data[:0], r2ts: c.r2ts[:0]}
	s.free = append(s.free, c)
}

// transfer is an R2T that the host has not answered whole.
type transfer struct {
	tag                  uint16
	offset, length, done int
}

// Offsets in a submission queue entry (NVMe Base 2.0, section 3.3.3.1; Fabrics commands section 6).
const (
	atOpcode, atPSDT, atCID, atNSID      = 0, 1, 2, 4
	atFCTYPE                             = 4
	atSGLLength, atSGLType               = 32, 39
	atDW10, atDW11, atDW12, atDW13       = 40, 44, 48, 52
	directionNone, fromHost, fromUs      = 0, 1, 2 // bits 1:0 of the opcode or of FCTYPE
	psdtSGL                         byte = 1 << 6
)

func (c *command) dword(at int) uint32 { return binary.LittleEndian.Uint32(c.entry[at:]) }

// fill writes what the host reads, from an offset of the command's data on.
func (c *command) fill(b []byte, offset int) Status {
	if c.ns != nil {
		return c.ns.read(b, c.at+int64(offset))
	}
	copy(b, c.reply[offset:])
	return Success
}

// capsule begins a command. Size bytes of data are in its capsule.
func (q *queue) capsule(h []byte, size int) error {
	c := q.commands.get()
	copy(c.entry[:], h[commonLen:])
	c.opcode, c.length = c.entry[atOpcode], int(c.dword(atSGLLength))
	c.cid = binary.LittleEndian.Uint16(c.entry[atCID:])
	direction, capacity := c.opcode&3, q.t.o.InCapsule
	if c.opcode == OpFabrics {
		c.kind = c.entry[atFCTYPE]
		direction, capacity = c.kind&3, adminCapsule
	}
	if q.qid == 0 {
		capacity = adminCapsule
	}
	if err := q.arrive(h, c); err != nil {
		return err
	}
	if psdt := c.entry[atPSDT] & 0xC0; psdt != psdtSGL && (psdt != 0 || c.opcode != OpFabrics) {
		q.note("%v with PSDT %d, not an SGL", c, psdt>>6)
	}
	switch kind := c.entry[atSGLType]; {
	case size > capacity:
		return q.fail(fesLimit, atPLEN, h, "%v with %d bytes in its capsule, which holds %d", c, size, capacity)
	case size > 0 && (direction != fromHost || kind != sglInCapsule || size != c.length):
		return q.fail(fesHeader, commonLen+atSGLLength, h,
			"%v with %d bytes in its capsule, SGL type %02xh of %d", c, size, kind, c.length)
	case size == 0 && c.length > 0 && kind != sglTransport:
		return q.fail(fesHeader, commonLen+atSGLType, h,
			"%v of %d bytes with SGL type %02xh and an empty capsule", c, c.length, kind)
	case size == 0 && c.length > 0 && c.length <= capacity && direction == fromHost:
		q.note("%v of %d bytes outside its capsule, which holds %d: Linux never answers", c, c.length, capacity)
	}
	if size > 0 {
		q.t.counts.inCapsule.Add(1)
		c.data = grow(c.data[:0], size)
		if err := q.takeData(h, c.data); err != nil {
			return err
		}
		c.got = size
	}
	return q.begin(c, direction)
}

// arrive counts a command in.
func (q *queue) arrive(h []byte, c *command) error {
	if q.ctrl != nil && q.qid != 0 && c.opcode != OpFabrics {
		q.t.counts.io[c.opcode].Add(1)
	} else {
		q.t.counts.admin[c.opcode].Add(1)
	}
	q.out.mu.Lock()
	reused, count := q.out.window.arrive(c.cid)
	most := q.out.window.size - 1
	q.out.mu.Unlock()
	switch {
	case reused:
		return q.fail(fesSequence, commonLen+atCID, h, "%v while its CID is in flight", c)
	case q.ctrl != nil && count > most:
		return q.fail(fesSequence, 0, h, "%v is the %dth in flight, SQSIZE is %d", c, count, most)
	}
	return nil
}

// begin does a command, or asks for its data first.
func (q *queue) begin(c *command, direction byte) error {
	if direction != fromHost || c.got == c.length {
		return q.do(c)
	}
	if s := q.refuse(c); s != Success {
		q.respond(c, 0, s)
		q.commands.put(c)
		return nil
	}
	c.data = grow(c.data[:0], c.length)
	q.commands.waiting[c.cid] = c
	q.request(c)
	return nil
}

// refuse says whether a command fails before its data moves.
func (q *queue) refuse(c *command) Status {
	if c.length > MaxTransfer || q.t.o.MDTS > 0 && c.length > 4096<<q.t.o.MDTS {
		q.note("%v of %d bytes, MDTS is %d", c, c.length, q.t.o.MDTS)
		return invalidFieldForever
	}
	if q.ctrl != nil && q.qid != 0 && c.opcode != OpFabrics {
		_, _, s := q.check(c)
		return s
	}
	return Success
}

// request sends as many R2Ts as the host takes at a time (MAXR2T, figure 20).
func (q *queue) request(c *command) {
	for len(c.r2ts) < q.commands.maxR2T && c.next < c.length {
		size := min(c.length-c.next, q.t.o.R2T)
		q.commands.lastTag++
		tag := q.commands.lastTag ^ 0x5A5A // never the CID by chance, for hosts that confuse them
		c.r2ts = append(c.r2ts, transfer{tag: tag, offset: c.next, length: size})
		q.ask(c, tag, c.next, size)
		c.next += size
	}
}

// hostData takes an H2CData of size bytes (figure 26).
func (q *queue) hostData(h []byte, size int) error {
	cid, tag := binary.LittleEndian.Uint16(h[atCCCID:]), binary.LittleEndian.Uint16(h[atTTAG:])
	offset, length := int(binary.LittleEndian.Uint32(h[atDATAO:])), int(binary.LittleEndian.Uint32(h[atDATAL:]))
	c := q.commands.waiting[cid]
	if c == nil {
		return q.fail(fesHeader, atCCCID, h, "H2CData for CID %d, which waits for none", cid)
	}
	i := 0
	for i < len(c.r2ts) && c.r2ts[i].tag != tag {
		i++
	}
	if i == len(c.r2ts) {
		return q.fail(fesHeader, atTTAG, h, "%v: H2CData with TTAG %d, which no R2T has", c, tag)
	}
	r := &c.r2ts[i]
	last, ends := h[atFlags]&flagLast != 0, r.done+length == r.length
	switch {
	case length != size || size == 0:
		return q.fail(fesHeader, atDATAL, h, "%v: H2CData with DATAL %d and %d bytes", c, length, size)
	case length > q.t.o.MaxData:
		return q.fail(fesLimit, atDATAL, h, "%v: H2CData with DATAL %d, MAXH2CDATA is %d", c, length, q.t.o.MaxData)
	case offset != r.offset+r.done || length > r.length-r.done:
		return q.fail(fesRange, atDATAO, h,
			"%v: H2CData of %d bytes at %d, R2T of %d at %d with %d done",
			c, length, offset, r.length, r.offset, r.done)
	case last != ends:
		return q.fail(fesHeader, atFlags, h,
			"%v: H2CData with LAST_PDU %t, %d of %d bytes done", c, last, r.done+length, r.length)
	}
	if err := q.takeData(h, c.data[offset:offset+length]); err != nil {
		return err
	}
	r.done += length
	c.got += length
	if ends {
		c.r2ts = append(c.r2ts[:i], c.r2ts[i+1:]...)
	}
	if c.got < c.length {
		q.request(c)
		return nil
	}
	delete(q.commands.waiting, cid)
	return q.do(c)
}

// do does a command whose data is here.
func (q *queue) do(c *command) error {
	defer q.commands.put(c)
	switch {
	case q.ctrl == nil:
		q.beforeConnect(c)
	case c.opcode == OpFabrics:
		return q.doFabrics(c)
	case !q.authenticated:
		q.respond(c, 0, AuthRequired|DNR)
	case q.qid != 0:
		q.doIO(c)
	default:
		q.doAdmin(c)
	}
	return nil
}

// reply sends a command's data, and its completion unless the last data says it all.
func (q *queue) reply(c *command, length int) {
	for offset := 0; offset < length; {
		size := min(length-offset, q.t.o.C2HData)
		flags := byte(0)
		if offset+size == length {
			flags = flagLast
			if q.t.o.Success && q.out.window.noFlow && q.qid != 0 {
				flags |= flagSuccess
			}
		}
		if s := q.sendData(c, offset, size, flags); s != Success {
			q.respond(c, 0, s)
			return
		}
		offset += size
		if flags&flagSuccess != 0 {
			return
		}
	}
	q.respond(c, 0, Success)
}
