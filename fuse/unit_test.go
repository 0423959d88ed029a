package fuse

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"pgregory.net/rapid"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/namespace"
)

func TestInterruptShortensTheWait(t *testing.T) {
	// A request waits; an INTERRUPT comes; two seconds later, not before, its
	// context ends. One that finishes first leaves nothing behind.
	synctest.Test(t, func(t *testing.T) {
		cancel := make(chan struct{})
		r := &request{cancel: cancel, grace: grace}
		if r.Err() != nil {
			t.Fatal("it has ended before it began")
		}
		done := r.Done()
		close(cancel)
		began := time.Now()
		<-done
		if took := time.Since(began); took != grace || !r.interrupted() || !errors.Is(r.Err(), context.Canceled) {
			t.Errorf("ended after %v, interrupted %v, %v", took, r.interrupted(), r.Err())
		}
		r.finish()

		cancel = make(chan struct{})
		r = &request{cancel: cancel, grace: grace}
		done = r.Done()
		time.Sleep(time.Minute) // of synctest's: it has waited when the INTERRUPT comes
		close(cancel)
		began = time.Now()
		<-done
		if took := time.Since(began); took != grace {
			t.Errorf("an INTERRUPT later: ended after %v", took)
		}
		r.finish()

		r = &request{cancel: make(chan struct{}), grace: grace}
		done = r.Done()
		r.finish()
		<-done
		synctest.Wait()
		if r.interrupted() {
			t.Error("a finished request says that it was interrupted")
		}
		<-r.Done()
		if late := (&request{over: true}).Done(); late == nil {
			t.Error("no channel for who asks late")
		}
	})
}

// fakeKernel notes what it is told; gates make it wait.
type fakeKernel struct {
	mu      sync.Mutex
	told    []string
	gate    chan struct{}
	backing map[int32]int32
	nextID  int32
}

func (k *fakeKernel) note(s string) gofuse.Status {
	if k.gate != nil {
		<-k.gate
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.told = append(k.told, s)
	return gofuse.OK
}

func (k *fakeKernel) InodeNotify(node uint64, _, _ int64) gofuse.Status {
	return k.note(fmt.Sprint("inode ", node))
}

func (k *fakeKernel) EntryNotify(dir uint64, name string) gofuse.Status {
	return k.note(fmt.Sprint("entry ", dir, " ", name))
}

func (k *fakeKernel) all() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.told)
}

func TestNewsGoInOrder(t *testing.T) {
	// The listing goes first, then the names; who waits for a name hears when it is gone.
	synctest.Test(t, func(t *testing.T) {
		k := &fakeKernel{}
		w := newNews(k, &newsOps{})
		told := w.await(9)
		w.add(5, namespace.Change{Dir: 5, Name: "a"})
		w.add(5, namespace.Change{Dir: 5, Name: "b", Old: 9})
		w.add(6, namespace.Change{Dir: 6})
		go w.run()
		<-told
		synctest.Wait()
		if got, want := k.all(), []string{"inode 5", "entry 5 a", "entry 5 b", "inode 6"}; !slices.Equal(got, want) {
			t.Errorf("told %v, not %v", got, want)
		}
		w.leave(9)
		w.close()
	})
}

func TestNewsAreSettledOnceTheKernelIsTold(t *testing.T) {
	// Who asks whether the kernel knows waits for all that is queued, what is being told among it; where nothing is, for nobody.
	synctest.Test(t, func(t *testing.T) {
		k := &fakeKernel{gate: make(chan struct{})}
		w := newNews(k, &newsOps{})
		<-w.settled()
		w.add(5, namespace.Change{Dir: 5, Name: "a"})
		before := w.settled()
		go w.run()
		synctest.Wait() // in the midst of telling
		during := w.settled()
		for _, c := range []<-chan struct{}{before, during} {
			select {
			case <-c:
				t.Error("settled while the kernel is being told")
			default:
			}
		}
		k.gate <- struct{}{}
		k.gate <- struct{}{}
		<-before
		<-during
		if got := k.all(); len(got) != 2 {
			t.Errorf("told %v", got)
		}
		<-w.settled()
		w.close()
	})
}

