package sparse

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/check"
	"github.com/hearthfs/hearth/internal/device"
)

// Check reads each held block of the objects from version on and compares it with its record. It
// also checks every record and sidecar header. What writers and eviction do meanwhile is not
// damage. With r.Repair a bad block is dropped, as by a reader, and an object without a readable
// sidecar as a whole. passed, if not nil, is called for each object that is done. Unindexed objects
// are not checked: r.Unindexed counts their blocks.
func (f *Files) Check(ctx context.Context, r *check.Run, from [16]byte, passed func(version [16]byte)) error {
	f.mu.Lock()
	due := make([][16]byte, 0, len(f.objects))
	for version := range f.objects {
		if bytes.Compare(version[:], from[:]) >= 0 {
			due = append(due, version)
		}
	}
	r.Unindexed.Add(f.unindexed.bytes / hearth.BlockSize)
	f.mu.Unlock()
	slices.SortFunc(due, func(a, b [16]byte) int { return bytes.Compare(a[:], b[:]) })
	for _, version := range due {
		r.Files.Add(1)
		err := f.checkObject(ctx, r, version)
		if check.Unreadable(err) {
			x := &object{version: version}
			r.Tell(check.Unread(f.path(x.dataName()), err))
		} else if err != nil {
			return err
		}
		if passed != nil {
			passed(version)
		}
	}
	return nil
}

func (f *Files) checkObject(ctx context.Context, r *check.Run, version [16]byte) error {
	if err := r.Read(ctx, headerSize); err != nil {
		return err
	}
	var bad *check.Finding
	var there bool
	var failed error
	if err := r.Do(func() { there, bad, failed = f.checkHeader(r, version) }, nil); err != nil {
		return err
	}
	if bad != nil {
		r.Tell(*bad)
	}
	if failed != nil || !there {
		return failed
	}
	for index := int64(0); ; index++ {
		s := &blockCheck{files: f, r: r, index: index}
		if err := s.run(ctx, version); err != nil || s.done {
			return err
		}
	}
}

// damage reports whether an error means that bytes are not what was written, or that the device
// cannot read them.
func damage(err error) bool { return errors.Is(err, errDamaged) || errors.Is(err, unix.EIO) }

// checkHeader reads a sidecar's header, and a bad one twice: it may just be being made. there means
// that it is good, so that the blocks are worth a check.
func (f *Files) checkHeader(r *check.Run, version [16]byte) (there bool, bad *check.Finding, err error) {
	x := &object{version: version}
	var cause error
	for range 2 {
		if cause = f.headerOf(x); cause == nil {
			return true, nil, nil
		}
		if errors.Is(cause, unix.ENOENT) { // not yet made, or removed by hand
			return false, nil, nil
		}
		if !f.stands(version) {
			return false, nil, nil
		}
	}
	var newer *FormatError
	name := f.path(x.sumsName())
	finding := check.InFile(check.Damaged, name, 0, cause.Error())
	switch {
	case errors.As(cause, &newer):
		finding.Kind = check.Refused
	case !damage(cause):
		return false, nil, fmt.Errorf("read %s: %w", name, cause)
	case r.Repair:
		f.EvictObject(version)
		f.noteDamage(x.sumsName(), -1, cause, 1)
		f.mu.Lock()
		present := f.objects[version]
		finding.Repaired = present == nil || present.doomed // unlinked as soon as nobody reads it
		f.mu.Unlock()
	}
	return false, &finding, nil
}

func (f *Files) headerOf(x *object) error {
	buf, err := readPages(f.dir, x.sumsName(), 0, headerSize)
	if err != nil {
		return err
	}
	h, err := decodeHeader(buf)
	switch {
	case err != nil:
		return err
	case h.format > formatVersion:
		return newer(f.path(x.sumsName()), h.format)
	case h.version != x.version:
		return fmt.Errorf("sidecar of another object: %w", errDamaged)
	}
	return nil
}

// readPages reads n bytes at off of a file below dir, past the page cache if possible. It returns
// fewer at the file's end.
func readPages(dir int, name string, off int64, n int) ([]byte, error) {
	from := off &^ (align - 1)
	buf := device.Aligned(alignUp(int(off-from) + n))
	got, err := readPast(dir, name, buf, from)
	if err != nil {
		return nil, err
	}
	return buf[min(int(off-from), got):min(int(off-from)+n, got)], nil
}

