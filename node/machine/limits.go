package machine

import (
	"bufio"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Limits are how much of the machine this process may use.
type Limits struct {
	// Memory is in bytes, and MemoryBy the file that sets it. An empty MemoryBy means all memory of the
	// machine.
	Memory   int64
	MemoryBy string
	// Processors is how many processors the control groups grant: 1.5 means one and a half. ProcessorsBy is the
	// file that says so. 0 means no limit.
	Processors   float64
	ProcessorsBy string
}

// ReadLimits finds the limits of this process. root is the directory that holds /proc and /sys, which is "/"
// except in tests. A file that cannot be read sets no limit. memory.high counts as a limit, too: above it the
// kernel slows a process down until it gives way. Limits that include swap do not count, since what is swapped
// out is no cache.
func ReadLimits(root string) Limits {
	l := Limits{Memory: math.MaxInt64}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		l.Memory = int64(info.Totalram) * int64(info.Unit)
	}
	dirs := groups(root, "memory")
	for _, dir := range dirs {
		for _, name := range []string{"memory.max", "memory.high", "memory.limit_in_bytes"} {
			l.lower(filepath.Join(dir, name), words(dir, name))
		}
	}
	for _, dir := range dirs {
		l.unseen(dir)
	}
	for _, dir := range groups(root, "cpu") {
		l.processors(dir)
	}
	l.MemoryBy, l.ProcessorsBy = below(root, l.MemoryBy), below(root, l.ProcessorsBy)
	return l
}

// unseen takes limits into account that are set on ancestors of a control group, which a container does not
// see. In version 1, memory.stat has the smallest limit of all ancestors.
func (l *Limits) unseen(dir string) {
	for fields := words(dir, "memory.stat"); len(fields) > 1; fields = fields[2:] {
		if fields[0] == "hierarchical_memory_limit" {
			l.lower(filepath.Join(dir, "memory.stat"), fields[1:])
			return
		}
	}
}

// lower takes the first of a file's words as a limit of the memory. "max" means no limit, and does not parse.
func (l *Limits) lower(file string, words []string) {
	if len(words) == 0 {
		return
	}
	if n, err := strconv.ParseInt(words[0], 10, 64); err == nil && n > 0 && n < l.Memory {
		l.Memory, l.MemoryBy = n, file
	}
}

// processors takes a quota into account: microseconds of processor time in each period.
func (l *Limits) processors(dir string) {
	file, quota := filepath.Join(dir, "cpu.max"), words(dir, "cpu.max")
	if len(quota) == 0 {
		file = filepath.Join(dir, "cpu.cfs_quota_us")
		quota = append(words(dir, "cpu.cfs_quota_us"), words(dir, "cpu.cfs_period_us")...)
	}
	if len(quota) != 2 {
		return
	}
	runs, err := strconv.ParseFloat(quota[0], 64) // version 2 says "max", version 1 says -1
	of, wrong := strconv.ParseFloat(quota[1], 64)
	if err != nil || wrong != nil || runs <= 0 || of <= 0 {
		return
	}
	if n := runs / of; l.Processors == 0 || n < l.Processors {
		l.Processors, l.ProcessorsBy = n, file
	}
}

// words returns the words of a control group's file. There are none if there is no such file.
func words(dir, name string) []string {
	text, _ := os.ReadFile(filepath.Join(dir, name))
	return strings.Fields(string(text))
}

// below returns a file's name without root in front.
func below(root, file string) string {
	if rest, ok := strings.CutPrefix(file, strings.TrimSuffix(root, "/")+"/"); ok {
		return "/" + rest
	}
	return file
}

// groups returns, as far as they can be seen, the directories of every control group whose limits by a
// controller hold for this process, its own first. /proc/self/cgroup names the group within its hierarchy. The
// mount table says which part of the hierarchy is mounted, and where. A container sees only its own group, as
// the root of a mount, whatever name stands in front. A mount may not lead to the group, because it was made
// outside of this cgroup namespace or holds another part. Then the mount's root is taken in its place if it is
// at /sys/fs/cgroup.
func groups(root, controller string) (dirs []string) {
	own := ownGroups(root, controller)
	_ = eachMount(root, func(m tableEntry) {
		var group string
		switch {
		case m.kind == "cgroup" && slices.Contains(strings.Split(m.options, ","), controller):
			group = own.named
		case m.kind == "cgroup2":
			group = own.unified
		}
		if group == "" {
			return
		}
		at := strings.TrimPrefix(group, strings.TrimSuffix(m.root, "/"))
		switch {
		case within(group, m.root) && !strings.HasPrefix(at, "/.."):
			at = filepath.Join(".", at)
		case within(m.dir, "/sys/fs/cgroup"):
			at = "."
		default:
			return
		}
		for ; ; at = filepath.Dir(at) {
			dirs = append(dirs, filepath.Join(root, m.dir, at))
			if at == "." {
				return
			}
		}
	})
	return dirs
}

// own has the names of this process's control groups: in the version 1 hierarchy that has the controller, and
// in the version 2 hierarchy. An empty name means none.
type own struct{ named, unified string }

func ownGroups(root, controller string) (o own) {
	f, err := os.Open(filepath.Join(root, "proc/self/cgroup"))
	if err != nil {
		return o
	}
	defer func() { _ = f.Close() }() // it was only read
	for lines := bufio.NewScanner(f); lines.Scan(); {
		parts := strings.SplitN(lines.Text(), ":", 3)
		switch {
		case len(parts) != 3:
		case parts[0] == "0" && parts[1] == "":
			o.unified = parts[2]
		case slices.Contains(strings.Split(parts[1], ","), controller):
			o.named = parts[2]
		}
	}
	return o
}
