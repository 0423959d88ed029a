package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/goleak"

	"github.com/hearthfs/hearth/node/answer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestExitCodeOfErrors(t *testing.T) {
	// Every error has the manual's code, however often it was wrapped, and an exit code of its own goes first.
	for _, c := range []struct {
		err  error
		want int
	}{
		{nil, ExitDone},
		{errors.New("x"), ExitFailed},
		{Usagef("x"), ExitUsage},
		{fmt.Errorf("x: %w", &ExitError{Code: ExitPartly, Err: fs.ErrNotExist}), ExitPartly},
		{fmt.Errorf("x: %w", fs.ErrNotExist), ExitNotFound},
		{&answer.Error{Kind: answer.KindNoLink}, ExitNotFound},
		{&answer.Error{Kind: answer.KindRefused}, ExitRefused},
		{HintUp(&answer.Error{Kind: answer.KindUnreachable}), ExitUnreachable},
		{context.DeadlineExceeded, ExitTimeout},
		{ErrInterrupted, ExitInterrupted},
	} {
		if got := ExitCode(c.err); got != c.want {
			t.Errorf("%v: exit code %d, want %d", c.err, got, c.want)
		}
	}
}

func TestContextEnds(t *testing.T) {
	// A signal and --timeout end a verb's context, each with its cause, and nothing is left of it.
	c := &Common{}
	ctx, stop := c.Context(t.Context())
	if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-ctx.Done()
	if err := Because(ctx, errors.New("broke off")); ExitCode(err) != ExitInterrupted {
		t.Errorf("after a signal: %v", err)
	}
	stop()
	c.Timeout = time.Millisecond
	ctx, stop = c.Context(t.Context())
	defer stop()
	<-ctx.Done()
	if err := Because(ctx, errors.New("broke off")); ExitCode(err) != ExitTimeout {
		t.Errorf("after the timeout: %v", err)
	}
}

func TestArguments(t *testing.T) {
	// A missing argument is named, and so is one too many.
	cmd := &cobra.Command{Use: "stat PATH"}
	(&cobra.Command{Use: "hearth"}).AddCommand(cmd)
	for want, args := range map[string][]string{
		"PATH is missing: hearth stat PATH":              {},
		`"b" is one argument too many: hearth stat PATH`: {"a", "b"},
	} {
		if err := Exactly("PATH")(cmd, args); err == nil || err.Error() != want || ExitCode(err) != ExitUsage {
			t.Errorf("%q: %v", args, err)
		}
	}
	if err := Between(0, "PATH")(cmd, nil); err != nil {
		t.Error(err)
	}
}
