package warmup

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// This file keeps the list of paths that a job was given. Each path ends with NUL, since
// it may contain any other byte. Reading may begin at any item.

const (
	// maxLine bounds a path of a list, in bytes.
	maxLine = 64 << 10
	// MaxList bounds one list, and the lists of all ended jobs together, in bytes. It is
	// some ten million paths. The cache's disk is for blocks.
	MaxList = 1 << 30
)

// ListRefused says why something cannot be a list, with the cure.
type ListRefused string

// Error is the text.
func (r ListRefused) Error() string { return string(r) }

// WriteList writes the paths of a list, each passed through canonical. In list an item is
// a line, or ends with NUL if nul is set. Empty items are left out.
func WriteList(to io.Writer, list io.Reader, nul bool, canonical func(string) string) (err error) {
	out := bufio.NewWriter(to)
	scan := bufio.NewScanner(list)
	scan.Buffer(nil, maxLine)
	if nul {
		scan.Split(upToNUL)
	}
	size := 0
	for err == nil && scan.Scan() {
		switch path := scan.Text(); {
		case strings.Contains(path, "\x00"):
			err = ListRefused("the list has NUL in a line: say that it is separated by NUL (-0)")
		case size > MaxList:
			err = ListRefused(fmt.Sprintf("the list is longer than %d bytes: warm up directories, or several lists", MaxList))
		case path != "":
			var n int
			n, err = out.WriteString(canonical(path) + "\x00")
			size += n
		}
	}
	err = errors.Join(err, scan.Err())
	if errors.Is(err, bufio.ErrTooLong) {
		err = ListRefused(fmt.Sprintf("a path of the list is longer than %d bytes; is it separated by NUL (-0)?", maxLine))
	}
	return errors.Join(err, out.Flush())
}

// KeepList writes a list as WriteList does, into a new file, and syncs it. If the list is
// refused, no file is left.
func KeepList(name string, from io.Reader, nul bool, canonical func(string) string) error {
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err = errors.Join(WriteList(file, from, nul, canonical), file.Sync(), file.Close()); err != nil {
		err = errors.Join(err, os.Remove(name))
	}
	return err
}

// listSizes are the sizes of the files in a directory whose names end in suffix, keyed by
// the name without it. A file that cannot be read is left out.
func listSizes(dir, suffix string) map[string]int64 {
	all := map[string]int64{}
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if id, ok := strings.CutSuffix(e.Name(), suffix); ok {
			if info, err := e.Info(); err == nil {
				all[id] = info.Size()
			}
		}
	}
	return all
}

func upToNUL(data []byte, end bool) (advance int, token []byte, err error) {
	if i := bytes.IndexByte(data, 0); i >= 0 {
		return i + 1, data[:i], nil
	}
	if end && len(data) > 0 {
		return len(data), data, nil
	}
	return 0, nil, nil
}

// readList calls each for the paths of a file that WriteList wrote, from offset on. at is
// the offset of the path's item, next that of the item behind it.
func readList(name string, offset int64, each func(path string, at, next int64) error) error {
	file, err := os.Open(name)
	if err == nil {
		defer func() { _ = file.Close() }() // it was only read
		_, err = file.Seek(offset, io.SeekStart)
	}
	if err != nil {
		return fmt.Errorf("read the list: %w", err)
	}
	in := bufio.NewReader(file)
	for {
		item, err := in.ReadString(0)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the list: %w", err)
		}
		next := offset + int64(len(item))
		if err := each(strings.TrimSuffix(item, "\x00"), offset, next); err != nil {
			return err
		}
		offset = next
	}
}

// outermost leaves out targets that lie below another target, or repeat one.
func outermost(all []string) (some []string) {
	for i, t := range all {
		covered := false
		for k, o := range all {
			below := t != o && strings.HasPrefix(t, strings.TrimSuffix(o, "/")+"/")
			covered = covered || below || t == o && k < i
		}
		if !covered {
			some = append(some, t)
		}
	}
	return some
}
