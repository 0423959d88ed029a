// Package point holds a mount point from the look at it to the act, so that what is
// done is done to what was seen.
//
// A path says nothing for long where it runs through a directory of somebody else: while
// root waits for a mount's answer, its owner renames a directory and puts a symbolic link
// in its place. So Open walks to the mount point without following any, opening each
// directory on the way for nothing but its path (O_PATH), which asks no file system
// process. What it has then are descriptors of the directory that the mount point lies
// in, and of what is on top there; the kernel says which mount that is, and the mount
// table what kind of one. The mount cannot end, nor its number or its device's be given
// to another, while it is held.
//
//	look      by Top, a path through the descriptor; nothing is mounted by the look
//	detach    of the descriptor's very mount, whatever has become of the path
//	unmount   a descriptor keeps a mount busy, so that of the directory's is used. Only
//	          its own user can have put away meanwhile what was seen there: it is
//	          refused for the mounts of others, which are detached
//	mount     over the very directory that was seen
//
// While an automount point waits for its mount, the kernel lets nobody walk to it but the
// process group of who mounts there, which is that of the mount helper. So the helper
// holds the point (Open, Automount) and hands its descriptor (File) to the node, which
// mounts over that and finds in the mount table what came (Of).
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
	// Info is the line of the mount table of what is mounted there last; nil: nothing is.
	Info *mountinfo.Info

	dir         string
	parent, top int    // descriptors; parent is -1 where nobody may walk to dir
	id          int    // of the mount that top leads to
	kind        string // of its file system
}

// Of holds the directory that a descriptor leads to, which is the Point's from then on. Nobody
// walks to it by its path.
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

// Open holds what is at dir, an absolute path without symbolic links. A file system on the way
// may not answer: then it ends with ctx.
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

// step opens one directory on the way, a link never.
func step(at int, name string) (int, error) { return openat(at, name, unix.O_DIRECTORY) }

// last opens what the way leads to, a link never. O_DIRECTORY would have an automount point
// mounted, for which systemd may have started this very process.
func last(at int, name string) (int, error) {
	fd, err := openat(at, name, 0)
	if err != nil {
		return -1, err
	}
	if _, err := unix.Readlinkat(fd, "", make([]byte, 1)); err == nil { // no file system is asked what it is
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

// over finds in the mount table what was mounted over top, where nobody may walk to that.
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

// mountID is that of the mount that a descriptor leads to.
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

// Close lets it go; of nil it does nothing.
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

// Dir is the path to what was seen, free of symbolic links.
func (p *Point) Dir() string { return p.dir }

// Automount reports whether what was seen is where an automounter has something mounted, or may
// wait for that just now.
func (p *Point) Automount() bool { return p.kind == "autofs" }

// File is another descriptor of what was seen, for nothing but its path.
func (p *Point) File() (*os.File, error) {
	fd, err := unix.FcntlInt(uintptr(p.top), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("hand on the mount point %s: %w", p.dir, err)
	}
	return os.NewFile(uintptr(fd), p.dir), nil
}

// Top is a path that leads to what was seen, from any thread of this process.
func (p *Point) Top() string { return "/proc/self/fd/" + strconv.Itoa(p.top) }

// Mount mounts over the directory that was seen, and looks what is there then.
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

// Detach takes the mount that was seen away, though in use.
func (p *Point) Detach() error {
	switch {
	case p.Info == nil:
		return fs.ErrNotExist
	case p.parent < 0: // top is below what Info is of
		return fs.ErrInvalid
	}
	return unix.Unmount(p.Top(), unix.MNT_DETACH)
}

// Force ends the connection of the FUSE mount that was seen. The kernel says that it is
// busy, and has done it.
func (p *Point) Force() error {
	if p.Info == nil {
		return fs.ErrNotExist
	}
	if err := unix.Unmount(p.Top(), unix.MNT_FORCE); err != nil && err != unix.EBUSY {
		return err
	}
	return nil
}

// ErrOthers is of a mount that this user did not make.
var ErrOthers = errors.New("it is another user's mount: detach it (hearth umount --lazy), or have that user take it away")

// Unmount takes the FUSE mount that was seen away unless it is in use, and closes p.
func (p *Point) Unmount() error {
	defer p.Close()
	switch {
	case p.Info == nil:
		return fs.ErrNotExist
	case !p.Own():
		return ErrOthers
	}
	_ = unix.Close(p.top) // it is a use
	p.top = -1
	return unix.Unmount(fmt.Sprintf("/proc/self/fd/%d/%s", p.parent, filepath.Base(p.dir)), unix.UMOUNT_NOFOLLOW)
}

// Own reports whether this user made the FUSE mount that was seen.
func (p *Point) Own() bool { return p.Info != nil && Own(p.Info) }

// Own reports whether this user made a FUSE mount.
func Own(m *mountinfo.Info) bool {
	return slices.Contains(strings.Split(m.VFSOptions, ","), "user_id="+strconv.Itoa(os.Geteuid()))
}

// All are the mounts of a type, those made last first.
func All(kind string) ([]*mountinfo.Info, error) {
	all, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) { return m.FSType != kind, false })
	if err != nil {
		return nil, fmt.Errorf("read the mount table: %w", err)
	}
	slices.Reverse(all)
	return all, nil
}
