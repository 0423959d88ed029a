package demo

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

const (
	checkpointName = "checkpoints/step-1000.pt"
	// seenWithin is how long a file that was written may take to be seen by another node. In a ring it is a second.
	seenWithin = 10 * time.Second
)

// checkpoint writes a file through a writable mount of the first node, as a training job does: under a temporary name, fsync,
// close, rename. Another node reads it back. A bucket of the user's own is only read.
func (d *demo) checkpoint(ctx context.Context) error {
	writer := d.nodes[0]
	switch {
	case d.own:
		d.say("no checkpoint is written: your bucket is only read")
		return nil
	case writer.dir == "":
		d.say("no checkpoint is written: without /dev/fuse there is no mount to write through")
		return nil
	}
	if err := d.mountToWrite(ctx, writer); err != nil {
		return err
	}
	d.say("checkpoint: mounted %s once more, for writing, on %s", d.Origin, writer.writes)
	f := &file{name: checkpointName, size: largeSize, seed: 1 << 32}
	data := f.content()
	before := d.server.counts()
	final := filepath.Join(writer.writes, f.name)
	if err := os.MkdirAll(filepath.Dir(final), 0o755); err != nil {
		return fmt.Errorf("write a checkpoint: %w", err)
	}
	began := time.Now()
	if err := writeSynced(final+".tmp", data); err != nil {
		return fmt.Errorf("write a checkpoint: %w", err)
	}
	staged := time.Since(began)
	if _, err := os.Stat(filepath.Join(d.server.objects(), f.name+".tmp")); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the temporary name of the checkpoint is in the bucket, or nobody can tell: %v", err)
	}
	d.say("wrote %s.tmp, %s, fsync and close in %.2fs: it is on the disk of %s, and the bucket has no such name", f.name, size(f.size), staged.Seconds(), writer.name)
	began = time.Now()
	if err := os.Rename(final+".tmp", final); err != nil {
		return fmt.Errorf("rename a checkpoint: %w", err)
	}
	took, cost := time.Since(began), d.server.counts().minus(before)
	d.say("renamed it to %s in %.2fs: that ends the upload; %.2f bytes sent per byte written, %d requests", f.name, took.Seconds(),
		float64(cost.sent)/float64(f.size), cost.requests)
	return d.readCheckpoint(ctx, f)
}

// readCheckpoint reads the checkpoint by another node than the one that wrote it.
func (d *demo) readCheckpoint(ctx context.Context, f *file) error {
	reader, err := d.another(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	buf := make([]byte, 1<<20)
	sum, err := reader.hash(ctx, f, buf)
	for errors.Is(err, fs.ErrNotExist) && time.Since(began) < seenWithin { // it has yet to hear of the name
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
		sum, err = reader.hash(ctx, f, buf)
	}
	switch {
	case err != nil:
		return fmt.Errorf("read the checkpoint by %s: %w", reader.name, err)
	case sum != f.hash:
		return fmt.Errorf("read the checkpoint by %s: sha256 %x, not %x: %w", reader.name, sum[:4], f.hash[:4], ErrMismatch)
	}
	d.say("%s read it back in %.2fs: every byte matched", reader.name, time.Since(began).Seconds())
	return nil
}

// another is a node that is not the first one. It is started if there is none, or none that lives.
func (d *demo) another(ctx context.Context) (*mounted, error) {
	for _, m := range d.nodes[1:] {
		if !m.killed.Load() {
			return m, nil
		}
	}
	m, err := launch(d, 1)
	if err != nil {
		return nil, err
	}
	d.nodes = append(d.nodes, m)
	d.say("started %s, to read it", m.name)
	return m, m.answers(ctx)
}

// mountToWrite has a node mount the bucket a second time, writable.
func (d *demo) mountToWrite(ctx context.Context, m *mounted) error {
	m.writes = filepath.Join(filepath.Dir(m.socket), "writable")
	if err := os.MkdirAll(m.writes, 0o755); err != nil {
		return fmt.Errorf("make the mount point: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, d.Hearth, "mount", "--daemon", "--node", "unix://"+m.socket, "--write", "through", d.Origin, m.writes)
	cmd.Env = d.environ()
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("mount for writing: %w: %s", err, strings.TrimSpace(string(said)))
	}
	return nil
}

// writeSynced writes a file as torch.save does, and has it on the disk.
func writeSynced(name string, data []byte) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	for piece := data; len(piece) > 0 && err == nil; {
		n := min(len(piece), 1<<20)
		_, err = f.Write(piece[:n])
		piece = piece[n:]
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}
