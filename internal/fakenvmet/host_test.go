package fakenvmet

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is the watchdog of one answer: a thousand times what it takes.
const patience = 60 * time.Second

// fakeHost is one queue of a host, made by hand from the specifications' layouts: it shares no
// constant with the target.
type fakeHost struct {
	t          testing.TB
	conn       net.Conn
	head, data bool // digests
	align      int  // CPDA
	maxData    int
	cid        uint16
}

// answer is a PDU of the target.
type answer struct {
	kind, flags byte
	pdo, plen   int
	header      []byte // all of it, without digest
	data        []byte
}

func (a answer) cid() uint16 {
	if a.kind == 5 {
		return binary.LittleEndian.Uint16(a.header[20:])
	}
	return binary.LittleEndian.Uint16(a.header[8:])
}
func (a answer) status() uint16 { return binary.LittleEndian.Uint16(a.header[22:]) >> 1 }
func (a answer) result() uint64 { return binary.LittleEndian.Uint64(a.header[8:]) }
func (a answer) sqhd() uint16   { return binary.LittleEndian.Uint16(a.header[16:]) }
func (a answer) tag() uint16    { return binary.LittleEndian.Uint16(a.header[10:]) }
func (a answer) offset() uint32 { return binary.LittleEndian.Uint32(a.header[12:]) }
func (a answer) length() uint32 { return binary.LittleEndian.Uint32(a.header[16:]) }
func (a answer) fes() uint16    { return binary.LittleEndian.Uint16(a.header[8:]) }
func crc(b []byte) uint32       { return crc32.Checksum(b, crc32.MakeTable(0x82f63b78)) }
func u32(b []byte, at int) int  { return int(binary.LittleEndian.Uint32(b[at:])) }
func u16(b []byte, at int) int  { return int(binary.LittleEndian.Uint16(b[at:])) }
func set32(b []byte, at, v int) { binary.LittleEndian.PutUint32(b[at:], uint32(v)) }
func set16(b []byte, at, v int) { binary.LittleEndian.PutUint16(b[at:], uint16(v)) }
func set64(b []byte, at, v int) { binary.LittleEndian.PutUint64(b[at:], uint64(v)) }
func random(seed byte, n int) []byte {
	b := make([]byte, n)
	x := uint32(seed) + 1
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return b
}

func start(t testing.TB, o Options) *Target {
	t.Helper()
	target, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(target.Close)
	return target
}

func open(t testing.TB, address string) *fakeHost {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &fakeHost{t: t, conn: conn, align: 4}
}

// icreq is an ICReq without digests, of one R2T at a time.
func icreq() []byte {
	b := make([]byte, 128)
	copy(b, []byte{0x00, 0, 128, 0, 128, 0, 0, 0, 0, 0, 0, 0})
	return b
}

// dial opens a connection and exchanges ICReq and ICResp. Digests: 1 header, 2 data.
func dial(t testing.TB, address string, digests byte, r2ts int) *fakeHost {
	t.Helper()
	h := open(t, address)
	b := icreq()
	b[11] = digests
	set32(b, 12, r2ts-1)
	h.send(b)
	a := h.next()
	if a.kind != 1 || a.plen != 128 || u16(a.header, 8) != 0 {
		t.Fatalf("ICResp: % x", a.header)
	}
	h.head, h.data = a.header[11]&1 != 0, a.header[11]&2 != 0
	h.align = (int(a.header[10]) + 1) * 4
	h.maxData = u32(a.header, 12)
	return h
}

func (h *fakeHost) send(b []byte) {
	h.t.Helper()
	if _, err := h.conn.Write(b); err != nil {
		h.t.Fatal(err)
	}
}

// frame makes a PDU: digests, padding, lengths. A header shorter than 8 gets no digests.
func (h *fakeHost) frame(header, data []byte) []byte {
	header = bytes.Clone(header)
	n := len(header)
	if h.head {
		header[1] |= 1
		n += 4
	}
	pad := 0
	if len(data) > 0 {
		pad = (h.align - n%h.align) % h.align
		header[3] = byte(n + pad)
		n += pad + len(data)
		if h.data {
			header[1] |= 2
			n += 4
		}
	}
	set32(header, 4, n)
	out := bytes.Clone(header)
	if h.head {
		out = binary.LittleEndian.AppendUint32(out, crc(header))
	}
	if len(data) > 0 {
		out = append(append(out, make([]byte, pad)...), data...)
		if h.data {
			out = binary.LittleEndian.AppendUint32(out, crc(data))
		}
	}
	return out
}

// next reads one PDU, and holds its digests and lengths against each other.
func (h *fakeHost) next() answer {
	h.t.Helper()
	a, err := h.read()
	if err != nil {
		h.t.Fatalf("read a PDU: %v", err)
	}
	return a
}

