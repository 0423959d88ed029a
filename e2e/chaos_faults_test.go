package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/internal/faultfs"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// launch draws a mode and starts the node in it.
func (c *chaos) launch() {
	modes := chaosModes()
	c.mode = modes[c.draw("modes", len(modes))]
	c.mount()
	c.lend(3 * time.Second)
}

func (c *chaos) mount() {
	c.e.Helper()
	c.life++
	c.spoilt = false
	c.rules = c.mode.fresh
	c.h = c.e.mount(c.writing.o, settings{endpoint: byName(c.p.endpoint), fresh: c.mode.fresh, mount: opens(c.mode.open), ram: "16MiB", disk: "64MiB", floor: "1MiB",
		origin: fmt.Sprintf(", timeout: %v", chaosTimeout), wrap: withoutOverride()}) // to whom chmod 000 means something
	c.add("lives in " + c.mode.fresh + ", " + c.mode.open)
}

// lend has an object lent to the kernel, where the mount does that, and keeps it open: it
// is read whole first, and verified. A cache that is full or was harmed may do without, and
// a busy machine may take longer.
func (c *chaos) lend(within time.Duration) {
	if c.h.status().Mounts[0].Open != "passthrough" {
		return
	}
	c.add("lives that lend files")
	over := c.now() + within
	c.e.eventually("an open that is lent", func() bool {
		c.readWhole(c.objects[2], true)
		before := c.lent()
		k := c.open(c.objects[2])
		switch {
		case k == nil:
		case c.lent() > before:
			c.held = append(c.held, k)
			return true
		default:
			k.close(c)
		}
		return c.now() > over
	})
}

// lent is how many opens this life has lent to the kernel.
func (c *chaos) lent() int { return int(c.h.status().Mounts[0].Ops["lent"]) }

// leave has nobody use the mount any more.
func (c *chaos) leave() {
	c.release(len(c.held))
	c.goOn(len(c.stop))
}

// end ends the node. What is listed after it may be believed as long as the listings
// before it took.
func (c *chaos) end(kill bool) {
	c.e.Helper()
	c.leave()
	if c.mode.fresh != "strict" && c.mode.fresh != "immutable" {
		c.slow = max(c.slow, c.bound(c.h))
	}
	c.counts["opens lent"] += c.lent()
	if kill {
		c.h.kill9()
		return
	}
	c.h.quit()
}

// restart ends the node by SIGTERM or SIGKILL and starts it in another mode, in half of
// the cases with what was damaged meanwhile. A node that starts needs its disk and, for
// names that are not known, its origin.
func (c *chaos) restart(rng *rand.Rand, kill bool) {
	if kill {
		c.faults["node: kill -9"]++
	}
	c.mendDisk()
	c.end(kill)
	c.heal()
	if rng.IntN(2) == 0 {
		c.damage(rng, false)
	}
	c.launch()
	c.note("%s, %s", c.mode.fresh, c.mode.open)
}

// fallIll gives the origin one of the faults of the scenarios of sick origins.
func (c *chaos) fallIll(rng *rand.Rand) {
	if c.ill != "" {
		return
	}
	kinds := sicknesses(chaosTimeout)
	k := kinds[c.draw("origin", len(kinds))]
	if k.name == "unavailable-then-well" {
		// So often, and without a Retry-After, that one request's budget holds it all: its
		// wait would be longer than this timeout leaves.
		k.rules[0].Times, k.rules[0].Header = 2, nil
	}
	c.findWhole(rng)
	c.ill = k.name
	c.note("%s", k.name)
	c.faults["origin: "+k.name]++
	c.sickness = append(c.sickness, span{kind: k, from: c.now()})
	c.ail(k, true)
	c.cure = func() { c.ail(k, false) }
}

// heal takes the origin's fault away.
func (c *chaos) heal() {
	if c.ill == "" {
		return
	}
	c.cure()
	c.sickness[len(c.sickness)-1].to = c.now()
	c.ill, c.whole = "", nil
}

// findWhole finds some objects that are whole in the cache: read twice, the second time
// without a request to the origin, past the kernel's pages. Where the cache is harmed or
// may soon be full, nothing is said of any.
func (c *chaos) findWhole(rng *rand.Rand) {
	if t := c.h.diskTier(); c.bad != "" || t.Used > t.Budget/2 {
		return
	}
	c.whole = map[*object]int{}
	for range 3 {
		x := c.any(rng)
		c.readWhole(x, true)
		asked := c.p.gets()
		if version, ok := c.readWhole(x, true); ok && c.p.gets() == asked {
			c.whole[x] = version
			c.add("objects whole in the cache at a fault")
		}
	}
}

