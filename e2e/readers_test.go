package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/internal/faultproxy"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/node/machine"
)

// interrupted reads a file while a timer sends SIGALRM each 3 ms, without
// SA_RESTART; what ends with EINTR is asked for again. Its arguments: the file, 1
// for O_DIRECT. It prints the bytes, and last how often it was what.
const interrupted = `
use POSIX; use Fcntl; use Time::HiRes qw(setitimer ITIMER_REAL);
my ($signals, $ended, $got) = (0, 0, 0);
sigaction(SIGALRM, POSIX::SigAction->new(sub { $signals++ })) or die;
setitimer(ITIMER_REAL, 0.003, 0.003);
until (sysopen(F, $ARGV[0], O_RDONLY | ($ARGV[1] ? 040000 : 0))) { $!{EINTR} or die "open: $!"; $ended++ }
open(OUT, ">", $ARGV[2]) or die;
while (1) {
	my $n = sysread(F, my $p, 131072);
	if (!defined $n) { $!{EINTR} or die "read: $!"; $ended++; next }
	last if !$n;
	for (my $at = 0; $at < $n; ) {
		my $w = syswrite(OUT, $p, $n - $at, $at);
		defined $w ? ($at += $w) : ($!{EINTR} or die);
	}
}
setitimer(ITIMER_REAL, 0); # perl takes its handler away before it ends, and the signal would kill it
print "$signals signals, $ended calls ended";
`

// readersAndSignals: readers that are interrupted, killed, stopped and slow harm
// neither their own bytes nor anybody else.
func readersAndSignals(e *env) {
	o := e.origin()
	list := e.load(o, e.set("D1", 1, 20, 2, 50))
	s := &signalled{e: e, p: e.proxy(o)}
	for i, name := range []string{"timer", "timer-direct", "killed", "stopped", "slow"} {
		f := hearthtest.File{Path: "signals/" + name, Size: 6<<20 + int64(i)*1000}
		e.must(o.PutFile(e.ctx, o.bucket, "", f, 0), "put %s", name)
		s.files = append(s.files, f)
	}
	h := e.mount(o, settings{endpoint: s.p.endpoint, origin: beyond, mount: []string{"--open", "none"}})
	s.dir = h.dir
	s.timers()
	s.killed()
	s.stoppedAndSlow(func(what string) { e.good(what, epoch(h.dir, list, 1, 4, 0)) })
	if text := h.out.String(); strings.Contains(text, "panic") {
		e.Errorf("the node says:\n%s", text)
	}
	h.quit()
}

type signalled struct {
	e     *env
	p     *proxied
	dir   string
	files []hearthtest.File
}

func (s *signalled) name(i int) string { return filepath.Join(s.dir, s.files[i].Path) }

// timers interrupts readers of an origin that takes its time, by the page cache
// and past it.
func (s *signalled) timers() {
	s.p.SetFirstByte(100 * time.Millisecond)
	defer s.p.SetFirstByte(0)
	for i := range 2 {
		to := s.e.path(fmt.Sprintf("interrupted-%d", i))
		out, code := s.e.run("perl", "-e", interrupted, s.name(i), fmt.Sprint(i), to)
		var signals, ended int
		if _, err := fmt.Sscanf(out, "%d signals, %d calls ended", &signals, &ended); code != 0 || err != nil || signals < 2 { // those that come in one wait are one
			s.e.Fatalf("the interrupted reader: exit %d: %s", code, out)
		}
		s.e.Logf("interrupted reader %d: %s", i, out)
		s.e.must(copyIs(to, s.files[i]), "what the interrupted reader %d read", i)
	}
}

// killed kills a reader whose origin has stalled: it is gone while the origin is as
// silent as before, and who reads after the origin has recovered gets every byte.
func (s *signalled) killed() {
	s.p.AddRule(faultproxy.Rule{Verb: faultproxy.Get, Match: s.files[2].Path, Body: faultproxy.Stall, At: 1000})
	cat := s.e.start(exec.Command("cat", s.name(2)))
	s.asked(s.files[2])
	s.e.must(cat.Process.Signal(syscall.SIGKILL), "kill the reader")
	cat.gone("a reader that was killed")
	s.p.ClearRules()
	s.p.Down() // which ends what is stalled
	s.e.must(s.p.Up(), "bring the origin back")
	buf := make([]byte, 1<<20)
	s.e.eventually("reading what the killed reader had asked for", func() bool {
		_, err := readWhole(s.name(2), s.files[2], 0, buf)
		if err != nil && !errors.Is(err, syscall.EIO) {
			s.e.Fatalf("after the killed reader: %v", err)
		}
		return err == nil
	})
}

