package draft

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/device"
)

// Options of a Store. Dirs and Uploader are needed, all else has a default.
type Options struct {
	// Dirs are directories for drafts alone, on cache disks. They are made if they are missing. A new draft goes into the
	// first one that has room.
	Dirs []string
	// Uploader is the origin of a link. It is asked before each publish. nil means that nothing can be published.
	Uploader func(link string) (hearth.Uploader, error)
	// Staged tells whether a name is temporary, and which name it is to get, where it says so ("" else): its parts are sent ahead
	// under that one, or not at all. nil means that no name is.
	Staged func(Name) (staged bool, final string)
	// Base reads a range of an object that a draft changes, whole: p is filled. The error is hearth.ErrStale if nobody has that
	// version any more. nil means that none can be changed.
	Base func(ctx context.Context, o *hearth.Object, p []byte, off int64) error
	// Room is asked before each write of n bytes in a directory, and with a draft's first n for a new one. So it must be
	// cheap. Its error, such as syscall.ENOSPC, is the writer's. nil never refuses.
	Room func(dir string, n int64) error
	// Published is called after a draft was published and before whoever waits for it is answered. It may not publish,
	// rename or remove the draft. nil means that nobody wants to know.
	Published func(d *Draft, o hearth.Object)
	// Conflict returns the name under which a draft is kept when the bucket has another object under its own. Where a draft has it,
	// a number is added. The same name means that there is none, and that it stays. Conflicted is told of it, before whoever publishes is answered: was is the draft before, err what
	// they get; nil means that it was removed, since it was empty. It may not publish, rename or remove the draft. nil
	// Conflict means that such drafts keep their names.
	Conflict   func(Name) Name
	Conflicted func(d *Draft, was Info, err error)
	// New tells whether a link takes new names alone: what is renamed there is not published over an object. nil means that none does.
	New func(link string) bool
	// Log gets lines for people, without a line's end. nil means that they are dropped.
	Log func(line string)
	// Now is the clock. nil means time.Now.
	Now func() time.Time
	// Parallel is how many parts are sent at once, of all drafts together. 0 means 8.
	Parallel int
	// Memory is how many bytes that are being sent are in memory, of all drafts together. A part that is larger has it
	// alone. 0 means 128 MiB, 8 parts of the usual size.
	Memory int64

	boot []byte // of a test that starts the machine again; nil is the machine's
}

// Store has all drafts of a node.
type Store struct {
	o       Options
	parts   *semaphore.Weighted // parts that are being sent
	memory  *semaphore.Weighted // bytes
	boot    []byte              // names the time since the machine was started
	moved   atomic.Int64        // bytes that were read to be sent
	buffers sync.Pool           // of *[]byte: memory of parts that were sent
	asides  []aside             // set by Open alone

	ctx  context.Context // ended by Close
	stop context.CancelCauseFunc

	mu     sync.Mutex // guards what follows; before a Draft's mu
	closed bool
	drafts map[*Draft]struct{} // all that have files, uploads or handles
	ids    map[uint64]*Draft   // those that are not removed, or that somebody holds
	names  []*Draft            // that have one, by link and key
	work   sync.WaitGroup
}

// ErrClosed says that the store was closed.
var ErrClosed = errors.New("the drafts are closed")

// Open reads the records in all directories. What was being published goes on only by Publish; All has it. Damaged
// records, and data without one, are set aside and listed as failed. A record of a newer version is an error.
func Open(o Options) (*Store, error) {
	if len(o.Dirs) == 0 {
		return nil, errors.New("open drafts: no directory is given")
	}
	o.Parallel = cmp.Or(max(o.Parallel, 0), 8)
	o.Memory = cmp.Or(max(o.Memory, 0), 128<<20)
	if o.Now == nil {
		o.Now = time.Now
	}
	s := &Store{o: o, parts: semaphore.NewWeighted(int64(o.Parallel)), memory: semaphore.NewWeighted(o.Memory), drafts: map[*Draft]struct{}{}, ids: map[uint64]*Draft{}}
	s.ctx, s.stop = context.WithCancelCause(context.Background())
	var err error
	if s.boot = o.boot; s.boot == nil {
		s.boot, err = thisBoot()
	}
	if err != nil {
		return nil, fmt.Errorf("open drafts: %w", err)
	}
	for _, dir := range o.Dirs {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("open drafts: %w", err)
		}
		if err := device.SyncDir(filepath.Dir(dir)); err != nil { // else all of it could be gone after a power cut
			return nil, fmt.Errorf("open drafts: %w", err)
		}
	}
	// First all are looked at: what a newer version wrote is not to be touched, and nothing beside it.
	found := map[string][]entry{}
	for _, dir := range o.Dirs {
		entries, err := look(dir)
		if err != nil {
			return nil, fmt.Errorf("open drafts: %w", err)
		}
		found[dir] = entries
	}
	for _, dir := range o.Dirs {
		unfinished, _ := filepath.Glob(filepath.Join(dir, "*.tmp")) // the pattern is well formed
		for _, name := range unfinished {
			_ = os.Remove(name) // the next one of that draft replaces it
		}
		for _, e := range found[dir] {
			s.take(dir, e)
		}
	}
	for _, d := range s.all() {
		if d.moving != "" && !d.removed && !d.nameless {
			if err := s.moveOn(d); err != nil {
				s.log("the rename of %s to %s, which was broken off: %v: the next start tries it again", d.name.Key, d.moving, err)
			}
		}
	}
	return s, nil
}

