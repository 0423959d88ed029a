package keep

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/fuse"
)

// Options are how a keeper keeps a node.
type Options struct {
	// Program is the node's file, and Args are its arguments, with its name. It has this process's standard streams and
	// variables, and works in Dir.
	Program string
	Args    []string
	Dir     string
	// Patience is how long users of the mounts wait for a node. 0 means for ever.
	Patience time.Duration
	// Signals are passed on to the node. After SIGTERM or SIGINT it is not started again.
	Signals <-chan os.Signal
	// Env are more variables of the node. Together says that it is of this process's group: what a terminal sends to all of
	// them reaches it twice.
	Env      []string
	Together bool
	// Started is called after each start with the node's process id, and Serves once the first node serves.
	Started func(pid int)
	Serves  func()
	// Waits is called each second while users wait for a node, within the patience.
	Waits func()
	// Successor are the name and first arguments of a program that takes this one's place. The node's follow.
	Successor []string
	// Say tells in a line what no node may tell.
	Say func(text string)
}

const (
	// firstPause and longestPause bound the pause before a node is started of which the last one did not serve. It doubles.
	firstPause   = 100 * time.Millisecond
	longestPause = 5 * time.Second
	// steady is how long a node serves that has no fault at its start. One that ends by itself before is started again with
	// pauses, though it has served.
	steady = 10 * time.Second
	// longestHold is how long a signal to end waits for a node that starts.
	longestHold = 10 * time.Second
)

// keeper is the state of Run. It belongs to one goroutine.
type keeper struct {
	Options
	mounts []Mount // in the order in which they were made
	begin  Begin
	served bool      // a node has served
	ending bool      // none is started again, but for
	last   bool      // one that takes the mounts away
	since  time.Time // when the present node began to serve; 0: it has not
	pause  time.Duration
	held   os.Signal     // ends the next node once it serves: only one that serves can take the mounts away
	hold   *time.Timer   // the end of held
	out    *time.Timer   // the end of the patience; runs while users wait
	waits  chan struct{} // closed when they wait no longer; nil: nobody waits
}

// Run starts the node, again and again, until it has ended for good. It returns the node's exit code. An error means that
// it could not be started.
func Run(o Options) (code int, err error) {
	k := &keeper{Options: o, hold: time.NewTimer(time.Hour), out: time.NewTimer(time.Hour)}
	k.hold.Stop()
	k.out.Stop()
	defer k.drop()
	defer k.awaited()
	next := k.start
	h, err := inherited()
	if err != nil {
		return 0, err
	}
	if h != nil {
		next = func() (*child, error) { return k.adopt(h) }
	}
	for {
		n, err := next()
		next = k.start
		if err != nil && !k.served && len(k.mounts) == 0 {
			return 0, err
		}
		if err != nil {
			k.begin.Cause = err.Error()
		} else {
			code, k.begin.Cause = k.attend(n)
			if !k.since.IsZero() && (code > 128 || n.leaves || time.Since(k.since) > steady) { // 128: it was killed
				k.pause = 0
			}
		}
		k.since = time.Time{}
		if k.waits == nil { // else users wait since an earlier one has ended
			k.begin.Ended = time.Now()
		}
		k.part()
		if k.ending && k.another() && n != nil && (n.leaves || code > 128) {
			k.last = true // it takes away what this one has left: the signal came too late for it
			k.holdBack(syscall.SIGTERM)
			continue
		}
		if k.ending || !k.served && len(k.mounts) == 0 {
			return code, nil
		}
		k.Say("the node " + k.begin.Cause + ": it is started again" + k.waiting())
		k.await()
		if !k.rest() {
			return code, nil
		}
	}
}

// another reports whether a node may be started still: with an end that was asked for, one that takes the mounts away.
func (k *keeper) another() bool { return !k.ending || len(k.mounts) > 0 && !k.last }

// await begins the patience, if it has not begun.
func (k *keeper) await() {
	if k.waits != nil {
		return
	}
	if k.Patience > 0 {
		k.out.Reset(k.Patience)
	}
	over := make(chan struct{})
	k.waits = over
	if k.Waits == nil {
		return
	}
	go func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			k.Waits()
			select {
			case <-over:
				return
			case <-tick.C:
			}
		}
	}()
}

// awaited ends the patience.
func (k *keeper) awaited() {
	k.out.Stop()
	if k.waits != nil {
		close(k.waits)
	}
	k.waits = nil
}

// waiting says who waits.
func (k *keeper) waiting() string {
	switch n := len(k.mounts); n {
	case 0:
		return ""
	case 1:
		return ", and users of 1 mount wait"
	default:
		return fmt.Sprintf(", and users of %d mounts wait", n)
	}
}