func TestNewsMergeWhenFull(t *testing.T) {
	// A flood of changes costs bounded memory: names merge into "the directory
	// changed", directories beyond the bound are lost and counted, and a name that
	// somebody waits for is told in any case. Nobody who brings news waits.
	synctest.Test(t, func(t *testing.T) {
		k := &fakeKernel{gate: make(chan struct{})}
		w := newNews(k, &newsOps{})
		go w.run()
		for dir := range uint64(5000) {
			w.add(dir, namespace.Change{Dir: dir, Name: "x"})
		}
		for i := range 20_000 {
			w.add(7, namespace.Change{Dir: 7, Name: fmt.Sprint(i)})
		}
		told := w.await(99)
		w.add(4999, namespace.Change{Dir: 4999, Name: "gone", Old: 99})
		w.mu.Lock()
		if len(w.dirs) > maxNewsDirs+1 || w.names > maxNewsNames+1 {
			t.Errorf("%d directories, %d names wait", len(w.dirs), w.names)
		}
		w.mu.Unlock()
		if w.ops.lost.Load() == 0 || w.ops.merged.Load() == 0 {
			t.Errorf("%d lost, %d merged", w.ops.lost.Load(), w.ops.merged.Load())
		}
		close(k.gate)
		<-told
		synctest.Wait()
		if !slices.Contains(k.all(), "entry 4999 gone") {
			t.Error("the awaited name was not told")
		}
		w.close()
		if w.names != 0 || len(w.dirs) != 0 {
			t.Errorf("%d names, %d directories left", w.names, len(w.dirs))
		}
	})
}

func TestNewsWaitForStalledLookups(t *testing.T) {
	// While a request waits in a directory its names are put aside; other
	// directories go on, and the names follow when the request has ended.
	synctest.Test(t, func(t *testing.T) {
		k := &fakeKernel{}
		w := newNews(k, &newsOps{})
		go w.run()
		r := &request{cancel: make(chan struct{}), grace: grace, news: w, dir: 5}
		r.Done()
		w.add(5, namespace.Change{Dir: 5, Name: "a"})
		w.add(6, namespace.Change{Dir: 6, Name: "b"})
		synctest.Wait()
		if got := k.all(); !slices.Equal(got, []string{"inode 5", "inode 6", "entry 6 b"}) {
			t.Errorf("told %v", got)
		}
		r.finish()
		synctest.Wait()
		if got := k.all()[3:]; !slices.Equal(got, []string{"inode 5", "entry 5 a"}) {
			t.Errorf("then %v", got)
		}
		w.close()
	})
}

