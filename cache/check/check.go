// Package check is what the checks of stored bytes have in common: what one finds,
// and how one goes on beside readers. Those who store know how to check (segment,
// sparse, and the namespace's database); who asks for it chooses the pace, hears of
// each finding, and says whether it is to be repaired.
//
// A check reads the device, past the page cache where the file system lets it. It
// works in steps of about a megabyte and holds nothing between two of them, so
// that writers, eviction and a device that hangs are never waited for by others.
package check

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// ErrLeft ends a check whose device did not answer in time, or whose directory is out
// of use.
var ErrLeft = errors.New("it is out of use, or its device does not answer")

// Kind is the class of a Finding; its text is part of the output.
type Kind string

// The kinds of findings.
const (
	// Damaged: bytes are not what was written there.
	Damaged Kind = "damaged"
	// Leftover: what a process that died, or a device that failed, left behind. It
	// takes room and nothing else.
	Leftover Kind = "leftover"
	// Refused: not ours, or of a newer format. It is never touched.
	Refused Kind = "refused"
)

// Finding is one thing that is not as it should be.
type Finding struct {
	Kind Kind `json:"kind"`
	// File is a path, Offset a place in it in bytes; -1: the file as a whole.
	File   string `json:"file"`
	Offset int64  `json:"offset"`
	// Version of the object, in hex, and the block's number in it; "" and -1: not known.
	Version string `json:"version,omitempty"`
	Block   int64  `json:"block"`
	// Cause is one line for people.
	Cause string `json:"cause"`
	// Repaired: it is gone, and another check will not find it.
	Repaired bool `json:"repaired"`
}

// InFile is a Finding about no block.
func InFile(kind Kind, file string, offset int64, cause string) Finding {
	return Finding{Kind: kind, File: file, Offset: offset, Block: -1, Cause: cause}
}

// InBlock is a Finding about a damaged block.
func InBlock(file string, offset int64, version [16]byte, block int64, cause error) Finding {
	return Finding{Kind: Damaged, File: file, Offset: offset, Version: hex.EncodeToString(version[:]), Block: block, Cause: cause.Error()}
}

// Unreadable reports whether an error of opening or reading a file is the file's own,
// and stays until somebody mends it: something else stands there, or its rights or the
// file system keep it from being read. It is told of as Unread, nothing of it is
// dropped, and a check goes on behind it. Beside it only bytes that do not verify, a
// file that ends early, and EIO are findings: a process that is short of descriptors
// or memory says nothing about a file, and ends the check.
func Unreadable(err error) bool {
	own := []error{unix.EACCES, unix.EPERM, unix.EISDIR, unix.ENOTDIR, unix.ELOOP, unix.ENXIO, unix.ESPIPE,
		unix.EUCLEAN, unix.EBADMSG, unix.ENODATA}
	return slices.ContainsFunc(own, func(e error) bool { return errors.Is(err, e) })
}

// Unread is the Finding about a file that is Unreadable.
func Unread(file string, err error) Finding {
	return InFile(Damaged, file, -1, "it cannot be read: "+err.Error())
}

// String is the finding's line.
func (f Finding) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s", f.Kind, f.File)
	if f.Offset >= 0 {
		fmt.Fprintf(&b, " at %d", f.Offset)
	}
	if f.Version != "" {
		fmt.Fprintf(&b, ", version %s", f.Version)
	}
	if f.Block >= 0 {
		fmt.Fprintf(&b, " block %d", f.Block)
	}
	b.WriteString(": " + f.Cause)
	if f.Repaired {
		b.WriteString(" (repaired)")
	}
	return b.String()
}

// Run is one check under way. Its figures may be read meanwhile.
type Run struct {
	// Repair drops what is damaged and removes what was left over.
	Repair bool
	// Found hears of each finding, one at a time.
	Found func(Finding)
	// Pace is asked before n bytes are read, and may wait; nil: no wait.
	Pace func(ctx context.Context, n int64) error
	// Step runs what may wait for the device, on a thread that can be left there;
	// false: it was, and owns what it uses until it ends, or op was never begun and
	// will not be any more. nil: on the caller's.
	Step func(op func()) (ended bool)

	// Files, Blocks and Bytes were checked; Bad findings were made, Repaired of them
	// repaired; Refused are those beside that are never touched.
	Files, Blocks, Bytes, Bad, Repaired, Refused atomic.Int64
	// Buffered blocks were read through the page cache, since the file system refuses
	// O_DIRECT: what was there of them had been dropped before.
	Buffered atomic.Int64
	// Unindexed blocks are held and were not looked at: there is no memory for their
	// index.
	Unindexed atomic.Int64
}

// Read is asked before n bytes are read.
func (r *Run) Read(ctx context.Context, n int64) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if r.Pace == nil {
		return nil
	}
	return r.Pace(ctx, n)
}

// Do runs one step. What op is given to release, such as memory, it releases as it
// ends, be it long after Do; never, which may be nil, does so where op was not begun.
func (r *Run) Do(op, never func()) error {
	if r.Step == nil {
		op()
		return nil
	}
	var begun atomic.Bool
	first := func() bool { return begun.CompareAndSwap(false, true) }
	if r.Step(func() {
		if first() {
			op()
		}
	}) {
		return nil
	}
	if first() && never != nil {
		never()
	}
	return ErrLeft
}

// Tell counts a finding and passes it on.
func (r *Run) Tell(f Finding) {
	if f.Kind == Refused {
		r.Refused.Add(1)
	} else {
		r.Bad.Add(1)
	}
	if f.Repaired {
		r.Repaired.Add(1)
	}
	if r.Found != nil {
		r.Found(f)
	}
}

// Zero reports whether all bytes are 0.
func Zero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}
