package fakenvmet

import (
	"fmt"
	"io"
	"slices"
	"sync"
)

// Backing is where a namespace's bytes lie. An *os.File is one, and so is Memory.
type Backing interface {
	io.ReaderAt
	io.WriterAt
	// Sync makes what was written durable. The target calls it for each Flush.
	Sync() error
	// Truncate changes the size. The target calls it from Resize.
	Truncate(size int64) error
}

// NamespaceOptions describe a namespace.
type NamespaceOptions struct {
	// ID is the NSID. 0 means 1.
	ID uint32
	// Size in bytes, a multiple of BlockSize. 0 means 64 MiB.
	Size int64
	// BlockSize is 512 or 4096. 0 means 4096.
	BlockSize int
	// Backing holds the bytes. nil means a new Memory of Size.
	Backing Backing
	// Volatile puts a volatile write cache before the backing: Kill loses what no Flush wrote.
	Volatile bool
	// ReadOnly refuses writes with 0/20h.
	ReadOnly bool
}

// Namespace is one namespace of a Target. All methods may be called at any time.
type Namespace struct {
	id        uint32
	made      uint32 // namespaces that the target had made before
	target    *Target
	backing   Backing
	blockSize int64
	volatile  bool

	// mu guards what follows. Reads and writes hold it for reading, so that Resize waits for them.
	mu       sync.RWMutex
	size     int64
	largest  int64 // the largest size ever: a host may not know yet that it shrank
	disabled bool
	readOnly bool
	bad      []badRange
	cache    map[int64][]byte // blocks that were written since the last Flush, by offset; nil unless Volatile
}

type badRange struct {
	first, last int64 // blocks
	status      Status
}

func newNamespace(t *Target, o NamespaceOptions) (*Namespace, error) {
	if o.ID == 0 {
		o.ID = 1
	}
	if o.Size == 0 {
		o.Size = 64 << 20
	}
	if o.BlockSize == 0 {
		o.BlockSize = 4096
	}
	if o.BlockSize != 512 && o.BlockSize != 4096 || o.Size < 0 || o.Size%int64(o.BlockSize) != 0 {
		return nil, fmt.Errorf("namespace %d of %d bytes in blocks of %d: want blocks of 512 or 4096", o.ID, o.Size, o.BlockSize)
	}
	if o.Backing == nil {
		o.Backing = NewMemory(o.Size)
	}
	n := &Namespace{id: o.ID, made: t.made.Add(1), target: t, backing: o.Backing, blockSize: int64(o.BlockSize), volatile: o.Volatile,
		size: o.Size, largest: o.Size, readOnly: o.ReadOnly}
	if o.Volatile {
		n.cache = map[int64][]byte{}
	}
	return n, nil
}

// Resize changes the namespace's size and the backing's, and tells the hosts.
func (n *Namespace) Resize(size int64) error {
	if size < 0 || size%n.blockSize != 0 {
		return fmt.Errorf("resize namespace %d to %d: want a multiple of %d", n.id, size, n.blockSize)
	}
	n.mu.Lock()
	err := n.backing.Truncate(size)
	if err == nil {
		n.size, n.largest = size, max(n.largest, size)
		for at := range n.cache {
			if at >= size {
				delete(n.cache, at)
			}
		}
	}
	n.mu.Unlock()
	if err != nil {
		return fmt.Errorf("resize namespace %d: %w", n.id, err)
	}
	n.target.namespaceChanged(n.id)
	return nil
}

// Enable takes the namespace into use, or out of it: commands get 3/00h, which may be retried. It
// tells the hosts.
func (n *Namespace) Enable(on bool) {
	n.mu.Lock()
	n.disabled = !on
	n.mu.Unlock()
	n.target.namespaceChanged(n.id)
}

// Protect makes the namespace read-only, or writable again, and tells the hosts.
func (n *Namespace) Protect(on bool) {
	n.mu.Lock()
	n.readOnly = on
	n.mu.Unlock()
	n.target.namespaceChanged(n.id)
}

// Bad fails every read and write that touches one of the blocks first to last. Status 0 means
// 2/81h for reads and 2/80h for writes, each with DNR.
func (n *Namespace) Bad(first, last int64, status Status) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.bad = append(n.bad, badRange{first, last, status})
}

// Good makes all blocks good again.
func (n *Namespace) Good() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.bad = nil
}

// Unflushed returns how many bytes a Kill would lose.
func (n *Namespace) Unflushed() int64 {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return int64(len(n.cache)) * n.blockSize
}

// geometry is what Identify says of the namespace.
func (n *Namespace) geometry() (blocks int64, readOnly, disabled bool) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.size / n.blockSize, n.readOnly, n.disabled
}

