package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/disk"
	"github.com/hearthfs/hearth/draft"
	"github.com/hearthfs/hearth/fuse"
	"github.com/hearthfs/hearth/namespace"
	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/node/config"
	"github.com/hearthfs/hearth/origin"
)

// drafts are the files that writable mounts write. They are opened with the first such mount, or at the start if an earlier node
// left some.
type drafts struct {
	mu    sync.Mutex                  // held while the store is opened
	store atomic.Pointer[draft.Store] // nil means that there is none yet

	told    sync.Mutex      // guards what is told of drafts; never held across I/O
	kept    map[string]kept // those for which a publish failed, by File
	dropped map[string]bool // files that were set aside and dropped since the start
	behind  map[string]int  // tasks that publish a draft behind, by File
	running *look           // under way; nil means none
	seen    []draft.Info    // by the last look

	published, failures atomic.Int64

	seeds atomic.Pointer[seeding] // nil means that nothing was published yet
}

// openDrafts opens the drafts on the cache disks.
func (n *Node) openDrafts() (*draft.Store, error) {
	n.drafts.mu.Lock()
	defer n.drafts.mu.Unlock()
	if s := n.drafts.store.Load(); s != nil {
		return s, nil
	}
	if n.disk == nil {
		return nil, &admin.Error{Kind: admin.KindRefused, Message: "a writable mount needs a cache disk, where what is written lies until the bucket has it: give one with --cache-disks"}
	}
	if err := n.disk.MarkDrafts(); err != nil {
		return nil, err
	}
	dirs := n.disk.DraftDirs()
	s, err := draft.Open(draft.Options{Dirs: dirs, Uploader: n.publisher, Base: n.readBase, Room: n.room, Published: n.published, Staged: n.stagedAs, New: n.frozen, Conflict: n.conflictName, Conflicted: n.conflicted,
		Log: func(line string) { n.events.Warn("drafts", "cause", line) }, Now: n.config.Clock})
	if err != nil {
		return nil, &admin.Error{Kind: admin.KindRefused, Message: err.Error(), Cause: err}
	}
	n.drafts.store.Store(s)
	n.tree.Outlast() // so the next node knows the name of a file that was closed just before a kill
	n.openSeeding()
	n.group.Go(func() error {
		n.tendDrafts(s)
		return nil
	})
	return s, nil
}

// uploader is the origin of a link.
func (n *Node) uploader(link string) (hearth.Uploader, error) {
	l := n.links.named(link)
	if l == nil {
		return nil, fmt.Errorf("no link is named %s any more: configure it again, or drop its drafts", link)
	}
	up, ok := l.origin.(hearth.Uploader)
	if !ok {
		return nil, fmt.Errorf("%s cannot be written: only buckets can", l.Origin.URL)
	}
	return up, nil
}

// publisher is the origin of a link, for drafts.
func (n *Node) publisher(link string) (hearth.Uploader, error) {
	up, err := n.uploader(link)
	if err != nil {
		return nil, err
	}
	return counting{up, n}, nil
}

// writing is what a writable mount needs.
func (n *Node) writing(x *mounted) (*fuse.Writing, error) {
	x.writes = n.links.written(x)
	for link := range x.writes {
		if _, err := n.uploader(link); err != nil {
			return nil, usage("mount %s: %v", x.Dir, err)
		}
		for _, other := range n.mounts.served() {
			if other != x && other.writes[link] {
				return nil, &admin.Error{Kind: admin.KindRefused, Message: fmt.Sprintf("mount %s: %s is a writable mount of the same origin: a node has one, and read-only ones (ro) beside it", x.Dir, other.Dir)}
			}
		}
	}
	store, err := n.openDrafts()
	if err != nil {
		return nil, err
	}
	uploader := func(link string) (hearth.Uploader, error) {
		if !x.writes[link] {
			return nil, syscall.EROFS
		}
		return n.uploader(link)
	}
	syncs := func(link string) bool {
		l := n.links.named(link)
		return x.Fsync == config.FsyncBucket || x.Fsync == "" && l != nil && l.Fsync == config.FsyncBucket
	}
	return &fuse.Writing{Drafts: store, Writes: func(link string) bool { return x.writes[link] }, Keys: n.tree.Tree, Uploader: uploader, Wrote: n.wrote, Doubted: n.doubted, Publish: n.publishBehind, Kept: n.keptHere, Staged: n.staged,
		Frozen: n.frozen, Patience: n.patience, Slow: n.slowRename, SyncToBucket: syncs}, nil
}

