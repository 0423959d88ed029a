package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/internal/faultproxy"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// overload is how much later than the node said the kernel may end a timeout: it
// counts from when it got the answer, and this machine may be busy meanwhile.
const overload = 500 * time.Millisecond

// Of the changes under a mount, at the level full.
const longChanges, shortChanges = time.Minute, 10 * time.Second

// forever is a bound that nothing outlives. Beyond mostBound a slice of changes would
// see little of what a bound forbids.
const forever, mostBound = 1000 * time.Hour, 10 * time.Second

// object is one key that a writer changes while readers look.
type object struct {
	hearthtest.File
	mu      sync.Mutex // guards the rest
	past    history
	changed chan struct{} // closed and replaced at each change
	seen    []sighting
}

// writing is a set of objects under change.
type writing struct {
	e       *env
	o       *server
	start   time.Time
	objects []*object
	rules   string // of freshness
	mapped  bool   // each fifth reader maps files
}

func (w *writing) now() time.Duration { return time.Since(w.start) }

// versions: 16 readers open, read and close while writers overwrite, delete and
// add; each open's bytes are held against what the bound allows. The mount is
// asked for as open, and granted as mode; at the level all the changes take a tenth of
// what they take in full, 2 s at least.
func versions(fresh, open, mode string, changes time.Duration) func(e *env) {
	return func(e *env) {
		o := e.exclusive()
		versionsOf(e, o, settings{fresh: fresh, mount: opens(open)}, mode, changes)
	}
}

// versionsWithoutIfMatch is the same at an origin that never sees an If-Match: it
// answers each request with what it has by then.
func versionsWithoutIfMatch(e *env) {
	o := e.exclusive()
	e.public(o, o.bucket)
	p := e.proxy(o)
	p.AddRule(faultproxy.Rule{Verb: faultproxy.Get, Strip: "If-Match"})
	versionsOf(e, o, settings{fresh: "bounded(1s)", mount: []string{"--open", "none"}, endpoint: p.endpoint, origin: ", anonymous: true"}, "none", longChanges)
}

func versionsOf(e *env, o *server, set settings, mode string, changes time.Duration) {
	w := &writing{e: e, o: o, start: time.Now(), rules: set.fresh}
	// A fault holds locks of the process that maps. Where the fault proxy, a part of
	// this process, must bring the page, nobody maps beside the others.
	w.mapped = set.endpoint == ""
	w.prepare()
	if slices.Contains(set.mount, "auto") && mode == "passthrough" {
		ballast := hearthtest.File{Path: "ballast", Size: 72 << 20} // outweighs what is small
		e.must(o.PutFile(e.ctx, o.bucket, "", ballast, 0), "put the ballast")
	}
	h := e.mount(o, set)
	if m := h.status().Mounts[0]; m.Open != mode && (e.variant == "" || e.variant == "race") {
		e.Fatalf("the mount opens by %s (%s), not %s", m.Open, m.Why, mode)
	}
	lent := w.lend(h)
	ctx, stop := context.WithCancel(e.ctx)
	var readers sync.WaitGroup
	for i := range 16 {
		readers.Go(func() { w.read(ctx, h.dir, i) })
	}
	w.change(map[level]time.Duration{core: 3 * time.Second, all: max(changes/10, 2*time.Second), full: changes}[e.level])
	w.timeouts(h)
	w.settle(h)
	stop()
	readers.Wait()
	w.judge(w.bound(h))
	h.lends(lent)
	h.quit()
}

// prepare makes the objects: small and of several blocks, which alone are lent to the
// kernel; some are added later.
func (w *writing) prepare() {
	for i := range 24 {
		f := hearthtest.File{Path: fmt.Sprintf("dir-%d/object-%02d", i%3, i), Size: int64(9000 + 20_000*i)}
		if i%8 == 7 || w.e.level > core && (i == 12 || i == 14) { // the last two are changed by fast writers, which they make slower
			f.Size = 3<<20 + 4097
		}
		x := &object{File: f, past: history{{version: absent}}, changed: make(chan struct{})}
		if i%6 != 5 {
			w.e.must(w.o.PutFile(w.e.ctx, w.o.bucket, "", f, 0), "put %s", f.Path)
			x.past[0].version = 0
		}
		w.objects = append(w.objects, x)
	}
}

