package disk

import (
	"errors"
	"testing"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

func TestAKeepJoinsWhatAPutHasQueued(t *testing.T) {
	// A Keep of a queued block waits for that very block, which is then kept; what the
	// writer has taken cannot be joined any more.
	q := newWriteQueue(1 << 10)
	b := hearthtest.NewObject("o", 2000, 0).Block(0)
	v := hearth.NewView(make([]byte, b.Len()))
	if err := q.Push(queueItem{Block: b, View: v}); err != nil {
		t.Fatal(err)
	}
	if v := q.Get(b.ID(), 1500, 501); v != nil {
		t.Errorf("%d bytes behind byte 1500 of 2000", v.Len())
	}
	done := make(chan error, 1)
	if err := q.Push(queueItem{Block: b, View: v, Keep: true, Done: done}); err != nil { // though the queue is full
		t.Errorf("a Keep of what is queued: %v", err)
	}
	for _, keep := range []bool{true, false} {
		if err := q.Push(queueItem{Block: b, View: v, Keep: keep}); !errors.Is(err, errQueued) {
			t.Errorf("again: %v", err)
		}
	}
	batch := q.Take(nil, 1<<20)
	if len(batch) != 1 || !batch[0].Keep || batch[0].Done != done {
		t.Fatalf("the writer gets %+v", batch)
	}
	if err := q.Push(queueItem{Block: b, View: v, Keep: true, Done: done}); !errors.Is(err, errQueued) {
		t.Errorf("a Keep of what the writer has: %v", err)
	}
	q.Drop(&batch[0])
	v.Release()
}
