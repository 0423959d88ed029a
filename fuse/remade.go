package fuse

import "sync"

// renames are requests that have begun a rename of several steps. A process that goes on with one could not tell else what the one
// before it had decided.
type renames struct {
	mu  sync.Mutex // guards the rest
	row map[uint64]renameRow
}

type renameRow struct {
	before int32 // what the process before this one did; 0: it did not know of the request
	row    int
}

// What a rename does, in the value of its row.
const (
	// hides: it renames a draft, and deletes then the object that this hides under its old name, which is not what is to be renamed.
	hides = 1
	// copies: it copies an object, over a file that has nothing which is still to be published.
	copies = 2
)

// begin is called before the first step, and end once the request can be answered.
func (r *renames) begin(t *table, unique uint64, what int32) (end func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	x := tableRow{unique &^ (1 << 63), renaming, what}
	was, there := r.row[x.node]
	if there {
		t.write(was.row, x)
	} else {
		was.row = t.put(x)
	}
	r.setLocked(x.node, renameRow{was.before, was.row})
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if _, there := r.row[x.node]; there {
			t.clear(was.row)
			delete(r.row, x.node)
		}
	}
}

// begun is what the process before this one has begun of a request, 0 if nothing.
func (r *renames) begun(unique uint64) int32 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.row[unique&^(1<<63)].before
}

// inherit is a row of another process.
func (r *renames) inherit(row int, x tableRow) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.setLocked(x.node, renameRow{x.value, row})
}

func (r *renames) setLocked(unique uint64, x renameRow) {
	if r.row == nil {
		r.row = map[uint64]renameRow{}
	}
	r.row[unique] = x
}

// remade are directories that the kernel has removed, and still has nodes of: somebody has them open, or what was in them. The
// kernel takes a directory that is made again under that node id for the dead one, in which nothing can be made, unless it has another
// generation. It lies in the table, since the process that takes the mount over must not give another one.
type remade struct {
	mu  sync.Mutex // guards the rest
	row map[uint64]remadeRow
}

type remadeRow struct {
	generation int32
	row        int
}

// next gives a directory another generation, before it is removed. undo is for one that stays.
func (r *remade) next(t *table, id uint64) (undo func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	was, there := r.row[id]
	if r.row == nil {
		r.row = map[uint64]remadeRow{}
	}
	row := tableRow{id, removed, was.generation + 1}
	now := remadeRow{row.value, was.row}
	if there {
		t.write(was.row, row)
	} else {
		now.row = t.put(row)
	}
	r.row[id] = now
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if there {
			t.write(was.row, tableRow{id, removed, was.generation})
			r.row[id] = was
			return
		}
		t.clear(now.row)
		delete(r.row, id)
	}
}

// generation is that of a node.
func (r *remade) generation(id uint64) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return uint64(r.row[id].generation)
}

// inherit is a row of another process.
func (r *remade) inherit(row int, x tableRow) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.row == nil {
		r.row = map[uint64]remadeRow{}
	}
	r.row[x.node] = remadeRow{x.value, row}
}

// forget is for a node of which the kernel has nothing any more.
func (r *remade) forget(t *table, id uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if x, there := r.row[id]; there {
		t.clear(x.row)
		delete(r.row, id)
	}
}