// lend has two objects of several blocks lent to the kernel before anybody changes them,
// where the mount does that, and returns how many opens that took.
func (w *writing) lend(h *hearth) int64 {
	if h.status().Mounts[0].Open == "passthrough" {
		h.lend([]hearthtest.File{w.objects[7].File, w.objects[15].File})
	}
	return h.status().Mounts[0].Ops["lent"]
}

// change has four writers change their objects for a time: three by requests of
// their own, one by the aws CLI, as a user would. One object of each is changed most.
func (w *writing) change(lasts time.Duration) {
	over := time.After(lasts)
	done := make(chan struct{})
	var writers sync.WaitGroup
	for i := range 4 {
		put := w.put
		if i == 3 {
			put = w.putByAWS
		}
		writers.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 7))
			pace := time.NewTicker(25 * time.Millisecond) // else a version would live no longer than it takes to open it
			defer pace.Stop()
			for last := 1; ; last++ {
				select {
				case <-done:
					return
				case <-pace.C:
				}
				n := 0
				if rng.IntN(3) > 0 {
					n = rng.IntN(6)
				}
				if err := w.changeOne(w.objects[i+4*n], last, rng.IntN(10), put); err != nil {
					w.e.Error(err)
					return
				}
			}
		})
	}
	<-over
	close(done)
	writers.Wait()
}

// changeOne makes one change of an object and notes it: mostly a new version, at
// times the one before (the same bytes, and so the same ETag), or a DELETE.
func (w *writing) changeOne(x *object, fresh, dice int, put func(hearthtest.File, int) error) error {
	x.mu.Lock()
	past := x.past
	x.mu.Unlock()
	c := change{version: fresh, began: w.now()}
	switch n := len(past); {
	case dice == 0 && past[n-1].version != absent:
		c.version = absent
	case dice <= 2 && n > 1 && past[n-2].version != absent:
		c.version = past[n-2].version
	}
	var err error
	if c.version == absent {
		err = w.o.Delete(w.e.ctx, w.o.bucket, x.Path)
	} else {
		err = put(x.File, c.version)
	}
	c.ended = w.now()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.past = append(x.past, c)
	close(x.changed)
	x.changed = make(chan struct{})
	return err
}

func (w *writing) put(f hearthtest.File, version int) error {
	return w.o.PutFile(w.e.ctx, w.o.bucket, "", f, version)
}

func (w *writing) putByAWS(f hearthtest.File, version int) error {
	data := make([]byte, f.Size)
	hearthtest.Fill(data, f.Path, 0, version)
	from := w.e.path("by-aws")
	if err := os.WriteFile(from, data, 0o600); err != nil {
		return err
	}
	out, code := w.e.run("env", "AWS_ACCESS_KEY_ID="+w.o.access, "AWS_SECRET_ACCESS_KEY="+w.o.secret, "/usr/bin/aws", "--endpoint-url", w.o.endpoint,
		"s3", "cp", "--quiet", from, "s3://"+w.o.bucket+"/"+f.Path)
	if code != 0 {
		return fmt.Errorf("aws s3 cp: exit %d: %s", code, out)
	}
	return nil
}

// read is one reader: it opens objects in random order, one after another; an
// open that ended with ESTALE is followed by another at once.
func (w *writing) read(ctx context.Context, dir string, n int) {
	rng := rand.New(rand.NewPCG(uint64(n), 8))
	for ctx.Err() == nil {
		x := w.objects[rng.IntN(len(w.objects))]
		for again := true; again && ctx.Err() == nil; {
			s, err := w.look(ctx, dir, x, n, rng)
			if err != nil {
				w.e.Errorf("reader %d: %v", n, err)
				return
			}
			x.mu.Lock()
			x.seen = append(x.seen, s)
			x.mu.Unlock()
			again = s.stale
		}
	}
}

