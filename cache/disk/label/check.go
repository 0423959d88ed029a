package label

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/cache/check"
	"github.com/hearthfs/hearth/cache/disk/layout"
)

// Check reads the label of a directory that is the caller's. With repair one that is
// damaged or missing is made anew: its ids are new then, and what it holds stays.
func Check(path string, repair bool, r *check.Run) error {
	r.Files.Add(1)
	name := filepath.Join(path, layout.Home)
	_, err := Read(path)
	switch {
	case err == nil:
	case check.Unreadable(err):
		r.Tell(check.Unread(name, err))
	case errors.Is(err, ErrDamaged), errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.EIO):
		f := check.InFile(check.Damaged, name, -1, err.Error())
		if repair {
			_, err := Write(path, "")
			f.Repaired = err == nil
		}
		r.Tell(f)
	default:
		return fmt.Errorf("check %s: %w", path, err)
	}
	return nil
}
