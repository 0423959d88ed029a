package nvmetcp

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

const (
	maxBlocks  = 1 << 16 // of one Read or Write (NVM Command Set, 3.2.4)
	maxDiscard = 1 << 30 // bytes of one command, so that it ends within the timeout
)

// ErrRange is an offset or a length that is no multiple of the block size, or outside of the namespace.
var ErrRange = errors.New("not in whole blocks of the namespace")

// ErrUnflushed means that the target was reached anew since some writes, which may be lost. One Flush says so, for
// all writes of the Namespace that no Flush had made durable. They are to be written again.
var ErrUnflushed = errors.New("unflushed writes may be lost: the connection to the target was made anew since")

// ErrClosed is the answer of a Namespace after Close.
var ErrClosed = errors.New("nvmetcp: the namespace was closed")

// Namespace is a remote block device. Its methods may be called at the same time.
type Namespace struct {
	o        Options
	stop     context.CancelCauseFunc
	work     sync.WaitGroup // the goroutine that connects again
	reads    counter
	writes   counter
	flushes  counter
	discards counter
	repeated atomic.Int64
	volatile atomic.Bool  // the target caches writes
	first    atomic.Int64 // of Options.Portals, for the next connection

	mu          sync.Mutex  // guards the rest; taken before those of a controller; never held during I/O
	moved       sync.Cond   // of mu: current or failing changed
	current     *controller // nil while there is none; it may have ended
	failing     error       // commands fail at once with it; nil while they wait
	cause       error       // why there is no connection
	lost        time.Time   // when the last one was
	connections uint64      // that were made
	space       namespaceInfo
	unflushed   uint64 // number of the oldest controller whose writes no Flush made durable; 0: there is none
	closed      bool
}

// Open connects to the first usable portal and identifies the namespace. ctx bounds Open alone. If it fails, the error
// names for each portal what went wrong.
func Open(ctx context.Context, o Options) (*Namespace, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	n := &Namespace{o: o}
	n.moved.L = &n.mu
	c, err := n.connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("nvmetcp: open: %w", err)
	}
	n.up(c)
	running, stop := context.WithCancelCause(context.Background())
	n.stop = stop
	n.work.Go(func() { n.run(running, c) })
	return n, nil
}

// Close ends the connections and waits for what works for the Namespace. Commands in flight fail with ErrClosed. It
// does not Flush. A target that is silent keeps it for Options.Timeout.
func (n *Namespace) Close() error {
	n.mu.Lock()
	closed := n.closed
	n.closed = true
	n.moved.Broadcast()
	n.mu.Unlock()
	if closed {
		return ErrClosed
	}
	n.stop(ErrClosed)
	n.work.Wait()
	return nil
}

// ReadAt reads len(p) bytes at off, both multiples of the block size. n is the number of bytes before what failed.
func (n *Namespace) ReadAt(p []byte, off int64) (int, error) {
	return n.transfer(&n.reads, opRead, p, off)
}

// WriteAt writes len(p) bytes at off, both multiples of the block size. They are durable after the next Flush. After
// an error any of the blocks may have old or new bytes.
func (n *Namespace) WriteAt(p []byte, off int64) (int, error) {
	return n.transfer(&n.writes, opWrite, p, off)
}

// transfer splits what is more than one command takes. The parts follow one another: who wants more at once has
// several goroutines.
func (n *Namespace) transfer(count *counter, opcode byte, p []byte, off int64) (done int, err error) {
	defer count.add(time.Now(), &done, &err)
	bits, err := n.check(off, int64(len(p)))
	if err != nil {
		return 0, wrap(opcode, len(p), off, err)
	}
	for done < len(p) {
		var part []byte
		err := n.repeat(func(c *controller) error {
			part = p[done:]
			part = part[:min(len(part), max(c.info.maxTransfer>>bits, 1)<<bits, maxBlocks<<bits)]
			at := off + int64(done)
			err := c.do(ioCommand(opcode, n.o.NSID, uint64(at)>>bits, len(part)>>bits), part)
			if opcode == opRead && halfCached(err) {
				err = n.readPages(c, part, at, bits)
			}
			if err == nil && opcode == opWrite {
				n.wrote(c)
			}
			return err
		})
		if err != nil {
			return done, wrap(opcode, len(p), off, err)
		}
		done += len(part)
	}
	return done, nil
}

// halfCached reports whether a read may go well in pages. A target of Linux with buffered_io fails a read of which its
// page cache has the first part alone: it answers Internal Error and Do Not Retry. The same read again often fails
// too, since each try fills the cache by its read-ahead alone, 128 KiB. A page is there or not.
func halfCached(err error) bool {
	if err == nil {
		return false
	}
	var failed *StatusError
	return errors.As(err, &failed) && failed.Status.Type() == 0 && failed.Status.Code() == 0x06
}

