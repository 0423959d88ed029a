// Package store keeps the namespace's records in Pebble, on a disk that may fail.
//
// Pebble ends the process when a write to its log or manifest fails. So it runs on a file system of ours
// (steady.go) that never reports a failed write. After the first failure it keeps what follows in memory.
// The store is then ill, and says why.
//
// The database is a cache. When it turns out corrupt, at the start or later, it is set aside as
// DIR.corrupt-N, and an empty one takes its place. When its disk cannot be read, or when it outgrows its
// memory, an empty one in memory replaces it. Readers then see misses, never an error. A disk that does
// not answer counts as one that cannot be read (patient.go, package device).
//
// A store whose disk failed moves to the next healthy directory (move.go). Its records are copied there
// piece by piece, while commits go to both databases. Then the copy takes the place of the original.
//
// A commit returns before it is on disk. A sync follows within half a second, so a killed process loses
// little. What must not be lost is committed with sync.
package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	defaultCache  = 16 << 20
	defaultMemory = 64 << 20
	memTable      = 4 << 20 // four of them and the cache stay well within 64 MiB
	syncAfter     = 500 * time.Millisecond
	maxRebuilds   = 3 // on one disk by one process; a disk that needs more is sick
	keptCorrupt   = 2 // directories set aside that are kept for inspection
	openTries     = 3 // of a database whose disk does not answer
)

// Options of a Store. The zero value keeps everything in memory.
type Options struct {
	// Dir is the database's directory; "" keeps it in memory.
	Dir string
	// FS is the file system that Dir lies on. Nil means the operating system's.
	FS vfs.FS
	// Patience bounds one operation of the disk. A disk that takes longer counts as failed. A sync may
	// take up to twice that. 0 means 2 s.
	Patience time.Duration
	// Outlasts says that what was committed outlasts the process, however that ends: the operating system has it once Commit
	// returns. Else a killed process loses what it committed in its last moments.
	Outlasts bool
	// CacheBytes is the size of Pebble's block cache. 0 means 16 MiB.
	CacheBytes int64
	// MemoryBytes bounds what lives in memory, by choice or because the disk failed. Beyond it the
	// database starts anew, empty. 0 means 64 MiB, or 512 MiB when Dir is "".
	MemoryBytes int64
	// Next returns the directories that the database may move to once its disk failed, the best first.
	// Its own may be among them. Next may block. Nil means that the database stays in memory.
	Next func() []string
	// Retry is the first pause between two attempts to move. It doubles up to 32 times that (back-off).
	// 0 means 10 s.
	Retry time.Duration
	// Moved is called when the database has moved to another directory; may be nil.
	Moved func(dir string)
	// Log gets each line that Pebble or the store logs; may be nil. It must not block.
	Log func(text string)
	// Ill is called when the database's disk fails; may be nil.
	Ill func(cause error)
	// Rebuilt is called when an empty database has replaced the former one, in Open or later. The
	// store's lock is held, so Rebuilt must not use the store. May be nil.
	Rebuilt func(cause error)
}

// Store is a sorted map of bytes. Its methods may be called from many goroutines.
type Store struct {
	o      Options
	disk   *steady
	doomed atomic.Pointer[error] // why the database must be replaced
	gen    atomic.Int64          // counts databases; written under mu
	// outlasts is Options.Outlasts by now.
	outlasts atomic.Bool

	disks sync.Map     // cache directory to its *patient
	looks atomic.Int64 // reads by Looks that are in flight

	mu       sync.RWMutex // guards the rest; write-locked only to replace the database
	db       *pebble.DB
	rebuilds int
	where    string
	next     *successor // the copy that is being made of db, or nil

	// turn is write-locked to copy a piece, and read-locked by commits; taken after mu.
	turn sync.RWMutex
	move mover

	syncMu sync.Mutex // guards dirty, timer and closed; taken after mu
	dirty  bool
	timer  *time.Timer
	closed bool
}

