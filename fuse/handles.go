package fuse

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"syscall"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/draft"
)

// handles are the open files of a writable mount. Each holds its node's draft, if there is one: a file that begins to be written
// is a draft for all who have it open. A handle is the number of a row in the table, so that the process that takes the mount
// over knows of it, and the number of the kernel's request, which tells the open from others that had that row: the kernel may ask a
// second time (FUSE_UNIQUE_RESEND) for a RELEASE when the row is another open's, and for an open that has its row.
type handles struct {
	drafts ours
	table  *table

	mu      sync.Mutex      // guards what follows, and keeps a draft from beginning between a look for it and its hold
	open    map[uint64]int  // how often, by node
	writers map[uint64]int  // how often for writing, by node
	appends map[uint64]bool // of those, the nodes that somebody has opened to append to
	drafted map[uint64]bool // nodes that are a draft's, or were one's, until the kernel forgets them; false: another process left none
}

// The value of a row says what a file is open for, and which open it is.
const (
	forReading = iota
	forWriting
	forAppending
	purposes // a mask
)

// handleOf is the handle of a row, and rowOf the other way round.
func handleOf(row int, x tableRow) uint64 {
	return uint64(uint32(x.value)/(purposes+1))<<32 | uint64(row+2)
}

func rowOf(handle uint64) int { return int(uint32(handle)) - 2 }

// purpose is what a file is opened for.
func purpose(flags uint32) int32 {
	switch {
	case !canWrite(flags):
		return forReading
	case flags&syscall.O_APPEND != 0:
		return forAppending
	}
	return forWriting
}

// begun is begin where another draft may have the name, that nobody has open: the node before was killed as it was published, and
// nobody knows yet that it is.
func (h *handles) begun(ctx context.Context, at draft.Name, id uint64, a draft.Attr, base *hearth.Object) (*draft.Draft, error) {
	d, err := h.begin(at, id, a, base)
	if !errors.Is(err, syscall.EEXIST) {
		return d, err
	}
	other, ok := h.drafts.Find(at)
	if !ok || other.Info().Users > 0 {
		return nil, err
	}
	if _, failed := other.PublishAt(ctx, at); failed != nil {
		return nil, errors.Join(err, failed)
	}
	return h.begin(at, id, a, base)
}

// begin makes a draft that all handles of its node hold: of base, if that is not nil, else of no bytes.
func (h *handles) begin(at draft.Name, id uint64, a draft.Attr, base *hearth.Object) (d *draft.Draft, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if begun, ok := h.drafts.ID(id); ok { // by another request
		if base == nil {
			err = begun.Truncate(0)
		}
		return begun, err
	}
	if base == nil {
		d, err = h.drafts.Create(at, id, a)
	} else {
		d, err = h.drafts.Change(base, id, a)
	}
	h.drafted[id] = true
	for n := h.open[id]; err == nil && n > 0; n-- {
		err = d.Hold()
	}
	if d != nil { // each of them is counted off again, even where err says that not all could hold it
		d.Writes(h.writers[id])
	}
	if err == nil && h.appends[id] {
		d.Append()
	}
	if err != nil {
		return nil, fmt.Errorf("write %s: %w", at.Key, err)
	}
	return d, nil
}

// add is an open more of a node, by a request of the kernel. It holds the draft d, if there is one. An error says that its draft
// has just gone.
func (h *handles) add(node uint64, flags uint32, unique uint64) (handle uint64, d *draft.Draft, err error) {
	x := tableRow{node, held, int32(uint32(unique>>1)*(purposes+1)) | purpose(flags)} // the lowest bit is not a request's
	if resent(unique) {
		if row := slices.Index(h.table.read(), x); row >= 0 { // the process before has counted it, and did not answer
			d, _ = h.drafts.ID(node)
			return handleOf(row, x), d, nil
		}
	}
	row := h.table.put(x) // before the answer
	if d, err = h.opened(x); err != nil {
		h.table.clear(row)
		return 0, nil, err
	}
	return handleOf(row, x), d, nil
}

// inherit is an open that another process has answered. It stands even where its draft is published and just going.
func (h *handles) inherit(x tableRow) {
	if _, err := h.opened(x); err != nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.drafted[x.node] = true
		h.countLocked(x)
	}
}

// opened is an open more, of which the kernel is told next.
func (h *handles) opened(x tableRow) (d *draft.Draft, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if d, _ = h.drafts.ID(x.node); d != nil {
		h.drafted[x.node] = true
		if err := d.Hold(); err != nil {
			return nil, err
		}
		if x.value&purposes != forReading {
			d.Writes(1)
		}
		if x.value&purposes == forAppending {
			d.Append()
		}
	}
	h.countLocked(x)
	return d, nil
}

func (h *handles) countLocked(x tableRow) {
	h.open[x.node]++
	if x.value&purposes != forReading {
		h.writers[x.node]++
	}
	if x.value&purposes == forAppending {
		h.appends[x.node] = true
	}
}

// wasDraft reports whether a node is a draft's, or was one's, and whether that is known of other processes, too.
func (h *handles) wasDraft(node uint64) (was, known bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	was, known = h.drafted[node]
	return was, known
}

// wasNone notes that a node was no draft's of another process.
func (h *handles) wasNone(node uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, known := h.drafted[node]; !known {
		h.drafted[node] = false
	}
}

// written reports whether somebody has a node open for writing.
func (h *handles) written(node uint64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.writers[node] > 0
}

// writing reports whether anybody has any node open for writing.
func (h *handles) writing() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.writers) > 0
}

// has reports whether a handle was not dropped yet.
func (h *handles) has(node, handle uint64) bool {
	x := h.table.row(rowOf(handle))
	return x.node == node && x.kind == held && handleOf(rowOf(handle), x) == handle
}

// forget releases the handles of a node that the kernel has none of any more: a process that was killed as it took a RELEASE
// left one. It does not where the node was looked up, and perhaps opened, again meanwhile.
func (h *handles) forget(node uint64, looked func(uint64) bool, release func(node, handle uint64, writes bool)) {
	h.mu.Lock()
	left := h.open[node]
	delete(h.drafted, node)
	h.mu.Unlock()
	if left == 0 {
		return
	}
	rows := h.table.read()
	if looked(node) { // in that order: an open of a row has its look-up before it
		return
	}
	for row, x := range rows {
		if x.node == node && x.kind == held {
			release(node, handleOf(row, x), x.value&purposes != forReading)
		}
	}
}

// drop is an open less. It returns the draft, if there is one.
func (h *handles) drop(node, handle uint64, writes bool) *draft.Draft {
	h.mu.Lock()
	if writes {
		if h.writers[node]--; h.writers[node] <= 0 {
			delete(h.writers, node)
			delete(h.appends, node)
		}
	}
	if h.open[node]--; h.open[node] <= 0 {
		delete(h.open, node)
	}
	d, _ := h.drafts.ID(node)
	h.mu.Unlock()
	if d != nil {
		if writes {
			d.Writes(-1)
		}
		d.Release()
	}
	h.table.clear(rowOf(handle))
	return d
}

// releaseAll releases what is open when the connection has ended: of that the kernel sends no RELEASE any more.
func (h *handles) releaseAll(release func(node, handle uint64, writes bool)) {
	h.mu.Lock()
	open, writers := maps.Clone(h.open), maps.Clone(h.writers)
	h.mu.Unlock()
	for node, n := range open {
		for ; n > 0; n-- { // readers first
			release(node, handleOf(-1, tableRow{}), n <= writers[node]) // its row goes with the table, which not every mount has
		}
	}
}
