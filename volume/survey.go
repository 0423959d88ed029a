package volume

import (
	"bytes"
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hearthfs/hearth/cache/check"
	"github.com/hearthfs/hearth/internal/device"
)

// Survey is what a volume holds, by the headers and indexes of its segments.
type Survey struct {
	Info
	// Free segments hold nothing. Closed ones end with an index. Open ones have none: a node writes to them, or did so
	// until it went away.
	Free, Open, Closed int
	// Unread segments cannot be read, and what they hold is not counted. Cause is why one of them cannot.
	Unread int
	Cause  error
	// Blocks were found, of so many Bytes. One that was moved counts twice until its first segment is written anew.
	Blocks, Bytes int64
	// Writers are the nodes that wrote segments, the one with most of them first.
	Writers []Writer
	// Oldest and Newest are the segments that were begun first and last. nil means that there is none.
	Oldest, Newest *Segment
	// Harm says what is wrong with the superblocks. None means that both are whole.
	Harm []string
	// Generations are the least and the greatest of all segments. Both are 0 if none was written.
	Generations [2]uint64
}

// Writer is a node that wrote segments.
type Writer struct {
	Node     [16]byte
	Segments int
}

// Segment is a part of a volume that one node wrote from its beginning.
type Segment struct {
	Number     uint32
	Generation uint64 // how often it was begun
	Began      time.Time
}

// TakeSurvey reads the header and the index of each segment, and goes on after one that cannot be read. Nodes may use
// the volume meanwhile.
func TakeSurvey(ctx context.Context, d Device) (*Survey, error) {
	g, err := look(d)
	if err != nil {
		return nil, err
	}
	s := &Survey{Info: g.info()}
	c := &checker{dev: d, g: g, run: &check.Run{Found: func(f check.Finding) { s.Harm = append(s.Harm, f.Cause) }}}
	for n := range uint32(2) {
		if err := c.superblock(n); err != nil {
			return nil, err
		}
	}
	writers := map[[16]byte]int{}
	var mu sync.Mutex // held while s and writers change
	work, within := errgroup.WithContext(ctx)
	work.SetLimit(learners)
	for n := range g.count {
		if within.Err() != nil {
			break
		}
		work.Go(func() error {
			l, notes, err := g.look(n, func(b []byte, off int64) error {
				if within.Err() != nil {
					return context.Cause(within)
				}
				_, err := d.ReadAt(b, g.offset(n)+off)
				return err
			})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case harmed(err):
				s.Unread, s.Cause = s.Unread+1, err
				return nil
			case err != nil:
				return err
			}
			for _, x := range notes {
				s.Bytes += int64(x.Length)
			}
			s.Blocks += int64(len(notes))
			if s.add(&l); l.salt != 0 && l.node != [16]byte{} {
				writers[l.node]++
			}
			return nil
		})
	}
	err = work.Wait()
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	for node, n := range writers {
		s.Writers = append(s.Writers, Writer{node, n})
	}
	slices.SortFunc(s.Writers, func(a, b Writer) int {
		return cmp.Or(cmp.Compare(b.Segments, a.Segments), bytes.Compare(a.Node[:], b.Node[:]))
	})
	return s, nil
}

func (s *Survey) add(l *looked) {
	switch {
	case l.salt == 0:
		s.Free++
		return
	case l.closed:
		s.Closed++
	default:
		s.Open++
	}
	if s.Generations[0] == 0 || l.generation < s.Generations[0] {
		s.Generations[0] = l.generation
	}
	s.Generations[1] = max(s.Generations[1], l.generation)
	if l.began == 0 { // its header is damaged
		return
	}
	x := &Segment{l.segment, l.generation, time.UnixMilli(l.began)}
	if s.Oldest == nil || x.before(s.Oldest) {
		s.Oldest = x
	}
	if s.Newest == nil || s.Newest.before(x) {
		s.Newest = x
	}
}

// before orders segments by age. Those of one millisecond are ordered by number, whoever was read first.
func (s *Segment) before(x *Segment) bool {
	return cmp.Or(s.Began.Compare(x.Began), cmp.Compare(s.Number, x.Number)) < 0
}

// Latencies times n reads of a page, one after another, at random places of a device, and sorts them. Places that
// cannot be read are left out; if all are such, that is the error.
func Latencies(d Device, n int) (all []time.Duration, err error) {
	page := device.Aligned(pageSize)
	for range n {
		at := rand.Int64N(d.Size()/pageSize) * pageSize
		began := time.Now()
		_, failed := d.ReadAt(page, at)
		switch {
		case harmed(failed):
			err = failed
		case failed != nil:
			return nil, failed
		default:
			all = append(all, time.Since(began))
		}
	}
	if len(all) == 0 {
		return nil, err
	}
	slices.Sort(all)
	return all, nil
}
