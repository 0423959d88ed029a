package wire

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"net"
	"reflect"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/piece"
)

func TestRequestsRoundTrip(t *testing.T) {
	// A request arrives field by field, whatever bytes its names have.
	rapid.Check(t, func(t *rapid.T) {
		var wants []Want
		for range rapid.IntRange(1, MaxItems).Draw(t, "items") {
			o := &hearth.Object{
				Link: string(rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(t, "link")), Key: string(rapid.SliceOfN(rapid.Byte(), 0, 100).Draw(t, "key")),
				ETag: string(rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "etag")), Size: rapid.Int64Range(1, 1<<50).Draw(t, "size"),
				ModTime: time.Unix(rapid.Int64Range(-1<<40, 1<<40).Draw(t, "seconds"), rapid.Int64Range(0, 1e9-1).Draw(t, "nanoseconds")).UTC(),
			}
			if rapid.Bool().Draw(t, "no time") {
				o.ModTime = time.Time{}
			}
			copy(o.Version[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "version"))
			if n := len(wants); n > 0 && rapid.Bool().Draw(t, "again") {
				o = wants[n-1].Block.Object
			}
			b := o.Block(rapid.Int64Range(0, o.Blocks()-1).Draw(t, "index"))
			off := rapid.IntRange(0, b.Len()-1).Draw(t, "off")
			wants = append(wants, Want{b, off, rapid.IntRange(1, b.Len()-off).Draw(t, "n")})
		}
		left := time.Duration(rapid.Int64Range(0, math.MaxUint32).Draw(t, "left")) * time.Millisecond
		meta := appendRequest(nil, left, wants)
		gotLeft, items, err := parseCount(meta)
		got := make([]Want, items)
		if err == nil {
			err = parseWants(meta[requestFixed:], got, &seen{})
		}
		if err != nil || gotLeft != left || !reflect.DeepEqual(got, wants) {
			t.Fatalf("%v: got %+v", err, got)
		}
		for i, w := range wants[1:] { // the Object of successive ranges of one object is made once
			if o, before := w.Block.Object, wants[i].Block.Object; o == before && w.size() <= seenMost && got[i+1].Block.Object != got[i].Block.Object {
				t.Fatalf("item %d: the object was made again", i+1)
			}
		}
	})
}

func FuzzRequest(f *testing.F) {
	// Whatever parses is written again as the same bytes.
	f.Add(fillMeta(Want{object("data").Block(1), 3, 5}, Want{object("").Block(0), 0, 0}))
	f.Fuzz(func(t *testing.T, meta []byte) {
		if len(meta) < requestFixed {
			return
		}
		left, items, err := parseCount(meta)
		if err != nil {
			return
		}
		wants := make([]Want, items)
		var last seen
		if err := parseWants(meta[requestFixed:], wants, &last); err != nil {
			if !errors.Is(err, ErrProtocol) {
				t.Errorf("not told as %v: %v", ErrProtocol, err)
			}
			return
		}
		if again := appendRequest(nil, left, wants); !bytes.Equal(again, meta) {
			t.Errorf("%x became %x", meta, again)
		}
		// Earlier requests do not change what is read.
		again := make([]Want, items)
		if err := parseWants(meta[requestFixed:], again, &last); err != nil || !reflect.DeepEqual(again, wants) {
			t.Errorf("%v: read as %+v behind itself, and as %+v first", err, again, wants)
		}
	})
}

func FuzzFrames(f *testing.F) {
	// Bytes are read as frames. Each frame is written again as the same bytes, and none
	// is larger than allowed.
	r := raw{}
	f.Add(r.frame(header{id: 1, kind: kindFill}, fillMeta(Want{object("data").Block(0), 0, 5}), 0))
	f.Add(append(r.frame(header{id: 1, kind: kindData, payload: 5}, dataMeta([]byte("abcde")), 0), "abcde"...))
	f.Fuzz(func(t *testing.T, data []byte) {
		in := newInput(onlyRead{from: bytes.NewReader(data)}, &counters{}, nil, 0)
		at := 0
		for {
			h, sum, meta, err := in.next()
			if err != nil {
				return
			}
			var again [headerSize]byte
			if own := h.put(again[:], 0); own != sum || !bytes.Equal(again[:], data[at:at+headerSize]) || len(meta) != h.meta {
				t.Fatalf("%+v is written as %x", h, again)
			}
			at += headerSize + h.meta
			if h.payload > hearth.BlockSize || at > len(data) {
				t.Fatalf("%+v of %d bytes", h, len(data))
			}
			p := make([]byte, h.payload)
			if in.payload(p) != nil {
				return
			}
			at += h.payload
		}
	})
}

