package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/hearthfs/hearth/internal/faultproxy"
	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/node/config"
)

// draftsVerb writes to a bucket that refuses: close fails, hearth drafts and status say why and what cures it, and the file is
// there on the mount. Once the bucket takes writes, hearth drafts publish brings what was written. What somebody drops is gone,
// and what it hid is seen again. A file that cannot be removed stays, and one that is open as the connection is cut is published.
func draftsVerb(e *env) {
	o := e.origin()
	// It has the size of what is written over it, and the mount does without auto_inval_data: else the kernel itself drops the pages
	// of what was written and dropped.
	_, err := o.PutBytes(e.ctx, o.bucket, "old", []byte("before."))
	e.must(err, "put an object")
	p := e.proxy(o)
	h := e.mount(o, settings{endpoint: p.endpoint, mount: []string{"--write", "through", "--fuse-without", "auto_inval_data"}})
	if m := h.status().Mounts; len(m) != 1 || m[0].Access() != "writable" || !strings.Contains(h.out.String(), ", writable (open=") {
		e.Errorf("the mount is %+v:\n%s", m, h.out)
	}
	says := func(code int, args []string, wants ...string) {
		e.Helper()
		out, got := h.ask(args...)
		for _, want := range wants {
			if !strings.Contains(out, want) {
				e.Errorf("hearth %v does not say %q:\n%s", args, want, out)
			}
		}
		if got != code {
			e.Errorf("hearth %v: exit %d, expected %d:\n%s", args, got, code, out)
		}
	}
	holds := func(name, want string) {
		e.Helper()
		if got, err := os.ReadFile(name); err != nil || string(got) != want {
			e.Errorf("%s holds %q, %v, expected %q", name, got, err, want)
		}
	}
	in := func(name string) string { return filepath.Join(h.dir, name) }
	holds(in("old"), "before.")
	says(0, []string{"drafts"}, "DRAFT  SIZE")

	p.AddRule(faultproxy.Denied(faultproxy.Other))
	for _, name := range []string{"new", "old"} {
		if err := os.WriteFile(in(name), []byte("written"), 0o644); !errors.Is(err, syscall.EACCES) {
			e.Errorf("close of %s, which the bucket refuses: %v", name, err)
		}
		holds(in(name), "written")
	}
	e.eventually("the causes", func() bool { out, _ := h.ask("drafts"); return strings.Count(out, "grant s3:PutObject") == 2 })
	says(0, []string{"drafts", "ls"}, "/new ", "/old ", "7 B", "failed")
	says(0, []string{"drafts", "-o", "jsonl"}, `"state":"failed"`, `"url":"s3://data/new"`)
	says(6, []string{"status"}, "2 files that were written are not in the bucket, and nobody tries it again: /", "grant s3:PutObject", "\ndrafts  2 failed, 14 B")
	says(1, []string{"drafts", "publish", in("new")}, "/new: ", "grant s3:PutObject")
	says(1, []string{"drafts", "publish", "--all"}, "/new: ", "/old: ")
	if got := h.metric("hearth_drafts_failures_total"); got < 4 {
		e.Errorf("%d requests failed, by the metrics", got)
	}

	says(0, []string{"drafts", "drop", in("old")}, "dropped "+in("old")+": 7 bytes are lost")
	holds(in("old"), "before.")
	p.ClearRules()
	says(0, []string{"drafts", "publish", in("new")}, "published /new, 7 B")
	says(0, []string{"drafts", "publish", "--all"}, "nothing waits")
	says(4, []string{"drafts", "drop", in("new")}, "no file that was written waits there")
	if all, err := h.client.Drafts(e.ctx); err != nil || len(all) != 0 {
		e.Errorf("drafts afterwards: %+v, %v", all, err)
	}
	says(0, []string{"status"}, "ok\n", "\ndrafts  none; 1 published")
	holds(in("new"), "written")
	holds(filepath.Join(e.path("origin"), o.bucket, "new"), "written")
	holds(filepath.Join(e.path("origin"), o.bucket, "old"), "before.")

	// rm of a file that the bucket keeps. Who has it open goes on with that file.
	f, err := os.OpenFile(in("new"), os.O_WRONLY|os.O_APPEND, 0)
	e.must(err, "open a file")
	_, err = f.WriteString(" on")
	e.must(err, "write a file")
	p.AddRule(faultproxy.Denied(faultproxy.Other))
	if err := os.Remove(in("new")); !errors.Is(err, syscall.EACCES) {
		e.Errorf("rm that the bucket refuses: %v", err)
	}
	p.ClearRules()
	e.must(f.Close(), "close a file whose rm was refused")
	holds(filepath.Join(e.path("origin"), o.bucket, "new"), "written on")

	if e.variant != "nobody" { // who may not cut a connection
		h.cutWhileOpen(o)
	}
	h.quit()
}

// cutWhileOpen has the mount's connection cut while a file is open: what was written of it is published without a restart.
func (h *hearth) cutWhileOpen(o *server) {
	e := h.e
	e.Helper()
	second := e.path("mnt-second")
	e.must(os.MkdirAll(second, 0o755), "make a mount point")
	_, err := h.client.Mount(e.ctx, admin.MountRequest{Mount: config.Mount{Dir: second}})
	e.must(err, "mount once more")
	open, err := os.Create(filepath.Join(h.dir, "open"))
	e.must(err, "make a file")
	_, err = open.WriteString("written")
	e.must(err, "write a file")
	abortBelow(h.dir)
	if err := open.Close(); err == nil {
		e.Error("a close after the connection was cut says that the bucket has the file")
	}
	e.eventually("what was open", func() bool { all, err := h.client.Drafts(e.ctx); return err == nil && len(all) == 0 })
	if got, err := os.ReadFile(filepath.Join(e.path("origin"), o.bucket, "open")); err != nil || string(got) != "written" {
		e.Errorf("the bucket has %q, %v", got, err)
	}
	if out, code := e.run(e.hearth, "umount", "--dead"); code != 0 {
		e.Errorf("umount --dead: exit %d: %s", code, out)
	}
}
