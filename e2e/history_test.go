package e2e

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// absent is the version of a key that is not there.
const absent = -1

// change is one write of a key: a PUT of a version, or with absent a DELETE.
// Times are since the scenario's start; it took effect between began and ended.
type change struct {
	version      int
	began, ended time.Duration
}

// history is all that happened to a key, by one writer, in order. The first
// change is what was there before anybody read.
type history []change

// sighting is one open of a key, with all that was read through it.
type sighting struct {
	opened, open time.Duration // open(2) was called, and had returned
	version      int           // that every page named; absent: open(2) said ENOENT
	blank        bool          // no page was read: there is no version to look at
	stale        bool          // a call ended with ESTALE, a mapped page with SIGBUS
	asked, told  time.Duration // stale: that call began and ended
	// What a run that changes its rules as it goes notes of each open:
	bound time.Duration // more than check's own
	away  bool          // what was known last may be shown, however old
	life  int           // of the node: what it knew in another it may have forgotten
}

// since is the moment from which on what was current may be seen.
func (s sighting) since(bound time.Duration) time.Duration {
	if s.away {
		return 0
	}
	return s.opened - max(bound, s.bound)
}

// current are the versions that the key may have had at a moment of [from, to].
func (h history) current(from, to time.Duration) []int {
	var all []int
	for i, c := range h {
		if c.began <= to && (i+1 == len(h) || h[i+1].ended >= from) {
			all = append(all, c.version)
		}
	}
	return all
}

// check says what is wrong with sightings of a key, where an open may see what
// was current at most bound before it was called. They are in order of opened.
func (h history) check(sightings []sighting, bound time.Duration) error {
	var wrong []error
	for i, s := range sightings {
		if may := h.current(s.since(bound), s.open); !s.blank && !slices.Contains(may, s.version) {
			wrong = append(wrong, fmt.Errorf("an open at %v shows version %d, it may be one of %v", s.opened, s.version, may))
		}
		if s.stale && !h.mayBeStale(s, sightings[:i], bound) {
			wrong = append(wrong, fmt.Errorf("ESTALE at %v in an open at %v, and nothing changed since the node knew better", s.told, s.opened))
		}
	}
	return errors.Join(wrong...)
}

// mayBeStale reports whether the version that s opened may be gone without the
// node's knowledge: something changed after all that the node is known to have
// known when s was opened. It learned at the earliest within the call of an
// earlier ESTALE, and a version that an earlier open saw.
func (h history) mayBeStale(s sighting, before []sighting, bound time.Duration) bool {
	since, known := s.since(bound), 0
	for _, b := range before {
		if b.life != s.life {
			continue
		}
		if b.stale && b.told < s.opened {
			since = max(since, b.asked)
		}
		if !b.blank && b.open < s.opened {
			// A version may come twice; that it was the first time is the least known.
			known = max(known, slices.IndexFunc(h, func(c change) bool { return c.version == b.version }))
		}
	}
	for _, c := range h[known+1:] {
		if c.began <= s.told && c.ended >= since {
			return true
		}
	}
	return false
}

// pages tells the one version that all pages of p name, which lie at off of the
// file; off is a multiple of the page size.
func pages(p []byte, path string, off int64) (int, error) {
	version, ok := hearthtest.VersionAt(p, path, off)
	if !ok {
		return absent, fmt.Errorf("%s: unknown bytes at %d", path, off)
	}
	return version, hearthtest.Check(p, path, off, version)
}

// saw takes one more piece that was read through the open.
func (s *sighting) saw(p []byte, path string, off int64) error {
	version, err := pages(p, path, off)
	if err != nil {
		return err
	}
	if !s.blank && s.version != version {
		return fmt.Errorf("%s: one open shows version %d and, at %d, version %d", path, s.version, off, version)
	}
	s.version, s.blank = version, false
	return nil
}

