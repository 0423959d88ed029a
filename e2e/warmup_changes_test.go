package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/hearthfs/hearth/internal/faultproxy"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/warmup"
)

// warmUpChanges has objects overwritten and deleted while a job loads, after they were
// listed and before their bytes came, one of them half loaded. At the end each file is in
// one category, and together they are what an independent listing gives. The command writes
// to a file: a line each ten seconds, without a percentage before the listing has ended.
func warmUpChanges(e *env) {
	o := e.origin()
	kept := e.load(o, hearthtest.DataSet{Name: "kept", Groups: []hearthtest.Group{{Dir: "c/kept", Dirs: 4, Files: 50, Min: 40 << 10, Max: 120 << 10}}})
	t := touchedFiles()
	for _, f := range slices.Concat(t.before, t.deleted) {
		e.must(o.PutFile(e.ctx, o.bucket, "", f, 0), "put %s", f.Path)
	}
	p := e.proxy(o)
	h := e.mount(o, settings{endpoint: p.endpoint, fresh: "bounded(10m)", origin: ", timeout: 5m"})
	p.AddRule(faultproxy.Rule{Verb: faultproxy.List, Match: "touched", Times: 1, Body: faultproxy.Stall})
	p.AddRule(faultproxy.Rule{Verb: faultproxy.Get, Match: "touched", Body: faultproxy.Stall})
	p.AddRule(faultproxy.Rule{Verb: faultproxy.Get, Match: "halfway", Skip: 14, Body: faultproxy.Stall})
	said := e.path("said")
	e.must(os.WriteFile(said, nil, 0o600), "make a file for what it says")
	command := e.start(exec.Command("sh", "-c", `exec "$0" warmup / --node "$1" >"$2" 2>&1`, e.hearth, "unix://"+h.socket(), said))
	listing := e.lineOf(said, "listing... ")
	if strings.Contains(listing, "%") {
		e.Errorf("a percentage before the listing has ended:\n%s", listing)
	}
	again := func() { // what does not come is asked for once more
		p.Down()
		e.must(p.Up(), "open the proxy again")
	}
	again()
	e.eventually("all listed, and one file half loaded", func() bool {
		v := h.latest()
		return v.Plan.Counted && v.BytesDone >= 16<<20
	})
	t.touch(e, o)
	loading := e.lineOf(said, "%  ")
	p.ClearRules()
	again()
	if code := command.exit(time.Minute); code != 0 {
		e.Errorf("warmup of what changes meanwhile: exit %d", code)
	}
	text, err := os.ReadFile(said)
	e.must(err, "read what it said")
	if strings.ContainsAny(string(text), "\r\x1b") || !strings.Contains(string(text), " done in ") || !strings.HasPrefix(string(text), listing) || !strings.HasPrefix(loading, listing) {
		e.Errorf("not on a terminal it says %q", text)
	}
	e.sumsUp(o, h.latest(), &t, len(kept))
	v := h.job(0, "warmup", "--check", "/")
	if v.Checked.Whole.Files != int64(len(kept)+len(t.after)) {
		e.Errorf("a check of it: %+v", v.Checked)
	}
	p.Down()
	e.good("what stayed, without the origin", epoch(h.dir, kept, 3, 4, 0))
	e.good("what changed, without the origin", epoch(h.dir, t.after, 3, 4, 1))
	e.must(p.Up(), "open the proxy again")
	h.quit()
}

// touched are files that are overwritten, as they are before and after, and deleted.
type touched struct{ before, after, deleted []hearthtest.File }

func touchedFiles() (t touched) {
	for i, x := range []struct{ was, is int64 }{{50_000, 150_000}, {150_000, 50_000}, {100_000, 100_000}, {5 << 20, 18 << 20}, {12 << 20, 3 << 20}, {18 << 20, 18 << 20}, {36 << 20, 2 << 20}} {
		for j := range map[bool]int{true: 1, false: 4}[x.was > 1<<20] {
			path := fmt.Sprintf("c/touched/file-%d-%d", i, j)
			t.before = append(t.before, hearthtest.File{Path: path, Size: x.was})
			t.after = append(t.after, hearthtest.File{Path: path, Size: x.is})
		}
	}
	t.before = append(t.before, hearthtest.File{Path: "c/halfway", Size: 64 << 20})
	t.after = append(t.after, hearthtest.File{Path: "c/halfway", Size: 3 << 20})
	for i, size := range []int64{50_000, 100_000, 18 << 20} {
		t.deleted = append(t.deleted, hearthtest.File{Path: fmt.Sprintf("c/touched/gone-%d", i), Size: size})
	}
	return t
}

// touch does all that to them.
func (t *touched) touch(e *env, o *server) {
	e.Helper()
	for _, f := range t.after {
		e.must(o.PutFile(e.ctx, o.bucket, "", f, 1), "overwrite %s", f.Path)
	}
	for _, f := range t.deleted {
		e.must(o.Delete(e.ctx, o.bucket, f.Path), "delete %s", f.Path)
	}
}

// sumsUp holds a job's counters against a listing of the bucket by another program.
func (e *env) sumsUp(o *server, v *warmup.View, t *touched, kept int) {
	e.Helper()
	var listed warmup.Tally
	out := e.aws(o, "s3api", "list-objects-v2", "--bucket", o.bucket, "--query", "[length(Contents), sum(Contents[].Size)]", "--output", "text")
	_, err := fmt.Sscan(out, &listed.Files, &listed.Bytes)
	e.must(err, "read the listing %q", out)
	gone := warmup.Tally{Files: int64(len(t.deleted)), Bytes: sum(t.deleted)}
	c := v.Counters
	if want := (warmup.Tally{Files: listed.Files + gone.Files, Bytes: listed.Bytes + gone.Bytes}); c.Sum() != want || c.Held() != listed || c.Vanished != gone {
		e.Errorf("%+v come to %+v; %+v are listed, and %+v were deleted", c, c.Sum(), listed, gone)
	}
	if v.State != warmup.Done || c.Done.Files != int64(kept) || c.Changed.Files != int64(len(t.after)) || c.Present.Files != 0 {
		e.Errorf("%d files stayed, %d changed: %+v", kept, len(t.after), v)
	}
}

// lineOf waits until a file holds a text and the end of its line, and returns all it holds.
func (e *env) lineOf(name, part string) (text string) {
	e.Helper()
	e.eventually(part+" in "+name, func() bool {
		data, err := os.ReadFile(name)
		e.must(err, "read %s", name)
		_, behind, ok := strings.Cut(string(data), part)
		text = string(data)
		return ok && strings.Contains(behind, "\n")
	})
	return text
}
