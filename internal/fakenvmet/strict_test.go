package fakenvmet

import (
	"net"
	"strings"
	"testing"
)

func TestViolations(t *testing.T) {
	// Each broken rule is recorded in words, and those after which nothing can be trusted end the
	// association by a C2HTermReq with the right status.
	for _, c := range []struct {
		story string
		does  func(q *fakeHost) // on an I/O queue with both digests
		text  string
		fes   uint16 // 0: the queue goes on
	}{
		{"a second ICReq", func(q *fakeHost) { q.send(icreq()) }, "PDU of type 00h from a host", 2},
		{"an unknown type", func(q *fakeHost) { q.send(q.frame([]byte{8, 0, 24, 0, 0, 0, 0, 0}, nil)) }, "type 08h", 2},
		{"a wrong HLEN", func(q *fakeHost) { b := q.read4(); b[2] = 71; q.send(b) }, "HLEN 71, not 72", 1},
		{"a wrong PLEN", func(q *fakeHost) { b := q.read4(); set32(b, 4, 75); q.send(q.again(b)) }, "PDO 0, not 76", 1},
		{"a huge PLEN", func(q *fakeHost) { b := q.read4(); b[1], b[3] = 3, 76; set32(b, 4, 1<<31-1); q.send(q.again(b)) }, "2147483567 bytes in its capsule", 5},
		{"a missing header digest", func(q *fakeHost) { b := q.read4(); b[1] = 0; q.send(b) }, "FLAGS 00h, header digests are true", 1},
		{"a wrong header digest", func(q *fakeHost) { b := q.read4(); b[73]++; q.send(b) }, "wrong header digest", 3},
		{"a wrong data digest", func(q *fakeHost) { b := q.write4(); b[len(b)-1]++; q.send(b) }, "wrong data digest", 3},
		{"a missing data digest", func(q *fakeHost) { q.data = false; q.send(q.write4()) }, "data digests are true", 1},
		{"a wrong PDO", func(q *fakeHost) { q.align = 16; q.send(q.write4()) }, "PDO 80, not 76", 1},
		{"no SGL", func(q *fakeHost) { e := q.rw(2, 0, 1, 4096, 0x5A); e[1] = 0; q.do(e, nil) }, "PSDT 0", 0},
		{"another length than the range", func(q *fakeHost) { q.do(q.rw(2, 0, 2, 4096, 0x5A), nil) }, "2 blocks of 4096 with an SGL of 4096", 0},
		{"outside the namespace", func(q *fakeHost) { q.get(1<<30, 1, 4096) }, "outside namespace 1", 0},
		{"outside by a deallocation", func(q *fakeHost) {
			d := make([]byte, 16)
			set32(d, 4, 1)
			set64(d, 8, 1<<40)
			e := q.entry(9, 1, 16, 1)
			e[44] = 4
			q.do(e, d)
		}, "outside namespace 1", 0},
		{"fewer ranges than announced", func(q *fakeHost) {
			e := q.entry(9, 1, 16, 1)
			e[40] = 1
			q.do(e, make([]byte, 16))
		}, "2 ranges in 16 bytes", 0},
		{"over MDTS", func(q *fakeHost) { q.get(0, 17, 4096) }, "69632 bytes, MDTS is 4", 0},
		{"a write over MDTS", func(q *fakeHost) { q.do(q.rw(1, 0, 17, 17*4096, 0x5A), nil) }, "69632 bytes, MDTS is 4", 0},
		{"small data outside the capsule", func(q *fakeHost) { q.writeR2T(0, 4096, make([]byte, 4096)) }, "outside its capsule, which holds 8192", 0},
		{"data over the capsule", func(q *fakeHost) { q.send(q.capsule(q.rw(1, 0, 3, 12288, 1), make([]byte, 12288))) }, "12288 bytes in its capsule, which holds 8192", 5},
		{"an empty capsule", func(q *fakeHost) { q.send(q.capsule(q.rw(1, 0, 1, 4096, 1), nil)) }, "SGL type 01h and an empty capsule", 1},
		{"data with a read", func(q *fakeHost) { q.send(q.capsule(q.rw(2, 0, 1, 4096, 1), make([]byte, 4096))) }, "4096 bytes in its capsule, SGL type 01h of 4096", 1},
		{"unasked data", func(q *fakeHost) { q.send(q.dataPDU(77, 1, 0, make([]byte, 64), true)) }, "CID 77, which waits for none", 1},
		{"a wrong tag", func(q *fakeHost) { a := q.asked(); q.send(q.dataPDU(a.cid(), a.tag()+1, 0, make([]byte, 64), false)) }, "which no R2T has", 1},
		{"data beyond the R2T", func(q *fakeHost) { a := q.asked(); q.send(q.dataPDU(a.cid(), a.tag(), 0, make([]byte, 20484), true)) }, "H2CData of 20484 bytes at 0, R2T of 20480 at 0", 4},
		{"data out of order", func(q *fakeHost) { a := q.asked(); q.send(q.dataPDU(a.cid(), a.tag(), 4096, make([]byte, 64), false)) }, "H2CData of 64 bytes at 4096", 4},
		{"over MAXH2CDATA", func(q *fakeHost) { a := q.asked(); q.send(q.dataPDU(a.cid(), a.tag(), 0, make([]byte, 32768), false)) }, "MAXH2CDATA is 24576", 5},
		{"no LAST_PDU", func(q *fakeHost) { a := q.asked(); q.send(q.dataPDU(a.cid(), a.tag(), 0, make([]byte, 20480), false)) }, "LAST_PDU false, 20480 of 20480", 1},
		{"an early LAST_PDU", func(q *fakeHost) { a := q.asked(); q.send(q.dataPDU(a.cid(), a.tag(), 0, make([]byte, 64), true)) }, "LAST_PDU true, 64 of 20480", 1},
		{"a CID in flight", func(q *fakeHost) { q.asked(); q.cid--; q.send(q.capsule(q.rw(2, 0, 1, 4096, 0x5A), nil)) }, "while its CID is in flight", 2},
		{"a CID twice in a burst", func(q *fakeHost) { b := q.read4(); q.send(append(b, b...)) }, "while its CID is in flight", 2},
		{"over SQSIZE", func(q *fakeHost) {
			var b []byte
			for range 8 {
				b = append(b, q.read4()...)
			}
			q.send(b)
		}, "is the 8th in flight, SQSIZE is 7", 2},
		{"Connect again", func(q *fakeHost) { q.do(q.connectEntry(1, 7, false), connectBytes(1, NQN, testHost)) }, "on a queue that is connected", 0},
	} {
		t.Run(c.story, func(t *testing.T) {
			target := start(t, Options{InCapsule: 8192, MDTS: 4, R2T: 20480, MaxData: 24576})
			a := connect(t, target, how{digests: 3, sqsize: 7})
			q := a.io[0]
			c.does(q)
			if c.fes == 0 {
				if _, got := q.get(0, 1, 4096); got.status() != 0 {
					t.Errorf("the next read: %x", got.status())
				}
			} else {
				got := q.next()
				for got.kind != 3 {
					got = q.next()
				}
				if got.fes() != c.fes {
					t.Errorf("C2HTermReq with FES %d, want %d", got.fes(), c.fes)
				}
				q.ended()
				a.ended()
			}
			if v := target.Violations(); len(v) != 1 || !strings.Contains(v[0], c.text) || target.Stats().Violations != 1 {
				t.Errorf("violations %q, want %q", v, c.text)
			}
		})
	}
}

