package fuse

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"sync"
	"time"
	"unsafe"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Kept is what another process needs to serve a mount. While anybody has Conn, the mount outlives its process: its users
// wait, and Mount with Options.Kept serves them. All but the descriptor is JSON.
type Kept struct {
	// Conn is the mount's FUSE connection, an open /dev/fuse. Table is a file in memory with what the kernel was answered
	// and remembers.
	Conn, Table *os.File `json:"-"`
	// Abort is the file by which the kernel ends the connection (Server.Abort); nil where that cannot be had.
	Abort *os.File `json:"-"`
	// Dir is the mount point, of any bytes, and Root the node id that it shows. Major and Minor are the mount's device. Direct
	// says that mount(2) made it, not fusermount3.
	Dir          []byte
	Root         uint64
	Major, Minor int
	Direct       bool
	// Init is the kernel's INIT, and Answer what it was answered, with their headers (linux/fuse.h).
	Init, Answer []byte
	// Without are the kernel's abilities that were masked. Open and OpenDir are how files and directories are opened, and
	// Why says why files are. The kernel remembers what it was answered once.
	Without []string
	Unused  uint64 // abilities that the mount has no use for
	Open    Mode
	Why     string
	OpenDir bool
	// Names is the largest node id that the kernel may hold. The process that takes the mount over sets it.
	Names uint64 `json:"-"`
}

const (
	// minRequest is the least buffer into which the kernel writes a request (FUSE_MIN_READ_BUFFER in linux/fuse.h).
	minRequest = 8192
	// Places in an INIT request, and in its answer, behind their headers.
	inHeader, outHeader        = 40, 16
	initInFlags, initInFlags2  = inHeader + 12, inHeader + 16
	initOutFlags               = outHeader + 12
	initOutFlags2, initOutSize = outHeader + 32, outHeader + 64
	// notifyResend has the kernel ask again for what a process took and did not answer (FUSE_NOTIFY_RESEND, Linux 6.9).
	notifyResend = 7
	// queuedForgets is how long after a take-over a FORGET may have been queued before it. The kernel gives out what is
	// queued in order, FORGETs of thousands of nodes at a time, so that it is a matter of milliseconds.
	queuedForgets = 10 * time.Second
)

// firstRequest reads the INIT of a new mount.
func firstRequest(fd int) ([]byte, error) {
	buf := make([]byte, minRequest)
	for {
		n, err := unix.Read(fd, buf)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return nil, fmt.Errorf("read the kernel's first request: %w", err)
		case n < initInFlags+4: // before Linux 5.17 it ends there
			return nil, fmt.Errorf("the kernel's first request has %d bytes", n)
		}
		return slices.Clone(buf[:n]), nil
	}
}

// granted is an INIT that offers only what was granted when the mount was made: the kernel has that answer still.
func (k *Kept) granted() ([]byte, error) {
	if len(k.Init) < initInFlags+4 || len(k.Answer) < initOutSize {
		return nil, fmt.Errorf("an INIT of %d bytes and an answer of %d", len(k.Init), len(k.Answer))
	}
	init := slices.Clone(k.Init)
	for in, out := range map[int]int{initInFlags: initOutFlags, initInFlags2: initOutFlags2} {
		le := binary.NativeEndian
		if in+4 > len(init) { // before Linux 5.17 it ends there
			continue
		}
		le.PutUint32(init[in:], le.Uint32(init[in:])&le.Uint32(k.Answer[out:]))
	}
	return init, nil
}

// flags are those of an answer to INIT.
func flags(answer []byte) uint64 {
	if len(answer) < initOutSize {
		return 0
	}
	return uint64(binary.NativeEndian.Uint32(answer[initOutFlags:])) | uint64(binary.NativeEndian.Uint32(answer[initOutFlags2:]))<<32
}

