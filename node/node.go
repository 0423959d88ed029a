// Package node is one Hearth process: it makes all parts in dependency order, and ends them in the reverse
// order.
//
// New takes the RAM budget (by default a tenth of the memory). It opens the disk tier, the origins and the
// namespace, and stacks them into one Source by the expression in node/wiring. No other package knows what
// stands above or below it. The tiers count and report, and only this package logs and exports. Mounts come and
// go at run time. A mount of an origin that no link covers first makes a link for that origin, so that several
// mounts share one cache.
//
// Every background task belongs to one errgroup under one context, whose cause says why the node ends. Close
// first takes the mounts away, then ends the tasks, and last has the stores write what is queued.
package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache"
	"github.com/hearthfs/hearth/cache/disk"
	"github.com/hearthfs/hearth/fuse/point"
	"github.com/hearthfs/hearth/internal/flight"
	"github.com/hearthfs/hearth/internal/waits"
	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/node/fsck"
	"github.com/hearthfs/hearth/node/machine"
	"github.com/hearthfs/hearth/node/state"
	"github.com/hearthfs/hearth/node/status"
	"github.com/hearthfs/hearth/node/watch"
	"github.com/hearthfs/hearth/node/wiring"
	"github.com/hearthfs/hearth/origin"
	"github.com/hearthfs/hearth/s3gw"
	"github.com/hearthfs/hearth/volume"
	"github.com/hearthfs/hearth/warmup"
)

// errClosed is the cause of the context of a node that Close has ended.
var errClosed = errors.New("the node was closed")

// Node is one Hearth process.
type Node struct {
	config  Config
	started time.Time
	stalled atomic.Int64 // how long the mounts of the node before stood still, in ns
	// mountIDs counts mounts, for their names at the keeper.
	mountIDs atomic.Int64
	handing  sync.Once
	ending   atomic.Bool   // no other node follows
	handed   chan struct{} // closed when another version has this node's place
	limits   machine.Limits
	dirs     machine.Directories
	events   *troubleLog

	stores
	links  *links
	tiers  *wiring.Tiers
	ring   *around // nil if the node is in no ring
	owner  owner
	tree   names
	judged *state.OpenModes
	fronts
	jobs   warmUps
	drafts drafts
	doors  *admin.Doors
	seen   seen

	closed sync.Once
	group  *errgroup.Group
	cancel context.CancelCauseFunc
	ctx    context.Context // of the node's life; its cause says why the node ended
}

// fronts are the front ends, through which readers get at the cache.
type fronts struct {
	mounts *mounts
	s3     *s3gw.Endpoint // nil if the node answers no S3 clients
}

// stores are the tiers that hold blocks, and the memory budget that all share.
type stores struct {
	pool *hearth.Pool
	disk *disk.Store // nil if there is no disk tier
	// volumes may have none attached.
	volumes *volume.Set
	// volumeNews, of capacity 1, wakes who logs how they are.
	volumeNews chan struct{}
	places     places
	mem        *cache.RAM
}

// New makes a node: it takes the cache directories and the admin socket, probes each origin, and starts to
// answer. The caller then makes the mounts. ctx bounds only the making.
func New(ctx context.Context, c Config) (*Node, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	n := &Node{config: c, started: time.Now(), limits: machine.ReadLimits("/"), events: newTroubles(c.Log), jobs: warmUps{ready: make(chan struct{})}, handed: make(chan struct{})}
	life, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	n.cancel = cancel
	n.group, n.ctx = errgroup.WithContext(life)
	n.seen.waits, n.seen.reads = waits.New(), status.NewHistory(n.sample)
	if err := n.open(ctx); err != nil {
		if !n.config.Keeper.Has() { // else the next node may serve what this one has taken over: closing it would take it away
			_ = n.close() // err already says why it does not start
		}
		return nil, err
	}
	if n.disk != nil {
		n.group.Go(func() error {
			followReplaced(n.ctx, n.tree.Tree, n.disk)
			return nil
		})
	}
	n.serveAdmin()
	n.group.Go(func() error {
		n.seen.reads.Run(n.ctx)
		return nil
	})
	n.group.Go(func() error {
		n.seen.slowed.Run(n.ctx, n.answers)
		return nil
	})
	n.group.Go(func() error {
		n.tryFailing(n.ctx)
		return nil
	})
	ram := n.pool.Stats().Budget
	n.group.Go(func() error {
		machine.KeepGarbageSmall(n.ctx, ram)
		return nil
	})
	for _, warning := range n.warnings(ram) {
		n.events.Warn(warning)
	}
	return n, nil
}

