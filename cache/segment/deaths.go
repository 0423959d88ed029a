package segment

import (
	"encoding/binary"
	"errors"
	"sync"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/cache/record"
	"github.com/hearthfs/hearth/internal/device"
)

const (
	deathsName = "deaths"
	deathsTemp = "deaths.tmp"
	deathSize  = 16 // segment number 4, unit 4, XXH3 of these seeded with the segment's salt
	// pruneFrom is the size in bytes below which tombstones of removed segments are left in the
	// file.
	pruneFrom = 1 << 20
)

var errDeaths = errors.New("it is not what was written, and begun anew: what it said was evicted may be held again")

// deaths is the file of tombstones of evicted records in segments that still exist. It is written
// through the page cache and synced by Sync only. After kill -9 it is whole. After a power loss an
// evicted block may be found again, which harms nobody.
type deaths struct {
	dir *directory

	mu     sync.Mutex // guards the rest; held across 16-byte writes into the page cache
	file   *file
	size   int64
	pruned int64 // size after the last pruning
	// owed are tombstones that could not be written; they are written before the next ones. On a
	// full file system the punches before that make room for them.
	owed []byte
}

// mostOwed bounds the bytes of owed tombstones; the last ones are kept. Without the others the next
// Open finds evicted blocks again, which are misses where their pages are zero.
const mostOwed = 64 << 10

// death is one tombstone. check proves that it is about this very segment, not about an earlier one
// of the same number.
type death struct {
	number, unit uint32
	check        uint64
}

func newDeath(number, unit uint32, salt uint64) death {
	var b [8]byte
	binary.LittleEndian.PutUint32(b[:], number)
	binary.LittleEndian.PutUint32(b[4:], unit)
	return death{number, unit, xxh3.HashSeed(b[:], salt)}
}

func appendDeath(dst []byte, d death) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, d.number)
	dst = binary.LittleEndian.AppendUint32(dst, d.unit)
	return binary.LittleEndian.AppendUint64(dst, d.check)
}

func parseDeath(b []byte) death {
	return death{binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:]), binary.LittleEndian.Uint64(b[8:])}
}

// load opens the file and returns its tombstones by segment, only for segments of known numbers. A
// damaged file is replaced by an empty one.
func (d *deaths) load(known func(number uint32) bool) (map[uint32][]death, error) {
	f, err := d.dir.Open(deathsName, unix.O_CREAT, false)
	if err != nil {
		return nil, err
	}
	d.file = f
	size, _, err := f.Stat()
	if err != nil {
		return nil, err
	}
	text := make([]byte, size)
	if err := f.ReadAt(text, 0); err != nil {
		return nil, err
	}
	s, ok := parseSeal(text, deathsMagic)
	if ok && s.format > Format {
		return nil, newer(d.dir, deathsName, s.format)
	}
	if !ok {
		if size > 0 {
			d.dir.Mended.Tell(d.dir.Full(deathsName), errDeaths)
		}
		return nil, d.rewrite(nil)
	}
	notes, kept := deathsIn(text[sealSize:], known)
	// A torn tombstone at the end is overwritten by the next one.
	d.size = sealSize + (size-sealSize)/deathSize*deathSize
	d.pruned = sealSize + kept
	return notes, nil
}

// deathsIn returns the tombstones in text for segments of known numbers, and their bytes.
func deathsIn(text []byte, known func(number uint32) bool) (notes map[uint32][]death, bytes int64) {
	notes = map[uint32][]death{}
	for ; len(text) >= deathSize; text = text[deathSize:] {
		if n := parseDeath(text); known(n.number) {
			notes[n.number] = append(notes[n.number], n)
			bytes += deathSize
		}
	}
	return notes, bytes
}

// about reads the tombstones for segments of known numbers.
func (d *deaths) about(known func(number uint32) bool) (map[uint32][]death, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	text, err := d.textLocked()
	if err != nil {
		return nil, err
	}
	notes, _ := deathsIn(text, known)
	return notes, nil
}

// textLocked reads all tombstones, the owed ones last.
func (d *deaths) textLocked() ([]byte, error) {
	text := make([]byte, d.size-sealSize, d.size-sealSize+int64(len(d.owed)))
	err := d.file.ReadAt(text, sealSize)
	return append(text, d.owed...), err
}

// add appends the tombstone of a record.
func (d *deaths) add(number, unit uint32, salt uint64) error {
	return d.addAll(number, []uint32{unit}, salt)
}

// addAll appends the tombstones of records of a segment. Those that cannot be written are owed. On
// a full file system that is no error: eviction there must not wait for room.
func (d *deaths) addAll(number uint32, units []uint32, salt uint64) error {
	var b [deathSize]byte
	text := b[:0]
	for _, unit := range units {
		text = appendDeath(text, newDeath(number, unit, salt))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.owed) > 0 {
		text = append(d.owed, text...)
	}
	return d.writeLocked(text)
}

// writeLocked appends tombstones to the file; the owed ones are among them.
func (d *deaths) writeLocked(text []byte) error {
	err := d.file.WriteAt(text, d.size)
	if err == nil {
		d.size += int64(len(text))
		d.owed = nil
		return nil
	}
	d.owed = append([]byte(nil), text[max(0, len(text)-mostOwed):]...)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return nil
	}
	return err
}

// payLocked writes the owed tombstones.
func (d *deaths) payLocked() error {
	if len(d.owed) == 0 {
		return nil
	}
	return d.writeLocked(d.owed)
}

// due reports whether pruning pays: the file has doubled since the last time.
func (d *deaths) due() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.size > pruneFrom && d.size > 2*d.pruned
}

// prune removes the tombstones of segments that are gone.
func (d *deaths) prune(known func(number uint32) bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	text, err := d.textLocked()
	if err != nil {
		return err
	}
	kept := text[:0]
	for at := 0; at < len(text); at += deathSize {
		if n := parseDeath(text[at:]); known(n.number) {
			kept = appendDeath(kept, n)
		}
	}
	return d.rewriteLocked(kept)
}

func (d *deaths) rewrite(notes []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rewriteLocked(notes)
}

// rewriteLocked replaces the file by one with these tombstones, by a rename: after kill -9 the next
// Open finds one or the other. It is not synced: a file that a power loss left empty is begun anew.
func (d *deaths) rewriteLocked(notes []byte) error {
	text := make([]byte, sealSize, sealSize+len(notes))
	putSeal(text, deathsMagic, seal{format: Format})
	text = append(text, notes...)
	f, err := d.dir.Open(deathsTemp, unix.O_CREAT|unix.O_TRUNC, false)
	if err != nil {
		return err
	}
	if err = f.WriteAt(text, 0); err == nil {
		err = d.dir.Rename(deathsTemp, deathsName)
	}
	if err != nil {
		f.Close()
		return err
	}
	if d.file != nil {
		d.file.Close()
	}
	f.Name = deathsName
	d.file, d.size, d.pruned, d.owed = f, int64(len(text)), int64(len(text)), nil
	return nil
}

// bytes returns the size of the file on disk.
func (d *deaths) bytes() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return record.RoundUp(d.size, record.PageSize)
}

func (d *deaths) sync() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return errors.Join(d.payLocked(), d.file.Sync())
}

func (d *deaths) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.file != nil {
		_ = d.payLocked() // without them, the last evicted blocks are misses all the same
		d.file.Close()
		d.file = nil
	}
}

func newer(d *directory, name string, format uint32) error {
	return &device.FormatError{File: d.Full(name), Format: format, Known: Format}
}
