package fuse

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/fuse/point"
)

// fsType is our type in mount(8) and /proc/self/mountinfo.
const fsType = "fuse.hearth"

// place is a mount point with our file system on it.
type place struct {
	dir          string // absolute, without symbolic links
	direct       bool   // mounted by mount(2); else by fusermount3
	major, minor int
}

// attach mounts at o.Dir and returns the descriptor to serve.
func attach(o *Options, maxRead int) (*place, int, error) {
	if o.At != nil {
		return attachAt(o, maxRead)
	}
	dir, err := resolve(o.Dir)
	if err != nil {
		return nil, -1, err
	}
	if info, err := os.Stat(dir); err != nil {
		return nil, -1, err
	} else if !info.IsDir() {
		return nil, -1, fmt.Errorf("%s is not a directory", dir)
	}
	p := &place{dir: dir, direct: os.Geteuid() == 0}
	if p.direct {
		at, err := holdAt(dir)
		if err != nil {
			return nil, -1, err
		}
		defer at.Close()
		fd, err := p.mount(at, o, maxRead)
		return p, fd, err
	}
	fd, err := p.fusermount(o, maxRead)
	if err != nil {
		return nil, -1, err
	}
	top, err := topMount(dir)
	if err == nil && top == nil {
		err = errors.New("the mount vanished at once")
	}
	if err != nil {
		unix.Close(fd)
		_ = p.unmount(true) // the error below says why there is no mount
		return nil, -1, err
	}
	p.major, p.minor = top.Major, top.Minor
	return p, fd, nil
}

// attachAt mounts at o.At. fusermount3 cannot, since it would walk to it.
func attachAt(o *Options, maxRead int) (*place, int, error) {
	p := &place{dir: o.At.Dir(), direct: true}
	if os.Geteuid() != 0 {
		return nil, -1, errors.New("it is an automount point, to which only a node of root gets: have root run the node, or take x-systemd.automount away")
	}
	fd, err := p.mount(o.At, o, maxRead)
	if errors.Is(err, unix.EINVAL) {
		err = fmt.Errorf("%w (is this node in another mount namespace than the automount point? mount from within it)", err)
	}
	return p, fd, err
}

// mount calls mount(2) on the directory that was found, whatever its path means meanwhile. A
// read-only mount also spares a GETATTR per READ, since no access times are kept.
func (p *place) mount(at *point.Point, o *Options, maxRead int) (int, error) {
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, noDevice(err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != unix.Mkdev(10, 229) {
		unix.Close(fd)
		return -1, noDevice(errors.New("it is not the FUSE device"))
	}
	flags := uintptr(unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOATIME)
	if o.Writing == nil {
		flags |= unix.MS_RDONLY
	}
	if o.NoExec {
		flags |= unix.MS_NOEXEC
	}
	data := fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=%d,max_read=%d,default_permissions",
		fd, os.Geteuid(), os.Getegid(), maxRead)
	if o.AllowOther {
		data += ",allow_other"
	}
	if err := at.Mount(o.FSName, fsType, flags, data); err != nil {
		unix.Close(fd)
		if errors.As(err, new(unix.Errno)) {
			return -1, notAllowed(err)
		}
		return -1, err
	}
	p.major, p.minor = at.Info.Major, at.Info.Minor
	return fd, nil
}

// waysEnd bounds the walk to a mount point. No disk takes that long, and a mount on the way whose
// process is stuck would never answer.
const waysEnd = 10 * time.Second

// holdAt holds what is at dir.
func holdAt(dir string) (*point.Point, error) {
	ctx, cancel := context.WithTimeout(context.Background(), waysEnd)
	defer cancel()
	return point.Open(ctx, dir)
}

// noDevice says why the FUSE device cannot be opened, with the cure.
func noDevice(err error) error {
	switch {
	case errors.Is(err, unix.EACCES):
		return fmt.Errorf("open /dev/fuse: %w (on the machine: chmod 666 /dev/fuse, as Debian has it; in a container: run as root)", err)
	case errors.Is(err, unix.EPERM): // by the control group's list of devices
		return fmt.Errorf("open /dev/fuse: %w (this container may not use it: give it --device /dev/fuse --cap-add SYS_ADMIN)", err)
	}
	return fmt.Errorf("open /dev/fuse: %w (on the machine: modprobe fuse; a container needs --device /dev/fuse --cap-add SYS_ADMIN)", err)
}

