package fuse

import "sync"

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