// environ is this process's, without the name of a working directory, which the node would look up in a mount, and without
// whose watchdog it is: the node feeds it.
func (k *keeper) environ() []string {
	all := slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "PWD=") || strings.HasPrefix(v, "WATCHDOG_PID=")
	})
	return append(all, k.Env...)
}

// child is a running node.
type child struct {
	process *os.Process
	leaves  bool // it makes way for one of another version
	socket  *net.UnixConn
	packets chan packet // closed at its end
	ended   chan error
}

// start starts a node, and tells it of the mounts.
func (k *keeper) start() (*child, error) {
	ours, theirs, err := pair()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(k.Program)
	cmd.Args, cmd.Dir, cmd.Env = k.Args, k.Dir, append(k.environ(), Variable+"=3")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: !k.Together} // a terminal's Ctrl-C comes by way of this process, once
	k.begin.Starts++
	err = cmd.Start()
	_ = theirs.Close() // the node has it
	if err != nil {
		_ = ours.Close() // nothing was written
		return nil, fmt.Errorf("start %s: %w", k.Program, err)
	}
	n := &child{process: cmd.Process, socket: ours, packets: make(chan packet), ended: make(chan error, 1)}
	if k.Started != nil {
		k.Started(cmd.Process.Pid)
	}
	go func() { n.ended <- cmd.Wait() }()
	go n.listen(k.Say)
	_ = ours.SetWriteDeadline(time.Now().Add(sendingEnds)) // it has no reason to fail
	// A packet that does not arrive, because the node has ended, is sent to the next one.
	for _, m := range k.mounts {
		_ = send(ours, packet{Keep: &m})
	}
	_ = send(ours, packet{Begin: &k.begin})
	for i := range k.mounts {
		k.mounts[i].Drained = false // it may have taken some when it ends
	}
	return n, nil
}

// sendingEnds is how long a node may take to hear of its mounts. One that takes longer hangs, and gets no more of them.
const sendingEnds = 10 * time.Second

// listen receives what the node says, until it ends.
func (n *child) listen(say func(string)) {
	defer close(n.packets)
	defer func() { _ = n.socket.Close() }() // nothing is written any more
	for {
		p, err := receive(n.socket)
		if err != nil && !errors.Is(err, io.EOF) {
			say("the node says what is " + err.Error())
		}
		if err != nil && !errors.Is(err, errPacket) {
			return
		}
		n.packets <- p
	}
}

// lastWords is how long a keeper waits, once its node has ended, for the end of what it said: another process that has its
// socket, by whatever mistake, must not keep the next one from starting.
const lastWords = time.Second

// lastThread is how long a node may take to end once its descriptors are closed. One that was killed while it asked its own
// mount whether it answers (point.Answers) has a thread that ends when the next node has answered, and no descriptors.
const lastThread = time.Second

// attend does what a node asks for, until it has ended. cause says how.
func (k *keeper) attend(n *child) (code int, cause string) {
	packets, ended := n.packets, n.ended
	late := time.NewTimer(time.Hour)
	late.Stop()
	defer late.Stop()
	for packets != nil || ended != nil {
		select {
		case p, more := <-packets:
			if !more {
				packets = nil
				late.Reset(lastThread)
				break
			}
			k.obey(n, p)
		case err := <-ended:
			ended = nil
			if code, cause = how(err); err == nil && n.leaves {
				cause = "has made way for another version"
			}
			_ = n.socket.SetReadDeadline(time.Now().Add(lastWords)) // it fails once all is read
		case <-late.C:
			switch {
			case ended == nil:
			case k.another():
				return 128 + int(syscall.SIGKILL), "was killed, but for a thread that waits for its own mount"
			default:
				k.drop() // nobody will answer the thread
			}
		case s := <-k.Signals:
			k.pass(n, s)
		case <-k.hold.C:
			k.release(n)
		case <-k.out.C:
			k.giveUp(n)
		}
	}
	return code, cause
}

func (k *keeper) obey(n *child, p packet) {
	switch {
	case p.Keep != nil:
		k.forget(p.Keep.ID) // a keeper that was replaced may have heard of it already
		k.mounts = append(k.mounts, *p.Keep)
	case p.Drop != "":
		k.forget(p.Drop)
	case p.Tell != "":
		k.tell(p)
	case p.Ending:
		k.ending = true
	case p.Become != "":
		err := k.become(n, p.Become)
		k.Say(err.Error())
		_ = send(n.socket, packet{Failed: err.Error()}) // it has just ended, else
	case p.Drained != "":
		if i := k.find(p.Drained); i >= 0 {
			k.mounts[i].Drained = true
		}
	case p.Serving:
		k.awaited()
		if !k.served && k.Serves != nil {
			k.Serves()
		}
		k.served, k.since = true, time.Now()
		k.release(n)
	}
}

