package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/hearthfs/hearth/internal/faultproxy"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/warmup"
)

// slurmJob is a job as slurmd shows it to its scripts.
type slurmJob struct {
	e       *env
	config  string
	id      string
	comment string
	more    []string // variables of the site
}

// script runs one of deploy/slurm; it returns what is printed, both streams, and the exit code.
func (j *slurmJob) script(name string) (string, int) {
	j.e.Helper()
	cmd := exec.CommandContext(j.e.ctx, filepath.Join(j.e.repo, "deploy", "slurm", name))
	cmd.Env = append([]string{"PATH=" + filepath.Dir(j.e.hearth) + ":/usr/bin:/bin", "HEARTH_CONFIG=" + j.config, "HEARTH_SLURM_DIR=" + j.e.path("slurm"),
		"SLURM_JOB_ID=" + j.id, "SLURM_JOB_UID=1000", "SLURM_JOB_COMMENT=" + j.comment}, j.more...)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		j.e.Fatalf("run %s: %v", name, err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// runs takes the job through prolog, task-prolog and epilog: the first and the last must
// end with 0, and the second with the job's code, saying each of the words. Nothing is left.
func (j *slurmJob) runs(code int, says ...string) {
	j.e.Helper()
	if out, got := j.script("prolog"); got != 0 || out != "" {
		j.e.Errorf("prolog of %q: exit %d: %s", j.comment, got, out)
	}
	out, got := j.script("task-prolog")
	if got != code || (code == 0) != (out == "") {
		j.e.Errorf("task-prolog of %q: exit %d, want %d: %s", j.comment, got, code, out)
	}
	for line := range strings.Lines(out) {
		if !strings.HasPrefix(line, "print ") { // slurmstepd passes over anything else
			j.e.Errorf("task-prolog of %q says %q", j.comment, line)
		}
	}
	for _, word := range says {
		if !strings.Contains(out, word) {
			j.e.Errorf("task-prolog of %q does not say %q: %s", j.comment, word, out)
		}
	}
	if out, got := j.script("epilog"); got != 0 || out != "" {
		j.e.Errorf("epilog of %q: exit %d: %s", j.comment, got, out)
	}
	if left, err := filepath.Glob(j.e.path("slurm") + "/*"); err != nil || len(left) > 0 {
		j.e.Errorf("epilog of %q left %v, %v", j.comment, left, err)
	}
}

// slurmRecipe runs the scripts of docs/recipes/slurm.md as slurmd and slurmstepd do: a
// job begins with all that it named on the disk, or fails with the reason; only a node
// that does not answer drains the machine.
func slurmRecipe(e *env) {
	o := e.origin()
	list := e.load(o, e.set("D1", 2, 10, 2, 20))
	part := e.load(o, hearthtest.DataSet{Name: "part", Groups: []hearthtest.Group{{Dir: "part/early", Dirs: 1, Files: 8, Min: 64 << 10, Max: 64 << 10},
		{Dir: "part/late", Dirs: 1, Files: 4, Min: 64 << 10, Max: 64 << 10}}})
	p := e.proxy(o)
	h := e.mount(o, settings{endpoint: p.endpoint})
	job := func(id, comment string, more ...string) *slurmJob { return &slurmJob{e, h.config, id, comment, more} }

	job("1", "no word of ours, /d1 and a *").runs(0)
	if jobs, err := h.client.Jobs().List(e.ctx); err != nil || len(jobs) != 0 {
		e.Errorf("a comment that names nothing began %v, %v", jobs, err)
	}
	job("2", "other:words hearth:/nothing").runs(4, "/nothing", "exit code 4")
	job("3", "hearth:--dry-run").runs(4, "--dry-run")

	p.AddRule(faultproxy.Rule{Verb: faultproxy.Get, Delay: faultproxy.Duration(5 * time.Second)})
	job("4", "hearth:/d1", "HEARTH_SLURM_LIMIT=1s").runs(7, "timed out", "exit code 7")
	e.eventually("the end of what was left at work", func() bool {
		jobs, err := h.client.Jobs().List(e.ctx)
		return err == nil && len(jobs) > 0 && jobs[0].State == "cancelled"
	})
	p.ClearRules()
	h.slurmGoesOn(p, part, job("9", "hearth:/part", "HEARTH_SLURM_WAIT=20%"))

	job("5", "hearth:/d1/class0000 team=x hearth:/d1").runs(0)
	gets := p.gets()
	job("6", "hearth:"+filepath.Join(h.dir, "d1")).runs(0)
	p.Down()
	e.good("after the prolog", epoch(h.dir, list, 1, 4, 0))
	if p.gets() != gets {
		e.Errorf("%d objects were asked for after the prolog", p.gets()-gets)
	}
	e.must(p.Up(), "open the proxy again")
	h.quit()
	last := job("7", "hearth:/d1")
	if out, code := last.script("prolog"); code != 1 || !strings.Contains(out, "no node answers") {
		e.Errorf("prolog without a node: exit %d: %s", code, out)
	}
	if out, code := job("8", "hearth:/d1", "PATH=/usr/bin:/bin").script("prolog"); code != 1 || !strings.Contains(out, "hearth") {
		e.Errorf("prolog without hearth: exit %d: %s", code, out)
	}
	if out, code := last.script("epilog"); code != 0 {
		e.Errorf("epilog without a node: exit %d: %s", code, out)
	}
}

// slurmGoesOn: with less than all to wait for, the job begins once that is there, while its
// warm-up is at work on what does not come; its epilog ends that, and what was loaded stays.
func (h *hearth) slurmGoesOn(p *proxied, part []hearthtest.File, j *slurmJob) {
	e := h.e
	e.Helper()
	p.AddRule(faultproxy.Rule{Verb: faultproxy.Get, Match: "/part/late/", Delay: faultproxy.Duration(time.Minute)})
	for _, script := range []string{"prolog", "task-prolog"} {
		if out, code := j.script(script); code != 0 || out != "" {
			e.Errorf("%s that waits for a part: exit %d: %s", script, code, out)
		}
		if v := h.latest(); v.State.Over() || v.BytesDone < sum(part)/5 {
			e.Errorf("after the %s the job is %s, %d of %d bytes", script, v.State, v.BytesDone, sum(part))
		}
	}
	if out, code := j.script("epilog"); code != 0 || out != "" {
		e.Errorf("epilog of a job that began early: exit %d: %s", code, out)
	}
	v := h.latest()
	if v.State != warmup.Cancelled || v.Counters.Done.Bytes < sum(part)/5 {
		e.Errorf("after the epilog the job is %s, %+v", v.State, v.Counters)
	}
	if left, err := filepath.Glob(e.path("slurm") + "/*"); err != nil || len(left) > 0 {
		e.Errorf("epilog of a job that began early left %v, %v", left, err)
	}
	p.ClearRules()
	gets, early := p.gets(), filesBelow(part, "part/early/")
	e.good("what a job that began early reads", epoch(h.dir, early, 1, 1, 0))
	if asked := p.gets() - gets; asked > int64(len(early))-v.Counters.Done.Files {
		e.Errorf("%d of %d files were loaded, and %d asked for again", v.Counters.Done.Files, len(early), asked)
	}
}

// manifest reads the objects of a file in deploy/kubernetes by kind.
func (e *env) manifest(name string) map[string]map[string]any {
	e.Helper()
	text, err := os.ReadFile(filepath.Join(e.repo, "deploy", "kubernetes", name))
	e.must(err, "read the manifest")
	all := map[string]map[string]any{}
	for d := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var m map[string]any
		if err := d.Decode(&m); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			e.Fatalf("%s: %v", name, err)
		}
		all[m["kind"].(string)] = m
	}
}

