package fuse

import (
	"errors"
	"fmt"
	"strings"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// ability is one thing that a kernel may offer and a user may mask.
type ability struct {
	name string
	bit  uint64 // 0: not negotiated at INIT
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

// masks is what a mount does not use of its kernel.
type masks struct {
	bits      uint64
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
	passthrough       error // nil: granted
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

// passthroughGranted tries to register a file in memory with the kernel, which
// is what needs CAP_SYS_ADMIN.
func passthroughGranted(raw *gofuse.Server, local bool, masked uint64) error {
	switch {
	case masked&gofuse.CAP_PASSTHROUGH != 0:
		return errors.New("masked")
	case !local:
		return errors.New("no local tier hands out files")
	case raw.KernelSettings().Flags64()&gofuse.CAP_PASSTHROUGH == 0:
		return errors.New("the kernel does not offer it (6.9 or later does)")
	}
	fd, err := unix.MemfdCreate("hearth-passthrough", unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	id, errno := raw.RegisterBackingFd(&gofuse.BackingMap{Fd: int32(fd)})
	if errno == unix.EPERM {
		return errors.New("it needs CAP_SYS_ADMIN")
	}
	if errno != 0 {
		return errno
	}
	raw.UnregisterBackingFd(id)
	return nil
}

// maxRead is the largest READ in bytes: 256 pages, or 32 for a kernel that
// offers no more (or was told so).
func (m masks) maxRead() int {
	if m.bits&gofuse.CAP_MAX_PAGES != 0 {
		return 128 << 10
	}
	return 1 << 20
}
