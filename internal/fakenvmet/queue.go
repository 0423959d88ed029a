package fakenvmet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"
)

const (
	// inputSize is the read buffer: some hundred command capsules, or 16 writes of 4 KiB.
	inputSize = 64 << 10
	// flushAt bounds the output that waits for the end of the input: a few large reads.
	flushAt = 256 << 10
	// lingerTime bounds the wait for a host to close a connection that ended here by EOF. Closing
	// with input unread would reset it, and take from the host what it has not read.
	lingerTime = 10 * time.Second
)

// errEnded says that the queue ended on this side, errClosed that the host closed it between two
// PDUs.
var (
	errEnded  = errors.New("the queue ended")
	errClosed = errors.New("the host closed the queue")
)

// queue is one connection: an admin or I/O queue pair once its Connect succeeded.
type queue struct {
	t      *Target
	port   *Port
	conn   *net.TCPConn
	number int           // of the target's connections, from 1
	dead   chan struct{} // closed when the connection ends
	done   chan struct{} // closed when its goroutine ended
	once   sync.Once     // closes dead

	// The reader's own, after ICReq constant but for what Connect sets.
	in            input
	digests       digests
	ctrl          *controller
	qid           uint16
	authenticated bool
	auth          *dialogue
	commands      commands

	out output
}

// digests says which of them a connection has (DGST in figures 20 and 21).
type digests struct{ header, data bool }

// output is what a queue sends, and what it must remember of that.
type output struct {
	mu      sync.Mutex // guards what follows
	bytes   []byte     // not written yet
	pdus    int        // made so far
	written int64      // bytes on the wire
	window  window
	held    map[<-chan struct{}][]*PDU
	closing bool // EOF went out: nothing may follow
}

func newQueue(t *Target, p *Port, conn *net.TCPConn, number int) *queue {
	q := &queue{t: t, port: p, conn: conn, number: number, dead: make(chan struct{}), done: make(chan struct{}),
		commands: commands{waiting: map[uint16]*command{}}, out: output{held: map[<-chan struct{}][]*PDU{}}}
	q.in = input{buffer: make([]byte, inputSize), recv: q.recv}
	return q
}

// serve is the connection's goroutine.
func (q *queue) serve() {
	defer q.t.wait.Done()
	defer close(q.done)
	err := q.initialize()
	for err == nil {
		err = q.pdu()
	}
	var b *breach
	if errors.As(err, &b) {
		q.terminate(b)
	}
	if q.ctrl != nil {
		q.ctrl.leave(q, err)
	}
	q.out.mu.Lock()
	closing := q.out.closing
	q.out.mu.Unlock()
	if closing {
		_ = q.conn.SetReadDeadline(time.Now().Add(lingerTime)) // a closed connection needs none
		_, _ = io.Copy(io.Discard, q.conn)                     // until the host has seen the end, or went
	}
	q.end()
	q.t.mu.Lock()
	defer q.t.mu.Unlock()
	delete(q.t.queues, q)
	q.t.counts.queues.Add(-1)
}

// end closes the connection at once.
func (q *queue) end() {
	q.once.Do(func() { close(q.dead) })
	_ = q.conn.Close() // what was not read is not wanted
}

// gate waits while the target is paused.
func (q *queue) gate() {
	for p := q.t.paused.Load(); p != nil; p = q.t.paused.Load() {
		select {
		case <-*p:
		case <-q.dead:
			return
		}
	}
}

// recv reads what has arrived, after writing what is to be sent. What was written before is known
// to the host from here on.
func (q *queue) recv(b []byte) (int, error) {
	if err := q.flush(); err != nil {
		return 0, err
	}
	n, err := q.conn.Read(b)
	q.gate()
	q.out.mu.Lock()
	defer q.out.mu.Unlock()
	if q.out.closing {
		return 0, errEnded
	}
	q.out.window.retire()
	return n, err
}

// flush writes the output.
func (q *queue) flush() error {
	q.gate()
	q.out.mu.Lock()
	defer q.out.mu.Unlock()
	return q.flushLocked()
}

