package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/namespace"
	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/node/status"
	"github.com/hearthfs/hearth/warmup"
)

// fakeNode answers at an address of a node by its handler, until the test ends.
func fakeNode(t *testing.T, handler http.Handler) (address string) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: handler}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	return "unix://" + socket
}

func TestInterruptedBeforeTheFirstEvent(t *testing.T) {
	// Ctrl-C comes while the node takes a job and has not answered yet. The user is told the job's
	// ID, and how to come back.
	h := newHearth(t)
	taken, pressed := make(chan struct{}), make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/jobs", func(w http.ResponseWriter, r *http.Request) {
		close(taken)
		<-pressed
		select {
		case <-r.Context().Done(): // the asker did not wait
		case <-time.After(300 * time.Millisecond):
		}
		_ = json.NewEncoder(w).Encode(warmup.View{Record: warmup.Record{ID: "0badcafe", State: warmup.Queued}})
	})
	var out bytes.Buffer
	cmd := exec.Command(h.bin, "warmup", "/x", "--node", fakeNode(t, mux))
	cmd.Env, cmd.Stdout, cmd.Stderr = h.env, &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	<-taken
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	close(pressed)
	err := cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != cli.ExitInterrupted || !strings.Contains(out.String(), "the job 0badcafe goes on; come back with: hearth jobs wait 0badcafe") {
		t.Errorf("exit %d, %v:\n%s", code, err, &out)
	}
}

func TestAVerbThatWaitsSaysWhatFor(t *testing.T) {
	// The node does not answer, or is healthy but its origin does not answer. The user is told so
	// before the answer comes, and gets the answer then.
	h := newHearth(t)
	for says, want := range map[string]string{"": ", which does not answer; ", `{"says":"ok","links":[{"url":"s3://b/p"}]}`: ", which is well and may wait for the origin s3://b/p; ",
		`{"says":"an origin cannot be read","problems":["an origin cannot be read"]}`: ", which says: an origin cannot be read; "} {
		said := make(chan struct{})
		mux := http.NewServeMux()
		mux.HandleFunc("GET /v1/explain", func(w http.ResponseWriter, _ *http.Request) {
			<-said
			_ = json.NewEncoder(w).Encode(status.Explanation{Path: "/x"})
		})
		mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, r *http.Request) {
			if says == "" {
				<-r.Context().Done()
			}
			_, _ = io.WriteString(w, says)
		})
		address := fakeNode(t, mux)
		var out bytes.Buffer
		cmd := exec.Command(h.bin, "explain", "/x", "--node", address)
		cmd.Env, cmd.Stdout = h.env, &out
		problems, err := cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(problems).ReadString('\n')
		close(said)
		if begin := "hearth: still waiting for the node at " + strings.TrimPrefix(address, "unix://"); err != nil || !strings.HasPrefix(line, begin+strings.TrimSuffix(want, "; ")) {
			t.Errorf("%v: %q, want %s", err, line, begin+want)
		}
		if err := cmd.Wait(); err != nil || !strings.Contains(out.String(), "path  ") {
			t.Errorf("%v: %s", err, &out)
		}
	}
}

func TestWordsOfTheNodeAreCompleted(t *testing.T) {
	// A shell is given the node's jobs, mount points and pins, each once, and no files. A node that
	// does not answer gives nothing.
	h := newHearth(t)
	mux := http.NewServeMux()
	answer := func(pattern string, v any) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(v) })
	}
	answer("GET /v1/jobs", []warmup.View{{Record: warmup.Record{ID: "0badcafe", Request: warmup.Request{Targets: []string{"/train"}}}, Progress: warmup.Progress{Phase: "loading"}}, {Record: warmup.Record{ID: "1badcafe", Request: warmup.Request{List: "l"}}, Progress: warmup.Progress{Phase: "done"}}})
	answer("GET /v1/status", status.Status{Mounts: []status.Mount{{Dir: "/mnt/one"}, {Dir: "/mnt/two words"}}})
	answer("GET /v1/pins", []namespace.PinView{{Pin: namespace.Pin{Path: "/s3:b/train"}, As: "/train"}})
	at := fakeNode(t, mux)
	for args, want := range map[string]string{
		"jobs wait --node " + at + " ":          "latest\tthe job that began last\n0badcafe\tloading, /train\n1badcafe\tdone, list l\n",
		"jobs retry --node " + at + " 0":        "0badcafe\tloading, /train\n",
		"jobs --node " + at + " 1":              "1badcafe\tdone, list l\n",
		"jobs wait --node " + at + " 1badcafe ": "",
		"umount --node " + at + " /mnt/o":       "/mnt/one\n",
		"umount --node " + at + " /mnt/t":       "/mnt/two words\n",
		"unpin --node " + at + " ":              "/train\n",
		"unpin --node " + at + " /train ":       "",
		"jobs wait ":                            "",
		"umount /mnt/o":                         "",
	} {
		stdout, stderr, code := h.run(append([]string{"__complete"}, strings.Split(args, " ")...)...)
		words, rest, ok := strings.Cut(stdout, ":") // what the shell is told: no files
		if code != 0 || !ok || rest != "4\n" && rest != "36\n" || words != want {
			t.Errorf("%s: exit code %d, %q, want %q\n%s", args, code, stdout, want, stderr)
		}
	}
}