// speak has go-fuse answer an INIT that was read before, and serve a connection from then on. go-fuse gets a socket, in
// which the INIT lies and into which it answers, and the connection takes the socket's place. told is called with the
// answer in between. The descriptor is go-fuse's, or closed.
func (s *Server) speak(fd int, init []byte, m masks, told func(answer []byte) error) (*gofuse.Server, error) {
	defer unix.Close(fd)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make a pair of sockets: %w", err)
	}
	defer unix.Close(pair[1])
	if _, err := unix.Write(pair[1], init); err != nil {
		unix.Close(pair[0])
		return nil, fmt.Errorf("pass on the kernel's first request: %w", err)
	}
	raw, err := gofuse.NewServer(s.files, fmt.Sprintf("/dev/fd/%d", pair[0]), s.protocol(m))
	if err != nil {
		return nil, err // it has closed its descriptor
	}
	if err := populate(raw); err != nil {
		s.o.complain(err.Error())
	}
	answer := make([]byte, minRequest)
	n, err := unix.Read(pair[1], answer)
	if err == nil {
		err = told(answer[:n])
	}
	if err == nil {
		err = unix.Dup3(fd, pair[0], unix.O_CLOEXEC)
	}
	if err != nil {
		_ = unix.Shutdown(pair[1], unix.SHUT_RDWR) // so Serve ends at once, and closes the other one
		raw.Serve()
		return nil, fmt.Errorf("answer the kernel's first request: %w", err)
	}
	return raw, nil
}

// populate has go-fuse read requests only into memory that is there. A process that is killed while the kernel copies a
// request to it, and has to find a page for that first, gets no request, and the request's user gets EIO
// (fuse_dev_do_read in linux/fs/fuse/dev.c, fatal_signal_pending in linux/mm/gup.c). Nobody could ask for it again. Go's
// fresh memory has no pages until they are touched, and go-fuse has no option for its buffers, so its pool is changed.
func populate(raw *gofuse.Server) error {
	field := reflect.ValueOf(raw).Elem().FieldByName("readPool")
	if !field.IsValid() || field.Type() != reflect.TypeFor[sync.Pool]() {
		return errors.New("this go-fuse has no readPool: a user may get an input/output error when a node is killed")
	}
	pool := (*sync.Pool)(unsafe.Pointer(field.UnsafeAddr()))
	fresh := pool.New
	pool.New = func() any { return touched(fresh()) }
	pool.Put(touched(pool.Get())) // the one that INIT was read into
	return nil
}

// touched writes to each page of a buffer.
func touched(buffer any) any {
	if b, ok := buffer.([]byte); ok {
		for i := 0; i < len(b); i += 4096 {
			b[i] = 0
		}
		b[len(b)-1] = 0
	}
	return buffer
}

// ErrOther means that this program speaks another protocol than the one that made the mount.
var ErrOther = errors.New("this version of Hearth cannot serve a mount that another one made: unmount it first")

// descriptors are copies of a Kept's.
type descriptors struct {
	conn         int
	table, abort *os.File // abort may be nil
}

// own copies the descriptors of a Kept, which whoever has it closes.
func (k *Kept) own() (d descriptors, err error) {
	if d.conn, err = unix.FcntlInt(k.Conn.Fd(), unix.F_DUPFD_CLOEXEC, 0); err != nil {
		return d, fmt.Errorf("take the connection: %w", err)
	}
	d.table, err = copied(k.Table)
	if err == nil && k.Abort != nil {
		d.abort, err = copied(k.Abort)
	}
	if err != nil {
		unix.Close(d.conn)
		d.close()
		return d, fmt.Errorf("take the descriptors of a mount: %w", err)
	}
	return d, nil
}

// Copy copies what another process needs, with descriptors of its own. The caller closes them.
func (k *Kept) Copy() (*Kept, error) {
	own, err := k.own()
	if err != nil {
		return nil, err
	}
	c := *k
	c.Conn, c.Table, c.Abort = os.NewFile(uintptr(own.conn), "/dev/fuse"), own.table, own.abort
	return &c, nil
}

