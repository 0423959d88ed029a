package main

import (
	"cmp"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// dropCaches empties the page cache and the kernel's name caches. Dirty pages go
// to the device first, or they would stay.
func dropCaches() error {
	syscall.Sync()
	return os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0)
}

// readerCPU is this process's CPU time so far, in seconds.
func readerCPU() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

// daemonCPU is a process's CPU time so far, in seconds, by the clock that the kernel keeps of it.
// /proc/PID/stat counts ticks of 10 ms, which is a tenth of what a short round takes.
func daemonCPU(pid int) float64 {
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|2), &t); err != nil { // as clock_getcpuclockid(3) makes it
		return 0
	}
	return time.Duration(t.Nano()).Seconds()
}

// ioCount is one of a process's counters in /proc/PID/io; 0 once it has ended.
func ioCount(pid int, name string) int64 {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, name+": "); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
			return n
		}
	}
	return 0
}

// readBytes is what a process had read from devices so far, in bytes.
func readBytes(pid int) int64 { return ioCount(pid, "read_bytes") }

// writtenBytes is what a process had devices write so far, in bytes.
func writtenBytes(pid int) int64 { return ioCount(pid, "write_bytes") }

// deviceRead is what all disks delivered so far, in bytes.
func deviceRead() int64 {
	stats, _ := filepath.Glob("/sys/block/*/stat")
	var sum int64
	for _, name := range stats {
		if strings.Contains(name, "/loop") || strings.Contains(name, "/ram") {
			continue
		}
		text, _ := os.ReadFile(name)
		if f := strings.Fields(string(text)); len(f) > 2 {
			n, _ := strconv.ParseInt(f[2], 10, 64)
			sum += n * 512
		}
	}
	return sum
}

// mounted is a file system in a process of its own: `hearth mount`, or a rival's.
type mounted struct {
	of   *build // nil: a rival
	cmd  *exec.Cmd
	dir  string
	done <-chan struct{} // closed when it has ended
}

// launch says how a node is started.
type launch struct {
	cache string   // the name of its cache directory
	ram   string   // cache.ram
	open  string   // the mount's mode; "": it has none
	flags []string // more of the mount's flags
	fresh string   // freshness; "": immutable
	disk  string   // bytes of the cache directory; "": 30GiB, which is room for all
	in    *member  // its part in a ring; nil: it is alone
	s3    *buckets // the S3 clients that it answers, and its origin; nil: none
	from  string   // the volume that it has attached; "": none
	fills bool     // and that it writes all to which it reads from the bucket
}

