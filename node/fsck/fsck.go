// Package fsck checks cache directories. It reads every block of every file from the device and compares it
// with its checksums. It reads headers, indexes and small files, and compares names with their node ids. It
// names what belongs to nothing.
//
// A directory that a node uses is checked from within the node (Node.Live), through what the node has open.
// So what is written, moved or evicted meanwhile is no damage. If no process uses the directory, the check
// holds its lock (Stopped). Both give the same findings.
//
// With repair each check drops what is bad, and nothing else. Blocks are dropped one by one. Names are set
// aside as a whole, since a single missing name would be a wrong answer. Blocks are then fetched again, and
// names listed again.
package fsck

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/cache/check"
	"github.com/hearthfs/hearth/cache/disk"
	"github.com/hearthfs/hearth/namespace"
	"github.com/hearthfs/hearth/namespace/store"
	"github.com/hearthfs/hearth/node/state"
)

// Node has the parts of a node that are checked.
type Node struct {
	// Disk is its disk tier, which checks what lies in a directory. nil means that there is none.
	Disk interface {
		Check(ctx context.Context, r *check.Run, dir string) error
	}
	// Names is the database of what the node knows of its buckets, even if it is in memory.
	Names *store.Store
}

// Live checks a directory of a node from within the node. It does not repair records of names that are
// wrong, since a kernel knows their node ids.
func (n Node) Live(ctx context.Context, dir string, r *check.Run) error {
	if n.Disk == nil {
		return fmt.Errorf("check %s: this node keeps nothing on disk", dir)
	}
	if where := n.Names.Stats().Dir; strings.HasPrefix(where, dir+"/") {
		if err := n.names(ctx, where, r); err != nil {
			return err
		}
	}
	if err := Small(dir, true, r); err != nil {
		return err
	}
	return n.Disk.Check(ctx, r, dir)
}

func (n Node) names(ctx context.Context, where string, r *check.Run) error {
	bad, failed, err := lookAt(ctx, n.Names.Look(), r)
	if err == nil && failed != nil && !store.Corrupt(failed) {
		err = failed // an error of the node, which may be about to end
	}
	if err != nil {
		return fmt.Errorf("check the names in %s: %w", where, err)
	}
	for _, f := range bad {
		f.Cause += "; stop the node and run hearth fsck --repair"
		r.Tell(f)
	}
	if failed != nil {
		f := check.InFile(check.Damaged, where, -1, failed.Error()+"; the node sets it aside and lists anew once a reader meets this, or now with --repair")
		if r.Repair {
			before := n.Names.Generation()
			_ = records(ctx, n.Names, r, func(_, _ string) {}) // as a reader would: the result is told below
			f.Repaired = n.Names.Generation() != before
		}
		r.Tell(f)
	}
	return nil
}

// lookAt reads all names of a database. bad are records that are not as they should be. failed says why the
// database is not what was written. err is an error that says nothing about the database.
func lookAt(ctx context.Context, look *store.Look, r *check.Run) (bad []check.Finding, failed, err error) {
	failed = namespace.CheckKnown(look)
	if failed == nil {
		failed = look.Verify()
	}
	if failed == nil {
		failed = records(ctx, look, r, func(key, why string) {
			bad = append(bad, check.InFile(check.Damaged, look.Dir, -1, "record "+key+": "+why))
		})
	}
	switch {
	case ctx.Err() != nil:
		return nil, nil, context.Cause(ctx)
	case errors.Is(failed, unix.EMFILE), errors.Is(failed, unix.ENFILE), errors.Is(failed, unix.ENOMEM):
		return nil, nil, failed // a fault of this process, not of the names
	}
	return bad, failed, nil
}

// records checks the names, and calls bad with each record that is not as it should be.
func records(ctx context.Context, db namespace.RecordsDB, r *check.Run, bad func(key, why string)) error {
	r.Files.Add(1)
	return namespace.CheckRecords(ctx, db, bad, func(_, bytes int64) { r.Bytes.Add(bytes) })
}

// Small checks the small files of a directory, and names what is not hearth's. If no process uses the
// directory, it also names what was left over.
func Small(dir string, used bool, r *check.Run) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("check %s: %w", dir, err)
	}
	files := map[string]func([]byte) bool{state.OpenModesFile: state.OpenModesWhole, disk.ScrubFile: disk.ScrubFileWhole, state.NodeIDsFile: state.NodeIDsWhole}
	for _, e := range entries {
		name := filepath.Join(dir, e.Name())
		mend := func() error { return os.Remove(name) }
		if e.Name() == state.NodeIDsFile {
			mend = func() error { return state.RenewNodeIDs(dir) }
		}
		whole, small := files[e.Name()]
		switch ours, temporary := disk.Ours(e.Name()); {
		case !ours, (small || temporary) && !e.Type().IsRegular():
			r.Tell(check.InFile(check.Refused, name, -1, "it is not hearth's: move it away"))
		case temporary && used: // its writer may be about to rename it
		case temporary:
			tell(r, check.InFile(check.Leftover, name, -1, "a process that ended left it behind"), mend)
		case small:
			if err := file(r, name, whole, mend); err != nil {
				return err
			}
		}
	}
	return nil
}

func file(r *check.Run, name string, whole func([]byte) bool, mend func() error) error {
	r.Files.Add(1)
	text, err := os.ReadFile(name)
	r.Bytes.Add(int64(len(text)))
	switch {
	case errors.Is(err, fs.ErrNotExist): // it was removed meanwhile
	case check.Unreadable(err):
		r.Tell(check.Unread(name, err))
	case errors.Is(err, unix.EIO):
		tell(r, check.InFile(check.Damaged, name, -1, err.Error()), mend)
	case err != nil:
		return fmt.Errorf("check: %w", err)
	case !whole(text):
		tell(r, check.InFile(check.Damaged, name, -1, "it is not what was written"), mend)
	}
	return nil
}

func tell(r *check.Run, f check.Finding, mend func() error) {
	f.Repaired = r.Repair && mend() == nil
	r.Tell(f)
}