func readPast(dir int, name string, buf []byte, off int64) (int, error) {
	const flags = unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	for _, past := range []int{unix.O_DIRECT, 0} {
		fd, err := unix.Openat(dir, name, flags|past, 0)
		if err == unix.EINVAL && past != 0 {
			continue
		}
		if err != nil {
			return 0, err
		}
		if past == 0 {
			_ = unix.Fadvise(fd, off, int64(len(buf)), unix.FADV_DONTNEED)
		}
		got, err := pread(fd, buf, off)
		unix.Close(fd)
		if err != unix.EINVAL || past == 0 {
			return got, err
		}
	}
	return 0, unix.EINVAL
}

// blockCheck is the check of one block. It holds its object only while it runs.
type blockCheck struct {
	files *Files
	r     *check.Run
	index int64
	done  bool  // there is no such block
	read  int64 // bytes that were compared
}

func (s *blockCheck) run(ctx context.Context, version [16]byte) error {
	if err := s.r.Read(ctx, recordSize); err != nil {
		return err
	}
	v, err := s.files.opt.Alloc(ctx, hearth.BlockSize)
	if err != nil {
		return err
	}
	var bad *check.Finding
	var failed error
	done, read := false, int64(0)
	if err := s.r.Do(func() {
		defer v.Release()
		x, err := s.files.acquire(ctx, version)
		if done = errors.Is(err, hearth.ErrMiss); err != nil {
			failed = err
			return
		}
		defer s.files.unpin(x)
		if done = s.index >= x.blocks(); !done {
			bad, read, failed = s.look(x, v.Bytes())
		}
	}, v.Release); err != nil {
		return err
	}
	s.done, s.read = done, read
	if failed != nil && !done {
		return failed
	}
	if bad != nil {
		s.r.Tell(*bad)
	}
	if read == 0 {
		return nil
	}
	s.r.Blocks.Add(1)
	s.r.Bytes.Add(read)
	return s.r.Read(ctx, read) // what was a hole costs no time
}

const (
	// busyWait is a short wait for a writer in a block's extent. busyTries is how many of them a
	// check allows: two seconds in all.
	busyWait  = 20 * time.Millisecond
	busyTries = 100
)

// CheckBlock reads one block, if it is held, and compares it with its record as Check does. held
// means that the block is there, or was and is damaged, which is reported. With the first block of
// an extent it also checks the names and the header of the object's files.
func (f *Files) CheckBlock(ctx context.Context, r *check.Run, b hearth.Block) (held bool, err error) {
	version := b.Object.Version
	if !f.stands(version) {
		return false, nil
	}
	told := r.Bad.Load()
	if b.Index%hearth.ExtentBlocks == 0 {
		if err := f.checkFiles(ctx, r, version); err != nil || r.Bad.Load() > told {
			return true, err
		}
	}
	for range busyTries {
		if err := r.Do(func() { held = f.Has(b.ID()) }, nil); err != nil {
			return false, err
		}
		s := &blockCheck{files: f, r: r, index: b.Index}
		err := s.run(ctx, version)
		switch {
		case err != nil, r.Bad.Load() > told, s.read > 0:
			return true, err
		case !held, s.done:
			return false, nil
		}
		select {
		case <-time.After(busyWait):
		case <-ctx.Done():
			return true, context.Cause(ctx)
		}
	}
	return true, fmt.Errorf("check block %d of %s: %w", b.Index, f.path((&object{version: version}).dataName()), ErrBusy)
}

// stands reports whether an object is held, and not being removed.
func (f *Files) stands(version [16]byte) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	x := f.objects[version]
	return x != nil && !x.unmade && !x.reaping && !x.doomed && !f.closed
}

// checkFiles reports an object whose sidecar is not its own, or whose files lost their names. The
// blocks of such an object are gone at the next start.
func (f *Files) checkFiles(ctx context.Context, r *check.Run, version [16]byte) error {
	if err := r.Read(ctx, headerSize); err != nil {
		return err
	}
	x := &object{version: version}
	var bad *check.Finding
	var failed error
	err := r.Do(func() {
		for _, name := range []string{x.dataName(), x.sumsName()} {
			var st unix.Stat_t
			if unix.Fstatat(f.dir, name, &st, unix.AT_SYMLINK_NOFOLLOW) != unix.ENOENT || !f.stands(version) {
				continue
			}
			lost := check.InFile(check.Damaged, f.path(name), -1, "it was removed: what is held of its object is gone at the next start")
			if r.Repair {
				f.EvictObject(version)
				lost.Repaired = true
			}
			bad = &lost
			return
		}
		_, bad, failed = f.checkHeader(r, version)
	}, nil)
	if err == nil && bad != nil {
		r.Tell(*bad)
	}
	return errors.Join(err, failed)
}