func TestANodeThatEndsWhileItsJobIsWaitedFor(t *testing.T) {
	// The node is killed, so that its answer breaks off. The job is not lost, and the user is told
	// how to come back.
	h := newHearth(t)
	view := warmup.View{Record: warmup.Record{ID: "0badcafe", State: warmup.Loading}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/jobs", func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(view) })
	mux.HandleFunc("GET /v1/jobs/0badcafe/watch", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(warmup.Update{Job: &view})
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	_, out, code := h.run("warmup", "/x", "--node", fakeNode(t, mux))
	if code != cli.ExitUnreachable || !strings.Contains(out, "the job 0badcafe goes on; come back with: hearth jobs wait 0badcafe") {
		t.Errorf("exit %d:\n%s", code, out)
	}
}

func TestNothingOfStrangersIsObeyed(t *testing.T) {
	// Control characters in causes, ETags, links and directories are quoted by each verb that prints
	// them.
	const bad = "\x1b]0;x\a"
	v := &warmup.View{Record: warmup.Record{ID: "1", State: warmup.Failed, Error: "failed: " + bad}}
	v.Samples = []warmup.Sample{{Path: "/a", Cause: "denied: " + bad}}
	cmd := jobsCommand()
	var out bytes.Buffer
	cmd.SetOut(&out)
	object := status.Explanation{Link: bad, Origin: "s3://" + bad, ETag: bad, Path: "/a", Key: bad, Mounts: []status.Lent{{Dir: "/mnt/" + bad}}, Read: &status.NextRead{Owners: []string{"gpu-1", bad}}}
	if err := errors.Join(showJob(&cli.Common{Output: "table"}, cmd, v), printExplanation(&out, &object), printStat(&out, &admin.Stat{Link: bad, ETag: bad}, true)); err != nil {
		t.Fatal(err)
	}
	if text := out.String(); strings.ContainsAny(text, "\x1b\a") || strings.Count(text, `\x1b]0;x\a`) != 7 || !strings.Contains(text, "owners       gpu-1, ") || !strings.Contains(text, "s3://") || !strings.Contains(text, "/mnt/") {
		t.Errorf("%q", text)
	}
}

func TestEnoughIsEnoughHoweverTheJobEnds(t *testing.T) {
	// A job that ends with 99 % before the command sees 95 % of it has done what was waited for.
	// With all wanted, with less, or after a failure, it has not.
	for name, c := range map[string]struct {
		enough float64
		state  warmup.State
		done   int64
		code   int
	}{
		"enough": {0.95, warmup.Partly, 99, cli.ExitDone}, "less": {0.95, warmup.Partly, 94, cli.ExitPartly}, "not all": {1, warmup.Partly, 99, cli.ExitPartly}, "a name without bytes": {1, warmup.Partly, 100, cli.ExitPartly},
		"failed": {0.95, warmup.Failed, 99, cli.ExitFailed}, "goes on": {0.95, warmup.Loading, 95, cli.ExitDone},
	} {
		v := &warmup.View{Record: warmup.Record{ID: "1", State: c.state}, Progress: warmup.Progress{Phase: string(c.state), BytesDone: c.done, BytesTotal: 100}}
		cmd := warmupCommand()
		cmd.SetOut(&bytes.Buffer{})
		w := &waiter{c: &cli.Common{Output: "table"}, cmd: cmd, enough: c.enough}
		if err := w.result(t.Context(), v); cli.ExitCode(err) != c.code {
			t.Errorf("%s: exit %d, want %d: %v", name, cli.ExitCode(err), c.code, err)
		}
	}
}
