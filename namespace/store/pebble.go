package store

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/atomicfs"
)

// ErrNewer says that a newer version wrote the database. Such a database is never changed.
var ErrNewer = errors.New("written by a newer version of hearth: run that one, or use another directory")

// newerFormat reports whether a database's format is newer than this Pebble knows.
func newerFormat(on vfs.FS, dir string) bool {
	text, err := atomicfs.ReadMarker(on, dir, "format-version")
	if err != nil {
		return false
	}
	n, err := strconv.ParseUint(text, 10, 64)
	return err == nil && n > uint64(pebble.FormatNewest)
}

// options returns Pebble's options, for a small database of small records. doom is told what makes the
// database useless.
func (s *Store) options(on *steady, doom func(error)) *pebble.Options {
	o := &pebble.Options{
		FS:                          on,
		CacheSize:                   s.o.CacheBytes,
		MemTableSize:                memTable,
		MemTableStopWritesThreshold: 4,
		L0CompactionThreshold:       4,
		L0StopWritesThreshold:       32,
		LBaseMaxBytes:               16 << 20,
		MaxOpenFiles:                512,
		BytesPerSync:                1 << 20,
		WALBytesPerSync:             1 << 20,
		FormatMajorVersion:          pebble.FormatNewest,
		CompactionConcurrencyRange:  func() (int, int) { return 1, 1 },
		Logger:                      logger{s, doom},
		EventListener: &pebble.EventListener{
			// Both may be called on Pebble's goroutines, which must not close the database. While a Look
			// reads, it may be what met the damage, so the database stays. That loses nothing: a reader
			// gets the same error.
			DataCorruption: func(i pebble.DataCorruptionInfo) {
				if s.looks.Load() == 0 {
					doom(i.Details)
				}
			},
			BackgroundError: func(err error) {
				if pebble.IsCorruptionError(err) {
					doom(err)
				}
			},
		},
	}
	for i := range o.Levels {
		o.Levels[i].BlockSize = 8 << 10        // names compress well together; a look-up reads one
		o.Levels[i].IndexBlockSize = 256 << 10 // one level: a table has some hundred blocks
		o.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
		// Measured on 200,000 names, one run each on a busy machine, blocks of 16 and of
		// 4 KiB: bytes per name MinLZ 44 and 50, Snappy 47 and 51, Zstd 37 and 39; us per
		// look-up by id MinLZ 15 and 13, Snappy 18 and 17, Zstd 32 and 25. MinLZ is also
		// pure Go. At 8 KiB it takes 47 bytes.
		o.Levels[i].Compression = func() *sstable.CompressionProfile { return sstable.MinLZCompression }
	}
	return o
}

func (s *Store) log(format string, args ...any) {
	if s.o.Log != nil {
		s.o.Log(fmt.Sprintf(format, args...))
	}
}

// logger routes what Pebble logs. A fatal error panics instead of ending the process. The store recovers
// from the panic, and starts anew in memory.
type logger struct {
	s    *Store
	doom func(error)
}

// Infof is part of pebble.Logger. It drops the lines about compactions.
func (logger) Infof(string, ...any) {}

// Errorf is part of pebble.Logger.
func (l logger) Errorf(format string, args ...any) { l.s.log(format, args...) }

// Fatalf is part of pebble.Logger, which expects it not to return.
func (l logger) Fatalf(format string, args ...any) {
	err := fmt.Errorf(format, args...)
	l.doom(err)
	l.s.log("fatal: %v", err)
	panic(err)
}