// now returns the time by the wall clock.
func (n *Node) now() time.Time {
	if n.config.Clock == nil {
		return time.Now()
	}
	return n.config.Clock()
}

// open makes the parts in dependency order.
func (n *Node) open(ctx context.Context) (err error) {
	// The socket comes first: a second node learns there that another one runs, before it touches anything
	// else.
	if n.doors, err = openDoors(n.config.Admin.Socket); err != nil {
		return err
	}
	ram, err := n.takeBudgets()
	if err != nil {
		return err
	}
	machine.LimitHeap(ram, n.limits.Memory)
	machine.Processors(n.limits.Processors, !n.config.Ring.On() || n.config.S3.Listen != "")
	n.pool = hearth.NewPool(ram)
	n.makeVolumes()
	if err := n.openDisk(); err != nil {
		return err
	}
	if err := n.openRing(ctx); err != nil {
		return err
	}
	// Metrics come after the disk. A killed node that cannot end holds both, and the message of the disk names
	// it.
	metrics := cmp.Or(n.config.Admin.Listen, DefaultListen)
	if err := n.doors.ListenForMetrics(metrics, metrics != DefaultListen); err != nil {
		return err
	}
	n.mem = cache.NewRAM(n.pool, n.pool.Stats().Budget)
	n.links = &links{version: n.config.Version, configured: len(n.config.Links)}
	if n.disk != nil {
		n.links.node = n.disk.NodeID()
	}
	away := map[*link]error{} // origins whose probe failed; the tree decides whether their links go on
	probe := func(l *link) error {
		if cause := n.probe(ctx, l); cause != nil {
			away[l] = cause
		}
		return nil
	}
	for _, l := range n.config.Links {
		added, err := n.links.add(ctx, l, probe)
		if err != nil {
			return err
		}
		n.tellPassed(added)
	}
	bucket := origin.NewBucket(n.pool, n.links.origin)
	own := machine.NewOwn(n.dirs.Paths(), strings.TrimPrefix(n.Socket(), "-"), n.config.File)
	n.mounts, n.judged = newMounts(own), state.OpenOpenModes(n.dirs.First())
	w := n.config.Wiring
	if w.Volumes == nil {
		w.Volumes, w.All = watch.Volumes{Store: n.volumes, Waits: n.seen.waits}, n.config.Volumes.All
	}
	if n.ring != nil {
		w.Ring, w.Mine = n.ring, n.ring.Mine
	}
	if n.tiers, err = wiring.Wire(w, n.mem, store(n.disk), watch.Bucket{Source: bucket, Gone: n.gone, Weak: n.uncacheable, Heard: n.heard,
		Egress: &n.seen.egress, Waits: n.seen.waits}); err != nil {
		return err
	}
	if err := n.openTree(); err != nil {
		return err
	}
	for l, cause := range away {
		if err := n.goOn(ctx, l, cause); err != nil {
			return err
		}
		n.tryAgain(l, cause)
	}
	n.openOwners()
	n.openPrefetch()
	return n.begin(ctx)
}

// begin makes the node known to others, once it is complete.
func (n *Node) begin(ctx context.Context) error {
	if err := n.takeOver(ctx); err != nil { // first: their users wait
		return err
	}
	n.attendKeeper()
	if err := n.joinRing(ctx); err != nil { // before jobs go on: they load blocks at owners
		return err
	}
	if err := n.openVolumes(); err != nil { // after the ring, which says what this node answers for
		return err
	}
	if err := n.openJobs(); err != nil {
		return err
	}
	if err := n.openS3(ctx); err != nil {
		return err
	}
	return n.leftDrafts()
}

