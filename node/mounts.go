package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache"
	"github.com/hearthfs/hearth/fuse"
	"github.com/hearthfs/hearth/fuse/keep"
	"github.com/hearthfs/hearth/fuse/point"
	"github.com/hearthfs/hearth/namespace"
	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/node/machine"
	"github.com/hearthfs/hearth/node/ring"
	"github.com/hearthfs/hearth/node/status"
	"github.com/hearthfs/hearth/node/watch"
)

// mounts holds the mounts that stand, and those that are being made.
type mounts struct {
	mu     sync.Mutex // guards the fields; never held while a mount is made or taken away
	byDir  map[string]*mounted
	left   map[*mounted]bool // mounts in use that are no longer at their Dir, which another mount may have
	away   map[string]bool   // where kept mounts were that were taken away while no node served
	closed bool
	idle   chan struct{}  // closed while byDir and left are both empty
	own    machine.Own    // what no mount may hide; never changed
	past   ring.SumsByDir // counts of mounts that are gone; those that stand have a row already
}

// mounted is one mount. Until it has a server, it is only a claim on its Dir.
type mounted struct {
	Mount
	link   *link
	writes map[string]bool // the names of the links that it changes, if it is writable; never changed once it stands
	id     string          // at the keeper
	kept   *fuse.Kept      // of a mount that is taken over, else nil
	keeps  atomic.Bool     // the keeper has it
	drains bool            // the next node would not be asked for what this one has taken; never changed once it stands
	server *fuse.Server    // nil until the mount stands
	gone   chan struct{}
	lost   chan struct{} // closed when another mount takes its Dir
}

func newMounts(own machine.Own) *mounts {
	m := &mounts{byDir: map[string]*mounted{}, left: map[*mounted]bool{}, idle: make(chan struct{}), own: own, past: ring.SumsByDir{}}
	close(m.idle)
	return m
}

// Mount makes a mount and returns once the mount answers.
func (n *Node) Mount(ctx context.Context, r admin.MountRequest) (*status.Mount, error) {
	return n.serve(ctx, r, nil)
}

// serve makes a mount, or takes over the one that is kept.
func (n *Node) serve(ctx context.Context, r admin.MountRequest, kept *keep.Mount) (*status.Mount, error) {
	var at *point.Point
	if r.At != nil {
		var err error
		if at, err = point.Of(r.At); err != nil {
			return nil, err
		}
		defer at.Close()
	}
	m := r.Mount
	if err := validateMount(m); err != nil {
		return nil, err
	}
	if _, err := r.Staging.Problem(); err != nil {
		return nil, usage("mount %s: %v", m.Dir, err)
	}
	m.Dir = filepath.Clean(m.Dir)
	x := &mounted{Mount: m, id: n.newMountID(), gone: make(chan struct{}), lost: make(chan struct{})}
	if kept != nil {
		x.id, x.kept, x.drains = kept.ID, kept.Kept, !kept.Kept.Resends()
		x.keeps.Store(true)
	}
	n.mounts.free(x.Dir)
	if err := n.mounts.claim(x); err != nil {
		return nil, err
	}
	if err := n.mount(ctx, x, r, at); err != nil {
		n.mounts.drop(x)
		return nil, err
	}
	n.events.Info("mounted", "dir", x.Dir, "prefix", x.Prefix, "link", x.link.Path)
	s := x.status()
	return &s, nil
}

