package demo

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hearthfs/hearth/node/machine"
)

// mounted is a node in a process of its own, and the way to read through it.
type mounted struct {
	name   string
	cmd    *exec.Cmd
	dir    string // the mount point; "" means that reads go through the node's socket
	writes string // that of a second mount, which is writable; "" means that there is none
	socket string
	log    *lockedBuffer
	done   chan struct{} // closed when the process has ended
	killed atomic.Bool   // errors of its readers are no fault from now on
	said   counts        // its counts when it was last asked
	lost   counts        // those of its processes that were killed
}

// lockedBuffer keeps the output of a process, in case it fails.
type lockedBuffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.TrimSpace(l.b.String())
}

// canMount tells whether this machine lets us open /dev/fuse.
func canMount() bool {
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		return false
	}
	_ = f.Close()
	return true
}

// launch starts node i, counted from 0.
func launch(d *demo, i int) (*mounted, error) {
	m := &mounted{name: fmt.Sprintf("node-%d", i+1), log: &lockedBuffer{}, done: make(chan struct{})}
	base := d.Dir
	if d.Nodes > 1 || i > 0 {
		base = filepath.Join(d.Dir, m.name)
		if err := os.MkdirAll(base, 0o755); err != nil {
			return nil, fmt.Errorf("make a directory for %s: %w", m.name, err)
		}
	}
	m.socket = filepath.Join(base, "hearth.sock")
	config, err := d.config(base, i)
	if err != nil {
		return nil, err
	}
	args := []string{"up", "--config", config}
	if canMount() {
		m.dir = filepath.Join(base, "mnt")
		if err := os.MkdirAll(m.dir, 0o755); err != nil && !errors.Is(err, syscall.ENOTCONN) {
			return nil, fmt.Errorf("make the mount point: %w", err)
		}
		args = []string{"keep", "mount", "--config", config, d.Origin, m.dir}
	}
	m.cmd = exec.Command(d.Hearth, args...)
	m.cmd.Env = d.environ()
	if d.server != nil {
		m.cmd.Env = append(m.cmd.Env, "AWS_ACCESS_KEY_ID="+d.server.access, "AWS_SECRET_ACCESS_KEY="+d.server.secret)
	}
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM, Setpgid: true}
	m.cmd.Stdout, m.cmd.Stderr = m.log, m.log
	m.cmd.WaitDelay = 2 * time.Second // a node that outlives its keeper has them, too
	if err := m.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", d.Hearth, err)
	}
	go func() { _ = m.cmd.Wait(); close(m.done) }()
	return m, nil
}

// environ is this process's environment, without the variables that would change how the demo's
// nodes are configured.
func (d *demo) environ() []string {
	return slices.DeleteFunc(os.Environ(), func(pair string) bool {
		return strings.HasPrefix(pair, "HEARTH_") || d.server != nil && strings.HasPrefix(pair, "AWS_")
	})
}

// config writes the configuration of node i, whose files lie in base. With data of its own the free-space floor is small: fits has
// seen that there is room.
func (d *demo) config(base string, i int) (string, error) {
	origin, floor := d.Origin, ""
	if d.server != nil {
		floor = ", free_floor: 64MiB"
		origin = fmt.Sprintf("{url: %q, endpoint: %q, region: us-east-1, path_style: true}", d.Origin, d.server.endpoint)
	}
	text := fmt.Sprintf("origin: %s\ncache: {ram: 256MiB, disks: [{path: %q, size: %d}]%s}\nadmin: {socket: %q, listen: \"-\"}\n%s",
		origin, filepath.Join(base, "cache"), d.room(), floor, filepath.Join(base, "hearth.sock"), d.ring.config(i))
	name := filepath.Join(base, "hearth.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		return "", fmt.Errorf("write the demo's configuration: %w", err)
	}
	return name, nil
}

// answers waits until the mount stands in the kernel's table. Without a mount it waits until the
// socket takes requests.
func (m *mounted) answers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		if m.dir != "" && inMountTable(m.dir) {
			return nil
		}
		if m.dir == "" {
			if c, err := net.Dial("unix", m.socket); err == nil {
				return c.Close()
			}
		}
		select {
		case <-m.done:
			return fmt.Errorf("hearth ended instead of serving: %s", m.log)
		case <-ctx.Done():
			return fmt.Errorf("hearth did not serve within a minute: %s", m.log)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func inMountTable(dir string) bool {
	table, err := os.ReadFile("/proc/self/mountinfo")
	return err == nil && strings.Contains(string(table), " "+dir+" ")
}

// hash reads one file as a loader does (open, fstat, read, close), and checks its size on the way.
func (m *mounted) hash(ctx context.Context, f *file, buf []byte) (sum [sha256.Size]byte, err error) {
	r, err := m.open(ctx, f)
	if err != nil {
		return sum, err
	}
	defer func() { _ = r.Close() }()
	h := sha256.New()
	n, err := io.CopyBuffer(struct{ io.Writer }{h}, struct{ io.Reader }{r}, buf)
	if err != nil {
		return sum, fmt.Errorf("read %s: %w", f.name, err)
	}
	if n != f.size {
		return sum, fmt.Errorf("read %s: %d bytes of %d: %w", f.name, n, f.size, ErrMismatch)
	}
	return [sha256.Size]byte(h.Sum(nil)), nil
}

func (m *mounted) open(ctx context.Context, f *file) (io.ReadCloser, error) {
	if m.dir == "" {
		resp, err := m.request(ctx, "/v1/cat?off=0&n=-1&path="+url.QueryEscape("/"+f.name))
		if err != nil {
			return nil, err
		}
		return resp.Body, nil
	}
	r, err := os.Open(filepath.Join(m.dir, f.name))
	if err != nil {
		return nil, err
	}
	s, err := r.Stat()
	if err == nil && s.Size() != f.size {
		err = fmt.Errorf("stat %s: %d bytes, made with %d: %w", f.name, s.Size(), f.size, ErrMismatch)
	}
	if err != nil {
		_ = r.Close()
		return nil, err
	}
	return r, nil
}

// request sends a request to the node's admin socket.
func (m *mounted) request(ctx context.Context, path string) (*http.Response, error) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", m.socket)
		}}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://hearth"+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask the node: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1024))
		_ = resp.Body.Close()
		return nil, fmt.Errorf("ask the node for %s: %s: %s", path, resp.Status, text)
	}
	return resp, nil
}

