package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// hangup closes the terminal of a node, then the pipe that another one logs to: both go on, as do
// their mounts. By SIGHUP a node reads its credentials again, wrong ones and right ones, and begins
// its log anew; SIGTERM ends it as ever.
func hangup(e *env) {
	o := e.origin()
	list := e.load(o, e.set("D1", 4, 10, 1, 20))
	keys, log, dir, config := e.path("credentials"), e.path("hearth.log"), e.path("mnt"), e.writeConfig(o, settings{ram: "64MiB"})
	e.must(os.Mkdir(dir, 0o755), "make the mount point")
	write := func(secret string) {
		e.Helper()
		text := fmt.Sprintf("[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n", o.access, secret)
		e.must(os.WriteFile(keys, []byte(text), 0o600), "write the credentials")
	}
	reloads := func(n int) func() bool {
		return func() bool {
			text, err := os.ReadFile(log)
			return err == nil && strings.Count(string(text), "SIGHUP") == n
		}
	}
	write(o.secret)
	screen, terminal := e.pty()
	cmd := exec.Command(e.hearth, "mount", "--config", config, "--log-file", log, "--log-level", "info", "s3://"+o.bucket, dir)
	cmd.Env = append(e.environ(nil), "AWS_SHARED_CREDENTIALS_FILE="+keys)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, terminal, terminal
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	p := e.onTerminal(cmd)
	e.must(terminal.Close(), "close our end")
	h := &hearth{process: p, e: e, dir: dir, config: config}
	h.mounted()
	e.must(screen.Close(), "close the terminal")
	e.eventually("the node's word of it", reloads(1))
	e.good("without a terminal", epoch(dir, list[:5], 1, 2, 0))

	e.must(os.Rename(log, log+".1"), "move the log away")
	write("wrong")
	e.must(p.Process.Signal(syscall.SIGHUP), "hang up")
	e.eventually("a new log", reloads(1))
	cold := filepath.Join(dir, list[len(list)-1].Path)
	if _, err := os.ReadFile(cold); err == nil {
		e.Error("an object is read with credentials that are wrong by now")
	}
	write(o.secret)
	e.must(p.Process.Signal(syscall.SIGHUP), "hang up")
	e.eventually("its second line", reloads(2))
	e.good("with credentials that were read again", epoch(dir, list[5:], 2, 2, 0))
	e.must(os.WriteFile(keys, nil, 0o600), "empty the credentials' file")
	e.must(p.Process.Signal(syscall.SIGHUP), "hang up")
	e.eventually("its third line", reloads(3))
	if text, err := os.ReadFile(log); err != nil || !strings.Contains(string(text), "not all could be read again") {
		e.Errorf("of credentials that are gone the log says: %s, %v", text, err)
	}
	if code := p.terminate(syscall.SIGTERM); code != 0 || len(mountsBelow(dir)) != 0 {
		e.Errorf("without a terminal the node ends with %d, %d mounts are left", code, len(mountsBelow(dir)))
	}
	e.brokenPipe(o, list)
}

// onTerminal starts a program whose input and output the caller has given it.
func (e *env) onTerminal(cmd *exec.Cmd) *process {
	e.Helper()
	p := &process{Cmd: cmd, env: e, name: filepath.Base(cmd.Path), out: &output{grown: make(chan struct{})}, done: make(chan struct{})}
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP) // under nohup they are ignored, which a program inherits
	err := hearthtest.Spawn(cmd)
	signal.Stop(hangups)
	e.must(err, "start %s", p.name)
	go func() { _ = cmd.Wait(); close(p.done) }()
	e.Cleanup(p.kill)
	return p
}

// brokenPipe has nobody read any more what a node logs.
func (e *env) brokenPipe(o *server, list []hearthtest.File) {
	e.Helper()
	dir := e.path("mnt-pipe")
	e.must(os.Mkdir(dir, 0o755), "make the mount point")
	config := e.writeConfig(o, settings{extra: fmt.Sprintf("mounts: [{path: %q}]", dir)})
	r, w, err := os.Pipe()
	e.must(err, "make a pipe")
	cmd := exec.Command(e.hearth, "up", "--config", config)
	cmd.Env, cmd.Stdout, cmd.Stderr = e.environ(o), w, w
	p := e.onTerminal(cmd)
	e.must(w.Close(), "close our end")
	h := &hearth{process: p, e: e, dir: dir, config: config}
	h.mounted()
	e.must(r.Close(), "read no more")
	e.must(errors.Join(unix.Kill(p.Process.Pid, unix.SIGHUP), unix.Kill(p.Process.Pid, unix.SIGPIPE)), "hang up")
	e.good("with nobody who reads the log", epoch(dir, list, 3, 2, 0))
	if code := p.terminate(syscall.SIGTERM); code != 0 || len(mountsBelow(dir)) != 0 {
		e.Errorf("with nobody who reads its log the node ends with %d, %d mounts are left", code, len(mountsBelow(dir)))
	}
}