// entry is what a directory has of one draft.
type entry struct {
	base   string // the file's name without its extension
	record *record
	err    error // of the record
	data   fs.FileInfo
	aside  bool
}

func look(dir string) ([]entry, error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var entries []entry
	at := map[string]int{}
	for _, f := range files {
		name, isAside := strings.CutSuffix(f.Name(), ".aside")
		base, ext := strings.TrimSuffix(name, filepath.Ext(name)), filepath.Ext(name)
		if ext != ".data" && ext != ".json" {
			continue // .extents, and .tmp: a file that was not finished
		}
		key := base
		if isAside {
			key += "/aside"
		}
		i, ok := at[key]
		if !ok {
			i = len(entries)
			at[key] = i
			entries = append(entries, entry{base: base, aside: isAside})
		}
		e, full := &entries[i], filepath.Join(dir, f.Name())
		if ext == ".data" {
			if e.data, err = f.Info(); err != nil {
				return nil, err
			}
			continue
		}
		text, err := os.ReadFile(full)
		if err != nil {
			return nil, err
		}
		e.record, e.err = decode(full, text)
		var newer *newerError
		if errors.As(e.err, &newer) {
			return nil, e.err
		}
	}
	return entries, nil
}

// take makes a draft of what was found.
func (s *Store) take(dir string, e entry) {
	r := e.record
	switch {
	case e.aside:
		a := Name{}
		if r != nil {
			a = r.name()
		}
		var size, bytes int64
		var since time.Time
		if e.data != nil {
			size, bytes, since = e.data.Size(), allocated(e.data), e.data.ModTime()
		}
		s.noteAside(filepath.Join(dir, e.base), a, "it was set aside at an earlier start", size, bytes, since)
		return
	case r == nil && allocated(e.data) == 0, r != nil && e.err != nil && e.data == nil && r.Key == nil, r != nil && e.err != nil && e.data != nil && allocated(e.data) == 0 && r.Key == nil:
		// A create that a kill or a power cut broke off: there is neither a byte nor a name to lose.
		for _, ext := range []string{".json", extentsName, ".data"} {
			_ = os.Remove(filepath.Join(dir, e.base+ext)) // it is there again at the next start
		}
		return
	case r == nil:
		s.setAside(dir, e.base, Name{}, "data without a record")
		return
	case e.err != nil:
		s.setAside(dir, e.base, r.name(), e.err.Error())
		return
	case e.base != r.Draft || r.State != removed && s.ids[r.ID] != nil && !s.ids[r.ID].held:
		s.setAside(dir, e.base, r.name(), "its record is of another draft")
		return
	}
	d := s.restore(dir, r)
	// Of what was not synced nothing is sure after a power cut, not even the size. What was promised the bucket has.
	rebooted := len(r.Boot) > 0 && !bytes.Equal(r.Boot, s.boot)
	d.removed = d.removed || rebooted && !r.Durable && (r.Base != nil || r.Under != nil)
	if rebooted && !r.Durable && !d.removed {
		// The disk may have any part of it, and the bucket all: a close may have answered before the disk had the record of that. So it
		// overwrites nothing, and no token is used again.
		random := make([]byte, 8)
		_, _ = rand.Read(random) // it never fails
		d.pending, d.attr.New, d.seq = nil, true, binary.LittleEndian.Uint64(random)>>1
	}
	held := r.State == removed && e.data != nil && !rebooted && s.ids[r.ID] == nil // by whoever had it open
	if r.Over > 0 && e.data != nil && (!d.removed || held) {
		d.began, d.ext = r.Over, newExtents(r.Over)
		err := d.ext.load(d.path(extentsName), rebooted)
		if err == nil { // a truncation that was broken off has no row yet
			err = d.noteLocked(func(journal *os.File) error { return d.ext.shrink(journal, e.data.Size()) })
		}
		switch lost := err != nil || d.under == nil; {
		case lost && held:
			held = false
		case lost:
			s.setAside(dir, e.base, r.name(), fmt.Sprintf("what was written of it is not known: %v", err))
			return
		}
	}
	switch {
	case e.data != nil:
		d.size, d.blocks = e.data.Size(), allocated(e.data)
	case r.State == Published || !r.Durable:
		// It was published and going, or nothing was promised of it yet. Its uploads may be left.
		d.removed = true
	case r.State != removed:
		s.setAside(dir, e.base, r.name(), "its data is missing")
		return
	}
	if held { // Unheld removes it, if nobody comes
		d.held, s.ids[d.id], s.drafts[d] = true, d, struct{}{}
		return
	}
	if d.removed {
		if r.State != removed { // nobody removed it: what its attempt has made stays, since a close may have answered for that
			d.pending = nil
		}
		if err := d.eraseBytes(); err != nil {
			s.log("remove a removed draft's data: %v", err)
		}
		d.size, d.blocks, d.ext = 0, 0, nil
		if !d.leavesLocked() {
			if err := d.erase(); err != nil {
				s.log("remove a removed draft's record: %v", err)
			}
			return
		}
	}
	s.drafts[d] = struct{}{}
	if rebooted {
		if err := d.save(r.Durable); err != nil { // else the next start takes it for rebooted, too
			s.log("%v", err)
		}
	}
	if d.removed {
		return
	}
	s.ids[d.id] = d
	if d.outnamed {
		s.outname(d)
		return
	}
	if at, there := s.findLocked(d.name); there {
		// A rename replaced the older one, and was broken off before that was removed.
		old := s.names[at]
		if old.named.After(d.named) {
			old, d = d, old
		}
		s.names[at] = d
		if d.durable || !old.durable { // the rename would have removed it
			old.removed = true
			remove := old.vanish
			if !rebooted { // by whoever had it open: Unheld removes it, if nobody comes
				old.held, remove = true, func() error { return old.save(old.durable) }
			}
			if err := remove(); err != nil {
				s.log("remove what a rename has replaced: %v", err)
			}
			return
		}
		// A power cut may have left less of the later one than a fsync has promised of this one.
		old.outnamed = true
		if err := old.save(old.durable); err != nil {
			s.log("%v", err)
		}
		s.outname(old)
		return
	}
	s.nameLocked(d)
}

