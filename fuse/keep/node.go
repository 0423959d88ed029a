package keep

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Variable is the environment variable that tells a node which descriptor is its keeper's socket.
const Variable = "HEARTH_KEEPER"

// Keeper is the node's end of the socket. A nil Keeper keeps nothing.
type Keeper struct {
	// Mounts are those that the node has to take over, and Begin says why it was started.
	Mounts []Mount
	Begin  Begin

	// Successor are the name and arguments of a keeper that this node starts where its own has gone.
	Successor []string

	answer chan error // of Become; capacity 1
	mu     sync.Mutex // one packet at a time; guards the rest
	socket *net.UnixConn
	quit   chan struct{} // closed by Close
	has    []Mount       // with descriptors of its own, for another keeper
}

// Present reports whether a keeper has started this process as a node.
func Present() bool { return os.Getenv(Variable) != "" && os.Getenv(NodeVariable) == "" }

// FromEnvironment returns the keeper that started this process, or nil. It waits for the mounts.
func FromEnvironment() (*Keeper, error) {
	value := os.Getenv(Variable)
	if value == "" {
		return nil, nil
	}
	_ = os.Unsetenv(Variable) // it cannot fail for this name; no child of ours is a node
	fd, err := strconv.Atoi(value)
	if err != nil {
		return nil, fmt.Errorf("%s=%s is no descriptor", Variable, value)
	}
	socket, err := socketOf(os.NewFile(uintptr(fd), "keeper"))
	if err != nil {
		return nil, err
	}
	_ = os.WriteFile("/proc/self/comm", []byte("hearth"), 0) // it was started as /proc/self/exe
	k := &Keeper{socket: socket, answer: make(chan error, 1), quit: make(chan struct{})}
	for {
		p, err := receive(socket)
		switch {
		case err != nil:
			_ = socket.Close() // nothing was written
			return nil, fmt.Errorf("ask the keeper for the mounts: %w", err)
		case p.Keep != nil:
			k.Mounts = append(k.Mounts, *p.Keep)
		case p.Begin != nil:
			k.Begin = *p.Begin
			return k, nil
		}
	}
}

// Has reports whether there are mounts to take over.
func (k *Keeper) Has() bool { return k != nil && len(k.Mounts) > 0 }

// Keep has the keeper keep a mount from now on. It returns once the keeper's copy of the descriptors is in its socket.
func (k *Keeper) Keep(m Mount) error {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.took(m); err != nil {
		return err
	}
	return k.sayLocked(packet{Keep: &m})
}

// Took says that a mount that the keeper has is this node's now. If the keeper goes, the next one gets it from here.
func (k *Keeper) Took(m Mount) (err error) {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.took(m)
}

// took adds a mount for the next keeper. The caller holds k.mu.
func (k *Keeper) took(m Mount) (err error) {
	if m.Kept, err = m.Kept.Copy(); err == nil {
		k.has = append(k.has, m)
	}
	return err
}

// Teller is a socket to the keeper, which notifies the kernel of what comes there (fuse.Tell). The caller closes it.
func (k *Keeper) Teller(id string) (*os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make a pair of sockets: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "teller"), os.NewFile(uintptr(fds[1]), "teller")
	defer func() { _ = theirs.Close() }() // the keeper has it
	if err := k.say(packet{Tell: id, socket: theirs}); err != nil {
		_ = ours.Close() // nothing was written
		return nil, err
	}
	return ours, nil
}

// Drop says that a mount is gone.
func (k *Keeper) Drop(id string) error {
	if k != nil {
		k.mu.Lock()
		k.has = slices.DeleteFunc(k.has, func(m Mount) bool {
			if m.ID == id {
				m.Kept.Close()
			}
			return m.ID == id
		})
		k.mu.Unlock()
	}
	return k.say(packet{Drop: id})
}

// Drained says that all that this node took of a mount is answered, and that it takes no more.
func (k *Keeper) Drained(id string) error { return k.say(packet{Drained: id}) }

// Serving says that all mounts are served.
func (k *Keeper) Serving() error { return k.say(packet{Serving: true}) }

// Ending says that the node takes its mounts away and ends for good.
func (k *Keeper) Ending() error { return k.say(packet{Ending: true}) }

