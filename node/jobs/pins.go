package jobs

import (
	"cmp"
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

// This file keeps in the disk tier what is pinned.
//
// A pin is a path of the tree, kept in the namespace's database, and the set of the versions that its names
// mean. The disk tier does not evict these versions (warmup.Pins). A warm-up with PinS makes a pin. Its
// record is written before the job begins. When the job has ended, the pin's set replaces the job's own. If
// the job was refused, failed or was cancelled, the record is removed, unless the path was pinned before.
//
//	start    the known names below each pin are walked without asking an origin;
//	         before that is done, nothing is evicted and no job begins
//	change   of a name at or below a pin: after a second of quiet, ten at most, one
//	         warm-up loads what the changed names mean; then the sets of their pins
//	         are rebuilt, so that old versions leave them
//	end      at the time that was given, or by unpin: the record and the set are removed
//
// The same walk adds up what a pin needs on disk. Pins may lie below each other: then the sum of the outer
// one counts. A job refuses to load a set of names that does not fit beside what is pinned elsewhere.

// PinParts are the parts of a node that pins work with.
type PinParts struct {
	Tree *namespace.Tree
	// Sieves tells the disk tier what must stay. nil means that there is no such tier.
	Sieves *warmup.Pins
	// Disk and RAM are the tiers that evict empties. Disk is nil if there is no disk tier.
	Disk PinDisk
	RAM  PinRAM
	// Link returns the path in the tree of a link that an Object names. false means that the link is gone.
	Link func(name string) (path string, ok bool)
	// PathOf returns the path in the tree that a user's words mean, as far as the words tell it.
	PathOf func(asked string) string
	// Short returns the shortest name of a path of the tree.
	Short func(path string) string
	// Paths returns the paths in the tree of what exists by a user's words.
	Paths func(ctx context.Context, asked string) ([]string, error)
	// Load begins a warm-up of paths. Job finds a job.
	Load func(targets []string) (id string, err error)
	Job  func(id string) (warmup.Record, error)
	// Now is the wall clock, which decides when pins end.
	Now func() time.Time
	Log func(what string, err error)
}

// PinDisk is a disk tier.
type PinDisk interface {
	Has(id hearth.ID) bool
	Needs(o *hearth.Object) (dir int, bytes int64)
	// Drop evicts all of an object, even if it is pinned.
	Drop(o *hearth.Object)
	Flush(ctx context.Context) error
}

// PinRAM is a tier in memory.
type PinRAM interface {
	Has(id hearth.ID) bool
	Drop(id hearth.ID)
}

// Keeper keeps a node's pins. It is the warmup.Durable of the node's engine.
type Keeper struct {
	parts PinParts
	table *namespace.PinTable
	ready chan struct{}
	wake  chan struct{} // capacity 1: a token means that there is work
	turn  chan struct{} // capacity 1: a semaphore held during a walk for a set, so that the latest walk wins
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
	set    *warmup.Set // nil while the job that loads the pin has the set
	needs  []int64     // bytes in each cache directory
	partly string      // what the last job did not load; "" means that it loaded all
}

// OpenPins reads the pins. ready is closed once it is known what they hold, and at once if there are none. The
// Keeper does nothing before Start.
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

// run looks after the pins until Close.
func (k *Keeper) run() {
	for _, path := range k.paths() {
		k.rebuild(k.ctx, path)
	}
	select {
	case <-k.ready: // there was no pin
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

// lookEvery bounds how late a pin ends if the clock was moved.
const lookEvery = time.Minute

func (k *Keeper) wakeUp() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// settle handles the pins whose first job ended without the Keeper hearing of it.
func (k *Keeper) settle() {
	for _, pin := range k.unheard {
		switch r, err := k.parts.Job(pin.Job); {
		case errors.Is(err, fs.ErrNotExist): // the job's record is lost: load what is missing
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

// List returns all pins, by path.
func (k *Keeper) List() []namespace.PinView {
	all := []namespace.PinView{}
	for _, path := range k.paths() {
		k.mu.Lock()
		if h := k.held[path]; h != nil {
			v := h.PinView
			v.As = k.parts.Short(path)
			if v.Job != "" {
				v.Lacks = "" // the names may not be known yet
			}
			all = append(all, v)
		}
		k.mu.Unlock()
	}
	return all
}

// Begin implements warmup.Durable.
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
		if fresh[path] = h == nil; h != nil && !admin.MayEnd(r.UID, h.UID) { // the job would change the pin's end
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

// End implements warmup.Durable.
func (k *Keeper) End(r *warmup.Record) {
	if k.follows(r.ID) && (r.State == warmup.Done || r.State == warmup.Partly) {
		k.mu.Lock()
		k.news.lost = false // the job has listed what is pinned
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
			// A job that failed early is tried again.
			if whole && r.State == warmup.Done || r.State == warmup.Partly && k.follows(r.ID) {
				k.lack(v.Path, lacking(r))
			}
			k.rebuild(k.ctx, v.Path)
		}
	}
	k.loaded(r)
}

// lack notes what the last job of a pin says it did not load.
func (k *Keeper) lack(path, says string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if h := k.held[path]; h != nil {
		h.partly = says
	}
}

// lacking returns what a job says about the pins that it loaded for. It is empty if the job loaded all.
func lacking(r *warmup.Record) string {
	if r.State == warmup.Done {
		return ""
	}
	return fmt.Sprintf("the warm-up %s did not load all of it (hearth jobs %s says why); hearth pin does it again", r.ID, r.ID)
}

// inForce records durably that a pin no longer waits for its job.
func (k *Keeper) inForce(path string) {
	k.rebuild(k.ctx, path)
	k.mu.Lock()
	h := k.held[path]
	if h == nil || k.ctx.Err() != nil {
		k.mu.Unlock()
		return // settle does it at the next start
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

// expire ends the pins whose time has come, and returns the time until the next one's end.
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

// Unpin ends the pins of paths for a user. A path that is not pinned is an error that names the nearest pins. A
// pin that the user may not end is an error, too. After an error no pin has ended. as has the names by which paths
// were asked for.
func (k *Keeper) Unpin(paths []string, uid uint32, as map[string]string) error {
	all := map[string]namespace.Pin{}
	for _, v := range k.List() {
		all[v.Path] = v.Pin
	}
	for _, path := range paths {
		pin, is := all[path]
		if !is {
			return warmup.Unknown(cmp.Or(as[path], k.parts.Short(path)) + " is not pinned" + k.nearest(path))
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

// ofAnother is the error of a user who may not do something with a pin.
func ofAnother(pin *namespace.Pin, what string) error {
	return warmup.Refusal(fmt.Sprintf("%s is pinned by the user %d: only that user, root and the node's user may %s", pin.Path, pin.UID, what))
}

// endable returns the paths of the pins that a user may end.
func (k *Keeper) endable(uid uint32) (all []string) {
	for _, v := range k.List() {
		if admin.MayEnd(uid, v.UID) {
			all = append(all, v.Path)
		}
	}
	return all
}

// nearest names the pins that a user may have meant.
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