// mount starts Hearth on the origin's bucket.
func (h *build) mount(l launch) (*mounted, error) {
	ended := make(chan struct{})
	m := &mounted{of: h, dir: filepath.Join(h.dir, "mnt"), done: ended}
	config := filepath.Join(h.dir, l.cache+".yaml")
	socket, start := h.socket(), exec.Command
	ring := ""
	if l.in != nil {
		socket, start, ring = l.in.socket(), l.in.space.at, l.in.config()
	}
	from, env := h.origin.proxy.URL(), h.environ()
	if l.s3 != nil {
		from, env = l.s3.MinIO.Endpoint, append(os.Environ(), l.s3.MinIO.Env()...)
		ring += l.s3.config(h)
	}
	text := fmt.Sprintf("links:\n- {path: /, origin: {url: \"s3://bench\", endpoint: %q, region: us-east-1, path_style: true}, freshness: %s}\n"+
		"cache: {ram: %s, disks: [{path: %q, size: %s}], free_floor: 1GiB}\nadmin: {socket: %q, listen: \"-\"}\n",
		from, cmp.Or(l.fresh, "immutable"), l.ram, filepath.Join(h.dir, l.cache), cmp.Or(l.disk, "30GiB"), socket) + ring + l.volumes()
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	args := []string{"mount", "--config", config, "--open", l.open}
	args = append(append(args, l.flags...), "s3://bench", m.dir)
	if l.open == "" {
		args = []string{"up", "--config", config}
	}
	m.cmd = start(h.Path, args...)
	m.cmd.Env = env
	log, err := os.OpenFile(filepath.Join(h.dir, "hearth.log"), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	m.cmd.Stdout, m.cmd.Stderr = log, log
	if err := hearthtest.Spawn(m.cmd); err != nil {
		return nil, err
	}
	go func() { _ = m.cmd.Wait(); close(ended) }()
	if l.open == "" {
		err = listens(socket, m.done)
	} else {
		err = mountedAt(m.dir, m.done)
	}
	if err != nil {
		text, _ := os.ReadFile(log.Name())
		return nil, fmt.Errorf("%w: %s", err, text)
	}
	return m, nil
}

// volumes is what a node is told of its volume.
func (l launch) volumes() string {
	if l.from == "" {
		return ""
	}
	return fmt.Sprintf("volumes: {devices: [{url: %q}], fill: %s}\n", l.from, map[bool]string{true: "all", false: "evicted"}[l.fills])
}

// listens waits until a node answers at its socket, or has ended.
func listens(socket string, ended <-chan struct{}) error {
	for range 3000 {
		if conn, err := net.Dial("unix", socket); err == nil {
			return conn.Close()
		}
		select {
		case <-ended:
			return fmt.Errorf("nothing listens on %s", socket)
		case <-time.After(10 * time.Millisecond):
		}
	}
	return fmt.Errorf("nothing listens on %s within 30 s", socket)
}

// socket is where the build's node is asked.
func (h *build) socket() string { return filepath.Join(h.dir, "hearth.sock") }

// stop ends the mount in the ordinary way, so that the cache is whole.
func (m *mounted) stop() error {
	_ = m.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-m.done:
		return nil
	case <-time.After(60 * time.Second):
		_ = m.cmd.Process.Kill()
		<-m.done
		return fmt.Errorf("%s did not end within a minute of SIGTERM", filepath.Base(m.cmd.Path))
	}
}

// written is what the node had devices write in its whole life, in bytes, once it
// has ended. The kernel counts in units of 512 bytes.
func (m *mounted) written() int64 {
	usage, ok := m.cmd.ProcessState.SysUsage().(*syscall.Rusage)
	if !ok {
		return 0
	}
	return usage.Oublock * 512
}

// measure runs work and notes what it cost both processes and the origin; m may be
// nil.
func (b *bench) measure(m *mounted, work func() (sum, error)) (side, error) {
	var s side
	device, own, asked := deviceRead(), readerCPU(), b.origin.asked()
	var cpu float64
	var read, written int64
	if m != nil {
		pid := m.cmd.Process.Pid
		cpu, read, written = daemonCPU(pid), readBytes(pid), writtenBytes(pid)
	}
	start := time.Now()
	done, err := work()
	s.Seconds = time.Since(start).Seconds()
	s.Units, s.Bytes, s.ReaderCPU, s.DeviceRead = done.units, done.bytes, readerCPU()-own, deviceRead()-device
	if m != nil {
		pid := m.cmd.Process.Pid
		s.DaemonPeak = peak(pid)
		s.DaemonCPU, s.DaemonRead, s.DaemonWritten = daemonCPU(pid)-cpu, readBytes(pid)-read, writtenBytes(pid)-written
	}
	now := b.origin.asked()
	s.OriginRequests, s.OriginBytes = now.Requests-asked.Requests, now.Bytes-asked.Bytes
	s.P50us, s.P99us, s.MaxUs = percentiles(done.latency)
	return s, err
}

// peak is the most memory that a process ever had resident, in bytes.
func peak(pid int) int64 {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(v), "kB")), 10, 64)
			return n << 10
		}
	}
	return 0
}

// calls is how many reads and writes a process has made so far, of any file.
func calls(pid int) int64 { return ioCount(pid, "syscr") + ioCount(pid, "syscw") }
