package segment

import (
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"sync"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/record"
	"github.com/hearthfs/hearth/internal/device"
)

// segment is one file of the log.
type segment struct {
	log    *Log
	number uint32 // in its name; a later segment has a larger one
	slot   uint32 // its position in Log.slots
	salt   uint64
	begun  bool // made by this process: no power cut since

	// mu guards the rest. It is held across open, fstat and close of the file, which need no data
	// from the device, and across nothing slower.
	mu     sync.Mutex
	file   *file // nil means closed for now
	users  int   // of file
	used   int64 // Log.clock when file was last asked for
	sealed bool  // no more appends
	bare   bool  // the footer could not be written
	gone   bool  // unlinked, or about to be
	stuck  bool  // Compact cannot find its records
	lasts  bool  // all written bytes are on the device
	// unindexed means that there is no memory for its records: the index knows none of them, and
	// pages counts none. Only Shed changes their bytes.
	unindexed bool
	records   int   // live ones
	live      int64 // bytes of live records
	allocated int64 // bytes, as last seen by fstat; counted in Log.used
	// pages counts the live packed records on each page; nil while there are none. Invariant: a
	// page without live records is punched or about to be.
	pages []uint8

	// Both belong to the holder of Log.turn, and concern an unindexed segment. spared means that at
	// the last look only pinned blocks were left, unread that Recall could not read it.
	spared, unread bool
}

type (
	directory = device.Directory
	file      = device.File
	change    = device.Change
)

func segmentPattern() *regexp.Regexp { return regexp.MustCompile(`^[0-9a-f]{8}\.segment$`) }

// ours returns a function that reports whether a name is one of a Log's files.
func ours() func(name string) bool {
	segments := segmentPattern()
	return func(name string) bool {
		return segments.MatchString(name) || name == deathsName || name == deathsTemp
	}
}

func segmentName(number uint32) string { return fmt.Sprintf("%08x.segment", number) }

func (s *segment) name() string { return segmentName(s.number) }

// acquire opens the file if need be and keeps it open until release.
func (s *segment) acquire() (*file, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.log.closed.Load() {
		return nil, fmt.Errorf("open %s: %w", s.log.dir.Full(s.name()), fs.ErrClosed)
	}
	if s.file == nil {
		if s.gone {
			return nil, fmt.Errorf("open %s: %w", s.log.dir.Full(s.name()), fs.ErrNotExist)
		}
		f, err := s.log.dir.Open(s.name(), 0, true)
		if err != nil {
			return nil, err
		}
		s.adoptLocked(f)
	}
	s.users++
	s.used = s.log.clock.Add(1)
	return s.file, nil
}

func (s *segment) adoptLocked(f *file) {
	s.file = f
	s.log.opened.Add(1)
}

func (s *segment) release() {
	s.mu.Lock()
	s.users--
	if s.users == 0 && (s.gone || s.log.closed.Load()) {
		s.closeLocked()
	}
	s.mu.Unlock()
	if s.log.opened.Load() > s.log.maxOpen {
		s.log.closeIdle()
	}
}

// closeLocked closes the file. Only this frees the space of an unlinked one.
func (s *segment) closeLocked() {
	if s.file != nil {
		s.file.Close()
		s.file = nil
		s.log.opened.Add(-1)
	}
	if s.gone {
		s.log.used.Add(-s.allocated)
		s.allocated = 0
	}
}

// closeIdle closes the least recently used idle file. It is called after every release while too
// many are open, so it need not find one each time.
func (l *Log) closeIdle() {
	var oldest *segment
	var when int64
	for _, s := range *l.slots.Load() {
		if s == nil || !s.mu.TryLock() {
			continue
		}
		if s.file != nil && s.users == 0 && (oldest == nil || s.used < when) {
			oldest, when = s, s.used
		}
		s.mu.Unlock()
	}
	if oldest == nil {
		return
	}
	oldest.mu.Lock()
	if oldest.users == 0 {
		oldest.closeLocked()
	}
	oldest.mu.Unlock()
}

// measure brings allocated up to date and returns the bytes gained.
func (s *segment) measure(f *file) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, allocated, err := f.Stat()
	if err != nil {
		return 0, err
	}
	gained := allocated - s.allocated
	s.allocated = allocated
	s.log.used.Add(gained)
	return gained, nil
}

// sync makes the file durable. Only now the file system allocates what was written through the page
// cache: a few blocks more or less than it had reserved.
func (s *segment) sync(f *file) error {
	if err := f.Sync(); err != nil {
		return err
	}
	_, err := s.measure(f)
	return err
}

// reservePages makes room to count packed records up to end. Nobody else does so meanwhile: the
// caller has the turn, or is Open.
func (s *segment) reservePages(end int64) bool {
	s.mu.Lock()
	n, had := int(record.RoundUp(end, record.PageSize)/record.PageSize), len(s.pages)
	s.mu.Unlock()
	if n <= had {
		return true
	}
	if !s.log.pool.Claim(int64(n - had)) { // without the lock: the Pool may make others give way
		return false
	}
	s.log.pageBytes.Add(int64(n - had))
	pages := make([]uint8, n)
	s.mu.Lock()
	copy(pages, s.pages)
	s.pages = pages
	s.mu.Unlock()
	return true
}

