package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/goleak"

	"github.com/hearthfs/hearth/node/admin"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestExitCodeOfErrors(t *testing.T) {
	// Every error has the manual's exit code, however often it was wrapped. An exit code of its own
	// wins.
	for _, c := range []struct {
		err  error
		want int
	}{
		{nil, ExitDone},
		{errors.New("x"), ExitFailed},
		{Usagef("x"), ExitUsage},
		{fmt.Errorf("x: %w", &ExitError{Code: ExitPartly, Err: fs.ErrNotExist}), ExitPartly},
		{fmt.Errorf("x: %w", fs.ErrNotExist), ExitNotFound},
		{&admin.Error{Kind: admin.KindNoLink}, ExitNotFound},
		{&admin.Error{Kind: admin.KindRefused}, ExitRefused},
		{HintUp(&admin.Error{Kind: admin.KindUnreachable}), ExitUnreachable},
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

func TestValuesThatStandApart(t *testing.T) {
	// The word after a flag that may stand without a value is its value if it looks like one and is
	// no argument. All other words stay arguments.
	for in, want := range map[string]string{
		"--wait 50% /a":             "50% 24h [/a]",
		"/a --wait 50%":             "50% 24h [/a]",
		"--wait 50% --pin 2h /a /b": "50% 2h [/a /b]",
		"--pin --wait 50 /a":        "50 24h [/a]",
		"--wait --pin 1h30m":        "100% 1h30m []",
		"--wait=30% /a":             "30% 24h [/a]",
		"--wait":                    "100% 24h []",
		"--wait /50% x":             "100% 24h [/50% x]",
		"--wait 2024-11/x":          "100% 24h [2024-11/x]",
		"--wait 0001.tar":           "100% 24h [0001.tar]",
		"--wait 7% /a":              "100% 24h [7% /a]", // there is a file of that name
		"--wait -- 50%":             "100% 24h [50%]",
		"/a 50% --wait":             "100% 24h [/a 50%]",
		"--wait bad /a":             "100% 24h [bad /a]",
		"--for 2x /a":               `--for: "2x": time: unknown unit "x" in duration "2x"`,
		"--for 3s /a":               "100% 24h [/a] 3s",
	} {
		var got string
		cmd := &cobra.Command{Use: "warmup", SilenceErrors: true, SilenceUsage: true, Args: cobra.ArbitraryArgs}
		wait, pin, long := cmd.Flags().String("wait", "100%", ""), cmd.Flags().String("pin", "24h", ""), cmd.Flags().Duration("for", 0, "")
		for name, bare := range map[string]string{"wait": "100%", "pin": "24h", "for": "1s"} {
			cmd.Flags().Lookup(name).NoOptDefVal = bare
		}
		cmd.RunE = func(_ *cobra.Command, args []string) error {
			if got = fmt.Sprint(*wait, " ", *pin, " ", args); *long != 0 {
				got += " " + long.String()
			}
			return nil
		}
		Separate(cmd, func(_ *cobra.Command, word string) bool { return word == "7%" }, "wait", "pin", "for")
		cmd.SetArgs(strings.Fields(in))
		if err := cmd.Execute(); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}

func TestTheNearestWord(t *testing.T) {
	// Swapped letters are one mistake, so that the word that was meant is nearer than a shorter one.
	names := []string{"stat", "status", "mount", "umount", "up", "ls", "du", "warmup", "explain", "evict"}
	for typed, want := range map[string]string{"stauts": "status", "sttaus": "status", "mounr": "mount", "unmount": "umount", "umonut": "umount",
		"exlpain": "explain", "wramup": "warmup", "evcit": "evict", "sl": "", "xyz": "", "": ""} {
		if got := Nearest(typed, names); got != want {
			t.Errorf("%q: %q, want %q", typed, got, want)
		}
	}
}

func TestLinesOfErrors(t *testing.T) {
	// Each of joined errors is a line of its own, however deep it is. A bare exit code is none.
	a, b, bare := errors.New("a"), Usagef("b"), &ExitError{Code: ExitPartly}
	for _, c := range []struct {
		err  error
		want string
	}{
		{nil, ""}, {a, "a"}, {bare, ""}, {errors.Join(nil, bare), ""}, {errors.Join(a, bare), "a"},
		{&ExitError{ExitPartly, errors.Join(a, errors.Join(b, a))}, "a|b|a"},
		{fmt.Errorf("x: %w", a), "x: a"}, {fmt.Errorf("%w: then %w", a, b), "a: then b"},
	} {
		if got := strings.Join(Lines(c.err), "|"); got != c.want {
			t.Errorf("%v: %q, want %q", c.err, got, c.want)
		}
	}
}

func TestOneIsSingular(t *testing.T) {
	// A noun has the form of its number, words in y and ey among them.
	for want, of := range map[string]string{"0 files": Count(0, "file"), "1 file": Count(int64(1), "file"), "2 directories": Count(2, "directory"),
		"1 directory": Count(1, "directory"), "3 keys": Count(3, "key"), "2 retries": Count(2, "retry")} {
		if of != want {
			t.Errorf("%q, want %q", of, want)
		}
	}
}

func TestWhatIsWaitedForIsSaid(t *testing.T) {
	// A verb that waits says once, after two seconds, what it waits for. A verb that got its answer
	// before, that is quiet, or that has nothing to say prints nothing.
	synctest.Test(t, func(t *testing.T) {
		for _, v := range []struct {
			after time.Duration
			quiet bool
			what  string
			want  string
		}{
			{patience - 1, false, "the node", ""},
			{time.Hour, false, "the node", "hearth: still waiting for the node\n"},
			{time.Hour, true, "the node", ""},
			{time.Hour, false, "", ""},
		} {
			var out strings.Builder
			ended := (&Common{Quiet: v.quiet}).Waiting(&out, func(context.Context) string { return v.what })
			time.Sleep(v.after) // virtual
			ended()
			if out.String() != v.want {
				t.Errorf("%+v: %q", v, out.String())
			}
		}
		asked := make(chan struct{})
		ended := (&Common{}).Waiting(io.Discard, func(ctx context.Context) string { close(asked); <-ctx.Done(); return "x" })
		<-asked
		ended() // what it asks ends with it
	})
}
