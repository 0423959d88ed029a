// Package check has what the checks of stored bytes share: what a check finds, and how it runs
// beside readers. The packages that store bytes (segment, sparse, and the namespace's database)
// know how to check. The caller chooses the pace, hears of each finding, and decides about repair.
//
// A check reads the device, past the page cache where the file system lets it. It works in steps of
// about a megabyte and holds nothing between two steps. So writers, eviction and a hung device are
// never waited for by others.
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

// ErrLeft ends a check whose device did not answer in time, or whose directory is out of use.
var ErrLeft = errors.New("it is out of use, or its device does not answer")

// Kind is the class of a Finding; its text is part of the output.
type Kind string

// The kinds of findings.
const (
	// Damaged means that bytes are not what was written there.
	Damaged Kind = "damaged"
	// Leftover is what a process that died, or a device that failed, left behind. It takes room and
	// does no other harm.
	Leftover Kind = "leftover"
	// Refused means that it is not ours, or of a newer format. It is never touched.
	Refused Kind = "refused"
)

// Finding is one thing that is wrong.
type Finding struct {
	Kind Kind `json:"kind"`
	// File is a path, and Offset a place in it in bytes. An Offset of -1 means the file as a whole.
	File   string `json:"file"`
	Offset int64  `json:"offset"`
	// Version of the object, in hex, and the block's number in it. "" and -1 mean that they are not
	// known.
	Version string `json:"version,omitempty"`
	Block   int64  `json:"block"`
	// Cause is one line for people.
	Cause string `json:"cause"`
	// Repaired says that it is gone, and another check will not find it.
	Repaired bool `json:"repaired"`
}

// InFile returns a Finding that concerns no block.
func InFile(kind Kind, file string, offset int64, cause string) Finding {
	return Finding{Kind: kind, File: file, Offset: offset, Block: -1, Cause: cause}
}

// InBlock returns a Finding about a damaged block.
func InBlock(file string, offset int64, version [16]byte, block int64, cause error) Finding {
	return Finding{Kind: Damaged, File: file, Offset: offset, Version: hex.EncodeToString(version[:]), Block: block, Cause: cause.Error()}
}

// Unreadable reports whether an error of opening or reading a file belongs to the file itself, and
// stays until somebody mends it: something else stands there, or its rights or the file system keep
// it from being read. Such a file is reported as Unread, nothing of it is dropped, and the check
// goes on behind it. Other findings are only bytes that do not verify, a file that ends early, and
// EIO. A process that is short of descriptors or memory says nothing about a file, and ends the
// check.
func Unreadable(err error) bool {
	own := []error{unix.EACCES, unix.EPERM, unix.EISDIR, unix.ENOTDIR, unix.ELOOP, unix.ENXIO, unix.ESPIPE,
		unix.EUCLEAN, unix.EBADMSG, unix.ENODATA}
	return slices.ContainsFunc(own, func(e error) bool { return errors.Is(err, e) })
}

// Unread returns the Finding about a file that is Unreadable.
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

// Run is one check in progress. Its counters may be read meanwhile.
type Run struct {
	// Repair drops damaged bytes and removes leftovers.
	Repair bool
	// Found is called for each finding, one at a time.
	Found func(Finding)
	// Pace is called before n bytes are read, and may wait. nil means no wait.
	Pace func(ctx context.Context, n int64) error
	// Step runs op, which may wait for the device, on a thread that can be abandoned there. false
	// means that the thread was abandoned and owns what op uses until op ends, or that op never
	// began and never will. nil means that op runs on the caller's thread.
	Step func(op func()) (ended bool)

	// Files, Blocks and Bytes count what was checked. Bad counts findings, and Repaired those of
	// them that were repaired. Refused counts findings that are never touched; they are not in Bad.
	Files, Blocks, Bytes, Bad, Repaired, Refused atomic.Int64
	// Buffered counts blocks that were read through the page cache, since the file system refuses
	// O_DIRECT. Their cached pages were dropped before.
	Buffered atomic.Int64
	// Unindexed counts blocks that are held and were not checked, since there is no memory for
	// their index.
	Unindexed atomic.Int64
}

// Read waits for the pace before n bytes are read.
func (r *Run) Read(ctx context.Context, n int64) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if r.Pace == nil {
		return nil
	}
	return r.Pace(ctx, n)
}

// Do runs one step. When op ends, perhaps long after Do, it releases what it was given, such as
// memory. If op was not begun, never, which may be nil, releases it instead.
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
