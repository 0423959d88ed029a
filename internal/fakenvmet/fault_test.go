package fakenvmet

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
)

// onIO is a fault for the I/O queues' PDUs of one type.
func onIO(kind Type, do Fault) Fault {
	return func(p *PDU) {
		if p.QID != 0 && p.Type == kind && p.Opcode != OpFabrics {
			do(p)
		}
	}
}

func TestFaults(t *testing.T) {
	// A host that reads two blocks sees each fault on the wire, and no other difference.
	for _, c := range []struct {
		story string
		fault Fault
		sees  func(t *testing.T, h *fakeHost, cid uint16)
	}{
		{"nothing", onIO(C2HData, func(*PDU) {}), func(t *testing.T, h *fakeHost, cid uint16) {
			if _, c := h.finish(int(cid), 8192); c.status() != 0 {
				t.Errorf("status %x", c.status())
			}
		}},
		{"padding", onIO(C2HData, func(p *PDU) { p.Pad = 12 }), func(t *testing.T, h *fakeHost, _ uint16) {
			if a := h.next(); a.pdo != 40 || a.plen != 40+8192+4 || len(a.data) != 8192 {
				t.Errorf("PDO %d, PLEN %d", a.pdo, a.plen)
			}
		}},
		{"a wrong header digest", onIO(C2HData, func(p *PDU) { p.BadHeaderDigest = true }), reads("wrong header digest")},
		{"a wrong data digest", onIO(C2HData, func(p *PDU) { p.BadDataDigest = true }), reads("wrong data digest")},
		{"wrong bytes with their digest", onIO(C2HData, func(p *PDU) { p.Data[7]++ }), func(t *testing.T, h *fakeHost, _ uint16) {
			if a := h.next(); a.data[7] != 1 {
				t.Error("the bytes are right")
			}
		}},
		{"another status", onIO(CapsuleResp, func(p *PDU) { p.SetStatus(InternalError); p.SetResult(9) }), func(t *testing.T, h *fakeHost, cid uint16) {
			if _, c := h.finish(int(cid), 8192); c.status() != 6 || c.result() != 9 {
				t.Errorf("status %x, result %x", c.status(), c.result())
			}
		}},
		{"a completion twice", onIO(CapsuleResp, func(p *PDU) { p.Then = []*PDU{p.Clone()} }), func(t *testing.T, h *fakeHost, cid uint16) {
			h.finish(int(cid), 8192)
			if a := h.next(); a.kind != 5 || a.cid() != cid {
				t.Errorf("then a PDU of type %d for CID %d", a.kind, a.cid())
			}
		}},
		{"an unknown CID", onIO(CapsuleResp, func(p *PDU) { p.SetCID(p.CID + 100) }), second(func(a answer, cid uint16) bool { return a.cid() == cid+100 })},
		{"data for another CID", onIO(C2HData, func(p *PDU) { p.SetCID(p.CID + 100) }), first(func(a answer, cid uint16) bool { return a.cid() == cid+100 })},
		{"data beyond the buffer", onIO(C2HData, func(p *PDU) { p.SetOffset(8192) }), first(func(a answer, _ uint16) bool { return a.offset() == 8192 })},
		{"data of another length", onIO(C2HData, func(p *PDU) { p.SetLength(4096) }), first(func(a answer, _ uint16) bool { return a.length() == 4096 && len(a.data) == 8192 })},
		{"more data than announced", onIO(C2HData, func(p *PDU) { p.Data = append(p.Data, 1, 2, 3, 4) }), first(func(a answer, _ uint16) bool { return a.length() == 8192 && len(a.data) == 8196 })},
		{"an oversize PLEN", onIO(C2HData, func(p *PDU) { p.SetPLEN(1 << 31); p.End = true }), reads("HLEN over PLEN")},
		{"a data PDU split in two", onIO(C2HData, split), func(t *testing.T, h *fakeHost, cid uint16) {
			if got, c := h.finish(int(cid), 8192); c.status() != 0 || len(got) != 8192 {
				t.Errorf("status %x, %d bytes", c.status(), len(got))
			}
		}},
		{"C2HTermReq", onIO(CapsuleResp, func(p *PDU) { p.Drop, p.End, p.Then = true, true, []*PDU{TermReq(2)} }), func(t *testing.T, h *fakeHost, _ uint16) {
			h.next()
			if a := h.next(); a.kind != 3 || a.plen != 24 || a.fes() != 2 {
				t.Errorf("a PDU of type %d, PLEN %d", a.kind, a.plen)
			}
			h.ended()
		}},
		{"the end instead of a completion", onIO(CapsuleResp, func(p *PDU) { p.Drop, p.End = true, true }), func(t *testing.T, h *fakeHost, _ uint16) {
			h.next()
			if rest := h.ended(); len(rest) != 0 {
				t.Errorf("%d bytes before the end", len(rest))
			}
		}},
	} {
		t.Run(c.story, func(t *testing.T) {
			target := start(t, Options{})
			q := connect(t, target, how{digests: 3}).io[0]
			target.SetFault(c.fault)
			e := q.rw(2, 0, 2, 8192, 0x5A)
			q.send(q.capsule(e, nil))
			c.sees(t, q, q.cid)
			clean(t, target)
		})
	}
}

