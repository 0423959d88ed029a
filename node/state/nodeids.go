package state

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/hearthfs/hearth/cache/disk"
)

// This file keeps, in each cache directory, the highest node id in use. The note is a small file, written
// beside its place and renamed, and it outlives the namespace's database. A damaged note costs unused numbers,
// but no id is given out twice.

// NodeIDsFile is the name of the note in each cache directory. The note outlives the namespace's database: a
// node id that a kernel may still hold is never given out again.
const NodeIDsFile = disk.NodeIDsFile

// reservedLine is the content of the note: the format, the highest id in use, and a CRC-32 of the two. The
// format stands first, so that no beginning of the line looks like a number alone, which the first version of
// hearth wrote.
const reservedLine = "hearth node-ids 1 %d"

func formatReserved(upTo uint64) []byte {
	line := fmt.Appendf(nil, reservedLine, upTo)
	return fmt.Appendf(line, " %08x\n", crc32.ChecksumIEEE(line))
}

// parseReserved reads what formatReserved wrote. false means that the text is damaged, or of a format that this
// version does not know. Ids lie far below 1<<62, so a higher one is damage, too.
func parseReserved(text []byte) (upTo uint64, ok bool) {
	line := strings.TrimSuffix(string(text), "\n")
	digits := line
	if fields := strings.Split(line, " "); len(fields) == 5 {
		digits = fields[3]
	}
	upTo, err := strconv.ParseUint(digits, 10, 62)
	if err != nil {
		return 0, false
	}
	return upTo, digits == line || string(formatReserved(upTo)) == line+"\n"
}

// idsOf returns a number above every node id that this program can have given out by a time: fewer than 2^20
// each second since 2020. It is used where the note is lost.
func idsOf(now time.Time) uint64 {
	return uint64(max(0, now.Unix()-time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC).Unix())) << 20
}

// lostNodeIDs is idsOf for a note that cannot be read. If the clock was set back, the time at which the note
// was written counts.
func lostNodeIDs(name string) uint64 {
	now := time.Now()
	if info, err := os.Stat(name); err == nil && info.ModTime().After(now) {
		now = info.ModTime()
	}
	return idsOf(now)
}

// FirstNodeID returns a number above every node id that was noted in a cache directory.
func FirstNodeID(dirs []string) uint64 {
	first := uint64(0)
	for _, dir := range dirs {
		name := filepath.Join(dir, NodeIDsFile)
		text, err := os.ReadFile(name)
		switch upTo, ok := parseReserved(text); {
		case errors.Is(err, fs.ErrNotExist):
		case err == nil && ok:
			first = max(first, upTo+1)
		default:
			first = max(first, lostNodeIDs(name))
		}
	}
	return first
}

// NodeIDsWhole reports whether a note can be read.
func NodeIDsWhole(text []byte) bool {
	_, ok := parseReserved(text)
	return ok
}

// RenewNodeIDs replaces the note in a cache directory by a number above every id that was given out.
func RenewNodeIDs(dir string) error {
	name := filepath.Join(dir, NodeIDsFile)
	if err := os.WriteFile(name+".new", formatReserved(lostNodeIDs(name)), 0o600); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}

// NoteNodeIDs notes in a cache directory that ids up to upTo are in use, unless a note of a higher one was
// faster.
func NoteNodeIDs(dir string, upTo uint64) error {
	name := filepath.Join(dir, NodeIDsFile)
	if text, err := os.ReadFile(name); err == nil {
		if noted, ok := parseReserved(text); ok && noted >= upTo {
			return nil
		}
	}
	if err := os.WriteFile(name+".new", formatReserved(upTo), 0o600); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}