func copied(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

func (d *descriptors) close() {
	for _, f := range []*os.File{d.table, d.abort} {
		_ = f.Close() // on nil it only returns an error
	}
}

// ErrGone means that a kept mount was taken away, or cut off, while nobody served it.
var ErrGone = errors.New("the mount is gone")

// gone reports whether a connection has ended.
func gone(fd int) bool {
	p := []unix.PollFd{{Fd: int32(fd)}}
	n, err := unix.Poll(p, 0)
	return err == nil && n > 0 && p[0].Revents&unix.POLLERR != 0
}

// takeOver serves a mount that another process made, or served.
func takeOver(o Options) (*Server, error) {
	k := o.Kept
	o.Without, o.Root, o.Dir = k.Without, k.Root, string(k.Dir)
	m, err := parseMasks(k.Without)
	if err != nil {
		return nil, err
	}
	m.unwanted = k.Unused
	m.bits |= k.Unused
	init, err := k.granted()
	if err != nil {
		return nil, err
	}
	own, err := k.own()
	if err != nil {
		return nil, err
	}
	if gone(own.conn) {
		unix.Close(own.conn)
		own.close()
		return nil, ErrGone
	}
	s := &Server{o: o, place: k.place(), ended: make(chan struct{}), drained: make(chan struct{})}
	s.files = newFileSystem(&s.o)
	s.files.holds.inherit(k.Names, time.Now().Add(queuedForgets))
	raw, err := s.speak(own.conn, init, m, func(answer []byte) error {
		if !bytes.Equal(answer, k.Answer) {
			return fmt.Errorf("%w (%x instead of %x)", ErrOther, answer, k.Answer)
		}
		if !k.Resends() {
			return nil
		}
		return resend(own.conn) // what is asked again waits until it is read
	})
	if err != nil {
		own.close()
		return nil, err
	}
	s.connection = own.abort
	f := s.files
	f.mode, s.why, f.listDir = k.Open, k.Why, k.OpenDir
	t := &table{file: own.table}
	rows, err := t.load()
	if err != nil {
		s.o.complain(err.Error())
	}
	f.opens.kernel, f.opens.table = raw, t
	if f.mode == Passthrough {
		f.opens.inherit(rows)
	}
	for row, x := range rows {
		switch {
		case x.kind == held && f.write != nil:
			f.handles.inherit(x)
		case x.kind == removed:
			f.remade.inherit(row, x)
		case x.kind == renaming:
			f.renames.inherit(row, x)
		}
	}
	s.start(raw, m, s.lends(raw, m))
	for row, x := range rows {
		if x.kind == listed { // nobody knows until when
			f.news.inherit(x.node, row)
		}
	}
	return s, nil
}

// place is where the mount was made.
func (k *Kept) place() *place {
	return &place{dir: string(k.Dir), direct: k.Direct, major: k.Major, minor: k.Minor}
}

// Stands reports whether the mount is where it was made, and not moved or detached since.
func (k *Kept) Stands() bool { p := k.place(); return p.now() == p.dir }

// Files are the descriptors, in the order that SetFiles takes them in.
func (k *Kept) Files() []*os.File {
	files := []*os.File{k.Conn, k.Table}
	if k.Abort != nil {
		files = append(files, k.Abort)
	}
	return files
}

// SetFiles sets the descriptors, which came from another process. It returns an error if they are too few or too many.
func (k *Kept) SetFiles(files []*os.File) error {
	if len(files) != 2 && len(files) != 3 {
		return fmt.Errorf("the mount %s comes with %d descriptors, not 2 or 3", k.Dir, len(files))
	}
	k.Conn, k.Table = files[0], files[1]
	if len(files) == 3 {
		k.Abort = files[2]
	}
	return nil
}

// Close closes the descriptors. If nobody else has them, the mount is dead.
func (k *Kept) Close() {
	for _, f := range k.Files() {
		_ = f.Close() // nothing was written through them
	}
}

// Resends reports whether the kernel asks again for what a process took and did not answer, if it is told to.
func (k *Kept) Resends() bool { return flags(k.Answer)&gofuse.CAP_HAS_RESEND != 0 }

// resend has the kernel ask again.
func resend(fd int) error {
	var b [outHeader]byte
	binary.NativeEndian.PutUint32(b[:], outHeader)
	binary.NativeEndian.PutUint32(b[4:], notifyResend)
	_, err := unix.Write(fd, b[:])
	return err
}