// forget gives up a mount, if there is one of that ID.
func (k *keeper) forget(id string) {
	if i := k.find(id); i >= 0 {
		k.mounts[i].Kept.Close()
		k.mounts = slices.Delete(k.mounts, i, i+1)
	}
}

// find is the index of a mount, or -1.
func (k *keeper) find(id string) int {
	return slices.IndexFunc(k.mounts, func(m Mount) bool { return m.ID == id })
}

// tell notifies the kernel of what a node says of a mount, until that node has ended. If it ends while a notification waits
// for an answer of the node, the next one gives that.
func (k *keeper) tell(p packet) {
	i := k.find(p.Tell)
	if i < 0 {
		_ = p.socket.Close() // the node notifies by itself
		return
	}
	m := k.mounts[i]
	fd, err := unix.FcntlInt(m.Kept.Conn.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		_ = p.socket.Close()
		k.Say(fmt.Sprintf("no notifications for %s: %v", m.Kept.Dir, err))
		return
	}
	conn := os.NewFile(uintptr(fd), "/dev/fuse")
	go func() {
		fuse.Tell(conn, p.socket)
		_, _ = conn.Close(), p.socket.Close() // nothing is written any more
	}()
}

// pass passes a signal on. One to end waits for a node that takes over, unless it comes a second time.
func (k *keeper) pass(n *child, s os.Signal) {
	again := k.held != nil
	if s != syscall.SIGHUP {
		k.ending = true
	}
	if s != syscall.SIGHUP && s != syscall.SIGABRT && (k.served || len(k.mounts) > 0) && k.since.IsZero() && !again {
		k.holdBack(s)
		return
	}
	_ = n.process.Signal(s) // if it has just ended, so does this process
}

// holdBack keeps a signal to end for the next node.
func (k *keeper) holdBack(s os.Signal) {
	k.ending, k.held = true, s
	k.hold.Reset(longestHold)
}

// release sends a node what was held back for it.
func (k *keeper) release(n *child) {
	if k.held == nil {
		return
	}
	k.hold.Stop()
	_ = n.process.Signal(k.held) // if it has just ended, so does this process
	k.held = nil
}

// giveUp has the kernel end the connections, since no node came in time. A node that starts is killed where only the end of
// all descriptors does that: it has some.
func (k *keeper) giveUp(n *child) {
	k.awaited()
	if n != nil && slices.ContainsFunc(k.mounts, func(m Mount) bool { return m.Kept.Abort == nil }) {
		_ = n.process.Kill() // it has just ended, else
	}
	k.Say(fmt.Sprintf("no node has served for %v (keeper.patience): users of its mounts get errors from now on", k.Patience))
	k.drop()
}

// drop gives up all mounts. Their users get an error at once, also while a node that starts has them.
func (k *keeper) drop() {
	for _, m := range k.mounts {
		m.abort()
	}
	k.mounts = nil
}

// part gives up the mounts whose node has ended with requests that nobody would be asked again.
func (k *keeper) part() {
	k.mounts = slices.DeleteFunc(k.mounts, func(m Mount) bool {
		if m.outlives() {
			return false
		}
		m.abort()
		if !k.ending {
			k.Say(fmt.Sprintf("the mount %s has ended with its node, since Linux before 6.9 does not ask the next one for what the last one had taken", m.Kept.Dir))
		}
		return true
	})
}

// abort has the kernel end the mount's connection.
func (m *Mount) abort() {
	if m.Kept.Abort != nil {
		_, _ = m.Kept.Abort.WriteString("1") // else the end of all its descriptors does it
	}
	m.Kept.Close()
}

// rest waits before the next start. It returns false if there is to be none.
func (k *keeper) rest() bool {
	pause := time.NewTimer(k.pause)
	defer pause.Stop()
	k.pause = min(longestPause, max(firstPause, 2*k.pause))
	for {
		select {
		case <-pause.C:
			return true
		case s := <-k.Signals:
			switch {
			case s == syscall.SIGHUP:
			case len(k.mounts) > 0:
				k.holdBack(s)
				return true
			default:
				return false
			}
		case <-k.out.C:
			k.giveUp(nil)
		}
	}
}

// how says how a process ended, and with which exit code; that of a killed one is 128 and the signal's number.
func how(err error) (code int, cause string) {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return 0, "has ended"
	}
	if w, ok := exit.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return 128 + int(w.Signal()), "was killed by signal " + strconv.Itoa(int(w.Signal())) + " (" + w.Signal().String() + ")"
	}
	return exit.ExitCode(), fmt.Sprintf("has ended with exit code %d", exit.ExitCode())
}
