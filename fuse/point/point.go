// Package point holds a mount point from the check to the use, so that an act hits what was
// checked.
//
// A path proves nothing for long where it runs through a directory of another user. While root
// waits for a mount's answer, that user can rename a directory and put a symbolic link in its place
// (a TOCTOU race). So Open walks to the mount point without following links. It opens each
// directory on the way for its path alone (O_PATH), which asks no file system process. The result
// is two descriptors: of the directory that contains the mount point, and of what is on top there.
// The kernel says which mount that is, and the mount table says of what kind. While the descriptors
// are held, the mount cannot end, and neither its number nor its device's can be given to another.
//
//	look      by Top, a path through the descriptor; the look mounts nothing
//	detach    the very mount of the descriptor, whatever has become of the path
//	unmount   a descriptor of the mount keeps it busy, so the directory's descriptor is used.
//	          Meanwhile only the mount's own user can have replaced what was seen there. So this
//	          is refused for the mounts of other users, which are detached instead
//	mount     over the very directory that was seen
//
// While an automount point waits for its mount, the kernel lets only the process group of the mount
// helper walk to it. So the helper holds the point (Open, Automount) and passes its descriptor
// (File) to the node. The node mounts over that descriptor and finds the result in the mount table
// (Of).
package point

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Point is a place in the tree of files where something is mounted, or may be.
type Point struct {
	// Info is the line of the mount table for the topmost mount there; nil means that nothing is
	// mounted.
	Info *mountinfo.Info

	dir         string
	parent, top int    // descriptors; parent is -1 where this process may not walk to dir
	id          int    // of the mount that top leads to
	kind        string // of its file system
}

// Of holds the directory of a descriptor, which the Point then owns. Nothing walks to it by its
// path.
func Of(top *os.File) (*Point, error) {
	defer func() { _ = top.Close() }() // a copy is held
	fd, err := unix.FcntlInt(top.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("hold a mount point: %w", err)
	}
	p := &Point{parent: -1, top: fd}
	if p.dir, err = os.Readlink(p.Top()); err == nil {
		err = p.identify()
	}
	var st unix.Stat_t
	if err == nil && (unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR) {
		err = unix.ENOTDIR
	}
	if err != nil {
		p.Close()
		return nil, fmt.Errorf("hold the mount point %s: %w", p.dir, err)
	}
	return p, nil
}

// Open holds what is at dir, an absolute path without symbolic links. A file system on the way may
// not answer; then Open ends with ctx.
func Open(ctx context.Context, dir string) (*Point, error) {
	type found struct {
		p   *Point
		err error
	}
	came := make(chan found)
	go func() {
		p, err := open(dir)
		select {
		case came <- found{p, err}:
		case <-ctx.Done():
			p.Close()
		}
	}()
	select {
	case f := <-came:
		return f.p, f.err
	case <-ctx.Done():
		return nil, fmt.Errorf("the way to %s does not answer: %w", dir, context.Cause(ctx))
	}
}

func open(dir string) (*Point, error) {
	if !filepath.IsAbs(dir) || dir != filepath.Clean(dir) || dir == "/" {
		return nil, fmt.Errorf("mount point %q: not an absolute path below /: %w", dir, fs.ErrInvalid)
	}
	p := &Point{dir: dir, parent: -1, top: -1}
	var err error
	if p.parent, err = walk(filepath.Dir(dir)); err == nil {
		err = p.look()
	}
	if err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// step opens one directory on the way, never a link.
func step(at int, name string) (int, error) { return openat(at, name, unix.O_DIRECTORY) }

// last opens the end of the path, never a link. O_DIRECTORY would trigger an automount, for which
// systemd may have started this very process.
func last(at int, name string) (int, error) {
	fd, err := openat(at, name, 0)
	if err != nil {
		return -1, err
	}
	if _, err := unix.Readlinkat(fd, "", make([]byte, 1)); err == nil { // this asks no file system process
		_ = unix.Close(fd) // only its path was open
		return -1, unix.ELOOP
	}
	return fd, nil
}

func openat(at int, name string, more int) (int, error) {
	for {
		fd, err := unix.Openat(at, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC|more, 0)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

func walk(dir string) (at int, err error) {
	if at, err = step(unix.AT_FDCWD, "/"); err != nil {
		return -1, err
	}
	so := ""
	for name := range strings.SplitSeq(strings.Trim(dir, "/"), "/") {
		if name == "" {
			continue // dir is the root
		}
		so += "/" + name
		next, err := step(at, name)
		_ = unix.Close(at) // only its path was open
		if err != nil {
			return -1, &fs.PathError{Op: "open without following links", Path: so, Err: err}
		}
		at = next
	}
	return at, nil
}

// look opens what is on top now, and finds it in the mount table.
func (p *Point) look() error {
	top, err := last(p.parent, filepath.Base(p.dir))
	if err != nil {
		return &fs.PathError{Op: "open without following links", Path: p.dir, Err: err}
	}
	if p.top >= 0 {
		_ = unix.Close(p.top)
	}
	p.top = top
	return p.identify()
}

// identify finds the mount that top leads to in the mount table.
func (p *Point) identify() (err error) {
	p.Info, p.kind = nil, ""
	if p.id, err = mountID(p.top); err != nil {
		return err
	}
	all, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) { return m.ID != p.id, m.ID == p.id })
	if err != nil {
		return fmt.Errorf("read the mount table: %w", err)
	}
	if len(all) > 0 {
		p.kind = all[0].FSType
		if all[0].Mountpoint == p.dir { // else dir is a directory of that mount, or was moved
			p.Info = all[0]
		}
	}
	return nil
}

// over finds in the mount table what was mounted over top, where this process may not walk to it.
func (p *Point) over(kind string) error {
	all, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return m.Parent != p.id || m.Mountpoint != p.dir || m.FSType != kind, false
	})
	if err != nil {
		return fmt.Errorf("read the mount table: %w", err)
	}
	if p.Info = nil; len(all) > 0 {
		p.Info = all[len(all)-1]
	}
	return nil
}

