package jobs

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/check"
	"github.com/hearthfs/hearth/cache/segment"
	"github.com/hearthfs/hearth/cache/sparse"
	"github.com/hearthfs/hearth/namespace"
	"github.com/hearthfs/hearth/namespace/store"
	"github.com/hearthfs/hearth/warmup"
)

// checker is what a check asks of the node. It drops what it finds damaged, as a reader would. So what would be
// a miss at the next read is a miss now, and the next warm-up loads it.
type checker struct{ parts Parts }

// Verify implements warmup.Checker.
func (c checker) Verify(ctx context.Context, o *hearth.Object, first, n int64, pace warmup.Pace) (v warmup.Verdict) {
	why, lost, bad := "not in the disk cache", 0, ""
	if !o.Cacheable() {
		why = "it has no strong ETag, so that no tier keeps it"
	}
	for i := first; i < first+n && ctx.Err() == nil; i++ {
		b := o.Block(i)
		run := &check.Run{Repair: true, Pace: pace, Found: func(f check.Finding) {
			if f.Repaired = false; bad == "" { // the check says once for all findings that it drops them
				bad = f.String()
			}
		}}
		held, err := c.block(ctx, run, b)
		v.Read += run.Bytes.Load()
		v.Buffered += run.Buffered.Load()
		switch bytes := int64(b.Len()); {
		case run.Bad.Load()+run.Refused.Load() > 0:
			v.Corrupt += bytes
		case err != nil:
			why = err.Error()
			fallthrough
		case !held:
			v.Missing += bytes
			lost++
		default:
			v.Whole += bytes
		}
	}
	v.Cause = causeOf(o, first, n, bad, lost, why)
	return v
}

// causeOf says what is wrong with n blocks of an object: what is bad, or else why so many of them are not held.
func causeOf(o *hearth.Object, first, n int64, bad string, lost int, why string) string {
	switch {
	case bad != "":
		return bad
	case lost > 0 && o.Blocks() > 1:
		return fmt.Sprintf("%d of its blocks %d to %d (of %d): %s", lost, first, first+n-1, o.Blocks(), why)
	case lost > 0:
		return why
	}
	return ""
}

// block checks a block in every place where it is held: a reader that finds it damaged in one place looks in
// the others.
func (c checker) block(ctx context.Context, run *check.Run, b hearth.Block) (held bool, err error) {
	err = c.parts.Disk.Inside(ctx, run, &b, func(log *segment.Log, files *sparse.Files) error {
		packed, err := log.CheckBlock(ctx, run, b.ID())
		if err != nil {
			return err
		}
		whole, err := files.CheckBlock(ctx, run, b)
		held = held || packed || whole
		return err
	})
	if held && errors.Is(err, check.ErrLeft) {
		err = nil // another directory is out of use, or does not answer
	}
	return held, err
}

// Files implements warmup.Checker.
func (c checker) Files(ctx context.Context, pace warmup.Pace, bad func(file, cause string)) error {
	run := &check.Run{Repair: true, Pace: pace, Found: func(f check.Finding) {
		if f.Kind == check.Refused {
			return // it belongs to somebody else
		}
		cause := f.Cause
		if f.Repaired {
			cause += "; it is mended"
		}
		bad(f.File, cause)
	}}
	err := c.parts.Disk.Inside(ctx, run, nil, func(log *segment.Log, _ *sparse.Files) error { return log.CheckSeals(ctx, run) })
	if errors.Is(err, check.ErrLeft) { // the blocks of such a directory are reported as missing
		err = nil
	}
	if err == nil && c.parts.Small != nil {
		err = c.parts.Small(run)
	}
	return err
}

// Refresh implements warmup.Checker. If a listing's names turn out damaged and are given up, the directory is
// listed again.
func (c checker) Refresh(ctx context.Context, dir uint64, since int64) (err error) {
	for range 3 {
		if err = c.parts.Tree.Refresh(ctx, dir, since); !errors.Is(err, store.ErrRebuilt) {
			break
		}
	}
	return err
}

// Parent implements warmup.Checker.
func (c checker) Parent(ctx context.Context, target string) (warmup.Entry, error) {
	in := strings.TrimRight(target, "/")
	all, err := names(c).Find(ctx, in[:strings.LastIndexByte(in, '/')+1])
	for _, n := range all {
		if n.Dir {
			return n, nil
		}
	}
	if err == nil {
		err = warmup.Unknown(target + ": the directory that it lies in is not there")
	}
	return warmup.Entry{}, err
}

// Changes implements warmup.Checker.
func (c checker) Changes(each func(dir uint64, name string, was func() (warmup.Entry, error))) (cancel func()) {
	return c.parts.Tree.Subscribe(func(x namespace.Change) {
		if x.Old == 0 {
			return
		}
		each(x.Dir, x.Name, func() (warmup.Entry, error) {
			n, err := c.parts.Tree.Node(context.Background(), x.Old)
			return entry(n), err
		})
	})
}
