package warmup

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/hearthfs/hearth/internal/device"
)

// This file keeps what a job that checks has learned, in files beside its record. So the
// job goes on after the process was killed.
//
// Changes are names that turned out to mean another thing than the node believed. A fresh
// listing replaces what was known while it comes, so each change is noted when it is
// reported. The first meaning of a name is kept, and appended to a file of notes. A kill
// loses the notes of the moment before it.
//
// Findings are the paths that are not whole, a line of JSON each. The record says how
// many bytes of their file it covers. What lies behind that is cut off when the job goes
// on.

// Pace waits until n bytes may be read.
type Pace func(ctx context.Context, n int64) error

// Verdict is what a check found of some blocks, in bytes.
type Verdict struct {
	// Whole bytes are on disk as they were written. Corrupt bytes are there but differ.
	// Missing bytes are not there, or cannot be read from a disk. Cause is the first cause of the
	// worst; "" means that all is whole.
	Whole, Missing, Corrupt int64
	Cause                   string
	// Unread bytes could not be looked at, for the reason Unable: nobody knows whether they are there.
	Unread int64
	Unable string
	// Read bytes were compared. Buffered counts blocks read through the page cache, which
	// had been dropped before.
	Read, Buffered int64
}

const (
	// mostChanges are kept of one job, about 200 bytes each in memory. Of a change beyond
	// that the job knows only that the new version is not there.
	mostChanges = 1 << 16
	// mostFindings bounds a file of findings, in bytes: some 400,000 paths. Beyond it
	// findings are only counted, since the disk is for blocks.
	mostFindings = 64 << 20
)

// Was is what a name meant before.
type Was struct {
	Dir     bool     `json:"dir,omitempty"`
	Bytes   int64    `json:"bytes,omitempty"`
	Version [16]byte `json:"version"`
}

// changeNotes are the changes of one job. Its methods are safe for concurrent use.
type changeNotes struct {
	file *os.File
	wake chan struct{} // capacity 1: something was heard
	work sync.WaitGroup

	settling sync.Mutex // held while what was heard is learned and written; locked before mu

	mu    sync.Mutex // guards the rest
	heard []heard
	known map[uint64]map[string]Was
	n     int // in heard and known together
	lost  int64
}

type heard struct {
	dir  uint64
	name string
	was  func() (Was, error)
}

// note is a line of the file.
type note struct {
	In   uint64 `json:"in"`
	Name string `json:"name"`
	Was
}

// openChanges goes on with the notes of a file, which need not exist yet.
func openChanges(name string) (*changeNotes, error) {
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("keep what the check learns of names: %w", err)
	}
	c := &changeNotes{file: file, wake: make(chan struct{}, 1), known: map[uint64]map[string]Was{}}
	if err := c.load(); err != nil {
		_ = file.Close() // the first error is reported
		return nil, fmt.Errorf("keep what the check learns of names: %w", err)
	}
	wake := c.wake
	c.work.Go(func() {
		for range wake {
			_ = c.Settle() // the next caller of Settle reports a write error
		}
	})
	return c, nil
}

// load reads the notes of an earlier process.
func (c *changeNotes) load() error {
	in := bufio.NewReader(c.file)
	for {
		line, err := in.ReadBytes('\n')
		var n note
		if err == nil && json.Unmarshal(line, &n) == nil { // otherwise a kill cut the line off
			c.addLocked(n)
			c.n++
		}
		if err != nil && len(line) > 0 {
			_, err = c.file.WriteString("\n") // so that the next note is a line of its own
			return err
		}
		if err != nil {
			return nil
		}
	}
}

