package volume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/cache/check"
	"github.com/hearthfs/hearth/cache/record"
	"github.com/hearthfs/hearth/internal/device"
	"github.com/hearthfs/hearth/volume/nvmetcp"
)

// This file reads a whole volume and compares it with its checksums, while nodes may use it. A node that reads what
// is not as it should be has a miss. So nothing has to be repaired but a superblock.
//
// A write that is under way looks like damage. So what is bad is looked at once more, a second later. It is damage if
// the same place is bad again, in a segment that was not begun anew meanwhile, which its salt tells.

const (
	// checkers are how many segments are checked at a time. Each has a buffer of checkWindow.
	checkers = 4
	// checkWindow is how much of a segment is read at once. It holds a longest record.
	checkWindow = 4 << 20
	// lookAgain is after how long what is bad is looked at again. A write of a node takes milliseconds.
	lookAgain = time.Second
)

// Checked is what a check has counted.
type Checked struct {
	// Free segments hold nothing, Closed ones have an index, and Open ones have none.
	Free, Open, Closed int
	// Changed segments had something bad when they were read first, and were begun anew before they were read again.
	Changed int
	// Good blocks are as they were written. Damaged ones are not, and are misses for nodes.
	Good, Damaged int64
}

// Check reads the superblocks and all segments of a device, and tells r each thing that is not as it was written. name
// is the device's in findings. With r.Repair a damaged superblock is written anew from the other one.
func Check(ctx context.Context, d Device, name string, r *check.Run) (Checked, error) {
	g, err := look(d)
	if err != nil {
		return Checked{}, err
	}
	c := &checker{dev: d, name: name, g: g, run: r}
	for n := range uint32(2) {
		if err := c.superblock(n); err != nil {
			return c.sum, err
		}
	}
	var all []uint32
	for n := range g.count {
		all = append(all, n)
	}
	bad, err := c.pass(ctx, all, nil)
	if err != nil || len(bad) == 0 {
		return c.sum, err
	}
	select {
	case <-time.After(lookAgain):
	case <-ctx.Done():
		return c.sum, context.Cause(ctx)
	}
	again := make([]uint32, 0, len(bad))
	for n := range bad {
		again = append(again, n)
	}
	slices.Sort(again)
	_, err = c.pass(ctx, again, bad)
	return c.sum, err
}

// checker is one check of a volume.
type checker struct {
	dev  Device
	name string
	g    geometry
	run  *check.Run

	mu  sync.Mutex // held while sum changes and a finding is told
	sum Checked
}

// superblock checks one of the two, which are the same but for their number.
func (c *checker) superblock(n uint32) error {
	want := c.g
	want.copy = n
	at, page := int64(n)*want.last(), device.Aligned(pageSize)
	c.run.Bytes.Add(pageSize)
	cause := fmt.Sprintf("superblock %d does not verify", n+1)
	if _, err := c.dev.ReadAt(page, at); harmed(err) {
		cause = fmt.Sprintf("superblock %d cannot be read: %v", n+1, err)
	} else if err != nil {
		return err
	} else if g, ok := parseGeometry(page); ok {
		if g == want {
			return nil
		}
		cause = fmt.Sprintf("superblock %d says otherwise than the other one", n+1)
	}
	f := check.InFile(check.Damaged, c.name, at, cause)
	if c.run.Repair {
		want.put(page)
		_, err := c.dev.WriteAt(page, at)
		if err == nil {
			err = c.dev.Flush()
		}
		if err != nil {
			f.Cause += "; it cannot be written anew: " + err.Error()
		}
		f.Repaired = err == nil
	} else {
		f.Cause += "; hearth volume check --repair writes it anew"
	}
	c.run.Tell(f)
	return nil
}

// verified is what one look at a segment found.
type verified struct {
	looked
	good int64
	bad  []check.Finding
}

