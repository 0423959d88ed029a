package disk

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/hearthfs/hearth/cache/check"
	"github.com/hearthfs/hearth/internal/device"
	"golang.org/x/sys/unix"
)

// This file reads and writes hearth.json, which says which node a cache directory belongs to, and
// its format.

// LabelFormat is the newest version of the directory's layout. Segments, objects and names have
// versions of their own. A directory has it only while there are or may be drafts in it, which
// a program that knows only plainFormat would not publish.
const (
	LabelFormat = 2
	plainFormat = 1
)

// formatOf is the format that a directory must have for what lies in it. Where that cannot be told there
// may be drafts.
func formatOf(path string) int {
	files, err := os.ReadDir(filepath.Join(path, DraftsDir))
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(files) == 0 {
		return plainFormat
	}
	return LabelFormat
}

// relabel gives a directory's label another format, and keeps its ids. It is durable once it has returned.
func relabel(path string, format int) error {
	l, err := ReadLabel(path)
	if err != nil || l.Format == format {
		return err
	}
	l.Format = format
	return l.write(path)
}

// errLabelDamaged means that a label is not what was written.
var errLabelDamaged = errors.New("damaged")

// Label is the content of hearth.json. Every later format keeps these four fields, so
// that an older program can say that it is older.
type Label struct {
	Format    int    `json:"format"`
	Node      string `json:"node"`
	Directory string `json:"directory"`
	// Check is the CRC-32C of the other three fields. So a flipped bit is damage, and does not look
	// like a newer format.
	Check string `json:"check"`
}

// Sum is what Check should be.
func (l Label) Sum() string {
	text := fmt.Sprintf("%d %s %s", l.Format, l.Node, l.Directory)
	return fmt.Sprintf("%08x", crc32.Checksum([]byte(text), crc32.MakeTable(crc32.Castagnoli)))
}

// ReadLabel reads the label of the directory at path. It fails with errLabelDamaged,
// fs.ErrNotExist, or the error of the read.
func ReadLabel(path string) (Label, error) {
	name := filepath.Join(path, LabelFile)
	if fi, err := os.Lstat(name); err == nil && !fi.Mode().IsRegular() {
		return Label{}, errLabelDamaged
	}
	data, err := os.ReadFile(name)
	if err != nil {
		return Label{}, fmt.Errorf("read cache directory's id: %w", err)
	}
	return parseLabel(data)
}

// parseLabel reads what writeLabel wrote.
func parseLabel(data []byte) (Label, error) {
	var l Label
	if json.Unmarshal(data, &l) != nil || l.Check != l.Sum() || l.Format < 1 {
		return l, errLabelDamaged
	}
	return l, nil
}

// writeLabel makes a new label, durable before anything is stored. If node is "", it gets a new id.
func writeLabel(path, node string) (Label, error) {
	if node == "" {
		node = newID()
	}
	l := Label{Format: formatOf(path), Node: node, Directory: newID()}
	name := filepath.Join(path, LabelFile)
	if err := device.ClearWay(name, false, nil); err != nil {
		return l, err
	}
	return l, l.write(path)
}

func (l Label) write(path string) error {
	l.Check = l.Sum()
	data, err := json.Marshal(l)
	if err == nil {
		err = device.WriteDurably(filepath.Join(path, LabelFile), append(data, '\n'))
	}
	if err != nil {
		return fmt.Errorf("write cache directory's id: %w", err)
	}
	return nil
}

// newID is a random id of 128 bits.
func newID() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	return hex.EncodeToString(id[:])
}

// CheckLabel reads the label of a directory that the caller has locked. With repair a damaged or
// missing label is made anew: its ids are new then, and the directory's content stays.
func CheckLabel(path string, repair bool, r *check.Run) error {
	r.Files.Add(1)
	name := filepath.Join(path, LabelFile)
	_, err := ReadLabel(path)
	switch {
	case err == nil:
	case check.Unreadable(err):
		r.Tell(check.Unread(name, err))
	case errors.Is(err, errLabelDamaged), errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.EIO):
		f := check.InFile(check.Damaged, name, -1, err.Error())
		if repair {
			_, err := writeLabel(path, "")
			f.Repaired = err == nil
		}
		r.Tell(f)
	default:
		return fmt.Errorf("check %s: %w", path, err)
	}
	return nil
}
