package fuse

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/namespace"
)

// Server is one mount, from Mount until anybody unmounts it.
type Server struct {
	o       Options
	files   *fileSystem
	newsOps newsOps
	place   *place
	why     string
	ahead   int // read-ahead in force, in KiB; 0 means unknown
	lacks   []string
	ended   chan struct{}
	raw     *gofuse.Server

	draining atomic.Bool   // Drain was called
	drained  chan struct{} // closed when all that was taken is answered

	connection *os.File // aborts the mount; closed last
}

// Mount mounts, and returns once the mount answers. The mount ends by Unmount, by umount(8) or with
// the process. ctx bounds Mount alone.
func Mount(ctx context.Context, o Options) (*Server, error) {
	o, err := o.complete()
	if err != nil {
		return nil, err
	}
	if o.Kept != nil {
		s, err := takeOver(o)
		if err != nil {
			return nil, fmt.Errorf("take over the mount %s: %w", o.Kept.Dir, err)
		}
		return s, nil
	}
	without, err := parseMasks(o.Without)
	if err != nil {
		return nil, err
	}
	large, err := wantsLarge(ctx, &o)
	if err != nil {
		return nil, fmt.Errorf("mount %s: %w", o.Dir, err)
	}
	if o.Local == nil || !(o.Open == Passthrough || o.Open == Auto && large) {
		without.unwanted = gofuse.CAP_PASSTHROUGH // with it no overlay could be stacked on the mount
		without.bits |= without.unwanted
	}
	if o.At == nil {
		if err := Cleanup(o.Dir); err != nil {
			return nil, err
		}
	}
	place, fd, err := attach(&o, without.maxRead())
	if err != nil {
		return nil, fmt.Errorf("mount %s: %w", o.Dir, err)
	}
	s := &Server{o: o, place: place, ended: make(chan struct{}), drained: make(chan struct{})}
	s.files = newFileSystem(&s.o)
	if err := s.first(fd, without, large); err != nil {
		_ = place.detach(true) // the error below says why there is no mount
		return nil, fmt.Errorf("mount %s: start the FUSE protocol: %w", o.Dir, err)
	}
	return s, nil
}

// first serves a new mount, whose connection is fd.
func (s *Server) first(fd int, m masks, large bool) error {
	var k *Kept
	if s.o.Keep != nil {
		var err error
		if k, err = s.kept(fd); err != nil {
			unix.Close(fd)
			return err
		}
		defer func() { _ = k.Conn.Close() }() // whoever keeps it has his own
	}
	init, err := firstRequest(fd)
	if err != nil {
		unix.Close(fd)
		return err
	}
	var answer []byte
	raw, err := s.speak(fd, init, m, func(a []byte) error {
		answer = slices.Clone(a)
		_, err := unix.Write(fd, a)
		return err
	})
	if err != nil {
		return err
	}
	s.connection = s.place.connection()
	passthrough := s.decide(raw, m, large)
	if k != nil {
		k.Init, k.Answer, k.Unused, k.Open, k.Why, k.OpenDir, k.Abort = init, answer, m.unwanted, s.files.mode, s.why, s.files.listDir, s.connection
		s.o.Keep(k)
	}
	s.start(raw, m, passthrough)
	return nil
}

// kept is what is known of a mount before the kernel's first request.
func (s *Server) kept(fd int) (*Kept, error) {
	t, err := newTable()
	if err != nil {
		return nil, err
	}
	conn, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		_ = t.file.Close() // nothing was written
		return nil, fmt.Errorf("copy the connection's descriptor: %w", err)
	}
	s.files.opens.table = t
	p := s.place
	return &Kept{Conn: os.NewFile(uintptr(conn), "/dev/fuse"), Table: t.file, Dir: []byte(p.dir), Root: s.o.Root, Major: p.major, Minor: p.minor, Direct: p.direct, Without: s.o.Without}, nil
}

func wantsLarge(ctx context.Context, o *Options) (bool, error) {
	if o.Open != Auto || o.Large == nil || o.Local == nil {
		return false, nil
	}
	large, err := o.Large(ctx)
	if err != nil {
		return false, fmt.Errorf("choose how to open files: %w", err)
	}
	return large, nil
}