// outname keeps a draft whose name a later one has, or had, for a person to drop.
func (s *Store) outname(d *Draft) {
	d.nameless, d.state, d.why = true, Failed, outnamed
	s.log("draft %s %s in %s: %s", d.name.Link, d.name.Key, d.path(".data"), d.why)
}

func (s *Store) draft(dir string, id uint64, n Name) *Draft {
	return &Draft{s: s, id: id, link: n.Link, dir: dir, name: n, busy: make(chan struct{}, 1), gen: 1, wakeAt: firstWake}
}

// Create makes a draft without a base. Nobody holds it yet. It is syscall.EEXIST if a draft that is not published has
// this name, or any has this id.
func (s *Store) Create(n Name, id uint64, a Attr) (*Draft, error) { return s.create(n, id, a, nil) }

// Change makes a draft that has the bytes of an object, o, until they are written, and that is published only while the bucket has
// that version. Nothing is read of it. Errors are as of Create.
func (s *Store) Change(o *hearth.Object, id uint64, a Attr) (*Draft, error) {
	return s.create(Name{o.Link, o.Key}, id, a, o)
}

func (s *Store) create(n Name, id uint64, a Attr, base *hearth.Object) (*Draft, error) {
	dir, err := s.room()
	if err != nil {
		return nil, fmt.Errorf("create draft %s: %w", n.Key, err)
	}
	random := make([]byte, 16)
	_, _ = rand.Read(random) // it never fails
	d := s.draft(dir, id, n)
	d.recorded = notRecorded
	d.random, d.attr, d.state, d.since, d.named = hex.EncodeToString(random), a, Opened, s.o.Now(), s.o.Now()
	if base != nil {
		o := *base
		d.base, d.told, d.clean, d.state, d.size = &o, &o, d.gen, Published, o.Size
		if o.Size > 0 {
			d.began, d.under, d.ext = o.Size, &o, newExtents(o.Size)
		}
	}

	s.mu.Lock()
	_, err = s.freeLocked(n, id)
	s.mu.Unlock()
	if err != nil {
		return nil, fmt.Errorf("create draft %s: %w", n.Key, err)
	}
	// The files first: who finds the draft opens them.
	if d.ext != nil {
		err = d.beginExtents()
	} else {
		err = d.beginEmpty()
	}
	var old *Draft
	s.mu.Lock()
	if err == nil {
		old, err = s.freeLocked(n, id)
	}
	if err == nil && old != nil && !s.replaceLocked(old) {
		err = syscall.EEXIST // it was written just now
	}
	if err == nil {
		s.nameLocked(d)
		s.ids[id], s.drafts[d] = d, struct{}{}
	}
	s.mu.Unlock()
	if err != nil {
		_ = d.erase() // err says what is wrong; an empty draft, or one of an object, is nothing at the next start
		return nil, fmt.Errorf("create draft %s: %w", n.Key, err)
	}
	if old != nil {
		if err := old.vanish(); err != nil {
			s.log("a draft that another one replaces: %v", err)
		}
	}
	return d, nil
}

