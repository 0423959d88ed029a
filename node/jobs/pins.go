package jobs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/namespace"
	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/warmup"
)

// This file keeps what is pinned in the disk tier.
//
// A pin is a path of the tree, kept in the namespace's database, and the set of the
// versions that its names mean, which the tier does not give up (warmup.Pins). A warm-up
// with PinS makes it: the record is written before the job begins, and when the job has
// ended the set takes the place of the job's own; of one that was refused, failed or was
// cancelled the record goes again, unless the path was pinned before.
//
//	start    the names that are known below each pin are walked, no origin is asked;
//	         nothing is evicted, and no job begins, before that is done
//	change   of a name at or below a pin: after a second of quiet, ten at most, one
//	         warm-up loads what the changed names mean; then the sets of the pins that
//	         they belong to are made anew, so that old versions leave them
//	end      at the time that was given, or by unpin: the record and the set go
//
// What a pin needs on disk is summed up by the same walk. Pins may lie in each other:
// then the outer one's sum counts. A set of names that does not fit beside what is
// pinned elsewhere is refused by the job that would load it.

// PinParts are what of a node pins work with.
type PinParts struct {
	Tree *namespace.Tree
	// Sieves are asked by the disk tier what must stay; nil: there is no such tier.
	Sieves *warmup.Pins
	// Disk and RAM are the tiers that evict empties; Disk is nil where there is none.
	Disk PinDisk
	RAM  PinRAM
	// Link is the path in the tree of a link that an Object names; false: it is gone.
	Link func(name string) (path string, ok bool)
	// PathOf is the path in the tree that somebody's words mean, as far as they tell it.
	PathOf func(asked string) string
	// Short is the shortest path by which one of the tree may be named.
	Short func(path string) string
	// Paths are those in the tree of what there is by these words.
	Paths func(ctx context.Context, asked string) ([]string, error)
	// Load begins a warm-up of paths; Job finds one.
	Load func(targets []string) (id string, err error)
	Job  func(id string) (warmup.Record, error)
	// Now is the wall clock, by which pins end.
	Now func() time.Time
	Log func(what string, err error)
}

// PinDisk is a disk tier.
type PinDisk interface {
	Has(id hearth.ID) bool
	Needs(o *hearth.Object) (dir int, bytes int64)
	// Drop gives up all of an object, whatever is pinned.
	Drop(o *hearth.Object)
	Flush(ctx context.Context) error
}

// PinRAM is a tier in memory.
type PinRAM interface {
	Has(id hearth.ID) bool
	Drop(id hearth.ID)
}

// Keeper is a node's pins. It is the warmup.Durable of the node's engine.
type Keeper struct {
	parts PinParts
	table *namespace.PinTable
	ready chan struct{}
	wake  chan struct{} // capacity 1: there is something to do
	turn  chan struct{} // capacity 1: held by who walks for a set, so that the latest walk wins
	done  chan struct{} // closed when the keeper's goroutine has ended
	ctx   context.Context
	stop  context.CancelFunc
	// unheard are the pins whose first job was not over when the last process ended.
	unheard []namespace.Pin

	mu   sync.Mutex // guards the rest; never held across a walk or a write
	held map[string]*held
	news news
}

// held is a pin with what is known of it.
type held struct {
	namespace.PinView
	set    *warmup.Set // nil: the job that loads it has one
	needs  []int64     // of each cache directory
	partly string      // what the last job that did not load all says; "": it did
}

// OpenPins reads the pins; ready is closed once it is known what they hold, which is at
// once if there are none. Until Start nobody looks.
func OpenPins(p PinParts, ready chan struct{}) (*Keeper, error) {
	table, err := namespace.OpenPins(p.Tree.Records())
	if err != nil {
		return nil, err
	}
	k := &Keeper{parts: p, table: table, ready: ready, wake: make(chan struct{}, 1), turn: make(chan struct{}, 1), done: make(chan struct{}), held: map[string]*held{}}
	k.ctx, k.stop = context.WithCancel(context.Background())
	k.news.gen = p.Tree.Records().Generation()
	for _, pin := range table.All() {
		k.held[pin.Path] = &held{PinView: namespace.PinView{Pin: pin}}
		if pin.Job != "" {
			k.unheard = append(k.unheard, pin)
		}
	}
	if len(k.held) == 0 {
		close(ready)
	}
	return k, nil
}

