// Package label reads and writes hearth.json, which says whose a cache directory is and
// in what format it lies there.
package label

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"

	"github.com/hearthfs/hearth/cache/direct"
	"github.com/hearthfs/hearth/cache/disk/layout"
)

// Format is the version of the directory's layout. Segments, objects and names have
// versions of their own.
const Format = 1

// ErrDamaged is a label that is not what was written.
var ErrDamaged = errors.New("damaged")

// Label is the content of hearth.json. Every later format keeps these four fields, so
// that an older program can say that it is older.
type Label struct {
	Format    int    `json:"format"`
	Node      string `json:"node"`
	Directory string `json:"directory"`
	// Check is the CRC-32C of the other three: a flipped bit is damage, and must
	// not look like a newer format.
	Check string `json:"check"`
}

// Sum is what Check should be.
func (l Label) Sum() string {
	text := fmt.Sprintf("%d %s %s", l.Format, l.Node, l.Directory)
	return fmt.Sprintf("%08x", crc32.Checksum([]byte(text), crc32.MakeTable(crc32.Castagnoli)))
}

// Read reads the label of the directory at path; ErrDamaged, fs.ErrNotExist.
func Read(path string) (Label, error) {
	name := filepath.Join(path, layout.Home)
	if fi, err := os.Lstat(name); err == nil && !fi.Mode().IsRegular() {
		return Label{}, ErrDamaged
	}
	data, err := os.ReadFile(name)
	if err != nil {
		return Label{}, fmt.Errorf("read cache directory's id: %w", err)
	}
	return Parse(data)
}

// Parse reads what Write wrote.
func Parse(data []byte) (Label, error) {
	var l Label
	if json.Unmarshal(data, &l) != nil || l.Check != l.Sum() || l.Format < 1 {
		return l, ErrDamaged
	}
	return l, nil
}

// Write makes a new label, durable before anything is stored; node "": a new one's.
func Write(path, node string) (Label, error) {
	if node == "" {
		node = NewID()
	}
	l := Label{Format: Format, Node: node, Directory: NewID()}
	l.Check = l.Sum()
	data, err := json.Marshal(l)
	if err != nil {
		return l, fmt.Errorf("write cache directory's id: %w", err)
	}
	name := filepath.Join(path, layout.Home)
	if err := direct.ClearWay(name, false, nil); err != nil {
		return l, err
	}
	if err := direct.WriteDurably(name, append(data, '\n')); err != nil {
		return l, fmt.Errorf("write cache directory's id: %w", err)
	}
	return l, nil
}

// NewID is a random id of 128 bits.
func NewID() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	return hex.EncodeToString(id[:])
}