// Attend hears the keeper, until Close. If the keeper goes, another one is started. say tells of that in a line.
func (k *Keeper) Attend(say func(text string)) {
	var pause time.Duration // before another keeper is started
	var began time.Time     // of the last one; 0: the first one is there
	for {
		p, err := receive(k.socket) // only this goroutine sets it
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case errors.Is(err, errPacket):
			say("the keeper says what is " + err.Error())
		case err != nil:
			k.reply(errors.New("the keeper has gone"))
			if time.Since(began) > steady {
				pause = 0
			}
			if !k.replace(pause, say) {
				return
			}
			began, pause = time.Now(), min(longestPause, max(firstPause, 2*pause))
		case p.Begin != nil && !began.IsZero() && pause > 0:
			say("the keeper has gone: another one is started, and has the mounts")
			k.reply(nil)
		case p.Begin != nil:
			k.reply(nil)
		case p.Failed != "":
			k.reply(errors.New(p.Failed))
		}
	}
}

// reply ends a Become, if there is one.
func (k *Keeper) reply(err error) {
	select {
	case k.answer <- err:
	default: // an earlier answer lies there
	}
}

// replace starts another keeper, with the mounts, after a pause. It tries until it can, and returns false after Close.
func (k *Keeper) replace(pause time.Duration, say func(text string)) bool {
	for ; ; pause = min(longestPause, max(firstPause, 2*pause)) {
		select {
		case <-time.After(pause):
		case <-k.quit:
			return false
		}
		k.mu.Lock()
		err := k.next()
		k.mu.Unlock()
		switch {
		case errors.Is(err, net.ErrClosed):
			return false
		case err == nil:
			return true
		}
		say("the keeper has gone, and another one cannot be started: " + err.Error())
	}
}

// next starts a keeper. The caller holds k.mu.
func (k *Keeper) next() error {
	select {
	case <-k.quit:
		return net.ErrClosed
	default:
	}
	mounts, err := bequeath(k.has, k.Begin)
	if err != nil {
		return err
	}
	defer func() { _ = mounts.Close() }() // the keeper has it
	ours, theirs, err := pair()
	if err != nil {
		return err
	}
	defer func() { _ = theirs.Close() }() // likewise
	cmd := exec.Command("/proc/self/exe")
	cmd.Args, cmd.Env = k.Successor, append(os.Environ(), variables(3, 4, os.Getpid(), false)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.ExtraFiles = []*os.File{mounts, theirs}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a terminal's Ctrl-C is the node's
	if err := cmd.Start(); err != nil {
		_ = ours.Close() // nothing was written
		return fmt.Errorf("start a keeper: %w", err)
	}
	go func() { _ = cmd.Wait() }() // its socket tells
	_ = k.socket.Close()           // nobody reads it
	k.socket = ours
	return nil
}

// becomes is how long a keeper may take to become another program.
const becomes = 10 * time.Second

// Become has another program take the keeper's place. That program starts the nodes from then on. On an error the keeper is
// as before, or another one of this node's version.
func (k *Keeper) Become(program string) error {
	if k == nil {
		return errors.New("the node has no keeper")
	}
	k.mu.Lock()
	defer k.mu.Unlock() // what is said meanwhile could be lost
	select {
	case err := <-k.answer:
		_ = err // late, of an earlier one
	default:
	}
	if err := send(k.socket, packet{Become: program}); err != nil {
		return fmt.Errorf("tell the keeper: %w", err)
	}
	late := time.NewTimer(becomes)
	defer late.Stop()
	select {
	case err := <-k.answer:
		return err
	case <-late.C:
		return fmt.Errorf("the keeper has not become %s within %v", program, becomes)
	}
}

func (k *Keeper) say(p packet) error {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.sayLocked(p)
}

func (k *Keeper) sayLocked(p packet) error {
	if err := send(k.socket, p); err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("tell the keeper: %w", err)
	}
	return nil
}

// Close closes the socket. The keeper takes that for nothing but the end of the process.
func (k *Keeper) Close() {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	select {
	case <-k.quit:
		return
	default:
	}
	close(k.quit)
	_ = k.socket.Close() // what was sent is there
	for _, m := range k.has {
		m.Kept.Close()
	}
	k.has = nil
}
