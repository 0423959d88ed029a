package fuse

import (
	"encoding/binary"
	"os"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// A notification may wait in the kernel for a lock that a request holds, until that is answered. A process that is killed
// meanwhile cannot end before: neither its descriptors nor its locks are given up, so that no other one can answer in its
// place. So another process notifies the kernel, whoever keeps the mount: it is told by a socket of packets. A packet is a
// notification as the kernel reads it, and the answer is one byte, once the kernel has it.

// Tell notifies the kernel for a node, until its end of the socket is closed. It returns at once then, or when the kernel
// has the last notification. It closes nothing.
func Tell(connection, socket *os.File) {
	packet := make([]byte, outHeader+24+maxName+1)
	for {
		n, err := readPacket(int(socket.Fd()), packet)
		if err != nil || n == 0 {
			return
		}
		_, _ = unix.Write(int(connection.Fd()), packet[:n]) // it does not know the name, as a rule, or has gone
		if _, err := unix.Write(int(socket.Fd()), []byte{1}); err != nil {
			return
		}
	}
}

// maxName is the most bytes of a name (NAME_MAX), with room for others than Linux's.
const maxName = 1024

func readPacket(fd int, p []byte) (n int, err error) {
	for {
		if n, err = unix.Read(fd, p); err != unix.EINTR {
			return n, err
		}
	}
}

// teller has another process notify the kernel. While that one is gone, it does so itself. It belongs to one goroutine.
type teller struct {
	kernel
	find   func() (*os.File, error) // a socket to the other process
	socket *os.File                 // nil where there is none
	packet []byte
}

// Codes of notifications (linux/fuse.h).
const (
	notifyInode = 2
	notifyEntry = 3
)

// InodeNotify is part of kernel.
func (t *teller) InodeNotify(node uint64, off, length int64) gofuse.Status {
	b := t.begin(notifyInode)
	b = binary.NativeEndian.AppendUint64(b, node)
	b = binary.NativeEndian.AppendUint64(b, uint64(off))
	b = binary.NativeEndian.AppendUint64(b, uint64(length))
	if t.tell(b) {
		return gofuse.OK
	}
	return t.kernel.InodeNotify(node, off, length)
}

// EntryNotify is part of kernel.
func (t *teller) EntryNotify(dir uint64, name string) gofuse.Status {
	b := t.begin(notifyEntry)
	b = binary.NativeEndian.AppendUint64(b, dir)
	b = binary.NativeEndian.AppendUint32(b, uint32(len(name)))
	b = binary.NativeEndian.AppendUint32(b, 0) // no flags
	b = append(append(b, name...), 0)
	if len(name) <= maxName && t.tell(b) {
		return gofuse.OK
	}
	return t.kernel.EntryNotify(dir, name)
}

func (t *teller) begin(code uint32) []byte {
	b := append(t.packet[:0], 0, 0, 0, 0) // the length
	b = binary.NativeEndian.AppendUint32(b, code)
	return binary.NativeEndian.AppendUint64(b, 0)
}

// tell sends a notification, and waits until the kernel has it. It returns false if nobody is there: another one may have the
// place of one that has gone.
func (t *teller) tell(b []byte) bool {
	t.packet = b
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	for range 2 {
		if t.socket == nil {
			var err error
			if t.socket, err = t.find(); err != nil {
				return false
			}
		}
		if t.exchange(b) {
			return true
		}
		t.close()
	}
	return false
}

// exchange sends a notification, and waits for the answer.
func (t *teller) exchange(b []byte) bool {
	for {
		if _, err := unix.Write(int(t.socket.Fd()), b); err == nil {
			break
		} else if err != unix.EINTR {
			return false
		}
	}
	n, err := readPacket(int(t.socket.Fd()), make([]byte, 1))
	return err == nil && n > 0
}

func (t *teller) close() {
	_ = t.socket.Close() // whoever tells ends; on nil it only returns an error
	t.socket = nil
}
