package volume

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestAFileKeepsItsNumberUntilItIsIdle(t *testing.T) {
	// A file is closed while an operation on it has not come back. Its number is given to no other file meanwhile, which
	// that operation would read or write. What begins later fails, and says that the file is closed.
	name := filepath.Join(t.TempDir(), "volume")
	if err := os.WriteFile(name, make([]byte, pageSize), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := OpenFile(name)
	if err != nil {
		t.Fatal(err)
	}
	err = f.with(func(fd int) error {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		other, err := os.Open(name)
		if err != nil {
			return err
		}
		defer func() { _ = other.Close() }()
		if int(other.Fd()) == fd {
			t.Error("the number is another file's")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	_, read := f.ReadAt(make([]byte, pageSize), 0)
	_, written := f.WriteAt(make([]byte, pageSize), 0)
	for _, err := range []error{read, written, f.Flush(), f.Discard(0, pageSize), f.Close()} {
		if !errors.Is(err, fs.ErrClosed) {
			t.Error(err)
		}
	}
}
