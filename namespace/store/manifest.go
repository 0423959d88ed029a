package store

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/record"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// checkManifest reads the manifest, the list of the tables, to its end. Pebble takes damage in it for the
// end, as after a power failure. Tables that were written later are then missing, while what was logged
// since is there. So a directory that counts as listed could lack names, or have an id that nobody knows.
// A manifest that cannot be read at all is no error here: opening the database reports it.
func checkManifest(on vfs.FS, dir string) error {
	d, err := pebble.Peek(dir, on)
	if err != nil {
		return nil
	}
	if !d.Exists {
		return checkUnmade(on, dir)
	}
	f, err := on.Open(d.ManifestFilename)
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	for r := record.NewReader(f, 0); ; {
		edit, err := r.Next()
		if err == nil {
			_, err = io.Copy(io.Discard, edit)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s is damaged at %d: %w", d.ManifestFilename, r.Offset(), err)
		}
	}
}

// checkUnmade checks a directory in which no marker names a manifest. Pebble would make a new database
// there, and replay the logs of an old one into it.
func checkUnmade(on vfs.FS, dir string) error {
	names, err := on.List(dir)
	if err != nil {
		return nil
	}
	for _, name := range names {
		if strings.HasSuffix(name, ".log") || strings.HasSuffix(name, ".sst") {
			return fmt.Errorf("%s has %s, and nothing that names its manifest", dir, name)
		}
	}
	return nil
}

// openWhole opens the database in a directory, unless its manifest is damaged.
func openWhole(dir string, o *pebble.Options) (*pebble.DB, error) {
	if damaged := checkManifest(o.FS, dir); damaged != nil {
		lock, err := pebble.LockDirectory(dir, o.FS) // without the lock another process may be writing it
		if err != nil {
			return nil, err
		}
		return nil, errors.Join(damaged, lock.Close())
	}
	return openPebble(dir, o)
}
