package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// build is a binary of Hearth that is measured. All that its nodes make and mount lies in a
// directory of its own, so that two builds never see each other's caches.
type build struct {
	*bench
	Name    string `json:"name"` // hearth; of two: old, new
	Path    string `json:"path"`
	Version string `json:"version"`
	SHA256  string `json:"sha256"`
	dir     string
}

// identify looks at a binary, and makes sure that it runs.
func (b *bench) identify(name, path string) (*build, error) {
	h := &build{bench: b, Name: name, Path: path}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("the %s binary: %w; `make compare BASE=COMMIT` builds one", name, err)
	}
	defer func() { _ = f.Close() }()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return nil, fmt.Errorf("the %s binary: %w", name, err)
	}
	h.SHA256 = fmt.Sprintf("%x", sum.Sum(nil))
	if h.Path, err = filepath.Abs(path); err != nil {
		return nil, err
	}
	version, err := exec.Command(h.Path, "version").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("the %s binary does not run: %s version: %w: %s", name, path, err, version)
	}
	h.Version = strings.TrimSpace(string(version))
	return h, nil
}

// settle gives the build its directory.
func (h *build) settle() error {
	h.dir = h.bench.dir
	if h.old != nil {
		h.dir = filepath.Join(h.dir, h.Name)
	}
	return os.MkdirAll(filepath.Join(h.dir, "mnt"), 0o755)
}

// each runs do with every build that is measured.
func (b *bench) each(do func(h *build) error) error {
	for _, h := range b.builds() {
		if err := do(h); err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
	}
	return nil
}

// builds are those that are measured: one, or the old one and the new one.
func (b *bench) builds() []*build {
	if b.old != nil {
		return []*build{b.old, b.hearth}
	}
	return []*build{b.hearth}
}

// nodes are one node of each build, which stay mounted over many rounds.
type nodes map[*build]*mounted

// mountEach mounts every build. Stop ends the nodes also after an error.
func (b *bench) mountEach(l func(h *build) launch) (nodes, error) {
	all := nodes{}
	return all, b.each(func(h *build) error {
		m, err := h.mount(l(h))
		if err == nil {
			all[h] = m
		}
		return err
	})
}

func (n nodes) stop() (err error) {
	for _, m := range n {
		err = errors.Join(err, m.stop())
	}
	return err
}
