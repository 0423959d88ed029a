package fuse

import (
	"encoding/binary"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

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
// A nil table has no rows. The file is written through mappings: each open of a writable mount has a row.
type table struct {
	file *os.File

	mu     sync.Mutex // guards the rest
	free   []int
	rows   int
	mapped [][]byte // of chunkRows rows each
}

const (
	chunkRows = 4096
	chunkSize = chunkRows * rowSize
)

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
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range t.mapped {
		_ = unix.Munmap(m)
	}
	t.mapped = nil
	_ = t.file.Close() // the kernel has it as long as anybody keeps it
}

// load takes over the rows of another process.
func (t *table) load() ([]tableRow, error) {
	if t == nil {
		return nil, nil
	}
	t.mu.Lock()
	info, err := t.file.Stat()
	for err == nil && int64(len(t.mapped))*chunkSize < info.Size() {
		err = t.growLocked()
	}
	t.rows = len(t.mapped) * chunkRows
	t.mu.Unlock()
	if err != nil {
		return nil, fmt.Errorf("read the table of a mount: %w", err)
	}
	rows := t.read()
	for i := len(rows) - 1; i >= 0; i-- { // the first is taken first
		if rows[i].node == 0 {
			t.free = append(t.free, i)
		}
	}
	return rows, nil
}

// growLocked maps the next rows of the file, which has memory for them then.
func (t *table) growLocked() error {
	at := int64(len(t.mapped)) * chunkSize
	for err := error(unix.EINTR); err != nil; {
		if err = unix.Fallocate(int(t.file.Fd()), 0, at, chunkSize); err != nil && err != unix.EINTR {
			return err
		}
	}
	m, err := unix.Mmap(int(t.file.Fd()), at, chunkSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err == nil {
		t.mapped = append(t.mapped, m)
	}
	return err
}

// read returns all rows.
func (t *table) read() []tableRow {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	rows := make([]tableRow, t.rows)
	for i := range rows {
		rows[i] = t.rowLocked(i)
	}
	return rows
}

// row returns one row, which is free if there is no such.
func (t *table) row(row int) tableRow {
	if t == nil {
		return tableRow{}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.rowLocked(row)
}

func (t *table) rowLocked(row int) tableRow {
	if row < 0 || row >= len(t.mapped)*chunkRows {
		return tableRow{}
	}
	at := t.mapped[row/chunkRows][row%chunkRows*rowSize:]
	return tableRow{binary.NativeEndian.Uint64(at), binary.NativeEndian.Uint32(at[8:]), int32(binary.NativeEndian.Uint32(at[12:]))}
}

// put writes a row, and returns its number. It cannot fail but for want of memory: then it returns -1, which is no row. The
// process that takes the mount over answers opens of this node anew, and the kernel refuses those that differ; or it leaves the
// kernel an old listing.
func (t *table) put(x tableRow) int {
	if t == nil {
		return -1
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	row := t.rows
	if n := len(t.free); n > 0 {
		row, t.free = t.free[n-1], t.free[:n-1]
	} else if row == len(t.mapped)*chunkRows && t.growLocked() != nil {
		return -1
	} else {
		t.rows++
	}
	t.writeLocked(row, x)
	return row
}

// clear frees a row.
func (t *table) clear(row int) {
	if t == nil || row < 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.writeLocked(row, tableRow{})
	t.free = append(t.free, row)
}

// write replaces a row by another of the same node.
func (t *table) write(row int, x tableRow) {
	if t == nil || row < 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.writeLocked(row, x)
}

// writeLocked stores a row so that a process that is killed in the midst leaves the old one, none, or the new one.
func (t *table) writeLocked(row int, x tableRow) {
	if row >= len(t.mapped)*chunkRows {
		return // it is closed
	}
	at := t.mapped[row/chunkRows][row%chunkRows*rowSize:]
	node, rest := (*uint64)(unsafe.Pointer(&at[0])), (*uint64)(unsafe.Pointer(&at[8]))
	var b [8]byte
	binary.NativeEndian.PutUint32(b[:], x.kind)
	binary.NativeEndian.PutUint32(b[4:], uint32(x.value))
	if x.node == 0 {
		atomic.StoreUint64(node, 0)
	}
	atomic.StoreUint64(rest, binary.NativeEndian.Uint64(b[:]))
	atomic.StoreUint64(node, x.node)
}
