package direct

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

// WriteDurably writes a small file so that after a crash it is whole or absent.
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
		os.Remove(tmp)
		return err
	}
	dir, err := os.Open(filepath.Dir(name))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// MakeDir makes a directory of ours, in the place of whatever else has its name.
func MakeDir(name string) error {
	if err := ClearWay(name, true); err != nil {
		return err
	}
	if err := os.MkdirAll(name, 0o700); err != nil {
		return fmt.Errorf("make cache directory: %w", err)
	}
	return nil
}

// ClearWay removes what stands under one of our names and is not of its kind, and
// gives back what rights somebody took from its owner (chmod 000).
func ClearWay(name string, dir bool) error {
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
			_ = os.Chmod(name, want) // who is not its owner will hear of it when it is opened
		}
		return nil
	}
	if err := os.RemoveAll(name); err != nil {
		return fmt.Errorf("clear cache directory: %w", err)
	}
	return nil
}

// Reclaim gives the owner of the files below dir back what rights somebody took: for
// directories whose files others open, and who hold an error for a verdict.
func Reclaim(dir string) {
	_ = filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err == nil && (e.IsDir() || e.Type().IsRegular()) {
			_ = ClearWay(name, e.IsDir())
		}
		return nil
	})
}

// Prove writes a small file at name through to the device, reads it back and removes
// it: whether a disk that failed is well again.
func Prove(name string) error {
	defer os.Remove(name)
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

// OpenAt is openat(2) of a file of ours: one that somebody took its owner's rights
// from (chmod 000) gets them back.
func OpenAt(dir int, name string, flags int, mode uint32) (int, error) {
	fd, err := unix.Openat(dir, name, flags|unix.O_CLOEXEC, mode)
	if err == unix.EACCES && unix.Fchmodat(dir, name, 0o600, 0) == nil {
		fd, err = unix.Openat(dir, name, flags|unix.O_CLOEXEC, mode)
	}
	return fd, err
}

// FormatError says that a file was written by a newer version of Hearth.
type FormatError struct {
	// File is its path, Format the version that it has, Known the last one that this
	// program reads.
	File          string
	Format, Known uint32
}

// Error names the file and the cure.
func (e *FormatError) Error() string {
	return fmt.Sprintf("%s has cache format %d, this version of hearth reads up to %d: "+
		"run the newer hearth again, or remove %s to start with an empty cache",
		e.File, e.Format, e.Known, filepath.Dir(e.File))
}

// Usage is what a tree of directories has allocated, in bytes.
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
