package machine

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// Automount opens the directory at dir if an automounter may wait for a mount there, as systemd does for
// x-systemd.automount. nil means that dir is no such place. Until the mount stands or has failed, the kernel
// lets nobody walk there except the automounter's own process group. A mount helper belongs to that group, and
// a node does not. So the helper hands this descriptor to the node that it asks for the mount.
func Automount(ctx context.Context, dir string) (*os.File, error) {
	real, err := RealPath(dir)
	if err != nil {
		return nil, nil // the mount itself reports this error
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
