package e2e

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// restartDuringOutage mounts again, with what the cache holds from before, while
// nobody answers at the origin: known names and files go on, with a warning; once
// the origin is back status is well by itself and new files appear.
func restartDuringOutage(e *env) {
	o := e.origin()
	list := e.load(o, e.set("D1", 2, 10, 2, 10))
	p := e.proxy(o)
	set := settings{endpoint: p.endpoint, fresh: "bounded(1s)"}
	h := e.mount(o, set)
	e.good("before the outage", epoch(h.dir, list, 1, 4, 0))
	h.quit()
	p.Down()
	h.launch(o, set)
	h.waitFor("hearth: warning: the origin cannot be asked")
	e.good("known files, during the outage", epoch(h.dir, list, 2, 4, 0))
	if names, err := os.ReadDir(filepath.Join(h.dir, filepath.Dir(list[0].Path))); err != nil || len(names) == 0 {
		e.Errorf("a known directory, during the outage: %d names, %v", len(names), err)
	}
	if says := h.status().Says; !strings.Contains(says, "the last known names are shown") {
		e.Errorf("during the outage status says %q", says)
	}
	f := hearthtest.File{Path: filepath.Dir(list[0].Path) + "/made-meanwhile", Size: 100 << 10}
	e.must(o.PutFile(e.ctx, o.bucket, "", f, 0), "put a file during the outage")
	e.must(p.Up(), "let the proxy answer again")
	e.eventually("status is well, though nobody reads", func() bool { return h.status().Says == "ok" && h.status().Mounts[0].Warning == "" })
	e.eventually("the new file", func() bool {
		_, err := os.Stat(filepath.Join(h.dir, f.Path))
		return err == nil
	})
	_, err := readWhole(filepath.Join(h.dir, f.Path), f, 0, make([]byte, 64<<10))
	e.must(err, "read the new file")
	e.good("after the outage", epoch(h.dir, list, 3, 4, 0))
	h.quit()
}
