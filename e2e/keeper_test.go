package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/cache/disk"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/node/config"
	"github.com/hearthfs/hearth/node/status"
	"github.com/hearthfs/hearth/warmup"
)

// keeperScenarios are the scenarios of a node that a keeper starts again.
func keeperScenarios() []scenario {
	const behind = "versitygw behind the fault proxy"
	kills := func(l level) string {
		return map[level]string{core: "10 kills, 300 files (REDUCED)", all: "10 kills, 2,000 files (REDUCED)", full: "10 kills, 20,000 files"}[l]
	}
	all := []scenario{
		{name: "kept-none", issue: "keeper", from: core, limit: 2 * time.Minute, origin: behind, size: kills, run: keptMount("none", 10, 0)},
		{name: "kept-passthrough", root: true, issue: "keeper", from: core, limit: 2 * time.Minute, origin: behind, size: kills, run: keptMount("passthrough", 10, 0)},
		{name: "kept-thousand", soak: true, root: true, issue: "keeper", from: all, limit: 20 * time.Minute, origin: behind, size: func(level) string { return "1,000 kills, 2,000 files" }, run: keptMount("auto", 1000, 0)},
		{name: "kept-million", soak: true, alone: true, issue: "keeper", from: all, limit: 5 * time.Minute, origin: behind, size: func(level) string { return "10 kills, 2,000 files" }, run: keptMount("auto", 10, 1_000_000)},
		{name: "kept-several", root: true, issue: "keeper", from: core, limit: 2 * time.Minute, origin: behind, size: func(level) string { return "5 mounts" }, run: keptSeveral},
		{name: "kept-replaced", root: true, issue: "keeper", from: core, limit: 6 * time.Minute, origin: behind,
			size: func(l level) string {
				return map[level]string{core: "3 upgrades (REDUCED)", all: "10 upgrades", full: "10 upgrades"}[l]
			}, run: keptReplaced},
		{name: "kept-drained", root: true, issue: "keeper", from: core, limit: 2 * time.Minute, origin: behind, size: func(level) string { return "5 upgrades, 100 files" }, run: keptDrained},
		{name: "kept-hand-over", root: true, issue: "keeper", from: all, limit: 5 * time.Minute, origin: behind, size: func(level) string { return "60 kills 0 to 120 ms after a start, 2,000 files" }, run: keptHandOver},
		{name: "kept-ended", root: true, issue: "keeper", from: core, limit: 2 * time.Minute, origin: behind, size: func(level) string { return "16 ends 0 to 150 ms after a kill" }, run: keptEnded},
		{name: "kept-oom", root: true, issue: "keeper", from: core, limit: 2 * time.Minute, origin: behind, size: func(level) string { return "200 files" }, run: keptOOM},
		{name: "kept-daemon", issue: "keeper", from: core, limit: 2 * time.Minute, origin: behind, size: func(level) string { return "20 files" }, run: keptDaemon},
		{name: "kept-away", root: true, issue: "keeper", from: core, limit: 2 * time.Minute, origin: behind, size: func(level) string { return "20 files" }, run: keptAway},
		{name: "kept-spared", issue: "keeper", from: core, limit: 2 * time.Minute, origin: behind, size: func(level) string { return "2 mounts" }, run: keptSpared},
		{name: "kept-cannot-start", root: true, issue: "keeper", from: core, limit: 3 * time.Minute, origin: behind, size: func(level) string { return "20 files" }, run: keptCannotStart},
		{name: "kept-too-long", issue: "keeper", from: core, limit: 2 * time.Minute, origin: behind, size: func(level) string { return "20 files" }, run: keptTooLong},
	}
	for i, sc := range all {
		all[i].run = func(e *env) {
			if !resends() {
				e.Skip("a mount outlives its node on Linux 6.9 or later")
			}
			sc.run(e)
		}
	}
	return all
}

// resends reports whether this kernel asks the next node for what the last one had taken.
func resends() bool {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return false
	}
	var major, minor int
	_, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor)
	return err == nil && (major > 6 || major == 6 && minor >= 9)
}

// keptMount has a node killed again and again under readers of two mounts and with a warm-up at work, at moments of their own.
// Each next node serves what the last one had left: nobody gets an error or wrong bytes, neither by new opens nor by files that
// are open all the time, and each warm-up is done. Where the cache directory holds many blocks from before, which each next node
// has to find again, readers wait no longer than mostStall.
func keptMount(open string, kills, blocks int) func(e *env) {
	return func(e *env) {
		o := e.origin()
		list := e.load(o, e.set("D1", 3, 100, 10, 200))
		p := e.proxy(o)
		set := settings{endpoint: p.endpoint, keep: true, fresh: "bounded(1s)", mount: []string{"--open", open}}
		if e.variant != "" {
			kills, blocks = min(kills, 100), min(blocks, 50_000)
		}
		if blocks > 0 {
			set.ram, set.disk = "512MiB", "4GiB" // the index of all takes memory
			e.stock(blocks)
		}
		h := e.mount(o, set)
		second := e.path("mnt-second")
		e.must(os.MkdirAll(second, 0o755), "make a mount point")
		_, err := h.client.Mount(e.ctx, admin.MountRequest{Mount: config.Mount{Dir: second, Open: open}})
		e.must(err, "mount once more")
		end := e.readAlong(list, h.dir, second)
		defer end()
		var longest float64
		var jobs []string
		for i := range kills {
			pid := h.reads(20 + i%60*7)
			if i < 10 || i%100 == 0 {
				out, code := h.ask("warmup", "/", "--detach")
				if code != 0 {
					e.Errorf("warmup: exit code %d: %s", code, out)
				}
				jobs = append(jobs, strings.TrimSpace(out))
			}
			e.must(syscall.Kill(pid, syscall.SIGKILL), "kill the node")
			e.eventually("the next node", func() bool {
				s, err := h.client.Status(e.ctx)
				return err == nil && s.PID != pid && s.Keeper != nil && s.Keeper.Starts == i+2 && s.Keeper.StalledS > 0
			})
			k := h.status().Keeper
			// A thread of it may wait in its own mount, which the next node ends.
			if longest = max(longest, k.StalledS); !strings.HasPrefix(k.Cause, "was killed") {
				e.Errorf("the keeper says that the node %s", k.Cause)
			}
		}
		h.reads(20)
		for _, id := range jobs {
			var v *warmup.View
			e.eventually("the end of a warm-up", func() (over bool) {
				v, err = h.client.Jobs().Get(e.ctx, id)
				return err == nil && v.State.Over()
			})
			if v.State != warmup.Done || v.Counters.Failed.Files > 0 {
				e.Errorf("a warm-up is %s: %+v", v.State, v.Counters)
			}
		}
		end()
		memory := ownMemory(e, parentOf(e, h.status().PID))
		e.shows("%d kills, the longest stall %.2f s, the keeper has %d KiB of its own", kills, longest, memory/1024)
		if memory > 10<<20 && e.variant != "race" {
			e.Errorf("the keeper has %d bytes of its own", memory)
		}
		text, code := e.run(e.hearth, "status", "--node", "unix://"+h.socket())
		if code != 0 || !strings.Contains(text, "keeper: started the node") {
			e.Errorf("status says nothing of the keeper (exit code %d):\n%s", code, text)
		}
		if blocks > 0 {
			h.stocked(blocks)
			if longest > mostStall.Seconds() && !e.race {
				e.Errorf("readers waited for %.2f s, more than %v", longest, mostStall)
			}
		}
		h.quit()
	}
}

