package hearthtest

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/hearthfs/hearth"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestFillIsAFunctionOfPathOffsetAndVersion(t *testing.T) {
	// Any range equals the same range of the whole, and Check tells one from
	// another version, path and offset.
	whole := make([]byte, 5*PageSize+77)
	Fill(whole, "a/b", 0, 7)
	for _, r := range [][2]int{{0, 1}, {1, 4096}, {4095, 2}, {4096, 4096}, {5000, 9000}, {len(whole) - 1, 1}} {
		part := make([]byte, r[1])
		Fill(part, "a/b", int64(r[0]), 7)
		if !bytes.Equal(part, whole[r[0]:r[0]+r[1]]) {
			t.Errorf("range %v differs", r)
		}
		if err := Check(part, "a/b", int64(r[0]), 7); err != nil {
			t.Error(err)
		}
	}
	if err := Check(whole, "a/b", 0, 8); err == nil || !strings.Contains(err.Error(), "names version 7") {
		t.Errorf("version 7 checked as 8: %v", err)
	}
	if Check(whole, "a/c", 0, 7) == nil || Check(whole, "a/b", PageSize, 7) == nil {
		t.Error("another path or place passes")
	}
	whole[4096+2000] ^= 1
	if err := Check(whole, "a/b", 0, 7); err == nil || !strings.Contains(err.Error(), "byte 6096") {
		t.Errorf("a flipped byte: %v", err)
	}
	if v, ok := VersionAt(whole[4096:], "a/b", 4096); !ok || v != 7 {
		t.Errorf("version at 4096: %d %v", v, ok)
	}
}

func TestAPortIsNobodyElses(t *testing.T) {
	// While a test has a port, no other test is given it, though nothing listens there. The kernel
	// gives it to nobody who asks for any port.
	first, second := Port(t), ""
	t.Run("beside", func(t *testing.T) { second = Port(t) })
	if first == second {
		t.Errorf("two have %s", first)
	}
	l, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if n, err := strconv.Atoi(first); err != nil || n >= l.Addr().(*net.TCPAddr).Port {
		t.Errorf("%s lies among those that are handed out, as %v", first, l.Addr())
	}
}

func TestSetsAreThoseOfBench(t *testing.T) {
	// Counts of files and the mean size of each data set.
	for name, want := range map[string][3]int64{"D1": {20000, 105 << 10, 115 << 10}, "D1s": {20000, 16 << 10, 16 << 10},
		"D2": {8, 512 << 20, 512 << 20}, "D3": {1_100_000, 2 << 10, 3 << 10}, "D4": {2000, 5 << 20, 5 << 20}} {
		s, err := Set(name)
		if err != nil {
			t.Fatal(err)
		}
		files, size := s.Count()
		if mean := size / int64(files); int64(files) != want[0] || mean < want[1] || mean > want[2] {
			t.Errorf("%s: %d files of %d bytes", name, files, mean)
		}
	}
}

func TestServerTakesALoad(t *testing.T) {
	// A real server takes a reduced set, and its directory has the generator's bytes.
	s := StartS3(t)
	bucket := s.Bucket(t, "load")
	set, err := Set("D1")
	if err != nil {
		t.Fatal(err)
	}
	set = set.Reduced(2, 5)
	if err := s.Load(t.Context(), bucket, set, LoadOptions{Prefix: "p/", Version: 4}); err != nil {
		t.Fatal(err)
	}
	for f := range set.Files() {
		data, err := os.ReadFile(filepath.Join(s.Dir, bucket, "p", f.Path))
		if err != nil || int64(len(data)) != f.Size {
			t.Fatalf("%s: %d bytes, %v", f.Path, len(data), err)
		}
		if err := Check(data, f.Path, 0, 4); err != nil {
			t.Error(err)
		}
	}
}

func TestFakeServerTakesOddKeys(t *testing.T) {
	// Keys that a file system could not hold arrive byte for byte.
	s := StartFakeS3(t)
	bucket := s.Bucket(t, "odd")
	for _, key := range []string{"a//b", "a/../b", "/lead", "sp ace+plus%25", "ünïcode/☃", "t/"} {
		if _, err := s.PutBytes(t.Context(), bucket, key, []byte(key)); err != nil {
			t.Errorf("%q: %v", key, err)
		}
	}
	resp, err := http.Get(s.Endpoint + "/odd?list-type=2")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	http.DefaultClient.CloseIdleConnections()
	if err != nil || !bytes.Contains(text, []byte("a/../b")) || !bytes.Contains(text, []byte("a//b")) || !bytes.Contains(text, []byte("sp ace+plus%25")) {
		t.Errorf("list: %v %s", err, text)
	}
}

func TestStoreSuitePassesAMap(t *testing.T) {
	// The simplest store there is passes the suite.
	pool := Pool(t, hearth.MinRAM)
	StoreSuite(t, func() hearth.Store { return &mapStore{pool: pool, blocks: map[hearth.ID][]byte{}} })
}

type mapStore struct {
	pool   *hearth.Pool
	mu     sync.Mutex // guards blocks
	blocks map[hearth.ID][]byte
}

func (m *mapStore) Get(ctx context.Context, b hearth.Block, off, n int) (*hearth.View, error) {
	m.mu.Lock()
	data, ok := m.blocks[b.ID()]
	m.mu.Unlock()
	if !ok {
		return nil, hearth.ErrMiss
	}
	v, err := m.pool.Alloc(ctx, n)
	if err == nil {
		copy(v.Bytes(), data[off:])
	}
	return v, err
}

func (m *mapStore) Put(b hearth.Block, v *hearth.View) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.blocks[b.ID()] = bytes.Clone(v.Bytes())
	return nil
}

func (m *mapStore) Has(id hearth.ID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.blocks[id] != nil
}

func (m *mapStore) Takes(hearth.Block) bool { return true }

func (m *mapStore) Keep(_ context.Context, b hearth.Block, v *hearth.View) error { return m.Put(b, v) }

func (m *mapStore) Flush(context.Context) error { return nil }