// replaceLocked removes a published draft whose name a new one gets, unless it has something that was not published. Whoever has it
// open reads on; the bucket has it under this name until the new one is published.
func (s *Store) replaceLocked(old *Draft) bool {
	old.mu.Lock()
	defer old.mu.Unlock()
	if !old.isCleanLocked() {
		return false
	}
	s.unnameLocked(old)
	old.removed, old.replaced = true, true
	old.stopLocked()
	return true
}

// freeLocked tells whether a new draft may have a name and an id. old is the published draft that gives the name up.
func (s *Store) freeLocked(n Name, id uint64) (old *Draft, err error) {
	if at, there := s.findLocked(n); there {
		old = s.names[at]
	}
	switch {
	case s.closed:
		return nil, ErrClosed
	case s.ids[id] != nil, old != nil && !old.isPublished():
		return nil, syscall.EEXIST
	}
	return old, nil
}

func (d *Draft) beginEmpty() error {
	f, err := os.OpenFile(d.path(".data"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), d.save(false))
}

// beginExtents makes the record first, which says that there is nothing to lose, and the bytes last, with their size.
func (d *Draft) beginExtents() error {
	err := d.save(false)
	if err == nil {
		err = os.WriteFile(d.path(extentsName), nil, 0o600)
	}
	if err != nil {
		return err
	}
	f, err := os.OpenFile(d.path(".data.tmp"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err = errors.Join(f.Truncate(d.size), f.Close()); err == nil {
		err = os.Rename(d.path(".data.tmp"), d.path(".data"))
	}
	if err != nil {
		_ = os.Remove(d.path(".data.tmp")) // the next start does it
	}
	return err
}

// room is the first directory that has room, else the first one's error.
func (s *Store) room() (dir string, first error) {
	if s.o.Room == nil {
		return s.o.Dirs[0], nil
	}
	for _, dir := range s.o.Dirs {
		err := s.o.Room(dir, 1<<20)
		if err == nil {
			return dir, nil
		}
		if first == nil {
			first = err
		}
	}
	return "", first
}

func (s *Store) findLocked(n Name) (at int, there bool) {
	return slices.BinarySearchFunc(s.names, n, func(d *Draft, n Name) int {
		return cmp.Or(strings.Compare(d.name.Link, n.Link), strings.Compare(d.name.Key, n.Key))
	})
}

func (s *Store) nameLocked(d *Draft) {
	at, there := s.findLocked(d.name)
	if there {
		s.names[at] = d
		return
	}
	s.names = slices.Insert(s.names, at, d)
}

func (s *Store) unnameLocked(d *Draft) {
	if at, there := s.findLocked(d.name); there && s.names[at] == d {
		s.names = slices.Delete(s.names, at, at+1)
	}
}

func (s *Store) forget(d *Draft) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unnameLocked(d)
	s.unlistLocked(d)
	delete(s.drafts, d)
}

func (s *Store) unlistLocked(d *Draft) {
	if s.ids[d.id] == d {
		delete(s.ids, d.id)
	}
}

// settleLocked forgets a removed draft that nobody holds, but for what it has left at the origin; its mu is held, too.
func (s *Store) settleLocked(d *Draft) {
	if !d.removed || d.pins > 0 {
		return
	}
	s.unlistLocked(d)
	if !d.leavesLocked() {
		delete(s.drafts, d)
	}
}

// Find returns the draft of a name. One that was removed or replaced has none.
func (s *Store) Find(n Name) (*Draft, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, there := s.findLocked(n)
	if !there {
		return nil, false
	}
	return s.names[at], true
}

// ID returns the draft of a node id, as long as it stands: one that was removed, as long as somebody holds it.
func (s *Store) ID(id uint64) (*Draft, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d, ok := s.ids[id]
	return d, ok
}

// Empty reports whether no draft has a name.
func (s *Store) Empty() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.names) == 0
}

