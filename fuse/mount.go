package fuse

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"

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

	connection *os.File // aborts the mount; closed last
}

// Mount mounts, and returns once the mount answers. The mount ends by Unmount, by umount(8) or with
// the process. ctx bounds Mount alone.
func Mount(ctx context.Context, o Options) (*Server, error) {
	o, err := o.complete()
	if err != nil {
		return nil, err
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
	s := &Server{o: o, place: place, ended: make(chan struct{})}
	s.files = newFileSystem(&s.o)
	raw, err := gofuse.NewServer(s.files, fmt.Sprintf("/dev/fd/%d", fd), s.protocol(without))
	if err != nil {
		_ = place.detach(true) // the error below says why there is no mount
		return nil, fmt.Errorf("mount %s: start the FUSE protocol: %w", o.Dir, err)
	}
	s.connection = place.connection()
	s.start(raw, without, large)
	return s, nil
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
	return &gofuse.MountOptions{
		MaxBackground:        1024, // so that stalled reads leave room for others
		MaxWrite:             m.maxRead(),
		Name:                 "hearth",
		FsName:               s.o.FSName,
		DisableSplice:        true,
		ExtraCapabilities:    gofuse.CAP_NO_OPENDIR_SUPPORT,
		DisabledCapabilities: m.bits,
		Logger:               log.New(complaints{s}, "", 0),
	}
}

// start decides what depends on the kernel's INIT, and serves.
func (s *Server) start(raw *gofuse.Server, m masks, large bool) {
	offered := raw.KernelSettings().Flags64()
	k := offer{
		noOpen:      offered&^m.bits&gofuse.CAP_NO_OPEN_SUPPORT != 0,
		noOpenDir:   offered&^m.bits&gofuse.CAP_NO_OPENDIR_SUPPORT != 0,
		passthrough: errors.New("masked"),
	}
	if m.bits&gofuse.CAP_PASSTHROUGH == 0 {
		k.passthrough = passthroughGranted(raw, offered, &s.o)
	}
	f := s.files
	f.mode, s.why = decide(&s.o, k, large)
	f.listDir = !k.noOpenDir || s.o.Strict
	f.opens.kernel, f.opens.local = raw, s.o.Local
	f.news = newNews(raw, &s.newsOps)
	unsubscribe, unhold := f.tree.Subscribe(s.changed), f.tree.Hold(f.holds.has)
	go f.news.run()
	go s.serve(raw, unsubscribe, unhold)
	if !m.readAhead {
		s.ahead = s.place.readAhead(s.o.MaxReadAhead)
	}
	s.lacks = s.o.lacks(offered, m.unwanted, k.passthrough, s.ahead)
}

// serve answers requests until the connection ends, then takes everything down.
func (s *Server) serve(raw *gofuse.Server, unsubscribe, unhold func()) {
	defer close(s.ended)
	raw.Serve() // returns after the last handler did
	unsubscribe()
	s.files.news.close()
	s.files.opens.close()
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
// gets ENOENT, which is not worth a complaint.
func (c complaints) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("err: 2=")) {
		return len(line), nil
	}
	c.s.files.ops.complaints.Add(1)
	if tell := c.s.o.Events.Complaint; tell != nil {
		tell(strings.TrimRight(string(line), "\n"))
	}
	return len(line), nil
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
			"read": o.reads.Load(), "readdir": o.readDirs.Load(), "forget": o.forgets.Load(),
		},
		Outcomes: map[string]int64{
			"read_bytes": o.readBytes.Load(), "read_misses": o.misses.Load(), "interrupted": o.interrupts.Load(),
			"stale": o.staled.Load(), "errors": o.errors.Load(), "lent": o.lent.Load(), "complaints": o.complaints.Load(),
			"lent_files": f.opens.lent.Load(), "taken_back": f.opens.takenBack.Load(),
			"news_told": s.newsOps.told.Load(), "news_merged": s.newsOps.merged.Load(), "news_lost": s.newsOps.lost.Load(),
		},
	}
}
