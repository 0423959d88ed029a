package nvmetcp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
)

// fakeTarget is a small target with one namespace in memory. It makes and reads PDUs by itself, so that a mistake of
// ours is not its mistake too. What it should do otherwise is a hook of the test. Its fields are set before it is
// dialed.
type fakeTarget struct {
	t         testing.TB
	blockBits uint
	inline    int    // bytes of data in a capsule of an I/O queue
	maxData   uint32 // MAXH2CDATA
	cpda      byte
	mdts      byte
	queues    int // that are granted
	entries   int // of a queue
	pad       int // bytes before the data of C2HData
	part      int // bytes of one C2HData or R2T; 0 means all
	noSuccess bool
	ana       bool
	tcp       bool // connections are TCP's, not pipes
	uuid      byte
	// command sees each command first, and answers true if it has dealt with it.
	command func(c *fakeConn, sqe []byte, data []byte) bool
	// cut ends a connection after so many bytes that the target sent on all of them. Negative means never.
	cut int

	mu     sync.Mutex // guards the rest
	disk   []byte
	access byte
	sent   int
	conns  []*fakeConn
	seen   map[byte]int // commands by opcode on I/O queues
	dials  int
	down   error // of dials
	work   sync.WaitGroup
	ram    sync.Mutex // guards the bytes of disk
	hook   sync.Mutex // held while command runs
}

func newFakeTarget(t testing.TB) *fakeTarget {
	f := &fakeTarget{t: t, blockBits: 12, inline: 8192, maxData: 1 << 20, queues: 64, entries: 128, cut: -1, access: 1,
		disk: make([]byte, 8<<20), seen: map[byte]int{}, uuid: 1}
	t.Cleanup(f.close)
	return f
}

func (f *fakeTarget) close() {
	f.drop()
	f.work.Wait()
}

// drop ends all connections.
func (f *fakeTarget) drop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.conns {
		_ = c.Close()
	}
	f.conns = nil
}

func (f *fakeTarget) refuse(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = err
}

func (f *fakeTarget) count(opcode byte) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seen[opcode]
}

// Dial is Options.Dial: a pipe to a goroutine of the target.
func (f *fakeTarget) Dial(ctx context.Context, _, _ string) (net.Conn, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dials++
	if f.down != nil {
		return nil, f.down
	}
	if f.tcp {
		return f.dialTCP()
	}
	host, target := net.Pipe()
	f.serve(target)
	return host, nil
}

func (f *fakeTarget) dialTCP() (net.Conn, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer l.Close()
	host, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return nil, err
	}
	target, err := l.Accept()
	if err == nil {
		f.serve(target)
	}
	return host, err
}

// serve needs mu.
func (f *fakeTarget) serve(conn net.Conn) {
	c := &fakeConn{Conn: conn, f: f, writes: map[uint16]*fakeWrite{}, in: make([]byte, 16<<10)}
	f.conns = append(f.conns, c)
	f.work.Go(func() {
		defer func() { _ = c.Close() }()
		if err := c.run(); errors.Is(err, errFake) { // the host sees other ends
			f.t.Error(err)
		}
	})
}

func (f *fakeTarget) options() Options {
	return Options{Portals: []string{"fake:4420"}, SubsystemNQN: "nqn.2014-08.org.example:fake", Dial: f.Dial, Queues: 1}
}

func (f *fakeTarget) open(t testing.TB, o Options) *Namespace {
	t.Helper()
	n, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close() })
	return n
}

// fakeWrite is a write that waits for its data.
type fakeWrite struct {
	data []byte
	got  int
}

type fakeConn struct {
	net.Conn
	f       *fakeTarget
	digests [2]bool
	flow    bool // off
	queue   uint16
	writes  map[uint16]*fakeWrite
	page    []byte
	spare   *fakeWrite // to be used again
	event   int        // identifier of the command that waits for an event, and 1
	in      []byte     // one PDU
	out     [256]byte
	sending sync.Mutex // one PDU; guards out
}

func (c *fakeConn) Write(b []byte) (int, error) {
	c.f.mu.Lock()
	room := len(b)
	if c.f.cut >= 0 {
		room = min(room, c.f.cut-c.f.sent)
	}
	c.f.sent += room
	c.f.mu.Unlock()
	n, err := c.Conn.Write(b[:room])
	if room < len(b) {
		_ = c.Close()
		return n, io.ErrClosedPipe
	}
	return n, err
}