// conflictName is the name under which a draft is kept when another object has its own: NAME.conflict-NODE-TIME, of which NAME is
// cut where a name in a mount, or a key, would be too long. Where not even that helps it is the name that it has.
func (n *Node) conflictName(name draft.Name) draft.Name {
	dir, last := path.Split(name.Key)
	tag := ".conflict-" + n.ownName() + "-" + n.now().UTC().Format("20060102T150405Z")
	const more = "-999" // that the drafts may add
	for {
		if _, err := namespace.KeyIn(dir, namespace.MountName(last+tag+more)); err == nil {
			return draft.Name{Link: name.Link, Key: dir + last + tag}
		}
		if last == "" {
			return name
		}
		_, size := utf8.DecodeLastRuneInString(last)
		last = last[:len(last)-size]
	}
}

// ownName is this node's name in its ring, else the host's. Only what is plain in a file's name is left of it.
func (n *Node) ownName() string {
	name := n.config.Ring.Name
	if name == "" {
		name, _ = os.Hostname() // else "node" below
	}
	name = strings.Map(func(c rune) rune {
		if c < 0x80 && (c == '-' || c == '.' || c == '_' || '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z') {
			return c
		}
		return '_'
	}, name)
	return cmp.Or(name[:min(len(name), 63)], "node")
}

// conflicted tells of a draft whose name another object has: that is shown under it at once.
func (n *Node) conflicted(d *draft.Draft, was draft.Info, err error) {
	i := d.Info()
	if err != nil {
		n.keptFrom(&was, &i, err)
		n.events.Error("somebody else has written the object of a file that was written here: what was written is kept beside it",
			"link", was.Link, "key", was.Key, "kept", i.Key, "file", i.File, "cause", n.cured(&i, err))
	}
	n.uncover(n.ctx, &was)
	n.doubted(n.ctx, was.Link, was.Key)
	n.tree.Touch(was.Link, was.Key)
	ctx, cancel := context.WithTimeout(n.ctx, settling)
	defer cancel()
	n.settle(ctx)
}

// patience is how long an origin may be silent.
func (n *Node) patience(link string) time.Duration {
	if l := n.links.named(link); l != nil {
		return cmp.Or(l.Origin.Timeout, origin.DefaultTimeout)
	}
	return 0
}

// slowRename tells of a rename that waits for the bucket.
func (n *Node) slowRename(from, to draft.Name, sent, size int64, err error) {
	if err != nil {
		n.events.Error("a rename has failed: what was written is kept here", "link", from.Link, "key", from.Key, "to", to.Key, "sent", sent, "bytes", size, "cause", err)
		return
	}
	n.events.Warn("a rename waits for the bucket, and both directories with it", "link", from.Link, "key", from.Key, "to", to.Key, "sent", sent, "bytes", size)
}

// readBase reads what a draft has of the object that it changes.
func (n *Node) readBase(ctx context.Context, o *hearth.Object, p []byte, off int64) error {
	for len(p) > 0 {
		in := int(off % hearth.BlockSize)
		v, err := n.tiers.Reads.Get(ctx, o.Block(off/hearth.BlockSize), in, min(len(p), hearth.BlockSize-in))
		if err != nil {
			return err
		}
		copied := copy(p, v.Bytes())
		v.Release()
		p, off = p[copied:], off+int64(copied)
	}
	return nil
}

