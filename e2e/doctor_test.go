package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/hearthfs/hearth/internal/faultfs"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/node/doctor"
	"github.com/hearthfs/hearth/node/status"
)

// warmUpChecks are the scenarios of what looks at a node and its machine.
func warmUpChecks() []scenario {
	is := func(text string) func(level) string { return func(level) string { return text } }
	return []scenario{
		{name: "doctor", issue: "warm-up", root: true, from: all, limit: time.Minute, origin: "versitygw", size: is("3 looks"), run: doctorLooks},
		{name: "doctor-stalled-disk", issue: "warm-up", root: true, from: all, limit: time.Minute, origin: "none", size: is("1 disk"), run: doctorOfAStalledDisk},
		{name: "explain", issue: "warm-up", from: all, limit: time.Minute, origin: "versitygw", size: is("1 object of 3 MiB"), run: explained},
	}
}

// doctorLooks has doctor look at this machine as root, as a user without privileges,
// and beside a node: its mount is real and gone again, and what each may have is told.
func doctorLooks(e *env) {
	o := e.origin()
	_, err := o.PutBytes(e.ctx, o.bucket, "key", []byte("value"))
	e.must(err, "put an object")
	user := e.user()
	examine := func(h *hearth, as *syscall.Credential) map[string]doctor.Finding {
		e.Helper()
		cmd := exec.CommandContext(e.ctx, e.hearth, "doctor", "-o", "json", "--config", h.config)
		cmd.Env = append(e.environ(o), "TMPDIR="+e.path("tmp"))
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Credential: as}
		text, err := cmd.Output()
		var doc struct{ Checks []doctor.Finding }
		if json.Unmarshal(text, &doc) != nil || err != nil {
			e.Errorf("doctor: %v: %s", err, text)
		}
		found := map[string]doctor.Finding{}
		for _, f := range doc.Checks {
			found[f.Check] = f
			if f.Check == "mount" {
				found["mount "+f.Subject] = f
			}
		}
		if left, _ := os.ReadDir(e.path("tmp")); len(left) > 0 || len(mountsBelow(e.path("tmp"))) > 0 {
			e.Errorf("doctor left %v behind", left)
		}
		return found
	}
	e.must(os.Mkdir(e.path("tmp"), 0o777), "make a place for mounts")
	e.must(os.Chmod(e.path("tmp"), 0o777), "let the user mount there")
	set := settings{cache: "doctored"}
	own := &hearth{config: e.writeConfig(o, set)}
	if f := examine(own, nil)["mount "]; f.Verdict != doctor.OK || !strings.Contains(f.Found, "mount(2)") {
		e.Errorf("as root: %+v", f)
	}
	if _, err := os.Stat(e.path("doctored")); err == nil {
		e.Error("doctor made the cache directory")
	}
	e.must(os.Chown(own.config, 65534, 65534), "give the configuration to the user")
	found := examine(own, user)
	if f := found["mount "]; f.Verdict != doctor.OK || !strings.Contains(f.Found, "fusermount3") {
		e.Errorf("as a user: %+v", f)
	}
	if f := found["mount passthrough"]; f.Verdict != doctor.Warn || !strings.Contains(f.Found, "CAP_SYS_ADMIN") || !strings.Contains(f.Cure, "mount as root") {
		e.Errorf("what a user lacks: %+v", f)
	}
	h := e.mount(o, settings{})
	found = examine(h, nil)
	if f := found["node"]; f.Verdict != doctor.OK || !strings.Contains(f.Found, "all is well") {
		e.Errorf("beside a node: %+v", f)
	}
	if f := found["cache content"]; f.Verdict != doctor.OK || !strings.Contains(f.Found, "in use by the node") {
		e.Errorf("the node's cache: %+v", f)
	}
	if names, err := os.ReadDir(h.dir); err != nil || len(names) != 1 {
		e.Errorf("the node's mount after all: %s: %v, %v", filepath.Base(h.dir), names, err)
	}
	h.quit()
}

// doctorOfAStalledDisk has doctor look at a disk that does not answer: it says so and
// ends at its bound, though a thread that waits for a device cannot be killed.
func doctorOfAStalledDisk(e *env) {
	d := e.device("sick", 64, "-O", "^has_journal")
	e.must(os.WriteFile(e.path("empty.yaml"), nil, 0o600), "write a configuration")
	d.meet(faultfs.Stall)
	began := time.Now()
	out, code := e.run(e.hearth, "doctor", "--config", e.path("empty.yaml"), "--cache-ram", "32MiB", "--cache-disks", e.path("sick/cache")+"=32MiB",
		"--cache-free-floor", "1MiB", "--admin-socket", e.path("s"), "--metrics-listen", "-")
	if took := time.Since(began); code != 6 || took > 12*time.Second || !strings.Contains(out, e.path("sick/cache")+": no answer within 10s; look at the device (dmesg)") {
		e.Errorf("exit %d after %v:\n%s", code, took, out)
	}
	if !strings.Contains(out, "OK    mount ") {
		e.Errorf("the disk is in the mount's way:\n%s", out)
	}
	d.meet(faultfs.None)
}

// explained asks what a read would do before and after a large object was read through
// a mount that lends files, and holds the word on lending against what an open is then.
func explained(e *env) {
	o := e.origin()
	f := hearthtest.File{Path: "d/large", Size: 3<<20 + 5}
	e.must(o.PutFile(e.ctx, o.bucket, "", f, 0), "put an object")
	h := e.mount(o, settings{mount: []string{"--open", "passthrough"}})
	name := filepath.Join(h.dir, f.Path)
	ask := func() (x status.Explanation) {
		e.Helper()
		out, code := e.run(e.hearth, "explain", name+"@2MiB", "-o", "json", "--node", "unix://"+h.socket())
		if err := json.Unmarshal([]byte(out), &x); err != nil || code != 0 || len(x.Mounts) != 1 {
			e.Fatalf("explain: exit %d, %v: %s", code, err, out)
		}
		return x
	}
	if x := ask(); x.Read.By != "origin" || x.Read.Offset != 2<<20 || x.Read.GetN != 1<<20 || x.Read.Kept == "" || x.Mounts[0].Lent {
		e.Errorf("before it was read: %+v %+v", x.Read, x.Mounts)
	}
	read := func() {
		e.Helper()
		text, err := os.ReadFile(name)
		e.must(err, "read %s", name)
		e.must(hearthtest.Check(text, f.Path, 0, 0), "compare %s", name)
	}
	read()
	if h.status().Mounts[0].Open == "passthrough" {
		e.eventually("the file is lent", func() bool {
			x := ask()
			if !x.Mounts[0].Lent {
				read() // an open begins what verifies it
			}
			return x.Mounts[0].Lent
		})
		before := h.status().Mounts[0].Ops["lent"]
		read()
		if got := h.status().Mounts[0].Ops["lent"]; got != before+1 {
			e.Errorf("explain says lent, and %d opens were lent, then %d", before, got)
		}
	}
	if x := ask(); x.Read.By != "disk" || len(x.Held) != 1 || x.Held[0].Kind != "sparse" {
		e.Errorf("after it was read: %+v %+v", x.Held, x.Read)
	}
	if out, code := e.run(e.hearth, "explain", name, "--node", "unix://"+h.socket()); code != 0 || !strings.Contains(out, "a read at 0  is served from ") || !strings.Contains(out, "disk "+e.path("cache")+" (sparse)") {
		e.Errorf("for people: exit %d:\n%s", code, out)
	}
	h.quit()
}