// breakDisk gives the cache's disk a fault. A file that was handed to the kernel waits
// for its disk or has its errors (docs/semantics.md), so that mode's disk stays well.
func (c *chaos) breakDisk(*rand.Rand) {
	if c.bad != "" || c.mode.open == "passthrough" {
		return
	}
	kinds := []faultfs.Fault{faultfs.IOError, faultfs.Stall, faultfs.ReadOnly, faultfs.NoSpace}
	f := kinds[c.draw("disk", len(kinds))]
	c.bad, c.whole, c.spoilt = string(f), nil, true
	c.note("%s", f)
	c.faults["disk: "+string(f)]++
	c.disk.meet(f)
}

func (c *chaos) mendDisk() {
	if c.bad != "" {
		c.disk.meet(faultfs.None)
		c.bad = ""
	}
}

// damage harms a few files of the cache, as the scenarios of damaged caches do.
func (c *chaos) damage(rng *rand.Rand, up bool) {
	if c.bad != "" {
		return // the disk would not let us
	}
	c.whole = nil
	h, times := harm{name: "flipped"}, 4+rng.IntN(8)
	if c.rng.IntN(2) == 0 {
		h, times = harms()[c.draw("harms", len(harms()))], 1+rng.IntN(3)
	}
	kinds := c.e.cacheFiles(func(kind string) bool { return up && c.mode.open == "passthrough" && kind == "data" })
	for range times {
		if len(kinds) == 0 {
			return
		}
		kind, file := c.e.pick(rng, kinds)
		c.note("%s %s", kind, h.name)
		if h.do == nil {
			if c.e.flip(rng, file) {
				c.faults["file: "+h.name]++
			}
		} else if h.do(file) == nil { // else it is gone, or a directory since an earlier one
			c.faults["file: "+h.name]++
		}
	}
}

// remove takes away all that lies in the cache directory, under the running node.
func (c *chaos) remove(*rand.Rand) {
	if c.bad != "" || c.mode.open == "passthrough" {
		return
	}
	c.whole, c.spoilt = nil, true
	c.faults["cache removed"]++
	c.empty()
}

func (c *chaos) empty() {
	list, _ := filepath.Glob(c.e.path("cache") + "/*")
	for _, name := range list {
		_ = os.RemoveAll(name) // the node writes into it meanwhile
	}
}

// drop has the kernel forget the pages of every object.
func (c *chaos) drop(*rand.Rand) {
	c.faults["caches dropped"]++
	for _, x := range c.objects {
		if k := c.open(x); k != nil {
			_ = unix.Fadvise(int(k.f.Fd()), 0, 0, unix.FADV_DONTNEED)
			k.close(c)
		}
	}
}

// copier is a reader in a process of its own; what it reads goes to a file.
type copier struct {
	x    *object
	cmd  *exec.Cmd
	to   *os.File
	said strings.Builder // why it failed
	s    sighting
}

// cat starts one, which may be at any call of its own by a random moment later.
func (c *chaos) cat(x *object, rng *rand.Rand) *copier {
	r := &copier{x: x, s: sighting{blank: true, opened: c.now(), life: c.life}}
	var err error
	r.to, err = os.CreateTemp(c.e.dir, "cat-")
	c.e.must(err, "make a file")
	r.cmd = exec.CommandContext(c.e.ctx, "cat", filepath.Join(c.h.dir, x.Path))
	r.cmd.Env, r.cmd.Stdout, r.cmd.Stderr = c.e.environ(nil), r.to, &r.said
	c.e.must(hearthtest.Spawn(r.cmd), "start a reader")
	<-time.After(time.Duration(rng.IntN(40)) * time.Millisecond)
	return r
}

// killReader kills a reader: it is gone while origin and disk are as they are.
func (c *chaos) killReader(rng *rand.Rand) {
	r := c.cat(c.any(rng), rng)
	_ = r.cmd.Process.Kill() // it may have ended
	err := r.cmd.Wait()
	if c.e.ctx.Err() != nil {
		c.e.Errorf("a killed reader stays (origin %q, disk %q)", c.ill, c.bad)
	}
	c.faults["reader killed"]++
	c.copied(r, err)
}

// stopReader stops a reader by SIGSTOP, in the midst of what it does.
func (c *chaos) stopReader(rng *rand.Rand) {
	if len(c.stop) > 2 {
		c.goOn(1)
	}
	r := c.cat(c.any(rng), rng)
	_ = r.cmd.Process.Signal(syscall.SIGSTOP) // it may have ended
	c.stop = append(c.stop, r)
	c.faults["reader stopped"]++
}

// goOn lets the n readers that are stopped longest go on, and looks at what they read.
func (c *chaos) goOn(n int) {
	for ; n > 0 && len(c.stop) > 0; n-- {
		r := c.stop[0]
		c.stop = c.stop[1:]
		_ = r.cmd.Process.Signal(syscall.SIGCONT)
		c.copied(r, r.cmd.Wait())
	}
}
