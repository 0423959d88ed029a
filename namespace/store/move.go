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
	// moveRetry is how long a directory that failed is left alone at first, as in the disk tier. The
	// back-off ends at mostRetry times that.
	moveRetry = 10 * time.Second
	mostRetry = 32
	// pieceBytes are copied at a time. Commits wait for that about a millisecond.
	pieceBytes = 128 << 10
	// again is the end of the second name that a database may have in a cache directory. A directory
	// that failed and is well again still holds the files that are being read, under the other name.
	again = ".again"
	// wholeFile, in a database of the second name, says that it is newer than that of the first name.
	wholeFile = "WHOLE"
	// partFile, in a database, says that it is an unfinished copy. A directory in it may count as
	// listed while its entries are missing.
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

// successor is the copy that a move fills.
type successor struct {
	db   *pebble.DB
	disk *steady
	dir  string
	// live says that the copy has taken its place, so that its failures are the store's. told says that
	// the store knows of its disk's failure.
	live, told atomic.Bool
}

// prepare must be called before begin.
func (m *mover) prepare() {
	m.wake = make(chan struct{}, 1)
	m.ctx, m.cancel = context.WithCancel(context.Background())
}

// start starts the goroutine that moves the database of an open Store. A disk that failed before has
// woken it already.
func (m *mover) start(s *Store) {
	if s.o.Next != nil && s.o.Dir != "" {
		m.work.Go(func() { s.moveBehind() })
	}
}

func (m *mover) stop() {
	m.cancel()
	m.work.Wait()
}

// begin wakes the mover; it never blocks.
func (m *mover) begin() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// moveBehind moves the database whenever its disk failed: at once to another directory, and after a
// pause to any. If a disk fails again soon after a move, the back-off does not start over.
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

// homeless reports whether the database's disk has failed.
func (s *Store) homeless() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.db != nil && s.disk.isIll()
}

// moveAnywhere tries the directories in order, and the one that failed only at the end, if back is set.
// back is not set at once, so that the disk tier sees first what is wrong with that one.
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

// moveTo copies the database to a directory, and puts the copy in its place.
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
		_ = s.on(dir).RemoveAll(dir) // if this fails, the next attempt does it
		return err
	}
	closeQuietly(old)
	if from != "" {
		_ = s.on(from).RemoveAll(from) // if this fails, the next start finds it: older, not wrong
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
	n.disk.limit, n.disk.idle = s.o.MemoryBytes, &s.outlasts
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

// copyTo copies all records in the order of keys, while commits go to both databases. So records before
// the cursor are right at once, and records after it are copied as they are when it comes to them.
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

// copyPiece copies the records from at on, up to pieceBytes. It returns where the next piece begins; nil
// means that there is none.
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

// makeLast makes the copy durable, and marks it as complete.
func (n *successor) makeLast(on vfs.FS) error {
	n.disk.durable.Add(1)
	defer n.disk.durable.Add(-1)
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

// mark creates an empty file durably: its name is the message.
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

// replaceBy puts the copy in the place of the database. It returns the old database and its directory;
// "" means that it was in memory.
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

// Exists reports whether there is a database in a directory, under either of its names, that is not an
// unfinished copy.
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

// adopt gives a database that was moved within its cache directory its first name back. It removes an
// unfinished copy.
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