func TestListingsAreDroppedInTime(t *testing.T) {
	// Each kept listing is dropped when its time has passed; a newer listing of
	// the same directory moves that; more than fit drop the earliest.
	synctest.Test(t, func(t *testing.T) {
		k := &fakeKernel{}
		w := newNews(k, &newsOps{})
		go w.run()
		w.listed(1, time.Now().Add(10*time.Second))
		w.listed(2, time.Now().Add(5*time.Second))
		w.listed(2, time.Now().Add(20*time.Second))
		time.Sleep(11 * time.Second)
		synctest.Wait()
		if got := k.all(); !slices.Equal(got, []string{"inode 1"}) {
			t.Errorf("after 11 s: %v", got)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if got := k.all(); !slices.Equal(got, []string{"inode 1", "inode 2"}) {
			t.Errorf("after 21 s: %v", got)
		}
		w.close()
	})
}

func TestTicketsResume(t *testing.T) {
	// Any entry among the newest leads to its name, in its directory only, by the last reply that it was in; memory stays within its
	// bound, and what is forgotten or made up is not known.
	rapid.Check(t, func(t *rapid.T) {
		max := rapid.IntRange(1000, 20_000).Draw(t, "max")
		tickets := newTickets(max)
		type given struct {
			dir  uint64
			name string
		}
		all, last := map[uint64]given{}, uint64(0)
		for range rapid.IntRange(1, 60).Draw(t, "replies") {
			b := &batch{dir: rapid.Uint64Range(1, 3).Draw(t, "dir")}
			for range rapid.IntRange(0, 30).Draw(t, "names") {
				last = b.dir + 3*rapid.Uint64Range(0, 100).Draw(t, "id") // an id belongs to one directory
				name := rapid.StringN(1, 20, 60).Draw(t, "name")
				all[last] = given{b.dir, name}
				b.append(last, name)
			}
			tickets.keep(b)
			if tickets.bytes > max && tickets.order.Len() > 1 || 48*len(tickets.byID) > tickets.bytes {
				t.Fatalf("%d bytes, %d tickets", tickets.bytes, len(tickets.byID))
			}
		}
		for id, g := range all {
			name, ok := tickets.name(g.dir, id)
			if ok && name != g.name {
				t.Fatalf("resumes behind %q, not %q", name, g.name)
			}
			if _, ok := tickets.name(g.dir+1, id); ok {
				t.Fatal("a ticket of another directory is taken")
			}
		}
		if last > 0 {
			if name, ok := tickets.name(all[last].dir, last); !ok || name != all[last].name {
				t.Fatalf("the newest ticket leads to %q, %v", name, ok)
			}
		}
		if _, ok := tickets.name(1, rapid.Uint64Range(1<<40, 1<<62).Draw(t, "made up")); ok {
			t.Fatal("a made-up ticket is taken")
		}
	})
}

// page asks for a directory's names behind an offset as a kernel does, and takes n of them at most.
func page(t *testing.T, f *fileSystem, dir, offset uint64, n int) (names []string, next uint64) {
	t.Helper()
	next = offset
	in := &gofuse.ReadIn{InHeader: gofuse.InHeader{NodeId: dir}, Offset: offset}
	status := f.list(nil, in, func(e gofuse.DirEntry, _ *namespace.Node) bool {
		if len(names) == n {
			return false
		}
		names, next = append(names, e.Name), e.Off
		return true
	})
	if status != gofuse.OK {
		t.Fatalf("list %d behind %d: %v", dir, offset, status)
	}
	return names, next
}

func TestASlowListerGoesOnWhereItWas(t *testing.T) {
	// A lister pauses after each name, and others list so much meanwhile that its tickets are forgotten. Before each next name, some name
	// behind, before or at its place comes or goes: it gets each name that stays once, none twice, and none that has gone.
	tree := newFakeTree(0)
	const n = 200
	for i := range n {
		tree.put(fmt.Sprintf("d/%03d", i), 1, 10)
		tree.put(fmt.Sprintf("other/%03d", i), 1, 10)
	}
	f := newFileSystem(&Options{Tree: tree, Root: 1, Strict: true})
	f.tickets.max = 1
	dir, other := tree.dirLocked("d"), tree.dirLocked("other")
	rng := rand.New(rand.NewPCG(hearthtest.Seed(t), 0))
	gone := map[string]bool{}
	var got []string
	for offset := uint64(0); ; {
		names, next := page(t, f, dir, offset, 1)
		if len(names) == 0 {
			break
		}
		got, offset = append(got, names...), next
		page(t, f, other, 0, n) // and what they were told of d is forgotten
		if f.tickets.order.Len() != 1 {
			t.Fatalf("%d replies are remembered", f.tickets.order.Len())
		}
		switch key := fmt.Sprintf("d/%03d", rng.IntN(n)); rng.IntN(4) {
		case 0: // another version of where it stands
			if names[0][0] != '.' {
				tree.put("d/"+names[0], 2, 10)
			}
		case 1:
			gone[key[2:]] = true
			tree.remove(key)
		case 2:
			tree.put(key+"-new", 1, 10)
		}
	}
	seen := map[string]int{}
	for _, name := range got {
		seen[name]++
	}
	for name, times := range seen {
		if times > 1 {
			t.Errorf("%s comes %d times", name, times)
		}
	}
	for i := range n {
		if name := fmt.Sprintf("%03d", i); seen[name] == 0 && !gone[name] {
			t.Errorf("%s does not come", name)
		}
	}
}

func TestMountOptions(t *testing.T) {
	// What mount(8) and fstab pass is understood, ignored where it is for others,
	// and refused in clear words where it is not possible.
	for _, c := range []struct {
		list, want string
	}{
		{"", "444 555 0:0 false"},
		{"ro,_netdev,nofail,x-systemd.automount,defaults,noatime,nodev,nosuid", "444 555 0:0 false"},
		{"uid=1000,gid=100,allow_other", "444 555 1000:100 true"},
		{"umask=022", "755 755 0:0 false"},
		{"fmask=0133,dmask=0022", "644 755 0:0 false"},
		{"rw", "option rw: a mount without Writing is read-only; use ro"},
		{"umask=9", "option umask=9: needs a number"},
		{"umask=1777", "option umask=1777: is no mask of permissions"},
		{"uid=me", "option uid=me: needs a number"},
		{"bogus", "option bogus: unknown"},
		{"suid", "option suid: not possible here"},
	} {
		o := Options{FileMode: 0o444, DirMode: 0o555}
		got := ""
		if err := o.Set(c.list); err != nil {
			got = err.Error()
		} else {
			got = fmt.Sprintf("%o %o %d:%d %v", o.FileMode, o.DirMode, o.UID, o.GID, o.AllowOther)
		}
		if got != c.want {
			t.Errorf("%s: %s, not %s", c.list, got, c.want)
		}
	}
}

func TestOpenModeGranted(t *testing.T) {
	// Each wish under each kernel gives the mode of docs/decisions/028, and why.
	no := errors.New("no")
	for _, c := range []struct {
		asked  Mode
		strict bool
		offer  offer
		large  bool
		want   Mode
	}{
		{Auto, false, offer{noOpen: true}, false, None},
		{Auto, false, offer{noOpen: true}, true, Passthrough},
		{Auto, false, offer{noOpen: true, passthrough: no}, true, None},
		{Auto, false, offer{passthrough: no}, true, Plain},
		{Auto, true, offer{noOpen: true}, false, Plain},
		{Auto, true, offer{noOpen: true}, true, Passthrough},
		{None, false, offer{}, false, Plain},
		{Passthrough, true, offer{noOpen: true}, false, Passthrough},
		{Passthrough, false, offer{noOpen: true, passthrough: no}, false, Plain},
		{Plain, false, offer{noOpen: true}, true, Plain},
	} {
		got, why := decide(&Options{Open: c.asked, Strict: c.strict}, c.offer, c.large)
		if got != c.want || why == "" {
			t.Errorf("%+v: %s (%s)", c, got, why)
		}
	}
	tree := newFakeTree(0)
	if _, err := (Options{Dir: "/x", Tree: tree, Reads: reads(tree), Open: None, Strict: true}).complete(); err == nil {
		t.Error("open=none and strict together are not refused")
	}
	if _, err := parseMasks([]string{"nonsense"}); err == nil || !strings.Contains(err.Error(), "readdirplus") {
		t.Errorf("an unknown ability: %v", err)
	}
	for _, c := range []struct {
		sizes []int64
		want  bool
	}{{nil, false}, {[]int64{100, 200}, false}, {[]int64{64 << 20, 64 << 20, 1}, true}, {[]int64{64 << 20, 63 << 20, 2 << 20}, false}} {
		if got := MostlyLarge(c.sizes); got != c.want {
			t.Errorf("%v mostly large: %v", c.sizes, got)
		}
	}
}

func (k *fakeKernel) RegisterBackingFd(m *gofuse.BackingMap) (int32, syscall.Errno) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.backing == nil {
		k.backing = map[int32]int32{}
	}
	k.nextID++
	k.backing[k.nextID] = m.Fd
	return k.nextID, 0
}