// takeBudgets works out the RAM budget, which it returns, and makes the cache directories with their budgets.
func (n *Node) takeBudgets() (ram int64, err error) {
	c := n.config.Cache
	ram, err = machine.RAM(c.RAM, n.limits)
	if err == nil && !c.NoDisk {
		n.dirs, err = machine.Make(c.Disks, c.FreeFloor, ram, n.limits)
	}
	if errors.Is(err, machine.ErrUnfit) {
		err = usage("%v", err)
	}
	return ram, err
}

// warnings returns what a person should know when the node starts.
func (n *Node) warnings(ram int64) (all []string) {
	all = append(all, n.doors.Warning, machine.Tight(ram, n.limits))
	for _, d := range n.dirs {
		all = append(all, d.Note)
	}
	for _, t := range n.tierStatus() {
		for _, d := range t.Dirs {
			all = append(all, d.Full)
		}
	}
	return slices.DeleteFunc(all, func(s string) bool { return s == "" })
}

// store returns the disk tier as the wiring needs it: nil, not a nil pointer in an interface.
func store(d *disk.Store) wiring.Disk {
	if d == nil {
		return nil
	}
	return d
}

func (n *Node) openDisk() error {
	if len(n.dirs) == 0 {
		return nil
	}
	n.jobs.pins = &warmup.Pins{Reserve: n.pool.Reserve, Unreserve: n.pool.Unreserve}
	pinned := func(id hearth.ID) bool { return n.jobs.pins.Has(id.Version) }
	o := disk.Options{Pool: n.pool, Pinned: pinned, Unknown: n.jobs.pinsUnknown, Events: disk.Events(n.events.OfDisk())}
	said := o.Events.Returned
	o.Events.Returned = func(path string) {
		said(path)
		n.draftsReturned(path)
	}
	o.Spill = n.volumes
	o.Scrub, o.ScrubEvery = n.config.Cache.Scrub, n.config.Cache.ScrubEvery
	if n.config.Ring.On() {
		o.Owns = n.owner.owns
	}
	for _, d := range n.dirs {
		o.Dirs = append(o.Dirs, disk.DirOptions{Path: d.Path, Budget: d.Budget, Floor: d.Floor})
	}
	var err error
	if n.disk, err = disk.Open(o); errors.Is(err, disk.ErrRefused) {
		return &admin.Error{Kind: admin.KindRefused, Message: err.Error(), Cause: err}
	}
	return err
}

// parts returns what fsck checks.
func (n *Node) parts() fsck.Node {
	p := fsck.Node{Names: n.tree.Records()}
	if n.disk != nil {
		p.Disk = n.disk
	}
	return p
}

// heard keeps the error of a failed fetch until the origin can be read again. ErrStale counts as an answer. A
// cancelled fetch says nothing, and neither does a fetch that began before the last answer.
func (n *Node) heard(b hearth.Block, began time.Time, err error) {
	l := n.links.named(b.Object.Link)
	switch {
	case l == nil || errors.Is(err, context.Canceled) || errors.Is(err, flight.ErrUnwanted):
	case err == nil || errors.Is(err, hearth.ErrStale):
		if l.health.Succeeded() {
			n.events.Info("origin answers again", "link", l.Path)
		}
	default:
		f := watch.FailureOf(b, err)
		l.health.Failed(*f, began)
		if f.Archived {
			n.events.Trouble("archived "+l.name, "object is archived", "link", l.Path, "key", b.Object.Key, "cause", f.Says)
			return
		}
		n.events.Trouble("read "+l.name, "origin cannot be read", "link", l.Path, "key", b.Object.Key, "cause", f.Says)
	}
}

// gone forgets a version that the origin no longer has.
func (n *Node) gone(o *hearth.Object) {
	if n.tree.Tree != nil {
		n.tree.Forget(o)
	}
}

// uncacheable counts and logs reads of objects without a strong ETag.
func (n *Node) uncacheable(o *hearth.Object) {
	n.seen.uncached.Add(1)
	n.events.Trouble("uncached "+o.Link, "object has no strong ETag: it is served, and never kept", "link", o.Link, "key", o.Key)
}