func reads(text string) func(*testing.T, *fakeHost, uint16) {
	return func(t *testing.T, h *fakeHost, _ uint16) {
		if _, err := h.read(); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%v, want %s", err, text)
		}
	}
}

func first(holds func(answer, uint16) bool) func(*testing.T, *fakeHost, uint16) {
	return func(t *testing.T, h *fakeHost, cid uint16) {
		if a := h.next(); !holds(a, cid) {
			t.Errorf("% x and %d bytes", a.header, len(a.data))
		}
	}
}

func second(holds func(answer, uint16) bool) func(*testing.T, *fakeHost, uint16) {
	return func(t *testing.T, h *fakeHost, cid uint16) { h.next(); first(holds)(t, h, cid) }
}

func split(p *PDU) {
	tail := p.Clone()
	half := len(p.Data) / 2
	p.Header[1] &^= 4 // LAST_PDU
	p.Data, tail.Data = p.Data[:half], tail.Data[half:]
	p.SetLength(uint32(half))
	tail.SetOffset(uint32(half))
	tail.SetLength(uint32(len(tail.Data)))
	p.Then = []*PDU{tail}
}

func TestFaultsOfWrites(t *testing.T) {
	// A host sees R2Ts that ask for too much, and several at a time only if it said that it takes them.
	for _, r2ts := range []int{1, 3} {
		target := start(t, Options{R2T: 16384})
		q := connect(t, target, how{r2ts: r2ts}).io[0]
		e := q.rw(1, 0, 16, 65536, 0x5A)
		q.send(q.capsule(e, nil))
		var asked []answer
		for range r2ts {
			asked = append(asked, q.next())
		}
		for i, a := range asked {
			if a.kind != 9 || int(a.offset()) != i*16384 || a.length() != 16384 {
				t.Errorf("R2T %d: % x", i, a.header)
			}
		}
		for i := range asked { // answered from behind
			a := asked[len(asked)-1-i]
			q.send(q.dataPDU(a.cid(), a.tag(), int(a.offset()), random(0, 16384), true))
		}
		for range 4 - r2ts {
			a := q.next()
			q.send(q.dataPDU(a.cid(), a.tag(), int(a.offset()), random(0, 16384), true))
		}
		if a := q.next(); a.kind != 5 || a.status() != 0 {
			t.Errorf("write with %d R2Ts at a time: % x", r2ts, a.header)
		}
		target.SetFault(onIO(R2T, func(p *PDU) { p.SetOffset(p.Offset() + 65536) }))
		q.send(q.capsule(q.rw(1, 0, 16, 65536, 0x5A), nil))
		if a := q.next(); a.kind != 9 || a.offset() != 65536 {
			t.Errorf("R2T beyond the transfer: % x", a.header)
		}
		clean(t, target)
	}
}

