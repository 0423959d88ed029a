package e2e

import (
	"bytes"
	"net/netip"
	"path"
	"strings"

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
	list := r.load(r.o, r.few(10, 80))
	dirs, _ := listable(list)
	nodes := r.up(5, 0)
	before := r.p.Stats()
	l := r.listings()
	r.all("cold", list, 1, nodes...)
	l.stop()
	for page, by := range l.by {
		if len(by) > 1 {
			r.Errorf("%d nodes asked for the listing %s", len(by), page)
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
	if lists > int64(dirs+pages) {
		r.Errorf("%d LISTs for %d directories of %d pages", lists, dirs, pages)
	}
	r.shows("%d LISTs and %d HEADs for %d directories of %d pages", lists, heads, dirs, pages)
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
