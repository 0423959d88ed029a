package e2e

import (
	"bytes"
	"net/netip"
	"path"

	"github.com/hearthfs/hearth/e2e/nets"
)

// ringListings reads a set on all nodes at once, and has the packets say who asked the origin
// for which page of which listing: one node for each, whatever the others need of it.
func ringListings(e *env) {
	r := e.ring(0)
	if r == nil {
		return
	}
	list := r.load(r.o, r.few(10, 80))
	dirs := map[string]bool{"": true}
	for _, f := range list {
		for dir := path.Dir(f.Path); dir != "."; dir = path.Dir(dir) {
			dirs[dir] = true
		}
	}
	nodes := r.up(5, 0)
	before := r.p.Stats().List.Requests
	l := r.listings()
	r.all("cold", list, 1, nodes...)
	l.stop()
	for page, by := range l.by {
		if len(by) > 1 {
			r.Errorf("%d nodes asked for the listing %s", len(by), page)
		}
	}
	if len(l.by) != len(dirs) { // each has one page
		r.Errorf("%d listings of %d directories", len(l.by), len(dirs))
	}
	r.shows("%d listings of %d directories, %d LISTs with those of one key", len(l.by), len(dirs), r.p.Stats().List.Requests-before)
	r.quit(nodes...)
}

// listings are who asked for what page, as packets to the origin say.
type listings struct {
	by   map[string]map[netip.Addr]bool // not to be looked at before stop
	stop func()
}

// listings looks at what the origin is asked for, until stop.
func (r *ring) listings() *listings {
	r.Helper()
	l := &listings{by: map[string]map[netip.Addr]bool{}}
	l.stop = r.capture(func(p nets.Packet) {
		_, request, ok := bytes.Cut(p.Data, []byte("GET /"))
		line, _, _ := bytes.Cut(request, []byte(" HTTP/"))
		// Whether there is anything below a name is asked by a listing of one key.
		if !ok || p.To != r.bucket.Addr() || !bytes.Contains(line, []byte("list-type=2")) || bytes.Contains(line, []byte("max-keys=1&")) {
			return
		}
		page := string(line)
		if l.by[page] == nil {
			l.by[page] = map[netip.Addr]bool{}
		}
		l.by[page][p.From] = true
	})
	return l
}