// push writes what another goroutine than the reader has appended. In a pause it waits for Resume.
func (q *queue) push() {
	if q.t.paused.Load() == nil {
		_ = q.flush() // the reader finds the connection broken
	}
}

func (q *queue) flushLocked() error {
	if len(q.out.bytes) == 0 {
		return nil
	}
	n, err := q.conn.Write(q.out.bytes)
	q.out.written += int64(n)
	q.out.bytes = q.out.bytes[:0]
	return err
}

// breach is a protocol error that ends the connection by a C2HTermReq.
type breach struct {
	fes    uint16
	fei    uint32 // for fesHeader: the offset of the wrong field
	header []byte // of the host's PDU
	text   string
}

func (b *breach) Error() string { return b.text }

// fail records a violation after which the connection cannot go on.
func (q *queue) fail(fes uint16, field int, header []byte, format string, args ...any) error {
	return &breach{fes: fes, fei: uint32(field), header: slices.Clone(header), text: q.note(format, args...)}
}

// note records a violation.
func (q *queue) note(format string, args ...any) string {
	text := fmt.Sprintf("connection %d, queue %d: ", q.number, q.qid) + fmt.Sprintf(format, args...)
	q.t.violation(text)
	return text
}

// terminate sends a C2HTermReq with the header of the PDU that was wrong (figure 23), and EOF.
func (q *queue) terminate(b *breach) {
	p := TermReq(b.fes)
	binary.LittleEndian.PutUint32(p.Header[atFEI:], b.fei)
	p.Data = b.header[:min(len(b.header), icLen)]
	p.SetPLEN(uint32(p.Len()))
	p.End = true
	q.out.mu.Lock()
	defer q.out.mu.Unlock()
	q.writeLocked(p)
}

// initialize takes the ICReq and answers it (section 3.1 and figures 20 and 21).
func (q *queue) initialize() error {
	h, err := q.in.peek(icLen)
	if err != nil {
		return err
	}
	length, asked := binary.LittleEndian.Uint32(h[atPLEN:]), h[atDGST]
	switch {
	case Type(h[atType]) != ICReq:
		return q.fail(fesSequence, 0, h[:commonLen], "PDU of type %02xh before ICReq", h[atType])
	case h[atHLEN] != icLen || h[atPDO] != 0 || h[atFlags] != 0 || length != icLen:
		return q.fail(fesHeader, atHLEN, h,
			"ICReq with FLAGS %d, HLEN %d, PDO %d, PLEN %d", h[atFlags], h[atHLEN], h[atPDO], length)
	case h[atPFV] != 0 || h[atPFV+1] != 0:
		return q.fail(fesUnsupported, atPFV, h, "ICReq with PFV %d", binary.LittleEndian.Uint16(h[atPFV:]))
	case h[atHPDA] != 0:
		return q.fail(fesUnsupported, atHPDA, h, "ICReq with HPDA %d: Linux takes 0 alone", h[atHPDA])
	case asked&^3 != 0:
		return q.fail(fesHeader, atDGST, h, "ICReq with DGST %02xh", asked)
	}
	if q.t.o.NoDigests {
		asked = 0
	}
	q.commands.maxR2T = int(min(binary.LittleEndian.Uint32(h[atMAXR2T:]), 1<<16)) + 1 // 0's based
	q.in.skip(icLen)
	a := make([]byte, icLen)
	putHeader(a, ICResp, 0, 0, icLen)
	a[atHPDA], a[atDGST] = byte(q.t.o.CPDA), asked
	binary.LittleEndian.PutUint32(a[atMAXR2T:], uint32(q.t.o.MaxData))
	q.send(&PDU{Type: ICResp, Header: a})
	q.out.mu.Lock()
	q.digests = digests{header: asked&1 != 0, data: asked&2 != 0}
	q.out.mu.Unlock()
	return nil
}

