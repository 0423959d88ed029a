package disk

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// This file is the content of the lock file: which process has the cache directory.

// LockHolder describes a process to other processes: its id, the PID namespace of that id, and
// whether it is about to end. The namespace is written as pid:[4026531836]; two containers that
// share a directory may both be process 1.
type LockHolder struct {
	PID    string
	within string
	Ends   bool
}

const endsWord = "ends"

// selfHolder describes this process.
func selfHolder() LockHolder {
	within, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		within = "pid:[]"
	}
	return LockHolder{PID: strconv.Itoa(os.Getpid()), within: within}
}

// ParseLockHolder reads what String wrote, or a bare process id.
func ParseLockHolder(text string) LockHolder {
	words := strings.Fields(text)
	h := LockHolder{PID: "unknown", within: selfHolder().within, Ends: slices.Contains(words, endsWord)}
	if len(words) > 0 {
		h.PID = words[0]
	}
	if len(words) > 1 && words[1] != endsWord {
		h.within = words[1]
	}
	return h
}

// String is a line for the lock file.
func (h LockHolder) String() string {
	line := h.PID + " " + h.within
	if h.Ends {
		line += " " + endsWord
	}
	return line + "\n"
}

// IsSelf reports whether the holder is this process.
func (h LockHolder) IsSelf() bool {
	self := selfHolder()
	return h.PID == self.PID && h.within == self.within
}

// Defunct reports whether the holder was killed and has a thread in the kernel that keeps it from
// ending. For processes of other containers it is false, since nobody knows.
func (h LockHolder) Defunct() bool {
	if h.within != selfHolder().within {
		return false
	}
	text, err := os.ReadFile(filepath.Join("/proc", h.PID, "stat"))
	_, state, _ := strings.Cut(string(text), ") ") // behind the name
	return err == nil && strings.HasPrefix(state, "Z")
}
