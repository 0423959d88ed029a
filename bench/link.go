package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"

	"github.com/hearthfs/hearth/bench/remote"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// space is a network namespace.
type space struct{ keeper *exec.Cmd }

func newSpace() (*space, error) {
	// It ends with its standard input.
	s := &space{keeper: exec.Command("cat")}
	if _, err := s.keeper.StdinPipe(); err != nil {
		return nil, err
	}
	s.keeper.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if err := hearthtest.Spawn(s.keeper); err != nil {
		return nil, fmt.Errorf("make a network namespace: %w", err)
	}
	return s, nil
}

// close takes the namespace away, and what leads to it.
func (s *space) close() {
	_ = s.keeper.Process.Kill() // it may have ended by itself
	_ = s.keeper.Wait()
}

// id is what ip knows it by.
func (s *space) id() string { return fmt.Sprint(s.keeper.Process.Pid) }

// at is a command inside.
func (s *space) at(name string, args ...string) *exec.Cmd {
	return exec.Command("nsenter", append([]string{"--net=/proc/" + s.id() + "/ns/net", "--", name}, args...)...)
}

// address gives the device called data an address, and sets it and loopback up. Its connections
// have Linux's own congestion control, CUBIC, whatever this machine's default is: BBR paces
// them, and a sender who is told by a timer when he may go on costs a tenth more.
func (s *space) address(ip string) error {
	return errors.Join(said(s.at("ip", "address", "add", ip+"/24", "dev", "data")),
		said(s.at("ip", "link", "set", "data", "up")), said(s.at("ip", "link", "set", "lo", "up")),
		said(s.at("ip", "route", "replace", "192.0.2.0/24", "dev", "data", "src", ip, "congctl", "cubic")))
}

// said runs a command that says nothing unless it fails.
func said(cmd *exec.Cmd) error {
	if out, err := hearthtest.Output(cmd); err != nil {
		return fmt.Errorf("%v: %w: %s", cmd.Args, err, out)
	}
	return nil
}

// link is two network namespaces with an unshaped veth pair between them.
type link struct{ serves, reads *space }

// The addresses of the ends, of those that documentation may use.
const (
	servesAt = "192.0.2.1"
	readsAt  = "192.0.2.2"
)

func newLink() (*link, error) {
	serves, err := newSpace()
	if err != nil {
		return nil, err
	}
	reads, err := newSpace()
	if err != nil {
		serves.close()
		return nil, err
	}
	l := &link{serves, reads}
	err = said(exec.Command("ip", "link", "add", "data", "netns", serves.id(), "type", "veth", "peer", "name", "data", "netns", reads.id()))
	if err == nil {
		err = errors.Join(serves.address(servesAt), reads.address(readsAt))
	}
	if err != nil {
		l.close()
		return nil, fmt.Errorf("join two network namespaces: %w", err)
	}
	return l, nil
}

func (l *link) close() {
	l.serves.close()
	l.reads.close()
}

// talker is a process that tells the bench how far it is, line by line.
type talker struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	lines  *bufio.Reader
	errors *strings.Builder
}

func talk(cmd *exec.Cmd) (*talker, error) {
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	t := &talker{cmd: cmd, in: in, lines: bufio.NewReader(out), errors: &strings.Builder{}}
	cmd.Stderr = t.errors
	return t, hearthtest.Spawn(cmd)
}

// hear waits for a line that begins with a word.
func (t *talker) hear(word string) (string, error) {
	line, err := t.lines.ReadString('\n')
	if err != nil || !strings.HasPrefix(line, word) {
		t.end()
		return "", fmt.Errorf("%v said %q and not %q: %s", t.cmd.Args, line, word, t.errors)
	}
	return line, nil
}

func (t *talker) end() {
	_ = t.cmd.Process.Kill() // it may have ended by itself
	_ = t.cmd.Wait()
}

// run has a program serve at one end and read at the other. program is the command
// before "serve" or "read".
func (l *link) run(program []string, w remote.Work) (s side, err error) {
	text, err := json.Marshal(w)
	if err != nil {
		return s, err
	}
	start := func(in *space, verb string) (*talker, error) {
		args := append(slices.Clone(program[1:]), verb, servesAt+":7947", string(text))
		return talk(in.at(program[0], args...))
	}
	serves, err := start(l.serves, "serve")
	if err != nil {
		return s, err
	}
	defer serves.end()
	if _, err := serves.hear("ready"); err != nil {
		return s, err
	}
	reads, err := start(l.reads, "read")
	if err != nil {
		return s, err
	}
	defer reads.end()
	if _, err := reads.hear("begin"); err != nil {
		return s, err
	}
	pid := serves.cmd.Process.Pid
	before := daemonCPU(pid)
	if _, err := io.WriteString(reads.in, "go\n"); err != nil {
		return s, err
	}
	if _, err := reads.hear("end"); err != nil {
		return s, err
	}
	s.DaemonCPU, s.DaemonPeak = daemonCPU(pid)-before, peak(pid)
	line, err := reads.hear("{")
	if err != nil {
		return s, err
	}
	var sum remote.Sum
	if err := json.Unmarshal([]byte(line), &sum); err != nil {
		return s, err
	}
	s.Seconds, s.ReaderCPU, s.Units, s.Bytes, s.Allocs = sum.Seconds, sum.CPU, sum.Reads, sum.Bytes, sum.Allocs
	s.P50us, s.P99us, s.MaxUs = sum.P50us, sum.P99us, sum.MaxUs
	s.Checked, s.Wrong, s.Connections = w.Check, sum.Wrong, w.Connections
	return s, nil
}

// remoteProgram is the first argument of this binary as one of bench/remote's programs:
//
//	bench remote wire|nvme|tcp|framing serve|read ADDRESS WORK
const remoteProgram = "remote"

// beRemote is that process.
func beRemote(args []string) error {
	p, err := remote.Named(args[0])
	if err != nil {
		return err
	}
	var w remote.Work
	if err := json.Unmarshal([]byte(args[3]), &w); err != nil {
		return fmt.Errorf("work: %w", err)
	}
	ctx, stop := untilSignalled()
	defer stop()
	if args[1] == "serve" {
		return remote.Serve(ctx, p, args[2], w, os.Stdout)
	}
	return remote.Read(ctx, p, args[2], w, struct {
		io.Reader
		io.Writer
	}{os.Stdin, os.Stdout})
}
