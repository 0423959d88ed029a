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

// checkManifest reads the manifest, which says what tables there are, to its end.
// Pebble takes damage in it for the end, as after a power failure: tables written later
// are then not there while what was logged since is, and a directory that counts as
// listed misses names, or one has an id that nobody knows. What cannot be read at all,
// opening it tells.
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

// checkUnmade is for a directory in which no marker names a manifest. Pebble makes a
// new database there, and takes what an old one has logged for its own.
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

// openWhole opens a database that lies in a directory, unless its manifest is damaged.
func openWhole(dir string, o *pebble.Options) (*pebble.DB, error) {
	if damaged := checkManifest(o.FS, dir); damaged != nil {
		lock, err := pebble.LockDirectory(dir, o.FS) // else somebody writes it just now
		if err != nil {
			return nil, err
		}
		return nil, errors.Join(damaged, lock.Close())
	}
	return openPebble(dir, o)
}