// mount makes x. at holds x.Dir where the node may not walk to that directory, else it is nil.
func (n *Node) mount(ctx context.Context, x *mounted, r admin.MountRequest, at *point.Point) error {
	if x.kept != nil {
		return n.mountKept(ctx, x, r)
	}
	asked := r.Prefix
	if r.Origin != nil {
		l, rest, err := n.linkTo(ctx, r)
		if err != nil {
			return err
		}
		x.Prefix = l.Path + "/" + rest + "/" + x.Prefix
	}
	if x.Prefix = cleanPath(x.Prefix); r.Origin == nil {
		x.Prefix = n.links.within(x.Prefix)
	} else {
		asked = x.Prefix
	}
	var err error
	if x.link, err = n.links.forMount(x.Prefix); err != nil {
		return err
	}
	var of string
	if x.Mount, of, err = n.links.writes(x.Mount, x.link); err != nil {
		return err
	}
	if err := checkWrites(x.Mount, "mount "+x.Dir, of); err != nil {
		return err
	}
	if err := checkFreshness(x.Mount, x.link.freshness, x.link.Path); err != nil {
		return err
	}
	if how := r.Staging.Differs(x.link.Staging); how != "" {
		return &admin.Error{Kind: admin.KindRefused, Message: fmt.Sprintf("mount %s: %s, which its link %s has: leave it out, or change the link's in the configuration", x.Dir, how, x.link.Path)}
	}
	if err := n.mounts.checkPoint(x.Dir, at); err != nil {
		return err
	}
	root, err := n.tree.Root(ctx, x.Prefix)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &admin.Error{Kind: admin.KindNotFound, Message: "mount " + asked + ": no such directory in the tree (hearth ls shows what there is)"}
	case errors.Is(err, syscall.ENOTDIR):
		return usage("mount %s: it is a file: name the directory that it lies in", asked)
	case err != nil:
		return fmt.Errorf("mount %s: %w", x.Prefix, watch.Explained(err))
	}
	options, err := n.fuseOptions(x, root.ID)
	if err != nil {
		return err
	}
	options.At = at
	if n.config.Keeper != nil && n.disk != nil { // else nobody knows the node ids any more
		options.Keep = func(k *fuse.Kept) { n.keep(k, x) }
	}
	return n.stand(ctx, x, options)
}

// mountKept takes x over. Its prefix is a path in the tree, whose root needs no look-up.
func (n *Node) mountKept(ctx context.Context, x *mounted, r admin.MountRequest) (err error) {
	leads := func() bool {
		x.link, err = n.links.forMount(x.Prefix)
		return err == nil && x.link.Origin.URL == r.Origin.URL
	}
	if !leads() { // it was made at run time, or is gone
		if _, _, err := n.linkTo(ctx, r); err != nil {
			return err
		}
		if !leads() {
			return fmt.Errorf("%w: %s was %s", errNoLink, x.Prefix, r.Origin.URL)
		}
	}
	options, err := n.fuseOptions(x, x.kept.Root)
	if err != nil {
		return err
	}
	x.kept.Names = n.tree.Stats().LastID
	options.Kept = x.kept
	return n.stand(ctx, x, options)
}

// stand makes the mount, and follows it to its end.
func (n *Node) stand(ctx context.Context, x *mounted, options fuse.Options) error {
	if options.Kept != nil || options.Keep != nil {
		options.Teller = func() (*os.File, error) { return n.config.Keeper.Teller(x.id) }
	}
	machine.Processors(n.limits.Processors, true)
	server, err := fuse.Mount(ctx, options)
	if err != nil {
		return err
	}
	n.mounts.stand(x, server)
	// This goroutine ends with the mount, and closeAll ends every mount.
	go func() {
		server.Wait()
		n.events.Info("unmounted", "dir", x.Dir)
		n.toKeeper("forget the mount "+x.Dir, n.config.Keeper.Drop(x.id))
		n.mounts.drop(x)
	}()
	return nil
}

// linkTo returns the link that covers an origin, or makes a new one at a path made of the origin's URL.
//
// If several callers ask for the same new link at once, the first makes it, and the others then find it.
func (n *Node) linkTo(ctx context.Context, r admin.MountRequest) (*link, string, error) {
	done, err := n.links.turn(ctx, pathFor(r.Origin.URL))
	if err != nil {
		return nil, "", err
	}
	defer done()
	if l, rest := n.links.covering(*r.Origin); l != nil {
		return l, rest, nil
	}
	var away error
	added := Link{Path: pathFor(r.Origin.URL), Origin: *r.Origin, Freshness: r.Freshness, FailStale: r.FailStale, NoSeed: r.NoSeed, Staging: r.Staging}
	l, err := n.links.add(ctx, added, func(l *link) error {
		l.written, _ = r.Writes()
		away = n.probe(ctx, l)
		return n.goOn(ctx, l, away)
	})
	if err == nil {
		n.tellPassed(l)
		err = n.addToTree(l)
	}
	if err == nil && away != nil {
		n.tryAgain(l, away)
	}
	return l, "", err
}

// checkFreshness compares a mount's freshness, which stands for its link's, with the link's own.
func checkFreshness(m Mount, own namespace.Freshness, link string) error {
	if own.Mode == namespace.Strict && m.Open == string(fuse.None) {
		return usage("mount %s: open=none cannot be strict: the kernel would open files without asking", m.Dir)
	}
	if m.Freshness == "" {
		return nil
	}
	f, err := parseFreshness(m.Freshness)
	if err != nil {
		return err
	}
	if f != own {
		return &admin.Error{Kind: admin.KindRefused, Message: fmt.Sprintf("mount %s: freshness %s differs from %v, which its link %s has",
			m.Dir, m.Freshness, own, link)}
	}
	return nil
}