// state is the status that a command for a range gets before any data moves. Beyond says that no
// host can ever have been told that the range exists.
func (n *Namespace) state(at, size int64, write bool) (s Status, beyond bool) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	switch {
	case n.disabled:
		return PathError, false
	case write && n.readOnly:
		return WriteProtected | DNR, false
	case at < 0 || size < 0 || at > n.size-size:
		return LBAOutOfRange | DNR, at < 0 || size < 0 || at > n.largest-size
	}
	for _, b := range n.bad {
		if at < (b.last+1)*n.blockSize && at+size > b.first*n.blockSize {
			switch {
			case b.status != 0:
				return b.status, false
			case write:
				return WriteFault | DNR, false
			}
			return UnrecoveredRead | DNR, false
		}
	}
	return Success, false
}

// read fills b from a range that state has allowed. It may have shrunk since.
func (n *Namespace) read(b []byte, at int64) Status {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if at > n.size-int64(len(b)) {
		return LBAOutOfRange | DNR
	}
	got, err := n.backing.ReadAt(b, at)
	if got < len(b) && err != nil && err != io.EOF {
		return UnrecoveredRead | DNR
	}
	clear(b[got:]) // a file that is shorter than its namespace
	if n.cache != nil {
		for i := int64(0); i < int64(len(b)); i += n.blockSize {
			if block, held := n.cache[at+i]; held {
				copy(b[i:], block)
			}
		}
	}
	return Success
}

// write writes to a range that state has allowed. Force unit access makes it durable.
func (n *Namespace) write(b []byte, at int64, force bool) Status {
	if n.volatile {
		return n.writeVolatile(b, at, force)
	}
	n.mu.RLock()
	defer n.mu.RUnlock()
	if at > n.size-int64(len(b)) {
		return LBAOutOfRange | DNR
	}
	return n.store(b, at, force)
}

func (n *Namespace) writeVolatile(b []byte, at int64, force bool) Status {
	n.mu.Lock()
	defer n.mu.Unlock()
	if at > n.size-int64(len(b)) {
		return LBAOutOfRange | DNR
	}
	for i := int64(0); i < int64(len(b)); i += n.blockSize {
		if force {
			delete(n.cache, at+i)
		} else {
			n.cache[at+i] = slices.Clone(b[i : i+n.blockSize])
		}
	}
	if !force {
		return Success
	}
	return n.store(b, at, true)
}

// store writes to the backing.
func (n *Namespace) store(b []byte, at int64, sync bool) Status {
	if _, err := n.backing.WriteAt(b, at); err != nil {
		return WriteFault | DNR
	}
	if sync && n.backing.Sync() != nil {
		return InternalError
	}
	return Success
}

// flush writes the cache to the backing, and makes that durable.
func (n *Namespace) flush() Status {
	n.mu.Lock()
	defer n.mu.Unlock()
	for at, block := range n.cache {
		if _, err := n.backing.WriteAt(block, at); err != nil {
			return WriteFault
		}
	}
	clear(n.cache)
	if err := n.backing.Sync(); err != nil {
		return InternalError
	}
	return Success
}

// zero writes zeros: Deallocate and Write Zeroes both promise them here.
func (n *Namespace) zero(at, size int64) Status {
	zeros := make([]byte, min(size, 1<<20))
	for done := int64(0); done < size; {
		step := min(size-done, int64(len(zeros)))
		if s := n.write(zeros[:step], at+done, false); s != Success {
			return s
		}
		done += step
	}
	return Success
}

// lose is what a power loss does.
func (n *Namespace) lose() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.cache)
}

// Memory is a Backing in memory. It gives each reader and writer whole blocks, as a device does.
type Memory struct {
	mu    sync.RWMutex // guards bytes
	bytes []byte
}

// NewMemory returns a Memory of zeros. Pages that nobody wrote cost nothing.
func NewMemory(size int64) *Memory { return &Memory{bytes: make([]byte, size)} }

// ReadAt implements io.ReaderAt.
func (m *Memory) ReadAt(b []byte, at int64) (int, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if at < 0 || at > int64(len(m.bytes)) {
		return 0, io.EOF
	}
	n := copy(b, m.bytes[at:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

// WriteAt implements io.WriterAt. It does not grow the Memory.
func (m *Memory) WriteAt(b []byte, at int64) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if at < 0 || at > int64(len(m.bytes)) {
		return 0, io.ErrShortWrite
	}
	n := copy(m.bytes[at:], b)
	if n < len(b) {
		return n, io.ErrShortWrite
	}
	return n, nil
}

// Sync does nothing: memory is as durable as it gets.
func (m *Memory) Sync() error { return nil }

// Truncate changes the size. New bytes are zeros.
func (m *Memory) Truncate(size int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	bytes := make([]byte, size)
	copy(bytes, m.bytes)
	m.bytes = bytes
	return nil
}