// Start begins to look after the pins.
func (k *Keeper) Start() {
	cancel := k.parts.Tree.Subscribe(k.changed)
	go func() {
		defer close(k.done)
		defer cancel()
		k.run()
	}()
}

// Close ends what Start began.
func (k *Keeper) Close() {
	k.stop()
	<-k.done
}

// run looks after the pins until the end.
func (k *Keeper) run() {
	for _, path := range k.paths() {
		k.rebuild(k.ctx, path)
	}
	select {
	case <-k.ready: // there was none
	default:
		close(k.ready)
	}
	k.settle()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-k.ctx.Done():
			return
		case <-k.wake:
		case <-timer.C:
		}
		if err := k.table.Keep(); err != nil {
			k.parts.Log("pins are not written down", err)
		}
		timer.Reset(min(k.expire(), k.follow(), lookEvery))
	}
}

// lookEvery bounds what a clock that was moved can do to an end.
const lookEvery = time.Minute

func (k *Keeper) wakeUp() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// settle deals with the pins whose first job ended without our hearing of it.
func (k *Keeper) settle() {
	for _, pin := range k.unheard {
		switch r, err := k.parts.Job(pin.Job); {
		case errors.Is(err, fs.ErrNotExist): // its record is lost: what is missing is loaded
			k.inForce(pin.Path)
			k.touch(pin.Path)
		case err == nil && r.State.Over():
			k.End(&r)
		}
	}
}

// covers reports whether a path lies at or below a pin's.
func covers(pin, path string) bool {
	return pin == path || pin == "/" || strings.HasPrefix(path, pin+"/")
}

func (k *Keeper) paths() (all []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for path := range k.held {
		all = append(all, path)
	}
	slices.Sort(all)
	return all
}

// List is all pins, by path.
func (k *Keeper) List() []namespace.PinView {
	all := []namespace.PinView{}
	for _, path := range k.paths() {
		k.mu.Lock()
		if h := k.held[path]; h != nil {
			v := h.PinView
			v.As = k.parts.Short(path)
			if v.Job != "" {
				v.Lacks = "" // its names may not be known yet
			}
			all = append(all, v)
		}
		k.mu.Unlock()
	}
	return all
}

// Begin is warmup.Durable's.
func (k *Keeper) Begin(r *warmup.Record) error {
	made, err := k.begin(r)
	if err != nil {
		return err
	}
	for _, pin := range made {
		if err := k.table.Set(pin); err != nil {
			for _, pin := range made {
				if pin.Job != "" {
					k.drop(pin.Path)
				}
			}
			return err
		}
	}
	k.wakeUp()
	return nil
}

// begin notes the pins of a job, and returns them.
func (k *Keeper) begin(r *warmup.Record) (made []namespace.Pin, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	fresh := map[string]bool{}
	for _, path := range r.Targets {
		h := k.held[path]
		if fresh[path] = h == nil; h != nil && !admin.MayEnd(r.UID, h.UID) { // its end would be set anew
			return nil, ofAnother(&h.Pin, "pin it anew")
		}
	}
	maps.DeleteFunc(fresh, func(_ string, is bool) bool { return !is })
	if len(k.held)+len(fresh) > namespace.MaxPins {
		return nil, warmup.Refusal(fmt.Sprintf("%d paths are pinned, and %d is the most: unpin some, or pin a directory that these lie in", len(k.held), namespace.MaxPins))
	}
	for _, path := range r.Targets {
		h := k.held[path]
		if h == nil {
			h = &held{PinView: namespace.PinView{Pin: namespace.Pin{Path: path, Created: r.Created, Job: r.ID}}}
			k.held[path] = h
		}
		h.UID = r.UID
		if h.Expires = r.Expires(); h.Job != "" {
			h.Job = r.ID
		}
		made = append(made, h.Pin)
	}
	return made, nil
}

