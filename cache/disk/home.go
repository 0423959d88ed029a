package disk

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/cache/direct"
	"github.com/hearthfs/hearth/cache/disk/layout"
	"github.com/hearthfs/hearth/cache/holder"
)

// homeFormat is the version of the directory's layout. Segments, objects and
// names have versions of their own.
const homeFormat = 1

// home is a cache directory that this process owns: locked, and known by its ids.
type home struct {
	path string
	node string   // id of the node, equal in all of its directories
	id   string   // id of this directory: placement hangs on it, not on the path
	lock *os.File // holds the flock
}

// homeText is the content of hearth.json. Every later format keeps these four
// fields, so that an older program can say that it is older.
type homeText struct {
	Format    int    `json:"format"`
	Node      string `json:"node"`
	Directory string `json:"directory"`
	// Check is the CRC-32C of the other three: a flipped bit is damage, and must
	// not look like a newer format.
	Check string `json:"check"`
}

func (t homeText) check() string {
	text := fmt.Sprintf("%d %s %s", t.Format, t.Node, t.Directory)
	return fmt.Sprintf("%08x", crc32.Checksum([]byte(text), crc32.MakeTable(crc32.Castagnoli)))
}

// openHome makes the directory at path this process's own. It refuses (ErrRefused)
// what a person must decide: a directory in a FUSE mount, one that holds something
// else, one of another process, one of a newer format. node is the id that a new
// directory gets; empty: a new one.
func openHome(path, node string, statfs statfsFunc) (_ *home, err error) {
	if err := refuseFUSE(path, statfs); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("make cache directory: %w", err)
	}
	if err := refuseForeign(path); err != nil {
		return nil, err
	}
	h := &home{path: path}
	if h.lock, err = lock(path); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			h.close()
		}
	}()
	if err = direct.ClearWay(filepath.Join(path, layout.Home), false); err != nil {
		return nil, err
	}
	text, err := readHome(path)
	switch {
	case err == nil && text.Format > homeFormat:
		return nil, newerHome(path, text)
	case err == nil:
	case errors.Is(err, errDamaged), errors.Is(err, fs.ErrNotExist):
		// The blocks speak for themselves; only the ids are new.
		if text, err = writeHome(path, node); err != nil {
			return nil, err
		}
	default:
		return nil, err
	}
	h.node, h.id = text.Node, text.Directory
	for _, dir := range []string{layout.Segments, layout.Objects, layout.Names} {
		if err := direct.MakeDir(filepath.Join(path, dir)); err != nil {
			return nil, err
		}
	}
	direct.Reclaim(filepath.Join(path, layout.Names))
	return h, nil
}

func newerHome(path string, text homeText) error {
	return refuse("cache directory %s has format %d, this version of hearth knows %d: run the newer hearth, or give this one another directory",
		path, text.Format, homeFormat)
}

// intact says why the directory is no longer ours: it was removed or replaced.
func (h *home) intact() error {
	ours, err := h.lock.Stat()
	if err != nil {
		return fmt.Errorf("check cache directory: %w", err)
	}
	there, err := os.Stat(filepath.Join(h.path, layout.Lock))
	if err != nil {
		return fmt.Errorf("check cache directory: %w", err)
	}
	if !os.SameFile(ours, there) {
		return fmt.Errorf("check cache directory %s: it was replaced", h.path)
	}
	for _, dir := range []string{layout.Segments, layout.Objects} {
		if fi, err := os.Stat(filepath.Join(h.path, dir)); err != nil || !fi.IsDir() {
			return fmt.Errorf("check cache directory %s: %s was removed", h.path, dir)
		}
	}
	return nil
}

const (
	// lockGrace is how long a directory that another process holds is waited for: it
	// may be about to say that it ends.
	lockGrace = time.Second
	// endGrace is how long one that says so is waited for, while it writes what it
	// has queued.
	endGrace = 30 * time.Second
	lockPoll = 20 * time.Millisecond
)

