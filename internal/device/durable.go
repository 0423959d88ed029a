package device

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// WriteDurably writes a small file atomically: after a crash it is whole or absent.
func WriteDurably(name string, data []byte) error {
	tmp := name + ".tmp"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(tmp, name)
	}
	if err != nil {
		_ = os.Remove(tmp) // err says what is wrong; the next write begins with it
		return err
	}
	return SyncDir(filepath.Dir(name))
}

// SyncDir makes the names in a directory durable.
func SyncDir(name string) error {
	dir, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Mended is called for a file of ours that somebody had harmed and that is in order again: with its
// name, and what was wrong. nil means that nobody wants to know. It must not block.
type Mended func(file string, cause error)

// Tell calls m, unless it is nil.
func (m Mended) Tell(file string, cause error) {
	if m != nil {
		m(file, cause)
	}
}

var (
	errRights = errors.New("its owner had no right to it (chmod), and has it again")
	errKind   = errors.New("something else stood in its place, and was removed")
)

// MakeDir makes a directory of ours. Anything else of that name is removed.
func MakeDir(name string, mended Mended) error {
	if err := ClearWay(name, true, mended); err != nil {
		return err
	}
	if err := os.MkdirAll(name, 0o700); err != nil {
		return fmt.Errorf("make cache directory: %w", err)
	}
	return nil
}

// ClearWay removes an entry that has one of our names and is of another kind. It restores rights
// that somebody took from the owner (chmod 000).
func ClearWay(name string, dir bool, mended Mended) error {
	want := os.FileMode(0o600)
	if dir {
		want = 0o700
	}
	fi, err := os.Lstat(name)
	if err != nil {
		return nil
	}
	if fi.IsDir() == dir && (dir || fi.Mode().IsRegular()) {
		if fi.Mode()&want != want {
			if os.Chmod(name, want) == nil { // a process that is not its owner gets the error when it opens the file
				mended.Tell(name, errRights)
			}
		}
		return nil
	}
	if err := os.RemoveAll(name); err != nil {
		return fmt.Errorf("clear cache directory: %w", err)
	}
	mended.Tell(name, errKind)
	return nil
}

// Reclaim restores the owner's rights of all files below dir. It is for directories whose files are
// opened by other code, which would take an error as final.
func Reclaim(dir string, mended Mended) {
	_ = filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err == nil && (e.IsDir() || e.Type().IsRegular()) {
			_ = ClearWay(name, e.IsDir(), mended)
		}
		return nil
	})
}

// Prove tests whether a disk that failed works again. It writes a small file at name through to the
// device, reads it back and removes it.
func Prove(name string) error {
	defer func() { _ = os.Remove(name) }() // err says what is wrong; the next probe begins with it
	want := []byte(rand.Text())
	if err := WriteDurably(name, want); err != nil {
		return fmt.Errorf("probe cache directory: %w", err)
	}
	got, err := os.ReadFile(name)
	if err != nil {
		return fmt.Errorf("probe cache directory: %w", err)
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("probe cache directory %s: it reads other bytes than were written", filepath.Dir(name))
	}
	return nil
}

// OpenAt is openat(2) of a file of ours. If somebody took its owner's rights (chmod 000), they are
// restored. Mended gets name as it is given.
func OpenAt(dir int, name string, flags int, mode uint32, mended Mended) (int, error) {
	fd, err := unix.Openat(dir, name, flags|unix.O_CLOEXEC, mode)
	if err == unix.EACCES && unix.Fchmodat(dir, name, 0o600, 0) == nil {
		mended.Tell(name, errRights)
		fd, err = unix.Openat(dir, name, flags|unix.O_CLOEXEC, mode)
	}
	return fd, err
}

// FormatError says that a file was written by a newer version of Hearth.
type FormatError struct {
	// File is its path, Format its version, and Known the last version that this program reads.
	File          string
	Format, Known uint32
}

// Error names the file and the cure.
func (e *FormatError) Error() string {
	return fmt.Sprintf("%s has cache format %d, this version of hearth reads up to %d: "+
		"run the newer hearth again, or remove %s to start with an empty cache",
		e.File, e.Format, e.Known, filepath.Dir(e.File))
}

// Usage is the number of bytes allocated by a tree of directories.
func Usage(root string) int64 {
	var sum int64
	_ = filepath.WalkDir(root, func(_ string, e fs.DirEntry, err error) error {
		if err != nil {
			return nil // gone meanwhile: Pebble removes files as it goes
		}
		if fi, err := e.Info(); err == nil {
			if st, ok := fi.Sys().(*syscall.Stat_t); ok {
				sum += st.Blocks * 512
			}
		}
		return nil
	})
	return sum
}
