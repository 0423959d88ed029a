package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/internal/faultfs"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/node/status"
)

// device is an ext4 of its own over a loop device, over a file that lies in a fault
// file system of another process.
type device struct {
	e       *env
	loop    string
	control string
}

// device makes one of so many MiB; format is what mke2fs is told besides.
func (e *env) device(name string, mib int, format ...string) *device {
	e.Helper()
	d := &device{e: e}
	image, behind, dir := e.path(name+".img"), e.path(name+"-behind"), e.path(name)
	e.must(os.WriteFile(image, nil, 0o600), "make an image")
	e.must(os.Truncate(image, int64(mib)<<20), "size the image")
	e.must(os.Mkdir(behind, 0o755), "make a mount point")
	e.must(os.Mkdir(dir, 0o755), "make a mount point")
	cmd := exec.Command(e.program("faultfs"), "-dir", behind, "-file", image, "-watchdog", "40s")
	in, err := cmd.StdinPipe()
	e.must(err, "make a pipe")
	p := e.start(cmd)
	e.Cleanup(func() { _ = in.Close(); <-p.done })
	p.waitFor("\n")
	var said struct{ Control string }
	e.must(json.Unmarshal([]byte(p.out.String()), &said), "read the control address")
	d.control = said.Control
	d.loop = e.ext4(filepath.Join(behind, faultfs.Name), dir, func() { d.meet(faultfs.None) }, format...)
	return d
}

// ext4 makes a file system in a file, over a loop device, and mounts it; before is
// called before it is unmounted. format is what mke2fs is told besides.
func (e *env) ext4(file, dir string, before func(), format ...string) (loop string) {
	e.Helper()
	out, code := e.run("losetup", "--find", "--show", "--direct-io=on", file)
	if code != 0 {
		e.Fatalf("losetup: %s", out)
	}
	loop = strings.TrimSpace(out)
	// In use it is not detached but marked to go with its last user, which is this
	// process, however that ends.
	last, err := os.Open(loop)
	e.must(err, "open %s", loop)
	e.Cleanup(func() { _ = last.Close() })
	if out, code := e.run("losetup", "-d", loop); code != 0 {
		e.Fatalf("losetup -d %s: %s", loop, out)
	}
	if out, code := e.run("mke2fs", append(append([]string{"-q", "-t", "ext4"}, format...), loop)...); code != 0 {
		e.Fatalf("mke2fs: %s", out)
	}
	e.must(unix.Mount(loop, dir, "ext4", unix.MS_NOATIME, ""), "mount %s", loop)
	e.Cleanup(func() {
		if before != nil {
			before()
		}
		// Who was held by the device, and killed meanwhile, takes a moment to end.
		var err error
		hearthtest.Eventually(context.Background(), 10*time.Second, func() bool {
			err = unix.Unmount(dir, 0)
			return !errors.Is(err, unix.EBUSY)
		})
		if err != nil {
			e.Errorf("unmount %s: %v", dir, err)
			_ = unix.Unmount(dir, unix.MNT_DETACH)
		}
	})
	return loop
}

// meet makes the device meet a fault.
func (d *device) meet(f faultfs.Fault) {
	d.e.Helper()
	r, err := http.Post(d.control+"/"+string(f), "", nil)
	d.e.must(err, "set the fault %s", f)
	_ = r.Body.Close()
	if r.StatusCode != http.StatusOK {
		d.e.Errorf("set the fault %s: %s", f, r.Status)
	}
}

// stalled is the number of requests that the device does not answer.
func (d *device) stalled() (n int) {
	d.e.Helper()
	r, err := http.Get(d.control)
	d.e.must(err, "ask the fault file system")
	defer func() { _ = r.Body.Close() }()
	text, err := io.ReadAll(r.Body)
	d.e.must(err, "ask the fault file system")
	_, err = fmt.Sscan(string(text), &n)
	d.e.must(err, "read %q", text)
	return n
}

// cold drops what the kernel holds of the files' bytes, so that reads reach the node.
func (e *env) cold(dir string, list []hearthtest.File) {
	e.Helper()
	for _, f := range list {
		r, err := os.Open(filepath.Join(dir, f.Path))
		e.must(err, "open %s", f.Path)
		err = unix.Fadvise(int(r.Fd()), 0, 0, unix.FADV_DONTNEED)
		_ = r.Close()
		e.must(err, "drop the pages of %s", f.Path)
	}
}

