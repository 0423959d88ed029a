package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	// moveRetry is how long a directory that failed is left alone at first, as the
	// disk tier leaves it alone; mostRetry times that at last.
	moveRetry = 10 * time.Second
	mostRetry = 32
	// pieceBytes are copied at a time: commits wait for about a millisecond.
	pieceBytes = 128 << 10
	// again is the end of the other name that a database has in a cache directory:
	// one that failed, and is well again, still holds the files that are read.
	again = ".again"
	// wholeFile in a database of that name says that it is newer than the other.
	wholeFile = "WHOLE"
	// partFile in a database says that it is a copy that is not whole: its directories
	// may say that they are listed, and their entries not be there.
	partFile = "PART"
)

// mover moves the database of a Store from a failed disk to a healthy one. Its
// goroutine ends with the Store.
type mover struct {
	wake   chan struct{}
	done   atomic.Int64 // moves
	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup
}

// successor is a database that is being filled.
type successor struct {
	db   *pebble.DB
	disk *steady
	dir  string
	// live: it has taken its place, so that what befalls it befalls the store. told:
	// the store knows that its disk failed.
	live, told atomic.Bool
}

// prepare lets begin be called.
func (m *mover) prepare() {
	m.wake = make(chan struct{}, 1)
	m.ctx, m.cancel = context.WithCancel(context.Background())
}

// start has the database of a Store that is open moved; a disk that failed meanwhile
// has woken it already.
func (m *mover) start(s *Store) {
	if s.o.Next != nil && s.o.Dir != "" {
		m.work.Go(func() { s.moveBehind() })
	}
}

func (m *mover) stop() {
	m.cancel()
	m.work.Wait()
}

// begin has the database moved; it never blocks.
func (m *mover) begin() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// moveBehind moves the database whenever its disk failed: at once to another
// directory, and after a pause to any. A disk that fails again soon after gets no
// shorter pauses.
func (s *Store) moveBehind() {
	first := s.o.Retry
	if first <= 0 {
		first = moveRetry
	}
	pause := time.Duration(0)
	for moved := time.Now(); ; {
		select {
		case <-s.move.wake:
		case <-s.move.ctx.Done():
			return
		}
		if time.Since(moved) > mostRetry*first {
			pause = 0
		}
		for s.homeless() {
			select {
			case <-time.After(pause):
			case <-s.move.ctx.Done():
				return
			}
			if s.moveAnywhere(pause > 0) {
				moved = time.Now()
			}
			pause = min(max(first, 2*pause), mostRetry*first)
		}
	}
}

// homeless reports whether the database is not on a disk that takes it.
func (s *Store) homeless() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.db != nil && s.disk.isIll()
}

// moveAnywhere tries the directories there are, the one that failed last and, so
// that the disk tier has seen what is wrong with it, not at once.
func (s *Store) moveAnywhere(back bool) bool {
	s.mu.RLock()
	home := strings.TrimSuffix(s.where, again)
	s.mu.RUnlock()
	var own bool
	for _, dir := range s.o.Next() {
		if dir == home {
			own = true
		} else if s.tryMove(dir) {
			return true
		}
	}
	return own && back && s.tryMove(home)
}

func (s *Store) tryMove(dir string) bool {
	err := s.moveTo(dir)
	if err != nil && s.move.ctx.Err() == nil {
		s.log("names cannot move to %s: %v", dir, err)
	}
	return err == nil
}

var errAbandoned = errors.New("the names were given up meanwhile")

// moveTo copies the database to a directory and has the copy take its place.
func (s *Store) moveTo(dir string) error {
	s.mu.RLock()
	if s.where == dir {
		dir += again
	}
	s.mu.RUnlock()
	n, err := s.newSuccessor(dir)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.next = n
	s.mu.Unlock()
	err = s.copyTo(n)
	if err == nil {
		err = n.makeLast(s.on(dir))
	}
	var old *pebble.DB
	var from string
	if err == nil {
		old, from, err = s.replaceBy(n)
	}
	if err != nil {
		s.mu.Lock()
		if s.next == n {
			s.next = nil
		}
		s.mu.Unlock()
		closeQuietly(n.db)
		_ = s.on(dir).RemoveAll(dir) // the next attempt does it
		return err
	}
	closeQuietly(old)
	if from != "" {
		_ = s.on(from).RemoveAll(from) // else it is found at the next start: older, not wrong
	}
	s.soon()
	s.move.done.Add(1)
	s.log("names lie in %s now", dir)
	if s.o.Moved != nil {
		s.o.Moved(dir)
	}
	return nil
}

func (s *Store) newSuccessor(dir string) (*successor, error) {
	if err := s.on(dir).RemoveAll(dir); err != nil {
		return nil, err
	}
	if !strings.HasSuffix(dir, again) {
		if err := mark(s.on(dir), dir, partFile); err != nil {
			return nil, err
		}
	}
	n := &successor{dir: dir}
	n.disk = newSteady(s.on(dir), func(cause error) {
		if n.live.Load() && n.told.CompareAndSwap(false, true) {
			s.becameIll(cause)
		}
	}, func(used int64) {
		if n.live.Load() {
			s.tooMuch(used)
		}
	})
	n.disk.limit = s.o.MemoryBytes
	doom := func(err error) {
		if n.live.Load() {
			s.doom(err)
		} else {
			n.disk.fail(err)
		}
	}
	var err error
	if n.db, err = openPebble(dir, s.options(n.disk, doom)); err != nil {
		return nil, err
	}
	if err := n.disk.cause(); err != nil {
		closeQuietly(n.db)
		return nil, err
	}
	return n, nil
}

