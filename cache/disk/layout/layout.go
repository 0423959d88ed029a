// Package layout names what lies at the top of a cache directory, whoever makes it.
package layout

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// What lies in a cache directory.
const (
	Home       = "hearth.json" // format version and ids
	Lock       = "lock"        // flocked while a node runs; holds its process id
	Segments   = "segments"    // small objects, packed: package segment
	Objects    = "objects"     // large objects, one sparse file each: package sparse
	Names      = "names"       // the namespace's
	NamesAgain = "names.again" // where it copies itself to after a failure
	OpenModes  = "open-modes.json"
	NodeIDs    = "node-ids"
	Scrub      = "scrub.json"   // where the scrub is
	Members    = "members.json" // who was in the ring
	Jobs       = "jobs"         // warm-ups: a record each, and the list of what was asked for
)

// Ours tells the names that a node makes at the top of its directory, known although
// hearth.json was lost. temporary: only while a file is written, so that a process
// that ended left it behind.
func Ours(name string) (ours, temporary bool) {
	stay := []string{Home, Lock, Segments, Objects, OpenModes, NodeIDs, Scrub, Members, Jobs, "lost+found"}
	pass := []string{Home + ".tmp", Home + ".probe", Home + ".probe.tmp", OpenModes + ".new", NodeIDs + ".new", Scrub + ".new", Members + ".new"}
	if slices.Contains(stay, name) || slices.Contains(pass, name) {
		return true, slices.Contains(pass, name)
	}
	names, number, aside := strings.Cut(name, ".corrupt-")
	if aside && (number == "" || strings.Trim(number, "0123456789") != "") {
		return false, false
	}
	return names == Names || names == NamesAgain, false
}

// Foreign is a name that somebody else put into a directory that is not Hearth's,
// as hearth.json says; "": it is Hearth's, or nothing else lies in it.
func Foreign(dir string) (name string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	if _, err := os.Lstat(filepath.Join(dir, Home)); err == nil {
		return "", nil
	}
	for _, e := range entries {
		if ours, _ := Ours(e.Name()); !ours {
			return e.Name(), nil
		}
	}
	return "", nil
}
