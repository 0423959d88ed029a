package sparse

import (
	"pgregory.net/rapid"

	"github.com/hearthfs/hearth"
)

// model is the expected content of the files.
type model struct {
	*fixture
	objects []*hearth.Object
	data    [][]byte
	held    []map[int64]bool
	fresh   []map[int64]bool // written or verified since the last restart
	opened  []func()         // the release of a lent file
	doomed  []bool
}

func (m *model) draw(t *rapid.T) (int, *hearth.Object) {
	i := rapid.IntRange(0, len(m.objects)-1).Draw(t, "object")
	return i, m.objects[i]
}

func (m *model) index(t *rapid.T, o *hearth.Object) int64 {
	return rapid.Int64Range(0, o.Blocks()-1).Draw(t, "block")
}

func (m *model) wholeAndFresh(i int) bool {
	return int64(len(m.held[i])) == m.objects[i].Blocks() && int64(len(m.fresh[i])) == m.objects[i].Blocks()
}

func (m *model) put(t *rapid.T) {
	i, o := m.draw(t)
	first := m.index(t, o)
	n := rapid.Int64Range(1, min(4, o.Blocks()-first)).Draw(t, "n")
	var blocks [][]byte
	missing := false
	for b := first; b < first+n; b++ {
		blocks = append(blocks, blockOf(o, m.data[i], b))
		missing = missing || !m.held[i][b]
	}
	err := m.PutMany(o, first, blocks)
	if refused := m.doomed[i] || m.opened[i] != nil && missing; refused != (err != nil) {
		t.Fatalf("put %d+%d: %v", first, n, err)
	}
	for b := first; err == nil && b < first+n; b++ {
		if !m.held[i][b] {
			m.held[i][b], m.fresh[i][b] = true, true
		}
	}
}

func (m *model) get(t *rapid.T) {
	i, o := m.draw(t)
	b := o.Block(m.index(t, o))
	off := rapid.IntRange(0, b.Len()-1).Draw(t, "off")
	n := rapid.IntRange(1, b.Len()-off).Draw(t, "n")
	if got := m.hasRange(b, m.data[i], off, n); got != m.held[i][b.Index] {
		t.Fatalf("block %d is held: %v", b.Index, got)
	}
	if m.Has(b.ID()) != m.held[i][b.Index] {
		t.Fatalf("Has(%d) is wrong", b.Index)
	}
	// A read of all pieces verifies the block.
	if m.held[i][b.Index] && off < hearth.PieceSize && (off+n+hearth.PieceSize-1)/hearth.PieceSize == (b.Len()+hearth.PieceSize-1)/hearth.PieceSize {
		m.fresh[i][b.Index] = true
	}
}

func (m *model) evictExtent(t *rapid.T) {
	i, o := m.draw(t)
	b := m.index(t, o)
	freed := m.EvictExtent(o.Block(b).ID())
	switch {
	case m.opened[i] != nil:
		if freed != 0 {
			t.Fatal("freed something under an open file")
		}
	case int64(len(m.held[i])) == o.Blocks() && !m.opt.Shared:
		clear(m.held[i])
		clear(m.fresh[i])
	default:
		for at := range m.held[i] {
			if at/hearth.ExtentBlocks == b/hearth.ExtentBlocks {
				delete(m.held[i], at)
				delete(m.fresh[i], at)
			}
		}
	}
}

func (m *model) evictObject(t *rapid.T) {
	i, o := m.draw(t)
	m.EvictObject(o.Version)
	if m.opened[i] != nil {
		m.doomed[i] = true
		return
	}
	clear(m.held[i])
	clear(m.fresh[i])
}

func (m *model) localFile(t *rapid.T) {
	i, o := m.draw(t)
	release := m.local(o, m.data[i])
	if want := m.wholeAndFresh(i) && !m.doomed[i]; want != (release != nil) {
		t.Fatalf("handed out: %v", release != nil)
	}
	if release == nil && int64(len(m.held[i])) == o.Blocks() && !m.doomed[i] {
		if !<-m.verified {
			t.Fatal("verification failed")
		}
		for b := range m.held[i] {
			m.fresh[i][b] = true
		}
	}
	switch {
	case release == nil:
	case m.opened[i] == nil:
		m.opened[i] = release
	default:
		release()
	}
}

func (m *model) release(t *rapid.T) {
	i, _ := m.draw(t)
	if m.opened[i] == nil {
		t.Skip("not open")
	}
	m.opened[i]()
	m.opened[i] = nil
	if m.doomed[i] {
		clear(m.held[i])
		clear(m.fresh[i])
	}
	m.doomed[i] = false
}

func (m *model) restart(*rapid.T) {
	m.reopen()
	for i := range m.objects {
		clear(m.fresh[i])
		if m.opened[i] != nil { // the process ended: its files are closed
			m.opened[i]()
		}
		m.opened[i], m.doomed[i] = nil, false
	}
}

func (m *model) check(t *rapid.T) {
	m.checkUsed()
	for i, o := range m.objects {
		if len(m.held[i]) == 0 && m.Has(o.Block(0).ID()) {
			t.Fatal("something is held")
		}
	}
	if s := m.Stats(); s.Damaged != 0 || s.Errors != 0 {
		t.Fatalf("stats %+v", s)
	}
}