// mostStall is how long readers may wait for a next node that finds a million blocks: twice what is promised, as the machine has
// other work. No other scenario runs beside it: with two, readers waited for more than that, and alone for 0.4 s.
const mostStall = 2 * time.Second

// stock puts so many blocks into the cache directory before a node has it: small objects of a bucket that nobody reads.
func (e *env) stock(blocks int) {
	e.Helper()
	pool := hearthtest.Pool(e.T, 512<<20)
	s, err := disk.Open(disk.Options{Dirs: []disk.DirOptions{{Path: e.path("cache"), Budget: 4 << 30, Floor: -1}}, Pool: pool})
	e.must(err, "open the cache directory")
	for i := range blocks {
		if i%(16<<10) == 0 { // more would not fit into the queue
			e.must(s.Flush(e.ctx), "write blocks")
		}
		o := hearthtest.NewObject(fmt.Sprint("stock/", i), stockBytes+int64(i%1024), 0)
		v, err := pool.Alloc(e.ctx, int(o.Size))
		e.must(err, "take memory")
		hearthtest.Fill(v.Bytes(), o.Key, 0, 0)
		err = s.Put(o.Block(0), v)
		v.Release()
		e.must(err, "put a block")
	}
	e.must(errors.Join(s.Flush(e.ctx), s.Close()), "write blocks")
}

// stockBytes is the least size of what stock puts.
const stockBytes = 1024

// stocked fails the scenario unless the node has indexed what stock put, and each block is there.
func (h *hearth) stocked(blocks int) {
	h.e.Helper()
	d := h.diskTier().Dirs[0]
	if d.Used < int64(blocks)*stockBytes || d.Unindexed > 0 || d.Ill != "" {
		h.e.Errorf("of %d blocks from before the disk tier says: %+v", blocks, d)
	}
	n := h.fsck(0).Summary.Blocks
	reduced := ""
	if h.e.variant != "" {
		reduced = " (REDUCED)"
	}
	h.e.shows("%d blocks in the cache directory%s", n, reduced)
	if n < int64(blocks) {
		h.e.Errorf("%d blocks of %d are left", n, blocks)
	}
}

// ownMemory is a process's anonymous memory in bytes, RssAnon of proc(5).
func ownMemory(e *env, pid int) (n int64) {
	e.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	e.must(err, "read a process's memory")
	_, rest, _ := strings.Cut(string(text), "RssAnon:")
	_, err = fmt.Sscan(rest, &n)
	e.must(err, "find a process's memory")
	return n << 10
}

// readAlong has files read over and over, by new opens and through files that stay open, until the func that it returns is
// called. Each mount has its readers in a process of their own, eight of them and one of what stays open: a page that is
// waited for stops a Go process now and then, which this one, with the origin's proxy, must not. Any error or wrong byte
// fails the scenario.
func (e *env) readAlong(list []hearthtest.File, dirs ...string) (end func()) {
	e.Helper()
	var readers []*reader
	for _, dir := range dirs {
		readers = append(readers, e.reader(job{Op: "along", Dir: dir, Files: list}))
	}
	return sync.OnceFunc(func() {
		for i, r := range readers {
			r.end()
			if a := r.result(time.Minute); a.Done == 0 || len(a.Wrong) > 0 {
				e.Errorf("readers of %s, after %d rounds: %s", dirs[i], a.Done, strings.Join(a.Wrong, "; "))
			}
		}
	})
}

// along is what a reader of readAlong does.
func (w *worker) along(j job, stop chan struct{}) {
	const atOnce = 100 // files
	var work sync.WaitGroup
	var mu sync.Mutex // guards w
	for first := range uint64(4) {
		work.Go(func() {
			for seed := first; ; seed += 4 {
				select {
				case <-stop:
					return
				default:
				}
				// A slow machine takes minutes for all of them, and nobody waits so long for the end.
				some := j.Files[int(seed*atOnce)%len(j.Files):]
				r := epoch(j.Dir, some[:min(len(some), atOnce)], j.Seed+seed, 2, 0)
				mu.Lock()
				w.Done++
				if len(r.errors) > 0 {
					w.wrong("%d of %d files failed, such as: %v", len(r.errors), r.files, r.errors[0])
				}
				mu.Unlock()
				if len(r.errors) > 0 {
					return
				}
			}
		})
	}
	work.Go(func() {
		if err := readHeld(j.Dir, j.Files[:20], stop); err != nil {
			mu.Lock()
			defer mu.Unlock()
			w.wrong("what stays open: %v", err)
		}
	})
	work.Wait()
}

