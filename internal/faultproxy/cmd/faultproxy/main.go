// Faultproxy runs a proxy of package faultproxy as a process. When it serves, it prints one line of
// JSON with its addresses. It ends with its standard input, so that it never outlives the process
// that started it.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"

	"github.com/hearthfs/hearth/internal/faultproxy"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "faultproxy:", err)
		os.Exit(1)
	}
}

func run() error {
	var o faultproxy.Options
	flag.StringVar(&o.Listen, "listen", "127.0.0.1:0", "address to serve")
	flag.StringVar(&o.Target, "target", "", "the S3 server's host:port")
	flag.DurationVar(&o.FirstByte, "first-byte", 0, "delay of each first byte")
	flag.BoolVar(&o.Exclusive, "exclusive", false, "let no request meet a change of its key")
	control := flag.String("control", "127.0.0.1:0", "address of the control endpoint")
	flag.Parse()
	p, err := faultproxy.Start(o)
	if err != nil {
		return err
	}
	defer p.Close()
	l, err := net.Listen("tcp", *control)
	if err != nil {
		return err
	}
	defer l.Close()
	go func() { _ = http.Serve(l, p.Control()) }() // ends with the process
	if err := json.NewEncoder(os.Stdout).Encode(map[string]string{"url": p.URL(), "control": "http://" + l.Addr().String()}); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}
