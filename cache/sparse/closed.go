package sparse

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/check"
	"github.com/hearthfs/hearth/internal/device"
)

// leakMost is how many bytes a file may occupy beyond its blocks, before that is reported. A write
// that was cut short leaves at most an extent, and the next use of the file frees it.
const leakMost = hearth.ExtentBlocks * hearth.BlockSize

// CheckClosed checks a directory that no Files has open; the caller holds its lock. It checks what
// Files.Check does, and FORMAT, names, and halves of pairs. Without r.Repair nothing is changed.
func CheckClosed(ctx context.Context, dir string, r *check.Run) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", dir, err)
	}
	defer unix.Close(fd)
	c := &closed{ctx: ctx, r: r, path: dir, dir: fd, found: map[[16]byte]halves{}, buf: device.Aligned(hearth.BlockSize)}
	if ok, err := c.format(); err != nil || !ok {
		return err
	}
	if c.ask = cannotTell; r.Repair {
		c.ask = asker(fd)
	}
	if err := c.names(); err != nil {
		return err
	}
	versions := slices.SortedFunc(maps.Keys(c.found), func(a, b [16]byte) int { return bytes.Compare(a[:], b[:]) })
	for _, version := range versions {
		x := &object{version: version}
		err := c.object(x)
		if check.Unreadable(err) {
			r.Tell(check.Unread(c.full(x.dataName()), err))
		} else if err != nil {
			return err
		}
	}
	return nil
}

// closed is a check of a directory that nobody has open.
type closed struct {
	ctx   context.Context
	r     *check.Run
	path  string
	dir   int
	found map[[16]byte]halves
	buf   []byte
	ask   func(fd int) readers
}

// tell reports a finding, after its repair if r.Repair is set.
func (c *closed) tell(f check.Finding, mend func() error) {
	f.Repaired = c.r.Repair && f.Kind != check.Refused && mend() == nil
	c.r.Tell(f)
}

func (c *closed) full(name string) string { return filepath.Join(c.path, name) }

// format checks FORMAT; ok is false if a newer version wrote the directory.
func (c *closed) format() (ok bool, err error) {
	name := c.full(formatName)
	text, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil // made by the next start
	}
	var format uint32
	var sum uint64
	_, bad := fmt.Sscanf(string(text), formatLine, &format, &sum)
	switch {
	case check.Unreadable(err):
		c.r.Tell(check.Unread(name, err))
	case err != nil && !damage(err):
		return false, fmt.Errorf("check: %w", err)
	case err != nil, bad != nil, string(text) != formatText(format), format == 0:
		c.tell(check.InFile(check.Damaged, name, 0, "it is not what was written"), func() error { return checkFormat(c.path, nil) })
	case format > formatVersion:
		c.tell(check.InFile(check.Refused, name, 0, newer(name, format).Error()), nil)
		return false, nil
	}
	c.r.Files.Add(1)
	return true, nil
}

func (c *closed) names() error {
	entries, err := os.ReadDir(c.path)
	if err != nil {
		return fmt.Errorf("list %s: %w", c.path, err)
	}
	for _, e := range entries {
		name := e.Name()
		version, data, ours := parseName(name)
		remove := func() error { return os.Remove(c.full(name)) } // a directory with content stays
		switch {
		case ours && e.Type().IsRegular():
			h := c.found[version]
			h.data, h.sums = h.data || data, h.sums || !data
			c.found[version] = h
		case ours:
			c.tell(check.InFile(check.Damaged, c.full(name), -1, "it stands where a file of ours belongs"), remove)
		case name == formatName+".tmp":
			c.tell(check.InFile(check.Leftover, c.full(name), -1, "a process that ended left it behind"), remove)
		case name != formatName:
			c.tell(check.InFile(check.Refused, c.full(name), -1, "it is not hearth's: move it away"), nil)
		}
	}
	return nil
}

// object checks a pair of files.
func (c *closed) object(x *object) error {
	c.r.Files.Add(1)
	h := c.found[x.version]
	give := func() error { // both halves, or the one that there is
		for _, name := range []string{x.dataName(), x.sumsName()} {
			if err := unix.Unlinkat(c.dir, name, 0); err != nil && err != unix.ENOENT {
				return err
			}
		}
		return nil
	}
	switch {
	case !h.sums:
		c.tell(check.InFile(check.Leftover, c.full(x.dataName()), -1, "its checksums are missing"), give)
		return nil
	case !h.data:
		c.tell(check.InFile(check.Leftover, c.full(x.sumsName()), -1, "its data file is missing"), give)
		return nil
	}
	f := &Files{dir: c.dir, opt: Options{Dir: c.path}}
	err := f.headerOf(x)
	if errors.As(err, new(*FormatError)) {
		c.tell(check.InFile(check.Refused, c.full(x.sumsName()), 0, err.Error()), nil)
		return nil
	}
	if damage(err) {
		c.tell(check.InFile(check.Damaged, c.full(x.sumsName()), 0, err.Error()), give)
		return nil
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", c.full(x.sumsName()), err)
	}
	text, err := readPages(c.dir, x.sumsName(), 0, headerSize)
	if err != nil {
		return fmt.Errorf("read %s: %w", c.full(x.sumsName()), err)
	}
	head, err := decodeHeader(text)
	if err != nil {
		return fmt.Errorf("read %s: %w", c.full(x.sumsName()), err)
	}
	return c.pair(x, head.size, give)
}