func TestHold(t *testing.T) {
	// What is held for one channel comes in its order when that is closed; others overtake it.
	target := start(t, Options{C2HData: 4096})
	q := connect(t, target, how{}).io[0]
	free := make(chan struct{})
	var late atomic.Uint32
	held := q.rw(2, 0, 3, 12288, 0x5A)
	late.Store(uint32(q.cid))
	target.SetFault(func(p *PDU) {
		if p.QID == 1 && uint32(p.CID) == late.Load() {
			p.Until = free
		}
	})
	q.send(q.capsule(held, nil))
	for range 3 {
		if _, c := q.get(8, 1, 4096); c.status() != 0 {
			t.Errorf("a read beside: %x", c.status())
		}
	}
	close(free)
	if got, c := q.finish(u16(held, 2), 12288); c.status() != 0 || len(got) != 12288 {
		t.Errorf("the held read: %x, %d bytes", c.status(), len(got))
	}
	clean(t, target)
}

func TestHeldForEver(t *testing.T) {
	// Silence ends with the target, though nobody lets the answer go.
	target := start(t, Options{})
	q := connect(t, target, how{}).io[0]
	seen := make(chan struct{}, 1)
	target.SetFault(func(p *PDU) { p.Until = make(chan struct{}); seen <- struct{}{} })
	q.send(q.capsule(q.rw(2, 0, 1, 4096, 0x5A), nil))
	<-seen
	target.Close()
	q.ended()
}

func TestCutAtEveryByte(t *testing.T) {
	// The output of a connection ends after any of its bytes, exactly, and nothing else is lost.
	whole := func(h *fakeHost) {
		b := icreq()
		b[11] = 3
		h.send(b)
		h.head, h.data = true, true
		e := h.connectEntry(0, 31, false)
		h.send(h.capsule(e, connectBytes(0xFFFF, NQN, testHost)))
	}
	target := start(t, Options{})
	length := 128 + 28
	for n := range length + 1 {
		target.SetFault(CutAt(int64(n)))
		h := open(t, target.Address())
		whole(h)
		if got := h.ended(); len(got) != n {
			t.Fatalf("%d bytes before the end, want %d", len(got), n)
		}
		_ = h.conn.Close()
	}
}

func TestDrip(t *testing.T) {
	// Byte by byte, each when the test lets it go.
	target := start(t, Options{})
	q := connect(t, target, how{}).io[0]
	next := make(chan struct{})
	target.SetFault(onIO(CapsuleResp, func(p *PDU) { p.Drip = func() { <-next } }))
	q.send(q.capsule(q.entry(0, 1, 0, 0x5A), nil))
	var got []byte
	for range 24 {
		next <- struct{}{}
		b := make([]byte, 2)
		n, err := q.conn.Read(b)
		if n != 1 || err != nil {
			t.Fatalf("%d bytes, %v", n, err)
		}
		got = append(got, b[0])
	}
	if !bytes.Equal(got[:8], []byte{5, 0, 24, 0, 24, 0, 0, 0}) {
		t.Errorf("% x", got)
	}
}

