package keep

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/fuse"
)

// Mount is a mount that a keeper has.
type Mount struct {
	// ID tells the mount from all others that the keeper has had. A mount's device does not: it is another's soon.
	ID   string
	Kept *fuse.Kept
	// Request is how the node made it. The keeper does not read it.
	Request json.RawMessage
	// Drained says that its node has answered all that it took (fuse.Server.Drain). Another one can then serve it, also where
	// the kernel does not ask again.
	Drained bool `json:",omitempty"`
}

// outlives reports whether another node can serve the mount once its own has ended.
func (m *Mount) outlives() bool { return m.Drained || m.Kept.Resends() }

// Begin says how it came that a node starts.
type Begin struct {
	// Starts counts the nodes that the keeper has started, with this one.
	Starts int
	// Cause is how the node before ended, such as "killed by signal 9"; Ended is since when no node has served. Without a node
	// before they are empty.
	Cause string
	Ended time.Time
}

// packet is one message. Exactly one field is set.
type packet struct {
	Keep    *Mount `json:",omitempty"`
	Drop    string `json:",omitempty"` // a mount's ID
	Tell    string `json:",omitempty"` // a mount's ID; socket is where its node's notifications come
	Begin   *Begin `json:",omitempty"`
	Drained string `json:",omitempty"` // a mount's ID
	Serving bool   `json:",omitempty"`
	Ending  bool   `json:",omitempty"`
	Become  string `json:",omitempty"` // the program that takes the keeper's place
	Failed  string `json:",omitempty"` // why it does not

	socket *os.File
}

const (
	// longest is the most bytes of a packet: a mount's request has paths and options.
	longest = 128 << 10
	// mostFiles is the most descriptors beside a packet.
	mostFiles = 3
)

// pair makes the two ends of a socket of packets.
func pair() (ours *net.UnixConn, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a pair of sockets: %w", err)
	}
	theirs = os.NewFile(uintptr(fds[1]), "keeper")
	if ours, err = socketOf(os.NewFile(uintptr(fds[0]), "node")); err != nil {
		_ = theirs.Close() // nothing was written
		return nil, nil, err
	}
	return ours, theirs, nil
}

// socketOf makes a connection of one end, which it closes.
func socketOf(f *os.File) (*net.UnixConn, error) {
	defer func() { _ = f.Close() }() // the connection has its own
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("use a socket of packets: %w", err)
	}
	socket, ok := c.(*net.UnixConn)
	if !ok {
		_ = c.Close() // nothing was written
		return nil, fmt.Errorf("%s is no Unix socket", f.Name())
	}
	return socket, nil
}

// send sends a packet. A mount's descriptors go along.
func send(c *net.UnixConn, p packet) error {
	text, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("write a packet: %w", err)
	}
	var files []*os.File
	switch {
	case p.Keep != nil:
		files = p.Keep.Kept.Files()
	case p.Tell != "":
		files = []*os.File{p.socket}
	}
	var rights []byte
	if len(files) > 0 {
		var fds []int
		for _, f := range files {
			fds = append(fds, int(f.Fd()))
		}
		rights = unix.UnixRights(fds...)
	}
	if _, _, err := c.WriteMsgUnix(text, rights, nil); err != nil {
		return fmt.Errorf("send a packet: %w", err)
	}
	return nil
}

// receive receives a packet. io.EOF means that the other process has ended.
func receive(c *net.UnixConn) (p packet, err error) {
	text, rights := make([]byte, longest), make([]byte, unix.CmsgSpace(4*mostFiles))
	n, m, flags, _, err := c.ReadMsgUnix(text, rights)
	switch {
	case errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, os.ErrDeadlineExceeded):
		return p, io.EOF
	case err != nil:
		return p, fmt.Errorf("receive a packet: %w", err)
	case n == 0:
		return p, io.EOF
	}
	files, err := filesOf(rights[:m])
	if err == nil && flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		err = fmt.Errorf("a packet of more than %d bytes or %d descriptors", longest, mostFiles)
	}
	if err == nil {
		err = json.Unmarshal(text[:n], &p)
	}
	switch {
	case err != nil:
	case p.Keep != nil && p.Keep.Kept != nil:
		err = p.Keep.Kept.SetFiles(files)
	case p.Tell != "" && len(files) == 1:
		p.socket = files[0]
	case p.Keep != nil || p.Tell != "" || len(files) > 0:
		err = errors.New("a packet with the wrong descriptors")
	}
	if err != nil {
		for _, f := range files {
			_ = f.Close() // nothing was written
		}
		return packet{}, fmt.Errorf("%w: %w", errPacket, err)
	}
	return p, nil
}

// errPacket means that what came is no packet. The next one may be.
var errPacket = errors.New("no packet of this version")

func filesOf(rights []byte) (files []*os.File, err error) {
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil {
		return nil, err
	}
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return files, err
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "kept"))
		}
	}
	return files, nil
}
