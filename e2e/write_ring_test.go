package e2e

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/internal/faultproxy"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// untold is for how long names are believed of which no node tells. docs/semantics.md has a second for those of which one does.
const untold = 20 * time.Second

// writeRing has nodes of a ring write the same names at the same time, see each other's versions, and one of them killed with its
// keeper while it writes.
func writeRing(e *env) {
	r := e.ring(0)
	if r == nil {
		return
	}
	r.set = writable(r.set)
	r.set.keep, r.set.fresh = resends(), fmt.Sprintf("bounded(%v)", untold)
	rounds := map[level]int{core: 2, all: 10, full: 50}[e.level]
	for _, c := range heldByTwo() { // before any node looks
		for i := range rounds {
			if c.flags == 0 {
				_, err := r.o.PutBytes(e.ctx, r.o.bucket, fmt.Sprintf("%s-%d", c.name, i), fill("base", c.size))
				e.must(err, "put an object")
			}
		}
	}
	list := r.load(r.o, r.few(2, 20))
	nodes := r.up(3, 0)
	r.writesAtOnce(nodes, rounds)
	r.seesVersions(nodes)
	r.killedWriter(nodes, list)
	if left := e.uploads(r.o); len(left) > 0 {
		e.Errorf("uploads are left: %q", left)
	}
	r.quit(nodes...)
}

// fill is a file of so many bytes, by whom.
func fill(by string, size int) []byte {
	p := make([]byte, size)
	hearthtest.Fill(p, by, 0, 0)
	return p
}

// write is how a name is opened by two nodes, and what the one gets that closes it second.
type write struct {
	name  string
	flags int
	lost  error
	size  int // of what the bucket has; 0: nothing
}

func heldByTwo() []write {
	return []write{{"base", 0, syscall.ESTALE, 150_000}, {"base-of-parts", 0, syscall.ESTALE, 20 << 20}, {"new", os.O_CREATE, syscall.ESTALE, 0}, {"exclusive", os.O_CREATE | os.O_EXCL, syscall.EEXIST, 0}}
}

// writesAtOnce has two nodes write one name and close it at the same time. Exactly one of them wins, and its object is whole. The
// other one is told at close, sees the winner's at once, and has kept its own beside it.
func (r *ring) writesAtOnce(nodes []*member, rounds int) {
	r.Helper()
	const wrote = 100_000 // bytes; what is changed in place keeps the rest
	won := map[string]int{}
	for _, c := range heldByTwo() {
		for i := range rounds {
			name := fmt.Sprintf("%s-%d", c.name, i)
			rest := ""
			if c.size > 0 {
				rest = string(fill("base", c.size)[wrote:])
			}
			pair := []*member{nodes[i%3], nodes[(i+1)%3]}
			files, own, errs := make([]*os.File, 2), make([]string, 2), make([]error, 2)
			for j, m := range pair { // no process may be started until both have closed: it would close a copy, and so publish
				f, err := os.OpenFile(filepath.Join(m.dir, name), os.O_RDWR|c.flags, 0o644)
				r.must(err, "open %s on %s", name, m.name)
				files[j] = f
			}
			for j, m := range pair {
				text := fill(m.name, wrote)
				_, err := files[j].Write(text)
				r.must(err, "write %s on %s", name, m.name)
				own[j] = string(text) + rest
			}
			begin := make(chan struct{})
			var all sync.WaitGroup
			for j, f := range files {
				all.Go(func() { <-begin; errs[j] = f.Close() })
			}
			close(begin)
			all.Wait()
			winner := 0
			if errs[0] != nil {
				winner = 1
			}
			if errs[winner] != nil || !errors.Is(errs[1-winner], c.lost) {
				r.Errorf("close of %s on %s: %v, on %s: %v; one was to be 0 and the other %v", name, pair[0].name, errs[0], pair[1].name, errs[1], c.lost)
				continue
			}
			won[pair[winner].name]++
			if got := r.object(r.o, name); string(got) != own[winner] {
				r.Errorf("%s has %d bytes in the bucket, which are not those that %s closed", name, len(got), pair[winner].name)
			}
			loser := pair[1-winner]
			for _, m := range []*member{pair[winner], loser} {
				if got, err := os.ReadFile(filepath.Join(m.dir, name)); err != nil || string(got) != own[winner] {
					r.Errorf("%s reads %d bytes as %s, %v, and not those that %s closed", m.name, len(got), name, err, pair[winner].name)
				}
			}
			kept, err := filepath.Glob(filepath.Join(loser.dir, name+".conflict-"+loser.name+"-*"))
			if err != nil || len(kept) != 1 {
				r.Errorf("beside %s, %s has %q, %v", name, loser.name, kept, err)
				continue
			}
			f, err := os.Open(kept[0]) // behind what was written lies the old object, as far as it is cached
			r.must(err, "open what lost")
			got := make([]byte, wrote)
			if _, err := io.ReadFull(f, got); err != nil || string(got) != own[1-winner][:wrote] {
				r.Errorf("%s: %v, or not the bytes that were written", kept[0], err)
			}
			r.must(f.Close(), "close what lost")
			if other, _ := filepath.Glob(filepath.Join(pair[winner].dir, name+".conflict-*")); len(other) > 0 {
				r.Errorf("%s, which won, has %q", pair[winner].name, other)
			}
			r.must(os.Remove(kept[0]), "drop what lost")
		}
	}
	for _, key := range r.keys(r.o) {
		if strings.Contains(key, "conflict") {
			r.Errorf("the bucket has %s", key)
		}
	}
	r.shows("of %d names that two nodes closed at once each has one winner %v", 4*rounds, won)
}