// pdu takes one PDU and does what it asks for.
func (q *queue) pdu() error {
	h, err := q.in.peek(commonLen)
	if err == io.EOF && q.in.empty() {
		return errClosed
	}
	if err != nil {
		return err
	}
	kind, want := Type(h[atType]), 0
	switch kind {
	case CapsuleCmd:
		want = capsuleLen
	case H2CData:
		want = shortLen
	case H2CTermReq:
		return q.hostTerminates(h)
	default:
		return q.fail(fesSequence, atType, h, "PDU of type %02xh from a host", h[atType])
	}
	if int(h[atHLEN]) != want {
		return q.fail(fesHeader, atHLEN, h, "PDU of type %02xh with HLEN %d, not %d", h[atType], h[atHLEN], want)
	}
	if h[atFlags]&flagHDGST != 0 != q.digests.header {
		return q.fail(fesHeader, atFlags, h,
			"PDU of type %02xh with FLAGS %02xh, header digests are %t", h[atType], h[atFlags], q.digests.header)
	}
	whole := want
	if q.digests.header {
		whole += digestLen
	}
	if h, err = q.in.hold(whole); err != nil {
		return err
	}
	if q.digests.header && binary.LittleEndian.Uint32(h[want:]) != digest(h[:want]) {
		return q.fail(fesDigest, 0, h[:want], "PDU of type %02xh with a wrong header digest", h[atType])
	}
	b, err := q.frame(h[:want], whole)
	if err != nil {
		return err
	}
	if kind == H2CData {
		return q.hostData(h[:want], b)
	}
	return q.capsule(h[:want], b)
}

// frame checks PDO, PLEN and the flag for a data digest, takes the padding, and returns the length
// of the data that follows. The callers hold it against what they take.
func (q *queue) frame(h []byte, whole int) (int, error) {
	length, offset := int(binary.LittleEndian.Uint32(h[atPLEN:])), int(h[atPDO])
	if length == whole {
		if offset != 0 && offset != whole || h[atFlags]&flagDDGST != 0 {
			return 0, q.fail(fesHeader, atPDO, h,
				"PDU of type %02xh without data, but PDO %d and FLAGS %02xh", h[atType], offset, h[atFlags])
		}
		return 0, nil
	}
	unit := (q.t.o.CPDA + 1) * 4
	if want := (whole + unit - 1) / unit * unit; offset != want {
		return 0, q.fail(fesHeader, atPDO, h, "PDU of type %02xh with PDO %d, not %d", h[atType], offset, want)
	}
	if h[atFlags]&flagDDGST != 0 != q.digests.data {
		return 0, q.fail(fesHeader, atFlags, h,
			"PDU of type %02xh with FLAGS %02xh, data digests are %t", h[atType], h[atFlags], q.digests.data)
	}
	data := length - offset
	if q.digests.data {
		data -= digestLen
	}
	if data <= 0 {
		return 0, q.fail(fesHeader, atPLEN, h, "PDU of type %02xh with PLEN %d", h[atType], length)
	}
	if pad := offset - whole; pad > 0 {
		if _, err := q.in.peek(pad); err != nil {
			return 0, err
		}
		q.in.skip(pad)
	}
	return data, nil
}

// takeData takes a PDU's data and its digest.
func (q *queue) takeData(h, b []byte) error {
	if err := q.in.take(b); err != nil || !q.digests.data {
		return err
	}
	sum, err := q.in.peek(digestLen)
	if err != nil {
		return err
	}
	got := binary.LittleEndian.Uint32(sum)
	q.in.skip(digestLen)
	if got != digest(b) {
		// A data digest error is the command's alone (section 3.3.1.1), and Linux ends the association.
		return q.fail(fesDigest, 0, h, "PDU of type %02xh with a wrong data digest", h[atType])
	}
	return nil
}

// hostTerminates is a host that found fault with this target. That breaks no rule.
func (q *queue) hostTerminates(h []byte) error {
	length := binary.LittleEndian.Uint32(h[atPLEN:])
	if h[atHLEN] != termLen || length < termLen || length > termLen+icLen {
		return q.fail(fesHeader, atHLEN, h, "H2CTermReq with HLEN %d, PLEN %d", h[atHLEN], length)
	}
	q.t.counts.hostTerms.Add(1)
	return errEnded
}