func (k *fakeKernel) UnregisterBackingFd(id int32) syscall.Errno {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, ok := k.backing[id]; !ok {
		return syscall.EBADF
	}
	delete(k.backing, id)
	return 0
}

// sometimes hands out a file at random, as eviction and filling would have it.
type sometimes struct {
	name string
	mu   sync.Mutex
	n    int
	out  int
}

func (*sometimes) Samples() []string { return nil }

func (s *sometimes) LocalFile(*hearth.Object) (*os.File, func(), error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n++; s.n%3 == 0 {
		return nil, nil, hearth.ErrMiss
	}
	f, err := os.Open(s.name)
	if err != nil {
		return nil, nil, err
	}
	s.out++
	return f, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.out--
	}, nil
}

func TestOpensOfOneInodeAgree(t *testing.T) {
	// Many open and close a file that is whole at times: all opens that stand
	// together have one mode and one id, and at the end everything is given back.
	name := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(name, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	k, local := &fakeKernel{}, &sometimes{name: name}
	p := &opens{kernel: k, local: local}
	o := fakeObject("f", 1, 1)
	var mu sync.Mutex
	standing := map[string]int{}
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			for range 300 {
				id, lent := p.open(5, &o)
				mode := fmt.Sprint(id, lent)
				mu.Lock()
				standing[mode]++
				if len(standing) > 1 {
					t.Errorf("a mixture stands: %v", standing)
				}
				mu.Unlock()
				mu.Lock()
				if standing[mode]--; standing[mode] == 0 {
					delete(standing, mode)
				}
				mu.Unlock()
				p.release(5)
			}
		})
	}
	group.Wait()
	if len(k.backing) != 0 || local.out != 0 || len(p.byID) != 0 {
		t.Errorf("left: %d backing ids, %d files, %d records", len(k.backing), local.out, len(p.byID))
	}
	p.open(6, &o)
	p.open(7, &o)
	p.close()
	if len(k.backing) != 0 || local.out != 0 {
		t.Errorf("left after close: %d backing ids, %d files", len(k.backing), local.out)
	}
	if lent, back := p.lent.Load(), p.takenBack.Load(); lent < 1 || lent != back {
		t.Errorf("%d files were lent, %d taken back", lent, back)
	}
}