// look opens an object once and reads some of it in several pieces, by pread or
// mapped. Each fourth reader is a slow one, and one of those that map: it waits for a
// change in between.
func (w *writing) look(ctx context.Context, dir string, x *object, n int, rng *rand.Rand) (sighting, error) {
	x.mu.Lock()
	changed := x.changed
	x.mu.Unlock()
	s := sighting{blank: true, opened: w.now()}
	f, err := os.Open(filepath.Join(dir, x.Path))
	s.open = w.now()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		s.version, s.blank = absent, false
		return s, nil
	case errors.Is(err, syscall.ESTALE):
		s.stale, s.asked, s.told = true, s.opened, s.open
		return s, nil
	case err != nil:
		return s, err
	}
	defer func() { _ = f.Close() }()
	at := f.ReadAt
	if w.mapped && n%5 == 4 {
		m, err := syscall.Mmap(int(f.Fd()), 0, int(x.Size), syscall.PROT_READ, syscall.MAP_SHARED)
		if err != nil {
			return s, fmt.Errorf("mmap %s: %w", x.Path, err)
		}
		defer func() { _ = syscall.Munmap(m) }()
		at = mappedBytes(m).ReadAt
	}
	for piece := range 5 {
		if (n%4 == 3 || n == 14) && piece == 3 {
			select {
			case <-changed:
			case <-ctx.Done():
			}
		}
		page := rng.Int64N((x.Size + hearthtest.PageSize - 1) / hearthtest.PageSize)
		buf := make([]byte, rng.Int64N(16)*hearthtest.PageSize+100)
		if stop, err := w.piece(&s, x, at, buf, page*hearthtest.PageSize); stop || err != nil {
			return s, err
		}
	}
	return s, nil
}

// piece reads once and notes what it saw; stop says that the version is gone.
func (w *writing) piece(s *sighting, x *object, at func([]byte, int64) (int, error), buf []byte, off int64) (stop bool, err error) {
	want := int(min(int64(len(buf)), x.Size-off))
	asked := w.now()
	n, err := at(buf, off)
	switch {
	case errors.Is(err, syscall.ESTALE):
		s.stale, s.asked, s.told = true, asked, w.now()
		return true, nil
	case err != nil && !errors.Is(err, io.EOF):
		return true, fmt.Errorf("%s at %d: %w", x.Path, off, err)
	case n != want:
		return true, fmt.Errorf("%s at %d: %d bytes of %d", x.Path, off, n, want)
	}
	if n < 16 { // too little of a page to name a version
		return false, nil
	}
	return false, s.saw(buf[:n], x.Path, off)
}

// mappedBytes reads mapped memory; a page that cannot be had (a SIGBUS to who
// touches it) is ESTALE here, as a read of it is. The kernel touches the pages
// within a system call: a fault would hold one of Go's few processors, and the
// fault proxy may need it to bring the page.
type mappedBytes []byte

func (m mappedBytes) ReadAt(p []byte, off int64) (int, error) {
	n := int(min(int64(len(p)), int64(len(m))-off))
	local := []unix.Iovec{{Base: &p[0]}}
	local[0].SetLen(n)
	got, err := unix.ProcessVMReadv(os.Getpid(), local, []unix.RemoteIovec{{Base: uintptr(unsafe.Pointer(&m[off])), Len: n}}, 0)
	if errors.Is(err, syscall.EFAULT) || err == nil && got < n {
		return 0, syscall.ESTALE
	}
	return got, err
}

// bound is the age that the link allows: of names that a listing brought, 20
// times what the slowest took, if that is more. It grows with each slower listing
// and so is asked for after what it is held against.
func (w *writing) bound(h *hearth) time.Duration {
	switch w.rules {
	case "strict":
		return 0
	case "immutable":
		return forever
	}
	bound, err := time.ParseDuration(strings.TrimSuffix(strings.TrimPrefix(w.rules, "bounded("), ")"))
	w.e.must(err, "the bound")
	slowest := time.Duration(h.status().Names.Figures["slowest_listing_ms"]+1) * time.Millisecond
	return max(bound, 20*slowest)
}

