package volume

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/volume/nvmetcp"
)

// MaxVolumes is how many volumes a node attaches at most: each miss looks for the block in all of them.
const MaxVolumes = 16

var (
	errNone      = errors.New("no volume is attached: attach one by hearth volume attach, or name it in volumes: of the configuration")
	errDetached  = errors.New("it was detached")
	errSameTwice = fmt.Errorf("%w: the same volume is attached already, by another address", ErrInUse)
	// ErrAttaching is the reason why a volume is not attached before the first attempt has ended.
	ErrAttaching = errors.New("it is being attached")
)

// SetOptions say what a node does with its volumes.
type SetOptions struct {
	// Options are those of each volume. Changed is the Set's.
	Options
	// Who is asked at each attachment for Options.Cluster and Options.Node. nil means that Options has them.
	Who func() (cluster, node [16]byte, err error)
	// Copies is on how many volumes each block is written. 0 means 1.
	Copies int
	// Told is called when the state of an attachment changed. It must not block or call the Set. nil means that
	// nobody wants to know.
	Told func(*Attachment)
}

// Spec says which volume to attach.
type Spec struct {
	Address Address
	// SecretFile has this host's key for DH-HMAC-CHAP. It is read at each connection. "" means none.
	SecretFile string
	// Once ends the attachment if the first attempt fails: Tried has the reason, and Told is not called.
	Once bool
}

// Open opens the device, with the secret of SecretFile.
func (s Spec) Open(ctx context.Context, with Access) (Opened, error) {
	if s.SecretFile != "" {
		var err error
		if with.Secret, err = ReadSecret(s.SecretFile); err != nil {
			return nil, fmt.Errorf("volume %s: %w", s.Address, err)
		}
	}
	return s.Address.Open(ctx, with)
}

// Set is the volumes of a node. It is a hearth.Store. A block is written to the Copies volumes that rendezvous
// hashing names, weighted by their sizes, among those that take writes now. It is read from the fastest volume that
// has it. A volume that cannot be used is a miss, and is tried again.
type Set struct {
	o    SetOptions
	all  atomic.Pointer[[]*Attachment] // copied when it changes
	mu   sync.Mutex                    // held while all changes
	ends bool                          // of mu: Close was called
	news news                          // told whenever what Known asks may have changed
	// relearned counts calls of Relearn. A volume that is being attached meanwhile is not among all yet.
	relearned atomic.Int64
}

// Attachment is a volume that a node was told to attach.
type Attachment struct {
	Spec
	set    *Set
	volume atomic.Pointer[Volume] // nil until it is attached
	remote atomic.Pointer[nvmetcp.Namespace]
	why    atomic.Pointer[error] // why it is not attached yet
	pace   atomic.Int64          // mean time of a read, in ns, as if it had no bytes
	cancel context.CancelCauseFunc
	tried  chan struct{} // closed after the first attempt
	anew   chan struct{} // capacity 1: the target was reached anew, or has changed the namespace
	ended  chan struct{}
}

var _ hearth.Store = (*Set)(nil)

// NewSet makes a Set without volumes.
func NewSet(o SetOptions) *Set {
	if o.Copies <= 0 {
		o.Copies = 1
	}
	if o.Told == nil {
		o.Told = func(*Attachment) {}
	}
	s := &Set{o: o}
	s.o.Told = func(a *Attachment) {
		s.news.tell()
		o.Told(a)
	}
	s.all.Store(new([]*Attachment))
	return s
}

