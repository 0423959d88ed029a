package store

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// ErrUnmade says that a process ended while it made a database: there is none yet.
var ErrUnmade = errors.New("a database in the making, that a process left when it ended")

// Look is a database that no process uses, opened to be read and not changed.
type Look struct {
	db *pebble.DB
	// Dir is where it lies.
	Dir string
}

// OpenLook opens the database that the next start would take in dir: its copy, if
// that is newer. ErrNewer: this version cannot read it. ErrUnmade: there is none yet.
func OpenLook(dir string) (l *Look, err error) {
	if exists(vfs.Default, filepath.Join(dir+again, wholeFile)) {
		dir += again
	}
	// Its options only; it is never opened.
	s := &Store{o: Options{CacheBytes: defaultCache}}
	disk := newSteady(vfs.Default, nil, nil)
	o := s.options(disk, func(error) {})
	o.ReadOnly = true
	db, err := openWhole(dir, o)
	if errors.Is(err, pebble.ErrDBDoesNotExist) && disk.cause() == nil {
		return nil, fmt.Errorf("%s: %w", dir, ErrUnmade)
	}
	if err != nil { // what failed first, behind which Pebble may have seen an empty memory
		return nil, fmt.Errorf("open the names in %s: %w", dir, errors.Join(disk.cause(), err))
	}
	return &Look{db: db, Dir: dir}, nil
}

// Verify reads every level, and so every block's checksum, once.
func (l *Look) Verify() error {
	err := new(Store).guarded(l.db, func(db *pebble.DB) error { return db.CheckLevels(nil) })
	if err != nil {
		return fmt.Errorf("read the names in %s: %w", l.Dir, err)
	}
	return nil
}

// Get appends the value of key to buf, as Store.Get; false: there is none.
func (l *Look) Get(buf, key []byte) ([]byte, bool, error) {
	v, closer, err := l.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return buf, false, nil
	}
	if err != nil {
		return buf, false, fmt.Errorf("read the names in %s: %w", l.Dir, err)
	}
	buf = append(buf, v...)
	return buf, true, closer.Close()
}

// Scan reads up to n records in [lower, upper) into rows, as Store.Scan.
func (l *Look) Scan(rows *Rows, lower, upper []byte, n int) error {
	if err := rows.scan(l.db, lower, upper, n); err != nil {
		return fmt.Errorf("read the names in %s: %w", l.Dir, err)
	}
	return nil
}

// Close ends the look.
func (l *Look) Close() error {
	closeQuietly(l.db)
	return nil
}

// SetAside puts a database that nobody uses and that is not to be believed beside its
// place, as a start does with one that it cannot open.
func SetAside(dir string) error { return setAside(vfs.Default, dir) }