// pair opens both files, for reading only without repair. Readers of a mount may outlive its node:
// a file that they have open is removed only by unlink.
func (c *closed) pair(x *object, size int64, give func() error) error {
	access := unix.O_RDONLY
	if c.r.Repair {
		access = unix.O_RDWR
	}
	open := func(name string) (*os.File, error) {
		fd, err := unix.Openat(c.dir, name, access|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("open %s: %w", c.full(name), err)
		}
		return os.NewFile(uintptr(fd), c.full(name)), nil
	}
	data, err := open(x.dataName())
	if err != nil {
		return err
	}
	defer func() { _ = data.Close() }() // repairs in it are synced
	sums, err := open(x.sumsName())
	if err != nil {
		return err
	}
	defer func() { _ = sums.Close() }() // repairs in it are synced
	x.lent = c.r.Repair && c.ask(int(data.Fd())) != noReaders
	st, err := stat(data)
	if err != nil {
		return err
	}
	if st.Size != size {
		kind := check.Damaged
		if st.Size == 0 {
			kind = check.Leftover // made, but never written
		}
		c.tell(check.InFile(kind, data.Name(), -1, fmt.Sprintf("it has %d bytes, its object %d", st.Size, size)),
			func() error {
				if x.lent {
					return give()
				}
				return data.Truncate(size)
			})
		if x.lent {
			return nil
		}
	}
	x.size = size
	held, known, err := c.blocks(x, data, sums)
	if err != nil || !known {
		return err
	}
	if len(held) == 0 && c.r.Repair {
		return give() // nothing is left in it
	}
	return c.leak(x, held, data)
}

func stat(f *os.File) (st unix.Stat_t, err error) {
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return st, fmt.Errorf("stat %s: %w", f.Name(), err)
	}
	return st, nil
}

// blocks checks each record and its block. held are the blocks that stay, right or not. known means
// that no others have a record.
func (c *closed) blocks(x *object, data, sidecar *os.File) (held map[int64]bool, known bool, err error) {
	const batch = 448
	held, known = map[int64]bool{}, true
	for first := int64(0); first < x.blocks(); first += batch {
		text, err := readPages(c.dir, x.sumsName(), recordOffset(first), batch*recordSize)
		if err != nil && !damage(err) {
			return nil, false, fmt.Errorf("read %s: %w", sidecar.Name(), err)
		}
		if err != nil {
			c.tell(check.InFile(check.Damaged, sidecar.Name(), recordOffset(first), err.Error()), func() error { return err })
			known = false
			continue
		}
		for i := range min(int64(len(text)/recordSize), x.blocks()-first) {
			record := text[i*recordSize:][:recordSize]
			if check.Zero(record) {
				continue
			}
			stays, err := c.block(x, first+i, record, data, sidecar)
			if err != nil {
				return nil, false, err
			}
			if stays {
				held[first+i] = true
			}
		}
	}
	return held, known, nil
}

// block checks a block that has a record. stays is false if its record was cleared.
func (c *closed) block(x *object, index int64, record []byte, data, sidecar *os.File) (stays bool, err error) {
	stays = true
	forget := func() error { // the record first: it must never stand for a hole
		var none [recordSize]byte
		if err := pwrite(int(sidecar.Fd()), none[:], recordOffset(index)); err != nil {
			return err
		}
		if x.lent {
			stays = false
			return nil
		}
		err := punchRange(int(data.Fd()), index*hearth.BlockSize, hearth.BlockSize)
		stays = err != nil
		return err
	}
	var want sums
	if !decodeRecord(record, x.id(index), &want) {
		f := check.InBlock(sidecar.Name(), recordOffset(index), x.version, index, fmt.Errorf("its record: %w", errDamaged))
		c.tell(f, forget)
		return stays, nil
	}
	n := x.blockLen(index)
	if err := c.r.Read(c.ctx, int64(n)); err != nil {
		return true, err
	}
	c.r.Blocks.Add(1)
	c.r.Bytes.Add(int64(n))
	got, err := readPast(c.dir, x.dataName(), c.buf[:alignUp(n)], index*hearth.BlockSize)
	switch {
	case err == nil && got < n:
		err = errors.New("the file ends before it does")
	case err == nil && !matches(c.buf[:n], want[:]):
		err = fmt.Errorf("its bytes: %w", errDamaged)
	case err != nil && !damage(err):
		return false, fmt.Errorf("read %s: %w", data.Name(), err)
	}
	if err != nil {
		c.tell(check.InBlock(data.Name(), index*hearth.BlockSize, x.version, index, err), forget)
	}
	return stays, nil
}

// leak looks for bytes that have no record.
func (c *closed) leak(x *object, held map[int64]bool, data *os.File) error {
	st, err := stat(data) // again: bad blocks were freed
	if err != nil {
		return err
	}
	leaked := allocated(&st) - int64(len(held))*hearth.BlockSize
	if leaked <= leakMost {
		return nil
	}
	c.tell(check.InFile(check.Leftover, data.Name(), -1, fmt.Sprintf("%d bytes of it are no block's and were not given back", leaked)), func() error {
		if x.lent {
			return ErrLent // the next use of the file frees them, once its readers are gone
		}
		for i := range x.blocks() {
			if !held[i] {
				if err := punchRange(int(data.Fd()), i*hearth.BlockSize, hearth.BlockSize); err != nil {
					return err
				}
			}
		}
		return nil
	})
	return nil
}

// punchRange makes a hole. It is no error if the file system cannot.
func punchRange(fd int, off, n int64) error {
	const mode = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	for {
		err := unix.Fallocate(fd, mode, off, n)
		if err == unix.EOPNOTSUPP {
			return nil
		}
		if err != unix.EINTR {
			return err
		}
	}
}
