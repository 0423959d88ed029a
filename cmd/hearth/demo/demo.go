// Package demo shows Hearth's main job on data of its own. It starts a real S3 server, makes
// pictures and large files, remembers their hashes and uploads them. Then it mounts the bucket by
// nodes in processes of their own, which form a ring.
//
// The readers of all nodes share the files of a cold and of a warm epoch in random order. The workers
// of a distributed job do the same. So a node is mostly asked for blocks that others own. In the
// middle of a third epoch one node is killed with SIGKILL. The next one, which its keeper starts,
// serves its mount, and no reader gets an error. Where a mount cannot outlive its node (Linux before
// 6.9), the others go on, and read what its readers did not; a single node is killed between two
// epochs then, and mounted again on its cache.
//
// In the end a checkpoint is written through a writable mount of the first node, renamed, and read back
// by another node.
//
// Every byte is compared with what was made, never with what Hearth says. A proxy between the nodes
// and the server counts the requests to the origin.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Options say what a demo reads, and how large it is.
type Options struct {
	Hearth string    // the hearth binary to run
	Out    io.Writer // where the story is told
	Origin string    // the user's own bucket, read-only; "" means an S3 server and data made here
	Dir    string    // where data and cache lie; "" means a temporary directory, removed at the end
	Images int       // number of small pictures; 3,000 take a minute
	Large  int       // number of files of 64 MiB
	Nodes  int       // number of nodes that share the reading, 1 to MostNodes
	Keep   bool      // leave everything running until interrupted
}

// ErrMismatch says that some byte that was read is not the byte that was made.
var ErrMismatch = errors.New("bytes read differ from bytes made")

// ErrNothing says that the options ask for no data at all.
var ErrNothing = errors.New("a demo needs something to read")

type demo struct {
	Options
	began  time.Time
	files  []file
	server *server // nil with the user's own bucket
	nodes  []*mounted
	ring   membership
	rows   []row
	own    bool // the bucket is the user's: its right bytes are not known here
}

// Run runs the demo until it is done, failed or ctx ends.
func Run(ctx context.Context, opts Options) error {
	if opts.Nodes < 1 || opts.Nodes > MostNodes {
		return fmt.Errorf("%d nodes: 1 to %d are possible: %w", opts.Nodes, MostNodes, ErrNothing)
	}
	if opts.Images < 0 || opts.Large < 0 || opts.Images+opts.Large == 0 {
		return fmt.Errorf("%d images and %d large files: %w", opts.Images, opts.Large, ErrNothing)
	}
	d := &demo{Options: opts, began: time.Now(), own: opts.Origin != ""}
	if d.Dir == "" {
		dir, err := os.MkdirTemp(scratch(), "hearth-demo-")
		if err != nil {
			return fmt.Errorf("make a directory for the demo: %w", err)
		}
		d.Dir = dir
		defer func() { _ = os.RemoveAll(dir) }()
	} else if err := os.MkdirAll(d.Dir, 0o755); err != nil {
		return fmt.Errorf("make a directory for the demo: %w", err)
	}
	defer d.stop()
	if err := d.prepare(ctx); err != nil {
		return err
	}
	if err := d.epochs(ctx); err != nil {
		return err
	}
	if err := d.checkpoint(ctx); err != nil {
		return err
	}
	d.table()
	d.next()
	if d.Keep {
		d.say("still running; Ctrl-C ends it")
		<-ctx.Done()
	}
	return nil
}

// scratch prefers /var/tmp, since /tmp is memory on many machines.
func scratch() string {
	if os.Getenv("TMPDIR") != "" {
		return ""
	}
	if s, err := os.Stat("/var/tmp"); err == nil && s.IsDir() {
		return "/var/tmp"
	}
	return ""
}

// say prints a step, with the seconds since the beginning.
func (d *demo) say(format string, args ...any) {
	_, _ = fmt.Fprintf(d.Out, "%5.1fs  %s\n", time.Since(d.began).Seconds(), fmt.Sprintf(format, args...)) // an error of printing ends nothing
}