// checkPoint cleans up a dead mount point of ours, then checks that dir is a directory apart from what the node
// works with. A directory that at holds has nothing mounted on it.
func (m *mounts) checkPoint(dir string, at *point.Point) error {
	if at != nil {
		return hides(dir, m.own.HiddenAt(at.Dir()))
	}
	if err := fuse.Cleanup(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &admin.Error{Kind: admin.KindNotFound, Message: fmt.Sprintf("mount point %s does not exist (mkdir -p %s)", dir, dir)}
	case err != nil:
		return fmt.Errorf("mount point: %w", err)
	case !info.IsDir():
		return usage("mount point %s is no directory", dir)
	}
	return hides(dir, m.own.Hidden(dir))
}

// hides returns the error of a mount that would hide own. It is nil if own is empty.
func hides(dir, own string) error {
	if own == "" {
		return nil
	}
	return &admin.Error{Kind: admin.KindRefused, Message: fmt.Sprintf("mount point %s: the node works with %s, and would wait for its own mount there: choose a directory apart from it", dir, own)}
}

func openMode(s string) (fuse.Mode, error) {
	switch m := fuse.Mode(s); m {
	case "", fuse.Auto, fuse.None, fuse.Passthrough:
		return m, nil
	}
	return "", usage("open: %q is not one of auto, none, passthrough", s)
}

func (n *Node) fuseOptions(x *mounted, root uint64) (fuse.Options, error) {
	open, err := openMode(x.Open)
	if err != nil {
		return fuse.Options{}, err
	}
	o := fuse.Options{
		Dir: x.Dir, FSName: x.link.Origin.URL, Tree: n.tree.Tree, Root: root,
		Reads: n.tiers.Reads, Reader: cache.ReaderOptions{Has: n.has}, Held: n.heldBytes, Open: open,
		Large:    func(ctx context.Context) (bool, error) { return n.mostlyLarge(ctx, x) },
		Strict:   x.link.strict(),
		FileMode: x.FileMode, DirMode: x.DirMode,
		AllowOther: os.Geteuid() == 0, NoExec: slices.Contains(x.Options, "noexec"),
		Without: n.config.FuseWithout,
		Events: fuse.Events{Waits: n.seen.waits, Complaint: func(text string) {
			n.events.Trouble("fuse "+x.Dir, "FUSE library", "dir", x.Dir, "cause", text)
		}},
	}
	o.Events = n.small(x.Mount, o.Events)
	if n.ring != nil {
		o.Reader.Ahead = ringAhead
	}
	if n.disk != nil {
		o.Local = n.disk
	}
	if x.Write != "" {
		if o.Writing, err = n.writing(x); err != nil {
			return fuse.Options{}, err
		}
	}
	if x.AllowOther != nil {
		o.AllowOther = *x.AllowOther
	}
	if x.UID != nil {
		o.UID = *x.UID
	}
	if x.GID != nil {
		o.GID = *x.GID
	}
	return o, nil
}

// has reports whether a block is held on this node.
func (n *Node) has(id hearth.ID) bool { return n.mem.Has(id) || n.disk != nil && n.disk.Has(id) }

// heldBytes tells each how many bytes of an object each tier holds.
func (n *Node) heldBytes(o *hearth.Object, each func(tier string, bytes int64)) {
	for name, blocks := range n.held(o) {
		each(name, min(blocks*hearth.BlockSize, o.Size))
	}
}

// Unmount takes a mount away. It returns when the mount is gone, or is no longer seen in this mount namespace.
// lazy detaches the mount even if it is in use.
func (n *Node) Unmount(dir string, lazy bool) error {
	return n.mounts.unmount(filepath.Clean(dir), lazy)
}

// Mounts returns the mounts that stand, by directory.
func (n *Node) Mounts() []Mount {
	var all []Mount
	for _, x := range n.mounts.standing() {
		all = append(all, x.Mount)
	}
	return all
}

// Unmounted returns a channel that is closed once no mount is left.
func (n *Node) Unmounted() <-chan struct{} {
	n.mounts.mu.Lock()
	defer n.mounts.mu.Unlock()
	return n.mounts.idle
}