// notAllowed says why mount(2) failed, with the cure.
func notAllowed(err error) error {
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("mount(2) needs CAP_SYS_ADMIN: %w (a container needs --cap-add SYS_ADMIN)", err)
	case errors.Is(err, unix.EACCES): // what AppArmor answers
		return fmt.Errorf("mount(2): %w (a security module forbids it: a container needs --security-opt apparmor=unconfined)", err)
	}
	return fmt.Errorf("mount(2): %w", err)
}

// fusermount has the setuid helper mount for a user, and receives the descriptor that it sends
// back.
func (p *place) fusermount(o *Options, maxRead int) (int, error) {
	if o.AllowOther && !userAllowOther("/etc/fuse.conf") {
		return -1, errors.New("allow_other as a user: root must add the line user_allow_other to /etc/fuse.conf; or mount without allow_other")
	}
	// The helper opens it with this user's own rights.
	if err := unix.Access("/dev/fuse", unix.R_OK|unix.W_OK); err != nil {
		return -1, noDevice(err)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	ours, theirs := pair[0], os.NewFile(uintptr(pair[1]), "fusermount")
	defer unix.Close(ours)
	access := "ro"
	if o.Writing != nil {
		access = "rw"
	}
	options := []string{access, "nosuid", "nodev", "noatime", "default_permissions", "max_read=" + strconv.Itoa(maxRead),
		"subtype=hearth", "fsname=" + strings.NewReplacer(`\`, `\\`, ",", `\,`).Replace(o.FSName)}
	if o.AllowOther {
		options = append(options, "allow_other")
	}
	if o.NoExec {
		options = append(options, "noexec")
	}
	err = runFusermount([]*os.File{theirs}, "-o", strings.Join(options, ","), "--", p.dir)
	_ = theirs.Close() // fusermount3 had its own
	if err != nil {
		return -1, err
	}
	return receive(ours)
}

// receive takes one descriptor from a socket.
func receive(socket int) (int, error) {
	control := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(socket, make([]byte, 16), control, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("take the descriptor from fusermount3: %w", err)
	}
	messages, err := unix.ParseSocketControlMessage(control[:n])
	if err != nil || len(messages) != 1 {
		return -1, fmt.Errorf("take the descriptor from fusermount3: %d messages, %w", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return -1, fmt.Errorf("take the descriptor from fusermount3: %d of them, %w", len(fds), err)
	}
	return fds[0], nil
}

func runFusermount(files []*os.File, args ...string) error {
	name, err := exec.LookPath("fusermount3")
	if err != nil {
		if name, err = exec.LookPath("fusermount"); err != nil {
			return errors.New("mounting as a user needs fusermount3 (Debian: apt-get install fuse3)")
		}
	}
	var complaint bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), "_FUSE_COMMFD=3")
	cmd.ExtraFiles = files
	cmd.Stderr = &complaint
	if err := cmd.Run(); err != nil {
		text := strings.TrimSpace(complaint.String())
		if strings.Contains(text, "busy") {
			return errBusy
		}
		if strings.Contains(text, "not permitted") {
			text += " (it works as root: it must be setuid, where nothing like no-new-privileges forbids that, and a container needs --cap-add SYS_ADMIN)"
		}
		return fmt.Errorf("%s: %w", text, err)
	}
	return nil
}

// userAllowOther reports whether fuse.conf lets users give others access.
func userAllowOther(conf string) bool {
	text, err := os.ReadFile(conf)
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(text)) {
		if strings.TrimSpace(line) == "user_allow_other" {
			return true
		}
	}
	return false
}

var errBusy = errors.New("busy: a process has a file open or its working directory there (fuser -vm DIR names it); or unmount lazily")

// detach unmounts, unless the mount has gone already.
func (p *place) detach(lazy bool) error {
	top, err := topMount(p.dir)
	if err != nil || top == nil {
		return err
	}
	if !p.is(top) {
		if _, ours := p.find(); !ours {
			return nil
		}
		return fmt.Errorf("%s (%s) is mounted over it", top.Source, top.FSType)
	}
	if lazy {
		return p.unmount(true)
	}
	return patiently(func() error { return p.unmount(false) }, func() ([]string, int) { return users(p.dir) })
}

// is reports whether a line of the mount table belongs to our mount.
func (p *place) is(m *mountinfo.Info) bool { return m.Major == p.major && m.Minor == p.minor }

// unmount takes the mount away. The error is errBusy where it is in use.
func (p *place) unmount(lazy bool) error {
	if !p.direct {
		if lazy {
			return runFusermount(nil, "-u", "-z", "--", p.dir)
		}
		return runFusermount(nil, "-u", "--", p.dir)
	}
	at, err := holdAt(p.dir)
	if err != nil {
		return err
	}
	defer at.Close()
	if at.Info == nil || !p.is(at.Info) {
		return errors.New("another file system came to this path meanwhile: try again")
	}
	if lazy {
		return at.Detach()
	}
	if err = at.Unmount(); err == unix.EBUSY {
		return errBusy
	}
	return err
}

// find looks for our device anywhere in the mount table.
func (p *place) find() (*mountinfo.Info, bool) {
	all, err := p.mounts()
	if err != nil || len(all) == 0 {
		return nil, false
	}
	return all[0], true
}

// mounts returns the lines of the mount table with our device.
func (p *place) mounts() ([]*mountinfo.Info, error) {
	return mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return m.Major != p.major || m.Minor != p.minor, false
	})
}

// now returns where it is mounted: dir if it is still there, "" if it is nowhere.
func (p *place) now() string {
	all, err := p.mounts()
	if err != nil || slices.ContainsFunc(all, func(m *mountinfo.Info) bool { return m.Mountpoint == p.dir }) {
		return p.dir // without an answer we assume that it is still there
	}
	for _, m := range all {
		return m.Mountpoint
	}
	return ""
}

func (p *place) device() string { return fmt.Sprintf("%d:%d", p.major, p.minor) }

// readAhead raises the kernel's read-ahead, which INIT can only lower. It returns the value then in
// force, in KiB. Only root may raise it; the mount of another user reads 128 KiB at a time.
func (p *place) readAhead(bytes int) int {
	name := "/sys/class/bdi/" + p.device() + "/read_ahead_kb"
	_ = os.WriteFile(name, []byte(strconv.Itoa(bytes>>10)), 0) // the value in force is read next
	text, err := os.ReadFile(name)
	if err != nil {
		return 0
	}
	kib, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	return kib
}

// Cleanup takes away a dead mount of ours at dir, as a killed process leaves it. It returns an
// error for a live mount, and for one that may be live.
func Cleanup(dir string) error {
	dir, err := resolve(dir)
	if err != nil {
		return err
	}
	for {
		if gone, err := cleanup(dir); !gone {
			return err
		}
	}
}

// cleanup takes one mount away if it is ours and dead. gone means: look again.
func cleanup(dir string) (gone bool, err error) {
	at, err := holdAt(dir)
	if err != nil {
		return false, err
	}
	defer at.Close()
	if at.Info == nil || at.Info.FSType != fsType {
		return false, nil
	}
	if err := alive(at); err == nil {
		return false, fmt.Errorf("mount %s: %s is mounted there already: %w", dir, at.Info.Source, fs.ErrExist)
	} else if !errors.Is(err, unix.ENOTCONN) {
		return false, fmt.Errorf("mount %s: %s is mounted there already (umount -l %s, and echo 1 >/sys/fs/fuse/connections/%d/abort, if its process is gone): %w",
			dir, at.Info.Source, dir, at.Info.Minor, err)
	}
	if os.Geteuid() == 0 {
		err = at.Detach()
	} else {
		err = runFusermount(nil, "-u", "-z", "--", dir)
	}
	if err != nil {
		return false, fmt.Errorf("unmount dead %s: %w", dir, err)
	}
	return true, nil
}

// alive asks whether a mount answers, as its process may be stuck.
func alive(at *point.Point) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	return point.Answers(ctx, at.Top())
}

// resolve makes dir absolute and free of symbolic links, without touching what is mounted on it.
func resolve(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	parent, err := filepath.EvalSymlinks(filepath.Dir(dir))
	if err != nil {
		return "", err
	}
	at := filepath.Join(parent, filepath.Base(dir))
	if top, err := topMount(at); err != nil || top != nil {
		return at, err
	}
	return filepath.EvalSymlinks(at)
}

// topMount returns what was mounted last at dir, or nil.
func topMount(dir string) (*mountinfo.Info, error) {
	all, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) { return m.Mountpoint != dir, false })
	if err != nil {
		return nil, fmt.Errorf("read the mount table: %w", err)
	}
	if len(all) == 0 {
		return nil, nil
	}
	return all[len(all)-1], nil
}