// Open opens or makes the database. It fails when another process uses the database, or when a newer
// version wrote it (ErrNewer).
func Open(o Options) (*Store, error) {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.CacheBytes == 0 {
		o.CacheBytes = defaultCache
	}
	if o.MemoryBytes == 0 {
		o.MemoryBytes = defaultMemory
		if o.Dir == "" {
			o.MemoryBytes = 8 * defaultMemory
		}
	}
	s := &Store{o: o}
	s.outlasts.Store(o.Outlasts)
	s.move.prepare()
	s.timer = time.AfterFunc(time.Hour, s.syncBehind)
	s.timer.Stop()
	if err := s.open(); err != nil {
		s.move.stop()
		s.letGo()
		return nil, err
	}
	s.move.start(s)
	return s, nil
}

// open opens the database in its directory, or else in memory. A corrupt one is set aside.
func (s *Store) open() error {
	if s.o.Dir == "" {
		return s.openMemory(nil)
	}
	s.adopt()
	s.dropCutOff()
	for tries := 1; ; {
		err := s.openDir(s.o.Dir)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, errBusy), errors.Is(err, ErrNewer):
			return fmt.Errorf("open the names in %s: %w", s.o.Dir, err)
		case errors.Is(err, syscall.ETIMEDOUT) && tries < openTries:
			tries++
			continue
		case s.rebuilds >= maxRebuilds || errors.Is(err, syscall.ETIMEDOUT):
			return s.openMemory(err)
		}
		s.rebuilds++
		s.log("names in %s cannot be used and are set aside: %v", s.o.Dir, err)
		if err := setAside(s.on(s.o.Dir), s.o.Dir); err != nil {
			return s.openMemory(err)
		}
		if s.o.Rebuilt != nil {
			s.o.Rebuilt(err)
		}
	}
}

// on is the disk of a database's directory. Each cache directory counts as a disk, with its own guard.
func (s *Store) on(dir string) vfs.FS {
	disk, known := s.disks.LoadOrStore(filepath.Dir(dir), newPatient(s.o.FS, s.o.Patience))
	if !known {
		go disk.(*patient).guard.LookOut()
	}
	return disk.(*patient)
}

// letGo ends the watchdogs (LookOut) of the disks. Nothing may use the disks after it.
func (s *Store) letGo() {
	s.disks.Range(func(_, disk any) bool {
		disk.(*patient).guard.Close()
		return true
	})
}

func (s *Store) openDir(dir string) (err error) {
	s.where = dir
	s.disk = newSteady(s.on(dir), s.becameIll, s.tooMuch)
	s.disk.idle = &s.outlasts
	s.disk.limit = s.o.MemoryBytes
	disk := s.disk
	s.db, err = openWhole(dir, s.options(disk, func(err error) {
		if !disk.retired.Load() { // else this database is not in use any more
			s.doom(err)
		}
	}))
	return err
}

// Outlast has all that is committed from now on outlast the process, as Options.Outlasts has from the start.
func (s *Store) Outlast() { s.outlasts.Store(true) }

func openPebble(dir string, o *pebble.Options) (db *pebble.DB, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("open: %v", r)
		}
	}()
	if db, err = pebble.Open(dir, o); err != nil && newerFormat(o.FS, dir) {
		err = fmt.Errorf("%w: %w", ErrNewer, err)
	}
	return db, err
}

// becameIll reports that the disk failed, and wakes the mover.
func (s *Store) becameIll(cause error) {
	if s.o.Ill != nil {
		s.o.Ill(cause)
	}
	s.move.begin()
}

// openMemory starts an empty database in memory. cause says why it is not on disk; nil means by choice.
func (s *Store) openMemory(cause error) error {
	ill := s.becameIll
	if cause == nil {
		ill = nil
	}
	s.where = ""
	before := s.disk
	s.disk = newSteady(vfs.NewMem(), ill, s.tooMuch)
	s.disk.limit = s.o.MemoryBytes
	if before != nil && before.cause() != nil { // reported already
		s.disk.ill.Store(before.ill.Load())
		s.move.begin()
	}
	s.disk.fail(cause)
	var err error
	s.db, err = openPebble("names", s.options(s.disk, s.doom))
	return err
}