// script reads fuzzed bytes as things to send: plain bytes, and frames. The checksums of
// frames are computed, since random bytes would never have right ones. The rest is the
// fuzzer's.
func (r *raw) script(data []byte) {
	last := uint64(0)
	for len(data) >= 8 {
		h := header{kind: kind(data[0]), code: data[1], item: uint16(data[2]), payload: int(data[3]) << (data[4] % 14)}
		if h.kind == kindFill || h.kind == kindPeek || h.kind == kindCall {
			last++
		}
		h.id = last
		if data[5] > 128 {
			h.id = uint64(data[5] - 128)
		}
		n := min(int(data[6]), len(data)-8)
		plain := data[7] > 200
		body := data[8 : 8+n]
		data = data[8+n:]
		var b []byte
		switch {
		case plain:
			b = body
		case h.kind == kindFill || h.kind == kindPeek:
			b = r.frame(h, append(fillMeta(Want{object("data").Block(0), 0, 1 + n}), body[:min(n, int(h.code))]...), 0)
		case h.kind == kindCall && h.payload <= MaxBody:
			payload := make([]byte, h.payload)
			copy(payload, body)
			b = append(r.frame(h, append(make([]byte, callFixed), piece.Append(nil, payload, &piece.Noted{})...), 0), payload...)
		case h.kind == kindData && h.payload <= MaxBody:
			payload := make([]byte, h.payload)
			copy(payload, body)
			b = append(r.frame(h, dataMeta(payload), 0), payload...)
		case h.kind == kindError:
			b = r.frame(h, body, 0)
		default:
			b = r.frame(h, nil, 0)
		}
		if _, err := r.conn.Write(b); err != nil {
			return
		}
	}
}

func FuzzServer(f *testing.F) {
	// A whole connection is fed with frames that a stranger made up. It ends, nothing of
	// it is left, and nothing panics.
	f.Add([]byte{1, 0, 0, 0, 0, 0, 4, 0, 1, 2, 3, 4, 3, 0, 1, 9, 3, 0, 2, 0, 7, 7, 4, 0, 0, 0, 0, 129, 0, 0})
	f.Add([]byte{2, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 129, 0, 0})
	f.Add([]byte("\x03\x00\x0100000")) // its peer is gone once the body has come
	f.Fuzz(func(t *testing.T, data []byte) {
		pool := hearth.NewPool(hearth.MinRAM)
		o := &owner{pool: pool}
		s := NewServer(ServerOptions{Handler: o.handler(), Pool: pool})
		a, b := net.Pipe()
		ended := make(chan error, 1)
		go func() { ended <- s.Serve(context.Background(), b, "stranger") }()
		r, err := newRaw(a, true)
		if err != nil {
			t.Fatal(err)
		}
		read := make(chan struct{})
		go func() { _, _ = io.Copy(io.Discard, a); close(read) }()
		r.script(data)
		a.Close()
		t.Log(<-ended) // whatever a script leads to
		<-read
		if views, s := pool.Stats().Views, s.Stats(); views != 0 || s.Connections+s.InFlight+s.Queued != 0 {
			t.Errorf("%d Views, %+v", views, s)
		}
	})
}

func FuzzPeer(f *testing.F) {
	// A peer answers with frames that it made up. The asker gets an error, or bytes whose
	// checksums are right, and nothing is left.
	f.Add([]byte{16, 0, 0, 9, 0, 129, 4, 0, 1, 2, 3, 4, 17, 0, 0, 0, 0, 130, 0, 0})
	f.Add([]byte{22, 0, 0, 0, 0, 129, 0, 0, 20, 1, 0, 0, 0, 130, 3, 0, 65, 66, 67, 21, 0, 0, 0, 0, 131, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		pool := hearth.NewPool(hearth.MinRAM)
		var work sync.WaitGroup
		p := NewPeer("stranger", PeerOptions{Pool: pool, Silence: time.Minute, Dial: func(context.Context) (net.Conn, error) {
			a, b := net.Pipe()
			work.Go(func() {
				defer b.Close()
				r, err := newRaw(b, false)
				if err != nil {
					return
				}
				work.Go(func() { _, _ = io.Copy(io.Discard, b) })
				r.script(data)
			})
			return a, nil
		}})
		wants := []Want{{object("data").Block(0), 0, 9}, {object("data").Block(0), 0, 9}}
		p.Many(t.Context(), Peek, wants, func(_ int, v *hearth.View, err error) {
			if v != nil && !bytes.Equal(v.Bytes(), make([]byte, 9)) { // no question is bound to what a script seals
				t.Errorf("got %x", v.Bytes())
			}
			if v != nil {
				v.Release()
			}
		})
		p.Close()
		work.Wait()
		if s, views := p.Stats(), pool.Stats().Views; views != 0 || s.Connections+s.InFlight != 0 {
			t.Errorf("%d Views, %+v", views, s)
		}
	})
}

// onlyRead is a connection of bytes that are there.
type onlyRead struct {
	net.Conn
	from *bytes.Reader
}

func (r onlyRead) Read(p []byte) (int, error) { return r.from.Read(p) }
