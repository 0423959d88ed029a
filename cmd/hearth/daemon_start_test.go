package main

import (
	"context"
	"errors"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
)

func TestASignalOnceUpIsAnEndLikeAnyOther(t *testing.T) {
	// A user who is told "mounted" may end the node at once. That does not cancel the start while
	// the mounts are asked for the first time, unless they do not answer. Before "mounted" it does.
	for _, c := range []struct {
		up      bool
		takes   time.Duration // of the start, unless it is cancelled
		want    error
		after   time.Duration
		signals int // left for who serves
	}{
		{true, time.Second, nil, time.Second, 1},
		{true, time.Hour, cli.ErrInterrupted, startGrace, 0},
		{false, time.Second, cli.ErrInterrupted, 0, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			starting, signals := make(chan error, 1), make(chan os.Signal, 2)
			go func() {
				select {
				case <-time.After(c.takes):
				case <-ctx.Done():
				}
				starting <- nil
			}()
			signals <- syscall.SIGTERM
			begun := time.Now()
			err := daemonStarted(starting, signals, func() bool { return c.up }, cancel)
			if !errors.Is(err, c.want) || time.Since(begun) != c.after || len(signals) != c.signals || (context.Cause(ctx) != nil) != (c.want != nil) {
				t.Errorf("%+v: %v after %v, %d signals left", c, err, time.Since(begun), len(signals))
			}
			cancel(nil)
		})
	}
}
