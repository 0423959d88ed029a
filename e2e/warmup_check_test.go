package e2e

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/hearthfs/hearth/cache/check"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/warmup"
)

// warmUpChecked warms up small and large objects and checks them: all is whole, and no
// byte is asked of the origin, also where the node is killed meanwhile. Then a byte is
// changed in each kind of file, one of the cache is deleted, and so are objects at the
// origin, or overwritten and added: the check names exactly these. After another warm-up
// all is whole again.
func warmUpChecked(e *env) {
	o := e.origin()
	list := e.load(o, hearthtest.DataSet{Name: "checked", Groups: []hearthtest.Group{
		{Dir: "w/large", Dirs: 1, Files: 4, Min: 5<<20 + 3, Max: 5<<20 + 3},
		{Dir: "w/small", Dirs: 5, Files: 50, Min: 96 << 10, Max: 96 << 10},
	}})
	p := e.proxy(o)
	set := settings{endpoint: p.endpoint, disk: "400MiB", mount: []string{"--open", "none"}}
	h := e.mount(o, set)
	total := warmup.Tally{Files: int64(len(list)), Bytes: sum(list)}
	h.job(0, "warmup", "/")
	asked := p.bytes()
	silent := func() {
		e.Helper()
		if n := p.bytes() - asked; n != 0 {
			e.Errorf("a check asked the origin for %d bytes", n)
		}
	}
	e.pastThePageCache(h, total)
	silent()
	e.checkKilled(h, o, set, total)
	want := e.hurtEachKind(h, o, list)
	asked = p.bytes() // a node that starts asks, too
	out, code := h.ask("warmup", "--check", "/", "-o", "jsonl")
	if got := said(out); code != 3 || !slices.Equal(got, want) {
		e.Errorf("check: exit %d, found\n%s\nnot\n%s\n%s", code, strings.Join(got, "\n"), strings.Join(want, "\n"), out)
	}
	silent()
	h.job(0, "warmup", "/")
	v := h.job(0, "warmup", "--check", "/")
	if v.Checked.Whole.Files != total.Files || v.Checked.Damaged != 0 {
		e.Errorf("after another warm-up: %+v", v.Checked)
	}
	e.otherKinds(h, o, set)
	// One of them was deleted and one overwritten since.
	e.checkedAlive(h, o, p, set, slices.Concat(list[:5], list[7:]))
}

// pastThePageCache has the kernel hold all of the cache's files in memory: a check reads each
// byte of the set from the device even so.
func (e *env) pastThePageCache(h *hearth, total warmup.Tally) {
	e.Helper()
	for _, files := range e.cacheFiles(func(string) bool { return false }) {
		for _, name := range files {
			_, err := os.ReadFile(name)
			e.must(err, "read %s", name)
		}
	}
	read := func() int64 {
		text := e.figure(fmt.Sprintf("/proc/%d/io", h.Process.Pid), "read_bytes:")
		n, err := strconv.ParseInt(text, 10, 64)
		e.must(err, "read what the node had of devices")
		return n
	}
	before := read()
	v := h.job(0, "warmup", "--check", "/")
	if v.State != warmup.Done || v.Checked.Whole != total || v.Checked.Logged != 0 || v.Checked.Buffered != 0 {
		e.Fatalf("after a warm-up of %+v: %+v", total, v)
	}
	if n := read() - before; n < total.Bytes {
		e.Errorf("a check of %d bytes read %d from the device", total.Bytes, n)
	}
}

// What a check does with a changed byte in a kind of file of a cache directory.
const (
	isNamed  = "it names the path, or the file"
	toFsck   = "it leaves that to hearth fsck"
	toStart  = "it leaves that to the next start"
	ofNoUse  = "nothing that is kept lies there"
	ofItsOwn = "it writes that itself"
)

// checkSays is that for each kind; docs/warm-up.md says the same.
func checkSays() map[string]string {
	return map[string]string{"data": isNamed, "sums": isNamed, "segment": isNamed, "scrub.json": isNamed, "open-modes.json": isNamed, "hearth.json": isNamed, "node-ids": isNamed,
		"objects/FORMAT": toFsck, "segments/deaths": toFsck, "names": toFsck,
		"jobs/json": toStart, "jobs/found": ofItsOwn, "jobs/changes": ofItsOwn, "jobs/json.damaged": ofNoUse, "lock": ofNoUse}
}

