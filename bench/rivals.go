package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// plainProgram is the first argument of this binary as one of the plain programs:
//
//	bench plain download|list CONNECTIONS PREFIX TO
const plainProgram = "plain"

// bePlain is that process; the origin is the environment's.
func bePlain(args []string) int {
	connections, err := strconv.Atoi(args[1])
	if err != nil || connections < 1 {
		fmt.Fprintln(os.Stderr, "bench: not a number of connections:", args[1])
		return 2
	}
	o := plainOrigin{Bucket: "bench", Prefix: args[2], Connections: connections, S3: environment(connections)}
	do := o.Download
	if args[0] == "list" {
		do = o.List
	}
	sum, err := do(context.Background(), args[3])
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(sum)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		return 1
	}
	return 0
}

// command measures a program from its start to its exit; m is the node that works for
// it; nil means that none does.
func (b *bench) command(m *mounted, cmd *exec.Cmd) (s side, out []byte, err error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	s, err = b.measure(m, func() (sum, error) { return sum{}, cmd.Run() })
	if err != nil {
		return s, nil, fmt.Errorf("%v: %w: %s%s", cmd.Args, err, stderr.Bytes(), stdout.Bytes())
	}
	s.ReaderCPU = (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds()
	return s, stdout.Bytes(), nil
}

// environ is that of a program that works at the origin through the proxy.
func (b *bench) environ() []string {
	return append(append(os.Environ(), b.origin.Env()...), "AWS_ENDPOINT_URL="+b.origin.proxy.URL())
}

// plain runs a plain program over a data set.
func (b *bench) plain(verb string, connections int, set hearthtest.DataSet, to string) (side, error) {
	self, err := os.Executable()
	if err != nil {
		return side{}, err
	}
	cmd := exec.Command(self, plainProgram, verb, strconv.Itoa(connections), folder(set)+"/", to)
	cmd.Env = b.environ()
	syscall.Sync() // what others have written is not its to flush
	s, out, err := b.command(nil, cmd)
	if err != nil {
		return s, err
	}
	var sum plainSum
	if err := json.Unmarshal(out, &sum); err != nil {
		return s, err
	}
	s.Units, s.Bytes, s.Connections = sum.Files, sum.Bytes, connections
	if files, bytes := set.Count(); sum != (plainSum{Files: int64(files), Bytes: bytes}) {
		return s, fmt.Errorf("%v: %+v, but %s has %d files, %d bytes", cmd.Args, sum, set.Name, files, bytes)
	}
	return s, nil
}

// folder is the directory that a data set lies in.
func folder(set hearthtest.DataSet) string {
	name, _, _ := strings.Cut(set.Groups[0].Dir, "/")
	return name
}

// downloader is the plain one, with as many connections as are best in each round.
func (b *bench) downloader(set hearthtest.DataSet) baseline {
	return baseline{
		Name: "plain downloader", Command: "bench plain download 16|32|64|128 PREFIX DIR, the best of them", Version: fmt.Sprint(b.common["commit"]),
		run: func(round) (best side, err error) {
			tried := map[int]float64{}
			for _, n := range []int{16, 32, 64, 128} {
				s, err := b.download(set, n)
				if err != nil {
					return s, err
				}
				if tried[n] = s.Seconds; best.Seconds == 0 || s.Seconds < best.Seconds {
					best = s
				}
			}
			best.Tried = tried
			return best, nil
		},
	}
}

// download runs the downloader over files that are there and empty. For minutes ext4
// searches past each inode that was deleted, in whatever ran before, and who makes many
// files pays for it: that would be in the baseline's time and hardly in Hearth's.
func (b *bench) download(set hearthtest.DataSet, connections int) (side, error) {
	dir := filepath.Join(b.dir, "download")
	for f := range set.Files() {
		name := filepath.Join(dir, f.Path)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return side{}, err
		}
		if err := os.WriteFile(name, nil, 0o644); err != nil {
			return side{}, err
		}
	}
	s, err := b.plain("download", connections, set, dir)
	return s, errors.Join(err, emptied(dir))
}

// emptied gives back the room of a directory's files, and leaves their inodes.
func emptied(dir string) error {
	return filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		return os.Truncate(name, 0)
	})
}

// lister is the plain one, with one connection or with many.
func (b *bench) lister(set hearthtest.DataSet, connections int) baseline {
	name := "plain lister"
	if connections > 1 {
		name = fmt.Sprintf("lister of %d directories at once", connections)
	}
	return baseline{
		Name: name, Command: fmt.Sprintf("bench plain list %d PREFIX FILE", connections), Version: fmt.Sprint(b.common["commit"]),
		run: func(round) (side, error) {
			s, err := b.plain("list", connections, set, filepath.Join(b.dir, "listing"))
			s.Bytes = 0 // none were read
			return s, err
		},
	}
}

// rclone is a mount of it with an empty cache. The flags are those that its manual
// advises for a VFS cache before S3 (full, fast fingerprints) and where reading a
// modification time or a checksum costs a request of each small file; names are
// believed for longer than a round lasts.
func (b *bench) rclone(read func(dir string, r round) (sum, error)) baseline {
	flags := []string{"--read-only", "--vfs-cache-mode", "full", "--vfs-fast-fingerprint", "--no-modtime", "--no-checksum",
		"--dir-cache-time", "1h", "--attr-timeout", "1h"}
	tool, version, err := versioned("rclone")
	return baseline{
		Name: "rclone mount", Command: "rclone mount bench:bench MOUNT " + strings.Join(flags, " "), Version: version,
		run: func(r round) (s side, failed error) {
			if err != nil {
				return s, err
			}
			dir := filepath.Join(b.dir, "rclone")
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return s, err
			}
			cache, err := os.MkdirTemp(b.dir, "rclone-cache-")
			if err != nil {
				return s, err
			}
			defer func() { _ = emptied(cache) }()
			cmd := exec.Command(tool, append([]string{"mount", "bench:bench", dir, "--cache-dir", cache, "--config", "/dev/null"}, flags...)...)
			cmd.Env = append(b.environ(), "RCLONE_CONFIG_BENCH_TYPE=s3", "RCLONE_CONFIG_BENCH_PROVIDER=Other", "RCLONE_CONFIG_BENCH_ENV_AUTH=true",
				"RCLONE_CONFIG_BENCH_REGION=us-east-1", "RCLONE_CONFIG_BENCH_ENDPOINT="+b.origin.proxy.URL(), "RCLONE_CONFIG_BENCH_FORCE_PATH_STYLE=true")
			exited, output, err := hearthtest.StartChild(cmd)
			if err != nil {
				return s, err
			}
			m := &mounted{cmd: cmd, dir: dir, done: exited}
			defer func() { _ = m.stop() }()
			if err := mountedAt(dir, exited); err != nil {
				return s, fmt.Errorf("%w: %s", err, output())
			}
			syscall.Sync()
			return b.reading(m, func() (sum, error) { return read(dir, r) })
		},
	}
}

// reading measures a pass over objects that nobody has loaded, and what of their
// bytes was fetched in vain.
func (b *bench) reading(m *mounted, pass func() (sum, error)) (side, error) {
	before := b.origin.proxy.Stats().Get.Bytes
	s, err := b.measure(m, pass)
	wasted := b.origin.proxy.Stats().Get.Bytes - before - s.Bytes
	s.Wasted = &wasted
	return s, err
}
