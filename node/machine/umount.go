package machine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hearthfs/hearth/internal/probe"
	"golang.org/x/sys/unix"
)

// MountedAt gives the file system type of what is mounted at dir last, "" if
// nothing is. Only the mount table is read: a mount whose
// process is stuck must not be touched.
func MountedAt(dir string) (string, error) {
	top, err := topMount(dir)
	return top.kind, err
}

// topMount is what is mounted at dir last; the zero value: nothing.
func topMount(dir string) (top tableEntry, err error) {
	err = eachMount("/", func(m tableEntry) {
		if m.dir == dir {
			top = m
		}
	})
	return top, err
}

// tableEntry is a line of the mount table: which directory of the file system is
// mounted where, what kind of file system it is on which device, and its options.
type tableEntry struct{ device, root, dir, kind, options string }

// eachMount calls f for every line of the mount table, in the order in which the
// mounts were made; root is where /proc is looked for, "/" but in tests.
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

// DeadMounts are the directories where a FUSE file system of that type is mounted
// last whose process has died, those made last first: of this user, and for root of
// all. Another user's that lets nobody in cannot be told from one that lives.
func DeadMounts(kind string) ([]string, error) {
	last, order := map[string]string{}, []string{}
	mine := "user_id=" + strconv.Itoa(os.Geteuid())
	err := eachMount("/", func(m tableEntry) {
		last[m.dir] = m.kind
		if os.Geteuid() == 0 || slices.Contains(strings.Split(m.options, ","), mine) {
			order = append(order, m.dir)
		}
	})
	var dead []string
	for _, dir := range slices.Backward(order) {
		if last[dir] == kind && Dead(dir) {
			dead = append(dead, dir)
		}
		delete(last, dir)
	}
	return dead, err
}

// deadWait is how long a mount may take to say that it lives: the kernel answers
// for a dead one at once.
const deadWait = 2 * time.Second

// Dead reports whether the process of the FUSE mount at dir has died. Nothing waits
// for its answer for long: it may be stuck, which is not dead.
func Dead(dir string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), deadWait)
	defer cancel()
	return errors.Is(probe.Answers(ctx, dir), unix.ENOTCONN)
}

// CutOff has the kernel end the connections of those of dirs on which a FUSE file
// system of that type is mounted that does not answer, and returns them: their
// process can end then, and who waits there gets ENOTCONN.
func CutOff(ctx context.Context, kind string, dirs []string) (cut []string) {
	for _, dir := range dirs {
		real, err := filepath.Abs(dir)
		if err == nil {
			real, err = RealPath(real)
		}
		if err != nil {
			continue
		}
		top, err := topMount(real)
		if err != nil || top.kind != kind || !silent(ctx, real) {
			continue
		}
		// umount -f says that it is busy, and has done it.
		if abort(real, top.device) || unix.Unmount(real, unix.MNT_FORCE|unix.UMOUNT_NOFOLLOW) != unix.EPERM {
			cut = append(cut, dir)
		}
	}
	return cut
}

// abort has the kernel cut the connection of the FUSE mount at dir, on that device as in
// the mount table. false: it cannot be asked, or that mount has gone.
func abort(dir, device string) bool {
	_, minor, _ := strings.Cut(device, ":")
	f, err := os.OpenFile(filepath.Join("/sys/fs/fuse/connections", minor, "abort"), os.O_WRONLY, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	// Only if the mount still stands the file is its own: the number of one that has gone
	// is given to the next.
	if top, err := topMount(dir); err != nil || top.device != device {
		return false
	}
	_, err = f.WriteString("1")
	return err == nil
}

// silent reports whether what is mounted at dir gives no answer for deadWait, an error
// included.
func silent(ctx context.Context, dir string) bool {
	waiting, cancel := context.WithTimeout(ctx, deadWait)
	defer cancel()
	return probe.Answers(waiting, dir) != nil && waiting.Err() != nil && ctx.Err() == nil
}

// unescape undoes the mount table's octal escapes.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// RealPath frees dir of symbolic links without touching what is mounted on it.
func RealPath(dir string) (string, error) {
	parent, err := filepath.EvalSymlinks(filepath.Dir(dir))
	if err != nil {
		return "", err
	}
	return filepath.Join(parent, filepath.Base(dir)), nil
}

// Unmount takes away what is mounted at dir: by umount(2) for root, else by
// fusermount3. lazy detaches it although it is in use.
func Unmount(dir string, lazy bool) error {
	if os.Geteuid() != 0 {
		args := []string{"-u", "--", dir}
		if lazy {
			args = append([]string{"-z"}, args...)
		}
		if text, err := exec.Command("fusermount3", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("unmount %s: %w: %s", dir, err, strings.TrimSpace(string(text)))
		}
		return nil
	}
	flags := unix.UMOUNT_NOFOLLOW
	if lazy {
		flags |= unix.MNT_DETACH
	}
	if err := unix.Unmount(dir, flags); err != nil {
		return fmt.Errorf("unmount %s: %w", dir, err)
	}
	return nil
}