// protocol returns the options for go-fuse. It mounts nothing, since the descriptor is ours.
// CAP_ASYNC_DIO is left out: with it a reader that bypasses the page cache cannot be killed while
// the origin is silent.
func (s *Server) protocol(m masks) *gofuse.MountOptions {
	extra := uint64(gofuse.CAP_NO_OPENDIR_SUPPORT | gofuse.CAP_HAS_RESEND)
	if s.o.Writing != nil {
		extra |= gofuse.CAP_ATOMIC_O_TRUNC // else truncation could not be told from truncate(2)
	}
	return &gofuse.MountOptions{
		MaxBackground:        1024, // so that stalled reads leave room for others
		MaxWrite:             m.maxRead(),
		Name:                 "hearth",
		FsName:               s.o.FSName,
		DisableSplice:        true,
		ExtraCapabilities:    extra,
		DisabledCapabilities: m.bits,
		Logger:               log.New(complaints{s}, "", 0),
	}
}

// decide decides what depends on the kernel's INIT. passthrough says why the kernel is lent no files.
func (s *Server) decide(raw *gofuse.Server, m masks, large bool) (passthrough error) {
	granted := raw.KernelSettings().Flags64() &^ m.bits
	k := offer{noOpen: granted&gofuse.CAP_NO_OPEN_SUPPORT != 0, noOpenDir: granted&gofuse.CAP_NO_OPENDIR_SUPPORT != 0, passthrough: s.lends(raw, m)}
	s.files.mode, s.why = decide(&s.o, k, large)
	s.files.listDir = !k.noOpenDir || s.o.Strict
	return k.passthrough
}

// lends says why no files can be lent to the kernel. nil means that they can.
func (s *Server) lends(raw *gofuse.Server, m masks) error {
	if m.bits&gofuse.CAP_PASSTHROUGH != 0 {
		return errors.New("masked")
	}
	return passthroughGranted(raw, raw.KernelSettings().Flags64(), &s.o)
}

// start serves.
func (s *Server) start(raw *gofuse.Server, m masks, passthrough error) {
	s.raw = raw
	f := s.files
	f.opens.kernel, f.opens.local = raw, s.o.Local
	f.handles.table = f.opens.table
	f.news = newNews(s.kernel(raw), &s.newsOps)
	f.news.table = f.opens.table
	unsubscribe, unhold := f.tree.Subscribe(s.changed), f.tree.Hold(f.holds.has)
	go f.news.run()
	go s.serve(raw, unsubscribe, unhold)
	if !m.readAhead {
		s.ahead = s.place.readAhead(s.o.MaxReadAhead)
	}
	s.lacks = s.o.lacks(raw.KernelSettings().Flags64(), m.unwanted, passthrough, s.ahead)
}

// kernel is what notifications go to.
func (s *Server) kernel(raw *gofuse.Server) kernel {
	if s.o.Teller == nil {
		return raw
	}
	return &teller{kernel: raw, find: s.o.Teller}
}

// serve answers requests until the connection ends, then takes everything down.
func (s *Server) serve(raw *gofuse.Server, unsubscribe, unhold func()) {
	raw.Serve() // returns after the last handler did
	if s.draining.Load() {
		close(s.drained)
		return
	}
	defer close(s.ended)
	unsubscribe()
	if s.files.write != nil {
		s.files.handles.releaseAll(s.files.releasePlain)
	}
	s.files.news.close()
	s.files.opens.close()
	s.files.opens.table.close()
	s.files.readers.close()
	unhold()
	_ = s.connection.Close() // on nil it only returns an error
}

// changed passes a change of the tree to the news. The tree calls it, so it must not block.
func (s *Server) changed(c namespace.Change) {
	if dir, ok := s.files.toKernel(c.Dir); ok {
		s.files.news.add(dir, c)
	}
}

// Settle returns once the kernel was told of all earlier changes, so that a reader then sees them.
// It also returns when ctx or the mount ends.
func (s *Server) Settle(ctx context.Context) {
	select {
	case <-s.files.news.settled():
	case <-s.ended:
	case <-ctx.Done():
	}
}