// knowing bounds how long names may be asked for that come or go with what was written.
const knowing = 10 * time.Second

// published tells all who know names that a draft is an object.
func (n *Node) published(d *draft.Draft, o hearth.Object) {
	i := d.Info()
	n.drafts.published.Add(1)
	n.drafts.told.Lock()
	delete(n.drafts.kept, i.File)
	n.drafts.told.Unlock()
	id := i.ID
	if i.IsDir() {
		id = 0 // the tree has an id of its own for each directory
	}
	n.tell(n.ctx, i.Link, i.Key, func(ctx context.Context) { n.tree.Wrote(ctx, i.Link, i.Key, &o, id) })
	if l := n.links.named(i.Link); l != nil {
		if says := l.unheeded(); says != "" {
			l.ignores.Do(func() { n.events.Warn(says) })
		}
	}
	for kept := (draft.Attr{}); kept != d.Info().Attr; { // somebody may set it just now
		i = d.Info()
		kept = i.Attr
		n.keepAttr(n.ctx, &i)
	}
	n.seed(d, &o)
	ctx, cancel := context.WithTimeout(n.ctx, settling)
	defer cancel()
	n.settle(ctx)
}

// keepAttr keeps what was set of a draft, which goes. What cannot be kept is as for every file of the bucket.
func (n *Node) keepAttr(ctx context.Context, i *draft.Info) {
	id, a := i.ID, namespace.Attr{Mode: i.Attr.Mode & 0o7777, UID: i.Attr.UID, GID: i.Attr.GID, ModTime: i.Attr.ModTime, ATime: i.Attr.ATime}
	if i.IsDir() {
		dir, err := n.tree.Prefix(ctx, i.Link, i.Key)
		if err != nil {
			return
		}
		id, a.ModTime, a.ATime = dir.ID, time.Time{}, time.Time{}
	}
	if err := n.tree.SetAttr(id, a); err != nil {
		n.events.Debug("what was set of a file is not kept", "key", i.Key, "error", err)
	}
}

// settling bounds how long close(2) waits until the kernels of all mounts know. Somebody may hold a directory's lock.
const settling = 200 * time.Millisecond

// wrote does so for a key that was written otherwise. The kernel holds the directory's lock meanwhile, and hears of it later: it
// knows what it asked for.
func (n *Node) wrote(ctx context.Context, link, key string, o *hearth.Object, id uint64) {
	n.tell(context.WithoutCancel(ctx), link, key, func(ctx context.Context) { n.tree.Wrote(ctx, link, key, o, id) })
}

// doubted has names asked for again.
func (n *Node) doubted(ctx context.Context, link, key string) {
	n.tell(context.WithoutCancel(ctx), link, key, func(ctx context.Context) { n.tree.Written(ctx, link, key) })
}

// tell tells the tree, also of other links to the bucket.
func (n *Node) tell(ctx context.Context, link, key string, tell func(context.Context)) {
	ctx, cancel := context.WithTimeout(ctx, knowing)
	defer cancel()
	tell(ctx)
	if l := n.links.named(link); l != nil {
		for _, other := range n.links.list() {
			if other != l && sameBucket(other, l) {
				n.tree.Written(ctx, other.name, key)
			}
		}
	}
}

func sameBucket(a, b *link) bool {
	x, ok := a.origin.(*origin.S3)
	y, ok2 := b.origin.(*origin.S3)
	return ok && ok2 && x.Bucket() == y.Bucket() && x.Account() == y.Account()
}

const (
	// publishEvery is the least and publishLate the longest pause before a draft that the origin did not take is tried again.
	publishEvery, publishLate = time.Second, time.Minute
)