// pass reads segments. At first before is nil, and those that have something bad are returned. The second pass tells
// of them, and before has what the first one found.
func (c *checker) pass(ctx context.Context, segments []uint32, before map[uint32]verified) (
	bad map[uint32]verified, err error) {
	bad = map[uint32]verified{} // changes under mu
	work, within := errgroup.WithContext(ctx)
	work.SetLimit(checkers)
	for _, n := range segments {
		work.Go(func() error {
			v, err := c.segment(within, n)
			if err != nil {
				return err
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			first, second := before[n]
			switch {
			case !second && len(v.bad) > 0:
				bad[n] = v
				return nil
			case second && v.salt != first.salt:
				c.sum.Changed++
			case second:
				c.tell(first.bad, v.bad)
			}
			c.count(&v)
			return nil
		})
	}
	err = work.Wait()
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return bad, err
}

func (c *checker) count(v *verified) {
	c.run.Files.Add(1)
	c.sum.Good += v.good
	switch {
	case v.salt == 0:
		c.sum.Free++
	case v.closed:
		c.sum.Closed++
	default:
		c.sum.Open++
	}
}

// tell tells of what was bad at both looks.
func (c *checker) tell(first, second []check.Finding) {
	was := map[int64]bool{}
	for _, f := range first {
		was[f.Offset] = true
	}
	for _, f := range second {
		if !was[f.Offset] {
			continue
		}
		if f.Block >= 0 {
			c.sum.Damaged++
		}
		c.run.Tell(f)
	}
}

// segment reads a segment and all its records.
func (c *checker) segment(ctx context.Context, n uint32) (v verified, err error) {
	base := c.g.offset(n)
	read := func(b []byte, off int64) error {
		if err := c.run.Read(ctx, int64(len(b))); err != nil {
			return err
		}
		c.run.Bytes.Add(int64(len(b)))
		_, err := c.dev.ReadAt(b, base+off)
		return err
	}
	var notes []record.Note
	v.looked, notes, err = c.g.look(n, read)
	switch {
	case harmed(err):
		v.bad = append(v.bad, check.InFile(check.Damaged, c.name, base, "the segment cannot be read: "+err.Error()))
		return v, nil
	case err != nil:
		return v, err
	case v.harm != "":
		v.bad = append(v.bad, check.InFile(check.Damaged, c.name, base+v.harmAt, v.harm))
	}
	err = records(read, notes, func(x record.Note, b []byte, err error) {
		c.run.Blocks.Add(1)
		at := base + x.Offset()
		switch {
		case err != nil:
			v.bad = append(v.bad, check.InBlock(c.name, at, x.ID.Version, x.ID.Index, fmt.Errorf("it cannot be read: %w", err)))
		case record.VerifyAt(b, x, v.salt) != nil:
			v.bad = append(v.bad, check.InBlock(c.name, at, x.ID.Version, x.ID.Index, record.ErrMismatch))
		default:
			v.good++
		}
	})
	return v, err
}

// records reads records of a segment, and calls each with the bytes of one, or with what kept them from being read.
func records(read func(b []byte, off int64) error, notes []record.Note,
	each func(x record.Note, b []byte, err error)) error {
	if len(notes) == 0 {
		return nil
	}
	slices.SortFunc(notes, func(a, b record.Note) int { return cmp.Compare(a.Unit, b.Unit) })
	window := device.Aligned(checkWindow)
	for len(notes) > 0 {
		start, end, k := notes[0].Offset()&^(pageSize-1), int64(0), 0
		for ; k < len(notes) && record.RoundUp(notes[k].End(), pageSize)-start <= checkWindow; k++ {
			end = max(end, record.RoundUp(notes[k].End(), pageSize))
		}
		err := read(window[:end-start], start)
		switch {
		case err != nil && !harmed(err):
			return err
		case err != nil && k > 1: // the others can be read
			for i := range k {
				if err := records(read, notes[i:i+1], each); err != nil {
					return err
				}
			}
		default:
			for _, x := range notes[:k] {
				each(x, window[x.Offset()-start:end-start], err)
			}
		}
		notes = notes[k:]
	}
	return nil
}

// harmed reports whether an error is of the bytes that were asked for, and others may be well. Those of block devices
// are the kernel's (block layer, blk_errors).
func harmed(err error) bool {
	own := []error{nvmetcp.ErrData, unix.EIO, unix.ENODATA, unix.EILSEQ, unix.EBADMSG}
	return slices.ContainsFunc(own, func(e error) bool { return errors.Is(err, e) })
}
