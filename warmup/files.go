package warmup

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Records keeps jobs. A ring may take it over one day.
type Records interface {
	// Save makes the record last, in place of an earlier one of its id.
	Save(r Record) error
	// Load gives all records.
	Load() ([]Record, error)
}

// maxHistory of ended jobs are kept.
const maxHistory = 100

const (
	recordSuffix = ".json"
	listSuffix   = ".list"
	newSuffix    = ".new"
	badSuffix    = ".damaged"
)

// Files keeps each record in a file of a directory of its own, ID.json, and beside it
// the list of a job that has one, ID.list. Records that cannot be read are set aside.
type Files struct {
	// Dir is made when the first job comes; "" keeps nothing.
	Dir string
	// Log is told of what was set aside, or cannot be removed.
	Log func(what string, err error)
}

// Save writes the record under another name, then renames it.
func (f *Files) Save(r Record) error {
	if f.Dir == "" {
		return nil
	}
	text, err := json.Marshal(&r)
	if err == nil {
		err = f.make()
	}
	name := filepath.Join(f.Dir, r.ID+recordSuffix)
	if err == nil {
		err = writeSynced(name+newSuffix, text)
	}
	if err == nil {
		err = os.Rename(name+newSuffix, name)
	}
	if err != nil {
		return fmt.Errorf("save the job %s: %w", r.ID, err)
	}
	return nil
}