// diskTier is what status says of the disk tier.
func (h *hearth) diskTier() status.Tier {
	h.e.Helper()
	for _, t := range h.status().Tiers {
		if t.Name == "disk" {
			return t
		}
	}
	h.e.Fatal("status knows no disk tier")
	return status.Tier{}
}

// ill is why the first cache directory is out of use; "": it is not.
func (h *hearth) ill() string { h.e.Helper(); return h.diskTier().Dirs[0].Ill }

// sickSet is read through sick disks: small files and two that lie in files of
// their own, more than the least RAM budget holds.
func (e *env) sickSet(o *server) []hearthtest.File {
	e.Helper()
	set, err := hearthtest.Set("D1")
	e.must(err, "data set")
	n := map[level][2]int{core: {4, 40}, all: {8, 100}, full: {20, 100}}[e.level] // what the sick devices hold
	list := e.load(o, set.Reduced(n[0], n[1]))
	for i := range 2 {
		f := hearthtest.File{Path: fmt.Sprintf("large/%d", i), Size: 10<<20 + int64(i)}
		e.must(o.PutFile(e.ctx, o.bucket, "", f, 0), "put %s", f.Path)
		list = append(list, f)
	}
	return list
}

// sickDisk reads while the cache directory's disk fails by a fault, and after it is
// well again: every byte is right and no reader sees an error, but for one of a file
// that is lent to the kernel; the directory is ejected, named by status, a counter and a
// log line, lends nothing meanwhile, and is used again by itself.
func sickDisk(fault faultfs.Fault, open string) func(e *env) {
	return func(e *env) {
		o := e.origin()
		list := e.sickSet(o)
		p := e.proxy(o)
		// Without a journal the file system itself survives failed writes.
		d := e.device("sick", 384, "-O", "^has_journal")
		h := e.mount(o, settings{endpoint: p.endpoint, ram: "16MiB", disk: "300MiB", cache: "sick/cache", floor: "1MiB", mount: []string{"--open", open}})
		e.good("cold", epoch(h.dir, list, 1, 8, 0))
		h.fills(list)
		e.cold(h.dir, list)
		safe, large := list, list[len(list)-2:]
		if open == "passthrough" { // their bytes are the disk's word
			h.lend(large)
			safe = list[:len(list)-2]
		}
		held, err := os.Open(filepath.Join(h.dir, large[0].Path))
		e.must(err, "open %s", large[0].Path)
		e.uncached(e.path("sick/cache/objects"))
		d.meet(fault)
		for seed := uint64(2); h.ill() == ""; seed++ {
			e.good("while the disk is sick", epoch(h.dir, safe, seed, 8, 0))
			e.cold(h.dir, list)
		}
		e.heldThrough(held, large[0], open == "passthrough")
		lent := h.status().Mounts[0].Ops["lent"]
		begun := time.Now()
		e.good("with the directory out of use", epoch(h.dir, list, 99, 8, 0))
		if took := time.Since(begun); took > 30*time.Second {
			e.Errorf("reading past a sick disk took %v", took)
		}
		if n := h.status().Mounts[0].Ops["lent"] - lent; n != 0 {
			e.Errorf("a directory that is out of use lent %d opens", n)
		}
		if t := h.diskTier(); t.Errors == 0 || fault == faultfs.Stall && (t.Dirs[0].Stalls != 1 || d.stalled() == 0) {
			e.Errorf("the counters say %+v, %d stalled", t, d.stalled())
		}
		if s := h.status(); !strings.Contains(s.Says, e.path("sick/cache")) {
			e.Errorf("status says %q", s.Says)
		}
		h.waitFor("cache directory is out of use")
		d.meet(faultfs.None)
		e.eventually("the directory is in use again", func() bool { return h.ill() == "" })
		e.cold(h.dir, list)
		e.good("with the disk well", epoch(h.dir, list, 100, 8, 0))
		h.fills(list)
		e.cold(h.dir, list)
		before := p.bytes()
		e.good("from the disk", epoch(h.dir, list, 101, 8, 0))
		if asked := p.bytes() - before; asked > sum(list)/10 {
			e.Errorf("the origin sent %d bytes of %d: the directory is not used", asked, sum(list))
		}
		h.lends(lent)
		h.quit()
	}
}

// fills reads until the disk holds nearly all: a slow one declines what comes too fast.
func (h *hearth) fills(list []hearthtest.File) {
	h.e.Helper()
	for seed := uint64(1000); ; seed++ {
		if hearthtest.Eventually(h.e.ctx, 2*time.Second, func() bool { return h.diskTier().Used > sum(list)*8/10 }) || h.e.ctx.Err() != nil {
			return
		}
		h.e.cold(h.dir, list)
		h.e.good("what the disk did not take", epoch(h.dir, list, seed, 4, 0))
	}
}

