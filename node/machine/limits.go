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

// Limits are what of the machine this process may use.
type Limits struct {
	// Memory in bytes, and the file that says so; "": all that the machine has.
	Memory   int64
	MemoryBy string
	// Processors that the control groups grant, 1.5 being three halves of one's time,
	// and the file that says so; 0: no limit.
	Processors   float64
	ProcessorsBy string
}

// ReadLimits looks for the limits of this process; root is where /proc and /sys
// are looked for, "/" but in tests. What cannot be read limits nothing. memory.high
// is a limit, too: above it the kernel slows a process down until it gives way. Limits
// with swap in them are none of ours: what is swapped out is no cache.
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

// unseen takes the limits of a control group's ancestors into account that a
// container does not see: memory.stat of version 1 has the smallest of all.
func (l *Limits) unseen(dir string) {
	for fields := words(dir, "memory.stat"); len(fields) > 1; fields = fields[2:] {
		if fields[0] == "hierarchical_memory_limit" {
			l.lower(filepath.Join(dir, "memory.stat"), fields[1:])
			return
		}
	}
}

// lower takes the first of a file's words as a limit of the memory: "max" says no
// limit, and does not parse.
func (l *Limits) lower(file string, words []string) {
	if len(words) == 0 {
		return
	}
	if n, err := strconv.ParseInt(words[0], 10, 64); err == nil && n > 0 && n < l.Memory {
		l.Memory, l.MemoryBy = n, file
	}
}

// processors takes a quota into account: so many microseconds of each period.
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

// words of a control group's file; none where there is no such file.
func words(dir, name string) []string {
	text, _ := os.ReadFile(filepath.Join(dir, name))
	return strings.Fields(string(text))
}

// below is a file's name as it is without root in front.
func below(root, file string) string {
	if rest, ok := strings.CutPrefix(file, strings.TrimSuffix(root, "/")+"/"); ok {
		return "/" + rest
	}
	return file
}

// groups are the directories of every control group whose limits by a controller
// hold for this process, its own first, as far as they can be seen. /proc/self/cgroup
// names the group within its hierarchy, the mount table which part of the hierarchy
// is mounted, and where: a container sees its own group only, as the root of a
// mount, whatever the name in front. Where the mount does not lead to the group
// (it was made outside of this cgroup namespace, or holds another part), the
// mount's root is taken in its place if it is the usual one.
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

// own are the names of this process's control groups: in the hierarchy of version
// 1 that has the controller, and in that of version 2; "": in none.
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