func castagnoli(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(0x82f63b78)) }

var errFake = errors.New("the host broke the protocol")

// broken names the check that failed by its number.
func broken(check int) error { return fmt.Errorf("%w: check %d", errFake, check) }

func (c *fakeConn) run() error {
	ic := c.in[:128]
	if _, err := io.ReadFull(c, ic); err != nil {
		return err // the host has changed its mind
	}
	if ic[0] != 0 || ic[2] != 128 || ic[10] != 0 {
		return broken(1)
	}
	c.digests = [2]bool{ic[11]&1 != 0, ic[11]&2 != 0}
	ic[0], ic[10] = 1, c.f.cpda
	binary.LittleEndian.PutUint32(ic[12:], c.f.maxData)
	if _, err := c.Write(ic); err != nil {
		return err
	}
	for {
		if err := c.pdu(); err != nil {
			return err
		}
	}
}

// pdu reads one PDU of the host, and checks its form.
func (c *fakeConn) pdu() error {
	if _, err := io.ReadFull(c, c.in[:8]); err != nil {
		return err
	}
	le := binary.LittleEndian
	kind, head, off, length := c.in[0], int(c.in[2]), int(c.in[3]), int(le.Uint32(c.in[4:]))
	if length < head || length > 8<<20 {
		return broken(20)
	}
	if length > len(c.in) {
		c.in = append(c.in[:8:8], make([]byte, length-8)...)
	}
	if _, err := io.ReadFull(c, c.in[8:length]); err != nil {
		return err
	}
	end := head
	if c.digests[0] {
		if le.Uint32(c.in[head:]) != castagnoli(c.in[:head]) || c.in[0+1]&1 == 0 {
			return broken(3)
		}
		end += 4
	}
	var data []byte
	if length > end {
		if off < end || off%(4*(int(c.f.cpda)+1)) != 0 {
			return broken(4)
		}
		data = c.in[off:length]
		if c.digests[1] {
			data = data[:len(data)-4]
			if le.Uint32(c.in[length-4:]) != castagnoli(data) || c.in[1]&2 == 0 {
				return broken(5)
			}
		}
	}
	switch {
	case kind == 4 && head == 72:
		return c.capsule(c.in[8:72], data)
	case kind == 6 && head == 24:
		return c.h2cData(data)
	}
	return broken(6)
}

// respond sends a completion.
func (c *fakeConn) respond(cid uint16, status uint16, result uint64) error {
	c.sending.Lock()
	defer c.sending.Unlock()
	b := c.out[:24]
	clear(b)
	b[0], b[2] = 5, 24
	binary.LittleEndian.PutUint64(b[8:], result)
	binary.LittleEndian.PutUint16(b[20:], cid)
	binary.LittleEndian.PutUint16(b[22:], status<<1)
	return c.send(b, nil, 0)
}

// send completes a header, and sends it with its data. It needs sending.
func (c *fakeConn) send(b, data []byte, pad int) error {
	head := len(b)
	if c.digests[0] {
		b[1] |= 1
		b = b[:head+4]
	}
	length := len(b)
	if data != nil {
		b = b[:len(b)+pad]
		b[3] = byte(len(b))
		length = len(b) + len(data)
		if c.digests[1] {
			b[1] |= 2
			length += 4
		}
	}
	binary.LittleEndian.PutUint32(b[4:], uint32(length))
	if c.digests[0] {
		binary.LittleEndian.PutUint32(b[head:], castagnoli(b[:head]))
	}
	if _, err := c.Write(b); err != nil || data == nil {
		return err
	}
	if _, err := c.Write(data); err != nil || !c.digests[1] {
		return err
	}
	binary.LittleEndian.PutUint32(c.out[252:], castagnoli(data))
	_, err := c.Write(c.out[252:256])
	return err
}

