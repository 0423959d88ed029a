package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/hearthfs/hearth/internal/faultproxy"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/namespace"
	"github.com/hearthfs/hearth/warmup"
)

// warmUpFlags are --metadata-only, --wait, the time of a dry run, a list by standard input,
// --pin and --rate, of a node that holds all of the list.
func (e *env) warmUpFlags(h *hearth, p *proxied, list []hearthtest.File) {
	e.Helper()
	h.evict("/")
	gets := p.Stats().Get.Requests
	odd, err := filepath.Glob(filepath.Join(h.dir, "odd", "*"))
	e.must(err, "find the odd names")
	if v := h.job(0, "warmup", "--metadata-only", "/"); v.Counters.Done.Files != int64(len(list)+len(odd)) || p.Stats().Get.Requests != gets {
		e.Errorf("names alone: %+v after %d requests for bytes", v, p.Stats().Get.Requests-gets)
	}
	last := slices.MaxFunc(list, func(a, b hearthtest.File) int { return strings.Compare(a.Path, b.Path) })
	e.withhold(p, last.Path)
	if out, code := h.ask("warmup", "/"+strings.Split(last.Path, "/")[0], "--wait=95%"); code != 0 {
		e.Errorf("--wait=95%% with one file of %d missing: exit %d, %s", len(list), code, out)
	}
	e.eventually("a rate", func() bool { return h.latest().Worked >= 1 }) // of less than a second none is measured
	if v := h.latest(); v.State.Over() || float64(v.BytesDone) < 0.95*float64(v.BytesTotal) || v.BytesDone >= v.BytesTotal {
		e.Errorf("after --wait=95%%: %+v", v)
	}
	e.withhold(p, "")
	h.job(0, "jobs", "wait", "latest")
	measured := h.latest().ID
	h.evict("/" + list[0].Path)
	if v := h.job(0, "warmup", "/"); v.Counters.Present.Files < v.Counters.Done.Files || v.Counters.Done.Files == 0 {
		e.Errorf("what finds most of it present: %+v", v)
	}
	h.evict("/" + filepath.Dir(list[0].Path))
	for rate, says := range map[string]string{"1TB/s": "time     about .* at the pace of the job " + measured, "1KiB/s": "time     about .* at a rate of 1.0 KiB/s"} {
		if out, code := h.ask("warmup", "--dry-run", "--rate", rate, "/"); code != 0 || !regexp.MustCompile(says).MatchString(out) {
			e.Errorf("a dry run after the job %s, at %s: exit %d, %s", measured, rate, code, out)
		}
	}
	h.job(0, "warmup", "/")

	paths := []string{filepath.Join(h.dir, list[0].Path), "/" + list[1].Path}
	if v := h.piped(strings.Join(paths, "\n")+"\n", "-f", "-"); v.Counters.Sum() != (warmup.Tally{Files: 2, Bytes: list[0].Size + list[1].Size}) {
		e.Errorf("two lines by standard input: %+v", v)
	}
	if v := h.piped(strings.Join(append(paths, "/odd/new\nline"), "\x00"), "-f", "-", "-0"); v.Counters.Sum().Files != 3 {
		e.Errorf("three paths with NUL by standard input: %+v", v)
	}

	dir := filepath.Dir("/" + list[0].Path)
	e.relative(h, dir)
	v := h.job(0, "warmup", "--pin", dir)
	var pinned []namespace.PinView
	out, code := h.ask("pin", "-o", "json")
	if err := json.Unmarshal([]byte(out), &pinned); err != nil || code != 0 || len(pinned) != 1 || pinned[0].Expires == nil ||
		pinned[0].Path != dir || !pinned[0].Expires.Equal(v.Created.Add(24*time.Hour)) {
		e.Errorf("--pin for 24 hours from %v: exit %d, %v, %s", v.Created, code, err, out)
	}
	if out, code := h.ask("unpin", dir); code != 0 {
		e.Errorf("unpin: exit %d, %s", code, out)
	}

	// What a second brings may come at once, and no more than a block besides.
	const rate, block = 4 << 20, 1 << 20
	h.evict(dir)
	v = h.job(0, "warmup", "--rate", "4MiB/s", dir)
	if least := float64(v.Counters.Done.Bytes-block) / rate; v.Counters.Done.Bytes < 2*rate || v.Worked < least {
		e.Errorf("%d bytes at %d a second took %.2f s, at least %.2f", v.Counters.Done.Bytes, rate, v.Worked, least)
	}
}