// asked waits until the origin has been asked for a file that nobody read before.
func (s *signalled) asked(f hearthtest.File) {
	s.e.eventually("a request for "+f.Path, func() bool { return s.p.Stats().InFlight > 0 })
}

// stoppedAndSlow stops one reader with SIGSTOP in the midst of its read, and takes
// from another no byte: others go on, and both end with every byte.
func (s *signalled) stoppedAndSlow(others func(what string)) {
	s.p.AddRule(faultproxy.Rule{Verb: faultproxy.Get, Match: s.files[3].Path, Delay: faultproxy.Duration(200 * time.Millisecond), Times: 1})
	to, err := os.Create(s.e.path("stopped"))
	s.e.must(err, "make a file")
	stopped := exec.CommandContext(s.e.ctx, "cat", s.name(3))
	stopped.Stdout = to
	s.e.must(stopped.Start(), "start the reader to stop")
	s.asked(s.files[3])
	s.e.must(stopped.Process.Signal(syscall.SIGSTOP), "stop it")
	slow := exec.CommandContext(s.e.ctx, "cat", s.name(4))
	pipe, err := slow.StdoutPipe()
	s.e.must(err, "a pipe")
	s.e.must(slow.Start(), "start the slow reader")
	others("beside a stopped and a slow reader")
	s.e.must(stopped.Process.Signal(syscall.SIGCONT), "let it go on")
	s.e.must(errors.Join(stopped.Wait(), to.Close()), "the stopped reader's end")
	s.e.must(copyIs(to.Name(), s.files[3]), "what the stopped reader read")
	data := make([]byte, s.files[4].Size)
	var off int
	for off < len(data) {
		n, err := pipe.Read(data[off:min(len(data), off+5000)])
		s.e.must(err, "read from the slow reader")
		off += n
	}
	s.e.must(hearthtest.Check(data, s.files[4].Path, 0, 0), "what the slow reader read")
	s.e.must(slow.Wait(), "the slow reader's end")
}

// busyMount: a mount that somebody uses is not taken away, and who it is is said;
// --lazy detaches it and its last user finishes; SIGTERM ends the node all the
// same, and says who was in the way.
func busyMount(e *env) {
	o := e.origin()
	f := hearthtest.File{Path: "dir/file", Size: 3<<20 + 5}
	e.must(o.PutFile(e.ctx, o.bucket, "", f, 0), "put a file")
	h := e.mount(o, settings{})
	file, release := e.holder(h, f)
	umount := func(args ...string) (string, int) {
		return e.run(e.hearth, append([]string{"umount", "--node", "unix://" + h.socket(), h.dir}, args...)...)
	}
	if out, code := umount(); code != 1 || !strings.Contains(out, fmt.Sprintf("process %d: open %s", file.Process.Pid, filepath.Join(h.dir, f.Path))) {
		e.Fatalf("umount of a busy mount: exit %d: %s", code, out)
	}
	if _, err := os.Stat(filepath.Join(h.dir, f.Path)); err != nil {
		e.Fatalf("a refused umount: %v", err)
	}
	if out, code := umount("--lazy"); code != 0 || len(mountsBelow(h.dir)) > 0 {
		e.Fatalf("umount --lazy: exit %d, %d mounts: %s", code, len(mountsBelow(h.dir)), out)
	}
	e.must(release(), "let the last user read")
	if code := file.exit(30 * time.Second); code != 0 {
		e.Errorf("the last user of a detached mount ended with %d: %s", code, file.out)
	}
	e.must(copyIs(e.path("held"), f), "what the last user read")
	if code := h.exit(30 * time.Second); code != 0 {
		e.Errorf("the node ended with %d after its last mount's last user", code)
	}
	h = e.mount(o, settings{cache: "cache-2"})
	second := e.path("mnt-second") // the time that users have is that of all mounts together
	e.must(os.Mkdir(second, 0o755), "make the second mount point")
	if out, code := e.run(e.hearth, "mount", "--daemon", "--node", "unix://"+h.socket(), "s3://"+o.bucket, second); code != 0 {
		e.Fatalf("the second mount: exit %d: %s", code, out)
	}
	inside := exec.Command("sleep", "1000")
	inside.Dir = h.dir
	at := e.start(inside)
	also := exec.Command("sleep", "1000")
	also.Dir = second
	e.start(also)
	h.quit()
	if says := fmt.Sprintf("process %d: its working directory", at.Process.Pid); !strings.Contains(h.out.String(), says) || !strings.Contains(h.out.String(), h.dir) {
		e.Errorf("the end of a busy node does not say %q:\n%s", says, h.out)
	}
}

