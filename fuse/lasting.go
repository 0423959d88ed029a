package fuse

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hearthfs/hearth/draft"
)

// slowAfter is when a rename is told of, and how often it is looked at afterwards is lookEvery: each holds two directories.
const slowAfter, lookEvery = 2 * time.Second, time.Second

// lasting is a rename that may take long. It ends without progress: when drafts of either name are being sent, and no byte of them
// goes for as long as the link's origin may be silent. What the origin does without a byte (it joins parts, or copies) has bounds of
// the origin's own.
type lasting struct {
	f        *fileSystem
	from, to draft.Name
	patience time.Duration
	ctx      context.Context
	cancel   context.CancelCauseFunc
	timer    *time.Timer

	mu    sync.Mutex // guards the rest
	told  bool
	moved int64
	since time.Time // when moved was seen to change last
}

func (f *fileSystem) last(ctx context.Context, from, to draft.Name) *lasting {
	w := &lasting{f: f, from: from, to: to, since: time.Now()}
	if f.write.w.Patience != nil {
		w.patience = f.write.w.Patience(from.Link)
	}
	w.ctx, w.cancel = context.WithCancelCause(ctx)
	w.mu.Lock() // until the timer is there
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(slowAfter, w.look)
	return w
}

// errSilent says that a rename failed without progress.
var errSilent = errors.New("nothing is sent to the bucket: look at the network and the origin (hearth doctor), then rename again")

// look tells of the rename, once, and ends it without progress.
func (w *lasting) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ctx.Err() != nil {
		return
	}
	sending, moved, sent, size := w.progress()
	tell := w.f.write.w.Slow
	if !w.told && tell != nil {
		tell(w.from, w.to, sent, size, nil)
	}
	w.told = true
	now := time.Now()
	if !sending || moved != w.moved {
		w.moved, w.since = moved, now
	}
	if w.patience > 0 && now.Sub(w.since) >= w.patience {
		err := fmt.Errorf("for %v %w", w.patience, errSilent)
		if tell != nil {
			tell(w.from, w.to, sent, size, err)
		}
		w.cancel(err)
		return
	}
	w.timer.Reset(lookEvery)
}

// progress sums up the drafts of both names, and of all below them.
func (w *lasting) progress() (sending bool, moved, sent, size int64) {
	add := func(d *draft.Draft) bool {
		i := d.Info()
		sending = sending || i.Sending
		moved, sent, size = moved+i.Moved, sent+min(i.Sent, i.Size), size+i.Size
		return true
	}
	for _, at := range []draft.Name{w.from, w.to} {
		if d, ok := w.f.write.w.Drafts.Find(at); ok {
			add(d)
		}
		dir := asDir(at)
		w.f.write.w.Drafts.Below(dir.Link, dir.Key, add)
	}
	return sending, moved, sent, size
}

// end is called when the rename has ended so, and gives the error that it has.
func (w *lasting) end(err error) error {
	cause := context.Cause(w.ctx)
	w.cancel(nil)
	w.timer.Stop()
	w.mu.Lock() // until who looks has told: nothing is told of it later
	defer w.mu.Unlock()
	if err != nil && errors.Is(cause, errSilent) && !errors.Is(err, errSilent) {
		return errors.Join(cause, err)
	}
	return err
}