// make makes the directory, but not the one that it lies in: that is the disk tier's.
func (f *Files) make() error {
	if err := os.Mkdir(f.Dir, 0o700); !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

func writeSynced(name string, text []byte) error {
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	if err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

// Load reads all records, sets aside what is none, and removes what is left of the
// oldest beyond a hundred that ended, and of saves and lists that broke off.
func (f *Files) Load() ([]Record, error) {
	if f.Dir == "" {
		return nil, nil
	}
	entries, err := os.ReadDir(f.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil { // a disk that fails is no reason not to start
		f.told("jobs cannot be read, and do not go on", err)
		return nil, nil
	}
	var all []Record
	unread := map[string]bool{}
	for _, e := range entries {
		id, ours := strings.CutSuffix(e.Name(), recordSuffix)
		if !ours {
			continue
		}
		r, err := f.read(id)
		var failed *fs.PathError
		if errors.As(err, &failed) { // it may be sound
			f.told("a job's record cannot be read, so that it does not go on", err)
			unread[id] = true
			continue
		}
		if err != nil {
			name := filepath.Join(f.Dir, e.Name())
			f.told("set aside a job's record that cannot be read", errors.Join(err, os.Rename(name, name+badSuffix)))
			continue
		}
		all = append(all, r)
	}
	all = f.forget(all)
	for _, e := range entries {
		id, isList := strings.CutSuffix(e.Name(), listSuffix)
		known := func(r Record) bool { return r.ID == id }
		if isList && !slices.ContainsFunc(all, known) && !unread[id] || strings.HasSuffix(e.Name(), newSuffix) {
			f.remove(e.Name())
		}
	}
	return all, nil
}

func (f *Files) read(id string) (r Record, err error) {
	text, err := os.ReadFile(filepath.Join(f.Dir, id+recordSuffix))
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	switch {
	case err != nil:
		return r, fmt.Errorf("read the job %s: %w", id, err)
	case r.ID != id || r.State == "" || !r.State.Over() && r.State != Queued && r.State != Listing && r.State != Loading:
		return r, fmt.Errorf("read the job %s: it is no job's record", id)
	}
	return r, nil
}

// forget removes the oldest of the jobs that ended.
func (f *Files) forget(all []Record) []Record {
	slices.SortFunc(all, func(a, b Record) int { return b.Created.Compare(a.Created) })
	ended := 0
	return slices.DeleteFunc(all, func(r Record) bool {
		if r.State.Over() {
			ended++
		}
		if !r.State.Over() || ended <= maxHistory {
			return false
		}
		f.drop(r.ID)
		return true
	})
}

// drop removes what is kept of a job.
func (f *Files) drop(id string) {
	if f.Dir != "" {
		f.remove(id + recordSuffix)
		f.remove(id + listSuffix)
	}
}

// lists are the sizes of the lists that are kept, by their jobs' ids.
func (f *Files) lists() map[string]int64 {
	all := map[string]int64{}
	if f.Dir == "" {
		return all
	}
	entries, _ := os.ReadDir(f.Dir) // what cannot be read now is asked for with the next job
	for _, e := range entries {
		if id, ok := strings.CutSuffix(e.Name(), listSuffix); ok {
			if info, err := e.Info(); err == nil {
				all[id] = info.Size()
			}
		}
	}
	return all
}

func (f *Files) remove(name string) {
	if err := os.Remove(filepath.Join(f.Dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		f.told("a job's file stays", err)
	}
}

func (f *Files) told(what string, err error) {
	if f.Log != nil {
		f.Log(what, err)
	}
}

// maxLine bounds a path of a list, in bytes.
const maxLine = 64 << 10

// Spool writes a list's paths, each passed through canonical, as the list of the
// job id: an item a line of list, or ended by NUL. Empty items are left out.
func (f *Files) Spool(id string, list io.Reader, nul bool, canonical func(string) string) error {
	if f.Dir == "" {
		return Refusal("a list is kept on disk, and this node has no disk tier: start it with --cache-disks PATH=SIZE")
	}
	if err := f.make(); err != nil {
		return fmt.Errorf("keep the list: %w", err)
	}
	name := filepath.Join(f.Dir, id+listSuffix)
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("keep the list: %w", err)
	}
	out := bufio.NewWriter(file)
	scan := bufio.NewScanner(list)
	scan.Buffer(nil, maxLine)
	if nul {
		scan.Split(upToNUL)
	}
	size := 0
	for err == nil && scan.Scan() {
		switch path := scan.Text(); {
		case strings.Contains(path, "\x00"):
			err = Refusal("the list has NUL in a line: say that it is separated by NUL (-0)")
		case size > maxList:
			err = Refusal(fmt.Sprintf("the list is longer than %d bytes: warm up directories, or several lists", maxList))
		case path != "":
			var n int
			n, err = out.WriteString(canonical(path) + "\x00")
			size += n
		}
	}
	err = errors.Join(err, scan.Err())
	if errors.Is(err, bufio.ErrTooLong) {
		err = Refusal(fmt.Sprintf("a path of the list is longer than %d bytes; is it separated by NUL (-0)?", maxLine))
	}
	err = errors.Join(err, out.Flush(), file.Sync(), file.Close())
	if err != nil {
		f.remove(id + listSuffix)
		return fmt.Errorf("keep the list: %w", err)
	}
	return nil
}

// maxList is some ten million paths, of one list and of those of all jobs that ended:
// the cache's disk is for blocks.
const maxList = 1 << 30

func upToNUL(data []byte, end bool) (advance int, token []byte, err error) {
	if i := bytes.IndexByte(data, 0); i >= 0 {
		return i + 1, data[:i], nil
	}
	if end && len(data) > 0 {
		return len(data), data, nil
	}
	return 0, nil, nil
}

// items calls each for the paths of a job's list from offset on; next is where the
// item behind begins.
func (f *Files) items(id string, offset int64, each func(path string, at, next int64) error) error {
	file, err := os.Open(filepath.Join(f.Dir, id+listSuffix))
	if err == nil {
		defer file.Close()
		_, err = file.Seek(offset, io.SeekStart)
	}
	if err != nil {
		return fmt.Errorf("read the list of the job %s: %w", id, err)
	}
	in := bufio.NewReader(file)
	for {
		item, err := in.ReadString(0)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the list of the job %s: %w", id, err)
		}
		next := offset + int64(len(item))
		if err := each(strings.TrimSuffix(item, "\x00"), offset, next); err != nil {
			return err
		}
		offset = next
	}
}
