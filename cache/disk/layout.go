package disk

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// This file names what lies at the top of a cache directory, whoever makes it.

// What lies in a cache directory.
const (
	LabelFile     = "hearth.json" // format version and ids
	LockFile      = "lock"        // flocked while a node runs; holds its process id
	segmentsDir   = "segments"    // small objects, packed: package segment
	objectsDir    = "objects"     // large objects, one sparse file each: package sparse
	NamesDir      = "names"       // the namespace's
	namesAgainDir = "names.again" // where it copies itself to after a failure
	OpenModesFile = "open-modes.json"
	NodeIDsFile   = "node-ids"
	ScrubFile     = "scrub.json"   // where the scrub is
	membersFile   = "members.json" // who was in the ring
	JobsDir       = "jobs"         // warm-ups: a record each, and the list of what was asked for
)

// Ours tells the names that a node makes at the top of its directory, known although
// hearth.json was lost. temporary: only while a file is written, so that a process
// that ended left it behind.
func Ours(name string) (ours, temporary bool) {
	stay := []string{LabelFile, LockFile, segmentsDir, objectsDir, OpenModesFile, NodeIDsFile, ScrubFile, membersFile, JobsDir, "lost+found"}
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

// Foreign is a name that somebody else put into a directory that is not Hearth's,
// as hearth.json says; "": it is Hearth's, or nothing else lies in it.
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