func TestReadsOfSmallObjectsAreTold(t *testing.T) {
	// A READ of an object of one block is told before it is answered, with its bytes and whether they are held, and once more when they have
	// come; one of a larger object is not.
	type told struct {
		key  string
		n    int
		held bool
	}
	var all []told
	tree, held := newFakeTree(time.Minute), false
	o := Options{Tree: tree, Reads: reads(tree), Reader: cache.ReaderOptions{Has: func(hearth.ID) bool { return held }}}
	o.Events.Read = func(o *hearth.Object, n int, held bool) { all = append(all, told{o.Key, n, held}) }
	o.Events.Came = func(o *hearth.Object) { all = append(all, told{key: o.Key}) }
	f := newFileSystem(&o)
	defer f.readers.close()
	read := func(key string, size int64, n int) {
		rec := &record{node: namespace.Node{ID: uint64(size), Object: fakeObject(key, 1, size)}}
		r := &request{cancel: t.Context().Done(), bytes: piece{has: o.Reader.Has, object: &rec.node.Object, n: n}}
		defer r.finish()
		a, err := f.read(r, rec, 0, make([]byte, n))
		if err != nil {
			t.Fatal(err)
		}
		a.Done()
	}
	read("small", 1000, 700)
	held = true
	read("block", hearth.BlockSize, 4096)
	read("large", hearth.BlockSize+1, 4096)
	if want := []told{{"small", 700, false}, {key: "small"}, {"block", 4096, true}}; !slices.Equal(all, want) {
		t.Errorf("told %v, want %v", all, want)
	}
}

func TestHoldsAndRecords(t *testing.T) {
	// A node is forgotten when the kernel has given back each time it was told of
	// it; the records kept stay within their bound, and keep what was used last.
	h := newHolds()
	for range 3 {
		h.add(5)
	}
	for _, step := range []struct {
		n    uint64
		held bool
	}{{2, true}, {1, false}, {1, false}} {
		if h.drop(5, step.n); h.has(5) != step.held || h.has(6) {
			t.Error("the count of a node is wrong")
		}
	}
	if h.len() != 0 {
		t.Error("a node that nobody holds is counted")
	}
	l := newLRU[int](shards * 4)
	for i := range uint64(10_000) {
		l.put(i, int(i))
		if v, ok := l.get(0); i > 0 && (!ok || v != 0) {
			t.Fatalf("the one always used is gone at %d", i)
		}
	}
	n := 0
	for i := range l.shard {
		n += l.shard[i].order.Len()
		if l.shard[i].order.Len() != len(l.shard[i].values) {
			t.Error("list and map differ")
		}
	}
	if n > shards*4 {
		t.Errorf("%d records", n)
	}
}

func TestErrnos(t *testing.T) {
	// Each kind of error has its errno; what is not known is EIO.
	f := &fileSystem{}
	r := &request{}
	for err, want := range map[error]syscall.Errno{
		fmt.Errorf("x: %w", fs.ErrNotExist):              syscall.ENOENT,
		fmt.Errorf("x: %w", hearth.ErrStale):             syscall.ESTALE,
		fmt.Errorf("x: %w", &namespace.Absent{}):         syscall.ENOENT,
		fmt.Errorf("x: %w", hearth.ErrArchived):          syscall.ENODATA,
		errors.New("the origin cannot be asked"):         syscall.EIO,
		fmt.Errorf("x: %w", syscall.ENOTDIR):             syscall.ENOTDIR,
		fmt.Errorf("wait: %w", context.DeadlineExceeded): syscall.EIO,
	} {
		if got := f.status(r, err); got != gofuse.Status(want) {
			t.Errorf("%v: %v, not %v", err, got, want)
		}
	}
	if got := f.status(&request{over: true, gaveUp: true}, context.Canceled); got != gofuse.EINTR {
		t.Errorf("after the grace: %v", got)
	}
}