// End is warmup.Durable's.
func (k *Keeper) End(r *warmup.Record) {
	if k.follows(r.ID) && (r.State == warmup.Done || r.State == warmup.Partly) {
		k.mu.Lock()
		k.news.lost = false // it has listed them
		k.mu.Unlock()
	}
	for _, v := range k.List() {
		of, whole := false, false
		for _, t := range r.Targets {
			whole = whole || covers(k.path(t), v.Path)
			of = of || whole || covers(v.Path, k.path(t))
		}
		if !of || r.DryRun || r.MetadataOnly {
			continue
		}
		own := r.PinS != 0 && slices.Contains(r.Targets, v.Path)
		switch {
		case own && r.State == warmup.Done, own && r.State == warmup.Partly:
			k.lack(v.Path, lacking(r))
			k.inForce(v.Path)
		case v.Job == r.ID:
			k.drop(v.Path)
		case v.Job == "":
			// One that failed early is tried again.
			if whole && r.State == warmup.Done || r.State == warmup.Partly && k.follows(r.ID) {
				k.lack(v.Path, lacking(r))
			}
			k.rebuild(k.ctx, v.Path)
		}
	}
	k.loaded(r)
}

// lack notes what the last job of a pin says of what it did not load.
func (k *Keeper) lack(path, says string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if h := k.held[path]; h != nil {
		h.partly = says
	}
}

// lacking is what a job says of the pins that it loaded for.
func lacking(r *warmup.Record) string {
	if r.State == warmup.Done {
		return ""
	}
	return fmt.Sprintf("the warm-up %s did not load all of it (hearth jobs %s says why); hearth pin does it again", r.ID, r.ID)
}

// inForce makes last that a pin does not wait for its job any more.
func (k *Keeper) inForce(path string) {
	k.rebuild(k.ctx, path)
	k.mu.Lock()
	h := k.held[path]
	if h == nil || k.ctx.Err() != nil {
		k.mu.Unlock()
		return // the next start settles it
	}
	h.Job = ""
	pin := h.Pin
	k.mu.Unlock()
	if err := k.table.Set(pin); err != nil {
		k.parts.Log("a pin is not written down", err)
	}
}

// drop ends a pin.
func (k *Keeper) drop(path string) {
	k.mu.Lock()
	h := k.held[path]
	delete(k.held, path)
	k.mu.Unlock()
	if h == nil {
		return
	}
	if h.set != nil {
		h.set.Close()
	}
	if err := k.table.Delete(path); err != nil {
		k.parts.Log("a pin that has ended is still written down", err)
	}
}

// expire ends the pins whose time has come, and returns how long the next has.
func (k *Keeper) expire() time.Duration {
	left := lookEvery
	for _, v := range k.List() {
		if v.Expires == nil {
			continue
		}
		if d := v.Expires.Sub(k.parts.Now()); d > 0 {
			left = min(left, d)
		} else {
			k.drop(v.Path)
		}
	}
	return left
}

// Unpin ends the pins of paths for a user. Those that are none are an error, that names
// the nearest, and so are those that are not that user's to end; then none ends.
func (k *Keeper) Unpin(paths []string, uid uint32) error {
	all := map[string]namespace.Pin{}
	for _, v := range k.List() {
		all[v.Path] = v.Pin
	}
	for _, path := range paths {
		pin, is := all[path]
		if !is {
			return warmup.Unknown(k.parts.Short(path) + " is not pinned" + k.nearest(path))
		}
		if !admin.MayEnd(uid, pin.UID) {
			return ofAnother(&pin, "unpin it")
		}
	}
	for _, path := range paths {
		k.drop(path)
	}
	return nil
}

// ofAnother refuses what is not for who asks to do with a pin.
func ofAnother(pin *namespace.Pin, what string) error {
	return warmup.Refusal(fmt.Sprintf("%s is pinned by the user %d: only that user, root and the node's user may %s", pin.Path, pin.UID, what))
}

// endable are the paths of the pins that a user may end.
func (k *Keeper) endable(uid uint32) (all []string) {
	for _, v := range k.List() {
		if admin.MayEnd(uid, v.UID) {
			all = append(all, v.Path)
		}
	}
	return all
}

// nearest names the pins that somebody may have meant.
func (k *Keeper) nearest(path string) string {
	all := k.paths()
	if len(all) == 0 {
		return ": nothing is"
	}
	near := func(pin string) int {
		n := 0
		for n < len(pin) && n < len(path) && pin[n] == path[n] {
			n++
		}
		return n
	}
	slices.SortStableFunc(all, func(a, b string) int { return near(b) - near(a) })
	all = all[:min(3, len(all))]
	for i, pin := range all {
		all[i] = k.parts.Short(pin)
	}
	return "; the nearest: " + strings.Join(all, ", ")
}