func TestHistoryJudges(t *testing.T) {
	// The key had version 0, 1 from 10 s on, was deleted at 20 s, came back as 0 at
	// 30 s; each write took a second. What an open may see follows.
	s := func(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }
	h := history{{0, 0, 0}, {1, s(10), s(11)}, {absent, s(20), s(21)}, {0, s(30), s(31)}}
	at := func(opened float64, version int) sighting {
		return sighting{opened: s(opened), open: s(opened) + s(0.1), version: version}
	}
	stale := func(opened, asked, told float64) sighting {
		return sighting{opened: s(opened), open: s(opened) + s(0.1), blank: true, stale: true, asked: s(asked), told: s(told)}
	}
	for name, c := range map[string]struct {
		bound float64
		good  bool
		seen  []sighting
	}{
		"the first":                       {0, true, []sighting{at(5, 0)}},
		"of the future":                   {0, false, []sighting{at(5, 1)}},
		"never written":                   {9, false, []sighting{at(15, 7)}},
		"either while it is written":      {0, true, []sighting{at(10.5, 0), at(10.5, 1)}},
		"older than a finished PUT":       {0, false, []sighting{at(11.5, 0)}},
		"older, within the bound":         {2, true, []sighting{at(12.5, 0)}},
		"older than the bound":            {2, false, []sighting{at(13.5, 0)}},
		"deleted":                         {0, true, []sighting{at(25, absent)}},
		"still there within the bound":    {5, true, []sighting{at(25, 1)}},
		"still there beyond the bound":    {2, false, []sighting{at(25, 1)}},
		"missing beyond the bound":        {2, false, []sighting{at(35, absent)}},
		"back":                            {2, true, []sighting{at(35, 0)}},
		"stale after a change":            {5, true, []sighting{stale(9, 12, 13)}},
		"stale without a change":          {5, false, []sighting{stale(2, 3, 4)}},
		"stale long after a change":       {5, false, []sighting{stale(17, 18, 18.5)}},
		"stale again":                     {5, false, []sighting{stale(9, 12, 13), stale(13.5, 14, 15)}},
		"stale again, opened before":      {5, true, []sighting{stale(9, 12, 13), stale(12.5, 14, 15)}},
		"stale again, changed again":      {5, true, []sighting{stale(9, 12, 13), stale(19, 19.1, 22)}},
		"stale though known":              {5, false, []sighting{at(12, 1), stale(12.5, 13, 14)}},
		"stale, known and changed after":  {9, true, []sighting{at(12, 1), stale(19.5, 20.5, 22)}},
		"stale in a strict open":          {0, false, []sighting{stale(11.5, 12, 13)}},
		"stale in a strict open, changed": {0, true, []sighting{stale(9.9, 12, 13)}},
	} {
		if err := h.check(c.seen, s(c.bound)); (err == nil) != c.good {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestOneOpenHasOneVersion(t *testing.T) {
	// Pieces of one version agree; of two, within a piece or between pieces, they
	// do not; nor do bytes of another file, or none's.
	const page = hearthtest.PageSize
	made := func(path string, off int64, version int) []byte {
		p := make([]byte, 3*page+100)
		hearthtest.Fill(p, path, off, version)
		return p
	}
	mixed := append(made("k", 0, 1)[:page], made("k", page, 2)...)
	torn := append(made("k", 0, 1)[:page+77], made("k", 0, 2)[page+77:]...)
	for name, c := range map[string]struct {
		pieces [][]byte
		good   bool
	}{
		"one":            {[][]byte{made("k", 0, 1), made("k", 0, 1)}, true},
		"two pieces":     {[][]byte{made("k", 0, 1), made("k", 0, 2)}, false},
		"in a piece":     {[][]byte{mixed}, false},
		"within a page":  {[][]byte{torn}, false},
		"another file":   {[][]byte{made("other", 0, 1)}, false},
		"another offset": {[][]byte{made("k", page, 1)}, false},
		"zeroes":         {[][]byte{make([]byte, page)}, false},
	} {
		s := sighting{blank: true}
		var err error
		for _, p := range c.pieces {
			err = errors.Join(err, s.saw(p, "k", 0))
		}
		if (err == nil) != c.good {
			t.Errorf("%s: %v", name, err)
		}
	}
}