// earlier builds Hearth as it was at the commits that e2e/upgrades names, and returns the programs, the latest one first.
func (e *env) earlier() (programs []string) {
	e.Helper()
	text, err := os.ReadFile("upgrades")
	e.must(err, "read which versions there were")
	for line := range strings.Lines(string(text)) {
		commit, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		if commit == "" || commit == "#" {
			continue
		}
		dir := e.path("hearth-at-" + commit)
		e.must(os.MkdirAll(dir, 0o755), "make a directory")
		build := exec.CommandContext(e.ctx, "/bin/sh", "-c", `git archive "$1" | tar -x -C "$2" && cd "$2" && exec go build -trimpath -buildvcs=false -o hearth ./cmd/hearth`, "sh", commit, dir)
		build.Dir, build.Env = e.repo, append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			e.Fatalf("build Hearth as it was at %s, which a shallow clone does not have: %v: %s", commit, err, out)
		}
		programs = append(programs, filepath.Join(dir, "hearth"))
	}
	slices.Reverse(programs)
	return programs
}

// keptReplaced has node and keeper replaced by other versions, to and fro, under readers, then the keeper killed alone, and
// at last both: only then do readers get an error.
func keptReplaced(e *env) {
	o := e.origin()
	list := e.load(o, e.set("D1", 1, 50, 2, 100))
	p := e.proxy(o)
	h := e.mount(o, settings{endpoint: p.endpoint, keep: true, fresh: "bounded(1s)"})
	other := e.path("hearth-of-another-version")
	text, err := os.ReadFile(e.hearth)
	e.must(err, "read the binary")
	e.must(os.WriteFile(other, text, 0o755), "copy the binary")
	programs, upgrades := []string{other, e.hearth}, 3
	if e.level != core && !e.ci { // CI may have no history to build from
		programs, upgrades = append(e.earlier(), e.hearth), 10
	}
	end := e.readAlong(list, h.dir)
	defer end()
	upgrade := func(program string, says string, code int) {
		e.Helper()
		if out, got := e.run(e.hearth, "upgrade", program, "--node", "unix://"+h.socket()); got != code || !strings.Contains(out, says) {
			e.Errorf("upgrade to %s: exit %d, not %d and %q: %s", program, got, code, says, out)
		}
	}
	keeper := func() int { return parentOf(e, h.status().PID) }
	first, longest := keeper(), 0.0
	for i := range upgrades {
		before := h.reads(20)
		program := programs[i%len(programs)]
		upgrade(program, "has the place of", 0)
		s := h.status()
		for _, pid := range []int{s.PID, keeper()} {
			if is, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); is != program {
				e.Errorf("process %d is %s, not %s (%v)", pid, is, program, err)
			}
		}
		if s.PID == before || keeper() != first || !strings.Contains(s.Keeper.Cause, "made way") {
			e.Errorf("after an upgrade node %d of keeper %d is %d of %d: %+v", before, first, s.PID, keeper(), s.Keeper)
		}
		longest = max(longest, s.Keeper.StalledS)
	}
	e.shows("%d upgrades among %d versions, the longest stall %.2f s", upgrades, len(programs), longest)
	upgrade("/bin/true", "does not tell its version", 2)
	old := e.path("hearth-of-an-old-version")
	e.must(os.WriteFile(old, []byte("#!/bin/sh\necho '{\"version\":\"0.0\",\"formats\":{\"segments\":0}}'\n"), 0o755), "make an old version")
	upgrade(old, "cannot read what this node has written", 8)

	pid := h.reads(20)
	e.must(syscall.Kill(first, syscall.SIGKILL), "kill the keeper")
	second := 0
	e.eventually("another keeper, a child of the node", func() bool {
		for _, child := range childrenOf(pid) {
			second = child
		}
		return second != 0 && strings.Contains(h.out.String(), "another one is started")
	})
	if now := h.reads(20); now != pid {
		e.Errorf("the node is %d, not %d", now, pid)
	}
	e.must(syscall.Kill(pid, syscall.SIGKILL), "kill the node")
	e.eventually("the next node, of the other keeper", func() bool {
		s, err := h.client.Status(e.ctx)
		return err == nil && s.PID != pid && parentOf(e, s.PID) == second
	})
	h.reads(20)
	end()
	pid = h.status().PID
	for _, s := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGKILL} {
		e.must(errors.Join(syscall.Kill(second, s), syscall.Kill(pid, s)), "stop and kill both")
	}
	e.eventually("the end of the mount", func() bool {
		_, err := os.ReadDir(h.dir)
		return errors.Is(err, syscall.ENOTCONN)
	})
	if out, code := e.run(e.hearth, "umount", "--dead"); code != 0 || len(mountsBelow(h.dir)) != 0 {
		e.Errorf("umount --dead: exit %d, and %d mounts are left: %s", code, len(mountsBelow(h.dir)), out)
	}
}

