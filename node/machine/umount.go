package machine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/fuse/point"
	"github.com/hearthfs/hearth/node/admin"
)

// MountedAt returns the file system type of the last mount at dir, and "" if nothing is mounted there. It reads
// only the mount table, since a mount whose process is stuck must not be touched.
func MountedAt(dir string) (kind string, err error) {
	err = eachMount("/", func(m tableEntry) {
		if m.dir == dir {
			kind = m.kind
		}
	})
	return kind, err
}

// tableEntry is a line of the mount table. It says which directory of a file system is mounted where, the
// type of the file system, its device, and its options.
type tableEntry struct{ device, root, dir, kind, options string }

// eachMount calls f for every line of the mount table, in the order in which the mounts were made. root is the
// directory that holds /proc, which is "/" except in tests.
func eachMount(root string, f func(tableEntry)) error {
	table, err := os.ReadFile(filepath.Join(root, "proc/self/mountinfo"))
	if err != nil {
		return fmt.Errorf("read the mount table: %w", err)
	}
	for line := range strings.Lines(string(table)) {
		left, right, ok := strings.Cut(line, " - ")
		fields := strings.Fields(left)
		system := strings.Fields(right)
		if ok && len(fields) > 4 && len(system) > 0 {
			// An empty source is no field.
			f(tableEntry{device: fields[2], root: unescape(fields[3]), dir: unescape(fields[4]), kind: system[0], options: system[len(system)-1]})
		}
	}
	return nil
}

// Mounted returns the directories at which the mount table has a FUSE type. It touches none of them.
func Mounted(kind string) (dirs []string) {
	all, _ := point.All(kind) // without a mount table there are none
	for _, m := range all {
		dirs = append(dirs, m.Mountpoint)
	}
	return dirs
}

// deadWait is how long a mount may take to show that it is alive. For a dead one the kernel answers at once.
const deadWait = 2 * time.Second

// UnmountDead takes away the mounts of a FUSE type whose process has died, the latest first: for a user those
// of that user, for root all. Another user's mount that lets nobody in cannot be told from a live one. It
// returns how many dead mounts it found, and the errors of taking them away.
//
// Other users may change the directories of their mounts at any time. So each directory is held open while it
// is judged, and exactly what was judged is taken away.
func UnmountDead(kind string) (found int, failed []error) {
	all, err := point.All(kind)
	if err != nil {
		return 0, []error{err}
	}
	for _, m := range all {
		if os.Geteuid() != 0 && !point.Own(m) {
			continue
		}
		p, err := hold(context.Background(), m.Mountpoint)
		if err != nil {
			continue // nobody can reach it, so it is in nobody's way
		}
		if p.Info != nil && p.Info.ID == m.ID && dead(p) { // otherwise it lies below another mount, or has gone
			found++
			if err := detach(p); err != nil {
				failed = append(failed, err)
			}
		}
		p.Close()
	}
	return found, failed
}

// hold is point.Open with a bound on its time.
func hold(ctx context.Context, dir string) (*point.Point, error) {
	ctx, cancel := context.WithTimeout(ctx, deadWait)
	defer cancel()
	return point.Open(ctx, dir)
}

// dead reports whether the process of the FUSE mount has died. It waits only deadWait for an answer: the
// process may be stuck, which is not dead.
func dead(p *point.Point) bool {
	ctx, cancel := context.WithTimeout(context.Background(), deadWait)
	defer cancel()
	return errors.Is(point.Answers(ctx, p.Top()), unix.ENOTCONN)
}

// CutOff finds the directories of dirs on which a FUSE file system of that type is mounted and does not answer.
// It has the kernel end their connections, and returns them. Their process can then end, and whoever waits
// there gets ENOTCONN.
func CutOff(ctx context.Context, kind string, dirs []string) (cut []string) {
	for _, dir := range dirs {
		real, err := filepath.Abs(dir)
		if err == nil {
			real, err = RealPath(real)
		}
		if err != nil {
			continue
		}
		p, err := hold(ctx, real)
		if err != nil {
			continue
		}
		if p.Info != nil && p.Info.FSType == kind && silent(ctx, p) && (abort(p) || p.Force() != unix.EPERM) {
			cut = append(cut, dir)
		}
		p.Close()
	}
	return cut
}