// seen is the index entry of a block, and whether its extent is being written or punched.
type seen struct {
	held, busy bool
	holes      uint64
}

func (s *blockCheck) seen(x *object) seen {
	s.files.mu.Lock()
	defer s.files.mu.Unlock()
	return seen{x.holds(s.index), x.extents[s.index/hearth.ExtentBlocks].writers != 0, x.holes}
}

// look reads the block's record and bytes. bad is damage that was there while nobody changed the
// object; an error says nothing about the block.
func (s *blockCheck) look(x *object, buf []byte) (bad *check.Finding, read int64, err error) {
	f := s.files
	before := s.seen(x)
	if before.busy {
		return nil, 0, nil
	}
	cause, name, off := s.verify(x, before.held, buf)
	if before.held {
		read = int64(x.blockLen(s.index))
	}
	if cause == nil {
		if before.held && x.handle.direct {
			f.vouch(x, s.index, before.holes)
		}
		return nil, read, nil
	}
	if s.seen(x) != before {
		return nil, read, nil
	}
	if !damage(cause) {
		return nil, read, fmt.Errorf("read %s: %w", f.path(name), cause)
	}
	finding := check.InBlock(f.path(name), off, x.version, s.index, cause)
	switch {
	case !s.r.Repair:
	case before.held:
		_ = f.lose(x, s.index, before.holes, cause) // it is reported here
		finding.Repaired = s.gone(x)
	default:
		finding.Repaired = s.clear(x)
	}
	return &finding, read, nil
}

// verify says what is wrong with a block, and where.
//
//lint:ignore ST1008 the cause is what is found, not how the call went
func (s *blockCheck) verify(x *object, held bool, buf []byte) (cause error, name string, off int64) {
	f, at := s.files, recordOffset(s.index)
	text, err := readPages(f.dir, x.sumsName(), at, recordSize)
	var want sums
	switch {
	case err != nil:
		return err, x.sumsName(), at
	case len(text) < recordSize && held, len(text) == recordSize && held && !decodeRecord(text, x.id(s.index), &want):
		return fmt.Errorf("its record: %w", errDamaged), x.sumsName(), at
	case !held && len(text) == recordSize && !check.Zero(text) && !decodeRecord(text, x.id(s.index), &want):
		return fmt.Errorf("record of a block that is not held: %w", errDamaged), x.sumsName(), at
	case !held:
		return nil, "", 0
	}
	n, start := x.blockLen(s.index), s.index*hearth.BlockSize
	if !x.handle.direct {
		_ = unix.Fadvise(x.handle.data, start, int64(n), unix.FADV_DONTNEED)
		s.r.Buffered.Add(1)
	}
	direct, err := f.readData(x, buf[:alignUp(n)], start, n)
	if !direct {
		_ = unix.Fadvise(x.handle.data, start, int64(n), unix.FADV_DONTNEED)
	}
	if err == nil && !matches(buf[:n], want[:]) {
		err = fmt.Errorf("its bytes: %w", errDamaged)
	}
	return err, x.dataName(), start
}

// gone reports that the next start does not find a lost block again. Its bytes may stay, but its
// record does not.
func (s *blockCheck) gone(x *object) bool {
	text, err := readPages(s.files.dir, x.sumsName(), recordOffset(s.index), recordSize)
	return err == nil && check.Zero(text) || s.seen(x).held // written again meanwhile
}

// clear zeroes the record of a block that is not held.
func (s *blockCheck) clear(x *object) bool {
	f := s.files
	e := &x.extents[s.index/hearth.ExtentBlocks]
	f.mu.Lock()
	free := e.writers == 0 && !x.holds(s.index)
	if free {
		e.writers = punching
	}
	who := f.readersLocked(x)
	f.mu.Unlock()
	if !free {
		return false
	}
	f.punch(x, run{first: s.index, n: 1}, who)
	f.mu.Lock()
	e.writers = 0
	f.mu.Unlock()
	return true
}
