package nvmetcp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
)

// script runs one command on a queue of four slots whose target sends bytes as it likes. send gets the command's
// identifier. The queue ends with the bytes.
func script(t testing.TB, d digests, c command, size int, send func(cid uint16) []byte) (data []byte, sent []byte, err error) {
	t.Helper()
	host, target := net.Pipe()
	q := newQueue(host, icResp{digests: d, align: 4, maxData: 4096}, 1, 4)
	q.inline = 0
	q.lost = func(error) { _ = host.Close() }
	var work sync.WaitGroup
	var cause error
	work.Go(func() {
		cause = q.read()
		_ = host.Close()
		q.finish(cause)
	})
	work.Go(func() {
		head := make([]byte, commandLen+d.headerLen())
		if _, err := io.ReadFull(target, head); err != nil {
			return
		}
		work.Go(func() { sent, _ = io.ReadAll(target) })
		_, _ = target.Write(send(binary.LittleEndian.Uint16(head[10:])))
		_ = target.Close()
	})
	guarded := bytes.Repeat([]byte{0xee}, size+2)
	data = guarded[1 : 1+size : 1+size]
	_, err = q.do(c, data)
	_ = host.Close()
	work.Wait()
	if guarded[0] != 0xee || guarded[size+1] != 0xee {
		t.Error("bytes beside the buffer were written")
	}
	if err == nil && cause != nil && !strings.Contains(cause.Error(), "connection ended") {
		err = cause // what came after the command's end
	}
	return data, sent, err
}

// The PDUs that a target sends.

func response(cid, status uint16) []byte {
	b := make([]byte, 24)
	b[0], b[2], b[4] = 5, 24, 24
	binary.LittleEndian.PutUint16(b[20:], cid)
	binary.LittleEndian.PutUint16(b[22:], status<<1)
	return b
}

func c2h(cid uint16, off uint32, data string, flags byte) []byte {
	b := make([]byte, 24, 24+len(data))
	b[0], b[1], b[2], b[3] = 7, flags, 24, 24
	binary.LittleEndian.PutUint32(b[4:], uint32(24+len(data)))
	binary.LittleEndian.PutUint16(b[8:], cid)
	binary.LittleEndian.PutUint32(b[12:], off)
	binary.LittleEndian.PutUint32(b[16:], uint32(len(data)))
	return append(b, data...)
}

func r2t(cid uint16, off, length uint32) []byte {
	b := make([]byte, 24)
	b[0], b[2], b[4], b[10] = 9, 24, 24, 7
	binary.LittleEndian.PutUint16(b[8:], cid)
	binary.LittleEndian.PutUint32(b[12:], off)
	binary.LittleEndian.PutUint32(b[16:], length)
	return b
}

func lengthened(b []byte, plen, datal uint32) []byte {
	binary.LittleEndian.PutUint32(b[4:], plen)
	binary.LittleEndian.PutUint32(b[16:], datal)
	return b
}

