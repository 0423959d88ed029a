package main

import (
	"cmp"
	"context"
	"os"
	"time"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
)

// startGrace is how long a node that was told to end waits until its new mounts answer for the
// first time. After that it ends without waiting for them.
const startGrace = 2 * time.Second

// daemonStarted waits until a start has ended. A signal cancels the start. Once the node is up, a
// signal ends a running node instead, so it is put back for serve.
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
			default: // other signals wait there already
			}
			return err
		case <-time.After(startGrace):
		}
	}
	cancel(cli.ErrInterrupted)
	return cmp.Or(<-starting, cli.ErrInterrupted)
}