// publishBehind publishes a draft that nobody has open. It tries until the bucket has it, somebody writes it again, or it is
// refused. before is what d was when its name was found to be none that stays here: it may have another one by now, and who gave it that sees
// to it.
func (n *Node) publishBehind(d *draft.Draft, before draft.Info) {
	n.drafts.behindOf(before.File, 1)
	n.group.Go(func() error {
		defer n.drafts.behindOf(before.File, -1)
		for pause, first := publishEvery, true; ; pause, first = min(2*pause, publishLate), false {
			i := d.Info()
			switch {
			case first || i.Writers <= 0:
				_, err := d.PublishAt(n.ctx, before.Name)
				i = d.Info()
				switch {
				case errors.Is(err, draft.ErrRenamed): // who renamed it sees to it
					return nil
				case err == nil || n.ctx.Err() != nil || i.Removed:
					return nil
				}
				n.keptHere(d, before, err)
				if i.State == draft.Failed || i.Writers > 0 && n.isLog(&i) { // which publishOpen tries again
					return nil
				}
			case i.Removed || !i.Dirty || n.isLog(&i):
				return nil
			} // else it would be there by half: its close publishes it, or this once that has failed
			select {
			case <-time.After(pause):
			case <-n.ctx.Done():
				return nil
			}
		}
	})
}

// keptHere tells of a draft that could not be published, which was so before.
func (n *Node) keptHere(d *draft.Draft, before draft.Info, err error) {
	i := d.Info()
	if i.Conflict && !before.Conflict || n.ctx.Err() != nil { // it was told of; or the next start goes on
		return
	}
	news := n.keptFrom(&before, &i, err)
	if i.State == draft.Failed {
		if !news { // at the close, before the last one
			return
		}
		n.events.Error("a file that was written is not in the bucket: it is kept here", "link", i.Link, "key", i.Key, "file", i.File, "cause", n.cured(&i, err))
		return
	}
	n.events.Trouble("draft "+i.Link+" "+i.Key, "a file that was written is not in the bucket yet", "key", i.Key, "cause", err)
}

// leftDrafts goes on with what an earlier node left: what nobody has open is published.
func (n *Node) leftDrafts() error {
	if n.disk == nil || !slices.ContainsFunc(n.disk.DraftDirs(), draft.Exists) {
		return nil
	}
	s, err := n.openDrafts()
	if err != nil {
		return err
	}
	s.Unheld() // the mounts have taken over what is open
	awaited := map[string]bool{}
	for _, i := range s.All() {
		if n.links.named(i.Link) == nil && !awaited[i.Link] {
			awaited[i.Link] = true
			n.group.Go(func() error { n.awaitLink(s, i.Link); return nil })
		}
	}
	n.leftOf(s, func(link string) bool { return !awaited[link] })
	return nil
}

// draftsReturned tells of drafts in a cache directory that was out of use when the node started, and is in use again.
func (n *Node) draftsReturned(dir string) {
	dir = filepath.Join(dir, disk.DraftsDir)
	if s := n.drafts.store.Load(); !draft.Exists(dir) || s != nil && s.Has(dir) {
		return
	}
	n.events.Error("files that were written lie in a cache directory that was out of use when this node started: restart it (systemctl restart hearth), and they are published", "dir", dir)
}

// awaitLink publishes what an earlier node left of a link that is not there: that of a mount which is made anew comes some time after
// the start. Nobody can say before whether a name is temporary.
func (n *Node) awaitLink(s *draft.Store, link string) {
	for told := false; n.links.named(link) == nil; told = true {
		for _, i := range s.All() {
			d, ok := s.ID(i.ID)
			if !ok || told || i.Link != link || !i.Dirty || i.Removed || i.Users > 0 {
				continue
			}
			_, err := n.uploader(link)
			if i.State != draft.Staged {
				_, err = d.Publish(n.ctx) // that it waits is noted
			}
			if err == nil {
				continue // the link has just come
			}
			after := d.Info()
			n.keptFrom(&i, &after, err)
			n.events.Trouble("draft "+i.Link+" "+i.Key, "a file that was written is not in the bucket yet", "key", i.Key, "cause", err)
		}
		select {
		case <-time.After(publishEvery):
		case <-n.ctx.Done():
			return
		}
	}
	n.leftOf(s, func(of string) bool { return of == link })
}