// readPages reads page by page, once each. A bad medium, whose status is the same, fails again at its page.
func (n *Namespace) readPages(c *controller, p []byte, off int64, bits uint) error {
	for size := max(4096, int64(1)<<bits); len(p) > 0; {
		part := p[:min(int64(len(p)), size-off%size)]
		if err := c.do(ioCommand(opRead, n.o.NSID, uint64(off)>>bits, len(part)>>bits), part); err != nil {
			return err
		}
		p, off = p[len(part):], off+int64(len(part))
	}
	return nil
}

func wrap(opcode byte, length int, off int64, err error) error {
	return fmt.Errorf("nvmetcp: %s of %d bytes at %d: %w", command{opcode: opcode}.name(false), length, off, err)
}

// Flush makes the writes durable that returned before it was called.
func (n *Namespace) Flush() (err error) {
	var none int
	defer n.flushes.add(time.Now(), &none, &err)
	n.mu.Lock()
	oldest := n.unflushed
	n.unflushed = 0 // writes from here on are not this Flush's
	n.mu.Unlock()
	var on uint64
	err = n.repeat(func(c *controller) error {
		on = c.number
		return c.do(command{opcode: opFlush, nsid: n.o.NSID}, nil)
	})
	switch {
	case err != nil && oldest != 0:
		n.mu.Lock()
		n.unflushed = oldest // it is older than what was written since
		n.mu.Unlock()
	case err == nil && oldest != 0 && oldest != on && n.volatile.Load():
		err = ErrUnflushed
	}
	if err != nil {
		return fmt.Errorf("nvmetcp: flush: %w", err)
	}
	return nil
}

// wrote notes writes that no Flush has made durable, by the controller that took them.
func (n *Namespace) wrote(c *controller) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.unflushed == 0 {
		n.unflushed = c.number
	}
}

// Discard tells the target that length bytes at off are not needed any more, both multiples of the block size. What
// they read as afterwards is the target's choice. A target that does not support it answers errors.ErrUnsupported.
func (n *Namespace) Discard(off, length int64) (err error) {
	var done int
	defer n.discards.add(time.Now(), &done, &err)
	bits, err := n.check(off, length)
	for err == nil && length > 0 {
		part := min(length, maxDiscard)
		err = n.repeat(func(c *controller) error {
			if !c.info.deallocates {
				return errors.ErrUnsupported
			}
			b := make([]byte, rangeLen)
			putRange(b, uint64(off)>>bits, uint32(part>>bits))
			err := c.do(deallocate(n.o.NSID), b)
			if err == nil {
				n.wrote(c)
			}
			return err
		})
		if err == nil {
			off, length, done = off+part, length-part, done+int(part)
		}
	}
	if err != nil {
		return fmt.Errorf("nvmetcp: discard of %d bytes at %d: %w", length, off, err)
	}
	return nil
}

// Size is the namespace's, in bytes. The target may change it.
func (n *Namespace) Size() int64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.space.size()
}

// BlockSize is what offsets and lengths are multiples of, in bytes. It stays as it is: a namespace that comes back
// with another one fails with ErrNamespace.
func (n *Namespace) BlockSize() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return 1 << n.space.blockBits
}

// check holds a range against the namespace, and returns the bits of its blocks.
func (n *Namespace) check(off, length int64) (uint, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	mask := int64(1)<<n.space.blockBits - 1
	if off < 0 || length < 0 || off&mask != 0 || length&mask != 0 || off > n.space.size()-length {
		return 0, fmt.Errorf("%w: it has %d bytes in blocks of %d", ErrRange, n.space.size(), mask+1)
	}
	return n.space.blockBits, nil
}

// repeat runs a command, and runs it again on the next controller while the path is to blame.
func (n *Namespace) repeat(do func(*controller) error) error {
	for begun := time.Now(); ; n.repeated.Add(1) {
		c, err := n.controller()
		if err != nil {
			return err
		}
		err = do(c)
		if err == nil || !errors.Is(err, ErrPath) {
			return err
		}
		c.end(err)
		if since := time.Since(begun); since > n.o.Patience+n.o.Timeout {
			return fmt.Errorf("given up after %v: %w", since.Round(time.Millisecond), err)
		}
	}
}

// controller waits for a connection, for as long as there is hope.
func (n *Namespace) controller() (*controller, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for {
		switch {
		case n.closed:
			return nil, ErrClosed
		case n.current != nil && n.current.ended() == nil:
			return n.current, nil
		case n.failing != nil:
			return nil, n.failing
		}
		n.moved.Wait()
	}
}