// read4 is the capsule of a read of 4 KiB, write4 of a write.
func (h *fakeHost) read4() []byte  { return h.capsule(h.rw(2, 0, 1, 4096, 0x5A), nil) }
func (h *fakeHost) write4() []byte { return h.capsule(h.rw(1, 0, 1, 4096, 0x01), make([]byte, 4096)) }

// again makes the header digest of a changed header right.
func (h *fakeHost) again(b []byte) []byte {
	set32(b, 72, int(crc(b[:72])))
	return b
}

// asked begins a write, and returns its R2T.
func (h *fakeHost) asked() answer {
	h.send(h.capsule(h.rw(1, 0, 10, 40960, 0x5A), nil))
	return h.next()
}

func TestViolationsBeforeConnect(t *testing.T) {
	// So are the rules of the beginning.
	for _, c := range []struct {
		story string
		does  func(t *testing.T, h *fakeHost)
		text  string
		fes   uint16
	}{
		{"no ICReq", func(t *testing.T, h *fakeHost) { b := icreq(); b[0] = 4; h.send(b) }, "type 04h before ICReq", 2},
		{"a short ICReq", func(t *testing.T, h *fakeHost) { b := icreq(); b[4] = 64; h.send(b) }, "PLEN 64", 1},
		{"a host alignment", func(t *testing.T, h *fakeHost) { b := icreq(); b[10] = 1; h.send(b) }, "HPDA 1", 6},
		{"another version", func(t *testing.T, h *fakeHost) { b := icreq(); b[8] = 1; h.send(b) }, "PFV 1", 6},
		{"unknown digests", func(t *testing.T, h *fakeHost) { b := icreq(); b[11] = 4; h.send(b) }, "DGST 04h", 1},
		{"a command before Connect", func(t *testing.T, h *fakeHost) {
			h.send(icreq())
			h.next()
			if _, c := h.get(0, 1, 4096); c.status() != 0x4001 {
				t.Errorf("status %x", c.status())
			}
		}, "before Connect", 0},
		{"a command before the controller is ready", func(t *testing.T, h *fakeHost) {
			h.send(icreq())
			h.next()
			h.do(h.connectEntry(0, 31, false), connectBytes(0xFFFF, NQN, testHost))
			if _, c := h.identify(1, 0); c.status() != 0x400C {
				t.Errorf("status %x", c.status())
			}
		}, "before the controller is ready", 0},
		{"a short Connect", func(t *testing.T, h *fakeHost) {
			h.send(icreq())
			h.next()
			e := h.connectEntry(0, 31, false)
			set32(e, 32, 512)
			if _, c := h.do(e, make([]byte, 512)); c.status() != 0x400F {
				t.Errorf("status %x", c.status())
			}
		}, "512 bytes of data", 0},
	} {
		target := start(t, Options{})
		h := open(t, target.Address())
		c.does(t, h)
		if c.fes != 0 {
			if got := h.next(); got.kind != 3 || got.fes() != c.fes {
				t.Errorf("%s: type %d, FES %d, want %d", c.story, got.kind, got.fes(), c.fes)
			}
			h.ended()
		}
		if v := target.Violations(); len(v) != 1 || !strings.Contains(v[0], c.text) {
			t.Errorf("%s: violations %q, want %q", c.story, v, c.text)
		}
	}
}

