package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// ext4 is the same files on the file system that the cache directory lies on.
func (b *bench) ext4(run func(dir string, r round) (side, error)) baseline {
	local := filepath.Join(b.dir, "local")
	return baseline{
		Name: "ext4", Command: "the same reader over the same files, on the cache directory's file system",
		Version: fmt.Sprintf("%v of Linux %v", fileSystem(local), b.common["kernel"]),
		run:     func(r round) (side, error) { return run(local, r) },
	}
}

// loopback is go-fuse's own example over the same files: it hands each file to
// the kernel at its open and does nothing else, so it is what passthrough costs.
func (b *bench) loopback(run func(dir string, r round) (side, error)) baseline {
	tool, version, err := versioned("loopback")
	return baseline{
		Name: "passthrough loopback", Command: "loopback -q -ro -directmount MOUNT DIR", Version: version,
		run: func(r round) (s side, failed error) {
			if err != nil {
				return side{}, err
			}
			dir := filepath.Join(b.dir, "loopback")
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return side{}, err
			}
			cmd := exec.Command(tool, "-q", "-ro", "-directmount", dir, filepath.Join(b.dir, "local"))
			exited, output, err := hearthtest.StartChild(cmd)
			if err != nil {
				return side{}, err
			}
			defer func() {
				_ = cmd.Process.Signal(syscall.SIGTERM)
				<-exited
			}()
			if err := mountedAt(dir, exited); err != nil {
				return side{}, errors.Join(err, errors.New(output()))
			}
			return run(dir, r)
		},
	}
}

// versioned finds a test tool and the version that it was built from.
func versioned(name string) (path, version string, err error) {
	if path, err = hearthtest.Tool(name); err != nil {
		return "", "", fmt.Errorf("%w: run scripts/setup --full", err)
	}
	text, _ := os.ReadFile(filepath.Join(filepath.Dir(filepath.Dir(path)), name+".version"))
	return path, strings.TrimSpace(string(text)), nil
}

// mountedAt waits until something is mounted on dir, or whoever should have
// mounted it has ended.
func mountedAt(dir string, ended <-chan struct{}) error {
	for range 3000 {
		table, _ := os.ReadFile("/proc/self/mountinfo")
		if strings.Contains(string(table), " "+dir+" ") {
			return nil
		}
		select {
		case <-ended:
			return fmt.Errorf("nothing was mounted on %s", dir)
		case <-time.After(10 * time.Millisecond):
		}
	}
	return fmt.Errorf("nothing was mounted on %s within 30 s", dir)
}

// fileSystem names the type of the file system that a directory lies on.
func fileSystem(dir string) string {
	out, err := exec.Command("findmnt", "--noheadings", "--output", "FSTYPE", "--target", dir).Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}