// leftOf publishes what an earlier node left of some links, but for what has a temporary name.
func (n *Node) leftOf(s *draft.Store, links func(string) bool) {
	dirs := map[draft.Name]bool{}
	for _, i := range s.All() { // a directory before what is below it
		d, ok := s.ID(i.ID)
		switch {
		case !ok || !links(i.Link) || !i.Dirty || i.Removed || n.within(i.Name, dirs) != nil:
		case n.staged(i.Name):
			n.drafts.told.Lock()
			delete(n.drafts.kept, i.File)
			n.drafts.told.Unlock()
			if i.Users == 0 && i.State == draft.Waiting {
				if err := d.Stage(); err != nil {
					n.events.Warn("drafts", "cause", err)
				}
			}
		case i.IsDir(): // the end of the node broke its rename off
			dirs[i.Name] = true
			n.publishDir(s, i.Name)
		case i.Users == 0: // else its last close does: a file that is opened to be read and made has no writer
			n.publishBehind(d, i)
		}
	}
}

// within is the uppermost of some directories that a name lies in. nil means that it lies in none.
func (n *Node) within(name draft.Name, dirs map[draft.Name]bool) *draft.Name {
	for at, c := range name.Key {
		if dir := (draft.Name{Link: name.Link, Key: name.Key[:at+1]}); c == '/' && dirs[dir] {
			return &dir
		}
	}
	return nil
}

func (n *Node) draftsBelow(name draft.Name) (count int) {
	n.drafts.store.Load().Below(name.Link, name.Key, func(*draft.Draft) bool { count++; return true })
	return count
}

// publishDir publishes the draft of a directory and all below it behind, the file that was written last at the end. What has a
// temporary name of its own stays, unless the directory has one, too.
func (n *Node) publishDir(s *draft.Store, name draft.Name) {
	d, ok := s.Find(name)
	if !ok {
		return
	}
	file, all := d.Info().File, n.staged(name)
	n.drafts.behindOf(file, 1)
	n.group.Go(func() error {
		defer n.drafts.behindOf(file, -1)
		for pause := publishEvery; ; pause = min(2*pause, publishLate) {
			err := s.RenameDir(n.ctx, name, name, func(i draft.Info) bool { return !i.Conflict && (all || !n.staged(i.Name)) }, nil)
			if err == nil || n.ctx.Err() != nil {
				return nil
			}
			n.events.Trouble("draft "+name.Link+" "+name.Key, "a directory that was written is not in the bucket yet", "key", name.Key, "cause", err)
			select {
			case <-time.After(pause):
			case <-n.ctx.Done():
				return nil
			}
		}
	})
}

// stagedAs tells whether a name is temporary by its link's patterns, and which one it is to get, if that is known.
func (n *Node) stagedAs(name draft.Name) (staged bool, final string) {
	l := n.links.named(name.Link)
	if l == nil || !strings.HasPrefix(name.Key, l.prefix) {
		return false, ""
	}
	staged, final = l.temporary.Match(name.Key[len(l.prefix):])
	if final != "" {
		final = l.prefix + final
	}
	return staged, final
}

// frozen reports whether the objects of a link never change.
func (n *Node) frozen(link string) bool {
	l := n.links.named(link)
	return l != nil && l.freshness.Mode == namespace.Immutable
}

func (n *Node) staged(name draft.Name) bool {
	staged, _ := n.stagedAs(name)
	return staged
}