// tooMuch is called when the memory of a failed disk is spent.
func (s *Store) tooMuch(n int64) { s.doom(fmt.Errorf("%d bytes of names in memory are too many", n)) }

// doom makes the next user of the database replace it.
func (s *Store) doom(cause error) { s.doomed.CompareAndSwap(nil, &cause) }

// live returns the database, read-locked. It replaces a doomed one first.
func (s *Store) live() (*pebble.DB, error) {
	if s.doomed.Load() != nil {
		s.rebuild()
	}
	s.mu.RLock()
	if s.db == nil {
		s.mu.RUnlock()
		return nil, fs.ErrClosed
	}
	return s.db, nil
}

// Generation counts the databases that an empty one has replaced. What was read from an earlier one is
// void.
func (s *Store) Generation() int64 { return s.gen.Load() }

// rebuild replaces a doomed database by an empty one: on its disk when only its content is bad, else in
// memory.
func (s *Store) rebuild() {
	s.mu.Lock()
	defer s.mu.Unlock()
	cause := s.doomed.Load()
	if cause == nil || s.db == nil {
		return
	}
	s.disk.retired.Store(true)
	clean := closeQuietly(s.db)
	s.rebuilds++
	s.next = nil // the copy would get the content of two databases
	ill := s.disk.cause() != nil || !pebble.IsCorruptionError(*cause) || !clean
	var err error
	if s.where != "" && !ill && s.rebuilds <= maxRebuilds {
		if err = setAside(s.on(s.where), s.where); err == nil {
			err = s.openDir(s.where)
		}
	}
	if s.where == "" || ill || err != nil || s.rebuilds > maxRebuilds {
		why := *cause
		if s.o.Dir == "" {
			why = nil // it is in memory by choice
		}
		err = s.openMemory(why)
	}
	if err != nil { // an empty database in memory always opens
		s.db = nil
	}
	s.doomed.Store(nil)
	s.gen.Add(1)
	s.log("names start anew: %v", *cause)
	if s.o.Rebuilt != nil {
		s.o.Rebuilt(*cause)
	}
}

// closeQuietly closes a database that may be broken. It returns false when the database could not be
// closed, and is left alone.
func closeQuietly(db *pebble.DB) (clean bool) {
	defer func() {
		if recover() != nil {
			clean = false
		}
	}()
	_ = db.Close() // its error is why we close it
	return true
}

// try runs op on the database. When op fails, try runs it once more, on the empty database that has
// replaced the failed one.
func (s *Store) try(op func(*pebble.DB) error) error {
	for range 2 {
		db, err := s.live()
		if err != nil {
			return err
		}
		err = s.guarded(db, op)
		failed := err != nil && !errors.Is(err, pebble.ErrNotFound)
		if failed {
			s.doom(err) // before the unlock: the error is this database's
		}
		s.mu.RUnlock()
		if !failed {
			return err
		}
	}
	return errors.New("names: the database failed twice")
}

// guarded turns Pebble's panics into errors, among them its fatal errors, which our logger turns into
// panics.
func (s *Store) guarded(db *pebble.DB, op func(*pebble.DB) error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("pebble: %v", r)
		}
	}()
	return op(db)
}

// Get appends the value of key to buf. It returns false when there is none.
func (s *Store) Get(buf, key []byte) ([]byte, bool, error) {
	for {
		db, err := s.live()
		if err != nil {
			return buf, false, err
		}
		v, closer, err := db.Get(key)
		if err == nil {
			buf = append(buf, v...)
			err = closer.Close()
		}
		missing := errors.Is(err, pebble.ErrNotFound)
		if err != nil && !missing {
			s.doom(err) // the next round asks an empty database
		}
		s.mu.RUnlock()
		if err == nil || missing {
			return buf, !missing, nil
		}
	}
}