// Wait returns when the mount has ended and everything of it is taken down.
func (s *Server) Wait() { <-s.ended }

// Ended is closed when Wait returns.
func (s *Server) Ended() <-chan struct{} { return s.ended }

// Unmount takes the mount away. On a busy mount it fails, and the error names the cure. lazy
// detaches the mount at once and lets its last users finish; Wait returns when they have.
func (s *Server) Unmount(lazy bool) error {
	select {
	case <-s.ended:
		return nil
	default:
	}
	if err := s.place.detach(lazy); err != nil {
		return fmt.Errorf("unmount %s: %w", s.o.Dir, err)
	}
	return nil
}

// Place returns where the mount is now, by the mount table. at is "" if the mount was detached,
// which its last users outlive, and another path if it was moved. kept reports whether the mount is
// where it was made.
func (s *Server) Place() (at string, kept bool) {
	at = s.place.now()
	return at, at == s.place.dir
}

// complaints passes on the log lines of go-fuse.
type complaints struct{ s *Server }

// Write is part of io.Writer: one call is one line. A reply to a request that was killed meanwhile
// gets ENOENT, which is not worth a complaint, nor is what Drain left.
func (c complaints) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("err: 2=")) || bytes.Contains(line, []byte(unexpected)) {
		return len(line), nil
	}
	c.s.files.ops.complaints.Add(1)
	c.s.o.complain(strings.TrimRight(string(line), "\n"))
	return len(line), nil
}

func (o *Options) complain(text string) {
	if o.Events.Complaint != nil {
		o.Events.Complaint(text)
	}
}

// Stats are a mount's figures since it began.
type Stats struct {
	Dir    string
	Device string // major:minor, as in /proc/self/mountinfo
	// Open is the mode granted; Why says why that one.
	Open Mode
	Why  string
	// Lacks says which of the kernel's abilities the mount does without, each with the reason.
	Lacks []string
	// ReadAheadKiB is the kernel's read-ahead in KiB; 0 means unknown. LargestRead is in bytes.
	ReadAheadKiB int
	LargestRead  int64
	// EntryTimeout and NegativeTimeout are the last ones given to the kernel.
	EntryTimeout, NegativeTimeout time.Duration
	// Names is how many node ids the kernel holds.
	Names int
	// Requests counts what the kernel asked, by kind.
	Requests map[string]int64
	// Outcomes counts what became of requests and of news, by kind.
	Outcomes map[string]int64
	// Took is how long answers to open and read took.
	Took map[string]Took
}

// Stats returns the present figures.
func (s *Server) Stats() Stats {
	f := s.files
	o := &f.ops
	return Stats{
		Dir: s.o.Dir, Device: s.place.device(), Open: f.mode, Why: s.why, Lacks: s.lacks, ReadAheadKiB: s.ahead, LargestRead: o.largestRead.Load(),
		EntryTimeout: time.Duration(o.entryTimeout.Load()), NegativeTimeout: time.Duration(o.negativeTimeout.Load()),
		Names: f.holds.len(), Took: map[string]Took{"open": o.opened.load(), "read": o.read.load()},
		Requests: map[string]int64{
			"lookup": o.lookups.Load(), "getattr": o.getattrs.Load(), "open": o.opens.Load(),
			"read": o.reads.Load(), "readdir": o.readDirs.Load(), "forget": o.forgets.Load(), "write": o.writes.Load(),
		},
		Outcomes: map[string]int64{
			"read_bytes": o.readBytes.Load(), "written_bytes": o.writtenBytes.Load(), "read_misses": o.misses.Load(), "interrupted": o.interrupts.Load(),
			"stale": o.staled.Load(), "errors": o.errors.Load(), "lent": o.lent.Load(), "complaints": o.complaints.Load(),
			"lent_files": f.opens.lent.Load(), "taken_back": f.opens.takenBack.Load(),
			"news_told": s.newsOps.told.Load(), "news_merged": s.newsOps.merged.Load(), "news_lost": s.newsOps.lost.Load(),
		},
	}
}
