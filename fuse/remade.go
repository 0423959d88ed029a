package fuse

import "sync"

// renames are requests that rename a draft and, once that is done, delete the object that the draft hides under its old name. A
// process that goes on could take that object for the file that is to be renamed.
type renames struct {
	mu  sync.Mutex // guards the rest
	row map[uint64]int
}

// begin is called before the draft has its new name, and end once the request can be answered.
func (r *renames) begin(t *table, unique uint64) (end func()) {
	x := tableRow{unique &^ (1 << 63), hiding, 0}
	row := t.put(x)
	r.inherit(row, x)
	return func() {
		t.clear(row)
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.row, x.node)
	}
}

// begun reports whether a request that comes again had begun.
func (r *renames) begun(unique uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, there := r.row[unique&^(1<<63)]
	return there
}

// inherit is a row of another process.
func (r *renames) inherit(row int, x tableRow) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.row == nil {
		r.row = map[uint64]int{}
	}
	r.row[x.node] = row
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