// uncached has the kernel drop its pages of the files in a directory, so that who reads
// them needs the device.
func (e *env) uncached(dir string) {
	e.Helper()
	names, err := filepath.Glob(dir + "/*")
	e.must(err, "list %s", dir)
	for _, name := range names {
		f, err := os.Open(name)
		e.must(err, "open %s", name)
		err = errors.Join(unix.Fdatasync(int(f.Fd())), unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED), f.Close())
		e.must(err, "drop the pages of %s", name)
	}
}

// heldThrough reads and closes a file that was opened before its disk failed: each byte
// that comes is right, and an error comes of what is lent alone.
func (e *env) heldThrough(r *os.File, f hearthtest.File, lent bool) {
	e.Helper()
	defer func() { _ = r.Close() }()
	buf, failed := make([]byte, 1<<20), 0
	for off := int64(0); off < f.Size; off += int64(len(buf)) {
		n, err := r.ReadAt(buf, off)
		if errors.Is(err, unix.EIO) && lent {
			failed++
		} else if err != nil && !errors.Is(err, io.EOF) {
			e.Errorf("%s at %d, open since before the fault: %v", f.Path, off, err)
		}
		if err := hearthtest.Check(buf[:n], f.Path, off, 0); err != nil {
			e.Errorf("%s, open since before the fault: %v", f.Path, err)
		}
	}
	e.Logf("open since before the fault, lent %v: %d reads failed", lent, failed)
}

// readOnlyDisk: the file system of the first of two directories turns read-only under
// the node, as ext4 does at an error. The names move to the other one; once it is
// unmounted, repaired and mounted again, the directory is used again by itself.
func readOnlyDisk(e *env) {
	o := e.origin()
	list := e.sickSet(o)
	p := e.proxy(o)
	d := e.device("sick", 384)
	h := e.mount(o, settings{endpoint: p.endpoint, ram: "16MiB", cache: "sick/cache", floor: "1MiB", disk: fmt.Sprintf("300MiB}, {path: %q, size: 300MiB", e.path("well"))})
	half := len(list) / 2
	e.good("cold, half of it", epoch(h.dir, list[:half], 1, 8, 0))
	e.eventually("it is written", func() bool { return h.diskTier().Used > sum(list[:half])*8/10 })
	// A file that is open for writing forbids a remount; an error of the device does
	// not ask.
	e.must(os.WriteFile("/proc/sys/vm/drop_caches", []byte("1"), 0), "drop clean pages")
	e.must(unix.Mount("", e.path("sick"), "", unix.MS_REMOUNT, "abort"), "abort the file system")
	for seed := uint64(2); h.ill() == ""; seed++ {
		e.good("read-only", epoch(h.dir, list, seed, 8, 0))
		e.cold(h.dir, list)
	}
	e.good("with the directory out of use", epoch(h.dir, list, 99, 8, 0))
	h.waitFor("cache directory is out of use")
	if s := h.status(); !strings.Contains(s.Says, e.path("sick/cache")) || h.diskTier().Errors == 0 {
		e.Errorf("status says %q, %+v", s.Says, h.diskTier())
	}
	e.eventually("the names have moved", func() bool { return h.status().Names.Where == e.path("well/names") })
	e.must(unix.Unmount(e.path("sick"), unix.MNT_DETACH), "unmount what is in use")
	e.eventually("the node has let the file system go, and it is repaired", func() bool {
		e.cold(h.dir, list)
		e.good("unmounted", epoch(h.dir, list[:half], 98, 8, 0))
		_, code := e.run("e2fsck", "-fy", d.loop)
		return code <= 1 // all is well, or was mended
	})
	if entries, err := os.ReadDir(e.path("sick")); err != nil || len(entries) > 0 {
		e.Errorf("below the mount point lie %v, %v", entries, err)
	}
	e.must(unix.Mount(d.loop, e.path("sick"), "ext4", unix.MS_NOATIME, ""), "mount it again")
	e.eventually("the directory is in use again", func() bool { return h.ill() == "" })
	e.cold(h.dir, list)
	e.good("with the disk well", epoch(h.dir, list, 100, 8, 0))
	e.eventually("all is written", func() bool { return h.diskTier().Used > sum(list)*8/10 && h.diskTier().Dirs[0].Used > 0 })
	e.cold(h.dir, list)
	before := p.bytes()
	e.good("from the disks", epoch(h.dir, list, 101, 8, 0))
	if asked := p.bytes() - before; asked > sum(list)/10 {
		e.Errorf("the origin sent %d bytes of %d: a directory is not used", asked, sum(list))
	}
	h.quit()
}

