package machine

import (
	"path/filepath"
	"strings"
)

// Own are the places that a node works with, free of symbolic links. If the node mounted over one of them, or
// among them, it would wait for itself.
type Own struct {
	dirs  []string // cache directories
	files []string // the admin socket, the configuration
}

// NewOwn notes the places while none of them can lie under a mount of the node. Empty names are skipped.
func NewOwn(dirs []string, files ...string) Own {
	var o Own
	for _, dir := range dirs {
		o.dirs = append(o.dirs, resolved(dir))
	}
	for _, file := range files {
		if file != "" {
			o.files = append(o.files, filepath.Join(resolved(filepath.Dir(file)), filepath.Base(file)))
		}
	}
	return o
}

// Hidden returns the place of the node's own that a mount at dir would hide or lie in. It is empty if dir is
// apart from all. dir must exist and must not be stuck.
func (o Own) Hidden(dir string) string { return o.HiddenAt(resolved(dir)) }

// HiddenAt is Hidden for a path without symbolic links. The path itself is not walked.
func (o Own) HiddenAt(dir string) string {
	for _, own := range o.dirs {
		if within(own, dir) || within(dir, own) {
			return own
		}
	}
	for _, own := range o.files {
		if within(own, dir) {
			return own
		}
	}
	return ""
}

// resolved returns p as an absolute path without symbolic links, as far as the links can be followed.
func resolved(p string) string {
	if abs, err := filepath.Abs(p); err == nil {
		p = abs
	}
	if real, err := filepath.EvalSymlinks(p); err == nil {
		return real
	}
	return p
}

// within reports whether p is dir or lies below it. Both must be clean.
func within(p, dir string) bool {
	return p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}