// prepare makes the origin, its data, and the mounts.
func (d *demo) prepare(ctx context.Context) error {
	if d.Origin == "" {
		s, err := startServer(ctx, d.Dir)
		if err != nil {
			return err
		}
		d.server, d.Origin = s, "s3://"+bucket
		d.say("a real S3 server answers at %s", s.endpoint)
		d.files = plan(d.Images, d.Large)
		if err := d.fits(); err != nil {
			return err
		}
		if err := s.upload(ctx, d.files); err != nil {
			return fmt.Errorf("upload the data: %w", err)
		}
		d.say("uploaded %d files, %s, their hashes kept here", len(d.files), size(total(d.files)))
		d.say("objects of the server lie in %s", s.objects())
	}
	return d.mount(ctx)
}

// beside is what a demo takes in bytes beside its data: the checkpoint, which is a draft, an object and
// blocks at once, names, logs, and what the nodes leave free.
const beside = 512 << 20

// fits compares what the demo will take with what is free, so that it does not end midway. The data lies at
// the server and in the caches.
func (d *demo) fits() error {
	var st unix.Statfs_t
	if err := unix.Statfs(d.Dir, &st); err != nil {
		return fmt.Errorf("look at the demo's directory %s: %w", d.Dir, err)
	}
	data := total(d.files)
	need, free := data+min(data, d.room())*int64(d.Nodes)+beside, int64(st.Bavail)*st.Bsize
	if need > free {
		return fmt.Errorf("a demo of %s takes up to %s, and %s has %s free: name another directory with --dir, or read less (--images, --large): %w",
			size(data), size(need), d.Dir, size(free), syscall.ENOSPC)
	}
	return nil
}

// mount starts the nodes that do not run yet. They mount if FUSE works here; otherwise the demo
// reads through their sockets.
func (d *demo) mount(ctx context.Context) error {
	if err := d.ring.prepare(d); err != nil {
		return err
	}
	for i := len(d.nodes); i < d.Nodes; i++ {
		m, err := launch(d, i)
		if err != nil {
			return err
		}
		d.nodes = append(d.nodes, m)
	}
	for _, m := range d.nodes {
		if err := m.answers(ctx); err != nil {
			return err
		}
	}
	if err := d.gathered(ctx); err != nil {
		return err
	}
	m := d.nodes[0]
	switch {
	case m.dir == "":
		d.say("no /dev/fuse here: reading through the node instead of a mount")
	case d.Nodes == 1:
		d.say("mounted %s on %s (process %d reads for us; this one, %d, is only a reader)", d.Origin, m.dir, m.cmd.Process.Pid, os.Getpid())
	default:
		d.say("mounted %s on %s and so on, by %d nodes of a ring; each may keep %s", d.Origin, m.dir, d.Nodes, size(d.room()))
	}
	if d.files == nil {
		var err error
		if d.files, err = m.survey(ctx, d.Images); err != nil {
			return err
		}
		d.say("your bucket: reading %d files of it, %s; without their hashes, this shows agreement of two epochs only", len(d.files), size(total(d.files)))
	}
	return nil
}

// epochs reads everything cold, warm, and once more around a SIGKILL.
func (d *demo) epochs(ctx context.Context) error {
	rng := rand.New(rand.NewPCG(uint64(d.began.UnixNano()), 7))
	for _, name := range []string{"cold", "warm"} {
		if err := d.epoch(ctx, name, rng, nil); err != nil {
			return err
		}
	}
	victim := d.nodes[len(d.nodes)-1]
	if s, err := victim.status(); d.Nodes > 1 || err == nil && len(s.Mounts) > 0 && s.Mounts[0].Kept {
		return d.epoch(ctx, "one killed", rng, victim)
	}
	d.say("killing that Hearth with SIGKILL, and mounting again on the same cache")
	victim.kill()
	d.nodes = nil
	if err := d.mount(ctx); err != nil {
		return fmt.Errorf("mount again after the kill: %w", err)
	}
	return d.epoch(ctx, "after kill -9", rng, nil)
}