// seesVersions has one node after the other make, replace and remove a file that all have just read. What another node reads is the
// old version or the new one, whole, and soon the new one. How often somebody looked, and for how long, is in the row.
func (r *ring) seesVersions(nodes []*member) {
	r.Helper()
	rounds := map[level]int{core: 6, all: 20, full: 100}[r.level]
	const name = "versions/one"
	r.must(os.Mkdir(filepath.Join(nodes[0].dir, "versions"), 0o755), "make a directory")
	r.eventually("the directory", func() bool {
		for _, m := range nodes {
			if _, err := os.Stat(filepath.Join(m.dir, "versions")); err != nil {
				return false
			}
		}
		return true
	})
	retries, stale, longest := 0, 0, time.Duration(0)
	was := "" // what the file has, "" as it is not there
	for i := range rounds {
		m := nodes[i%len(nodes)]
		path := filepath.Join(m.dir, name)
		now := string(fill(fmt.Sprint("version ", i), 50_000+i))
		switch i % 3 {
		case 0:
			r.must(os.WriteFile(path, []byte(now), 0o644), "write version %d on %s", i, m.name)
		case 1:
			r.must(os.WriteFile(path+".tmp", []byte(now), 0o644), "write version %d on %s", i, m.name)
			r.must(os.Rename(path+".tmp", path), "rename version %d on %s", i, m.name)
		case 2:
			now = ""
			r.must(os.Remove(path), "remove it on %s", m.name)
		}
		closed := time.Now()
		for j := range nodes { // the writer first, which need not wait
			o := nodes[(i+j)%len(nodes)]
			r.eventually(fmt.Sprintf("version %d on %s", i, o.name), func() bool {
				got, err := os.ReadFile(filepath.Join(o.dir, name))
				switch {
				case errors.Is(err, syscall.ESTALE):
					stale++
				case err != nil && !errors.Is(err, os.ErrNotExist):
					r.Fatalf("%s reads version %d: %v", o.name, i, err)
				case string(got) == now && (err == nil) == (now != ""):
					return true
				case string(got) != was || (err == nil) != (was != ""):
					r.Fatalf("%s reads %d bytes, %v, as version %d, which are neither those before nor those after", o.name, len(got), err, i)
				}
				if j == 0 {
					r.Errorf("%s, which wrote version %d, still reads the one before", o.name, i)
				}
				retries++
				return false
			})
			longest = max(longest, time.Since(closed))
		}
		was = now
	}
	if longest > untold/2 {
		r.Errorf("a version was seen by all after %v, as if nobody had told of it", longest)
	}
	r.shows("%d versions seen by all with %d looks more and %d ESTALE, the latest %v after close", rounds, retries, stale, longest.Round(time.Millisecond))
}

