package fuse

import (
	"encoding/binary"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// table is what the process that takes a mount over must know besides. It lies in a file in memory that whoever keeps the
// mount has. A row is 16 bytes: a node id, 0 for a free row; a kind; and a value.
//
//   - opened: the node is open on a passthrough mount. The value is the backing id, 0 for a file that is not lent. All
//     opens of a node must be answered alike.
//   - held: the node is open on a writable mount, once for each such row. The value says for what, and which open it is (handles.go).
//   - removed: the node was a directory that the kernel removed. The value is its next one's generation.
//   - renaming: a request with this number, in place of the node id, has begun a rename that has several steps. The value says which
//     (remade.go).
//   - listed: the kernel keeps the directory's listing, until it is told to drop it. The value is 0.
//
// A nil table has no rows.
type table struct {
	file *os.File

	mu   sync.Mutex // guards the rest; never held while the file is written
	free []int
	rows int
}

const rowSize = 16

type tableRow struct {
	node  uint64
	kind  uint32
	value int32
}

const (
	opened   = 1
	listed   = 2
	held     = 3
	removed  = 4
	renaming = 5
)

// newTable makes a table in a file that nobody else has yet.
func newTable() (*table, error) {
	fd, err := unix.MemfdCreate("hearth-mount", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a file in memory: %w", err)
	}
	return &table{file: os.NewFile(uintptr(fd), "hearth-mount")}, nil
}

func (t *table) close() {
	if t != nil {
		_ = t.file.Close() // the kernel has it as long as anybody keeps it
	}
}

// load takes over the rows of another process.
func (t *table) load() ([]tableRow, error) {
	rows, err := t.read()
	for i, x := range rows {
		if x.node == 0 {
			t.free = append(t.free, i)
		}
	}
	if t != nil {
		t.rows = len(rows)
	}
	return rows, err
}

// read returns all rows.
func (t *table) read() ([]tableRow, error) {
	if t == nil {
		return nil, nil
	}
	info, err := t.file.Stat()
	if err != nil {
		return nil, fmt.Errorf("read the table of a mount: %w", err)
	}
	data := make([]byte, info.Size()/rowSize*rowSize)
	if _, err := t.file.ReadAt(data, 0); err != nil {
		return nil, fmt.Errorf("read the table of a mount: %w", err)
	}
	rows := make([]tableRow, len(data)/rowSize)
	for i := range rows {
		at := data[i*rowSize:]
		rows[i] = tableRow{binary.NativeEndian.Uint64(at), binary.NativeEndian.Uint32(at[8:]), int32(binary.NativeEndian.Uint32(at[12:]))}
	}
	return rows, nil
}

// put writes a row, and returns its number.
func (t *table) put(x tableRow) int {
	if t == nil {
		return -1
	}
	t.mu.Lock()
	row := t.rows
	if n := len(t.free); n > 0 {
		row, t.free = t.free[n-1], t.free[:n-1]
	} else {
		t.rows++
	}
	t.mu.Unlock()
	t.write(row, x)
	return row
}

// clear frees a row.
func (t *table) clear(row int) {
	if t == nil || row < 0 {
		return
	}
	t.write(row, tableRow{})
	t.mu.Lock()
	t.free = append(t.free, row)
	t.mu.Unlock()
}

// write cannot fail but for want of memory. Then the process that takes the mount over answers opens of this node anew, and
// the kernel refuses those that differ; or it leaves the kernel an old listing.
func (t *table) write(row int, x tableRow) {
	if t == nil || row < 0 {
		return
	}
	var b [rowSize]byte
	binary.NativeEndian.PutUint64(b[:], x.node)
	binary.NativeEndian.PutUint32(b[8:], x.kind)
	binary.NativeEndian.PutUint32(b[12:], uint32(x.value))
	_, _ = t.file.WriteAt(b[:], int64(row)*rowSize)
}
