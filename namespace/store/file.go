package store

import (
	"io"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// file is an open file of a steady file system. Pebble writes a file from one
// goroutine, front to back.
type file struct {
	vfs.File
	fs      *steady
	name    string
	written int64
	mem     bool // File is in memory
	behind  bool // a sync was left out
	dir     bool
}

// Write is part of vfs.File. It always succeeds.
func (f *file) Write(p []byte) (int, error) {
	if f.fs.isIll() {
		if unread(f.name) {
			return len(p), nil
		}
		f.toMemory()
	}
	if !f.mem {
		n, err := f.File.Write(p)
		f.written += int64(n)
		if err == nil {
			return n, nil
		}
		f.fs.fail(err)
		rest, _ := f.Write(p[n:])
		return n + rest, nil
	}
	n, err := f.File.Write(p)
	if used := f.fs.used.Add(int64(n)); used > f.fs.limit && f.fs.tooMuch != nil && !f.fs.retired.Load() {
		f.fs.tooMuch(used)
	}
	return n, err
}

// toMemory continues the file in memory, with a copy of what was written so far. What cannot be read
// back becomes zeros, which Pebble finds by its checksums.
func (f *file) toMemory() {
	if f.mem || f.dir {
		return
	}
	content := make([]byte, f.written)
	if disk, err := f.fs.FS.Open(f.name); err == nil {
		_, _ = io.ReadFull(disk, content)
		_ = disk.Close()
	}
	m, err := f.fs.createInMemory(f.name, content)
	if err != nil {
		return
	}
	_ = f.File.Close()
	f.File, f.mem = m.(*file).File, true
}

// WriteAt is part of vfs.File.
func (f *file) WriteAt(p []byte, off int64) (int, error) {
	if f.mem {
		return f.File.WriteAt(p, off)
	}
	if n, err := f.File.WriteAt(p, off); err != nil {
		f.fs.fail(err)
		f.written = max(f.written, off+int64(n))
	}
	return len(p), nil
}

// Sync is part of vfs.File.
func (f *file) Sync() error { return f.synced(f.File.Sync) }

// SyncData is part of vfs.File.
func (f *file) SyncData() error { return f.synced(f.File.SyncData) }

// SyncTo is part of vfs.File.
func (f *file) SyncTo(n int64) (full bool, err error) {
	err = f.synced(func() (err error) {
		full, err = f.File.SyncTo(n)
		return err
	})
	return full, err
}

func (f *file) synced(sync func() error) error {
	if f.fs.isIll() {
		return nil
	}
	if f.fs.idle.Load() && f.fs.durable.Load() == 0 && strings.HasSuffix(f.name, ".log") {
		f.behind = true
		return nil
	}
	if err := sync(); err != nil {
		f.fs.fail(err)
	}
	f.behind = false
	return nil
}

// Preallocate is part of vfs.File. It is a hint, and is ignored: each log would take 4.4 MiB at once from
// the cache's budget, whose owner sees only later that they are gone.
func (f *file) Preallocate(int64, int64) error { return nil }

// Close is part of vfs.File.
func (f *file) Close() error {
	if f.behind && !f.mem { // Pebble begins the next log, and takes this one for durable
		f.fs.durable.Add(1)
		_ = f.SyncData() // a failure has made the file system ill
		f.fs.durable.Add(-1)
	}
	if err := f.File.Close(); err != nil {
		f.fs.fail(err)
	}
	return nil
}
