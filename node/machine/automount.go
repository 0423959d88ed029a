package machine

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// Automount holds the directory at dir where an automounter may wait for a mount there, as
// systemd does for x-systemd.automount; nil: dir is no such place. Until the mount stands, or has
// failed, the kernel lets nobody walk there but the automounter's own process group, to which a
// mount helper belongs and a node does not. So who asks a node for the mount hands it this.
func Automount(ctx context.Context, dir string) (*os.File, error) {
	real, err := RealPath(dir)
	if err != nil {
		return nil, nil // who mounts says so
	}
	there := false
	err = eachMount("/", func(m tableEntry) {
		there = there || m.kind == "autofs" && (m.dir == real || m.dir == filepath.Dir(real))
	})
	if err != nil || !there {
		return nil, err
	}
	p, err := hold(ctx, real)
	if err != nil {
		return nil, fmt.Errorf("hold the automount point: %w", err)
	}
	defer p.Close()
	if !p.Automount() { // something is mounted there
		return nil, nil
	}
	return p.File()
}
