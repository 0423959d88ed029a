package hearthtest

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// FlipByte changes the bits of mask in the byte of a file at off.
func FlipByte(t testing.TB, name string, off int64, mask byte) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	var b [1]byte
	_, err = f.ReadAt(b[:], off)
	if err == nil {
		b[0] ^= mask
		_, err = f.WriteAt(b[:], off)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatalf("flip a byte of %s: %v", name, err)
	}
}

// OpenFiles returns two functions. limit limits the descriptors of this process to those below n.
// lift ends that, and is to be deferred.
func OpenFiles(t testing.TB) (limit func(n uint64), lift func()) {
	t.Helper()
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	limit = func(n uint64) {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: was.Max}); err != nil {
			t.Fatal(err)
		}
	}
	return limit, func() { limit(was.Cur) }
}