// Below calls each for the drafts of a link whose keys begin with prefix, in the keys' order, until it returns false.
func (s *Store) Below(link, prefix string, each func(*Draft) bool) {
	s.mu.Lock()
	from, _ := s.findLocked(Name{link, prefix})
	to := from
	for to < len(s.names) && s.names[to].name.Link == link && strings.HasPrefix(s.names[to].name.Key, prefix) {
		to++
	}
	found := slices.Clone(s.names[from:to])
	s.mu.Unlock()
	for _, d := range found {
		if !each(d) {
			return
		}
	}
}

func (s *Store) all() []*Draft {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.drafts))
}

// All tells of every draft, by link and key. What was set aside is among them.
func (s *Store) All() []Info {
	var infos []Info
	for _, d := range s.all() {
		d.mu.RLock()
		removed := d.removed || d.gone
		d.mu.RUnlock()
		if !removed {
			infos = append(infos, d.Info())
		}
	}
	for _, a := range s.asides {
		infos = append(infos, a.Info)
	}
	slices.SortFunc(infos, func(a, b Info) int {
		return cmp.Or(strings.Compare(a.Link, b.Link), strings.Compare(a.Key, b.Key), cmp.Compare(a.ID, b.ID))
	})
	return infos
}

// Allocated is the number of bytes on the disk that drafts take, by directory, in the order of Options.Dirs.
func (s *Store) Allocated() []int64 {
	sums := make([]int64, len(s.o.Dirs))
	for _, d := range s.all() {
		sums[slices.Index(s.o.Dirs, d.dir)] += d.allocated()
	}
	for _, a := range s.asides {
		sums[slices.Index(s.o.Dirs, filepath.Dir(a.File))] += a.bytes
	}
	return sums
}

// Clean tries again to abort uploads that were given up while the origin did not answer. It is called at the start and
// from time to time. Its error says what is left.
func (s *Store) Clean(ctx context.Context) error {
	var left []error
	for _, d := range s.all() {
		d.mu.RLock()
		due := len(d.abort) > 0 || d.removed || len(d.begins) > 0 || d.unwritten != nil
		d.mu.RUnlock()
		if !due {
			continue
		}
		select {
		case d.busy <- struct{}{}:
			left = append(left, d.cleaned(ctx))
			d.unlock()
		default: // it is being sent, for how long nobody knows: it is its own turn then, or the next one's
		}
	}
	return errors.Join(left...)
}

// Unheld removes what was removed while somebody held it, and nobody holds any more. It is called once all who held drafts before a
// restart hold them again.
func (s *Store) Unheld() {
	for _, d := range s.all() {
		d.mu.RLock()
		due := d.held && d.pins == 0
		d.mu.RUnlock()
		if !due {
			continue
		}
		if err := d.vanish(); err != nil {
			s.log("%v", err)
		}
	}
}

// Close waits until nothing is sent any more. Drafts stay as they are. Whoever publishes gets ErrClosed.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.stop(ErrClosed)
	s.work.Wait()
	var failed []error
	for _, d := range s.all() {
		d.mu.Lock()
		changed := d.changed && !d.removed && !d.nameless
		failed = append(failed, d.closeLocked())
		d.mu.Unlock()
		if changed {
			failed = append(failed, d.save(false))
		}
	}
	return errors.Join(failed...)
}

// begin counts work that Close waits for. false means that the store is closed.
func (s *Store) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.work.Add(1)
	return true
}

func (s *Store) log(format string, args ...any) {
	if s.o.Log != nil {
		s.o.Log(fmt.Sprintf(format, args...))
	}
}

func allocated(fi fs.FileInfo) int64 {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		return st.Blocks * 512
	}
	return 0
}

// Has reports whether a directory is one of the store's.
func (s *Store) Has(dir string) bool { return slices.Contains(s.o.Dirs, dir) }

// Exists reports whether a directory has drafts.
func Exists(dir string) bool {
	files, err := os.ReadDir(dir)
	return err == nil && len(files) > 0
}
