package e2e

import (
	"bytes"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/hearthfs/hearth/e2e/nets"
	"github.com/hearthfs/hearth/internal/faultproxy"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// ringListings reads a set on all nodes at once, and has the packets say who asked the origin
// for which page of which listing: one node for each, whatever the others need of it.
func ringListings(e *env) {
	r := e.ring(0)
	if r == nil {
		return
	}
	small, err := hearthtest.Set("D1s") // every packet is looked at
	r.must(err, "data set")
	list := r.load(r.o, small.Reduced(10, 80))
	dirs, _ := listable(list)
	nodes := r.up(5, 0)
	before := r.p.Stats()
	l := r.listings()
	r.all("cold", list, 1, nodes...)
	l.stop()
	for page, by := range l.by {
		if beyond := r.beyond(nodes...); int64(len(by)) > 1+beyond {
			r.Errorf("%d nodes asked for the listing %s, and %d times one was not told of names", len(by), page, beyond)
		}
	}
	if len(l.by) != dirs { // each has one page
		r.Errorf("%d listings of %d directories", len(l.by), dirs)
	}
	for line, n := range l.single {
		r.Logf("%d times: %s", n, line)
	}
	r.listed(before, list)
	r.quit(nodes...)
}

// listable are a set's directories, its root too, and their pages.
func listable(list []hearthtest.File) (dirs, pages int) {
	names := map[string]map[string]bool{}
	for _, f := range list {
		for p := f.Path; p != "."; p = path.Dir(p) {
			dir := path.Dir(p)
			if names[dir] == nil {
				names[dir] = map[string]bool{}
			}
			names[dir][p] = true
		}
	}
	for _, in := range names {
		pages += (len(in) + 999) / 1000
	}
	return len(names), pages
}

// listed fails the scenario where the origin was asked since then for more LISTs, of any kind, than a
// set that was read for the first time has directories and pages.
func (r *ring) listed(before faultproxy.Stats, list []hearthtest.File) {
	r.Helper()
	now := r.p.Stats()
	lists, heads := now.List.Requests-before.List.Requests, now.Head.Requests-before.Head.Requests
	dirs, pages := listable(list)
	if beyond := r.beyond(r.nodes...); lists > int64(dirs+pages)+beyond {
		r.Errorf("%d LISTs for %d directories of %d pages, and %d times a node was not told of names", lists, dirs, pages, beyond)
	}
	r.shows("%d LISTs and %d HEADs for %d directories of %d pages", lists, heads, dirs, pages)
}

// beyond is how often nodes asked the origin for names that their owner did not tell them, or sent
// a request to it again.
func (r *ring) beyond(nodes ...*member) (n int64) {
	r.Helper()
	for _, m := range nodes {
		s := m.status()
		n += s.Ring.Names["bucket"] + s.Origin.Retries
	}
	return n
}

// ringNews changes what all nodes know, whose bound is far away, and has one of them learn it, by a
// read of a version that is gone or by a check: the other nodes' kernels know it soon.
func ringNews(e *env) {
	r := e.ring(0)
	if r == nil {
		return
	}
	r.set.fresh = "bounded(24h)" // nothing is asked for again by itself
	list := r.load(r.o, r.few(1, 20))
	nodes := r.up(5, 0)
	changed, gone := list[0], list[1]
	come := hearthtest.File{Path: path.Join(path.Dir(gone.Path), "come"), Size: 4321}
	for _, m := range nodes { // nobody reads: a read of what is gone would tell
		for _, f := range list {
			_, err := os.Stat(m.file(f))
			r.must(err, "look at a file")
		}
		if _, err := os.Stat(m.file(come)); !errors.Is(err, fs.ErrNotExist) {
			r.Fatalf("%s: a file that is not there: %v", m.name, err)
		}
	}
	was, err := os.Stat(nodes[0].file(changed))
	r.must(err, "look at a file")
	before := r.p.Stats()
	r.must(r.o.PutFile(r.ctx, r.o.bucket, "", changed, 1), "overwrite a file")
	buf := make([]byte, 1<<20)
	r.eventually("a read of the new version", func() bool {
		_, err := readWhole(nodes[2].file(changed), changed, 1, buf)
		if err != nil && !errors.Is(err, syscall.ESTALE) {
			r.Fatalf("a read of what was overwritten: %v", err)
		}
		return err == nil
	})
	r.heard("an overwritten file", nodes, func(m *member) bool {
		s, err := os.Stat(m.file(changed))
		return err == nil && !s.ModTime().Equal(was.ModTime())
	})
	r.must(r.o.Delete(r.ctx, r.o.bucket, gone.Path), "delete a file")
	r.must(r.o.PutFile(r.ctx, r.o.bucket, "", come, 0), "put a file")
	if out, code := r.run(r.env.hearth, "warmup", "--check", "/", "--node", "unix://"+nodes[3].socket()); code != 0 && code != 3 {
		r.Fatalf("hearth warmup --check: exit %d: %s", code, out)
	}
	r.heard("a deleted file and a new one", nodes, func(m *member) bool {
		_, gone := os.Stat(m.file(gone))
		_, come := os.Stat(m.file(come))
		return errors.Is(gone, fs.ErrNotExist) && come == nil
	})
	now := r.p.Stats()
	heads, lists := now.Head.Requests-before.Head.Requests, now.List.Requests-before.List.Requests
	r.shows("%d HEADs and %d LISTs", heads, lists)
	asked := r.beyond(nodes...)
	for _, m := range nodes {
		asked += m.status().Ring.News["asked"]
	}
	// The read and the check learn for themselves; who heard of it asks once.
	if heads+lists > asked+2 {
		r.Errorf("%d HEADs and %d LISTs, and nodes that heard news asked %d times: names are asked for that are not due", heads, lists, asked)
	}
	r.all("afterwards", append([]hearthtest.File{come}, list[2:]...), 1, nodes...)
	for _, m := range nodes {
		_, err := readWhole(m.file(changed), changed, 1, buf)
		r.must(err, "%s: read the new version", m.name)
	}
	r.quit(nodes...)
}

// file is where a file is seen through the node's mount.
func (m *member) file(f hearthtest.File) string { return filepath.Join(m.dir, f.Path) }

// heard waits until each node's mount shows what one of them has learned. It may take long: names
// that nobody tells of are not asked for again in a day.
func (r *ring) heard(what string, nodes []*member, knows func(m *member) bool) {
	r.Helper()
	start := time.Now()
	for _, m := range nodes {
		r.eventually(m.name+" hearing of "+what, func() bool { return knows(m) })
	}
	r.shows("%s: %v", what, time.Since(start).Round(time.Millisecond))
}

// listings are who asked for what page, as packets to the origin say.
type listings struct {
	// Not to be looked at before stop.
	by     map[string]map[netip.Addr]bool
	single map[string]int // of one key, each asked so often
	stop   func()
}

// listings looks at what the origin is asked for, until stop.
func (r *ring) listings() *listings {
	r.Helper()
	l := &listings{by: map[string]map[netip.Addr]bool{}, single: map[string]int{}}
	l.stop = r.capture(func(p nets.Packet) {
		_, request, ok := bytes.Cut(p.Data, []byte("GET /"))
		line, _, _ := bytes.Cut(request, []byte(" HTTP/"))
		if !ok || p.To != r.bucket.Addr() || !bytes.Contains(line, []byte("list-type=2")) {
			return
		}
		page := string(line)
		// Whether there is anything below a name is asked by a listing of one key.
		if strings.Contains(page, "max-keys=1&") {
			l.single[page]++
			return
		}
		if l.by[page] == nil {
			l.by[page] = map[netip.Addr]bool{}
		}
		l.by[page][p.From] = true
	})
	return l
}
