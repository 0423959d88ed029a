// Faultfs mounts a file system of package faultfs in a process of its own. When it serves, it
// prints the address of its control endpoint in one line of JSON. It unmounts at the end of its
// standard input.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"

	"github.com/hearthfs/hearth/internal/faultfs"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "faultfs:", err)
		os.Exit(1)
	}
}

func run() error {
	var o faultfs.Options
	flag.StringVar(&o.Dir, "dir", "", "mount point")
	flag.StringVar(&o.File, "file", "", "file that is passed through")
	flag.DurationVar(&o.Watchdog, "watchdog", 0, "end of a stall")
	flag.Parse()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	f, err := faultfs.Mount(o)
	if err != nil {
		return err
	}
	go func() { _ = http.Serve(l, f.Control()) }() // ends with the process
	if err := json.NewEncoder(os.Stdout).Encode(map[string]string{"control": "http://" + l.Addr().String()}); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	if err != nil {
		return err
	}
	return f.Close()
}
