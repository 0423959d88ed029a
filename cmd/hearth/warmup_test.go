package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/node"
	"github.com/hearthfs/hearth/node/explain"
	"github.com/hearthfs/hearth/warmup"
)

func TestInterruptedBeforeTheFirstEvent(t *testing.T) {
	// Ctrl-C comes while the node takes a job, and has not answered: who pressed it is told
	// the job's id, and how to come back.
	h := newHearth(t)
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
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
	server := &http.Server{Handler: mux}
	go server.Serve(l)
	defer server.Close()
	var out bytes.Buffer
	cmd := exec.Command(h.bin, "warmup", "/x", "--node", "unix://"+socket)
	cmd.Env, cmd.Stdout, cmd.Stderr = h.env, &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	<-taken
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	close(pressed)
	err = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != cli.ExitInterrupted || !strings.Contains(out.String(), "the job 0badcafe goes on; come back with: hearth jobs wait 0badcafe") {
		t.Errorf("exit %d, %v:\n%s", code, err, &out)
	}
}

func TestNothingOfStrangersIsObeyed(t *testing.T) {
	// Causes, ETags, links and directories that hold what a terminal obeys are shown, by each verb that prints them.
	const bad = "\x1b]0;x\a"
	v := &warmup.View{Record: warmup.Record{ID: "1", State: warmup.Failed, Error: "failed: " + bad}}
	v.Samples = []warmup.Sample{{Path: "/a", Cause: "denied: " + bad}}
	cmd := jobsCommand()
	var out bytes.Buffer
	cmd.SetOut(&out)
	object := explain.Explanation{Link: bad, Origin: "s3://" + bad, ETag: bad, Path: "/a", Key: bad, Mounts: []explain.Lent{{Dir: "/mnt/" + bad}}}
	if err := errors.Join(showJob(&cli.Common{Output: "table"}, cmd, v), printExplanation(&out, &object), printStat(&out, &node.Stat{Link: bad, ETag: bad}, true)); err != nil {
		t.Fatal(err)
	}
	if text := out.String(); strings.ContainsAny(text, "\x1b\a") || strings.Count(text, `\x1b]0;x\a`) != 6 || !strings.Contains(text, "s3://") || !strings.Contains(text, "/mnt/") {
		t.Errorf("%q", text)
	}
}