// mountID returns the id of the mount that a descriptor leads to.
func mountID(fd int) (int, error) {
	text, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(fd))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if id, ok := strings.CutPrefix(line, "mnt_id:"); ok {
			return strconv.Atoi(strings.TrimSpace(id))
		}
	}
	return 0, errors.New("/proc does not say which mount a descriptor leads to (mnt_id, of Linux 3.15)")
}

// Close releases the descriptors. On nil it does nothing.
func (p *Point) Close() {
	if p == nil {
		return
	}
	for _, fd := range []*int{&p.parent, &p.top} {
		if *fd >= 0 {
			_ = unix.Close(*fd) // only its path was open
			*fd = -1
		}
	}
}

// Dir returns the path to what was seen, free of symbolic links.
func (p *Point) Dir() string { return p.dir }

// Automount reports whether an automounter has mounted what was seen, or may just be waiting for a
// mount there.
func (p *Point) Automount() bool { return p.kind == "autofs" }

// File returns another descriptor of what was seen, for its path alone.
func (p *Point) File() (*os.File, error) {
	fd, err := unix.FcntlInt(uintptr(p.top), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("hand on the mount point %s: %w", p.dir, err)
	}
	return os.NewFile(uintptr(fd), p.dir), nil
}

// Top returns a path that leads to what was seen, from any thread of this process.
func (p *Point) Top() string { return "/proc/self/fd/" + strconv.Itoa(p.top) }

// Mount mounts over the directory that was seen, and then looks up the new mount.
func (p *Point) Mount(source, kind string, flags uintptr, data string) error {
	if err := unix.Mount(source, p.Top(), kind, flags, data); err != nil {
		return err
	}
	below, look := p.id, p.look
	if p.parent < 0 {
		look = func() error { return p.over(kind) }
	}
	err := look()
	if err == nil && (p.Info == nil || p.Info.FSType != kind) {
		if p.id != below { // the directory has another path by now
			_ = unix.Unmount(p.Top(), unix.MNT_DETACH)
		}
		err = fmt.Errorf("%s was moved or mounted over meanwhile: try again", p.dir)
	}
	return err
}

// Detach takes away the mount that was seen, even in use.
func (p *Point) Detach() error {
	switch {
	case p.Info == nil:
		return fs.ErrNotExist
	case p.parent < 0: // top is below what Info is of
		return fs.ErrInvalid
	}
	return unix.Unmount(p.Top(), unix.MNT_DETACH)
}

// Force aborts the connection of the FUSE mount that was seen. The kernel answers that it is busy,
// but has done it.
func (p *Point) Force() error {
	if p.Info == nil {
		return fs.ErrNotExist
	}
	if err := unix.Unmount(p.Top(), unix.MNT_FORCE); err != nil && err != unix.EBUSY {
		return err
	}
	return nil
}

// ErrOthers refuses to unmount what another user has mounted.
var ErrOthers = errors.New("it is another user's mount: detach it (hearth umount --lazy), or have that user take it away")

// Unmount takes away the FUSE mount that was seen, unless it is in use, and closes p.
func (p *Point) Unmount() error {
	defer p.Close()
	switch {
	case p.Info == nil:
		return fs.ErrNotExist
	case !p.Own():
		return ErrOthers
	}
	_ = unix.Close(p.top) // an open descriptor is a use of the mount
	p.top = -1
	return unix.Unmount(fmt.Sprintf("/proc/self/fd/%d/%s", p.parent, filepath.Base(p.dir)), unix.UMOUNT_NOFOLLOW)
}

// Own reports whether this user made the FUSE mount that was seen.
func (p *Point) Own() bool { return p.Info != nil && Own(p.Info) }

// Own reports whether this user made a FUSE mount.
func Own(m *mountinfo.Info) bool {
	return slices.Contains(strings.Split(m.VFSOptions, ","), "user_id="+strconv.Itoa(os.Geteuid()))
}

// All returns the mounts of a type, latest first.
func All(kind string) ([]*mountinfo.Info, error) {
	all, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) { return m.FSType != kind, false })
	if err != nil {
		return nil, fmt.Errorf("read the mount table: %w", err)
	}
	slices.Reverse(all)
	return all, nil
}
