package sparse

import (
	"io"

	"golang.org/x/sys/unix"
)

// align is what O_DIRECT needs for offsets, lengths and memory on every device.
const align = 4096

func alignUp(n int) int { return (n + align - 1) &^ (align - 1) }

// handle is the pair of descriptors of one object. They are bare numbers: a handle is closed only
// by the goroutine that took it out of its object while nobody held a ref.
type handle struct {
	data, sums int
	direct     bool // data is O_DIRECT
}

func (h *handle) close() {
	if h != nil {
		unix.Close(h.data)
		unix.Close(h.sums)
	}
}

// pread reads up to len(p) bytes and returns fewer only at the end of the file.
func pread(fd int, p []byte, off int64) (int, error) {
	done := 0
	for done < len(p) {
		n, err := unix.Pread(fd, p[done:], off+int64(done))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return done, err
		}
		done += n
		if n == 0 || done%align != 0 {
			break // the end: a direct read could not go on at an odd offset anyway
		}
	}
	return done, nil
}

// descriptor makes a descriptor an io.ReaderAt.
type descriptor int

// ReadAt reads without alignment, so the descriptor must not be O_DIRECT.
func (d descriptor) ReadAt(p []byte, off int64) (int, error) {
	done := 0
	for done < len(p) {
		n, err := unix.Pread(int(d), p[done:], off+int64(done))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return done, err
		}
		if n == 0 {
			return done, io.EOF
		}
		done += n
	}
	return done, nil
}

func pwrite(fd int, p []byte, off int64) error {
	for len(p) > 0 {
		n, err := unix.Pwrite(fd, p, off)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}

// pwritev writes bufs one behind the other, and changes bufs meanwhile.
func pwritev(fd int, bufs [][]byte, off int64) error {
	for len(bufs) > 0 {
		n, err := unix.Pwritev2(fd, bufs, off, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		off += int64(n)
		for len(bufs) > 0 && n >= len(bufs[0]) {
			n -= len(bufs[0])
			bufs = bufs[1:]
		}
		if len(bufs) > 0 {
			bufs[0] = bufs[0][n:]
		}
	}
	return nil
}

// allocated returns the bytes that a file occupies on the device.
func allocated(st *unix.Stat_t) int64 { return st.Blocks * 512 }
