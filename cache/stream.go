package cache

import "github.com/hearthfs/hearth"

// streams tells the sequential readers of one object from all others. It is a pure function of the
// reads that were reported to it: no clock, no I/O.
//
// A stream is a reader that goes on where it stopped. A read joins the stream whose end it touches.
// A kernel sends several reads at a time and they arrive in any order; so a read may begin up to
// two of its lengths beyond the end, or behind it. A read that fits no stream begins a new one, in
// the place of the least recently used.
//
// A stream is trusted for as many bytes as it has read in one piece. This run is the bytes it read,
// but at most the distance it covered: reading one page again and again covers none. It is zero if
// the stream skipped more than a quarter of that distance, as strided reads do. Read-ahead reaches
// at most run beyond the stream's end. So the bytes that are fetched ahead and never read are at
// most those that were read.
type streams struct {
	tick uint32
	sure bool // the reader has promised to read on: no trust must be earned
	all  [maxStreams]stream
}

// maxStreams is how many readers of one object are told apart: the threads of a loader or a copier.
const maxStreams = 8

// trusted is the number of bytes that a stream must have read before anything is read ahead of it:
// half a block. So slices of a hundred KiB never cause read-ahead.
const trusted = hearth.BlockSize / 2

type stream struct {
	start, end int64 // bytes of the object that it has covered
	bytes      int64 // read within them
	reads      int32
	used       uint32 // tick of the last read; 0: free
	asked      int64  // block index; the blocks before it were fetched ahead, or read
}

// ask is a run of blocks to be fetched ahead.
type ask struct {
	first int64
	n     int
}

// read notes a read of n bytes at off of an object. It returns the run to fetch ahead now, which
// ends before block end; n is 0 if there is none. most bounds read-ahead in bytes.
func (s *streams) read(off, n, most, end int64) ask {
	s.tick++
	st, late := s.find(off, n)
	if st == nil && late {
		return ask{}
	}
	if st == nil {
		st = s.begin(off)
	}
	st.used = s.tick
	if off+n <= st.end && st.bytes >= st.end-st.start {
		return ask{} // a repeated read says nothing about the next ones
	}
	st.bytes += n
	st.reads++
	st.end = max(st.end, off+n)
	if s.sure {
		return st.ahead(most, end)
	}
	return st.ahead(min(st.run(), most), end)
}

// find returns the stream that a read belongs to: one that skipped it, else the one whose end is
// nearest. late marks a read that began just before a new stream and arrived just after it; it
// belongs to no stream.
func (s *streams) find(off, n int64) (nearest *stream, late bool) {
	var distance int64
	for i := range s.all {
		st := &s.all[i]
		switch {
		case st.used == 0 || off > st.end+2*n || off < st.end-2*hearth.BlockSize:
		case off < st.start:
			late = late || st.reads < 4 && off >= st.start-2*n
		case off < st.end && st.bytes < st.end-st.start:
			return st, false
		default:
			if d := max(off-st.end, st.end-off); nearest == nil || d < distance {
				nearest, distance = st, d
			}
		}
	}
	return nearest, late
}

func (s *streams) begin(off int64) *stream {
	oldest := &s.all[0]
	for i := range s.all {
		st := &s.all[i]
		if st.used == 0 {
			oldest = st
			break
		}
		if s.tick-st.used > s.tick-oldest.used {
			oldest = st
		}
	}
	*oldest = stream{start: off, end: off}
	return oldest
}

// forget ends all trust, after read-ahead has failed.
func (s *streams) forget() { *s = streams{tick: s.tick} }

// unask marks the blocks from index i on as not fetched ahead, since they were not kept.
func (s *streams) unask(i int64) {
	for k := range s.all {
		if st := &s.all[k]; st.asked > i && st.end <= (i+1)*hearth.BlockSize {
			st.asked = i
		}
	}
}

// run is the number of bytes for which the stream is trusted.
func (st *stream) run() int64 {
	covered := st.end - st.start
	if st.reads < 2 || st.bytes < covered-covered/4 {
		return 0
	}
	return min(st.bytes, covered)
}

// ahead returns the run to fetch ahead of a stream that is trusted for run bytes. It asks when less
// than half of what it may is fetched ahead, or when a whole extent is not, so that runs are long.
// It cuts runs at extents, which are placed and fetched as one.
func (st *stream) ahead(run, end int64) ask {
	if run < trusted {
		return ask{}
	}
	here := (st.end + hearth.BlockSize - 1) / hearth.BlockSize // the first untouched block
	st.asked = max(st.asked, here)
	reach := min(end, (st.end+run)/hearth.BlockSize)
	if reach < end && 2*(st.asked*hearth.BlockSize-st.end) > run && reach-st.asked < hearth.ExtentBlocks {
		return ask{}
	}
	stop := min(reach, (st.asked/hearth.ExtentBlocks+1)*hearth.ExtentBlocks)
	a := ask{first: st.asked, n: int(stop - st.asked)}
	if a.n <= 0 {
		return ask{}
	}
	st.asked = stop
	return a
}