// kindsForCheck are the files of the cache by those kinds.
func (e *env) kindsForCheck() map[string][]string {
	e.Helper()
	kinds := map[string][]string{}
	for kind, files := range e.cacheFiles(func(string) bool { return false }) {
		for _, file := range files {
			rel, _ := filepath.Rel(e.path("cache"), file)
			as := kind
			switch in, base := filepath.Split(rel); {
			case strings.HasPrefix(kind, "names/"):
				as = "names"
			case in == "jobs/":
				as = in + kind
			case in == "", kind == base:
				as = rel
			}
			kinds[as] = append(kinds[as], file)
		}
	}
	for kind, files := range kinds {
		if checkSays()[kind] == "" {
			e.Errorf("nothing says what a check does with %s, of a kind %s", files[0], kind)
		}
	}
	return kinds
}

// otherKinds changes a byte in each kind of file that is no object's. A check names those
// that it looks at, and of the others finds nothing; hearth fsck names these, and a start a
// job's record.
func (e *env) otherKinds(h *hearth, o *server, set settings) {
	e.Helper()
	kinds := e.kindsForCheck()
	flip := func(kind string, off int64) (name string) {
		e.Helper()
		if len(kinds[kind]) == 0 {
			e.Fatalf("the cache has no %s: %v", kind, kinds)
		}
		name = kinds[kind][0]
		hearthtest.FlipByte(e, name, off, 0x40)
		return name
	}
	var want, hurt []string
	for kind, files := range kinds {
		if checkSays()[kind] == isNamed && filepath.Dir(files[0]) == e.path("cache") {
			hurt = append(hurt, flip(kind, 0))
			want = append(want, "damaged "+kind)
		}
	}
	hurt = append(hurt, flip("objects/FORMAT", 5), flip("segments/deaths", 20))
	slices.Sort(want)
	out, code := h.ask("warmup", "--check", "/", "-o", "jsonl")
	if got := said(out); code != 3 || !slices.Equal(got, want) || len(want) < 2 {
		e.Errorf("small files: exit %d, found %v, not %v", code, got, want)
	}
	h.quit()
	manifests, err := filepath.Glob(e.path("cache/names/MANIFEST-*"))
	e.must(err, "list the names")
	for _, name := range manifests {
		hearthtest.FlipByte(e, name, 1, 0x40)
	}
	hurt = append(hurt, e.path("cache/names"))
	found := h.fsck(1).Findings
	for _, file := range hurt {
		named := slices.ContainsFunc(found, func(f check.Finding) bool { return strings.HasPrefix(f.File, file) })
		if mended := checkSays()[filepath.Base(file)] == isNamed && filepath.Base(file) != "hearth.json"; named == mended {
			e.Errorf("after a check hearth fsck names %s: %v; %+v", file, named, found)
		}
	}
	h.fsck(0, "--repair")
	record := flip("jobs/json", 0)
	h.launch(o, set)
	if _, err := os.Stat(record + ".damaged"); err != nil || !strings.Contains(h.out.String(), strings.TrimSuffix(filepath.Base(record), ".json")) {
		e.Errorf("of a job's record: %v, the log says\n%s", err, h.out)
	}
}

// checkedAlive changes a byte in each file of the kinds that a check does not name, while the
// node runs: the check finds nothing, and says the truth, since all is whole; all bytes are
// served, without the origin, too. The next start mends what is to be mended, and again all
// is whole.
func (e *env) checkedAlive(h *hearth, o *server, p *proxied, set settings, list []hearthtest.File) {
	e.Helper()
	whole := func(when string) {
		e.Helper()
		if v := h.job(0, "warmup", "--check", "/"); v.Checked.Whole.Files != int64(len(list))+2 {
			e.Errorf("%s: %+v", when, v.Checked)
		}
	}
	whole("after repairs")
	_, err := o.PutBytes(e.ctx, o.bucket, "w/new", []byte("yet another"))
	e.must(err, "put an object")
	if v := h.job(3, "warmup", "--check", "/"); v.Checked.Changed.Files != 1 { // which it writes down
		e.Errorf("of one that was overwritten: %+v", v.Checked)
	}
	h.job(0, "warmup", "/")
	h.quit() // so that the names lie in tables
	h.launch(o, set)
	hurt := map[string]bool{}
	for kind, files := range e.kindsForCheck() {
		for _, name := range files {
			s, err := os.Stat(name)
			e.must(err, "stat %s", name)
			if checkSays()[kind] != isNamed && s.Size() > 0 {
				hearthtest.FlipByte(e, name, s.Size()/2, 0x40)
				hurt[kind] = true
			}
		}
	}
	for kind, says := range checkSays() {
		if says != isNamed && !hurt[kind] {
			e.Errorf("no file of kind %s was hurt", kind)
		}
	}
	whole("with a byte changed in each file that is no block's")
	p.Down()
	e.good("with that, without the origin", epoch(h.dir, list, 3, 4, 0))
	e.must(p.Up(), "open the proxy again")
	h.quit()
	h.launch(o, set)
	whole("after the next start")
	for _, part := range []string{"FORMAT", "deaths", "set aside a job's record"} {
		if !strings.Contains(h.out.String(), part) {
			e.Errorf("the next start says nothing of %s:\n%s", part, h.out)
		}
	}
	h.quit()
	h.fsck(0)
}

