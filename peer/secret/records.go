package secret

import (
	"crypto/tls"
	"net"
	"sync"
)

const (
	// recordBytes is the most that crypto/tls puts into a record. recordRoom is the size
	// of such a record: its header has 5 bytes, its type and seal in TLS 1.3 have 17.
	recordBytes = 16 << 10
	recordRoom  = recordBytes + 5 + 17
	// gatheredRecords go out together at most: enough for a large picture and its header.
	// Their memory is taken only while they are made and written.
	gatheredRecords = 8
)

// sealed is an encrypted connection. crypto/tls makes a system call for each record, for
// which the kernel sends a packet or two and wakes the reader. Here, what Write or
// WriteParts is given goes out in as few system calls as without encryption.
type sealed struct {
	*tls.Conn
	under *records
}

// Write is net.Conn's.
func (t *sealed) Write(p []byte) (int, error) {
	t.under.expect(recordsOf(len(p)))
	return t.Conn.Write(p)
}

// WriteParts writes some buffers one behind the other, and returns how many of their
// bytes were written. Only one goroutine at a time may write.
func (t *sealed) WriteParts(parts ...[]byte) (n int64, err error) {
	all := 0
	for _, p := range parts {
		all += recordsOf(len(p))
	}
	t.under.expect(all)
	for _, p := range parts {
		m, err := t.Conn.Write(p)
		if n += int64(m); err != nil {
			return n, err
		}
	}
	return n, nil
}

// recordsOf is how many records n bytes make if their sizes are not dynamic.
func recordsOf(n int) int { return (n + recordBytes - 1) / recordBytes }

// records is the layer below TLS. The last expected record is written by the goroutine
// that makes it, still within tls.Conn.Write. So records stay in order, and a Close sees
// that a write is in flight and does not wait for it.
type records struct {
	net.Conn
	spare *sync.Pool // of *[]byte, for gatheredRecords

	mu     sync.Mutex // guards the rest; never held across I/O
	left   int        // how many records must still come before they are written
	gather *[]byte    // nil means that none are gathered
}

func (r *records) expect(n int) {
	r.mu.Lock()
	r.left = n
	r.mu.Unlock()
}

// Write takes a record. A record that nobody announced, such as an alert, counts as an
// announced one: then the last of these goes out alone.
func (r *records) Write(p []byte) (int, error) {
	r.mu.Lock()
	r.left = max(0, r.left-1)
	last := r.left == 0
	if last && r.gather == nil {
		r.mu.Unlock()
		return r.Conn.Write(p)
	}
	if r.gather == nil {
		r.gather = r.spare.Get().(*[]byte)
	}
	*r.gather = append(*r.gather, p...)
	full := len(*r.gather) > cap(*r.gather)-recordRoom
	if !last && !full {
		r.mu.Unlock()
		return len(p), nil
	}
	all := r.gather
	r.gather = nil
	r.mu.Unlock()
	_, err := r.Conn.Write(*all)
	*all = (*all)[:0]
	r.spare.Put(all)
	if err != nil {
		return 0, err // crypto/tls gives the connection up, whatever was written
	}
	return len(p), nil
}

// newRoom makes a buffer for records.
func newRoom() any {
	room := make([]byte, 0, gatheredRecords*recordRoom)
	return &room
}
