package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// overlay stacks an overlayfs on a mount, and an object changes: the mount shows the new version, the
// overlay ESTALE for the name that it knows (or the new version, with a kernel that looks again),
// never a mixture; a remount of the overlay cures it. What was written into the overlay stays.
func overlay(e *env) {
	o := e.origin()
	list := e.load(o, e.set("D1", 1, 10, 1, 10))
	h := e.mount(o, settings{fresh: "bounded(1s)"})
	over, shown := e.path("over"), e.path("shown")
	e.must(errors.Join(os.Mkdir(over, 0o755), os.Mkdir(shown, 0o755)), "make directories")
	e.must(unix.Mount("hearthtest", over, "tmpfs", 0, ""), "mount a tmpfs")
	upper, work := filepath.Join(over, "upper"), filepath.Join(over, "work")
	e.must(errors.Join(os.Mkdir(upper, 0o755), os.Mkdir(work, 0o755)), "make the overlay's directories")
	e.must(unix.Mount("hearthtest", shown, "overlay", 0, fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", h.dir, upper, work)), "mount an overlay")
	own := filepath.Join(shown, "own")
	e.must(os.WriteFile(own, []byte("own"), 0o644), "write into the overlay")
	e.good("through the overlay", epoch(shown, list, 1, 2, 0))
	changed := list[0]
	e.must(o.PutFile(e.ctx, o.bucket, "", changed, 1), "change an object")
	is := func(dir string, version int) error {
		data, err := os.ReadFile(filepath.Join(dir, changed.Path))
		if err != nil {
			return err
		}
		return hearthtest.Check(data, changed.Path, 0, version)
	}
	e.eventually("the new version in the mount", func() bool { return is(h.dir, 1) == nil })
	if err := is(shown, 1); err != nil && !errors.Is(err, unix.ESTALE) {
		e.Errorf("the changed object through the overlay: %v", err)
	}
	e.good("what did not change, through the overlay", epoch(shown, list[1:], 2, 2, 0))
	e.must(unix.Mount("", shown, "", unix.MS_REMOUNT, ""), "remount the overlay")
	e.must(is(shown, 1), "the changed object after a remount")
	if text, err := os.ReadFile(own); err != nil || string(text) != "own" {
		e.Errorf("what was written into the overlay: %q, %v", text, err)
	}
	e.must(errors.Join(unix.Unmount(shown, 0), unix.Unmount(over, 0)), "take the overlay away")
	h.quit()
}