// killedWriter kills a node and its keeper while programs write through it, amid an upload. Readers of the other nodes get no error,
// and read what it answered 0 for. Once it is back, what was synced is in the bucket, too, and no draft or upload
// is left.
func (r *ring) killedWriter(nodes []*member, list []hearthtest.File) {
	r.Helper()
	dead, rest := nodes[2], nodes[:2]
	r.good("before", epoch(dead.dir, list, 1, 4, 0))
	readers := r.readers(list, true, rest...)
	var writers []*reader
	for i := range 2 {
		writers = append(writers, r.reader(job{Op: "write", Dir: dead.dir, Name: fmt.Sprintf("w%d", i)}))
	}
	// No process may be started from here on: before it runs it would close a copy of what is open, and wait as that does.
	synced, err := os.Create(filepath.Join(dead.dir, "synced"))
	r.must(err, "make a file")
	_, err = synced.Write(fill("synced", 300_000))
	r.must(errors.Join(err, synced.Sync()), "sync a file")
	// The answer to its second part is held, and so is its close.
	const large = 40 << 20
	hold := make(chan struct{})
	release := sync.OnceFunc(func() { close(hold) })
	defer release()
	r.p.AddRule(faultproxy.Rule{Verb: faultproxy.Other, Match: "/large-one?", Until: hold, Skip: 2})
	closed := make(chan error, 1)
	go func() { closed <- os.WriteFile(filepath.Join(dead.dir, "large-one"), fill("large-one", large), 0o644) }()
	r.eventually("an upload of the large file", func() bool { return len(r.uploads(r.o)) == 1 && r.p.Stats().InFlight > 0 })

	before := r.p.Stats().Other.Requests
	r.eventually("writers at work", func() bool { return r.p.Stats().Other.Requests > before+10 })
	r.cutOff(dead)
	release()
	if err := <-closed; err == nil {
		r.Error("close of the large file said 0")
	}
	_ = synced.Close() // its node is dead
	r.p.ClearRules()
	var acked []hearthtest.File
	for _, w := range writers {
		w.end()
		a := w.result(time.Minute)
		if a.Done == 0 {
			r.Errorf("a writer did nothing: %v", a.Wrong)
		}
		acked = append(acked, a.Acked...)
	}
	for _, f := range acked {
		if got := r.object(r.o, f.Path); int64(len(got)) != f.Size || hearthtest.Check(got, f.Path, 0, 0) != nil {
			r.Errorf("%s, which a killed node said that the bucket has, has %d bytes of %d there", f.Path, len(got), f.Size)
		}
	}
	r.Logf("%s is killed after %d files", dead.name, len(acked))
	r.agree(rest...)
	uploads := r.uploads(r.o)
	for _, key := range r.keys(r.o) {
		if strings.Contains(key, "tmp") || strings.Contains(key, "conflict") {
			r.Errorf("the bucket has %s", key)
		}
	}
	dead.set.link = ", staging_age: 1s" // nobody renames what is staged there
	r.start(dead)
	r.agree(nodes...)
	for _, m := range rest { // what it had no time to tell of they know at the latest when their names' time is over
		r.readsBack(m.dir, 0, acked...)
	}
	after := []hearthtest.File{{Path: "synced", Size: 300_000}, {Path: "large-one", Size: large}}
	for _, m := range nodes {
		r.readsBack(m.dir, 0, after...)
	}
	r.eventually("the end of all drafts", func() bool {
		s := dead.status().Drafts.States
		return s.Staged.Files+s.Waiting.Files+s.Publishing.Files+s.Failed.Files+s.Open.Files == 0
	})
	if left := r.uploads(r.o); len(left) > 0 {
		r.Errorf("uploads are left: %q", left)
	}
	longest := r.well(readers)
	r.shows("a killed writer's %d files and %d uploads, the others' longest read %v", len(acked), len(uploads), longest.Round(time.Millisecond))
	if alive := dead.status(); alive.Drafts.States.Aside.Files > 0 {
		r.Errorf("drafts of the killed node are set aside: %+v", alive.Drafts)
	}
}

// cutOff kills a node and its keeper. One that was just telling the kernel of a changed name, in whose directory a writer waits for
// it, cannot end before its mount is cut off (docs/failures.md).
func (r *ring) cutOff(m *member) {
	r.Helper()
	ended := make(chan struct{})
	go func() { m.kill(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(crashReady):
		for _, x := range mountsBelow(m.dir) {
			r.Logf("%s was killed and cannot end: umount -f: %v", m.name, unix.Unmount(x.point, unix.MNT_FORCE))
		}
		<-ended
	}
	m.kill9()
}
