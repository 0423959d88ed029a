package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/warmup"
)

// again has nodes read a set that they hold together, for which the origin is asked for nothing
// but what nodes account for one by one, and the row shows that: a disk tier declines what its
// device is too slow for and never waits, a read goes around a node that says nothing for half a
// second, and an origin that is too slow is asked again.
func (r *ring) again(what string, list []hearthtest.File, nodes []*member, read func()) {
	r.Helper()
	lacks, files := r.lacks(list, nodes...)
	before, declined := r.events(nodes...), r.declined(nodes...)
	bytes, gets := r.asked(read)
	since := r.events(nodes...).since(before)
	if lacks > 0 {
		lacks += r.declined(nodes...) - declined // what they declined again
	}
	if gets > lacks+since.around() {
		r.Errorf("%s: the origin was asked %d times, for %d bytes of what the ring holds but for %d blocks; %v", what, gets, bytes, lacks, since)
	}
	r.steady(what, since)
	r.excuses(what, lacks+since.around(), files)
	if lacks+since.around() > 0 {
		r.shows("%s %d requests: %d blocks were declined, %v", what, gets, lacks, since)
	}
}

// events are what nodes account a request to the origin for, beside that nobody holds the block.
type events struct {
	passed  int64 // blocks that an owner did not give
	failed  int64 // of these, since it could not, and said so
	late    int64 // blocks that a former owner did not give in time
	gone    int64 // blocks that no former owner held any more
	alone   int64 // blocks that were asked of a node which knew of nobody else yet
	retries int64 // requests to the origin that were sent again
}

// events are those of nodes since they started.
func (r *ring) events(nodes ...*member) (e events) {
	r.Helper()
	for _, m := range nodes {
		s := m.status()
		x := s.Ring.Reads
		for _, n := range x.Passed {
			e.passed += n
		}
		e.failed += x.Passed["failed"]
		e.late, e.gone, e.alone, e.retries = e.late+x.Late, e.gone+x.Gone, e.alone+x.Alone, e.retries+s.Origin.Retries
	}
	return e
}

func (e events) since(before events) events {
	return events{e.passed - before.passed, e.failed - before.failed, e.late - before.late, e.gone - before.gone, e.alone - before.alone, e.retries - before.retries}
}

// around are how many requests to the origin they account for of blocks that the ring holds.
func (e events) around() int64 { return e.passed + e.late + e.retries }

func (e events) String() string {
	return fmt.Sprintf("owners did not give %d blocks, former ones %d in time and %d no more, %d were asked of who knew nobody, and %d requests were sent again", e.passed, e.late, e.gone, e.alone, e.retries)
}

// steady fails the scenario where an owner said that it cannot give a block though nodes neither
// came nor went and the origin is well: no slow machine has it say that.
func (r *ring) steady(what string, since events) {
	r.Helper()
	if since.failed > 0 {
		r.Errorf("%s: owners said of %d blocks that they cannot give them", what, since.failed)
	}
}

// held has owners hold all of a set that was read, also what their disks declined, as a
// machine that is too slow has them do: a warm-up brings just that.
func (r *ring) held(list []hearthtest.File) {
	r.Helper()
	lacks, files := r.lacks(list, r.nodes...)
	r.excuses("the first epoch", lacks, files)
	for range tries {
		if lacks == 0 {
			return
		}
		r.shows("%d blocks declined and brought again", lacks)
		r.nodes[0].job(0, "warmup", "/")
		lacks, _ = r.lacks(list, r.nodes...)
	}
	if lacks > 0 {
		r.Errorf("after %d warm-ups %d of %d files are not held", tries, lacks, files)
	}
}

// tries are the watchdog of what a machine that is too slow may have us do again: mostly once.
const tries = 20

// nothing has nodes read a set that all owners hold, for which the origin is asked for nothing at
// all but what reads that went around a node account for.
func (r *ring) nothing(what string, list []hearthtest.File, nodes []*member) {
	r.Helper()
	before := r.events(nodes...)
	bytes, gets := r.asked(func() { r.well(r.readers(list, false, nodes...)) })
	since := r.events(nodes...).since(before)
	if gets > since.around() {
		r.Errorf("%s: the origin was asked %d times, for %d bytes of what the ring holds; %v", what, gets, bytes, since)
	}
	r.steady(what, since)
	r.excuses(what, since.around(), int64(len(list)))
	r.shows("%s %d requests", what, gets)
	if since.around() > 0 {
		r.shows("%v", since)
	}
}

// excuses fails the scenario where a machine's slowness accounts for most of the files: then the
// ring is what does not hold them. Of a machine with forty programs at work it is one in fifty.
func (r *ring) excuses(what string, n, files int64) {
	r.Helper()
	if n > files/2 {
		r.Errorf("%s: %d of %d files were declined, or read around nodes", what, n, files)
	}
}

// lacks are the files of a set of which owners do not hold all, as a check says for which the owners
// are asked, of how many; of small ones as many as disks say that they declined.
func (r *ring) lacks(list []hearthtest.File, nodes ...*member) (lacks, files int64) {
	r.Helper()
	v, _ := nodes[0].checked(list)
	if c := v.Checked; c.Corrupt.Files+c.Changed.Files+c.Vanished.Files+c.Damaged > 0 {
		r.Errorf("a check finds %+v: %+v", c, v.Samples)
	}
	if declined := r.gone + r.declined(nodes...); v.Checked.Missing.Files > declined {
		r.Errorf("%d files are missing at their owners, and disks declined %d blocks: %+v", v.Checked.Missing.Files, declined, v.Samples)
	}
	return v.Checked.Missing.Files, v.Checked.Missing.Files + v.Checked.Whole.Files
}

// checked is a check of the directories of a set, whatever it finds, and its exit code. One that met an
// owner which said nothing for half a second, as on a machine with other work, does not know
// what that one holds: it is done again.
func (m *member) checked(list []hearthtest.File) (v warmup.View, code int) {
	m.ring.Helper()
	args := []string{"warmup", "--check", "-o", "json"}
	for _, f := range list {
		top, _, _ := strings.Cut(f.Path, "/")
		if !slices.Contains(args, "/"+top) {
			args = append(args, "/"+top)
		}
	}
	m.ring.eventually("a check to which all owners answer", func() bool {
		var out string
		out, code = m.ask(args...)
		doc, _, _ := strings.Cut(out, "\nhearth: ")
		v = warmup.View{}
		if err := json.Unmarshal([]byte(doc), &v); err != nil || code != 0 && code != 3 || v.Checked == nil {
			m.ring.Fatalf("hearth warmup --check: exit %d, %v:\n%s", code, err, out)
		}
		return !slices.ContainsFunc(v.Samples, func(s warmup.Sample) bool { return strings.Contains(s.Cause, "no owner answers") })
	})
	return v, code
}

// declined are the blocks that the nodes' disks did not take.
func (r *ring) declined(nodes ...*member) (n int64) {
	r.Helper()
	for _, m := range nodes {
		n += m.declined()
	}
	return n
}

func (m *member) declined() (n int64) {
	m.ring.Helper()
	for _, t := range m.status().Tiers {
		for _, d := range t.Dirs {
			n += d.Declined
		}
	}
	return n
}
