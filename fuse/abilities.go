package fuse

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// ability is one thing that a kernel may offer and a user may mask.
type ability struct {
	name string
	bit  uint64 // 0 means that INIT does not negotiate it
}

// abilityTable lists what can be masked, with its bit in INIT.
func abilityTable() []ability {
	return []ability{
		{"passthrough", gofuse.CAP_PASSTHROUGH},
		{"open", gofuse.CAP_NO_OPEN_SUPPORT},
		{"opendir", gofuse.CAP_NO_OPENDIR_SUPPORT},
		{"readdirplus", gofuse.CAP_READDIRPLUS},
		{"async_read", gofuse.CAP_ASYNC_READ},
		{"parallel_dirops", gofuse.CAP_PARALLEL_DIROPS},
		{"auto_inval_data", gofuse.CAP_AUTO_INVAL_DATA},
		{"max_pages", gofuse.CAP_MAX_PAGES},
		{"resend", gofuse.CAP_HAS_RESEND},
		{"readahead", 0}, // do not raise read_ahead_kb
		{"splice", 0},    // never used: its answers cannot hold 1 MiB
	}
}

// Abilities are the names that Options.Without knows, beside "all".
func Abilities() []string {
	var names []string
	for _, a := range abilityTable() {
		names = append(names, a.name)
	}
	return names
}

// masks is what a mount does not use of the abilities of its kernel.
type masks struct {
	bits      uint64
	unwanted  uint64 // the bits that no user masked: the mount has no use for them
	readAhead bool
}

func parseMasks(without []string) (masks, error) {
	var m masks
	for _, name := range without {
		known := false
		for _, a := range abilityTable() {
			if name == a.name || name == "all" {
				known = true
				m.bits |= a.bit
				m.readAhead = m.readAhead || a.name == "readahead"
			}
		}
		if !known {
			return m, fmt.Errorf("mount without %q: not one of all, %s", name, strings.Join(Abilities(), ", "))
		}
	}
	return m, nil
}

// offer is what the kernel offers and nobody masked.
type offer struct {
	noOpen, noOpenDir bool
	passthrough       error // nil means granted
}

// decide picks the open mode and says why it is not the one asked for.
func decide(o *Options, k offer, large bool) (Mode, string) {
	asked, why := o.Open, ""
	if asked == Auto {
		switch {
		case large && k.passthrough == nil:
			return Passthrough, "most bytes lie in objects of 64 MiB or more"
		case o.Strict:
			return Plain, "strict: each open is checked with the origin"
		case large:
			why = "passthrough not granted: " + k.passthrough.Error()
		default:
			why = "most bytes lie in objects smaller than 64 MiB"
		}
		asked = None
	}
	switch {
	case asked == Passthrough && k.passthrough != nil:
		return Plain, "passthrough not granted: " + k.passthrough.Error()
	case asked == None && !k.noOpen:
		return Plain, "the kernel does not open files by itself"
	}
	if why == "" {
		why = "asked for"
	}
	return asked, why
}

// passthroughGranted tries to register a file with the kernel: that is the step that needs
// CAP_SYS_ADMIN. It tries one file of each place that files are lent from, until the kernel takes
// one. Where no place is known it tries a file in memory.
func passthroughGranted(raw backing, offered uint64, o *Options) error {
	switch {
	case o.Local == nil:
		return errors.New("no local tier hands out files")
	case offered&gofuse.CAP_PASSTHROUGH == 0:
		return errors.New("the kernel does not offer it (6.9 or later does)")
	}
	samples := o.Local.Samples()
	if len(samples) == 0 {
		fd, err := unix.MemfdCreate("hearth-passthrough", unix.MFD_CLOEXEC)
		if err != nil {
			return err
		}
		return lendable(raw, fd, "memory")
	}
	var refused error
	for _, name := range samples {
		fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			err = lendable(raw, fd, name)
		}
		if err == nil {
			return nil
		}
		refused = err
	}
	return refused
}

// lendable registers a file, takes it back and closes it.
func lendable(raw backing, fd int, name string) error {
	defer unix.Close(fd)
	id, errno := raw.RegisterBackingFd(&gofuse.BackingMap{Fd: int32(fd)})
	switch errno {
	case 0:
		_ = raw.UnregisterBackingFd(id) // the kernel forgets it with the connection
		return nil
	case unix.EPERM:
		return errors.New("it needs CAP_SYS_ADMIN, and not that of a user namespace")
	case unix.ELOOP:
		return fmt.Errorf("the kernel lends no files of a stacked file system such as overlayfs, on which %s lies: mount a volume there", filepath.Dir(name))
	}
	return fmt.Errorf("lend %s: %w", name, errno)
}

// lacks says which abilities of its kernel a mount does without, and why. unwanted are the
// abilities that the mount would not use, ahead is its read-ahead in KiB.
func (o *Options) lacks(offered, unwanted uint64, passthrough error, ahead int) (all []string) {
	masked := func(name string) bool {
		return slices.Contains(o.Without, name) || slices.Contains(o.Without, "all")
	}
	for _, a := range abilityTable() {
		switch {
		case a.name == "splice" || a.bit&unwanted != 0 && !masked(a.name): // never used, or of no use to this mount
		case masked(a.name):
			all = append(all, a.name+": masked by fuse.without")
		case a.name == "passthrough" && passthrough != nil:
			all = append(all, a.name+": "+passthrough.Error())
		case a.name == "resend" && offered&a.bit == 0:
			all = append(all, a.name+": the kernel does not offer it (6.9 or later does)")
		case a.bit != 0 && offered&a.bit == 0:
			all = append(all, a.name+": the kernel does not offer it")
		case a.name == "readahead" && ahead < o.MaxReadAhead>>10:
			all = append(all, fmt.Sprintf("readahead: %d KiB instead of %d: only root may raise it, where /sys can be written", ahead, o.MaxReadAhead>>10))
		}
	}
	return all
}

// maxRead is the largest READ in bytes: 256 pages. It is 32 pages for a kernel that offers no more,
// or whose max_pages is masked.
func (m masks) maxRead() int {
	if m.bits&gofuse.CAP_MAX_PAGES != 0 {
		return 128 << 10
	}
	return 1 << 20
}