// relative has a shell name files below the mount as it does for other tools, by their paths
// from where it is; elsewhere such paths are the tree's.
func (e *env) relative(h *hearth, dir string) {
	e.Helper()
	all := h.job(0, "warmup", dir)
	want := all.Counters.Sum()
	in := filepath.Join(h.dir, dir)
	sh := func(in, line string) string {
		e.Helper()
		cmd := exec.CommandContext(e.ctx, "sh", "-ec", line)
		cmd.Dir, cmd.Env = in, append(e.environ(nil), "hearth="+e.hearth, "HEARTH_NODE=unix://"+h.socket(), "here="+filepath.Base(in))
		out, err := cmd.CombinedOutput()
		if err != nil {
			e.Errorf("in %s: %s: %v\n%s", in, line, err, out)
		}
		return string(out)
	}
	for _, x := range [][2]string{
		{in, "find . -type f | $hearth warmup -o json -f -"},
		{in, "find . -type f -print0 | $hearth warmup -o json -f - -0"},
		{in, "$hearth warmup -o json ."},
		{in, "$hearth warmup -o json *"},
		{in, "$hearth warmup -o json ../$here"},
		{filepath.Dir(h.dir), "$hearth warmup -o json " + filepath.Base(h.dir) + dir},
		{e.dir, "$hearth warmup -o json " + dir[1:]},
	} {
		var v warmup.View
		if out := sh(x[0], x[1]); json.Unmarshal([]byte(out), &v) != nil || v.Counters.Sum() != want || v.Counters.Failed.Files != 0 {
			e.Errorf("%s: %+v, want %+v\n%s", x[1], v.Counters, want, out)
		}
	}
	sh(in, `for f in *; do $hearth cat "$f" | cmp - "$f"; $hearth stat "$f"; $hearth explain "$f"@0; $hearth du "./$f"; $hearth ls "$f"; break; done`)
	if out := sh(in, "$hearth evict --dry-run ."); !strings.HasPrefix(out, fmt.Sprintf("would drop %d files", want.Files)) {
		e.Errorf("evict --dry-run . of %d files: %s", want.Files, out)
	}
}

// withhold has the origin begin to answer for a key and send no byte, until it is told of
// another one, or of "" for none. What it withheld before is asked for again.
func (e *env) withhold(p *proxied, key string) {
	e.Helper()
	p.ClearRules()
	if key != "" {
		p.AddRule(faultproxy.Rule{Verb: faultproxy.Get, Match: key, Body: faultproxy.Stall})
	}
	p.Down() // which ends what is under way
	e.must(p.Up(), "open the proxy again")
}

// latest is the job that began last.
func (h *hearth) latest() *warmup.View {
	h.e.Helper()
	all, err := h.client.Jobs().List(h.e.ctx)
	h.e.must(err, "list the jobs")
	if len(all) == 0 {
		h.e.Fatal("there is no job")
	}
	return &all[0]
}

// evict drops what lies below a path.
func (h *hearth) evict(path string) {
	h.e.Helper()
	if out, code := h.ask("evict", "--yes", path); code != 0 || !strings.HasPrefix(out, "dropped ") || strings.HasPrefix(out, "dropped 0 ") {
		h.e.Fatalf("evict %s: exit %d, %s", path, code, out)
	}
}

// piped is a warm-up that ends well, of what standard input names.
func (h *hearth) piped(in string, args ...string) (v warmup.View) {
	h.e.Helper()
	cmd := exec.CommandContext(h.e.ctx, h.e.hearth, slices.Concat([]string{"warmup"}, args, []string{"-o", "json", "--node", "unix://" + h.socket()})...)
	cmd.Env, cmd.Stdin = h.e.environ(nil), strings.NewReader(in)
	out, err := cmd.Output()
	if err = errors.Join(err, json.Unmarshal(out, &v)); err != nil {
		h.e.Errorf("warmup %v of %q: %v\n%s", args, in, err, out)
	}
	return v
}
