package main

import (
	"cmp"
	"context"
	"os"
	"time"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
)

// startGrace is how long mounts that are up may take to answer for the first time before
// a node that was told to end does so without.
const startGrace = 2 * time.Second

// daemonStarted waits for the end of a start. A signal breaks it off; once up, it is the end of
// a node that runs, which serve is to hear of.
func daemonStarted(starting <-chan error, signals chan os.Signal, up func() bool, cancel context.CancelCauseFunc) error {
	var s os.Signal
	select {
	case err := <-starting:
		return err
	case s = <-signals:
	}
	if up() {
		select {
		case err := <-starting:
			select {
			case signals <- s:
			default: // there are others
			}
			return err
		case <-time.After(startGrace):
		}
	}
	cancel(cli.ErrInterrupted)
	return cmp.Or(<-starting, cli.ErrInterrupted)
}
