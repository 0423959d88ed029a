// Package news tells subscribers what names mean now, and a node what happens to names.
package news

import "sync"

// Change says that a name means another thing than before.
type Change struct {
	// Dir is the directory's node id.
	Dir uint64
	// Name in the mount; "": the directory changed.
	Name string
	// Old is the node id that the name meant; 0: none, or not known.
	Old uint64
}

// Subscribers are told of changes. The zero value has none.
type Subscribers struct {
	mu   sync.RWMutex // guards the rest; not held while they are told
	next int
	all  map[int]func(Change)
}

// Add has f called for each change until cancel. f must not block. It may still be
// called once more while cancel runs.
func (s *Subscribers) Add(f func(Change)) (cancel func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[int]func(Change){}
	}
	s.next++
	id := s.next
	s.all[id] = f
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.all, id)
	}
}

// Tell calls every subscriber with each change; that a directory changed is said
// once.
func (s *Subscribers) Tell(changes []Change) {
	if len(changes) == 0 {
		return
	}
	s.mu.RLock()
	told := make([]func(Change), 0, len(s.all))
	for _, f := range s.all {
		told = append(told, f)
	}
	s.mu.RUnlock()
	for _, f := range told {
		merged := false
		for _, c := range changes {
			if c.Name != "" || !merged {
				f(c)
			}
			merged = merged || c.Name == ""
		}
	}
}

// Events are called by a Tree; each may be nil, none may block or call the Tree.
type Events struct {
	// Ill: the disk failed, names live in memory until they move.
	Ill func(cause error)
	// Moved: names lie in another directory from now on.
	Moved func(dir string)
	// Rebuilt: all names were given up, or set aside because they were corrupt.
	Rebuilt func(cause error)
	// Origin: a link's origin cannot be asked any more (nil: it can again).
	Origin func(link string, err error)
	// Name: the origin fails a link's name, or denies it, and answers for others.
	Name func(link string, err error)
	// Differs: listings of a link's origin name other versions than HEADs, as a key showed, so that
	// these come from HEADs from now on; "": they agree again.
	Differs func(link, says string)
	// Refused: a key that cannot be shown, found by a listing.
	Refused func(link, key string)
	// Reserved: node ids up to this one may be in use; for safekeeping elsewhere.
	Reserved func(upTo uint64)
	// Log is a line of the database.
	Log func(text string)
}