// Attach begins to attach a volume, and goes on trying until it is there. The errors are wrong use: too many volumes,
// or an address that is attached already.
func (s *Set) Attach(spec Spec) (*Attachment, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := *s.all.Load()
	switch {
	case s.ends:
		return nil, errClosed
	case len(all) == MaxVolumes:
		return nil, fmt.Errorf("attach volume %s: a node attaches %d at most", spec.Address, MaxVolumes)
	case slices.ContainsFunc(all, func(a *Attachment) bool { return a.Address.text == spec.Address.text }):
		return nil, fmt.Errorf("attach volume %s: it is attached already", spec.Address)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	a := &Attachment{Spec: spec, set: s, cancel: cancel, tried: make(chan struct{}), anew: make(chan struct{}, 1), ended: make(chan struct{})}
	all = append(slices.Clone(all), a)
	s.all.Store(&all)
	go a.run(ctx)
	return a, nil
}

// Find returns the attachment with that address, label, or beginning of the volume's id. nil means that there is
// none, or that the name fits several.
func (s *Set) Find(name string) (found *Attachment) {
	for _, a := range *s.all.Load() {
		if a.Address.text == name {
			return a
		}
		v := a.volume.Load()
		if v == nil || name == "" {
			continue
		}
		if info := v.Info(); info.Label == name || len(name) >= 4 && strings.HasPrefix(hex.EncodeToString(info.ID[:]), name) {
			if found != nil {
				return nil
			}
			found = a
		}
	}
	return found
}

// Detach writes what is queued for a volume, and lets go of it. Its content stays.
func (s *Set) Detach(a *Attachment) {
	s.mu.Lock()
	all := slices.DeleteFunc(slices.Clone(*s.all.Load()), func(x *Attachment) bool { return x == a })
	s.all.Store(&all)
	s.mu.Unlock()
	s.news.tell()
	a.cancel(errDetached)
	<-a.ended
}

// Close detaches all volumes.
func (s *Set) Close() {
	s.mu.Lock()
	s.ends = true
	s.mu.Unlock()
	var work sync.WaitGroup
	for _, a := range *s.all.Load() {
		work.Go(func() { s.Detach(a) })
	}
	work.Wait()
}

// run attaches the volume, as often as it takes, and ends with the attachment.
func (a *Attachment) run(ctx context.Context) {
	defer close(a.ended)
	tried := sync.OnceFunc(func() { close(a.tried) })
	defer tried()
	once := a.Once
	for wait := retryFirst; ; wait = min(2*wait, retryLast) {
		dev, v, err := a.attach(ctx)
		if err != nil {
			a.fails(err, !once)
		}
		tried()
		if err != nil && once {
			return
		}
		if err == nil {
			once, wait = false, retryFirst
			a.why.Store(nil)
			a.set.o.Told(a)
			gone := a.watch(ctx, v)
			if gone != nil { // before it is not attached
				a.why.Store(&gone)
			}
			a.volume.Store(nil)
			_ = v.Close() // its cause is told by State
			a.end(dev)
			if gone == nil {
				return
			}
			a.set.o.Told(a)
		}
		if hangs := (*attachError)(nil); errors.As(err, &hangs) { // each attempt would leave one more thread in the device
			select {
			case <-hangs.came:
			case <-ctx.Done():
				return
			}
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}

// watch looks whether the volume is still there each time its target was reached anew or has changed it. It returns
// why the volume is there no more: then its device is let go, so that somebody can format it, and what he makes is
// attached. nil means that ctx is done.
func (a *Attachment) watch(ctx context.Context, v *Volume) error {
	for {
		select {
		case <-a.anew:
			v.check(ctx)
			a.set.o.Told(a) // without a connection it was out of use, for Stats
		case <-v.gone:
			return fmt.Errorf("volume %s: %w", a.Address, v.why())
		case <-ctx.Done():
			return nil
		}
	}
}

// fails notes why the volume is not attached.
func (a *Attachment) fails(err error, tell bool) {
	if old := a.why.Swap(&err); tell && (old == nil || (*old).Error() != err.Error()) {
		a.set.o.Told(a)
	}
}

// Tried waits for the first attempt to attach, and returns why it failed.
func (a *Attachment) Tried(ctx context.Context) error {
	select {
	case <-a.tried:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if why := a.why.Load(); why != nil {
		return *why
	}
	return nil
}

// end closes the device. What was not flushed is lost, as after a crash. What hangs in a file ends on its own.
func (a *Attachment) end(dev Opened) {
	a.remote.Store(nil)
	_ = dev.Close()
}

// attach opens the device and attaches the volume on it.
func (a *Attachment) attach(ctx context.Context) (Opened, *Volume, error) {
	o := a.set.o.Options
	if a.set.o.Who != nil {
		var err error
		if o.Cluster, o.Node, err = a.set.o.Who(); err != nil {
			return nil, nil, err
		}
	}
	with := Access{HostID: o.Node}
	anew := func() {
		select {
		case a.anew <- struct{}{}:
		default:
		}
	}
	with.Events.Connected = func(string) { anew() }
	with.Events.Changed = func(int64, bool) { anew() }
	dev, err := a.Spec.Open(ctx, with)
	if err != nil {
		return nil, nil, err
	}
	if n, ok := dev.(Namespace); ok {
		a.remote.Store(n.Namespace)
	}
	o.Changed = func(State) { a.set.o.Told(a) }
	before := a.set.relearned.Load()
	v, err := Attach(dev, o)
	if err == nil && !a.claim(v) {
		err = errors.Join(errSameTwice, v.Close())
	}
	if err != nil {
		a.end(dev)
		return nil, nil, fmt.Errorf("volume %s: %w", a.Address, err)
	}
	if a.set.relearned.Load() != before {
		_ = v.Relearn(ctx) // it ends with the attachment
	}
	return dev, v, nil
}

// claim makes the volume the attachment's, unless another attachment has the same one.
func (a *Attachment) claim(v *Volume) bool {
	s := a.set
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range *s.all.Load() {
		if other := x.volume.Load(); other != nil && other.g.volume == v.g.volume {
			return false
		}
	}
	a.volume.Store(v)
	return true
}

// held appends the volumes that have a block, the fastest first.
func (s *Set) held(id hearth.ID, into []*Attachment) []*Attachment {
	for _, a := range *s.all.Load() {
		if v := a.volume.Load(); v != nil && v.Has(id) {
			into = append(into, a)
		}
	}
	for i := 1; i < len(into); i++ {
		for j := i; j > 0 && into[j].pace.Load() < into[j-1].pace.Load(); j-- {
			into[j], into[j-1] = into[j-1], into[j]
		}
	}
	return into
}

// Get reads a range of a block from the fastest volume that has it, else from the next. hearth.ErrMiss means that no
// volume has it, or that none can be asked now.
func (s *Set) Get(ctx context.Context, b hearth.Block, off, n int) (*hearth.View, error) {
	var room [MaxVolumes]*Attachment
	has := s.held(b.ID(), room[:0])
	for i, a := range has {
		v := a.volume.Load()
		if v == nil {
			continue
		}
		began := time.Now()
		view, err := v.Get(ctx, b, off, n)
		if err == nil {
			a.took(time.Since(began), n)
			for _, other := range has[i+1:] {
				other.pace.Add(-other.pace.Load() / forget)
			}
			return view, nil
		}
		a.took(max(time.Since(began), slow), n)
		if !errors.Is(err, hearth.ErrMiss) {
			return nil, err
		}
	}
	return nil, hearth.ErrMiss
}

const (
	// weigh is the weight of a read in the mean of those before: 1/8.
	weigh = 8
	// forget is by how much the mean of a volume falls at each read that goes to a faster one. So it is tried again,
	// after a few hundred reads if it is ten times as slow.
	forget = 128
	// slow is what a failed read counts for.
	slow = 100 * time.Millisecond
	// unit is how many bytes a read may have that takes twice as long as one without any.
	unit = 128 << 10
)

// took notes how long a read of n bytes took.
func (a *Attachment) took(d time.Duration, n int) {
	was := a.pace.Load()
	now := int64(d) * unit / int64(unit+n)
	a.pace.Store(was + (now-was)/weigh) // of two at once one may be lost
}

// Has reports whether a Get would find the block: a volume is known to hold it, or it waits to be written to one.
func (s *Set) Has(id hearth.ID) bool {
	for _, a := range *s.all.Load() {
		if v := a.volume.Load(); v != nil && v.Has(id) {
			return true
		}
	}
	return false
}

// At returns the address of the volume from which a block would be read, or "".
func (s *Set) At(id hearth.ID) string {
	var room [MaxVolumes]*Attachment
	if has := s.held(id, room[:0]); len(has) > 0 {
		return has[0].Address.text
	}
	return ""
}

// targets are the volumes on which a block belongs: those of the first ranks among those that take writes.
func (s *Set) targets(id hearth.ID, into []*Volume) []*Volume {
	var draws [MaxVolumes]float64
	for _, a := range *s.all.Load() {
		v := a.volume.Load()
		if v == nil || v.refuses(id) != nil {
			continue
		}
		d, at := v.draw(id), len(into)
		for at > 0 && d < draws[at-1] {
			at--
		}
		if at >= s.o.Copies {
			continue
		}
		if len(into) < s.o.Copies {
			into = append(into, nil)
		}
		copy(into[at+1:], into[at:])
		copy(draws[at+1:len(into)], draws[at:])
		into[at], draws[at] = v, d
	}
	return into
}

// draw is the volume's number for a block's extent; the least is the first rank. It is drawn from an exponential
// distribution whose rate is the volume's size (weighted rendezvous hashing).
func (v *Volume) draw(id hearth.ID) float64 {
	own := binary.LittleEndian.Uint64(v.g.volume[:8])
	h := hearth.ID{Version: id.Version, Index: int64(own ^ uint64(id.Extent()))}.Hash()
	return -math.Log((float64(h>>11)+0.5)/(1<<53)) / float64(v.g.size)
}

// each has do work on the block's volumes at once, and returns nil if one of them succeeded.
func (s *Set) each(id hearth.ID, do func(*Volume) error) error {
	var room [MaxVolumes]*Volume
	to := s.targets(id, room[:0])
	switch len(to) {
	case 0:
		return hearth.NotKept(s.refuses(id).Error())
	case 1:
		return do(to[0])
	}
	errs := make([]error, len(to))
	var work sync.WaitGroup
	for i, v := range to {
		work.Go(func() { errs[i] = do(v) })
	}
	work.Wait()
	if slices.Contains(errs, nil) {
		return nil
	}
	return errors.Join(errs...)
}

// refuses says why no volume takes a block.
func (s *Set) refuses(id hearth.ID) (err error) {
	err = errNone
	for _, a := range *s.all.Load() {
		if v := a.volume.Load(); v != nil {
			err = v.refuses(id)
		} else if why := a.why.Load(); why != nil {
			err = *why
		}
	}
	if err == nil {
		err = errNone // it takes it now
	}
	return err
}

// Takes reports whether Put would take the block now.
func (s *Set) Takes(b hearth.Block) bool { return s.Wants(b.ID()) }

// Wants is Takes for one who has only the name, as an eviction does.
func (s *Set) Wants(id hearth.ID) bool {
	var room [MaxVolumes]*Volume
	for _, v := range s.targets(id, room[:0]) {
		if v.Wants(id) {
			return true
		}
	}
	return false
}

// Put offers a whole block to its volumes. Those whose writes lag decline.
func (s *Set) Put(b hearth.Block, view *hearth.View) error { return s.Spill(b.ID(), view) }

// Spill is Put of a block of which only the name is known.
func (s *Set) Spill(id hearth.ID, view *hearth.View) error {
	var room [MaxVolumes]*Volume
	err := error(hearth.NotKept(errNone.Error()))
	for i, v := range s.targets(id, room[:0]) {
		if e := v.Spill(id, view); i == 0 || e == nil {
			err = e
		}
	}
	return err
}

// Keep is Put that waits, and returns once the block is written to one volume at least.
func (s *Set) Keep(ctx context.Context, b hearth.Block, view *hearth.View) error {
	return s.each(b.ID(), func(v *Volume) error { return v.Keep(ctx, b, view) })
}

// Flush returns once everything that was given before is on the devices for good. If some fail, the error is a
// hearth.Unflushed.
func (s *Set) Flush(ctx context.Context) error {
	all := *s.all.Load()
	errs := make([]error, len(all))
	var work errgroup.Group
	for i, a := range all {
		work.Go(func() error {
			if v := a.volume.Load(); v != nil {
				errs[i] = v.Flush(ctx)
			}
			return nil
		})
	}
	_ = work.Wait() // none fails
	var failed unflushed
	for i, a := range all {
		if v := a.volume.Load(); v != nil && errs[i] == nil {
			failed.well = append(failed.well, v)
		} else if v != nil {
			failed.error = errors.Join(failed.error, fmt.Errorf("flush volume %s: %w", a.Address, errs[i]))
			failed.bad = append(failed.bad, v)
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if failed.error != nil {
		return failed
	}
	return nil
}

// unflushed is the error of some volumes. A block that another volume holds as well is there.
type unflushed struct {
	error
	bad, well []*Volume
}

// Unwrap gives the errors of the volumes.
func (u unflushed) Unwrap() error { return u.error }

// Concerns implements hearth.Unflushed.
func (u unflushed) Concerns(id hearth.ID) bool {
	has := func(v *Volume) bool { return v.holds(id) }
	return slices.ContainsFunc(u.bad, has) && !slices.ContainsFunc(u.well, has)
}

// Relearn has each volume read its indexes again, since Mine or Owns have other answers now.
func (s *Set) Relearn(ctx context.Context) error {
	s.relearned.Add(1)
	var work errgroup.Group
	for _, a := range *s.all.Load() {
		if v := a.volume.Load(); v != nil {
			work.Go(func() error { return v.Relearn(ctx) })
		}
	}
	return work.Wait()
}

// AttachmentStats are an attachment's state and figures.
type AttachmentStats struct {
	Address string
	// Why says why the volume is not attached yet. nil means that it is, and that the rest is set.
	Why   error
	Info  Info
	State State
	Stats Stats
	// Remote has the figures of the connection; nil for files and block devices.
	Remote *nvmetcp.Stats
	// Pace is the mean time of a read, without its bytes.
	Pace time.Duration
}

// Stats returns the present state and figures.
func (a *Attachment) Stats() AttachmentStats {
	s := AttachmentStats{Address: a.Address.text, Pace: time.Duration(a.pace.Load())}
	if n := a.remote.Load(); n != nil {
		remote := n.Stats()
		s.Remote = &remote
	}
	v := a.volume.Load()
	if v == nil {
		s.Why = ErrAttaching
		if why := a.why.Load(); why != nil {
			s.Why = *why
		}
		return s
	}
	s.Info, s.State, s.Stats = v.Info(), v.State(), v.Stats()
	if s.State.Away == nil && s.Remote != nil && s.Remote.Down != nil { // nobody has read from it since
		s.State.Away = fmt.Errorf("there is no connection to its target: %w", s.Remote.Down)
	}
	return s
}

// All returns the attachments in the order in which they were attached.
func (s *Set) All() []*Attachment { return slices.Clone(*s.all.Load()) }