// fullDisk: somebody else, or the cache itself, takes the last byte or the last
// inode of the file system.
func fullDisk(e *env) {
	o := e.origin()
	list := e.sickSet(o)
	for _, c := range []struct {
		name   string
		mib    int
		format []string
	}{{"bytes", 24, nil}, {"inodes", 384, []string{"-N", "24"}}} {
		e.device(c.name, c.mib, c.format...)
		fillInodes(e, c.name)
		// The budget is more than there is, and the floor a page: the device says no.
		h := e.mount(o, settings{ram: "16MiB", disk: "2GiB", cache: c.name + "/cache", floor: "4KiB"})
		for seed := range uint64(3) {
			e.good("a disk without room: "+c.name, epoch(h.dir, list, seed, 8, 0))
			e.cold(h.dir, list)
		}
		switch t := h.diskTier(); c.name {
		case "inodes":
			if h.waitFor("cache directory has no room"); t.Errors == 0 {
				e.Errorf("no counter says so: %+v", t)
			}
		case "bytes":
			h.waitFor("cache directory may hold less than its budget")
			if t.Budget > 24<<20 || t.Used > t.Budget {
				e.Errorf("of 24 MiB the tier may use %d and uses %d", t.Budget, t.Used)
			}
			e.takeAll(filepath.Join(e.path(c.name), "taken"))
			e.cold(h.dir, list)
			e.good("a disk without a byte", epoch(h.dir, list, 9, 8, 0))
		}
		h.quit()
	}
}

// takeAll writes a file until its file system is full.
func (e *env) takeAll(name string) {
	e.Helper()
	f, err := os.Create(name)
	e.must(err, "create %s", name)
	for buf := make([]byte, 4096); err == nil; {
		_, err = f.Write(buf)
	}
	if !errors.Is(err, unix.ENOSPC) {
		e.Fatalf("fill the disk: %v", err)
	}
	_ = f.Close() // it may lack the room for what it holds
}

// fillInodes takes all but a few inodes of a file system.
func fillInodes(e *env, name string) {
	e.Helper()
	if name != "inodes" {
		return
	}
	var st unix.Statfs_t
	e.must(unix.Statfs(e.path(name), &st), "statfs")
	for i := range max(int(st.Ffree)-20, 0) {
		e.must(os.WriteFile(e.path(fmt.Sprintf("%s/taken-%d", name, i)), nil, 0o600), "take an inode")
	}
}

// removedDirectory: rm -rf of the cache directory under a running node; and a
// second node on the directory of a running one is refused with a clear error.
func removedDirectory(e *env) {
	o := e.origin()
	list := e.sickSet(o)
	set := settings{ram: "16MiB"}
	h := e.mount(o, set)
	e.good("cold", epoch(h.dir, list, 1, 8, 0))

	second := e.path("mnt-second")
	e.must(os.MkdirAll(second, 0o755), "make a mount point")
	cmd := exec.Command(e.hearth, "mount", "--config", e.writeConfig(o, set), "s3://"+o.bucket, second)
	cmd.Env = e.environ(o)
	p := e.start(cmd)
	if code := p.exit(30 * time.Second); code != 8 || !strings.Contains(p.out.String(), fmt.Sprintf("in use by process %d", h.Process.Pid)) {
		e.Errorf("a second node on the directory: exit %d:\n%s", code, p.out)
	}

	for round := range uint64(3) {
		if out, code := e.run("rm", "-rf", e.path("cache")); code != 0 {
			e.Logf("rm -rf: %s", out) // the node writes into it meanwhile
		}
		e.cold(h.dir, list)
		e.good("the cache directory removed", epoch(h.dir, list, round, 8, 0))
	}
	h.waitFor("cache directory is out of use")
	e.eventually("it is filled again", func() bool {
		e.cold(h.dir, list)
		e.good("filling it", epoch(h.dir, list, 7, 8, 0))
		return h.diskTier().Used > sum(list)*8/10
	})
	if code := h.terminate(syscall.SIGTERM); code != 0 {
		e.Errorf("hearth ended with %d", code)
	}
}