// holder is a process that has a file of the mount open and reads it when it is
// released, not before.
func (e *env) holder(h *hearth, f hearthtest.File) (*process, func() error) {
	e.Helper()
	r, err := os.Open(filepath.Join(h.dir, f.Path))
	e.must(err, "open a file")
	hold := exec.Command("sh", "-c", `read x; exec cat <&3 >"$0"`, e.path("held"))
	hold.ExtraFiles = []*os.File{r}
	in, err := hold.StdinPipe()
	e.must(err, "a pipe")
	p := e.start(hold)
	e.must(r.Close(), "close our own")
	return p, func() error { _, err := in.Write([]byte("go\n")); return errors.Join(err, in.Close()) }
}

// aborted: the connection is cut by fusectl while a reader waits: the reader ends
// with an error, the node says what happened and ends or goes on without harm,
// and the next `hearth mount` at the same place works.
func aborted(e *env) {
	o := e.origin()
	list := e.load(o, e.set("D1", 1, 10, 1, 20))
	stalled := hearthtest.File{Path: "stalled", Size: 5 << 20}
	e.must(o.PutFile(e.ctx, o.bucket, "", stalled, 0), "put a file")
	p := e.proxy(o)
	h := e.mount(o, settings{endpoint: p.endpoint})
	e.good("before", epoch(h.dir, list, 1, 4, 0))
	p.AddRule(faultproxy.Rule{Verb: faultproxy.Get, Match: stalled.Path, Body: faultproxy.Stall, At: 1000})
	reader := make(chan error, 1)
	go func() { _, err := os.ReadFile(filepath.Join(h.dir, stalled.Path)); reader <- err }()
	e.eventually("a request for the stalled file", func() bool { return p.Stats().InFlight > 0 })
	abortBelow(h.dir)
	if err := <-reader; err == nil || errors.Is(err, fs.ErrNotExist) {
		e.Errorf("the reader of an aborted connection: %v", err)
	}
	p.ClearRules()
	if code := h.exit(30 * time.Second); code != 0 && code != 1 {
		e.Errorf("the node ended with %d after its connection was aborted:\n%s", code, h.out)
	}
	if left := mountsBelow(h.dir); len(left) > 0 {
		var st unix.Statfs_t
		e.Logf("left a mount point that answers %v", unix.Statfs(h.dir, &st))
	}
	h.launch(o, settings{endpoint: p.endpoint})
	h.waitFor("mounted " + h.dir)
	e.good("mounted again", epoch(h.dir, list, 2, 4, 0))
	if n := len(mountsBelow(h.dir)); n != 1 {
		e.Errorf("%d mounts at one place", n)
	}
	h.quit()
}

// numberOf is the number of what is mounted last at dir, and of its FUSE connection.
func (e *env) numberOf(dir string) string {
	e.Helper()
	all := mountsBelow(dir)
	if len(all) == 0 {
		e.Fatalf("nothing is mounted at %s", dir)
	}
	return all[len(all)-1].minor
}

// leaves ends a node while a reader's read-ahead waits for the origin, and then the
// reader: the mount is gone for the kernel, and the node has that request in hand yet.
func (h *hearth) leaves(p *proxied, f hearthtest.File) {
	h.e.Helper()
	p.AddRule(faultproxy.Rule{Verb: faultproxy.Get, Match: f.Path, Body: faultproxy.Stall, At: 1000})
	reader := h.e.start(exec.Command("cat", filepath.Join(h.dir, f.Path)))
	h.e.eventually("a request for the stalled file", func() bool { return p.Stats().InFlight > 0 })
	number := filepath.Join("/sys/fs/fuse/connections", h.e.numberOf(h.dir))
	h.e.must(h.Process.Signal(unix.SIGTERM), "end the node")
	h.e.eventually("the mount's end", func() bool { return len(mountsBelow(h.dir)) == 0 })
	reader.kill()
	h.e.eventually("the end of the connection", func() bool { _, err := os.Stat(number); return errors.Is(err, fs.ErrNotExist) })
}

