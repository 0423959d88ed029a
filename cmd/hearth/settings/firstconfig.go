package settings

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/hearthfs/hearth/node/machine"
)

// This file writes a first configuration, made for this machine. The two lines that a node needs
// come first, then what is often added, as comments.
//
// Memory is the largest of a few shares that leaves the process room within its limits. Disks are
// all local file systems without moving parts and with room to spare, except the system's own. Most
// of their free space is taken. If there is none, the default directory is taken with a tenth of
// its file system.

// Found is what a first configuration is made from.
type Found struct {
	Limits machine.Limits
	Disks  []machine.LocalDisk
	// CacheDir is where the cache lies by default.
	CacheDir string
}

// LookAround finds the limits, the disks and the default cache directory of this machine.
func LookAround() (Found, error) {
	disks, err := machine.LocalDisks("/")
	if err != nil {
		return Found{}, err
	}
	dir, err := machine.CacheDir()
	return Found{Limits: machine.ReadLimits("/"), Disks: disks, CacheDir: dir}, err
}

// share is the part of a disk's free space that is taken, in percent. The data of others stays and
// may grow.
const share = 80

// leastFree is the free space in bytes below which a disk is left alone.
const leastFree = 16 << 30

// Text is the first configuration for an origin.
func (f Found) Text(origin string) string {
	ram, says := f.memory()
	disks, lines := f.disks()
	var b strings.Builder
	fmt.Fprintf(&b, "origin: %s\n", strconv.Quote(origin))
	fmt.Fprintf(&b, "cache: {ram: %s, disks: [%s]}\n\n", ram, strings.Join(disks, ", "))
	b.WriteString("# These two lines are enough. The first names the bucket; another S3 server than AWS:\n")
	fmt.Fprintf(&b, "#origin: {url: %s, endpoint: \"http://HOST:9000\", region: us-east-1}\n", strconv.Quote(origin))
	b.WriteString("# Credentials come from the AWS variables, profiles or roles, never from this file.\n#\n")
	fmt.Fprintf(&b, "# Memory: %s.\n# Disks:\n", says)
	for _, l := range lines {
		b.WriteString("#   " + l + "\n")
	}
	b.WriteString(`# Of each file system a tenth stays free in any case (free_floor, beside disks).

# What "hearth up" mounts; the directories must exist:
#mounts: [{path: /mnt/data}]

# How old a name may be: immutable, bounded(60s) or strict:
#freshness: bounded(60s)

# Many nodes, one cache: the same lines on every machine, and "hearth ring key" for the file:
#node: {listen: 10.0.0.0/8}
#join: [HOST, OTHER]
#cluster: {key_file: /etc/hearth/key}

# A device behind the disks, which keeps what they give up; make it one by "hearth volume format":
#volumes: [/dev/nvme1n1]   # or "nvme+tcp://HOST:4420/NQN", which all nodes of a ring may share

# All keys: hearth config show; one: hearth config explain KEY; this file: hearth config validate FILE
`)
	return b.String()
}

// memory returns the share of memory that a node may take with ease, and a text about it.
func (f Found) memory() (ram, says string) {
	by := "all that the machine has"
	if f.Limits.MemoryBy != "" {
		by = f.Limits.MemoryBy
	}
	says = fmt.Sprintf("this process may use %s (%s)", machine.SizeText(f.Limits.Memory), by)
	for _, percent := range []float64{20, 10, 5} {
		n, err := machine.RAM(machine.Size{Percent: percent}, f.Limits)
		if err == nil && n >= 64<<20 && machine.Tight(n, f.Limits) == "" {
			return fmt.Sprintf("%.0f%%", percent), fmt.Sprintf("%s; %.0f%% of it are %s", says, percent, machine.SizeText(n))
		}
	}
	n, _ := machine.RAM(machine.Size{}, f.Limits) // the default always fits
	return fmt.Sprintf("%dMiB", n>>20), says + ", which is little: the least that works well"
}

// disks returns the elements of cache.disks, and a line about each disk of the machine.
func (f Found) disks() (elements, lines []string) {
	for _, d := range f.Disks {
		why := "taken"
		switch {
		case d.Rotating:
			why = "not taken: it has moving parts"
		case d.Free < leastFree:
			why = "not taken: it has less than " + machine.SizeText(leastFree) + " free"
		default:
			size := fmt.Sprintf("%d%%", share*d.Free/d.Whole)
			why += " with " + size
			elements = append(elements, element(filepath.Join(d.Dir, "hearth"), size))
		}
		lines = append(lines, fmt.Sprintf("%s (%s, %s, %s free): %s", d.Dir, d.FileSystem, machine.SizeText(d.Whole), machine.SizeText(d.Free), why))
	}
	if len(elements) == 0 {
		elements = []string{element(f.CacheDir, "10%")}
		lines = append(lines, f.CacheDir+", the default directory: taken with a tenth of its file system")
	}
	return elements, lines
}

func element(path, size string) string {
	if strings.ContainsAny(path, " :,[]{}#'\"") {
		path = strconv.Quote(path)
	}
	return fmt.Sprintf("{path: %s, size: %s}", path, size)
}

// WriteFirst writes text to a new file, and makes its directory. The file must not exist.
func WriteFirst(file, text string) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("make the directory of the configuration: %w", err)
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return fmt.Errorf("write the configuration: %w", err)
	}
	_, err = f.WriteString(text)
	if err == nil {
		err = f.Sync()
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err != nil {
		_ = os.Remove(file) // half a configuration is useless
		return fmt.Errorf("write the configuration: %w", err)
	}
	return nil
}
