package keep

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// This file has a keeper take the place of another: of one that was killed, or of itself, as another program. It finds the
// mounts in a socket, as a node does. The node runs, and nothing is said to it but that its keeper has begun.

// NodeVariable is the environment variable that tells a keeper of a node that runs already: its process id, which descriptor
// is the keeper's end of its socket, and whether the node makes way for one of this program.
const NodeVariable = "HEARTH_KEEPER_NODE"

// heir is what a keeper leaves to the next one.
type heir struct {
	mounts []Mount
	begin  Begin
	pid    int
	leaves bool // the node makes way for one of this program
	socket *net.UnixConn
}

// Inherits reports whether this process takes the place of another keeper.
func Inherits() bool { return os.Getenv(NodeVariable) != "" }

// inherited returns what the environment has of another keeper, or nil.
func inherited() (*heir, error) {
	value := os.Getenv(NodeVariable)
	if value == "" {
		return nil, nil
	}
	_ = os.Unsetenv(NodeVariable) // it cannot fail for this name
	h := new(heir)
	var n int
	if _, err := fmt.Sscanf(value, "%d,%d,%t", &h.pid, &n, &h.leaves); err != nil {
		return nil, fmt.Errorf("%s=%s is no process and descriptor: %w", NodeVariable, value, err)
	}
	from, err := FromEnvironment()
	if err != nil {
		return nil, err
	}
	h.mounts, h.begin = from.Mounts, from.Begin
	from.Close()
	if h.socket, err = socketOf(os.NewFile(uintptr(n), "node")); err != nil {
		return nil, err
	}
	return h, nil
}

// mostBequeathed is room for the packets of some hundred mounts.
const mostBequeathed = 4 << 20

// bequeath puts mounts into a socket, where the next keeper finds them, and returns the descriptor of its other end.
func bequeath(mounts []Mount, begin Begin) (*os.File, error) {
	ours, theirs, err := pair()
	if err != nil {
		return nil, err
	}
	defer func() { _ = ours.Close() }()                    // what was sent stays there
	_ = ours.SetWriteBuffer(mostBequeathed)                // the kernel may grant less
	_ = ours.SetWriteDeadline(time.Now().Add(sendingEnds)) // nobody reads it yet: what has no room is an error
	for _, m := range mounts {
		if err = send(ours, packet{Keep: &m}); err != nil {
			break
		}
	}
	if err == nil {
		err = send(ours, packet{Begin: &begin})
	}
	if err != nil {
		_ = theirs.Close()
		return nil, err
	}
	return theirs, nil
}

// variables tell a keeper what it inherits.
func variables(mounts, node, pid int, leaves bool) []string {
	return []string{fmt.Sprintf("%s=%d", Variable, mounts), fmt.Sprintf("%s=%d,%d,%t", NodeVariable, pid, node, leaves)}
}

// become has another program take this one's place, as the same process. It returns only if it cannot.
func (k *keeper) become(n *child, program string) error {
	mounts, err := bequeath(k.mounts, k.begin)
	if err != nil {
		return err
	}
	defer func() { _ = mounts.Close() }() // nobody needs it
	socket := -1
	raw, err := n.socket.SyscallConn()
	if err == nil {
		err = errors.Join(raw.Control(func(fd uintptr) { socket, err = unix.FcntlInt(fd, unix.F_DUPFD, 0) }), err)
	}
	if err == nil {
		defer unix.Close(socket)
		_, err = unix.FcntlInt(mounts.Fd(), unix.F_SETFD, 0)
	}
	if err != nil {
		return fmt.Errorf("keep a descriptor over exec: %w", err)
	}
	env := append(k.environ(), variables(int(mounts.Fd()), socket, n.process.Pid, true)...)
	if k.Dir != "" { // the next keeper finds the nodes' directory by it
		if err := os.Chdir(k.Dir); err != nil {
			return fmt.Errorf("start %s: %w", program, err)
		}
		defer func() { _ = os.Chdir("/") }() // it is always there
	}
	err = syscall.Exec(program, append(k.Successor, k.Args[1:]...), env)
	return fmt.Errorf("start %s: %w", program, err)
}

// adopt attends to a node that another keeper has started.
func (k *keeper) adopt(h *heir) (*child, error) {
	process, err := os.FindProcess(h.pid)
	if err != nil {
		return nil, fmt.Errorf("find the node: %w", err)
	}
	k.mounts, k.begin, k.served, k.since = h.mounts, h.begin, true, time.Now()
	n := &child{process: process, leaves: h.leaves, socket: h.socket, packets: make(chan packet), ended: make(chan error, 1)}
	heard := make(chan struct{})
	go func() {
		n.listen(k.Say)
		close(heard)
	}()
	go func() {
		state, err := process.Wait()
		switch {
		case err != nil: // it is no child of this process: its socket ends with it
			<-heard
			n.ended <- nil
		case state.Success():
			n.ended <- nil
		default:
			n.ended <- &exec.ExitError{ProcessState: state}
		}
	}()
	if err := send(n.socket, packet{Begin: &k.begin}); err != nil && !errors.Is(err, unix.EPIPE) { // it has just ended, else
		k.Say(err.Error())
	}
	return n, nil
}