// Heard takes a change of a name in a directory. was tells what the name meant. Heard
// does not block.
func (c *changeNotes) Heard(dir uint64, name string, was func() (Was, error)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if name == "" || c.n >= mostChanges {
		c.lost++
		return
	}
	c.n++
	c.heard = append(c.heard, heard{dir, name, was})
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Settle returns once what was heard is learned and written down.
func (c *changeNotes) Settle() error {
	c.settling.Lock()
	defer c.settling.Unlock()
	c.mu.Lock()
	all := c.heard
	c.heard = nil
	c.mu.Unlock()
	var text []byte
	for _, h := range all {
		was, err := h.was() // an error means that nobody knows any more what the name meant
		n := note{h.dir, h.name, was}
		c.mu.Lock()
		fresh := err == nil && c.addLocked(n)
		if !fresh {
			c.n--
		}
		c.mu.Unlock()
		line, err := json.Marshal(n)
		if fresh && err == nil {
			text = append(append(text, line...), '\n')
		}
	}
	if len(text) == 0 {
		return nil
	}
	_, err := c.file.Write(text)
	return err
}

func (c *changeNotes) addLocked(n note) (fresh bool) {
	names := c.known[n.In]
	if names == nil {
		names = map[string]Was{}
		c.known[n.In] = names
	}
	if _, old := names[n.Name]; old {
		return false // the first is what was known when the job began
	}
	names[n.Name] = n.Was
	return true
}

// Was is what a name of a directory meant before, if that was noted.
func (c *changeNotes) Was(dir uint64, name string) (was Was, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	was, ok = c.known[dir][name]
	return was, ok
}

// In returns the names of a directory that changed, sorted, from behind after on.
func (c *changeNotes) In(dir uint64, after string) (names []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name := range c.known[dir] {
		if name > after {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Lost counts changes that were not kept.
func (c *changeNotes) Lost() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lost
}

// Close ends the notes. What Heard is told after that is left out.
func (c *changeNotes) Close() {
	c.mu.Lock()
	close(c.wake)
	c.wake = nil // a change that is reported even so is left out
	c.mu.Unlock()
	c.work.Wait()
	_ = c.file.Close() // Lost counts what was not kept, and Settle has reported the rest
}

// findings writes the findings of one job. It belongs to the job's one goroutine.
type findings struct {
	file *os.File
	out  *bufio.Writer
	size int64
	most int64

	synced int64 // how many of size bytes are synced
}

// openFindings goes on behind the first size bytes of a file.
func openFindings(name string, size int64) (*findings, error) {
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		err = file.Truncate(size)
	}
	if err == nil {
		_, err = file.Seek(size, io.SeekStart)
	}
	if err == nil {
		err = device.SyncDir(filepath.Dir(name))
	}
	if err != nil {
		_ = file.Close() // closing nil is an error and does nothing else
		return nil, fmt.Errorf("keep what the check finds: %w", err)
	}
	return &findings{file: file, out: bufio.NewWriter(file), size: size, synced: size, most: mostFindings}, nil
}

// Add adds one finding. It returns false if the file is full.
func (f *findings) Add(finding any) bool {
	line, err := json.Marshal(finding)
	if err != nil || f.size+int64(len(line)) >= f.most {
		return false
	}
	f.size += int64(len(line)) + 1
	_, _ = f.out.Write(append(line, '\n')) // Flush reports the first error
	return true
}

// Flush syncs what was added, since a record will cover it, and returns the size.
func (f *findings) Flush() (size int64, err error) {
	if f.synced == f.size {
		return f.size, nil
	}
	if err := errors.Join(f.out.Flush(), f.file.Sync()); err != nil {
		return f.size, err
	}
	f.synced = f.size
	return f.size, nil
}

// Close closes the file.
func (f *findings) Close() error { return errors.Join(f.out.Flush(), f.file.Close()) }

// ReadFindings opens the first size bytes of a file of findings. fs.ErrNotExist means
// that there is none.
func ReadFindings(name string, size int64) (io.ReadCloser, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("read what the check found: %w", err)
	}
	return struct {
		io.Reader
		io.Closer
	}{io.LimitReader(file, size), file}, nil
}

// removeFiles removes those files of a job that exist, since the job begins anew.
func removeFiles(names ...string) error {
	for _, name := range names {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