// reserve makes file systems until one has a number, and takes that one away again:
// the number is the next one's then, since all below are taken. Another process of the
// machine may have been faster.
func (e *env) reserve(number string) {
	e.Helper()
	for i := range 100 {
		dir := e.path(fmt.Sprintf("number-%d", i))
		e.must(os.Mkdir(dir, 0o700), "make a directory")
		e.must(unix.Mount("none", dir, "tmpfs", 0, "size=4k"), "mount a tmpfs")
		e.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
		if e.numberOf(dir) == number {
			e.must(unix.Unmount(dir, 0), "unmount a tmpfs")
			return
		}
	}
}

// numberTaken: a node ends whose mount has gone while a read-ahead of a killed reader
// waits for the origin. The mount's number is another's by then, and that one stays.
func numberTaken(e *env) {
	o := e.origin()
	list := e.load(o, e.few(1, 20))
	stalled := hearthtest.File{Path: "stalled", Size: 5 << 20}
	e.must(o.PutFile(e.ctx, o.bucket, "", stalled, 0), "put a file")
	p := e.proxy(o)
	fusectl() // by which a node cuts a connection
	h := e.mount(o, settings{endpoint: p.endpoint})
	other, second := e.mount(o, settings{cache: "other"}), e.path("mnt-second")
	e.must(os.MkdirAll(second, 0o755), "make the mount point")
	number := e.numberOf(h.dir)
	h.leaves(p, stalled)
	e.reserve(number)
	cmd := exec.Command(e.hearth, "mount", "--config", other.config, "s3://"+o.bucket, second)
	cmd.Env = e.environ(o)
	e.start(cmd)
	e.eventually("the second mount", func() bool { return len(mountsBelow(second)) > 0 })
	if e.numberOf(second) != number { // another process of the machine has it
		e.detail = "in vain"
	}
	select {
	case <-h.done: // it took so long that this shows nothing
		e.detail = "in vain"
	default:
	}
	if code := h.exit(45 * time.Second); code != 0 {
		e.Errorf("the node ended with %d:\n%s", code, h.out)
	}
	e.good("of the other node", epoch(second, list, 1, 4, 0))
	other.quit()
}

// cutOff is what a node does about the mount of one before it that was killed and
// cannot end: a mount that does not answer is cut off, its readers get an error, and
// one that does answer is left alone.
func cutOff(e *env) {
	o := e.origin()
	list := e.load(o, e.set("D1", 1, 10, 1, 20))
	h := e.mount(o, settings{})
	e.good("before", epoch(h.dir, list, 1, 4, 0))
	const kind = "fuse.hearth"
	if cut := machine.CutOff(e.ctx, kind, []string{h.dir, e.path("none")}); cut != nil {
		e.Fatalf("%v was cut off, and answers", cut)
	}
	e.pause(h.Process)
	e.must(os.WriteFile("/proc/sys/vm/drop_caches", []byte("2"), 0), "drop what the kernel knows")
	reader := make(chan error, 1)
	go func() { _, err := os.ReadDir(filepath.Join(h.dir, "none")); reader <- err }()
	if cut := machine.CutOff(e.ctx, kind, []string{h.dir}); !slices.Equal(cut, []string{h.dir}) {
		e.Errorf("cut off: %v", cut)
	}
	if err := <-reader; !errors.Is(err, unix.ENOTCONN) && !errors.Is(err, unix.ECONNABORTED) {
		e.Errorf("who waited got %v", err)
	}
	e.must(h.Process.Signal(unix.SIGCONT), "let the node go on")
	if code := h.exit(30 * time.Second); code != 0 && code != 1 {
		e.Errorf("the node ended with %d after its mount was cut off:\n%s", code, h.out)
	}
	h.launch(o, settings{})
	h.waitFor("mounted " + h.dir) // the dead one is in the table meanwhile
	e.good("mounted again", epoch(h.dir, list, 2, 4, 0))
	h.quit()
}
