package segment

import (
	"encoding/binary"
	"errors"
	"sync"

	"github.com/hearthfs/hearth/cache/direct"
	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"
)

const (
	deathsName = "deaths"
	deathsTemp = "deaths.tmp"
	deathSize  = 16 // segment number 4, unit 4, XXH3 of these seeded with the segment's salt
	// pruneFrom is the size in bytes below which nobody minds notes about
	// segments that are gone.
	pruneFrom = 1 << 20
)

var errDeaths = errors.New("it is not what was written, and begun anew: what it said was evicted may be held again")

// deaths is the file of evicted records of segments that still exist. It is
// written through the page cache and synced by Sync only: after kill -9 it is whole,
// after a power loss a dead block may be found again, which harms nobody.
type deaths struct {
	dir *directory

	mu     sync.Mutex // guards the rest; held across 16-byte writes into the page cache
	file   *file
	size   int64
	pruned int64 // size after the last pruning
}

// death is one note; check proves that it is about this very segment and not
// about an earlier one of the same number.
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

// load opens the file and returns its notes by segment, those that do not belong
// to a segment of known numbers left out. A damaged file is begun anew.
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
	// A torn note at the end is overwritten by the next one.
	d.size = sealSize + (size-sealSize)/deathSize*deathSize
	d.pruned = sealSize + kept
	return notes, nil
}

// deathsIn are the notes about segments of known numbers by these, and their bytes.
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

// about reads the notes about segments of known numbers.
func (d *deaths) about(known func(number uint32) bool) (map[uint32][]death, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	text := make([]byte, d.size-sealSize)
	if err := d.file.ReadAt(text, sealSize); err != nil {
		return nil, err
	}
	notes, _ := deathsIn(text, known)
	return notes, nil
}

// add notes that a record died.
func (d *deaths) add(number, unit uint32, salt uint64) error {
	return d.addAll(number, []uint32{unit}, salt)
}

// addAll notes that records of a segment died.
func (d *deaths) addAll(number uint32, units []uint32, salt uint64) error {
	var b [deathSize]byte
	text := b[:0]
	for _, unit := range units {
		text = appendDeath(text, newDeath(number, unit, salt))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.file.WriteAt(text, d.size); err != nil {
		return err
	}
	d.size += int64(len(text))
	return nil
}

// due reports whether pruning would pay: the file has doubled since the last.
func (d *deaths) due() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.size > pruneFrom && d.size > 2*d.pruned
}

// prune leaves out the notes about segments that are gone.
func (d *deaths) prune(known func(number uint32) bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	text := make([]byte, d.size-sealSize)
	if err := d.file.ReadAt(text, sealSize); err != nil {
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

// rewriteLocked replaces the file by one with these notes, at once for whoever
// opens it after kill -9. It is not synced: a file that a power loss left empty
// is begun anew.
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
	d.file, d.size, d.pruned = f, int64(len(text)), int64(len(text))
	return nil
}

// bytes is what the file takes on disk.
func (d *deaths) bytes() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return roundUp(d.size, pageSize)
}

func (d *deaths) sync() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.file.Sync()
}

func (d *deaths) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.file != nil {
		d.file.Close()
		d.file = nil
	}
}

func newer(d *directory, name string, format uint32) error {
	return &direct.FormatError{File: d.Full(name), Format: format, Known: Format}
}
