package node

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"strings"
	"time"
)

// This file looks for what a node holds and should not: goroutines of a running
// one (Goroutines), and all that a closed one has not given back (Find). Only who
// asks pays: nothing is counted on the way.
//
// A closed node has ended every goroutine, released every View, and closed every
// file in its cache directories. What is about to end when Find is called, such as the
// goroutine that has just answered the last request, is waited for.

// leakPatience is how long Find waits for what is about to end: far more than any
// schedule takes, since only a leak waits it out.
const leakPatience = 5 * time.Second

// serveGoroutines answers with the stacks of all goroutines as text, equal ones counted:
// "N @ addresses", then one frame a line.
func serveGoroutines(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_ = pprof.Lookup("goroutine").WriteTo(w, 1) // the asker went away
}

// findLeaks says what a closed node has left, an item each; none: nothing. views is how
// many Views live, dirs are its cache directories. It is called on the goroutine that
// closed the node and counts every other but those of the runtime and of os/signal.
func findLeaks(views func() int64, dirs []string) (left []string) {
	over := time.Now().Add(leakPatience)
	for tick := time.Millisecond; ; tick *= 2 {
		if left = lookForLeaks(views, dirs); len(left) == 0 || time.Now().After(over) {
			return left
		}
		<-time.After(tick)
	}
}

func lookForLeaks(views func() int64, dirs []string) (left []string) {
	if n := views(); n != 0 {
		left = append(left, fmt.Sprintf("%d Views that were not released", n))
	}
	for _, name := range openFiles() {
		for _, dir := range dirs {
			if strings.HasPrefix(name, dir+"/") {
				left = append(left, "an open file: "+name)
			}
		}
	}
	for _, g := range otherGoroutines() {
		left = append(left, "a goroutine: "+strings.ReplaceAll(g, "\n", "\n\t"))
	}
	return left
}

// openFiles are the names of this process's open files.
func openFiles() (names []string) {
	links, _ := filepath.Glob("/proc/self/fd/*")
	for _, l := range links {
		if name, err := os.Readlink(l); err == nil { // else closed meanwhile
			names = append(names, name)
		}
	}
	return names
}

// otherGoroutines are the stacks of all goroutines but this one and the one that os/signal
// keeps for as long as the process lives.
func otherGoroutines() (stacks []string) {
	buf := make([]byte, 1<<20)
	for n := runtime.Stack(buf, true); ; n = runtime.Stack(buf, true) {
		if n < len(buf) {
			buf = buf[:n]
			break
		}
		buf = make([]byte, 2*len(buf))
	}
	for i, g := range strings.Split(strings.TrimSpace(string(buf)), "\n\n") {
		if i > 0 && !strings.Contains(g, "created by os/signal.Notify") {
			stacks = append(stacks, g)
		}
	}
	return stacks
}
