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

// This file looks for leaks of a node: the goroutines of a running one (serveGoroutines), and what a closed one
// has not given back (findLeaks). Nothing is counted in advance, so only a caller pays for it.
//
// A closed node has ended every goroutine, released every View, and closed every file in its cache directories.
// findLeaks waits for what is about to end when it is called, such as the goroutine that has just answered the
// last request.

// leakPatience is how long findLeaks waits for what is about to end. It is far longer than any schedule takes,
// since only a real leak waits it out.
const leakPatience = 5 * time.Second

// serveGoroutines answers with the stacks of all goroutines as text. Equal stacks are counted: "N @ addresses",
// then one frame a line.
func serveGoroutines(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_ = pprof.Lookup("goroutine").WriteTo(w, 1) // an error means that the client went away
}

// findLeaks returns what a closed node has left, one item each. An empty result means no leak. views counts the
// Views alive, and dirs are the node's cache directories. It runs on the goroutine that closed the node. It
// counts every other goroutine except those of the runtime and of os/signal.
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

// openFiles returns the names of this process's open files.
func openFiles() (names []string) {
	links, _ := filepath.Glob("/proc/self/fd/*")
	for _, l := range links {
		if name, err := os.Readlink(l); err == nil { // an error means that it was closed meanwhile
			names = append(names, name)
		}
	}
	return names
}

// otherGoroutines returns the stacks of all goroutines except this one and the one that os/signal keeps for as
// long as the process lives.
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