// copyTo copies all records. A commit meanwhile goes to both databases: what lies
// before the copy's place is right at once, what lies behind it is copied as it is
// then.
func (s *Store) copyTo(n *successor) error {
	for at := []byte{}; at != nil; {
		if err := s.move.ctx.Err(); err != nil {
			return err
		}
		db, err := s.live()
		if err != nil {
			return err
		}
		if s.next != n {
			err = errAbandoned
		} else {
			err = s.guarded(db, func(db *pebble.DB) (err error) {
				s.turn.Lock()
				defer s.turn.Unlock()
				at, err = copyPiece(n.db, db, at)
				return err
			})
		}
		s.mu.RUnlock()
		if err = errors.Join(err, n.disk.cause()); err != nil {
			return err
		}
	}
	return nil
}

// copyPiece copies records from at on, and returns where the next piece begins;
// nil: there is none.
func copyPiece(to, from *pebble.DB, at []byte) (next []byte, err error) {
	it, err := from.NewIter(&pebble.IterOptions{LowerBound: at})
	if err != nil {
		return nil, err
	}
	b := to.NewBatch()
	defer func() { _ = b.Close() }() // it only takes the memory back
	ok := it.First()
	for ; ok && b.Len() < pieceBytes && err == nil; ok = it.Next() {
		err = b.Set(it.Key(), it.Value(), nil)
	}
	if ok {
		next = append([]byte{}, it.Key()...)
	}
	if err = errors.Join(err, it.Close()); err != nil {
		return nil, err
	}
	return next, b.Commit(pebble.NoSync)
}

// makeLast has the copy on its disk.
func (n *successor) makeLast(on vfs.FS) error {
	if err := n.db.LogData(nil, pebble.Sync); err != nil {
		return err
	}
	var err error
	if strings.HasSuffix(n.dir, again) {
		err = mark(on, n.dir, wholeFile)
	} else if err = on.Remove(on.PathJoin(n.dir, partFile)); err == nil {
		err = syncDir(on, n.dir)
	}
	if err != nil {
		return err
	}
	return n.disk.cause()
}

// mark makes a file that is all in its name, there after a power failure too.
func mark(on vfs.FS, dir, name string) error {
	if err := on.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := on.Create(on.PathJoin(dir, name), vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close(), syncDir(on, dir))
}

// replaceBy has the copy take the place of the database, and returns that and the
// directory it was in; "": in memory.
func (s *Store) replaceBy(n *successor) (old *pebble.DB, from string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next != n || s.db == nil || s.doomed.Load() != nil {
		return nil, "", errAbandoned
	}
	if err := n.disk.cause(); err != nil {
		return nil, "", err
	}
	s.disk.retired.Store(true)
	old, from = s.db, s.where
	s.db, s.disk, s.where, s.next = n.db, n.disk, n.dir, nil
	n.live.Store(true)
	if cause := n.disk.cause(); cause != nil && n.told.CompareAndSwap(false, true) {
		s.becameIll(cause)
	}
	return old, from, nil
}

// Exists reports whether there is a database in a directory, under either of its
// names, that is more than a part of another.
func Exists(dir string) bool {
	for _, name := range []string{dir, dir + again} {
		if exists(vfs.Default, filepath.Join(name, partFile)) {
			continue
		}
		if found, err := filepath.Glob(filepath.Join(name, "MANIFEST-*")); err == nil && len(found) > 0 {
			return true
		}
	}
	return false
}

// adopt gives a database that was moved within its cache directory its proper
// name back. What was not copied to its end goes.
func (s *Store) adopt() {
	other, on := s.o.Dir+again, s.on(s.o.Dir)
	if !exists(on, other) {
		return
	}
	_, err := on.Stat(on.PathJoin(other, wholeFile))
	switch {
	case err == nil:
		if err = on.RemoveAll(s.o.Dir); err == nil {
			err = on.Rename(other, s.o.Dir)
		}
		if err == nil {
			err = on.Remove(on.PathJoin(s.o.Dir, wholeFile))
		}
	case errors.Is(err, os.ErrNotExist):
		err = on.RemoveAll(other)
	}
	if err != nil {
		s.log("names in %s: %v", other, fmt.Errorf("adopt them: %w", err))
	}
}

// dropCutOff removes the copies that a process was making when it ended.
func (s *Store) dropCutOff() {
	dirs := []string{s.o.Dir}
	if s.o.Next != nil {
		dirs = append(dirs, s.o.Next()...)
	}
	for _, dir := range dirs {
		on := s.on(dir)
		if !exists(on, on.PathJoin(dir, partFile)) {
			continue
		}
		if err := on.RemoveAll(dir); err != nil {
			s.log("names in %s: %v", dir, fmt.Errorf("remove a part of them: %w", err))
		}
	}
}