// acquire takes the lock, or says who has it.
func acquire(f *os.File, path string) error {
	for start := time.Now(); ; time.Sleep(lockPoll) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return fmt.Errorf("lock cache directory %s: %w", path, err)
		}
		text := make([]byte, 64)
		n, _ := f.ReadAt(text, 0)
		by := holder.Parse(string(text[:n]))
		patience := lockGrace
		if by.Ends {
			patience = endGrace
		}
		if by.IsSelf() || time.Since(start) > patience {
			if by.Defunct() {
				return refuseAs(ErrHung, "cache directory %s is in use by process %s, which was killed and cannot end while a reader waits for its mount: run umount -f on that, as root", path, by.PID)
			}
			return refuseAs(ErrInUse, "cache directory %s is in use by process %s: stop that one, or give this one a directory of its own", path, by.PID)
		}
	}
}

// ends says that this process is about to give the directory up.
func (h *home) ends() {
	self := holder.Self()
	self.Ends = true
	_, _ = h.lock.WriteAt([]byte(self.String()), 0)
}

func (h *home) close() {
	if h.lock != nil {
		h.lock.Close()
	}
}

// refuseFUSE keeps the cache out of FUSE mounts: in our own one each write would
// wait for the process that waits for the write.
func refuseFUSE(path string, statfs statfsFunc) error {
	var st unix.Statfs_t
	if err := nearest(path, &st, statfs); err != nil {
		return err
	}
	if st.Type == unix.FUSE_SUPER_MAGIC {
		return refuse("cache directory %s lies in a FUSE mount: choose one on a local disk", path)
	}
	return nil
}

// refuseForeign keeps us from filling, and one day emptying, somebody else's directory.
func refuseForeign(path string) error {
	name, err := layout.Foreign(path)
	if err != nil {
		return fmt.Errorf("look at cache directory: %w", err)
	}
	if name != "" {
		return refuse("cache directory %s is not empty and not hearth's (it holds %q): choose another, or empty it", path, name)
	}
	return nil
}

// lock takes the directory for this process. The lock is the kernel's and goes
// with the process, however it ends.
func lock(path string) (*os.File, error) {
	name := filepath.Join(path, layout.Lock)
	if err := direct.ClearWay(name, false); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock cache directory: %w", err)
	}
	if err := acquire(f, path); err != nil {
		f.Close()
		return nil, err
	}
	if err := f.Truncate(0); err == nil { // who holds it is a courtesy, not the lock
		_, _ = f.WriteAt([]byte(holder.Self().String()), 0)
	}
	return f, nil
}

func readHome(path string) (homeText, error) {
	var t homeText
	name := filepath.Join(path, layout.Home)
	if fi, err := os.Lstat(name); err == nil && !fi.Mode().IsRegular() {
		return t, errDamaged
	}
	data, err := os.ReadFile(name)
	if err != nil {
		return t, fmt.Errorf("read cache directory's id: %w", err)
	}
	return parseHome(data)
}

func parseHome(data []byte) (homeText, error) {
	var t homeText
	if json.Unmarshal(data, &t) != nil || t.Check != t.check() || t.Format < 1 {
		return t, errDamaged
	}
	return t, nil
}

// writeHome makes a new hearth.json, durable before anything is stored.
func writeHome(path, node string) (homeText, error) {
	if node == "" {
		node = randomID()
	}
	t := homeText{Format: homeFormat, Node: node, Directory: randomID()}
	t.Check = t.check()
	data, err := json.Marshal(t)
	if err != nil {
		return t, fmt.Errorf("write cache directory's id: %w", err)
	}
	name := filepath.Join(path, layout.Home)
	if err := direct.ClearWay(name, false); err != nil {
		return t, err
	}
	if err := direct.WriteDurably(name, append(data, '\n')); err != nil {
		return t, fmt.Errorf("write cache directory's id: %w", err)
	}
	return t, nil
}

func randomID() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	return hex.EncodeToString(id[:])
}

// refusal is an error that a person must mend; its text says how.
type refusal struct {
	text string
	kind error
}

func refuse(format string, args ...any) error {
	return &refusal{text: fmt.Sprintf(format, args...)}
}

func refuseAs(kind error, format string, args ...any) error {
	return &refusal{text: fmt.Sprintf(format, args...), kind: kind}
}

func (r *refusal) Error() string { return r.text }

// Is makes a refusal an ErrRefused.
func (r *refusal) Is(target error) bool {
	return target == ErrRefused || r.kind != nil && target == r.kind || target == ErrInUse && r.kind == ErrHung
}