func TestFuseConf(t *testing.T) {
	// A commented line does not allow anything.
	name := filepath.Join(t.TempDir(), "fuse.conf")
	for text, want := range map[string]bool{"#user_allow_other\n": false, "mount_max = 5\nuser_allow_other\n": true, "": false} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if userAllowOther(name) != want {
			t.Errorf("%q", text)
		}
	}
	if userAllowOther(name + "x") {
		t.Error("no file allows nothing")
	}
}

// rowless fails the test when a file is asked for whose node has a row already.
type rowless struct {
	*sometimes
	t     *testing.T
	table *table
	node  uint64
}

func (r *rowless) LocalFile(o *hearth.Object) (*os.File, func(), error) {
	rows := r.table.read()
	if slices.ContainsFunc(rows, func(x tableRow) bool { return x.node == r.node }) {
		r.t.Errorf("a node that is opened anew has a row: %+v", rows)
	}
	return r.sometimes.LocalFile(o)
}

func TestANodeHasOneRow(t *testing.T) {
	// The last release of a file stands still where it takes the file's row away. Whoever opens the file meanwhile waits: a
	// process that took the mount over would find two rows, and not know which holds.
	name := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(name, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	rows, err := newTable()
	if err != nil {
		t.Fatal(err)
	}
	defer rows.close()
	const node = 7
	p := &opens{kernel: &fakeKernel{}, local: &rowless{&sometimes{name: name}, t, rows, node}, table: rows}
	o := &hearth.Object{Size: 1}
	p.open(node, o)
	file := p.byID[node]
	file.mu.Lock()
	var work sync.WaitGroup
	work.Go(func() { p.release(node) })
	if !hearthtest.Eventually(t.Context(), time.Minute, func() bool {
		if !p.mu.TryLock() {
			return true // it has it while it waits
		}
		defer p.mu.Unlock()
		return p.byID[node] == nil
	}) {
		t.Fatal("the release does not come")
	}
	work.Go(func() { p.open(node, o) })
	if p.mu.TryLock() { // else the open waits, too
		p.mu.Unlock()
		hearthtest.Eventually(t.Context(), time.Minute, func() bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			return p.byID[node] != nil
		})
	}
	file.mu.Unlock()
	work.Wait()
}

func TestTheTableGrows(t *testing.T) {
	// More rows than one piece of the file has. Another process finds those that stand, and takes the free ones first. A table of an
	// older version ends anywhere.
	a, err := newTable()
	if err != nil {
		t.Fatal(err)
	}
	defer a.close()
	for i := range chunkRows + 10 {
		if row := a.put(tableRow{uint64(i + 1), held, int32(i)}); row != i {
			t.Fatalf("row %d is put at %d", i, row)
		}
	}
	a.clear(3)
	a.write(chunkRows+1, tableRow{chunkRows + 2, held, -7})
	b := &table{file: a.file}
	rows, err := b.load()
	if err != nil || len(rows) != 2*chunkRows {
		t.Fatalf("%d rows: %v", len(rows), err)
	}
	for i, x := range rows {
		want := tableRow{uint64(i + 1), held, int32(i)}
		switch {
		case i == 3 || i >= chunkRows+10:
			want = tableRow{}
		case i == chunkRows+1:
			want.value = -7
		}
		if x != want || x != b.row(i) {
			t.Fatalf("row %d is %+v, not %+v", i, x, want)
		}
	}
	if one, two := b.put(tableRow{9, listed, 0}), b.put(tableRow{10, listed, 0}); one != 3 || two != chunkRows+10 {
		t.Errorf("the free rows are %d and %d", one, two)
	}
	b.close()
	if b.clear(3); b.row(3) != (tableRow{}) {
		t.Error("a table that is closed has a row")
	}

	old, err := newTable()
	if err != nil {
		t.Fatal(err)
	}
	defer old.close()
	row := make([]byte, 3*rowSize)
	row[2*rowSize] = 5
	if _, err := old.file.Write(row); err != nil {
		t.Fatal(err)
	}
	if rows, err := old.load(); err != nil || len(rows) != chunkRows || rows[2].node != 5 || old.put(tableRow{6, listed, 0}) != 0 {
		t.Errorf("of an older version: %d rows, %v", len(rows), err)
	}
}
