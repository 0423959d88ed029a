package main

import (
	"bufio"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/hearthfs/hearth/node/admin"
)

// This file resolves relative paths of a command line and of lists. If the current directory lies
// below a mount, they are relative to it. Otherwise they are paths of the tree, and the node
// resolves them.

// place is where relative paths begin.
type place struct {
	// dirs are the names of the current directory: the kernel's, then the shell's, which may lead
	// over symbolic links. mounts are the node's mount points.
	dirs, mounts func() []string
	typed        []pair // relative paths that were made absolute
}

// pair is a path as it was typed, and the absolute path that it became.
type pair struct{ typed, absolute string }

// currentPlace is the current directory. mounts returns the absolute paths of the node's mounts. It
// is called once, at the first relative path.
func currentPlace(mounts func() []string) *place {
	return &place{dirs: sync.OnceValue(current), mounts: sync.OnceValue(mounts)}
}

func current() (dirs []string) {
	kernels, err := syscall.Getwd()
	if err == nil {
		dirs = append(dirs, kernels)
	}
	if shells, err := os.Getwd(); err == nil && shells != kernels {
		dirs = append(dirs, shells)
	}
	return dirs
}

// Absolute returns the path below a mount that a relative path means. URLs, absolute paths and all
// other paths stay as they are.
func (p *place) Absolute(path string) string {
	if path == "" || path[0] == '/' || strings.Contains(path, "://") {
		return path
	}
	mounts := p.mounts()
	if len(mounts) == 0 {
		return path
	}
	for _, dir := range p.dirs() {
		absolute := filepath.Join(dir, path)
		for _, m := range mounts {
			if absolute == m || strings.HasPrefix(absolute, strings.TrimSuffix(m, "/")+"/") {
				if len(p.typed) < maxTyped {
					p.typed = append(p.typed, pair{path, absolute})
				}
				return absolute
			}
		}
	}
	return path
}

// maxTyped bounds the pairs that are kept of a long list.
const maxTyped = 1024

// Typed turns an absolute path back into what was typed. It may be followed by more text.
func (p *place) Typed(text string) string {
	for _, x := range p.typed {
		if rest, ok := strings.CutPrefix(text, x.absolute); ok && (rest == "" || strings.IndexByte("/: ", rest[0]) >= 0) {
			return x.typed + rest
		}
	}
	return text
}

// Said returns an error of the node in which paths are as they were typed. They begin it, or stand behind a blank.
func (p *place) Said(err error) error {
	var e *admin.Error
	if !errors.As(err, &e) {
		return err
	}
	said := p.Typed(e.Message)
	for _, x := range p.typed {
		said = replaced(said, x)
	}
	if said == e.Message {
		return err
	}
	return &admin.Error{Kind: e.Kind, Message: said, Cause: e.Cause}
}

// replaced puts what was typed in the place of the absolute path wherever that stands behind a blank, as a whole path
// or as the beginning of one.
func replaced(text string, x pair) string {
	parts := strings.Split(text, " "+x.absolute)
	for i, rest := range parts[1:] {
		if rest == "" || strings.IndexByte("/: )", rest[0]) >= 0 {
			parts[i+1] = " " + x.typed + rest
		} else {
			parts[i+1] = " " + x.absolute + rest
		}
	}
	return strings.Join(parts, "")
}

// All makes each of the paths Absolute.
func (p *place) All(paths []string) (all []string) {
	for _, path := range paths {
		all = append(all, p.Absolute(path))
	}
	return all
}

// longest is the length in bytes from which an item of a list is passed on unread: the node refuses
// longer items.
const longest = 64 << 10

// List reads a list of paths that separator ends, and makes each of them Absolute.
func (p *place) List(in io.Reader, separator byte) io.Reader {
	return &list{place: p, in: bufio.NewReaderSize(in, longest), separator: separator}
}

type list struct {
	place     *place
	in        *bufio.Reader
	separator byte
	ready     []byte // to be read
	torn      bool   // the item is too long: the rest of it is passed on as it is
	err       error  // of in, returned once ready is read
}

// Read is part of io.Reader.
func (l *list) Read(to []byte) (int, error) {
	for len(l.ready) == 0 {
		if l.err != nil {
			return 0, l.err
		}
		l.next()
	}
	n := copy(to, l.ready)
	l.ready = l.ready[n:]
	return n, nil
}

// next makes an item ready, or a part of one that is too long.
func (l *list) next() {
	l.ready, l.err = l.in.ReadSlice(l.separator)
	goesOn := l.torn
	if l.torn = errors.Is(l.err, bufio.ErrBufferFull); l.torn {
		l.err = nil
	}
	if goesOn || l.torn {
		return
	}
	item, end := strings.CutSuffix(string(l.ready), string(l.separator))
	if absolute := l.place.Absolute(item); absolute != item {
		if l.ready = []byte(absolute); end {
			l.ready = append(l.ready, l.separator)
		}
	}
}