// status is the part of a node's status that the demo uses.
type status struct {
	PID    int
	Mounts []struct{ Kept bool }
	Keeper struct {
		StalledS float64 `json:"stalled_s"`
	}
	Origin struct{ Requests, Bytes int64 }
	Ring   struct{ Reads struct{ Bytes int64 } }
}

func (m *mounted) status() (s status, err error) {
	err = m.ask(context.Background(), "/v1/status", &s)
	return s, err
}

// owners is the number of nodes that own a share of the blocks, as this node knows it.
func (m *mounted) owners(ctx context.Context) (n int, err error) {
	var ring struct{ Members []struct{ Share float64 } }
	err = m.ask(ctx, "/v1/ring", &ring)
	for _, x := range ring.Members {
		if x.Share > 0 {
			n++
		}
	}
	return n, err
}

func (m *mounted) ask(ctx context.Context, path string, answer any) error {
	resp, err := m.request(ctx, path)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	return json.NewDecoder(resp.Body).Decode(answer)
}

// counts is what the node asked of its origin and got from its peers, as it says. A killed node
// counts as it last said.
func (m *mounted) counts() counts {
	if !m.killed.Load() {
		if s, err := m.status(); err == nil {
			m.said = m.lost.plus(counts{requests: s.Origin.Requests, bytes: s.Origin.Bytes, peers: s.Ring.Reads.Bytes})
		}
	}
	return m.said
}

// survey lists up to most files of the user's own bucket, through the mount.
func (m *mounted) survey(ctx context.Context, most int) ([]file, error) {
	var files []file
	if m.dir == "" {
		return nil, errors.New("a demo on a bucket of your own needs /dev/fuse")
	}
	err := filepath.WalkDir(m.dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil || ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		if len(files) == most {
			return fs.SkipAll
		}
		if e.Type().IsRegular() {
			info, err := e.Info()
			if err != nil {
				return err
			}
			name, _ := filepath.Rel(m.dir, p)
			files = append(files, file{name: name, size: info.Size()})
		}
		return nil
	})
	if err == nil && len(files) == 0 {
		err = errors.New("no objects there")
	}
	if err != nil {
		return nil, fmt.Errorf("look into your bucket: %w", err)
	}
	return files, nil
}

// outlived kills the node by SIGKILL, and returns once the next one serves its mount, and how long that stood still. It does
// nothing and returns false where the mount would end with the node.
func (m *mounted) outlived(ctx context.Context) (stalled time.Duration, ok bool, err error) {
	s, err := m.status()
	if err != nil || len(s.Mounts) == 0 || !s.Mounts[0].Kept {
		return 0, false, err
	}
	m.lost = m.counts()
	if err := syscall.Kill(s.PID, syscall.SIGKILL); err != nil {
		return 0, false, fmt.Errorf("kill %s: %w", m.name, err)
	}
	for before := s.PID; ctx.Err() == nil; {
		if s, err := m.status(); err == nil && s.PID != before {
			return time.Duration(s.Keeper.StalledS * float64(time.Second)), true, nil
		}
		select {
		case <-m.done:
			return 0, false, fmt.Errorf("%s ended instead of starting again: %s", m.name, m.log)
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
	return 0, false, ctx.Err()
}

// kill ends the process by SIGKILL, and takes the dead mount away.
func (m *mounted) kill() {
	m.counts()
	m.killed.Store(true)
	m.killAll()
	m.detach()
}

// end asks the process to unmount and end.
func (m *mounted) end() {
	if !m.killed.Load() {
		_ = m.cmd.Process.Signal(syscall.SIGTERM)
	}
}

// stop waits for the end of the process, and kills it after 10 seconds.
func (m *mounted) stop() {
	select {
	case <-m.done:
	case <-time.After(10 * time.Second):
		m.killAll()
	}
	m.detach()
}

// killAll kills keeper and node. The node stands still first, since it would start another keeper.
func (m *mounted) killAll() {
	s, err := m.status()
	if err == nil {
		_ = syscall.Kill(s.PID, syscall.SIGSTOP) // it has just ended, else
	}
	_ = m.cmd.Process.Kill()
	if err == nil {
		_ = syscall.Kill(s.PID, syscall.SIGKILL)
	}
	<-m.done
}

// detach unmounts what a killed process left behind.
func (m *mounted) detach() {
	for _, dir := range []string{m.dir, m.writes} {
		if dir != "" && inMountTable(dir) {
			_ = machine.Unmount(dir, "fuse.hearth", true) // a mount that stays can be seen in the mount table
		}
	}
}
