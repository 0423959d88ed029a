package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache"
	"github.com/hearthfs/hearth/cache/disk"
	"github.com/hearthfs/hearth/fuse"
	"github.com/hearthfs/hearth/namespace"
)

// mounted is the result of a mount that was tried.
type mounted struct {
	failed error
	by     string // how it was mounted
	stats  fuse.Stats
}

// tryMount mounts an empty tree on a directory of its own, and takes both away. It asks for everything that
// a mount may have, passthrough included, since only INIT tells what the kernel grants.
func tryMount(ctx context.Context, o Options) (m mounted) {
	dir, err := os.MkdirTemp("", "hearth-doctor-")
	if err != nil {
		return mounted{failed: err}
	}
	defer func() { _ = os.Remove(dir) }() // it is empty, and in the temporary directory
	m.by = "fusermount3"
	if os.Geteuid() == 0 {
		m.by = "mount(2)"
	}
	s, err := fuse.Mount(ctx, fuse.Options{Dir: dir, FSName: "hearth-doctor", Tree: nothing{}, Reads: cache.Through(nil, nil, cache.Always), Local: nothing{o},
		Open: fuse.Passthrough, Without: o.Without, AllowOther: o.AllowOther})
	if err != nil {
		m.failed = err
		return m
	}
	m.stats = s.Stats()
	if m.failed = s.Unmount(true); m.failed == nil {
		s.Wait()
	}
	return m
}

// judge says what the kernel grants, and what to do about the rest.
func (m mounted) judge() []Finding {
	if m.failed != nil {
		found, cure := cured(m.failed)
		return []Finding{{"mount", "", Fail, found, cure}}
	}
	all := []Finding{{Check: "mount", Verdict: OK, Found: "one was made by " + m.by + " and taken away"}}
	for _, lack := range m.stats.Lacks {
		name, why, _ := strings.Cut(lack, ": ")
		f := Finding{"mount", name, Warn, why, lackCure(name, why)}
		if strings.HasPrefix(why, "masked") {
			f.Verdict, f.Cure = OK, ""
		}
		all = append(all, f)
	}
	return all
}

// cured splits a mount's error into what was found and the cure. Package fuse puts the cure, where there is
// one, in brackets at the end.
func cured(err error) (found, cure string) {
	text := err.Error()
	if i := strings.LastIndex(text, " ("); i >= 0 && strings.HasSuffix(text, ")") {
		return text[:i], strings.TrimSuffix(text[i+2:], ")")
	}
	if found, cure := apart(text, ": "); strings.Contains(text, "allow_other") {
		return found, cure
	}
	if errors.Is(err, os.ErrPermission) || errors.Is(err, os.ErrNotExist) {
		return text, "name a directory that can be written with TMPDIR"
	}
	return text, "see the kernel's log (dmesg), and docs/containers.md in a container"
}

func lackCure(name, why string) string {
	switch {
	case name == "passthrough" && strings.Contains(why, "CAP_SYS_ADMIN"):
		return "mount as root, where large files are read much; in a container with --cap-add SYS_ADMIN"
	case name == "passthrough" && strings.Contains(why, "stacked"):
		return "mount a volume at the cache directory, or choose another with --cache-disks PATH=SIZE"
	case name == "passthrough":
		return "run kernel 6.9 or later, where large files are read much"
	case name == "resend":
		return "run kernel 6.9 or later, so that mounts outlive a killed node too; hearth upgrade keeps them on this one"
	case name == "readahead":
		return "mount as root, or have a udev rule raise read_ahead_kb of 0:* in /sys/class/bdi"
	}
	return "run a newer kernel; what is done without it is slower, and no less right"
}

// nothing is an empty tree.
type nothing struct{ Options }

var (
	_ fuse.Tree       = nothing{}
	_ fuse.LocalFiler = nothing{}
)

func (nothing) Lookup(context.Context, uint64, string) (namespace.Node, error) {
	return namespace.Node{}, &namespace.Absent{}
}

func (nothing) Open(context.Context, uint64) (namespace.Node, error) {
	return namespace.Node{}, hearth.ErrStale
}

func (nothing) Node(_ context.Context, id uint64) (namespace.Node, error) {
	if id != 1 {
		return namespace.Node{}, fmt.Errorf("node id %d: %w", id, hearth.ErrStale)
	}
	return namespace.Node{ID: 1, Dir: true}, nil
}

func (nothing) ReadDir(context.Context, uint64, string, func(namespace.Node) bool) error { return nil }

func (nothing) Forget(*hearth.Object) {}

func (nothing) Hold(func(uint64) bool) func() { return func() {} }

func (nothing) Subscribe(func(namespace.Change)) func() { return func() {} }

// LocalFile finds no file.
func (nothing) LocalFile(*hearth.Object) (*os.File, func(), error) { return nil, nil, hearth.ErrMiss }

// sampleWait bounds how long a cache directory may take to say whether it has a file. A directory that does
// not answer is the finding of another look.
const sampleWait = time.Second

// Samples returns one file of each cache directory that exists, under the disk tier's name for it. Whether
// the kernel lends files depends on where they lie.
func (n nothing) Samples() (all []string) {
	for _, d := range n.Cache.Disks {
		name, there := filepath.Join(d.Path, disk.LabelFile), make(chan bool, 1)
		go func() {
			info, err := os.Stat(name)
			there <- err == nil && info.Mode().IsRegular()
		}()
		select {
		case yes := <-there:
			if yes {
				all = append(all, name)
			}
		case <-time.After(sampleWait):
		}
	}
	return all
}