// Banner says in one line where the cache is, how large it may become at present, and how to change that.
func (n *Node) Banner() string {
	where := make([]string, 0, len(n.dirs))
	if n.disk != nil {
		for _, d := range n.disk.Stats().Dirs {
			where = append(where, roomOf(d).String())
		}
	}
	if len(where) == 0 {
		where = append(where, "no disk")
	}
	return fmt.Sprintf("cache: %s; RAM up to %s (change with --cache-disks PATH=SIZE and --cache-ram SIZE, or cache: in /etc/hearth/hearth.yaml)",
		strings.Join(where, ", "), machine.SizeText(n.pool.Stats().Budget))
}

// Socket returns the path at which the node answers commands, or "-" if there is none.
func (n *Node) Socket() string {
	if n.doors.Socket == nil {
		return "-"
	}
	return n.doors.Socket.Addr().String()
}

// Ready tells the service manager once the mounts answer, and from then on reports how the node is.
func (n *Node) Ready(ctx context.Context) error {
	n.group.Go(func() error { return machine.Watch(n.ctx, n.alive) })
	return machine.Ready(ctx, n.alive)
}

// alive reports whether the node's own API and each mount answer. The service manager is told the result.
func (n *Node) alive(ctx context.Context) (string, error) {
	c := n.Client()
	defer c.Close()
	s, err := c.Status(ctx)
	for _, x := range n.mounts.standing() { // not s.Mounts: JSON changes a path that is not UTF-8
		if _, kept := x.server.Place(); err == nil && kept { // else another file system answers there
			err = point.Answers(ctx, x.Dir)
		}
	}
	if err == nil {
		return s.Says, nil
	}
	n.events.Trouble("alive", "the node does not answer", "cause", err)
	return "", err
}

// Done returns a channel that is closed when the node ends, by itself or by Close.
func (n *Node) Done() <-chan struct{} { return n.ctx.Done() }

// Err returns why the node ended by itself. It is nil after Close.
func (n *Node) Err() error {
	if err := context.Cause(n.ctx); !errors.Is(err, errClosed) {
		return err
	}
	return nil
}

// Close takes the mounts away, even those in use. It then ends every task and writes what is queued. A second
// call does nothing.
func (n *Node) Close() (err error) {
	n.closed.Do(func() {
		if n.config.Keeper == nil || n.ending.Load() {
			machine.Stopping()
		}
		err = n.close()
		n.config.Keeper.Close() // at last: the keeper takes that for the end
	})
	return err
}

func (n *Node) close() error {
	var errs []error
	if n.mounts != nil {
		errs = append(errs, n.mounts.closeAll(func(dir string, cause error) {
			n.events.Warn("mount in use: detached; who uses it has "+closeGrace.String()+" to finish", "dir", dir, "cause", cause)
		}))
	}
	n.cancel(errClosed)
	n.jobs.close()
	if n.doors != nil {
		n.doors.Close()
	}
	if err := n.group.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		errs = append(errs, err)
	}
	if n.ring != nil {
		errs = append(errs, n.ring.leave(func(cause error) { n.events.Info("nobody may have heard that this node leaves", "cause", cause) }))
	}
	errs = append(errs, n.closeDrafts())
	if n.tiers != nil {
		n.tiers.Close()
	}
	if n.tree.Tree != nil {
		errs = append(errs, n.tree.close())
	}
	if n.links != nil {
		for _, l := range n.links.list() {
			l.close()
		}
	}
	if n.mem != nil {
		n.mem.Close()
	}
	if n.volumes != nil {
		defer n.volumes.Close() // after the disk, which gives it what it evicts
	}
	if n.disk != nil {
		if err := n.disk.Close(); err != nil { // the next node reads these blocks again; nothing else is lost
			n.events.Warn("not all that was queued for the cache is written", "cause", err)
		}
	}
	return errors.Join(errs...)
}

// Left returns what a closed node has not given back, one item each: see findLeaks.
func (n *Node) Left() []string {
	return findLeaks(func() int64 { return n.pool.Stats().Views }, n.dirs.Paths())
}
