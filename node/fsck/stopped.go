package fsck

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/check"
	"github.com/hearthfs/hearth/cache/disk"
	"github.com/hearthfs/hearth/cache/segment"
	"github.com/hearthfs/hearth/cache/sparse"
	"github.com/hearthfs/hearth/namespace"
	"github.com/hearthfs/hearth/namespace/store"
)

// Stopped checks a directory that no process uses. The error disk.ErrInUse means that one does.
func Stopped(ctx context.Context, dir string, r *check.Run) error {
	release, err := disk.Own(dir)
	if err != nil {
		return err
	}
	defer release()
	if err := disk.CheckLabel(dir, r.Repair, r); err != nil {
		return err
	}
	if err := Small(dir, false, r); err != nil {
		return err
	}
	if err := checkNames(ctx, dir, r); err != nil {
		return err
	}
	// The index of a directory that is opened for repair must find room. Otherwise sound blocks would be
	// left out of it.
	pool := hearth.NewPool(1 << 50)
	segments, objects := filepath.Join(dir, "segments"), filepath.Join(dir, "objects")
	return errors.Join(
		area(segments, r, func() error {
			return segment.CheckClosed(ctx, segment.Options{Dir: segments, Pool: pool}, r)
		}),
		area(objects, r, func() error { return sparse.CheckClosed(ctx, objects, r) }))
}

// area calls do if dir is a directory. A missing one is made at the next start.
func area(dir string, r *check.Run, do func() error) error {
	fi, err := os.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && !fi.IsDir() {
		tell(r, check.InFile(check.Damaged, dir, -1, "it stands where a directory of ours belongs"), func() error { return os.Remove(dir) })
		return nil
	}
	return do()
}

// checkNames checks the names. With repair it sets aside names that are not to be believed.
func checkNames(ctx context.Context, dir string, r *check.Run) error {
	where := filepath.Join(dir, disk.NamesDir)
	if !namespace.Kept(where) {
		return nil
	}
	dropPages(where)
	var bad []check.Finding
	look, err := store.OpenLook(where)
	if err == nil {
		where = look.Dir
		var failed error
		bad, failed, err = lookAt(ctx, look, r)
		_ = look.Close() // it was only read
		if err != nil {
			return err
		}
		err = failed
	}
	if errors.Is(err, store.ErrNewer) {
		r.Tell(check.InFile(check.Refused, where, -1, err.Error()))
		return nil
	}
	switch {
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOMEM):
		return err // of this process, not of the names
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		r.Tell(check.Unread(where, err))
		return nil
	case errors.Is(err, store.ErrUnmade):
		bad = append(bad, check.InFile(check.Leftover, where, -1, store.ErrUnmade.Error()))
	case err != nil:
		bad = append(bad, check.InFile(check.Damaged, where, -1, err.Error()))
	}
	repaired := r.Repair && len(bad) > 0 && store.SetAside(where) == nil
	for _, f := range bad {
		f.Repaired = repaired
		r.Tell(f)
	}
	return nil
}

// dropPages drops the files below a directory from the page cache, so that they are read from the device.
func dropPages(dir string) {
	files, _ := filepath.Glob(filepath.Join(dir, "*"))
	for _, name := range files {
		if f, err := os.Open(name); err == nil {
			_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
			_ = f.Close() // it was only read
		}
	}
}
