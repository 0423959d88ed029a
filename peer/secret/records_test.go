package secret

import (
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"sync/atomic"
	"testing"
)

// counted is a connection that counts its writes.
type counted struct {
	net.Conn
	writes atomic.Int64
}

func (c *counted) Write(p []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(p)
}

// encryptedPair is two nodes that have shaken hands over loopback, and the server's
// socket.
func encryptedPair(t testing.TB) (client, server net.Conn, under *counted) {
	t.Helper()
	a, b := nodes(t, Options{})
	near, far := pair(t)
	under = &counted{Conn: far}
	c, s := shake(t.Context(), near, under, a, b)
	if c.err != nil || s.err != nil {
		t.Fatal(c.err, s.err)
	}
	return c.conn, s.conn, under
}

func TestRecordsGoOutTogether(t *testing.T) {
	// What is written at once goes out in few writes, in order and whole, whatever its
	// sizes. Nothing is kept back.
	client, server, under := encryptedPair(t)
	whole := make([]byte, 1<<20)
	for i := range whole {
		whole[i] = byte(i ^ i>>8)
	}
	sizes := []int{1, 100, recordBytes - 1, recordBytes, recordBytes + 1, gatheredRecords * recordBytes, gatheredRecords*recordBytes + 1, 100 << 10, 1 << 20}
	for _, n := range sizes {
		for _, head := range []int{-1, 0, 90, recordBytes + 5} {
			parts := [][]byte{whole[:n]}
			if head >= 0 {
				parts = [][]byte{whole[:head], whole[:n]}
			}
			want := bytes.Join(parts, nil)
			before := under.writes.Load()
			failed := make(chan error, 1)
			go func() {
				var wrote int64
				var err error
				if head < 0 {
					var made int
					made, err = server.Write(parts[0])
					wrote = int64(made)
				} else {
					wrote, err = server.(*sealed).WriteParts(parts...)
				}
				if err == nil && wrote != int64(len(want)) {
					err = io.ErrShortWrite
				}
				failed <- err
			}()
			got := make([]byte, len(want))
			if _, err := io.ReadFull(client, got); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("%d behind %d bytes: %v", n, head, err)
			}
			if err := <-failed; err != nil {
				t.Fatalf("%d behind %d bytes: %v", n, head, err)
			}
			records := recordsOf(n) + recordsOf(max(0, head))
			if made, most := under.writes.Load()-before, int64(records+gatheredRecords-2)/(gatheredRecords-1); made > most {
				t.Errorf("%d behind %d bytes, %d records: %d writes, at most %d", n, head, records, made, most)
			}
			if r := server.(*sealed).under; r.gather != nil || r.left != 0 {
				t.Errorf("%d behind %d bytes: %d records are waited for", n, head, r.left)
			}
		}
	}
}

func TestARecordThatNobodyAnnouncedIsNotKeptBack(t *testing.T) {
	// An alert takes the place of an announced record. All go out, the last by itself.
	near, far := net.Pipe()
	defer near.Close()
	under := &records{Conn: far, spare: &(&Identity{}).spare}
	under.spare.New = newRoom
	under.expect(3)
	go func() {
		for _, b := range []string{"one", "alert", "two", "three"} {
			if _, err := under.Write([]byte(b)); err != nil {
				t.Error(err)
			}
		}
		far.Close()
	}()
	if all, err := io.ReadAll(near); err != nil || string(all) != "onealerttwothree" {
		t.Errorf("%q, %v", all, err)
	}
}

func TestAWriteToNobodyEnds(t *testing.T) {
	// A connection is closed while a write waits for its reader. That ends the write at
	// once.
	_, server, _ := encryptedPair(t)
	failed := make(chan error, 1)
	begun := make(chan struct{})
	go func() {
		part := make([]byte, 1<<20)
		close(begun)
		for {
			if _, err := server.(*sealed).WriteParts(part[:9], part); err != nil {
				failed <- err
				return
			}
		}
	}()
	<-begun
	server.Close()
	t.Log(<-failed)
}

func BenchmarkWrite(b *testing.B) {
	// A block of 100 KiB and its header are written, by records that go out together, and
	// by a system call for each record.
	for _, together := range []bool{true, false} {
		b.Run(map[bool]string{true: "together", false: "each"}[together], func(b *testing.B) {
			client, server, _ := encryptedPair(b)
			head, block := make([]byte, 90), make([]byte, 100<<10)
			read := make(chan error, 1)
			go func() {
				_, err := io.Copy(io.Discard, client)
				read <- err
			}()
			b.SetBytes(int64(len(block)))
			for b.Loop() {
				write := server.(*sealed).WriteParts
				if !together {
					write = func(parts ...[]byte) (n int64, err error) {
						buffers := net.Buffers(parts)
						return buffers.WriteTo(struct{ *tls.Conn }{server.(*sealed).Conn})
					}
				}
				if _, err := write(head, block); err != nil {
					b.Fatal(err)
				}
			}
			server.Close()
			if err := <-read; err != nil {
				b.Error(err)
			}
		})
	}
}