// checkKilled kills the node while it checks; the job goes on under its id.
func (e *env) checkKilled(h *hearth, o *server, set settings, total warmup.Tally) {
	e.Helper()
	out, code := h.ask("warmup", "--check", "/", "--detach", "--rate", "20MiB/s")
	id := strings.TrimSpace(out)
	if code != 0 || len(id) != 8 {
		e.Fatalf("warmup --check --detach: exit %d, %s", code, out)
	}
	e.eventually("a part of the check", func() bool {
		v, err := h.client.Jobs().Get(e.ctx, id)
		return err == nil && v.FilesDone > 0
	})
	h.kill9()
	h.launch(o, set)
	if v := h.job(0, "jobs", "wait", id); v.Checked.Whole != total {
		e.Errorf("after a kill: %+v", v)
	}
}

// said are the findings in a check's JSON lines, sorted; a file of the cache by its name.
func said(out string) (all []string) {
	for line := range strings.Lines(out) {
		var s warmup.Sample
		if json.Unmarshal([]byte(line), &s) == nil && s.What != "" {
			if s.What == "damaged" {
				s.Path = filepath.Base(s.Path)
			}
			all = append(all, s.What+" "+s.Path)
		}
	}
	slices.Sort(all)
	return all
}

// hurtEachKind does all that a check is to name, and returns that, sorted.
func (e *env) hurtEachKind(h *hearth, o *server, list []hearthtest.File) (want []string) {
	e.Helper()
	path := func(i int) string { return "/" + list[i].Path }
	version := func(i int) string {
		s, err := h.client.Stat(e.ctx, path(i))
		e.must(err, "stat %s", path(i))
		return s.Version
	}
	object := func(i int, suffix string) string { return e.path("cache/objects/" + version(i) + suffix) }
	const small = 4 // the first of them
	// The cache: the bytes of a large object, a record of one, the header of one's sidecar,
	// a file that is gone, a small object's bytes, an index of a segment, a small file.
	hearthtest.FlipByte(e, object(0, ".data"), 2<<20+77, 0x40)
	hearthtest.FlipByte(e, object(1, ".sums"), 64+144*3+20, 0x40)
	hearthtest.FlipByte(e, object(2, ".sums"), 40, 0x40)
	e.must(os.Remove(object(3, ".data")), "remove a file of the cache")
	segment, at := e.record("cache", version(small))
	hearthtest.FlipByte(e, segment, at+200, 0x40)
	segments, err := filepath.Glob(e.path("cache/segments/*.segment"))
	e.must(err, "list the segments")
	if len(segments) < 2 {
		e.Fatalf("no segment is closed: %v", segments)
	}
	first, err := os.Stat(segments[0])
	e.must(err, "stat %s", segments[0])
	hearthtest.FlipByte(e, segments[0], first.Size()-40, 0x40)
	hearthtest.FlipByte(e, e.path("cache/scrub.json"), 0, 0x40)
	for _, i := range []int{0, 1, 2, 3, small} {
		want = append(want, "corrupt "+path(i))
	}
	want = append(want, "damaged "+filepath.Base(segments[0]), "damaged scrub.json")

	// The origin: one object is gone, one another, one new.
	e.must(o.Delete(e.ctx, o.bucket, list[small+1].Path), "delete an object")
	for _, key := range []string{list[small+2].Path, "w/new"} {
		_, err = o.PutBytes(e.ctx, o.bucket, key, []byte("another"))
		e.must(err, "put an object")
	}
	want = append(want, "vanished "+path(small+1), "changed "+path(small+2), "missing /w/new")
	slices.Sort(want)
	return want
}

// record finds the small object of a version in the segments of a cache, as package
// segment has them.
func (e *env) record(cache, version string) (segment string, at int64) {
	e.Helper()
	raw, err := hex.DecodeString(version)
	e.must(err, "version %s", version)
	segments, err := filepath.Glob(filepath.Join(e.path(cache), "segments/*.segment"))
	e.must(err, "list the segments")
	for _, name := range segments {
		text, err := os.ReadFile(name)
		e.must(err, "read %s", name)
		if i := bytes.Index(text, append([]byte("hblk\x01\x00\x00\x00"), raw...)); i >= 0 {
			return name, int64(i)
		}
	}
	e.Fatalf("version %s is in no segment", version)
	return "", 0
}
