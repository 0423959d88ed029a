package store

import (
	"errors"
	"fmt"
	"path/filepath"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// ErrUnmade says that there is no database yet: a process ended while it made one.
var ErrUnmade = errors.New("there is no database yet: a process ended while it made one")

// Look reads a database and changes nothing, whatever it finds. It is for a database that no process
// uses, or for the one of a Store.
type Look struct {
	db *pebble.DB // nil means the Store's
	of *Store
	// Dir is the database's directory.
	Dir string
}

// Corrupt reports whether an error says that a database does not read as it was written.
func Corrupt(err error) bool { return pebble.IsCorruptionError(err) || errors.Is(err, syscall.EIO) }

// Look returns a Look at the database in use. When a reader of the Store finds damage, the database is
// set aside at once. When a Look finds damage, only the Look's caller hears of it.
func (s *Store) Look() *Look { return &Look{of: s, Dir: s.Stats().Dir} }

// read runs op on the database.
func (l *Look) read(op func(*pebble.DB) error) (err error) {
	s, db := l.of, l.db
	if db == nil {
		if db, err = s.live(); err != nil {
			return err
		}
		defer s.mu.RUnlock()
		s.looks.Add(1)
		defer s.looks.Add(-1)
	}
	if err = s.guarded(db, op); err != nil {
		return fmt.Errorf("read the names in %s: %w", l.Dir, err)
	}
	return nil
}

// OpenLook opens the database that the next start would take in dir: the copy in it, if that is newer.
// The error ErrNewer means that this version cannot read it, and ErrUnmade that there is none yet.
func OpenLook(dir string) (l *Look, err error) {
	if exists(vfs.Default, filepath.Join(dir+again, wholeFile)) {
		dir += again
	}
	// Only its options are used; it is never opened.
	s := &Store{o: Options{CacheBytes: defaultCache}}
	disk := newSteady(vfs.Default, nil, nil)
	o := s.options(disk, func(error) {})
	o.ReadOnly = true
	db, err := openWhole(dir, o)
	if errors.Is(err, pebble.ErrDBDoesNotExist) && disk.cause() == nil {
		return nil, fmt.Errorf("%s: %w", dir, ErrUnmade)
	}
	if err != nil { // the disk's error first: after it Pebble may have seen only an empty memory
		return nil, fmt.Errorf("open the names in %s: %w", dir, errors.Join(disk.cause(), err))
	}
	return &Look{db: db, of: s, Dir: dir}, nil
}

// Verify reads every level once, and so compares every block's checksum. Of a database in use it reads
// nothing: there Scan reads the records. One read of everything would keep a failed database from being
// replaced until it ends.
func (l *Look) Verify() error {
	if l.db == nil {
		return nil
	}
	return l.read(func(db *pebble.DB) error { return db.CheckLevels(nil) })
}

// Get appends the value of key to buf, as Store.Get does.
func (l *Look) Get(buf, key []byte) (_ []byte, held bool, err error) {
	err = l.read(func(db *pebble.DB) error {
		v, closer, err := db.Get(key)
		if errors.Is(err, pebble.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		buf, held = append(buf, v...), true
		return closer.Close()
	})
	return buf, held, err
}

// Scan reads up to n records in [lower, upper) into rows, as Store.Scan does.
func (l *Look) Scan(rows *Rows, lower, upper []byte, n int) error {
	return l.read(func(db *pebble.DB) error { return rows.scan(db, lower, upper, n) })
}

// Close ends the look.
func (l *Look) Close() error {
	if l.db != nil {
		closeQuietly(l.db)
	}
	return nil
}

// SetAside renames a database that nobody uses and nobody may trust, as a start does with one that it
// cannot open.
func SetAside(dir string) error { return setAside(vfs.Default, dir) }
