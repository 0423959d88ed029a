package warmup

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hearthfs/hearth/internal/device"
)

// Records keeps jobs: it is their journal. A ring may take it over one day.
type Records interface {
	// Save makes the record durable, in place of an earlier one with its id.
	Save(r Record) error
	// Load returns all records.
	Load() ([]Record, error)
}

// maxHistory ended jobs are kept, and beside them maxDryRuns dry runs, which push out no
// job.
const (
	maxHistory = 100
	maxDryRuns = 10
)

// history counts ended jobs, the latest first.
type history struct{ jobs, dry int }

// beyond counts one more, and reports whether it is one too many.
func (h *history) beyond(r *Record) bool {
	if r.DryRun {
		h.dry++
		return h.dry > maxDryRuns
	}
	h.jobs++
	return h.jobs > maxHistory
}

const (
	recordSuffix = ".json"
	listSuffix   = ".list"
	tempSuffix   = ".tmp" // left by a save that broke off
	newSuffix    = ".new" // the same, of an earlier version
	badSuffix    = ".damaged"
)

// Files keeps each record in a file ID.json in a directory of its own. Beside it lies
// ID.list, the list of a job that has one. Records that cannot be read are set aside.
type Files struct {
	// Dir is made when the first job comes. "" means that nothing is kept.
	Dir string
	// Log hears of what was set aside or cannot be removed.
	Log func(what string, err error)
}

// Save makes the record durable, and with it the names of the job's other files.
func (f *Files) Save(r Record) error {
	if f.Dir == "" {
		return nil
	}
	text, err := json.Marshal(&r)
	if err == nil {
		err = f.make()
	}
	if err == nil {
		err = device.WriteDurably(filepath.Join(f.Dir, r.ID+recordSuffix), text)
	}
	if err != nil {
		return fmt.Errorf("save the job %s: %w", r.ID, err)
	}
	return nil
}

// make makes the directory, but not its parent, which is the disk tier's.
func (f *Files) make() error {
	err := os.Mkdir(f.Dir, 0o700)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return device.SyncDir(filepath.Dir(f.Dir))
}

// Load reads all records and sets aside files that are no record. It drops the oldest
// ended jobs beyond the history, and removes what saves and lists that broke off have
// left.
func (f *Files) Load() ([]Record, error) {
	if f.Dir == "" {
		return nil, nil
	}
	entries, err := os.ReadDir(f.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil { // a failing disk must not keep the node from starting
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
		if errors.As(err, &failed) { // the record itself may be sound
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
		for _, suffix := range []string{changesSuffix, findingsSuffix} {
			if x, also := strings.CutSuffix(e.Name(), suffix); also {
				id, isList = x, true
			}
		}
		known := func(r Record) bool { return r.ID == id }
		if isList && !slices.ContainsFunc(all, known) && !unread[id] || strings.HasSuffix(e.Name(), newSuffix) || strings.HasSuffix(e.Name(), tempSuffix) {
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
		return r, fmt.Errorf("read the job %s: it is not a job's record", id)
	}
	return r, nil
}

// forget drops the oldest ended jobs beyond the history.
func (f *Files) forget(all []Record) []Record {
	slices.SortFunc(all, func(a, b Record) int { return older(b, a) })
	var ended history
	return slices.DeleteFunc(all, func(r Record) bool {
		if !r.State.Over() || !ended.beyond(&r) {
			return false
		}
		f.drop(r.ID)
		return true
	})
}

// drop removes all files of a job.
func (f *Files) drop(id string) {
	if f.Dir != "" {
		for _, suffix := range []string{recordSuffix, listSuffix, changesSuffix, findingsSuffix} {
			f.remove(id + suffix)
		}
	}
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

// Spool keeps a list of paths for the job id, as KeepList writes it.
func (f *Files) Spool(id string, from io.Reader, nul bool, canonical func(string) string) error {
	if f.Dir == "" {
		return Refusal("a list is kept on disk, and this node has no disk tier: start it with --cache-disks PATH=SIZE")
	}
	if err := f.make(); err != nil {
		return fmt.Errorf("keep the list: %w", err)
	}
	err := KeepList(f.list(id), from, nul, canonical)
	if errors.As(err, new(ListRefused)) {
		err = Refusal(err.Error())
	}
	if err == nil {
		err = device.SyncDir(f.Dir) // the list is durable before its record
	}
	if err != nil {
		return fmt.Errorf("keep the list: %w", err)
	}
	return nil
}

func (f *Files) list(id string) string { return filepath.Join(f.Dir, id+listSuffix) }
