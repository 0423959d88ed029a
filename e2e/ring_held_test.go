package e2e

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/warmup"
)

// again has nodes read a set that they hold together, for which the origin is asked for nothing.
// Of a machine that is too slow it may be asked for as much as nodes account for, and the
// row shows that: a disk tier declines what its device is too slow for and never waits, and
// a read goes around a node that says nothing for half a second.
func (r *ring) again(what string, list []hearthtest.File, nodes []*member, read func()) {
	r.Helper()
	lacks, files := r.lacks(list, nodes...)
	before := r.around(nodes...)
	bytes, gets := r.asked(read)
	around := r.around(nodes...) - before
	if gets > lacks+around {
		r.Errorf("%s: the origin was asked %d times, for %d bytes of what the ring holds but for %d blocks; %d reads went around nodes", what, gets, bytes, lacks, around)
	}
	r.excuses(what, lacks+around, files)
	if lacks+around > 0 {
		r.shows("%s %d requests: %d blocks were declined, %d reads went around nodes", what, gets, lacks, around)
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

// tries are how often that is done of which a machine that is too slow may keep the proof.
const tries = 3

// nothing has nodes read a set that all owners hold, for which the origin is asked for nothing at
// all. A read that went around a node, which said nothing for half a second, proves nothing:
// then they read it again. It returns how often they did.
func (r *ring) nothing(what string, list []hearthtest.File, nodes []*member) (read int) {
	r.Helper()
	for read = 1; read <= tries; read++ {
		before := r.around(nodes...)
		bytes, gets := r.asked(func() { r.well(r.readers(list, false, nodes...)) })
		around := r.around(nodes...) - before
		if gets > around {
			r.Errorf("%s: the origin was asked %d times, for %d bytes of what the ring holds; %d reads went around nodes", what, gets, bytes, around)
		}
		r.excuses(what, around, int64(len(list)))
		r.shows("%s %d requests", what, gets)
		if around == 0 {
			return read
		}
		r.shows("%d reads went around nodes", around)
	}
	r.Errorf("%s: of %d times there was none in which no read went around a node", what, tries)
	return tries
}

// excuses fails the scenario where a machine's slowness accounts for more than a tenth of the
// files, or some twenty: then the ring is what does not hold them.
func (r *ring) excuses(what string, n, files int64) {
	r.Helper()
	if n > max(20, files/10) {
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

// around are the reads of nodes that did not end where a block's owner is: since it was
// silent or refused, or since a former owner took longer than usual.
func (r *ring) around(nodes ...*member) (n int64) {
	r.Helper()
	for _, m := range nodes {
		x := m.status().Ring.Reads
		n += x.Detours + x.Elsewhere + x.Late
	}
	return n
}
