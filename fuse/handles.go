package fuse

import (
	"fmt"
	"sync"

	"github.com/hearthfs/hearth/draft"
)

// handles are the open files of a writable mount. Each holds its node's draft, if there is one: a file that begins to be written
// is a draft for all who have it open. A handle is the number of a row in the table, so that the process that takes the mount
// over knows of it.
type handles struct {
	drafts *draft.Store
	table  *table

	mu   sync.Mutex     // guards open, and keeps a draft from beginning between a look for it and its hold
	open map[uint64]int // how often, by node
}

// begin makes a draft that all handles of its node hold.
func (h *handles) begin(at draft.Name, id uint64, a draft.Attr) (*draft.Draft, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	d, err := h.drafts.Create(at, id, a)
	for n := h.open[id]; err == nil && n > 0; n-- {
		err = d.Hold()
	}
	if err != nil {
		return nil, fmt.Errorf("write %s: %w", at.Key, err)
	}
	return d, nil
}

// add is an open more of a node. An error says that its draft has just gone.
func (h *handles) add(node uint64) (handle uint64, err error) {
	row := h.table.put(tableRow{node, held, 0}) // before the answer
	if err := h.inherit(node); err != nil {
		h.table.clear(row)
		return 0, err
	}
	return uint64(row + 2), nil
}

// inherit is an open that another process has answered.
func (h *handles) inherit(node uint64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if d, ok := h.drafts.ID(node); ok {
		if err := d.Hold(); err != nil {
			return err
		}
	}
	h.open[node]++
	return nil
}

// has reports whether a handle was not dropped yet. Who cannot read the table takes it for one.
func (h *handles) has(node, handle uint64) bool {
	rows, err := h.table.read()
	row := int(handle) - 2
	return err != nil || row >= 0 && row < len(rows) && rows[row] == tableRow{node, held, 0}
}

// forget releases the handles of a node that the kernel has none of any more: a process that was killed as it took a RELEASE
// left one.
func (h *handles) forget(node uint64, release func(node, handle uint64)) {
	h.mu.Lock()
	left := h.open[node]
	h.mu.Unlock()
	if left == 0 {
		return
	}
	rows, err := h.table.read()
	if err != nil {
		return
	}
	for row, x := range rows {
		if x.node == node && x.kind == held {
			release(node, uint64(row+2))
		}
	}
}

// drop is an open less. It returns the draft, if there is one.
func (h *handles) drop(node, handle uint64) *draft.Draft {
	h.mu.Lock()
	if h.open[node]--; h.open[node] <= 0 {
		delete(h.open, node)
	}
	d, _ := h.drafts.ID(node)
	h.mu.Unlock()
	if d != nil {
		d.Release()
	}
	h.table.clear(int(handle) - 2)
	return d
}