// keptDrained has a mount whose kernel would ask no other process for what one has taken, as Linux before 6.9. It outlives its
// node by upgrades, under readers who get no error. If the node is killed, they get one, and the next node mounts anew.
func keptDrained(e *env) {
	o := e.origin()
	list := e.load(o, e.set("D1", 1, 100, 1, 100))
	p := e.proxy(o)
	without := []string{"--fuse-without", "resend"}
	if e.variant == "masked" {
		without[1] = "all"
	}
	h := e.mount(o, settings{endpoint: p.endpoint, keep: true, fresh: "bounded(1s)", mount: without})
	end := e.readAlong(list, h.dir)
	defer end()
	longest := 0.0
	for i := range 5 {
		pid := h.reads(20)
		if out, code := e.run(e.hearth, "upgrade", e.hearth, "--node", "unix://"+h.socket()); code != 0 {
			e.Errorf("upgrade: exit %d: %s", code, out)
		}
		s := h.status()
		if s.PID == pid || s.Keeper.Starts != i+2 || len(s.Mounts) != 1 {
			e.Errorf("after upgrade %d of node %d: %d, %+v, %d mounts", i+1, pid, s.PID, s.Keeper, len(s.Mounts))
		}
		longest = max(longest, s.Keeper.StalledS)
	}
	h.reads(20)
	end()
	e.shows("5 upgrades, the longest stall %.2f s", longest)
	held, err := os.Open(filepath.Join(h.dir, list[0].Path))
	e.must(err, "open a file to hold")
	defer func() { _ = held.Close() }() // it was only read
	e.must(syscall.Kill(h.status().PID, syscall.SIGKILL), "kill the node")
	e.eventually("an error for who has a file open", func() bool {
		_ = unix.Fadvise(int(held.Fd()), 0, 0, unix.FADV_DONTNEED)
		_, err := held.ReadAt(make([]byte, 1), 0)
		return errors.Is(err, syscall.ENOTCONN) || errors.Is(err, syscall.ECONNABORTED)
	})
	e.must(held.Close(), "close the file")
	e.eventually("the next node", func() bool {
		s, err := h.client.Status(e.ctx)
		return err == nil && len(s.Mounts) == 1
	})
	e.good("by the next node", epoch(h.dir, list, 1, 2, 0))
	if text := h.out.String(); !strings.Contains(text, "has ended with its node, since Linux before 6.9") {
		e.Errorf("the keeper does not say why the mount has ended:\n%s", text)
	}
	h.quit()
}

// parentOf is a process's parent.
func parentOf(e *env, pid int) int {
	e.Helper()
	_, parent := stateOf(e, pid)
	return parent
}

// stateOf is a process's state, as proc(5) has it, and its parent.
func stateOf(e *env, pid int) (state string, parent int) {
	e.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	e.must(err, "read a process's state")
	_, words, _ := strings.Cut(string(text), ") ")
	_, err = fmt.Sscan(words, &state, &parent)
	e.must(err, "find a process's state")
	return state, parent
}

// childrenOf are a process's children.
func childrenOf(pid int) (all []int) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid)) // the pattern is well-formed
	for _, file := range tasks {
		text, _ := os.ReadFile(file) // the thread has ended, else
		for word := range strings.FieldsSeq(string(text)) {
			n, _ := strconv.Atoi(word)
			all = append(all, n)
		}
	}
	return all
}

// keptHandOver has each next node killed, too, ever later after its start: while it starts, takes the mounts over, or has just
// begun to serve them. The one after it serves, and nobody gets an error.
func keptHandOver(e *env) {
	o := e.origin()
	list := e.load(o, e.set("D1", 1, 10, 10, 200))
	h := e.mount(o, settings{keep: true, mount: []string{"--open", "passthrough"}})
	end := e.readAlong(list, h.dir)
	defer end()
	keeper := parentOf(e, h.status().PID)
	for after := time.Duration(0); after < 120*time.Millisecond && !e.Failed(); after += 2 * time.Millisecond {
		pid, next := h.reads(20), 0
		e.must(syscall.Kill(pid, syscall.SIGKILL), "kill the node")
		e.eventually("the next node's start", func() bool {
			for _, child := range childrenOf(keeper) {
				if child != pid {
					next = child
				}
			}
			return next != 0
		})
		time.Sleep(after)
		_ = syscall.Kill(next, syscall.SIGKILL) // it may have ended by itself
		e.eventually("the node after it", func() bool {
			s, err := h.client.Status(e.ctx)
			return err == nil && s.PID != pid && s.PID != next
		})
	}
	h.reads(20)
	end()
	h.quit()
}

// keptEnded has the node killed and, ever later, its keeper told to end: while no node runs, while one starts, takes the
// mount over, or has just begun to serve it. Each time the mount is gone, and all has ended without a complaint.
func keptEnded(e *env) {
	o := e.origin()
	e.load(o, e.set("D1", 1, 2, 1, 2))
	for after := time.Duration(0); after < 160*time.Millisecond && !e.Failed(); after += 10 * time.Millisecond {
		h := e.mount(o, settings{keep: true})
		e.must(syscall.Kill(h.status().PID, syscall.SIGKILL), "kill the node")
		time.Sleep(after)
		_ = h.Process.Signal(syscall.SIGTERM)
		h.ended()
	}
}

