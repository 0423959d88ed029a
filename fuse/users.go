package fuse

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// mostNamed bounds the users that an error names.
const mostNamed = 3

// askedFor is how long an unmount waits for a use of the mount that no process is seen to have: while somebody asks for its size
// (df, what watches a machine, this node as it starts), the kernel says that it is busy.
const askedFor = time.Second

// patiently unmounts, and says who uses the mount if it cannot be taken away. Where nobody is known to, it tries again for askedFor.
func patiently(unmount func() error, users func() (named []string, more int)) error {
	for end := time.Now().Add(askedFor); ; time.Sleep(askedFor / 50) {
		err := unmount()
		if !errors.Is(err, errBusy) {
			return err
		}
		named, more := users()
		if len(named) > 0 || !time.Now().Before(end) {
			return busyError(named, more)
		}
	}
}

// busyError says which processes use a mount that could not be taken away.
func busyError(named []string, more int) error {
	if len(named) == 0 { // it is used by a mapping, by another namespace or by another user
		return errBusy
	}
	who := strings.Join(named, ", ")
	if more > 0 {
		who += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Errorf("%w; it is used by %s", errBusy, who)
}

// users names the processes that have a file open below dir, or run or work there. It reads only
// the links of /proc, which touch nothing of the mount. (The maps of a process would show mapped
// files, too, but reading them can wait for a page fault that waits for us.)
func users(dir string) (named []string, more int) {
	processes, _ := filepath.Glob("/proc/[0-9]*") // the pattern is right
	self := strconv.Itoa(os.Getpid())
	for _, p := range processes {
		pid := filepath.Base(p)
		if pid == self {
			continue
		}
		how := use(p, dir)
		switch {
		case how == "":
		case len(named) == mostNamed:
			more++
		default:
			name, _ := os.ReadFile(filepath.Join(p, "comm")) // "" if it has just ended
			named = append(named, fmt.Sprintf("%s (process %s: %s)", strings.TrimSpace(string(name)), pid, how))
		}
	}
	return named, more
}

// use says how a process uses what is below dir; "" means not at all.
func use(process, dir string) string {
	below := func(link string) (string, bool) {
		to, err := os.Readlink(filepath.Join(process, link))
		return to, err == nil && (to == dir || strings.HasPrefix(to, dir+"/"))
	}
	if _, ok := below("cwd"); ok {
		return "its working directory"
	}
	if to, ok := below("exe"); ok {
		return "it runs " + to
	}
	if _, ok := below("root"); ok {
		return "its root"
	}
	files, err := os.ReadDir(filepath.Join(process, "fd"))
	if err != nil {
		return ""
	}
	for _, f := range files {
		if to, ok := below("fd/" + f.Name()); ok {
			return "open " + to
		}
	}
	return ""
}