// at follows keys and indexes into a document.
func at(doc any, path ...any) any {
	for _, step := range path {
		switch step := step.(type) {
		case string:
			doc = doc.(map[string]any)[step]
		case int:
			doc = doc.([]any)[step]
		}
	}
	return doc
}

// words is a command of a manifest.
func words(list any) (all []string) {
	for _, w := range list.([]any) {
		all = append(all, w.(string))
	}
	return all
}

// asPod runs a command as a container without capabilities that sees the node's socket
// read-only.
const asPod = `mount --bind /run/hearth /run/hearth && mount -o remount,bind,ro /run/hearth && exec setpriv --no-new-privs --bounding-set=-all --inh-caps=-all "$@"`

// kubernetesRecipe runs the commands of deploy/kubernetes on one machine: the daemonset's
// node with its configuration, whose bucket is ours, then the job's init container and
// its reader.
func kubernetesRecipe(e *env) {
	o := e.origin()
	list := e.load(o, hearthtest.DataSet{Name: "train", Groups: []hearthtest.Group{{Dir: "prefix/train/class", Dirs: 2, Files: 10, Min: 10 << 10, Max: 50 << 10}}})
	set, job := e.manifest("daemonset.yaml"), e.manifest("job.yaml") // before the directories are others: the repository may lie in one
	e.machine()
	e.private("/var/lib")
	e.must(os.MkdirAll("/var/lib/hearth/data", 0o755), "do what the daemonset's init container does")
	e.must(os.MkdirAll("/run/hearth", 0o755), "make the socket's directory as kubelet does")

	config := at(set["ConfigMap"], "data", "hearth.yaml").(string)
	for from, to := range map[string]string{"s3://BUCKET/PREFIX": "s3://" + o.bucket + "/prefix", "eu-central-1": "us-east-1", `":9876"`: `"` + freePort(e) + `"`} {
		if !strings.Contains(config, from) {
			e.Fatalf("the configuration has no %s", from)
		}
		config = strings.ReplaceAll(config, from, to)
	}
	e.must(os.WriteFile(e.path("hearth.yaml"), []byte(config), 0o600), "write the configuration")
	in := func(cmd *exec.Cmd, more ...string) *exec.Cmd {
		cmd.Env = append(append(e.environ(nil), "PATH="+filepath.Dir(e.hearth)+":"+os.Getenv("PATH")), more...)
		return cmd
	}
	up := words(at(set["DaemonSet"], "spec", "template", "spec", "containers", 0, "command"))
	up[len(up)-1] = e.path("hearth.yaml")
	up[0] = e.hearth
	node := e.start(in(exec.Command(up[0], up[1:]...), "AWS_ENDPOINT_URL="+o.endpoint, "AWS_ACCESS_KEY_ID="+o.access, "AWS_SECRET_ACCESS_KEY="+o.secret))
	node.waitFor("serving at /run/hearth/hearth.sock")

	pod := at(job["Job"], "spec", "template", "spec")
	warm := words(at(pod, "initContainers", 0, "command"))
	run := func(command []string) (string, int) {
		cmd := in(exec.CommandContext(e.ctx, "unshare", append([]string{"--mount", "sh", "-c", asPod, "sh"}, command...)...))
		out, _ := cmd.CombinedOutput()
		return string(out), cmd.ProcessState.ExitCode()
	}
	if out, code := run(warm); code != 0 || !strings.Contains(out, "done in") || !strings.Contains(out, fmt.Sprintf("%d files", len(list))) {
		e.Errorf("%v: exit %d: %s", warm, code, out)
	}
	absent := append(append([]string{}, warm[:len(warm)-1]...), "/absent")
	if out, code := run(absent); code != 4 || !strings.Contains(out, "/absent") {
		e.Errorf("%v: exit %d: %s", absent, code, out)
	}
	o.Stop()
	read := words(at(pod, "containers", 0, "command"))
	read[2] = strings.ReplaceAll(read[2], "/data/data", "/var/lib/hearth/data") // where the volume stands in the pod
	out, err := in(exec.CommandContext(e.ctx, read[0], read[1:]...)).CombinedOutput()
	if strings.TrimSpace(string(out)) != fmt.Sprint(sum(list)) || err != nil {
		e.Errorf("%v: %v: %s, want %d", read, err, out, sum(list))
	}
	if code := node.terminate(os.Interrupt); code != 0 {
		e.Errorf("the node ended with %d:\n%s", code, node.out)
	}
	if out, code := run(warm); code != 5 {
		e.Errorf("%v without a node: exit %d: %s", warm, code, out)
	}
}