// answer sends data in parts, and then success.
func (c *fakeConn) answer(cid uint16, data []byte) error {
	part := len(data)
	if c.f.part > 0 {
		part = c.f.part
	}
	success := c.flow && !c.f.noSuccess
	for off := 0; off < len(data); off += part {
		n := min(part, len(data)-off)
		if err := c.c2hData(cid, off, data[off:off+n], off+n == len(data), success); err != nil {
			return err
		}
	}
	if success {
		return nil
	}
	return c.respond(cid, 0, 0)
}

func (c *fakeConn) c2hData(cid uint16, off int, data []byte, last, success bool) error {
	c.sending.Lock()
	defer c.sending.Unlock()
	b := c.out[:24]
	clear(b)
	b[0], b[2] = 7, 24
	if last {
		b[1] = 4
		if success {
			b[1] |= 8
		}
	}
	binary.LittleEndian.PutUint16(b[8:], cid)
	binary.LittleEndian.PutUint32(b[12:], uint32(off))
	binary.LittleEndian.PutUint32(b[16:], uint32(len(data)))
	return c.send(b, data, c.f.pad)
}

func (c *fakeConn) r2t(cid uint16, off, length int) error {
	c.sending.Lock()
	defer c.sending.Unlock()
	b := c.out[:24]
	clear(b)
	b[0], b[2] = 9, 24
	binary.LittleEndian.PutUint16(b[8:], cid)
	binary.LittleEndian.PutUint16(b[10:], cid+1)
	binary.LittleEndian.PutUint32(b[12:], uint32(off))
	binary.LittleEndian.PutUint32(b[16:], uint32(length))
	return c.send(b, nil, 0)
}

func (c *fakeConn) capsule(sqe, data []byte) error {
	le := binary.LittleEndian
	cid := le.Uint16(sqe[2:])
	if sqe[1] != 0x40 {
		return broken(7)
	}
	if c.queue != 0 {
		c.f.mu.Lock()
		c.f.seen[sqe[0]]++
		c.f.mu.Unlock()
	}
	if c.f.hooked(c, sqe, data) {
		return nil
	}
	if sqe[0] == 0x7f {
		return c.fabrics(sqe, data)
	}
	if c.queue == 0 {
		return c.adminCommand(sqe)
	}
	lba := int(le.Uint64(sqe[40:])) << c.f.blockBits
	size := (int(le.Uint16(sqe[48:])) + 1) << c.f.blockBits
	switch sqe[0] {
	case 0:
		return c.respond(cid, 0, 0)
	case 1:
		return c.write(sqe, data, lba, size)
	case 2:
		if int(le.Uint32(sqe[32:])) != size || sqe[39] != 0x5a {
			return broken(8)
		}
		c.f.ram.Lock()
		data := append(c.page[:0], c.f.disk[lba:][:size]...)
		c.f.ram.Unlock()
		c.page = data
		return c.answer(cid, data)
	case 9:
		if len(data) != 16 || sqe[39] != 1 || sqe[40] != 0 || sqe[44] != 4 {
			return broken(9)
		}
		lba, n := int(le.Uint64(data[8:]))<<c.f.blockBits, int(le.Uint32(data[4:]))<<c.f.blockBits
		c.f.ram.Lock()
		clear(c.f.disk[lba:][:n])
		c.f.ram.Unlock()
		return c.respond(cid, 0, 0)
	}
	return c.respond(cid, 1, 0)
}

// hooked runs the hook, one at a time.
func (f *fakeTarget) hooked(c *fakeConn, sqe, data []byte) bool {
	f.hook.Lock()
	defer f.hook.Unlock()
	return f.command != nil && f.command(c, sqe, data)
}

func (c *fakeConn) write(sqe, data []byte, lba, size int) error {
	cid := binary.LittleEndian.Uint16(sqe[2:])
	if size <= c.f.inline { // it must be in the capsule
		if len(data) != size || sqe[39] != 1 {
			return broken(10)
		}
		c.f.ram.Lock()
		copy(c.f.disk[lba:], data)
		c.f.ram.Unlock()
		return c.respond(cid, 0, 0)
	}
	if len(data) != 0 || sqe[39] != 0x5a {
		return broken(11)
	}
	if c.writes[cid] = c.spare; c.spare == nil {
		c.writes[cid] = new(fakeWrite)
	}
	c.spare = nil
	*c.writes[cid] = fakeWrite{data: c.f.disk[lba:][:size]}
	return c.askMore(cid, 0)
}