// timeouts looks for what `hearth status` shows of the kernel's timeouts after names
// were looked up, there and not there: none on a strict mount, else some, and no more
// than the bound. A name whose time is just over is given to the kernel for none, so
// others are looked up until one is not.
func (w *writing) timeouts(h *hearth) {
	n := 0
	w.e.eventually("timeouts that are in force", func() bool {
		n++
		_, err := os.Stat(filepath.Join(h.dir, fmt.Sprintf("dir-%d/none-%d", n%3, n)))
		if !errors.Is(err, fs.ErrNotExist) {
			w.e.Fatalf("a name that is not there: %v", err)
		}
		mount := h.statusJSON()["mounts"].([]any)[0].(map[string]any)
		text, bound := fmt.Sprint(mount["timeouts"]), w.bound(h)
		names, absents, ok := strings.Cut(strings.TrimPrefix(text, "names "), ", absent names ")
		known, err := time.ParseDuration(names)
		absent, err2 := time.ParseDuration(absents)
		if err = errors.Join(err, err2); !ok || err != nil || max(known, absent) > bound {
			w.e.Fatalf("status shows the kernel's timeouts as %q, at a bound of %v (%v)", text, bound, err)
		}
		return bound == 0 || min(known, absent) > 0
	})
	if out, _ := w.e.run(w.e.hearth, "status", "--node", "unix://"+h.socket()); !strings.Contains(out, "names ") {
		w.e.Errorf("status shows no timeouts:\n%s", out)
	}
}

// settle waits until the bound has passed since the last change; then each name
// means its last version.
func (w *writing) settle(h *hearth) {
	if w.bound(h) == forever {
		return // the last version may never be shown
	}
	for last := w.now(); ; {
		left := w.bound(h) + overload - (w.now() - last)
		if w.bound(h) == 0 || left <= 0 {
			break
		}
		<-time.After(left) // it is what is promised after this that counts
	}
	rng := rand.New(rand.NewPCG(9, 9))
	for _, x := range w.objects {
		s, err := w.look(w.e.ctx, h.dir, x, 0, rng)
		last := x.past[len(x.past)-1].version
		if err != nil || s.stale || s.version != last {
			w.e.Errorf("%s after all changes: %+v, %v; its version is %d", x.Path, s, err, last)
		}
	}
}

// judge holds all that was seen against all that was written.
func (w *writing) judge(bound time.Duration) {
	changes, opens, stale, wrong, held, met := 0, 0, 0, 0, 0, 0
	if bound < forever {
		w.e.detail = fmt.Sprintf("bound %v", bound)
		if bound > mostBound && w.e.level == full && !w.e.race { // elsewhere other work may slow a listing down
			w.e.Errorf("listings were so slow that the bound is %v, more than %v", bound, mostBound)
		}
	}
	if bound > 0 {
		bound += overload
	}
	for _, x := range w.objects {
		slices.SortFunc(x.seen, func(a, b sighting) int { return int(a.opened - b.opened) })
		if err := x.past.check(x.seen, bound); err != nil {
			wrong++
			w.e.Errorf("%s, %d bytes: %v", x.Path, x.Size, err)
		}
		versions := map[int]bool{}
		for _, s := range x.seen {
			versions[s.version] = true
			if s.stale {
				stale++
			}
		}
		if len(versions) > 1 {
			held++
		}
		if n := len(x.past); n > 1 && len(x.seen) > 0 && x.seen[len(x.seen)-1].opened > x.past[1].ended {
			met++
		}
		changes, opens = changes+len(x.past)-1, opens+len(x.seen)
	}
	w.e.Logf("%s: %d changes, %d opens, %d ESTALE, %d of %d objects seen in more than one version, %d wrong (bound %v)",
		w.rules, changes, opens, stale, held, len(w.objects), wrong, bound)
	if met < len(w.objects)/2 {
		w.e.Errorf("only %d of %d objects were opened after a change", met, len(w.objects))
	}
	if bound < forever && held < len(w.objects)/2 {
		w.e.Errorf("only %d of %d objects were seen in more than one version", held, len(w.objects))
	}
}
