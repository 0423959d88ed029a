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
	q := newQueue(1 << 10)
	b := hearthtest.NewObject("o", 2000, 0).Block(0)
	v := hearth.NewView(make([]byte, b.Len()))
	if err := q.push(item{block: b, view: v}); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	if err := q.push(item{block: b, view: v, keep: true, done: done}); err != nil { // though the queue is full
		t.Errorf("a Keep of what is queued: %v", err)
	}
	for _, keep := range []bool{true, false} {
		if err := q.push(item{block: b, view: v, keep: keep}); !errors.Is(err, errQueued) {
			t.Errorf("again: %v", err)
		}
	}
	batch := q.take(nil, 1<<20)
	if len(batch) != 1 || !batch[0].keep || batch[0].done != done {
		t.Fatalf("the writer gets %+v", batch)
	}
	if err := q.push(item{block: b, view: v, keep: true, done: done}); !errors.Is(err, errQueued) {
		t.Errorf("a Keep of what the writer has: %v", err)
	}
	q.drop(&batch[0])
	v.Release()
}