func join(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

func TestReadOrders(t *testing.T) {
	// A read of 8 bytes ends well only with its bytes in order, once, and its completion; all else ends the
	// connection, and never writes beside the buffer.
	for _, c := range []struct {
		story string
		send  func(cid uint16) []byte
		fault string // "": it reads ABCDEFGH
	}{
		{"one PDU with success", func(c uint16) []byte { return c2h(c, 0, "ABCDEFGH", flagLast|flagSuccess) }, ""},
		{"one PDU and a completion", func(c uint16) []byte { return join(c2h(c, 0, "ABCDEFGH", flagLast), response(c, 0)) }, ""},
		{"three PDUs", func(c uint16) []byte {
			return join(c2h(c, 0, "A", 0), c2h(c, 1, "BCD", 0), c2h(c, 4, "EFGH", flagLast|flagSuccess))
		}, ""},
		{"a late completion", func(c uint16) []byte {
			return join(c2h(c, 0, "ABCDEFGH", flagLast|flagSuccess), response(c, 0))
		}, "not in flight"},
		{"a double completion", func(c uint16) []byte {
			return join(c2h(c, 0, "ABCDEFGH", flagLast), response(c, 0), response(c, 0))
		}, "not in flight"},
		{"data after the end", func(c uint16) []byte {
			return join(c2h(c, 0, "ABCDEFGH", flagLast|flagSuccess), c2h(c, 0, "ZZZZZZZZ", flagLast))
		}, "not in flight"},
		{"a completion without data", func(c uint16) []byte { return response(c, 0) }, "after 0 of 8"},
		{"a completion after half", func(c uint16) []byte { return join(c2h(c, 0, "ABCD", 0), response(c, 0)) }, "after 4 of 8"},
		{"a failure after half", func(c uint16) []byte { return join(c2h(c, 0, "ABCD", 0), response(c, 0x281)) }, "Unrecovered Read Error (2/81h)"},
		{"a hole", func(c uint16) []byte { return join(c2h(c, 0, "A", 0), c2h(c, 2, "CDEFGH", flagLast)) }, "6 bytes of data at 2, after 1 of 8"},
		{"the same twice", func(c uint16) []byte { return join(c2h(c, 0, "ABCD", 0), c2h(c, 0, "ABCD", flagLast)) }, "4 bytes of data at 0, after 4 of 8"},
		{"too much", func(c uint16) []byte { return c2h(c, 0, "ABCDEFGHI", flagLast) }, "9 bytes of data at 0"},
		{"beyond the end", func(c uint16) []byte { return c2h(c, 8, "A", flagLast) }, "1 bytes of data at 8"},
		{"an offset of 4 GiB", func(c uint16) []byte { return c2h(c, 0xffffffff, "AB", flagLast) }, "2 bytes of data at 4294967295"},
		{"a length that is not the PDU's", func(c uint16) []byte { return lengthened(c2h(c, 0, "ABCDEFGH", flagLast), 32, 7) }, "in a PDU of 32"},
		{"a PDU of 4 GiB", func(c uint16) []byte { return lengthened(c2h(c, 0, "ABCDEFGH", flagLast), 0xffffffff, 8) }, "in a PDU of 4294967295"},
		{"4 GiB in both", func(c uint16) []byte { return lengthened(c2h(c, 0, "", flagLast), 0xffffffff, 0xffffffff-24) }, "of data at 0"},
		{"last too early", func(c uint16) []byte { return c2h(c, 0, "ABCD", flagLast) }, "last=true after 4 of 8"},
		{"the end without last", func(c uint16) []byte { return c2h(c, 0, "ABCDEFGH", 0) }, "last=false after 8 of 8"},
		{"success that is not the last", func(c uint16) []byte { return c2h(c, 0, "ABCD", flagSuccess) }, "not the last"},
		{"R2T for a read", func(c uint16) []byte { return r2t(c, 0, 8) }, "R2T for 8 bytes"},
		{"another slot's completion", func(c uint16) []byte { return response(c+1, 0) }, "not in flight"},
		{"a completion of the slot's former command", func(c uint16) []byte { return response(c-1<<slotBits, 0) }, "not in flight"},
		{"a slot that does not exist", func(c uint16) []byte { return response(c&^(maxDepth-1)|100, 0) }, "not in flight"},
		{"the end", func(uint16) []byte { return nil }, "the connection ended: EOF"},
		{"the end in a header", func(c uint16) []byte { return response(c, 0)[:23] }, "the connection ended: unexpected EOF"},
		{"the end in data", func(c uint16) []byte { return c2h(c, 0, "ABCDEFGH", flagLast)[:31] }, "the connection ended: unexpected EOF"},
		{"a termination", func(uint16) []byte { return raw(t, "03 00 18 00 18000000 0200 00000000 00*10") }, "PDU sequence error"},
		{"a PDU of no type", func(uint16) []byte { return raw(t, "55*24") }, "type 55h"},
	} {
		data, _, err := script(t, digests{}, command{opcode: opRead, nsid: 1}, 8, c.send)
		if c.fault == "" && (err != nil || string(data) != "ABCDEFGH") || c.fault != "" && (err == nil || !strings.Contains(err.Error(), c.fault)) {
			t.Errorf("%s: %q %v, want %q", c.story, data, err, c.fault)
		}
	}
}

func TestWriteOrders(t *testing.T) {
	// A write of 10,000 bytes sends what R2Ts ask for, in PDUs of at most MAXH2CDATA, and ends well only if all of
	// it was asked for.
	sends := func(c uint16, parts ...[3]uint32) (b []byte) { // offset, length, last
		for _, p := range parts {
			h := make([]byte, 24)
			h[0], h[2], h[3], h[10] = 6, 24, 24, 7
			h[1] = byte(p[2] * flagLast)
			binary.LittleEndian.PutUint32(h[4:], 24+p[1])
			binary.LittleEndian.PutUint16(h[8:], c)
			binary.LittleEndian.PutUint32(h[12:], p[0])
			binary.LittleEndian.PutUint32(h[16:], p[1])
			b = append(append(b, h...), bytes.Repeat([]byte{0xee}, int(p[1]))...)
		}
		return b
	}
	var cid uint16
	for _, c := range []struct {
		story string
		send  []([]byte)
		sent  [][3]uint32
		fault string
	}{
		{"one R2T", [][]byte{r2t(0, 0, 10000)}, [][3]uint32{{0, 4096, 0}, {4096, 4096, 0}, {8192, 1808, 1}}, "connection ended"},
		{"three at once", [][]byte{r2t(0, 0, 4096), r2t(0, 4096, 5000), r2t(0, 9096, 904)},
			[][3]uint32{{0, 4096, 1}, {4096, 4096, 0}, {8192, 904, 1}, {9096, 904, 1}}, "connection ended"},
		{"a failure at once", [][]byte{response(0, 0x280)}, nil, "Write Fault (2/80h)"},
		{"success before the data", [][]byte{response(0, 0)}, nil, "after 0 of 10000"},
		{"a hole", [][]byte{r2t(0, 1, 10)}, nil, "R2T for 10 bytes at 1"},
		{"nothing", [][]byte{r2t(0, 0, 0)}, nil, "R2T for 0 bytes"},
		{"too much", [][]byte{r2t(0, 0, 10001)}, nil, "R2T for 10001 bytes"},
		{"4 GiB", [][]byte{r2t(0, 0, 0xffffffff)}, nil, "R2T for 4294967295 bytes"},
		{"data for a write", [][]byte{c2h(0, 0, "A", flagLast)}, nil, "1 bytes of data"},
	} {
		_, sent, err := script(t, digests{}, ioCommand(opWrite, 1, 0, 1), 10000, func(id uint16) []byte {
			cid = id
			b := bytes.Join(c.send, nil)
			for at := 0; at < len(b); { // the identifier of each
				binary.LittleEndian.PutUint16(b[at+map[byte]int{5: 20, 7: 8, 9: 8}[b[at]]:], id)
				at += int(b[at+4]) + int(b[at+5])<<8
			}
			return b
		})
		if err == nil || !strings.Contains(err.Error(), c.fault) {
			t.Errorf("%s: %v, want %s", c.story, err, c.fault)
		}
		if want := sends(cid, c.sent...); !bytes.HasPrefix(want, sent) {
			t.Errorf("%s: sent %d bytes that nobody asked for so", c.story, len(sent))
		}
	}
}

func TestWrongDigests(t *testing.T) {
	// A flipped bit in a header, in data or in a digest ends the connection, and the command does not succeed.
	d := digests{true, true}
	good := func(cid uint16) []byte {
		b := c2h(cid, 0, "", flagLast|flagSuccess|flagHeaderDigest|flagDataDigest)
		b[3] = 28
		binary.LittleEndian.PutUint32(b[4:], 28+8+4)
		binary.LittleEndian.PutUint32(b[16:], 8)
		b = binary.LittleEndian.AppendUint32(b, castagnoli(b))
		b = append(b, "ABCDEFGH"...)
		return binary.LittleEndian.AppendUint32(b, castagnoli([]byte("ABCDEFGH")))
	}
	data, _, err := script(t, d, command{opcode: opRead, nsid: 1}, 8, good)
	if err != nil || string(data) != "ABCDEFGH" {
		t.Fatalf("%q %v", data, err)
	}
	for bit := range 8 * 40 {
		_, _, err := script(t, d, command{opcode: opRead, nsid: 1}, 8, func(cid uint16) []byte {
			b := good(cid)
			b[bit/8] ^= 1 << (bit % 8)
			return b
		})
		if !errors.Is(err, ErrPath) {
			t.Errorf("bit %d: %v", bit, err)
		}
	}
}

func FuzzQueue(f *testing.F) {
	// Whatever bytes a target sends, a read and a write end, and nothing is written beside their buffers.
	for _, b := range [][]byte{response(1<<slotBits, 0), c2h(1<<slotBits, 0, "ABCDEFGH", flagLast|flagSuccess),
		join(r2t(1<<slotBits, 0, 4), r2t(1<<slotBits, 4, 4), response(1<<slotBits, 0)),
		raw(f, "03 00 18 00 18000000 0200 00000000 00*10"), {7, 3, 24, 28}} {
		f.Add(b, false, false)
		f.Add(b, true, true)
	}
	f.Fuzz(func(t *testing.T, b []byte, header, data bool) {
		for _, opcode := range []byte{opRead, opWrite} {
			_, _, _ = script(t, digests{header, data}, command{opcode: opcode, nsid: 1, out: opcode == opWrite}, 8,
				func(uint16) []byte { return b })
		}
	})
}

func FuzzParse(f *testing.F) {
	// No bytes of an ICResp, an Identify page or a log make a parser fail otherwise than by an error, or take a
	// shape that later sums cannot hold.
	f.Add([]byte{1, 0, 128, 0, 128}, uint8(12))
	f.Add(bytes.Repeat([]byte{0xff}, 200), uint8(27))
	f.Fuzz(func(t *testing.T, some []byte, page uint8) {
		b := make([]byte, identifyLen)
		copy(b, some)
		if r, err := parseICResp(b[:icLen], digests{}); err == nil && (r.maxData < minH2CData || r.maxData > maxSendData || r.align > maxHeadLen) {
			t.Errorf("%+v", r)
		}
		if n, err := parseNamespace(b); err == nil && (n.size() <= 0 || n.size()>>n.blockBits != int64(n.blocks)) {
			t.Errorf("%+v", n)
		}
		if i, err := parseController(b, uint(page%16+12)); err == nil && (i.inline < 0 || i.inline > maxTransfer || i.maxTransfer < 4096 || i.maxTransfer > maxTransfer) {
			t.Errorf("%+v", i)
		}
		copy(b[1792:], some)
		if i, err := parseController(b, uint(page%16+12)); err == nil && (i.inline < 0 || i.inline > maxTransfer) {
			t.Errorf("%+v", i)
		}
		_ = parseDescriptors(b)
		_ = parseActive(b)
		_ = parseAccess(b, uint32(page))
	})
}