// freePagesLocked releases the memory of the counts.
func (s *segment) freePagesLocked() {
	s.log.pool.Unclaim(int64(len(s.pages)))
	s.log.pageBytes.Add(-int64(len(s.pages)))
	s.pages = nil
}

// add counts a record as live, before the index knows it. Its pages are reserved.
func (s *segment) add(length int, offset int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.records++
	s.live += record.Size(length)
	if record.Packed(length) {
		for p := offset / record.PageSize; p <= (offset+record.Size(length)-1)/record.PageSize; p++ {
			s.pages[p]++
		}
	}
}

// subtract counts a record as dead and returns the pages that no record needs now. They are one
// range, since only a record's first and last page are shared. last means that it was the last live
// record of a sealed segment, which the caller must retire.
func (s *segment) subtract(n record.Note) (free record.Span, last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.records--
	s.live -= record.Size(int(n.Length))
	free = record.Span{Off: n.Offset(), N: record.Size(int(n.Length))}
	if record.Packed(int(n.Length)) {
		first, end := n.Offset()/record.PageSize, record.RoundUp(n.End(), record.PageSize)/record.PageSize
		for p := first; p < end; p++ {
			s.pages[p]--
		}
		if s.pages[first] > 0 {
			first++
		}
		if end > first && s.pages[end-1] > 0 {
			end--
		}
		free = record.Span{Off: first * record.PageSize, N: (end - first) * record.PageSize}
	}
	return free, s.emptyLocked()
}

// emptyLocked reports, once, that a sealed segment has no live records.
func (s *segment) emptyLocked() bool {
	if s.records > 0 || !s.sealed || s.gone {
		return false
	}
	s.gone = true
	return true
}

// retire unlinks a segment that emptyLocked reported and returns the bytes freed now. While it is
// still read, the last release frees them.
func (l *Log) retire(s *segment) (int64, error) {
	err := l.dir.Remove(s.name())
	if errors.Is(err, fs.ErrNotExist) {
		err = nil // somebody else emptied the directory
	}
	l.clearSlot(s)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.freePagesLocked()
	if s.users > 0 {
		return 0, err
	}
	freed := s.allocated
	s.closeLocked()
	return freed, err
}

// drop completes an eviction after the index forgot the record: it writes a tombstone, and punches
// the pages or unlinks the segment. It returns the bytes freed. They are freed even if the
// tombstone fails: without it the next Open finds a record whose bytes are zero.
func (l *Log) drop(id hearth.ID, p record.Place) (freed int64, err error) {
	l.ending.RLock()
	defer l.ending.RUnlock()
	if l.closed.Load() {
		return 0, nil // the next Open finds it again
	}
	s := (*l.slots.Load())[p.Slot]
	free, last := s.subtract(p.Note(id))
	if last {
		return l.retire(s)
	}
	err = l.deaths.add(s.number, p.Unit, s.salt)
	if free.N > 0 {
		var failed error
		freed, failed = s.punch(free)
		err = errors.Join(err, failed)
	}
	return freed, err
}

// punch frees pages that no record needs and returns the bytes freed.
func (s *segment) punch(free record.Span) (int64, error) {
	f, err := s.acquire()
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil // its last record was evicted meanwhile
	}
	if err != nil {
		return 0, err
	}
	defer s.release()
	if err := f.Punch(free.Off, free.N); err != nil {
		return 0, err
	}
	gained, err := s.measure(f)
	return -gained, err
}

// takeSlot gives a segment its position in slots. The table is copied, since
// readers look it up without a lock; a segment is made every 16 MiB at most.
func (l *Log) takeSlot(s *segment) {
	l.slotsMu.Lock()
	defer l.slotsMu.Unlock()
	slots := append([]*segment(nil), *l.slots.Load()...)
	if n := len(l.freeSlots); n > 0 {
		s.slot = l.freeSlots[n-1]
		l.freeSlots = l.freeSlots[:n-1]
		slots[s.slot] = s
	} else {
		s.slot = uint32(len(slots))
		slots = append(slots, s)
	}
	l.slots.Store(&slots)
}

// clearSlot frees the slot of a segment that no entry of the index names. A reader with an older
// entry finds nothing here, or another segment whose bytes do not verify. Either way it asks the
// index again.
func (l *Log) clearSlot(s *segment) {
	l.slotsMu.Lock()
	defer l.slotsMu.Unlock()
	slots := append([]*segment(nil), *l.slots.Load()...)
	slots[s.slot] = nil
	l.freeSlots = append(l.freeSlots, s.slot)
	l.slots.Store(&slots)
}