// epoch reads all files in random order, each through one of the nodes. Half-way it kills victim,
// if there is one.
func (d *demo) epoch(ctx context.Context, name string, rng *rand.Rand, victim *mounted) error {
	w := &work{files: d.files, left: rng.Perm(len(d.files)), nodes: d.nodes}
	after := ""
	if victim != nil {
		w.half = func() error {
			stalled, outlived, err := victim.outlived(ctx)
			switch {
			case outlived:
				d.say("half-way: %s killed with SIGKILL; the next one serves its mount", victim.name)
				after = fmt.Sprintf("; 0 errors, longest stall %.2fs", stalled.Seconds())
			case err == nil:
				d.say("half-way: killing %s with SIGKILL; the others go on", victim.name)
				victim.kill()
			}
			return err
		}
	}
	before := d.asked()
	start := time.Now()
	err := w.run(ctx)
	took := time.Since(start)
	if err != nil {
		return fmt.Errorf("%s epoch: %w", name, err)
	}
	r := row{name: name, files: len(d.files), bytes: total(d.files), took: took, asked: d.asked().minus(before), wrong: len(w.bad)}
	d.rows = append(d.rows, r)
	d.say("%s epoch: %d files in random order, %.0f files/s, %s/s, the slowest one %v%s", name, r.files, float64(r.files)/took.Seconds(),
		size(int64(float64(r.bytes)/took.Seconds())), w.slowest.Round(time.Millisecond), after)
	if len(w.bad) > 0 {
		for _, f := range w.bad[:min(3, len(w.bad))] {
			d.say("WRONG: %s", f)
		}
		return fmt.Errorf("%s epoch: %d of %d files: %w", name, len(w.bad), len(d.files), ErrMismatch)
	}
	return nil
}

// asked is what the origin was asked for so far, and what nodes got from each other. The proxy
// before the origin counts it, or the nodes do if the bucket is the user's.
func (d *demo) asked() (sum counts) {
	for _, m := range d.nodes {
		sum = sum.plus(m.counts())
	}
	if d.server != nil {
		c := d.server.counts()
		sum.requests, sum.bytes = c.requests, c.bytes
	}
	return sum
}

func (d *demo) stop() {
	for _, m := range d.nodes {
		m.end()
	}
	for _, m := range d.nodes {
		m.stop()
	}
	if d.server != nil {
		d.server.stop()
	}
}

// next prints the verdict and four commands to try, on the nodes that still run or on a bucket of
// the user's.
func (d *demo) next() {
	verdict := "Every byte matched."
	if d.own {
		verdict = "All epochs read the same bytes."
	}
	if d.Keep {
		at := "--node unix://" + d.nodes[0].socket
		_, _ = fmt.Fprintf(d.Out, "\n%s Try next, in another terminal:\n  hearth status %s\n  hearth ls -l /%s %s\n  hearth stat -v /%s %s\n  find %s | head\n",
			verdict, at, path.Dir(d.files[0].name), at, d.files[0].name, at, d.nodes[0].dir)
		return
	}
	_, _ = fmt.Fprintf(d.Out, "\n%s Try next, on a bucket of yours:\n"+
		"  hearth mount s3://BUCKET/PREFIX /mnt/data     # AWS_* variables work unchanged\n"+
		"  hearth status                                 # what is going on, on one screen\n"+
		"  hearth stat -v /path/in/the/bucket            # version, blocks, tiers, age\n"+
		"  hearth umount /mnt/data\n", verdict)
}

// lookFor finds a program beside the binary, in the tool directory, or in PATH.
func lookFor(name string) (string, error) {
	var dirs []string
	if t := os.Getenv("HEARTH_TOOLS"); t != "" {
		dirs = append(dirs, t)
	}
	if self, err := os.Executable(); err == nil {
		dirs = append(dirs, filepath.Join(filepath.Dir(self), ".tools", "bin"))
	}
	dirs = append(dirs, filepath.Join(".tools", "bin"))
	for _, dir := range dirs {
		if p, err := filepath.Abs(filepath.Join(dir, name)); err == nil {
			if s, err := os.Stat(p); err == nil && s.Mode()&0o111 != 0 {
				return p, nil
			}
		}
	}
	return exec.LookPath(name)
}