// keptOOM has a node in a memory cgroup killed by the kernel, since the limit was lowered below what it has. The keeper is
// spared, and the next node serves, once there is memory again.
func keptOOM(e *env) {
	const enough = 1 << 30
	group := e.cgroup(enough)
	limit, events := filepath.Join(group, "memory.max"), filepath.Join(group, "memory.events")
	if _, err := os.Stat(limit); err != nil { // version 1
		limit, events = filepath.Join(group, "memory.limit_in_bytes"), filepath.Join(group, "memory.oom_control")
	}
	set := func(n int64) error { return os.WriteFile(limit, fmt.Append(nil, n), 0) }
	o := e.origin()
	list := e.load(o, e.set("D1", 1, 200, 1, 200))
	h := e.mount(o, settings{keep: true, ram: "512MiB", wrap: []string{"/bin/sh", "-c", "echo $$ > " + group + "/cgroup.procs && exec \"$@\"", "sh"}})
	end := e.readAlong(list, h.dir)
	defer end()
	pid := h.reads(20)
	keeper := parentOf(e, pid)
	for n := int64(enough); n > 8<<20 && set(n) == nil; n = n * 7 / 8 { // version 1 refuses what is in use
	}
	e.eventually("a kill by the kernel", func() bool {
		text, err := os.ReadFile(events)
		e.must(err, "read what happened in the group")
		_, kills, _ := strings.Cut(string(text), "oom_kill ")
		return kills != "" && kills[0] != '0'
	})
	e.must(set(enough), "give memory again")
	e.eventually("the next node", func() bool {
		s, err := h.client.Status(e.ctx)
		return err == nil && s.PID != pid && parentOf(e, s.PID) == keeper
	})
	h.reads(20)
	end()
	// A next node that starts before there is memory again says so, and is started again.
	if !strings.Contains(h.out.String(), "keeper: the node was killed by signal 9") {
		e.Errorf("the keeper does not say that the node was killed, but that it %s", h.status().Keeper.Cause)
	}
	h.quit()
}

// keptDaemon has the node of hearth mount --daemon killed, then both replaced by an upgrade, then the node killed again, the
// keeper, and the node once more. The mount stays, although the configuration was named by a relative path, and umount ends
// node and keeper.
func keptDaemon(e *env) {
	o := e.origin()
	list := e.load(o, e.set("D1", 1, 20, 1, 20))
	config, dir, log := e.writeConfig(o, settings{}), e.path("mnt"), e.path("log")
	e.must(os.MkdirAll(dir, 0o755), "make a mount point")
	node := "unix://" + strings.TrimSuffix(config, ".yaml") + ".sock"
	mount := exec.CommandContext(e.ctx, e.hearth, "mount", "--daemon", "--log-file", filepath.Base(log), "--config", filepath.Base(config), "s3://"+o.bucket, filepath.Base(dir))
	mount.Env, mount.Dir = e.environ(o), e.dir
	if out, err := mount.CombinedOutput(); err != nil {
		e.Fatalf("mount --daemon: %v: %s", err, out)
	}
	client, err := admin.Dial(node)
	e.must(err, "ask the node")
	defer client.Close()
	status := func() (s *status.Status) {
		e.eventually("a node that answers", func() bool {
			s, err = client.Status(e.ctx)
			return err == nil
		})
		return s
	}
	e.good("before", epoch(dir, list, 1, 2, 0))
	pids := []int{status().PID}
	keeper := parentOf(e, pids[0])
	e.must(syscall.Kill(pids[0], syscall.SIGKILL), "kill the node")
	e.good("after", epoch(dir, list, 2, 2, 0))
	s := status()
	if s.Keeper == nil || s.Keeper.Starts != 2 || parentOf(e, s.PID) != keeper {
		e.Errorf("keeper %d: %+v", keeper, s.Keeper)
	}
	next := func(round int, do func()) {
		e.Helper()
		was := status().PID
		do()
		e.eventually("the next node", func() bool { s = status(); return s.PID != was })
		e.good("once more", epoch(dir, list, uint64(round), 2, 0))
		pids = append(pids, s.PID)
	}
	pids = append(pids, s.PID, keeper)
	killNode := func() { e.must(syscall.Kill(status().PID, syscall.SIGKILL), "kill the node") }
	next(3, func() {
		if out, code := e.run(e.hearth, "upgrade", "--node", node); code != 0 {
			e.Errorf("upgrade: exit %d: %s", code, out)
		}
	})
	next(4, killNode)
	next(5, func() {
		e.must(syscall.Kill(keeper, syscall.SIGKILL), "kill the keeper")
		e.eventually("another keeper, a child of the node", func() bool {
			text, err := os.ReadFile(log)
			return err == nil && strings.Contains(string(text), "another one is started, and has the mounts")
		})
		pids = append(pids, childrenOf(status().PID)...)
		killNode()
	})
	if text, err := os.ReadFile(log); !strings.Contains(string(text), "keeper: the node was killed by signal 9") || !strings.Contains(string(text), "its mounts are served again") {
		e.Errorf("the log does not say what happened: %s %v", text, err)
	}
	if out, code := e.run(e.hearth, "umount", dir, "--node", node); code != 0 {
		e.Errorf("umount: exit %d: %s", code, out)
	}
	e.eventually("the end of node and keeper", func() bool {
		return !slices.ContainsFunc(pids, func(pid int) bool {
			_, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)) // one that nobody has waited for has none
			return err == nil
		})
	})
}

// reads waits until the node was asked for so many READs or OPENs by its mount, and returns its process id.
func (h *hearth) reads(n int) (pid int) {
	h.e.Helper()
	h.e.eventually("readers at the mount", func() bool {
		s, err := h.client.Status(h.e.ctx)
		if err != nil || len(s.Mounts) == 0 {
			return false
		}
		pid = s.PID
		return s.Mounts[0].Ops["read"]+s.Mounts[0].Ops["lookup"]+s.Mounts[0].Ops["getattr"]+s.Mounts[0].Ops["open"] >= int64(n)
	})
	return pid
}