// askMore asks for the next part, or for all.
func (c *fakeConn) askMore(cid uint16, off int) error {
	left := len(c.writes[cid].data) - off
	if c.f.part > 0 {
		left = min(left, c.f.part)
	}
	return c.r2t(cid, off, left)
}

func (c *fakeConn) h2cData(data []byte) error {
	le := binary.LittleEndian
	cid, tag, off := le.Uint16(c.in[8:]), le.Uint16(c.in[10:]), int(le.Uint32(c.in[12:]))
	w := c.writes[cid]
	if w == nil || tag != cid+1 || off != w.got || len(data) > int(c.f.maxData) || int(le.Uint32(c.in[16:])) != len(data) {
		return broken(12)
	}
	c.f.ram.Lock()
	copy(w.data[off:], data)
	c.f.ram.Unlock()
	w.got += len(data)
	part := either(c.f.part, len(w.data))
	last := w.got%part == 0 || w.got == len(w.data)
	switch {
	case (c.in[1]&4 != 0) != last:
		return broken(13)
	case w.got == len(w.data):
		c.spare = w
		delete(c.writes, cid)
		return c.respond(cid, 0, 0)
	case last:
		return c.askMore(cid, w.got)
	}
	return nil
}

func (c *fakeConn) fabrics(sqe, data []byte) error {
	le := binary.LittleEndian
	cid := le.Uint16(sqe[2:])
	switch sqe[4] {
	case 1:
		if len(data) != 1024 || c.f.entries < int(le.Uint16(sqe[44:])) {
			return broken(14)
		}
		c.queue, c.flow = le.Uint16(sqe[42:]), sqe[46]&4 != 0
		return c.respond(cid, 0, 1)
	case 4:
		switch le.Uint32(sqe[44:]) {
		case 0:
			return c.respond(cid, 0, uint64(c.f.entries-1)|1<<24)
		case 0x1c:
			return c.respond(cid, 0, 1)
		}
	case 0:
		return c.respond(cid, 0, 0)
	}
	return c.respond(cid, 2, 0)
}

func (c *fakeConn) adminCommand(sqe []byte) error {
	le := binary.LittleEndian
	cid := le.Uint16(sqe[2:])
	b := make([]byte, le.Uint32(sqe[32:]))
	c.f.mu.Lock()
	access := c.f.access
	c.f.mu.Unlock()
	switch sqe[0] {
	case 2:
		if sqe[40] == 0x0c {
			b[8], b[16], b[32] = 1, 1, access
		}
		return c.answer(cid, b)
	case 6:
		switch sqe[40] {
		case 0:
			c.f.mu.Lock()
			le.PutUint64(b, uint64(len(c.f.disk))>>c.f.blockBits)
			c.f.mu.Unlock()
			b[92], b[130] = 1, byte(c.f.blockBits)
		case 1:
			b[77], b[525], b[520], b[93] = c.f.mdts, 1, 4, 9
			if c.f.ana {
				b[76] = 8
			}
			le.PutUint32(b[1792:], uint32(c.f.inline+64)/16)
		case 2:
			b[0] = 1
		case 3:
			b[0], b[1], b[4] = 3, 16, c.f.uuid
		}
		return c.answer(cid, b)
	case 9:
		return c.respond(cid, 0, uint64(c.f.queues-1)|uint64(c.f.queues-1)<<16)
	case 12:
		c.f.mu.Lock()
		c.event = int(cid) + 1
		c.f.mu.Unlock()
		return nil
	case 24:
		return c.respond(cid, 0, 0)
	}
	return c.respond(cid, 1, 0)
}

// notice completes the command that waits for an event, on every admin queue that has one. In virtual time only: it
// waits until one does.
func (f *fakeTarget) notice(info byte, page byte) {
	synctest.Wait()
	f.mu.Lock()
	var waiting []*fakeConn
	var cids []uint16
	for _, c := range f.conns {
		if c.event > 0 {
			waiting, cids = append(waiting, c), append(cids, uint16(c.event-1))
			c.event = 0
		}
	}
	f.mu.Unlock()
	for i, c := range waiting {
		_ = c.respond(cids[i], 0, 2|uint64(info)<<8|uint64(page)<<16)
	}
}
