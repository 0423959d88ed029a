// Bench makes the figures of docs/benchmarks.md: each is a ratio inside one run,
// in which the baseline and Hearth alternate (A B A B ...), and the median of
// its rounds. Every round is kept as a line of JSON with command, versions,
// threads and CPU seconds of both sides.
//
//	bench                          everything, five rounds
//	bench -only W1 -rounds 3       some of it
//	bench -only "warm-up D1"       one of it
//	bench -only W10                what is written through a mount: W10, W11
//	bench -scale 0.1               a tenth of the data, marked REDUCED: for trying, not for publishing
//	bench -against /tmp/old        whether any figure of W1 to W3 fell since that binary
//
// With -against, two builds of Hearth take the places of baseline and Hearth: each has a node, a
// cache and a mount of its own, over the same origin and data, and they take turns, so that a slow
// minute of the machine is slow for both. A figure is then the old build's seconds by the new one's,
// once more in CPU seconds, and a verdict, which judge explains. It exits with 1 if a figure fell.
//
// It needs root, since it drops the page cache between rounds, and runs in a mount and
// a network namespace of its own, so that nothing stays. What it compares with is
// local ext4, or plain programs of ours (plain.go) and rclone over an origin
// 20 ms away; the plain ones are this binary again, in processes of their own. What nodes
// S3 clients get (bench/clients) stands beside MinIO, which has the same bytes. What nodes
// read of each other (bench/remote) stands beside plain TCP and gRPC (bench/grpc, a module
// of its own), between two network namespaces; so does what they read of a volume. What is written
// through a mount (writes.go) stands beside plain uploads over as many connections (writer.go).
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/hearthfs/hearth/bench/clients"
)

type bench struct {
	ctx    context.Context
	dir    string // data, cache, mount points: one file system for baseline and Hearth
	hearth *build
	old    *build // what it is compared with; nil: baselines
	rounds int
	// tolerance is the least change between two builds that is one.
	tolerance float64
	scale     float64
	only      string
	raw       *json.Encoder
	origin    *origin
	common    map[string]any // what every raw line holds

	loaded   map[string]bool // sets that the origin has
	table    []figure
	pairs    []*paired
	fillings []filling
	asked    []asked

	predicted []predicted
	crowds    []clients.Crowd
}

func main() {
	if len(os.Args) == 6 && os.Args[1] == plainProgram {
		os.Exit(bePlain(os.Args[2:]))
	}
	if len(os.Args) == 6 && os.Args[1] == remoteProgram {
		if err := beRemote(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	if len(os.Args) == 2 && (os.Args[1] == clientsProgram || os.Args[1] == bareProgram) {
		ctx, stop := untilSignalled()
		defer stop()
		be := func() error { return clients.Be(ctx, os.Stdin, os.Stdout) }
		if os.Args[1] == bareProgram {
			be = func() error { return clients.Bare(ctx, os.Stdout) }
		}
		if err := be(); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1) // and with it what stop would end
		}
		return
	}
	if len(os.Args) == 3 && os.Args[1] == writerProgram {
		if err := beWriter(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	if os.Getenv("HEARTH_BENCH_INNER") == "" {
		os.Exit(inOwnNamespace())
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func inOwnNamespace() int {
	if os.Getuid() != 0 {
		fmt.Fprintln(os.Stderr, "bench: needs root, to drop the page cache between rounds")
		return 2
	}
	self, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		return 1
	}
	args := []string{"--mount", "--propagation", "private", "--net", "--pid", "--mount-proc", "--fork", "--kill-child", "--", self}
	cmd := exec.Command("unshare", append(args, os.Args[1:]...)...)
	cmd.Env = append(os.Environ(), "HEARTH_BENCH_INNER=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return max(exit.ExitCode(), 1)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		return 1
	}
	return 0
}

func run() error {
	b := &bench{loaded: map[string]bool{}}
	out := flag.String("out", "e2e/results/bench.jsonl", "where the raw rounds go")
	flag.IntVar(&b.rounds, "rounds", 5, "rounds of each figure; at least 5 are published")
	flag.Float64Var(&b.scale, "scale", 1, "share of the data sets' size")
	flag.StringVar(&b.only, "only", "", "run the figures whose name starts with these words")
	ours := flag.String("hearth", "./hearth", "the binary to measure")
	against := flag.String("against", "", "an older `binary`: compare the two in turns, without baselines, and say which figures fell. "+
		"Without -only: W1, cold, W2 and W3; "+fmt.Sprintf("-scale is then %g, -rounds %d", againstScale, againstRounds))
	// Two caches with the same files lie in different places of a disk, and two builds of the same
	// code in different places of memory: a few hundredths tell nothing.
	flag.Float64Var(&b.tolerance, "tolerance", 0.1, "with -against: the least change that counts")
	flag.Parse()
	begun := time.Now()
	ctx, stop := untilSignalled()
	defer stop()
	b.ctx = ctx
	if err := b.identified(*ours, *against); err != nil {
		return err
	}
	if err := said(exec.Command("ip", "link", "set", "lo", "up")); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("/var/tmp", "hearth-bench-")
	if err != nil {
		return err
	}
	b.dir = dir
	defer func() { _ = os.RemoveAll(dir) }()
	if err := b.each((*build).settle); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(*out), 0o755); err != nil {
		return err
	}
	f, err := os.Create(*out)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	b.raw, b.common = json.NewEncoder(f), b.facts()
	if b.origin, err = startOrigin(b, "origin"); err != nil {
		return err
	}
	defer b.origin.stop()
	sets := []func() error{b.small, b.large, b.names, b.warmUps, b.cold, b.readers, b.afterWarmUp, b.million, b.remoteReads, b.ringEpochs, b.volumeReads, b.volumeEpochs, b.volumeRestarts, b.scales, b.s3, b.writes, b.writableEpochs}
	if b.old != nil {
		sets = b.contests()
	}
	for _, set := range sets {
		if err := set(); err != nil {
			return err
		}
	}
	if b.old == nil {
		return b.report(*out)
	}
	fmt.Fprintf(os.Stderr, "raw rounds: %s\n", *out)
	return b.verdicts(os.Stdout, time.Since(begun))
}

// identified finds the binaries before anything is made.
func (b *bench) identified(ours, against string) (err error) {
	if b.hearth, err = b.identify("hearth", ours); err != nil || against == "" {
		return err
	}
	return b.opponent(against)
}

func untilSignalled() (context.Context, context.CancelFunc) {
	return signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
}

// facts are what a figure is worthless without.
func (b *bench) facts() map[string]any {
	var u syscall.Utsname
	_ = syscall.Uname(&u)
	release := make([]byte, 0, len(u.Release))
	for _, c := range u.Release {
		if c == 0 {
			break
		}
		release = append(release, byte(c))
	}
	commit, _ := exec.Command("git", "describe", "--always", "--dirty").Output()
	all := map[string]any{
		"command": "bench " + strings.Join(os.Args[1:], " "), "commit": strings.TrimSpace(string(commit)), "kernel": string(release),
		"go": runtime.Version(), "hearth": b.hearth.Version, "cpus": runtime.NumCPU(),
		"scale": b.scale, "date": time.Now().UTC().Format(time.DateOnly),
	}
	if b.old != nil {
		all["builds"] = b.builds()
	}
	return all
}
