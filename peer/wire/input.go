package wire

import (
	"encoding/binary"
	"net"
)

// input reads a connection's frames.
type input struct {
	r    *scatterReader
	seed uint64
	head int // bytes of the last frame's header and meta, which are still buffered
}

// newInput counts what is read. heard, which may be nil, is called after each read.
func newInput(conn net.Conn, c *counters, heard func(), seed uint64) input {
	return input{r: newScatterReader(conn, bufferSize, func(n int) {
		c.received.Add(int64(n))
		if heard != nil {
			heard()
		}
	}), seed: seed}
}

// briefMost is enough for the header and the meta of an answer of one item.
const briefMost = 512

// expect says how large the payload of the next frame probably is. Before a large one,
// only the header and the meta should be buffered.
func (in *input) expect(payload int) {
	in.r.Ahead = bufferSize
	if payload > smallMost {
		in.r.Ahead = briefMost
	}
}

// whole reports whether the next frame, without its payload, can be read without waiting.
func (in *input) whole() bool {
	b := in.r.Buffered()
	if len(b) < in.head+headerSize {
		return false
	}
	meta := binary.LittleEndian.Uint32(b[in.head:])
	return meta > maxMeta || in.head+headerSize+int(meta) <= len(b) // too much meta is an error at once
}

// next returns a frame's header and meta, valid until the payload or the next frame is
// read. io.EOF means that the connection ended between two frames.
func (in *input) next() (h header, sum uint64, meta []byte, err error) {
	in.skipHead()
	b, err := in.r.Peek(headerSize)
	if err != nil {
		return h, 0, nil, err
	}
	if h, sum, err = parseHeader(b[:headerSize], in.seed); err != nil {
		return h, 0, nil, err
	}
	in.expect(h.payload)
	in.head = headerSize + h.meta
	if b, err = in.r.Peek(in.head); err != nil {
		return h, 0, nil, err
	}
	return h, sum, b[headerSize:in.head], nil
}

func (in *input) skipHead() {
	in.r.Skip(in.head)
	in.head = 0
}

// payload reads as many bytes as p has.
func (in *input) payload(p []byte) error {
	in.skipHead()
	return in.r.ReadFull(p)
}

// discard drops a payload that nobody wants, or that there is no memory for.
func (in *input) discard(n int) error {
	in.skipHead()
	in.expect(0) // the next frame's header corrects this
	return in.r.Discard(n)
}
