package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/hearthfs/hearth/node/machine"
)

// system is what a node depends on in the machine.
type system struct {
	release string // of the kernel
	files   int64  // descriptors that a process may have; 0 means not known
	limits  machine.Limits
	// available is memory that can be had without swapping, and swap the size of the swap space, both in
	// bytes. 0 means not known, or none.
	available, swap int64
	huge            string // machine.HugePages
}

// readSystem reads what the kernel tells. root is the directory that holds /proc.
func readSystem(root string, limits machine.Limits) system {
	s := system{limits: limits, huge: machine.HugePages(root)}
	release, _ := os.ReadFile(filepath.Join(root, "proc/sys/kernel/osrelease")) // an unknown release stays empty
	s.release = strings.TrimSpace(string(release))
	if words := row(root, "proc/self/limits", "Max open files"); len(words) > 0 {
		s.files, _ = strconv.ParseInt(words[0], 10, 64)
	}
	for name, to := range map[string]*int64{"MemAvailable:": &s.available, "SwapTotal:": &s.swap} {
		if words := row(root, "proc/meminfo", name); len(words) > 0 {
			kib, _ := strconv.ParseInt(words[0], 10, 64)
			*to = kib << 10
		}
	}
	return s
}

// row returns the words behind a name in a file of /proc.
func row(root, file, name string) []string {
	text, _ := os.ReadFile(filepath.Join(root, file))
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			return strings.Fields(rest)
		}
	}
	return nil
}

func (s system) judge(ram machine.Size) []Finding {
	return []Finding{s.kernel(), s.openFiles(), s.memory(ram), s.processors()}
}

func (s system) kernel() Finding {
	if s.release == "" {
		return Finding{"kernel", "", Warn, "/proc does not tell its version", "mount /proc: hearth reads its mount table and its limits there"}
	}
	f := Finding{Check: "kernel", Verdict: OK, Found: "Linux " + s.release}
	var major, minor int
	if n, _ := fmt.Sscanf(s.release, "%d.%d", &major, &minor); n == 2 && (major < keepsMajor || major == keepsMajor && minor < keepsMinor) {
		f.Verdict, f.Cure = Warn, fmt.Sprintf("readers get ENOTCONN where a node is killed; from Linux %d.%d on they wait for the next one", keepsMajor, keepsMinor)
		f.Found += ", under which mounts end with their node"
	}
	return f
}

// The first kernel under which a mount outlives its node (FUSE_NOTIFY_RESEND).
const keepsMajor, keepsMinor = 6, 9

// leastFiles is the least number that was tried. enoughFiles is enough for a small cache
// (docs/operations.md has the calculation).
const (
	leastFiles  = 320
	enoughFiles = 1024
)

func (s system) openFiles() Finding {
	f := Finding{Check: "open files", Verdict: OK, Found: fmt.Sprintf("%d at most", s.files)}
	switch {
	case s.files == 0: // unlimited, or not known
		f.Found = "no limit"
	case s.files < leastFiles:
		f.Verdict, f.Cure = Fail, "raise the limit: ulimit -n 65536, LimitNOFILE=65536 in a unit, --ulimit nofile=65536 for a container"
	case s.files < enoughFiles:
		f.Verdict, f.Cure = Warn, "fewer cache files stay open: ulimit -n 65536, LimitNOFILE=65536 in a unit, --ulimit nofile=65536 for a container"
	}
	return f
}

func (s system) memory(asked machine.Size) Finding {
	f := Finding{Check: "memory", Verdict: OK}
	by := s.limits.MemoryBy
	if by == "" {
		by = "all that the machine has"
	}
	ram, err := machine.RAM(asked, s.limits)
	if err != nil {
		f.Verdict = Fail
		f.Found, f.Cure = apart(err.Error(), ": ")
		return f
	}
	f.Found = fmt.Sprintf("cache.ram takes %s of the %s that a process may use (%s)", machine.SizeText(ram), machine.SizeText(s.limits.Memory), by)
	if tight := machine.Tight(ram, s.limits); tight != "" {
		f.Verdict = Warn
		f.Found, f.Cure = apart(tight, "; ")
		return f
	}
	if s.available > 0 && s.available < ram+machine.Beside {
		f.Verdict, f.Cure = Warn, "end what takes it, or lower cache.ram (--cache-ram)"
		f.Found += fmt.Sprintf(", and only %s are free now", machine.SizeText(s.available))
		if s.swap > 0 {
			f.Found += ", so that the cache would be swapped out"
		}
		return f
	}
	if s.huge == "never" {
		f.Verdict, f.Cure = Warn, "reads take up to a third less processor time with them: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, as root"
		f.Found += "; the kernel gives nobody huge pages"
	}
	return f
}

func (s system) processors() Finding {
	f := Finding{Check: "processors", Verdict: OK, Found: "all that the machine has"}
	if s.limits.Processors > 0 {
		f.Found = fmt.Sprintf("%.2g of them (%s)", s.limits.Processors, s.limits.ProcessorsBy)
	}
	if s.limits.Processors > 0 && s.limits.Processors < 1 {
		f.Verdict, f.Cure = Warn, "grant at least one: a quota that is spent stops every reader for the rest of its period"
	}
	return f
}

// apart splits a line into what was found and the cure, which stands behind the last sep.
func apart(line, sep string) (found, cure string) {
	if i := strings.LastIndex(line, sep); i >= 0 {
		return line[:i], line[i+len(sep):]
	}
	return line, ""
}