// readHeld reads through what stays open, until stop is closed: files past the page cache by turns with O_DIRECT and without,
// a mapping of each, and their directory.
func readHeld(dir string, list []hearthtest.File, stop chan struct{}) error {
	var held []openedFile
	defer func() {
		for _, h := range held {
			_ = errors.Join(unix.Munmap(h.mapped), h.Close()) // it was only read
		}
	}()
	entries := map[string]int{} // of each directory
	for i, x := range list {
		f, err := os.OpenFile(filepath.Join(dir, x.Path), os.O_RDONLY|i%2*unix.O_DIRECT, 0)
		if err != nil {
			return err
		}
		mapped, err := unix.Mmap(int(f.Fd()), 0, int(x.Size), unix.PROT_READ, unix.MAP_SHARED)
		held = append(held, openedFile{f, x, mapped})
		if err != nil {
			return err
		}
		entries[filepath.Dir(x.Path)] = 0
	}
	var dirs []*os.File
	for path := range entries {
		d, err := os.Open(filepath.Join(dir, path))
		if err != nil {
			return err
		}
		defer func() { _ = d.Close() }() // it was only read
		names, err := d.Readdirnames(-1)
		if entries[path] = len(names); err != nil || len(names) == 0 {
			return fmt.Errorf("%s has %d names: %w", path, len(names), err)
		}
		dirs = append(dirs, d)
	}
	buf, err := unix.Mmap(-1, 0, largestOfD1+1<<12, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON) // aligned
	if err != nil {
		return err
	}
	defer func() { _ = unix.Munmap(buf) }()
	for i := 0; ; i++ {
		select {
		case <-stop:
			return nil
		default:
		}
		if err := held[i%len(held)].read(buf); err != nil {
			return err
		}
		d := dirs[i%len(dirs)]
		_, err := d.Seek(0, io.SeekStart)
		names, err2 := d.Readdirnames(-1)
		path, err3 := filepath.Rel(dir, d.Name())
		if err = errors.Join(err, err2, err3); err != nil || len(names) != entries[path] {
			return fmt.Errorf("an open directory: %d names of %d: %w", len(names), entries[path], err)
		}
	}
}

// openedFile is an open file with its mapping.
type openedFile struct {
	*os.File
	of     hearthtest.File
	mapped []byte
}