func (h *fakeHost) read() (answer, error) {
	_ = h.conn.SetReadDeadline(time.Now().Add(patience))
	ch := make([]byte, 8)
	if _, err := io.ReadFull(h.conn, ch); err != nil {
		return answer{}, err
	}
	a := answer{kind: ch[0], flags: ch[1], pdo: int(ch[3]), plen: u32(ch, 4)}
	if a.plen < int(ch[2]) || ch[2] < 8 || a.plen > 8<<20 {
		return a, errors.New("HLEN over PLEN")
	}
	rest := make([]byte, a.plen-8)
	if _, err := io.ReadFull(h.conn, rest); err != nil {
		return a, err
	}
	whole := append(ch, rest...)
	a.header = whole[:ch[2]]
	at := len(a.header)
	if a.flags&1 != 0 {
		if crc(a.header) != uint32(u32(whole, at)) {
			return a, errors.New("wrong header digest")
		}
		at += 4
	}
	if a.kind == 3 {
		a.data = whole[at:]
		return a, nil
	}
	if a.kind != 1 && h.head != (a.flags&1 != 0) {
		return a, errors.New("header digest flag")
	}
	if a.plen > at {
		end := a.plen
		if a.flags&2 != 0 {
			end -= 4
			if crc(whole[a.pdo:end]) != uint32(u32(whole, end)) {
				return a, errors.New("wrong data digest")
			}
		}
		if h.data != (a.flags&2 != 0) {
			return a, errors.New("data digest flag")
		}
		a.data = whole[a.pdo:end]
	}
	return a, nil
}

// ended waits for the end of the connection, and returns what came before it.
func (h *fakeHost) ended() []byte {
	h.t.Helper()
	_ = h.conn.SetReadDeadline(time.Now().Add(patience))
	b, err := io.ReadAll(h.conn)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		h.t.Fatal("the connection does not end")
	}
	return b
}

// entry makes a submission queue entry with the next CID and an SGL: 0x01 in the capsule, 0x5A
// outside of it.
func (h *fakeHost) entry(opcode byte, nsid, length int, sgl byte) []byte {
	h.cid++
	e := make([]byte, 64)
	e[0], e[1] = opcode, 0x40
	set16(e, 2, int(h.cid))
	set32(e, 4, nsid)
	set32(e, 32, length)
	e[39] = sgl
	return e
}

func (h *fakeHost) capsule(entry, data []byte) []byte {
	return h.frame(append([]byte{4, 0, 72, 0, 0, 0, 0, 0}, entry...), data)
}

// do sends a command with its data in the capsule, and returns what it reads and the completion.
func (h *fakeHost) do(entry, data []byte) ([]byte, answer) {
	h.t.Helper()
	h.send(h.capsule(entry, data))
	return h.finish(u16(entry, 2), u32(entry, 32))
}

// finish takes C2HData and the completion of one command.
func (h *fakeHost) finish(cid, length int) ([]byte, answer) {
	h.t.Helper()
	got, at := make([]byte, length), 0
	for {
		a := h.next()
		if int(a.cid()) != cid {
			h.t.Fatalf("a PDU of type %d for CID %d, want %d", a.kind, a.cid(), cid)
		}
		switch a.kind {
		case 5:
			return got[:at], a
		case 7:
			if int(a.offset()) != at || int(a.length()) != len(a.data) {
				h.t.Fatalf("C2HData of %d bytes, DATAL %d, at %d, want %d", len(a.data), a.length(), a.offset(), at)
			}
			at += copy(got[at:], a.data)
			if last := a.flags&4 != 0; last != (at == length) {
				h.t.Fatalf("C2HData with LAST_PDU %t at %d of %d", last, at, length)
			}
			if a.flags&8 != 0 {
				return got[:at], answer{kind: 5, header: make([]byte, 24)}
			}
		default:
			h.t.Fatalf("a PDU of type %d", a.kind)
		}
	}
}

// connectEntry is Connect; its data are made by connectData.
func (h *fakeHost) connectEntry(qid, sqsize int, noFlow bool) []byte {
	e := h.entry(0x7F, 0, 1024, 0x01)
	e[4] = 0x01
	set16(e, 42, qid)
	set16(e, 44, sqsize)
	if noFlow {
		e[46] = 1 << 2
	}
	return e
}

const testHost = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-000000000001"

func connectBytes(cntlid int, subsystem, host string) []byte {
	d := make([]byte, 1024)
	copy(d, "sixteen bytes id")
	set16(d, 16, cntlid)
	copy(d[256:], subsystem)
	copy(d[512:], host)
	return d
}

// association is a connected controller: an admin queue and I/O queues.
type association struct {
	*fakeHost // the admin queue
	id        int
	io        []*fakeHost
}

// how says how a host connects. The zero how is one I/O queue of 32 entries, without digests, with
// flow control.
type how struct {
	digests byte
	r2ts    int
	queues  int
	sqsize  int
	noFlow  bool
	kato    int // ms
	port    int
}