// soon schedules a sync of what was committed.
func (s *Store) soon() {
	s.syncMu.Lock()
	defer s.syncMu.Unlock()
	if !s.dirty && !s.closed {
		s.dirty = true
		s.timer.Reset(syncAfter)
	}
}

func (s *Store) syncBehind() {
	s.syncMu.Lock()
	s.dirty = false
	s.syncMu.Unlock()
	_ = s.try(func(db *pebble.DB) error {
		s.disk.durable.Add(1)
		defer s.disk.durable.Add(-1)
		return db.LogData(nil, pebble.Sync)
	}) // a failure has made the store ill
}

// Flush writes everything to sorted tables; for figures and tests.
func (s *Store) Flush() error {
	return s.try(func(db *pebble.DB) error { return db.Flush() })
}

// Compact rewrites everything into the lowest level; for figures and tests.
func (s *Store) Compact() error {
	return s.try(func(db *pebble.DB) error { return db.Compact(context.Background(), []byte{0}, []byte{255}, false) })
}

// Stats are the store's figures.
type Stats struct {
	// Dir is where the records are; "" means in memory.
	Dir string
	// Ill is why they are not kept on disk any more. Nil means that they are, or need not be.
	Ill error
	// DiskBytes and MemoryBytes are what the records take.
	DiskBytes, MemoryBytes int64
	// TableBytes is DiskBytes without logs and what is to be removed.
	TableBytes int64
	// Rebuilds counts databases that were set aside or dropped. Moves counts moves to another directory.
	Rebuilds, Moves int
}

// Stats returns the present figures.
func (s *Store) Stats() Stats {
	s.mu.RLock()
	defer s.mu.RUnlock()
	st := Stats{Dir: s.where, Ill: s.disk.cause(), Rebuilds: s.rebuilds, Moves: int(s.move.done.Load()), MemoryBytes: s.disk.used.Load()}
	if s.db != nil {
		m := s.db.Metrics()
		total := m.Total()
		st.DiskBytes, st.TableBytes = int64(m.DiskSpaceUsage()), total.TablesSize
	}
	return st
}

// Close makes everything durable and ends the store.
func (s *Store) Close() error {
	defer s.letGo()
	s.move.stop()
	s.syncMu.Lock()
	s.closed = true
	s.timer.Stop()
	s.syncMu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	db := s.db
	s.db = nil
	if db == nil {
		return nil
	}
	if s.doomed.Load() != nil {
		closeQuietly(db)
		return nil
	}
	s.disk.durable.Add(1) // for good
	if err := s.guarded(db, func(db *pebble.DB) error { return db.LogData(nil, pebble.Sync) }); err != nil {
		closeQuietly(db)
		return fmt.Errorf("close the names: %w", err)
	}
	if err := db.Close(); err != nil {
		return fmt.Errorf("close the names: %w", err)
	}
	return nil
}

// setAside renames a database that cannot be used. It keeps the last few of these.
func setAside(on vfs.FS, dir string) error {
	parent := filepath.Dir(dir)
	names, err := on.List(parent)
	if err != nil {
		return fmt.Errorf("set names aside: %w", err)
	}
	last := 0
	for _, name := range names {
		if n, ok := strings.CutPrefix(name, filepath.Base(dir)+".corrupt-"); ok {
			i, _ := strconv.Atoi(n)
			last = max(last, i)
		}
	}
	if old := last + 1 - keptCorrupt; old > 0 {
		_ = on.RemoveAll(fmt.Sprintf("%s.corrupt-%d", dir, old)) // it only takes room
	}
	if err := on.Rename(dir, fmt.Sprintf("%s.corrupt-%d", dir, last+1)); err != nil {
		return fmt.Errorf("set names aside: %w", err)
	}
	return syncDir(on, parent)
}

func syncDir(on vfs.FS, dir string) error {
	d, err := on.OpenDir(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if err2 := d.Close(); err == nil {
		err = err2
	}
	if errors.Is(err, syscall.EINVAL) {
		return nil // not every file system syncs directories
	}
	return err
}