func TestHeldCommandsAreInFlight(t *testing.T) {
	// A host that sends one more than SQSIZE while completions are held is found, however slowly it sends.
	target := start(t, Options{})
	q := connect(t, target, how{sqsize: 4}).io[0]
	free := make(chan struct{})
	seen := make(chan struct{}, 8)
	target.SetFault(onIO(CapsuleResp, func(p *PDU) { p.Until = free; seen <- struct{}{} }))
	for range 4 {
		q.send(q.read4())
		q.next()
		<-seen
	}
	clean(t, target)
	q.send(q.read4())
	if a := q.next(); a.kind != 3 {
		t.Errorf("a fifth command of four: a PDU of type %d", a.kind)
	}
	if v := target.Violations(); len(v) != 1 || !strings.Contains(v[0], "the 5th in flight, SQSIZE is 4") {
		t.Errorf("violations %q", v)
	}
	close(free)
}

func TestHostTerminates(t *testing.T) {
	// A host may end a connection by an H2CTermReq; that breaks no rule.
	target := start(t, Options{})
	a := connect(t, target, how{})
	b := make([]byte, 24)
	copy(b, []byte{2, 0, 24, 0, 24, 0, 0, 0, 1})
	a.io[0].send(b)
	a.io[0].ended()
	a.ended()
	if n := target.Stats().HostTermReqs; n != 1 {
		t.Errorf("%d H2CTermReqs counted", n)
	}
	clean(t, target)
}

func FuzzHost(f *testing.F) {
	// Whatever a host sends after its Connect, the target neither panics nor stops to serve others.
	target := start(f, Options{Secret: secretOf("00", random(1, 32)), Namespaces: []NamespaceOptions{{Size: 1 << 20}}})
	seed := &fakeHost{t: f, align: 4}
	f.Add(seed.read4())
	f.Add(seed.write4())
	f.Add(seed.property(4, 0, 1))
	f.Add(seed.capsule(seed.rw(1, 0, 10, 40960, 0x5A), nil))
	f.Add(seed.dataPDU(1, 2, 3, make([]byte, 64), true))
	f.Add(seed.capsule(seed.entry(0x0C, 0, 0, 0x5A), nil))
	negotiate := make([]byte, 72)
	negotiate[7], negotiate[8], negotiate[10], negotiate[11], negotiate[12], negotiate[42] = 1, 1, 1, 1, 1, 1
	send := seed.entry(0x7F, 0, 72, 0x01)
	send[4], send[41], send[42], send[43], send[44] = 5, 1, 1, 0xE9, 72
	f.Add(seed.capsule(send, negotiate))
	f.Fuzz(func(t *testing.T, input []byte) {
		h := dial(t, target.Address(), 0, 1)
		h.do(h.connectEntry(0, 31, false), connectBytes(0xFFFF, NQN, testHost))
		h.send(input)
		if err := h.conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		h.ended()
		_ = h.conn.Close()
	})
}