// publishStaged publishes what has been closed for long under a temporary name: whoever was to rename it has ended. A directory
// goes with all that is below it, once nobody has anything there open.
func (n *Node) publishStaged(s *draft.Store) {
	all := s.All()
	dirs := map[draft.Name]bool{}
	for _, i := range all {
		if i.IsDir() && i.Dirty && !i.Removed && n.staged(i.Name) {
			dirs[i.Name] = true
		}
	}
	left := map[draft.Name]time.Duration{} // for how long all of a directory, or a file, has been left alone
	for _, i := range all {
		l := n.links.named(i.Link)
		if l == nil || !i.Dirty || i.Removed || i.State == draft.Failed || !n.staged(i.Name) {
			continue
		}
		unit := i.Name
		if dir := n.within(i.Name, dirs); dir != nil {
			unit = *dir
		}
		alone := n.now().Sub(i.Since) - l.Staging.After()
		if i.Users > 0 || n.drafts.behindOf(i.File, 0) > 0 {
			alone = -1
		}
		if before, ok := left[unit]; ok {
			alone = min(alone, before)
		}
		left[unit] = alone
	}
	for name, alone := range left {
		d, ok := s.Find(name)
		if !ok || alone < 0 {
			continue
		}
		before := d.Info()
		if before.Name != name || n.drafts.behindOf(before.File, 0) > 0 {
			continue
		}
		n.events.Warn("a file with a temporary name was not renamed: it is published as it is", "link", name.Link, "key", name.Key)
		if name.IsDir() {
			n.publishDir(s, name)
		} else {
			n.publishBehind(d, before)
		}
	}
}

// largeLog is the size in bytes from which an open file is published once it has grown by a tenth: each time costs copies of all that
// it had.
const largeLog = 64 << 20

// isLog reports whether a draft is published while it is open, however often that fails.
func (n *Node) isLog(i *draft.Info) bool {
	l := n.links.named(i.Link)
	return i.Appends && i.Users > 0 && !i.Conflict && l != nil && l.Staging.Interval() > 0 && !n.staged(i.Name)
}

// publishOpen publishes what is appended to and stays open: other nodes read a log while it is written.
func (n *Node) publishOpen(s *draft.Store) {
	for _, i := range s.All() {
		d, ok := s.ID(i.ID)
		l := n.links.named(i.Link)
		if !ok || l == nil {
			continue
		}
		age, every := n.now().Sub(i.Since), l.Staging.Interval()
		if i.State == draft.Failed { // a key may be rotated, and a quota full for a moment
			every = max(every, publishLate)
		}
		switch {
		case !n.isLog(&i) || !i.Dirty || i.Removed || n.drafts.behindOf(i.File, 0) > 0 || age < every:
		case i.State != draft.Opened && (i.State != draft.Waiting && i.State != draft.Failed || age%every >= tendEvery): // what failed is tried again as often
		case i.Object != nil && i.Size >= largeLog && i.Size < i.Object.Size+i.Object.Size/10:
		default:
			n.publishBehind(d, i)
		}
	}
}

// cleanEvery is how often uploads that were broken off are looked for, and tendEvery what is to be published that nobody closes.
const cleanEvery, tendEvery = time.Minute, time.Second

// tendDrafts has uploads that were broken off removed, and publishes what nobody renames or closes, until the node ends.
func (n *Node) tendDrafts(s *draft.Store) {
	clean, staged := time.NewTicker(cleanEvery), time.NewTicker(tendEvery)
	defer clean.Stop()
	defer staged.Stop()
	n.cleanDrafts(s)
	for {
		select {
		case <-clean.C:
			n.cleanDrafts(s)
		case <-staged.C:
			n.publishStaged(s)
			n.publishOpen(s)
		case <-n.ctx.Done():
			return
		}
	}
}

func (n *Node) cleanDrafts(s *draft.Store) {
	if err := s.Clean(n.ctx); err != nil && n.ctx.Err() == nil {
		n.events.Trouble("draft uploads", "uploads that were broken off are not removed yet", "cause", err)
	}
}

// closeDrafts waits until nothing is sent any more.
func (n *Node) closeDrafts() error {
	n.drafts.mu.Lock()
	defer n.drafts.mu.Unlock()
	s := n.drafts.store.Load()
	if s == nil {
		return nil
	}
	return s.Close()
}