// read reads the file past the page cache, and its mapping.
func (h openedFile) read(buf []byte) error {
	_ = errors.Join(unix.Madvise(h.mapped, unix.MADV_DONTNEED), unix.Fadvise(int(h.Fd()), 0, 0, unix.FADV_DONTNEED)) // only a hint
	n, err := h.ReadAt(buf[:(h.of.Size+4095)/4096*4096], 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if int64(n) != h.of.Size {
		return fmt.Errorf("%d bytes of %d", n, h.of.Size)
	}
	return errors.Join(hearthtest.Check(buf[:n], h.of.Path, 0, 0), hearthtest.Check(h.mapped, h.of.Path, 0, 0))
}

// keptSeveral has a node with mounts of every kind killed: of two origins that no configuration names, one that is detached
// and in use, one in its place, and one with an open file of which there is a newer version. The next node serves each.
func keptSeveral(e *env) {
	o := e.origin()
	list := e.load(o, e.set("D1", 1, 20, 1, 20))
	h := e.mount(o, settings{keep: true, fresh: "bounded(1s)"})
	mount := func(dir string, r admin.MountRequest) string {
		r.Dir = e.path(dir)
		e.must(os.MkdirAll(r.Dir, 0o755), "make a mount point")
		_, err := h.client.Mount(e.ctx, r)
		e.must(err, "mount at %s", r.Dir)
		return r.Dir
	}
	var others []string
	for _, name := range []string{"b", "a"} {
		from := e.path("origin-" + name)
		e.must(errors.Join(os.MkdirAll(filepath.Join(from, "sub"), 0o755), os.WriteFile(filepath.Join(from, "sub", "x"), []byte(name), 0o644)), "make an origin")
		others = append(others, mount("mnt-"+name, admin.MountRequest{Mount: config.Mount{Prefix: "sub"}, Origin: &config.Origin{URL: "file://" + from}}))
	}
	twice := mount("mnt-twice", admin.MountRequest{})
	detached, err := os.Open(filepath.Join(twice, list[1].Path))
	e.must(err, "open a file of a mount that is to be detached")
	defer func() { _ = detached.Close() }() // it was only read
	e.must(h.client.Unmount(e.ctx, twice, true), "detach a mount")
	twice = mount("mnt-twice", admin.MountRequest{})

	e.good("before", epoch(h.dir, list, 1, 4, 0))
	held, err := os.Open(filepath.Join(h.dir, list[0].Path))
	e.must(err, "open a file to hold")
	defer func() { _ = held.Close() }() // it was only read
	h.e.eventually("the disk has all", func() bool { return h.diskTier().Dirs[0].Queued == 0 })
	e.must(o.PutFile(e.ctx, o.bucket, "", list[0], 1), "put a newer version")
	e.eventually("the newer version", func() bool {
		_, err := readWhole(filepath.Join(h.dir, list[0].Path), list[0], 1, make([]byte, 1<<20))
		return err == nil
	})
	pid := h.status().PID
	e.must(syscall.Kill(pid, syscall.SIGKILL), "kill the node")
	e.eventually("the next node", func() bool {
		s, err := h.client.Status(e.ctx)
		return err == nil && s.PID != pid
	})
	for _, x := range []struct {
		what    string
		file    *os.File
		of      hearthtest.File
		version int
	}{{"a file of a detached mount", detached, list[1], 0}, {"a file that has a newer version", held, list[0], 0}} {
		_ = unix.Fadvise(int(x.file.Fd()), 0, 0, unix.FADV_DONTNEED)
		buf := make([]byte, x.of.Size)
		if _, err := x.file.ReadAt(buf, 0); err != nil {
			e.Errorf("%s: %v", x.what, err)
		} else if err := hearthtest.Check(buf, x.of.Path, 0, x.version); err != nil {
			e.Errorf("%s: %v", x.what, err)
		}
	}
	for i, dir := range others {
		if text, err := os.ReadFile(filepath.Join(dir, "x")); string(text) != []string{"b", "a"}[i] {
			e.Errorf("%s shows %q, %v", dir, text, err)
		}
	}
	e.good("the mount in its place", epoch(twice, list[1:], 2, 4, 0))
	if s := h.status(); len(s.Mounts) != 5 {
		e.Errorf("the next node has %d mounts: %+v", len(s.Mounts), s.Mounts)
	}
	e.must(errors.Join(detached.Close(), held.Close()), "close the files")
	h.quit()
}

// keptAway has no node for a while, since its configuration was broken. A reader that is killed ends at once if no node had
// taken its request, else with the next node, which serves although the origin is silent. A mount can be taken away meanwhile.
func keptAway(e *env) {
	o := e.origin()
	list := e.load(o, e.set("D1", 1, 20, 1, 20))
	p := e.proxy(o)
	h := e.mount(o, settings{endpoint: p.endpoint, keep: true, mount: []string{"--open", "none"}})
	second := e.path("mnt-second")
	e.must(os.MkdirAll(second, 0o755), "make a mount point")
	_, err := h.client.Mount(e.ctx, admin.MountRequest{Mount: config.Mount{Dir: second}})
	e.must(err, "mount once more")
	for _, x := range list[:2] {
		_, err := os.Stat(filepath.Join(h.dir, x.Path))
		e.must(err, "look a name up")
	}
	e.good("before", epoch(h.dir, list[2:], 1, 2, 0))
	p.SetFirstByte(time.Hour)
	taken := e.start(exec.Command("cat", filepath.Join(h.dir, list[0].Path)))
	e.eventually("a request to the origin", func() bool { return p.Stats().InFlight > 0 })
	good, err := os.ReadFile(h.config)
	e.must(err, "read the configuration")
	h.configure("nonsense: 1\n")
	pid := h.status().PID
	e.must(syscall.Kill(pid, syscall.SIGKILL), "kill the node")
	e.eventually("the node's end", func() bool { return syscall.Kill(pid, 0) != nil })
	left := e.start(exec.Command("cat", filepath.Join(h.dir, list[1].Path)))
	e.eventually("a reader that waits for the kernel", func() bool {
		state, _ := stateOf(e, left.Process.Pid)
		where, err := os.ReadFile(fmt.Sprintf("/proc/%d/wchan", left.Process.Pid)) // an open(2) that waits may be interrupted
		return state == "D" || err == nil && string(where) == "request_wait_answer"
	})
	e.must(errors.Join(left.Process.Kill(), taken.Process.Kill()), "kill the readers")
	left.exit(30 * time.Second)
	if out, code := e.run(e.hearth, "umount", second); code != 0 || len(mountsBelow(second)) != 0 {
		e.Errorf("umount while no node serves: exit %d: %s", code, out)
	}
	h.configure(string(good))
	taken.exit(30 * time.Second)
	e.good("by the next node, whose origin is silent", epoch(h.dir, list[2:], 2, 2, 0))
	if strings.Contains(h.out.String(), "still waiting for the origins") {
		e.Errorf("the next node has waited for its origin before it served:\n%s", h.out)
	}
	p.SetFirstByte(0)
	e.good("by the next node", epoch(h.dir, list, 3, 2, 0))
	if s := h.status(); len(s.Mounts) != 1 {
		e.Errorf("the next node has %d mounts: %+v", len(s.Mounts), s.Mounts)
	}
	h.quit()
}

// configure replaces the configuration at once: a node that starts just then would take one that is cut for an empty one, which
// stands for the defaults.
func (h *hearth) configure(text string) {
	h.e.Helper()
	next := h.config + ".next"
	h.e.must(errors.Join(os.WriteFile(next, []byte(text), 0o600), os.Rename(next, h.config)), "replace the configuration")
}

// keptSpared has the node of hearth up killed, of which one of two mounts cannot be made again. The other one goes on.
func keptSpared(e *env) {
	o := e.origin()
	list := e.load(o, e.set("D1", 1, 20, 1, 20))
	dirs := []string{e.path("mnt-a"), e.path("mnt-b")}
	for _, dir := range dirs {
		e.must(os.Mkdir(dir, 0o755), "make a mount point")
	}
	config := e.writeConfig(o, settings{extra: fmt.Sprintf("mounts: [{path: %q}, {path: %q}]\n", dirs[1], dirs[0])})
	node := "unix://" + strings.TrimSuffix(config, ".yaml") + ".sock"
	up := exec.Command(e.hearth, "up", "--config", config)
	up.Env = e.environ(o)
	p := e.start(up)
	p.waitFor("serving at")
	held, err := os.Open(filepath.Join(dirs[0], list[0].Path))
	e.must(err, "open a file to hold")
	defer func() { _ = held.Close() }() // it was only read
	if out, code := e.run(e.hearth, "umount", dirs[1], "--node", node); code != 0 {
		e.Errorf("umount: exit %d: %s", code, out)
	}
	e.must(os.Remove(dirs[1]), "remove a mount point")
	client, err := admin.Dial(node)
	e.must(err, "ask the node")
	defer client.Close()
	s, err := client.Status(e.ctx)
	e.must(err, "ask the node")
	e.must(syscall.Kill(s.PID, syscall.SIGKILL), "kill the node")
	p.waitFor("a mount cannot be made, and others are served on")
	_, err = readWhole(filepath.Join(dirs[0], list[0].Path), list[0], 0, make([]byte, 1<<20))
	_, err2 := held.ReadAt(make([]byte, 1), 0)
	e.must(errors.Join(err, err2), "read on")
	e.must(held.Close(), "close the file")
	if code := p.terminate(syscall.SIGTERM); code != 0 {
		e.Errorf("after SIGTERM: exit %d", code)
	}
}

// obstacle is what a next node meets in the way of its cache.
type obstacle struct {
	name       string
	cache      string // the directory
	make, mend func()
	bars       string // what a node says that cannot start; "": one starts, and says that there is no room
}

// keptCannotStart has a node killed whose cache directory a newer version wrote meanwhile: a reader waits, the log says why no
// node serves, and when that is mended the reader gets its bytes. Where the disk is full instead the next node serves at once,
// without what it has no room for, and uses the disk again by itself when there is room.
func keptCannotStart(e *env) {
	o := e.origin()
	list := e.load(o, e.set("D1", 1, 20, 1, 20))
	fusectl() // which counts who waits
	full := e.path("full")
	e.must(os.Mkdir(full, 0o755), "make a mount point")
	e.must(unix.Mount("full", full, "tmpfs", 0, "size=64m"), "mount a tmpfs")
	e.Cleanup(func() { _ = unix.Unmount(full, unix.MNT_DETACH) }) // where a node has not ended it is in use
	e.ownDisk("full-ext4", 64)                                    // where O_DIRECT is more than a word
	fills := func(dir string) obstacle {
		taken := filepath.Join(e.path(dir), "taken")
		return obstacle{"a full disk: " + dir, dir + "/cache", func() { e.takeAll(taken) }, func() { e.must(os.Remove(taken), "make room") }, ""}
	}
	for _, x := range []obstacle{
		{"a newer version's directory", "newer", func() { e.relabel("newer", 7) }, func() { e.relabel("newer", -7) }, "run the newer hearth"},
		fills("full"), fills("full-ext4"),
	} {
		e.meets(o, list, x)
	}
}

// meets has the next node of a killed one meet an obstacle, while somebody reads.
func (e *env) meets(o *server, list []hearthtest.File, x obstacle) {
	e.Helper()
	h := e.mount(o, settings{keep: true, cache: x.cache, disk: "32MiB", floor: "4KiB"})
	e.good("before "+x.name, epoch(h.dir, list[1:], 1, 2, 0))
	e.eventually("all is written", func() bool { return h.diskTier().Dirs[0].Queued == 0 })
	waiting := filepath.Join("/sys/fs/fuse/connections", e.numberOf(h.dir), "waiting")
	pid := h.status().PID
	e.must(syscall.Kill(pid, syscall.SIGSTOP), "stop the node") // it would make room again by its floor
	x.make()
	e.must(syscall.Kill(pid, syscall.SIGKILL), "kill the node")
	r := e.start(exec.Command("cat", filepath.Join(h.dir, list[0].Path)))
	if x.bars != "" {
		h.waitFor(x.bars)
		e.eventually("a reader that waits", func() bool {
			text, err := os.ReadFile(waiting)
			return err == nil && strings.TrimSpace(string(text)) != "0"
		})
		x.mend()
	}
	if code := r.exit(30 * time.Second); code != 0 || int64(len(r.out.String())) != list[0].Size || hearthtest.Check([]byte(r.out.String()), list[0].Path, 0, 0) != nil {
		e.Errorf("%s: a reader ends with %d and %d bytes", x.name, code, len(r.out.String()))
	}
	e.good("with "+x.name, epoch(h.dir, list, 2, 2, 0))
	s := h.status()
	e.shows("%s: %d starts, a stall of %.2f s", x.name, s.Keeper.Starts, s.Keeper.StalledS)
	if x.bars == "" {
		h.waitFor("its file system has too few free bytes")
		if s.Keeper.Starts != 2 || !strings.Contains(s.Names.Ill, "no space left on device") {
			e.Errorf("on a full disk: %+v, names %+v", s.Keeper, s.Names)
		}
		x.mend()
		e.eventually("the disk in use again", func() bool {
			return h.diskTier().Budget == 32<<20 && (e.level == core || h.status().Names.Ill == "") // names take ten seconds
		})
		e.good("after "+x.name, epoch(h.dir, list, 3, 2, 0))
	} else if text := h.out.String(); !strings.Contains(text, "has ended with exit code 8") {
		e.Errorf("the keeper has not said why:\n%s", text)
	}
	h.quit()
}

// relabel gives a cache directory another format, rightly sealed.
func (e *env) relabel(cache string, by int) {
	e.Helper()
	l, err := disk.ReadLabel(e.path(cache))
	e.must(err, "read the label")
	l.Format += by
	l.Check = l.Sum()
	text, err := json.Marshal(l)
	e.must(errors.Join(err, os.WriteFile(filepath.Join(e.path(cache), disk.LabelFile), text, 0o600)), "write the label")
}

// keptTooLong has a node that cannot start again, since its configuration was broken meanwhile. Its readers wait, and get
// an error once the keeper's patience is over. When the configuration is mended, the mount is there again.
func keptTooLong(e *env) {
	o := e.origin()
	list := e.load(o, e.set("D1", 1, 20, 1, 20))
	p := e.proxy(o)
	h := e.mount(o, settings{endpoint: p.endpoint, keep: true, keeper: []string{"--keeper-patience", "2s"}})
	e.good("before", epoch(h.dir, list, 1, 2, 0))
	good, err := os.ReadFile(h.config)
	e.must(err, "read the configuration")
	h.configure("nonsense: 1\n")
	began := time.Now()
	e.must(syscall.Kill(h.status().PID, syscall.SIGKILL), "kill the node")
	_, err = os.ReadDir(filepath.Join(h.dir, "not-asked-for-yet"))
	if waited := time.Since(began); !errors.Is(err, syscall.ENOTCONN) && !errors.Is(err, syscall.ECONNABORTED) || waited < time.Second {
		e.Errorf("after %v a reader gets %v, not an error once the patience of 2 s is over", waited, err)
	}
	h.configure(string(good))
	e.eventually("the next node", func() bool {
		s, err := h.client.Status(e.ctx)
		return err == nil && len(s.Mounts) == 1
	})
	e.good("by the next node", epoch(h.dir, list, 2, 2, 0))
	if text := withoutWaiting(h.out.String()); !strings.Contains(text, "no node has served for 2s (keeper.patience)") || !strings.Contains(text, "has ended with exit code 2") {
		e.Errorf("the keeper has not said why:\n%s", text)
	}
	h.quit()
}