// abort has the kernel cut the connection of the FUSE mount. While the mount is held, the kernel gives its
// number to no other mount. false means that the kernel cannot be asked.
func abort(p *point.Point) bool {
	f, err := os.OpenFile(filepath.Join("/sys/fs/fuse/connections", strconv.Itoa(p.Info.Minor), "abort"), os.O_WRONLY, 0)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }() // the write's result counts
	_, err = f.WriteString("1")
	return err == nil
}

// silent reports whether the mount gives no answer within deadWait, not even an error.
func silent(ctx context.Context, p *point.Point) bool {
	waiting, cancel := context.WithTimeout(ctx, deadWait)
	defer cancel()
	return point.Answers(waiting, p.Top()) != nil && waiting.Err() != nil && ctx.Err() == nil
}

// unescape undoes the mount table's octal escapes.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// RealPath resolves the symbolic links of dir's parent, without touching what is mounted on dir.
func RealPath(dir string) (string, error) {
	parent, err := filepath.EvalSymlinks(filepath.Dir(dir))
	if err != nil {
		return "", err
	}
	return filepath.Join(parent, filepath.Base(dir)), nil
}

// Unmount takes away the mount of a FUSE type at dir, whoever serves it: by umount(2) for root, else by
// fusermount3. lazy detaches the mount even if it is in use. A mount whose process has died is detached in any
// case, since nobody can use it any more.
func Unmount(dir, kind string, lazy bool) error {
	dir, err := RealPath(dir)
	if err != nil {
		return fmt.Errorf("unmount: %w", err)
	}
	p, err := hold(context.Background(), dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ELOOP) { // ELOOP: dir is a symbolic link
		return fmt.Errorf("unmount: %w", err)
	}
	defer p.Close()
	switch {
	case p == nil || p.Info == nil:
		return &admin.Error{Kind: admin.KindNotFound, Message: "nothing is mounted at " + dir}
	case p.Info.FSType != kind:
		return &admin.Error{Kind: admin.KindRefused, Message: fmt.Sprintf("%s is a mount of type %s, not ours", dir, p.Info.FSType)}
	case lazy:
		return detach(p)
	case os.Geteuid() != 0:
		err = fusermount(dir, "-u", "--")
	default:
		err = p.Unmount()
	}
	if err == nil {
		return nil
	}
	// Who asked a mount first that nobody serves for a while would be the one who has it in use.
	q, held := hold(context.Background(), dir) // p is given up
	if held == nil {
		defer q.Close()
	}
	switch {
	case held == nil && q.Info != nil && q.Info.FSType == kind && dead(q):
		return detach(q)
	case errors.Is(err, point.ErrOthers):
		return &admin.Error{Kind: admin.KindRefused, Message: "unmount " + dir + ": " + err.Error()}
	case os.Geteuid() != 0:
		return err
	}
	return fmt.Errorf("unmount %s: %w", dir, err)
}

// detach takes a held mount away, even if it is in use.
func detach(p *point.Point) error {
	dir := p.Info.Mountpoint
	if os.Geteuid() != 0 {
		return fusermount(dir, "-u", "-z", "--")
	}
	if err := p.Detach(); err != nil {
		return fmt.Errorf("unmount %s: %w", dir, err)
	}
	return nil
}

// fusermount has the setuid helper take a mount away. The helper checks that it is this user's.
func fusermount(dir string, args ...string) error {
	if text, err := exec.Command("fusermount3", append(args, dir)...).CombinedOutput(); err != nil {
		return fmt.Errorf("unmount %s: %w: %s", dir, err, strings.TrimSpace(string(text)))
	}
	return nil
}