func TestFaultKnowsItsPlace(t *testing.T) {
	// A fault can choose by connection, queue, number and offset of the PDU.
	target := start(t, Options{})
	seen := make(chan string, 100)
	target.SetFault(func(p *PDU) { seen <- fmt.Sprint(p.Connection, p.QID, p.N, p.Sent, p.Len(), p.Type) })
	q := connect(t, target, how{digests: 1}).io[0]
	q.get(0, 1, 4096)
	target.SetFault(nil)
	q.get(0, 1, 4096)
	target.SetFault(func(p *PDU) { seen <- fmt.Sprint(p.Connection, p.QID, p.N, p.Sent, p.Len(), p.Type) })
	q.get(0, 1, 4096)
	want := []string{"1 0 0 0 128 1", "1 0 1 128 28 5", "1 0 2 156 28 5", "1 0 3 184 28 5",
		"2 0 0 0 128 1", "2 1 1 128 28 5", "2 1 2 156 4124 7", "2 1 3 4280 28 5",
		"2 1 6 8460 4124 7", "2 1 7 12584 28 5"}
	for _, w := range want {
		if got := <-seen; got != w {
			t.Errorf("saw %q, want %q", got, w)
		}
	}
}

func TestSuccessFlag(t *testing.T) {
	// The last C2HData completes a read on a queue without flow control, and on no other.
	for _, noFlow := range []bool{false, true} {
		target := start(t, Options{Success: true, C2HData: 4096})
		q := connect(t, target, how{noFlow: noFlow}).io[0]
		q.send(q.capsule(q.rw(2, 0, 2, 8192, 0x5A), nil))
		a, b := q.next(), q.next()
		if a.flags != 0 || b.flags&8 != 0 != noFlow {
			t.Errorf("flags %x and %x, flow control off %t", a.flags, b.flags, noFlow)
		}
		if !noFlow {
			if c := q.next(); c.kind != 5 {
				t.Errorf("then a PDU of type %d", c.kind)
			}
		}
		if _, c := q.get(0, 1, 4096); c.status() != 0 {
			t.Errorf("the next read: %x", c.status())
		}
		clean(t, target)
	}
}

func TestFlowControl(t *testing.T) {
	// SQHD follows the completions, wraps, and stays FFFFh without flow control; the target may keep it.
	target := start(t, Options{})
	q := connect(t, target, how{sqsize: 3}).io[0]
	for i := range 9 {
		if c := q.write(0, 4096, make([]byte, 4096)); int(c.sqhd()) != (i+1+1)%4 {
			t.Errorf("SQHD %d after %d commands of a queue of 4", c.sqhd(), i+2)
		}
	}
	q = connect(t, target, how{noFlow: true}).io[0]
	if c := q.write(0, 4096, make([]byte, 4096)); c.sqhd() != 0xFFFF {
		t.Errorf("SQHD %x without flow control", c.sqhd())
	}
	keeps := start(t, Options{FlowControl: true})
	h := dial(t, keeps.Address(), 0, 1)
	if _, c := h.do(h.connectEntry(0, 31, true), connectBytes(0xFFFF, NQN, testHost)); c.status() != 0 || c.sqhd() == 0xFFFF {
		t.Errorf("kept flow control: status %x, SQHD %x", c.status(), c.sqhd())
	}
}

func TestRefusedDigests(t *testing.T) {
	// A target that has no digests says so, and goes on without.
	target := start(t, Options{NoDigests: true})
	q := connect(t, target, how{digests: 3}).io[0]
	if q.head || q.data {
		t.Error("digests were granted")
	}
	if _, c := q.get(0, 1, 4096); c.status() != 0 {
		t.Errorf("status %x", c.status())
	}
	clean(t, target)
}

func TestSilence(t *testing.T) {
	// A connection that gets no ICResp stays open, and one that sends half an ICReq, too.
	seen := make(chan struct{})
	target := start(t, Options{Fault: func(p *PDU) { p.Drop = true; close(seen) }})
	h := open(t, target.Address())
	h.send(icreq())
	<-seen
	half := open(t, target.Address())
	half.send(icreq()[:60])
	target.SetFault(nil)
	connect(t, target, how{})
	target.Drop()
	for _, q := range []*fakeHost{h, half} {
		if b, err := io.ReadAll(q.conn); len(b) != 0 {
			t.Errorf("%d bytes, %v", len(b), err)
		}
	}
}
