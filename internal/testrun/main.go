// Testrun runs Hearth's tests in parts, mostly one after the other, and counts them in one sum:
//
//	testrun test   what `make test` runs: unit tests, and the core end to end
//	testrun ci     what .ci/run runs: the same, `make check`, the core with the race
//	               detector, and the scenarios of what was changed lately
//	testrun soak   what `make soak` runs: all else; broken off, it goes on where it was
//	testrun nvmeof what `make test-nvmeof` runs: volumes against the Linux kernel's NVMe/TCP
//	               target; make soak skips it where there is none
//
// A part is one command, mostly a `go test -json`, whose events are counted. A test that
// failed runs once more when all parts have ended, in a fresh process and with its seed. If
// it passes, it is flaky: a FLAKY line names it at the end, and the run is green. Some failures
// are never forgiven: unforgivable has them. The last line is "N passed, N failed, N skipped"; the exit
// code is 1 if anything failed or nothing ran.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	flags := flag.NewFlagSet("testrun", flag.ExitOnError)
	var o soakOptions
	flags.StringVar(&o.size, "size", "all", "soak: the scenarios' `size`, all or full (the counts that the issues name)")
	flags.StringVar(&o.areas, "areas", "", "soak: `folders` whose packages and scenarios run, with commas between them; empty: all")
	flags.DurationVar(&o.atMost, "for", 0, "soak: start nothing after so `long`; what is left runs the next time; 0: no limit")
	flags.StringVar(&o.nvmet, "nvmet", "", "soak, nvmeof: the `file` that boots a kernel's NVMe/TCP target, nvmet-target")
	verbose := flags.Bool("v", false, "print each test as it ends")
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: testrun test|ci|soak|nvmeof [FLAGS]")
		flags.PrintDefaults()
		os.Exit(2)
	}
	_ = flags.Parse(os.Args[2:]) // it exits by itself
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	parts, err := plan(os.Args[1], o, beginning(time.Now()))
	if err != nil {
		fmt.Fprintln(os.Stderr, "testrun:", err)
		os.Exit(2)
	}
	r := &run{out: os.Stdout, verbose: *verbose}
	r.all(ctx, parts)
	r.again(ctx)
	if !r.sum() {
		os.Exit(1)
	}
}

// beganVariable names the variable with the time when a run began, in seconds since 1970. A script
// may install tools before testrun starts.
const beganVariable = "HEARTH_RUN_BEGAN"

func beginning(now time.Time) time.Time {
	var seconds int64
	if _, err := fmt.Sscan(os.Getenv(beganVariable), &seconds); err != nil {
		return now
	}
	return time.Unix(seconds, 0)
}

// plan returns the parts of a command.
func plan(command string, o soakOptions, began time.Time) ([]part, error) {
	switch command {
	case "test":
		return testParts()
	case "ci":
		return ciParts(began)
	case "soak":
		return soakParts(o, began)
	case "nvmeof":
		return nvmeofParts(o.nvmet, false)
	}
	return nil, fmt.Errorf("%q: test, ci, soak or nvmeof", command)
}
