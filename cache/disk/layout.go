package disk

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// This file names every entry at the top of a cache directory, whoever makes it.

// The entries of a cache directory.
const (
	LabelFile     = "hearth.json" // format version and ids
	LockFile      = "lock"        // flocked while a node runs; holds its process id
	segmentsDir   = "segments"    // small objects, packed: package segment
	objectsDir    = "objects"     // large objects, one sparse file each: package sparse
	NamesDir      = "names"       // the namespace's
	namesAgainDir = "names.again" // where it copies itself to after a failure
	OpenModesFile = "open-modes.json"
	NodeIDsFile   = "node-ids"
	ScrubFile     = "scrub.json"   // how far the scrub is
	membersFile   = "members.json" // who was in the ring
	JobsDir       = "jobs"         // warm-ups: a record each, and the list of what was asked for
	DraftsDir     = "drafts"       // files that are being written
)

// Ours reports whether a node makes such a name at the top of its directory. It does not need
// hearth.json, which may be lost. temporary names exist only while a file is written: a process
// that ended left them behind.
func Ours(name string) (ours, temporary bool) {
	stay := []string{LabelFile, LockFile, segmentsDir, objectsDir, OpenModesFile, NodeIDsFile, ScrubFile, membersFile, JobsDir, DraftsDir, "lost+found"}
	pass := []string{LabelFile + ".tmp", LabelFile + ".probe", LabelFile + ".probe.tmp", OpenModesFile + ".new", NodeIDsFile + ".new", ScrubFile + ".new", membersFile + ".new"}
	if slices.Contains(stay, name) || slices.Contains(pass, name) {
		return true, slices.Contains(pass, name)
	}
	names, number, aside := strings.Cut(name, ".corrupt-")
	if aside && (number == "" || strings.Trim(number, "0123456789") != "") {
		return false, false
	}
	return names == NamesDir || names == namesAgainDir, false
}

// Foreign returns a name that somebody else put into a directory that is not Hearth's according to
// hearth.json. "" means that the directory is Hearth's, or that nothing foreign lies in it.
func Foreign(dir string) (name string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	if _, err := os.Lstat(filepath.Join(dir, LabelFile)); err == nil {
		return "", nil
	}
	for _, e := range entries {
		if ours, _ := Ours(e.Name()); !ours {
			return e.Name(), nil
		}
	}
	return "", nil
}