func connect(t testing.TB, target *Target, w how) *association {
	t.Helper()
	w.r2ts, w.sqsize = max(w.r2ts, 1), max(w.sqsize, 0)
	if w.sqsize == 0 {
		w.sqsize = 31
	}
	address := target.Port(w.port).Address()
	a := &association{fakeHost: dial(t, address, w.digests, w.r2ts)}
	e := a.connectEntry(0, 31, false)
	set32(e, 48, w.kato)
	_, c := a.do(e, connectBytes(0xFFFF, target.NQN(), testHost))
	if c.status() != 0 {
		t.Fatalf("Connect: status %x", c.status())
	}
	a.id = int(c.result() & 0xFFFF)
	a.enable()
	for i := range max(w.queues, 1) {
		q := dial(t, address, w.digests, w.r2ts)
		if _, c := q.do(q.connectEntry(i+1, w.sqsize, w.noFlow), connectBytes(a.id, target.NQN(), testHost)); c.status() != 0 {
			t.Fatalf("Connect of queue %d: status %x", i+1, c.status())
		} else if w.noFlow != (c.sqhd() == 0xFFFF) {
			t.Fatalf("flow control off %t, SQHD %x", w.noFlow, c.sqhd())
		}
		a.io = append(a.io, q)
	}
	return a
}

// enable sets CC.EN and reads CSTS.RDY.
func (a *association) enable() {
	a.t.Helper()
	e := a.property(0x00, 0x14, 0)
	set64(e, 48, 6<<16|4<<20|1)
	if _, c := a.do(e, nil); c.status() != 0 {
		a.t.Fatalf("Property Set CC: status %x", c.status())
	}
	if _, c := a.do(a.property(0x04, 0x1C, 0), nil); c.status() != 0 || c.result() != 1 {
		a.t.Fatalf("CSTS %x, status %x", c.result(), c.status())
	}
}

func (h *fakeHost) property(kind byte, offset, size int) []byte {
	e := h.entry(0x7F, 0, 0, 0x5A)
	e[4], e[40] = kind, byte(size)
	set32(e, 44, offset)
	return e
}

// identify returns a data structure and the completion.
func (h *fakeHost) identify(cns, nsid int) ([]byte, answer) {
	h.t.Helper()
	e := h.entry(0x06, nsid, 4096, 0x5A)
	e[40] = byte(cns)
	return h.do(e, nil)
}

// logPage reads a log page, or a part of it, and returns the completion.
func (h *fakeHost) logPage(id, offset, length int) ([]byte, answer) {
	h.t.Helper()
	e := h.entry(0x02, 0xFFFFFFFF, length, 0x5A)
	set32(e, 40, id|(length/4-1)<<16)
	set64(e, 48, offset)
	return h.do(e, nil)
}

func (h *fakeHost) feature(opcode byte, id, value int) answer {
	h.t.Helper()
	e := h.entry(opcode, 0, 0, 0x5A)
	set32(e, 40, id)
	set32(e, 44, value)
	_, a := h.do(e, nil)
	return a
}

// rw makes the entry of a Read or Write of whole blocks.
func (h *fakeHost) rw(opcode byte, block, blocks, length int, sgl byte) []byte {
	e := h.entry(opcode, 1, length, sgl)
	set64(e, 40, block)
	set32(e, 48, blocks-1)
	return e
}

func (h *fakeHost) get(block, blocks, size int) ([]byte, answer) {
	h.t.Helper()
	return h.do(h.rw(2, block, blocks, blocks*size, 0x5A), nil)
}

// write writes in the capsule.
func (h *fakeHost) write(block, size int, data []byte) answer {
	h.t.Helper()
	_, a := h.do(h.rw(1, block, len(data)/size, len(data), 0x01), data)
	return a
}

// dataPDU makes an H2CData.
func (h *fakeHost) dataPDU(cid, tag uint16, offset int, data []byte, last bool) []byte {
	b := make([]byte, 24)
	b[0], b[2] = 6, 24
	if last {
		b[1] = 4
	}
	set16(b, 8, int(cid))
	set16(b, 10, int(tag))
	set32(b, 12, offset)
	set32(b, 16, len(data))
	return h.frame(b, data)
}

// writeR2T writes by R2T, and returns how many there were.
func (h *fakeHost) writeR2T(block, size int, data []byte) (int, answer) {
	h.t.Helper()
	e := h.rw(1, block, len(data)/size, len(data), 0x5A)
	h.send(h.capsule(e, nil))
	for asked := 0; ; asked++ {
		a := h.next()
		if int(a.cid()) != u16(e, 2) {
			h.t.Fatalf("CID %d, want %d", a.cid(), u16(e, 2))
		}
		if a.kind == 5 {
			return asked, a
		}
		if a.kind != 9 {
			h.t.Fatalf("a PDU of type %d", a.kind)
		}
		from, to := int(a.offset()), int(a.offset()+a.length())
		for from < to {
			n := min(to-from, h.maxData)
			h.send(h.dataPDU(a.cid(), a.tag(), from, data[from:from+n], from+n == to))
			from += n
		}
	}
}

func clean(t *testing.T, target *Target) {
	t.Helper()
	if v := target.Violations(); len(v) > 0 {
		t.Errorf("violations: %q", v)
	}
}