func (n *Node) waitUnmounted(ctx context.Context, dir string) error {
	x, err := n.mounts.find(filepath.Clean(dir))
	if err != nil {
		return err
	}
	select {
	case <-x.gone:
		return nil
	case <-x.lost:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// free gives up the claim on a directory whose mount is no longer there: the mount was moved, or it was
// detached, as by umount -l. Programs with open files there can go on.
func (m *mounts) free(dir string) {
	x, err := m.find(dir)
	if err != nil {
		return
	}
	if _, kept := x.server.Place(); kept {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.byDir[dir] == x {
		delete(m.byDir, dir)
		m.left[x] = true
		close(x.lost)
	}
}

// claim reserves a directory, so that two requests never mount on the same one.
func (m *mounts) claim(x *mounted) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed:
		return &admin.Error{Kind: admin.KindRefused, Message: "the node is ending"}
	case m.byDir[x.Dir] != nil:
		return &admin.Error{Kind: admin.KindRefused, Message: x.Dir + " is mounted already"}
	}
	if len(m.byDir)+len(m.left) == 0 {
		m.idle = make(chan struct{})
	}
	m.byDir[x.Dir] = x
	return nil
}

func (m *mounts) stand(x *mounted, s *fuse.Server) {
	m.mu.Lock()
	defer m.mu.Unlock()
	x.server = s
	m.past.Add(x.Dir, nil)
}

// drop forgets a mount that is gone or was never made.
func (m *mounts) drop(x *mounted) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if x.server != nil {
		ops := x.ops()
		ops["taken_back"] = ops["lent_files"] // a mount that is gone lends nothing
		m.past.Add(x.Dir, ops)
	}
	delete(m.left, x)
	if m.byDir[x.Dir] == x {
		delete(m.byDir, x.Dir)
	}
	close(x.gone)
	if len(m.byDir)+len(m.left) == 0 {
		close(m.idle)
	}
}

func (m *mounts) find(dir string) (*mounted, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	x := m.byDir[dir]
	if x == nil || x.server == nil {
		return nil, &admin.Error{Kind: admin.KindNotFound, Message: "this node has no mount at " + dir}
	}
	return x, nil
}

// standing returns the mounts that are at their directories, in order.
func (m *mounts) standing() []*mounted {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.standingLocked()
}

func (m *mounts) standingLocked() (all []*mounted) {
	for _, x := range m.byDir {
		if x.server != nil {
			all = append(all, x)
		}
	}
	slices.SortFunc(all, func(a, b *mounted) int { return compare(a.Dir, b.Dir) })
	return all
}

// served returns all mounts that somebody may use: those that stand, and those that are still in use although
// another mount has their directory.
func (m *mounts) served() []*mounted {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.AppendSeq(m.standingLocked(), maps.Keys(m.left))
}

func (m *mounts) unmount(dir string, lazy bool) error {
	x, err := m.find(dir)
	if err != nil {
		return err
	}
	switch at, kept := x.server.Place(); {
	case kept:
	case at != "":
		return &admin.Error{Kind: admin.KindNotFound, Message: "nothing is mounted at " + dir + " any more: the mount was moved to " + at}
	case lazy:
		return nil // it is detached
	default:
		return &admin.Error{Kind: admin.KindNotFound, Message: "nothing is mounted at " + dir + " any more: the mount was detached, and who uses it may finish"}
	}
	if err := x.server.Unmount(lazy); err != nil {
		return err
	}
	if lazy {
		return nil
	}
	late := time.NewTimer(closeGrace)
	defer late.Stop()
	select {
	case <-x.gone:
	case <-late.C: // another mount namespace still has it, or a request waits for the origin
	}
	return nil
}

// closeGrace is how long the last users of a detached mount may take before its connection is cut.
const closeGrace = 2 * time.Second

// closeAll allows no further mounts and takes all away, even those in use. busy is told of the mounts in use.
func (m *mounts) closeAll(busy func(dir string, cause error)) error {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	var errs []error
	for _, x := range m.served() {
		if err := x.server.Unmount(false); err != nil {
			busy(x.Dir, err)
			if err := x.server.Unmount(true); err != nil {
				errs = append(errs, err)
			}
		}
	}
	grace, cancel := context.WithTimeout(context.Background(), closeGrace) // for all mounts together
	defer cancel()
	for _, x := range m.served() {
		select {
		case <-x.gone:
			continue
		case <-grace.Done():
		}
		if x.server.Abort() { // else the end of the process does it
			<-x.gone
		}
	}
	return errors.Join(errs...)
}

// takenAway notes that a kept mount was taken away before this node could serve it.
func (m *mounts) takenAway(dir string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.away == nil {
		m.away = map[string]bool{}
	}
	m.away[dir] = true
}

func (m *mounts) wasTakenAway(dir string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.away[dir]
}
