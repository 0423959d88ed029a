package doctor

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/hearthfs/hearth/cache/disk"
	"github.com/hearthfs/hearth/fuse"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/node/config"
	"github.com/hearthfs/hearth/node/machine"
	"github.com/hearthfs/hearth/node/status"
	"github.com/hearthfs/hearth/origin"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// verdict is what a finding is expected to be, by parts of its text.
type verdict struct {
	check   string
	verdict Verdict
	found   string
	cure    string
}

// compare compares findings with the expected ones. A finding that is not OK has a cure, and one that is OK
// has none.
func compare(t *testing.T, name string, got []Finding, want ...verdict) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d findings, want %d: %+v", name, len(got), len(want), got)
		return
	}
	for i, w := range want {
		f := got[i]
		if f.Check != w.check || f.Verdict != w.verdict || !strings.Contains(f.Found, w.found) || !strings.Contains(f.Cure, w.cure) {
			t.Errorf("%s: %+v, want %+v", name, f, w)
		}
		if (f.Verdict == OK) != (f.Cure == "") || f.Found == "" {
			t.Errorf("%s: a verdict without what was found, or a cure that does not fit it: %+v", name, f)
		}
		if strings.Contains(f.Found+f.Cure, "\n") {
			t.Errorf("%s: not one line: %q", name, f.Found+f.Cure)
		}
	}
}

func TestMachines(t *testing.T) {
	// Facts from other machines give the verdicts in the heads of their files.
	trees, err := filepath.Glob("testdata/machines/*.txt")
	if err != nil || len(trees) == 0 {
		t.Fatal(trees, err)
	}
	for _, tree := range trees {
		t.Run(strings.TrimSuffix(filepath.Base(tree), ".txt"), func(t *testing.T) {
			root := t.TempDir()
			want := hearthtest.Unpack(t, tree, root)
			l := machine.ReadLimits(root)
			if l.MemoryBy == "" {
				l.Memory = 16 << 30 // of the machine that was recorded, not of this one
			}
			for _, f := range readSystem(root, l).judge(machine.Size{Bytes: 32 << 20}) {
				name := strings.ReplaceAll(f.Check, " ", "_")
				if string(f.Verdict) != want[name] || !strings.Contains(f.Found, want[name+"_found"]) || (f.Cure == "") != (f.Verdict == OK) {
					t.Errorf("%+v, want %s %s", f, want[name], want[name+"_found"])
				}
			}
		})
	}
}

func TestMountVerdicts(t *testing.T) {
	// A refused mount comes with the cure that package fuse knows. What a mount lacks has a cure of the
	// doctor's own.
	refused := func(text string) mounted { return mounted{failed: errors.New(text)} }
	lacks := func(all ...string) mounted { return mounted{by: "mount(2)", stats: fuse.Stats{Lacks: all}} }
	made := verdict{"mount", OK, "made by mount(2)", ""}
	for name, c := range map[string]struct {
		m    mounted
		want []verdict
	}{
		"well":      {lacks(), []verdict{made}},
		"no device": {refused("mount /t: open /dev/fuse: no such file or directory (on the machine: modprobe fuse; a container needs --device /dev/fuse --cap-add SYS_ADMIN)"), []verdict{{"mount", Fail, "open /dev/fuse: no such file", "modprobe fuse; a container"}}},
		"no right":  {refused("mount /t: mount(2) needs CAP_SYS_ADMIN: operation not permitted (a container needs --cap-add SYS_ADMIN)"), []verdict{{"mount", Fail, "needs CAP_SYS_ADMIN: operation not permitted", "a container needs --cap-add SYS_ADMIN"}}},
		"no helper": {refused("mount /t: mounting as a user needs fusermount3 (Debian: apt-get install fuse3)"), []verdict{{"mount", Fail, "needs fusermount3", "apt-get install fuse3"}}},
		"others":    {refused("mount /t: allow_other as a user: root must add the line user_allow_other to /etc/fuse.conf; or mount without allow_other"), []verdict{{"mount", Fail, "allow_other as a user", "user_allow_other to /etc/fuse.conf"}}},
		"no tmp":    {mounted{failed: &fs.PathError{Op: "mkdir", Path: "/tmp/x", Err: syscall.EACCES}}, []verdict{{"mount", Fail, "permission denied", "TMPDIR"}}},
		"odd":       {refused("mount /t: mount(2): out of cheese"), []verdict{{"mount", Fail, "out of cheese", "dmesg"}}},
		"lacks": {lacks("passthrough: it needs CAP_SYS_ADMIN, and not that of a user namespace", "parallel_dirops: the kernel does not offer it", "readahead: 128 KiB instead of 1024: only root may raise it, where /sys can be written"),
			[]verdict{made, {"mount", Warn, "needs CAP_SYS_ADMIN", "mount as root"}, {"mount", Warn, "does not offer it", "newer kernel"}, {"mount", Warn, "128 KiB instead of 1024", "udev"}}},
		"overlay": {lacks("passthrough: the kernel lends no files of a stacked file system such as overlayfs, on which /c lies: mount a volume there"), []verdict{made, {"mount", Warn, "stacked", "mount a volume at the cache directory"}}},
		"old kernel": {lacks("passthrough: the kernel does not offer it (6.9 or later does)", "resend: the kernel does not offer it (6.9 or later does)", "splice: masked by fuse.without"),
			[]verdict{made, {"mount", Warn, "6.9", "kernel 6.9"}, {"mount", Warn, "6.9", "hearth upgrade keeps them"}, {"mount", OK, "masked by fuse.without", ""}}},
	} {
		compare(t, name, c.m.judge(), c.want...)
	}
}

// at is a sound directory with a change.
func at(change func(d *directory)) *directory {
	d := &directory{disk: machine.Disk{Path: "/c"}}
	d.ground = ground{path: "/c", at: "/c", mode: 0o700 | fs.ModeDir, place: machine.Place{Path: "/c", Whole: 100 << 30, Free: 50 << 30, Inodes: 1 << 20, FileSystem: "ext4"}}
	d.Directory = machine.Directory{Path: "/c", Budget: 10 << 30, Floor: 10 << 30, FileSystem: "ext4"}
	d.tried = tried{direct: true, punch: true, written: 8 << 20, writeRate: 900e6, readRate: 2e9}
	change(d)
	return d
}

func TestDirectoryVerdicts(t *testing.T) {
	// Each thing that can be wrong with a cache directory has its verdict and its cure.
	one := func(f Finding) []Finding { return []Finding{f} }
	ground, content, device := (*directory).judgeGround, (*directory).judgeContent, (*directory).judgeDevice
	space := func(d *directory) []Finding { return one(d.judgeSpace()) }
	held := func(pid string) func(*directory) {
		return func(d *directory) { d.locked, d.holder = true, disk.ParseLockHolder(pid+" pid:[1]") }
	}
	for name, c := range map[string]struct {
		judge  func(*directory) []Finding
		change func(*directory)
		want   []verdict
	}{
		"well":       {ground, func(*directory) {}, []verdict{{"cache directory", OK, "on ext4", ""}}},
		"not there":  {ground, func(d *directory) { d.at = "/" }, []verdict{{"cache directory", OK, "can be made in /", ""}}},
		"in FUSE":    {ground, func(d *directory) { d.ground.failed = machine.ErrInFuse }, []verdict{{"cache directory", Fail, "FUSE mount", "local disk"}}},
		"a file":     {ground, func(d *directory) { d.ground.failed = errors.New("/c is no directory") }, []verdict{{"cache directory", Fail, "no directory", "--cache-disks"}}},
		"read-only":  {ground, func(d *directory) { _, d.ground.failed = machine.PlaceOf("/c", "/proc/1/nothing") }, []verdict{{"cache directory", Fail, "cannot be written", "choose another with --cache-disks"}}},
		"open":       {ground, func(d *directory) { d.mode = 0o777 }, []verdict{{"cache directory", Warn, "others may write", "chmod go-w /c"}}},
		"another's":  {ground, func(d *directory) { d.owner = 1000 }, []verdict{{"cache directory", Warn, "not by user 0", "run hearth as user 1000"}}},
		"foreign":    {content, func(d *directory) { d.foreign = "holiday.jpg" }, []verdict{{"cache content", Fail, `it holds "holiday.jpg"`, "choose another"}}},
		"newer":      {content, func(d *directory) { d.format = disk.LabelFormat + 1 }, []verdict{{"cache content", Fail, "has format 3, this version of hearth knows 2", "run the newer hearth"}}},
		"blind":      {content, func(d *directory) { d.blind = syscall.EACCES }, []verdict{{"cache content", Fail, "permission denied", "let this user read it"}}},
		"ours":       {content, func(*directory) {}, nil},
		"the node's": {content, func(d *directory) { held("12")(d); d.node = &Running{PID: 12} }, []verdict{{"cache content", OK, "in use by the node, process 12", ""}}},
		"in use":     {content, held("13"), []verdict{{"cache content", Fail, "in use by process 13", "stop that one"}}},
		"tmpfs": {content, func(d *directory) {
			d.Note = "cache directory /c lies on a tmpfs: what it holds is memory; to spare that, choose a directory on a disk"
		}, []verdict{{"cache file system", Warn, "lies on a tmpfs", "choose a directory on a disk"}}},
		"nfs":       {content, func(d *directory) { d.place.FileSystem = "nfs" }, []verdict{{"cache file system", Warn, "NFS", "local disk"}}},
		"room":      {space, func(*directory) {}, []verdict{{"cache space", OK, "up to 10.0 GiB", ""}}},
		"less room": {space, func(d *directory) { d.place.Free = 12 << 30 }, []verdict{{"cache space", Warn, "up to 2.0 GiB", "--cache-free-floor"}}},
		"what it holds counts": {space, func(d *directory) { d.place.Free, d.used = 12<<30, 8<<30 },
			[]verdict{{"cache space", OK, "up to 10.0 GiB, 8.0 GiB now", ""}}},
		"no room":   {space, func(d *directory) { d.place.Free = 10 << 30 }, []verdict{{"cache space", Fail, "nothing can be cached", "make room there"}}},
		"no inodes": {space, func(d *directory) { d.place.Inodes = 3 }, []verdict{{"cache space", Warn, "3 inodes", "small files"}}},
		"fast":      {device, func(*directory) {}, []verdict{{"cache device", OK, "8.0 MiB written at 900 MB/s", ""}}},
		"slow":      {device, func(d *directory) { d.readRate = 9e6 }, []verdict{{"cache device", Warn, "read at 9 MB/s", "local SSD"}}},
		"sick":      {device, func(d *directory) { d.broken = syscall.EIO }, []verdict{{"cache device", Fail, "input/output error", "dmesg"}}},
		"plain": {device, func(d *directory) { d.direct, d.punch = false, false },
			[]verdict{{"cache device", OK, "MB/s", ""}, {"cache device", Warn, "no O_DIRECT", "ext4 or XFS"}, {"cache device", Warn, "no holes", "ext4 or XFS"}}},
	} {
		compare(t, name, c.judge(at(c.change)), c.want...)
	}
}

func TestOriginVerdicts(t *testing.T) {
	// Credentials, clock and abilities of an origin, from the best to the worst.
	l := bucket{name: "s3://b/p"}
	now := time.Unix(1e9, 0)
	from := func(expires time.Duration) Finding {
		return l.judgeCredentials(origin.Credentials{Source: "the variables", Expires: now.Add(expires), Token: true}, now, nil)
	}
	can := func(change func(*origin.Abilities)) Finding {
		a := origin.Abilities{Objects: true, Range: true, IfMatch: true, StrongETag: true, Region: "eu-central-1", RoundTrip: 12 * time.Millisecond}
		change(&a)
		return l.judgeProbe(a, nil)
	}
	clock := func(ahead time.Duration) Finding { return l.judgeClock(ahead, nil)[0] }
	for name, c := range map[string]struct {
		got  Finding
		want verdict
	}{
		"for ever":    {l.judgeCredentials(origin.Credentials{Source: "profile p"}, now, nil), verdict{"credentials", OK, "from profile p", ""}},
		"anonymous":   {l.judgeCredentials(origin.Credentials{Source: "none are sent (anonymous)"}, now, nil), verdict{"credentials", OK, "none are sent", ""}},
		"a role":      {from(time.Minute), verdict{"credentials", OK, "from the variables, for 1m0s (until 2001-09-09T01:47:40Z), then asked for again", ""}},
		"a token":     {l.judgeCredentials(origin.Credentials{Source: "the variables", Token: true}, now, nil), verdict{"credentials", Warn, "whose end nobody tells", "a profile or a role"}},
		"expired":     {from(-time.Hour), verdict{"credentials", Fail, "expired 1h0m0s ago", "aws sso login"}},
		"same clock":  {clock(-time.Second), verdict{"clock", OK, "the same", ""}},
		"a bit":       {clock(50 * time.Second), verdict{"clock", OK, "50s ahead of", ""}},
		"a minute":    {clock(-61 * time.Second), verdict{"clock", Warn, "1m1s behind", "timedatectl set-ntp true"}},
		"15 minutes":  {clock(15 * time.Minute), verdict{"clock", Warn, "15m0s ahead of", "timedatectl"}},
		"beyond":      {clock(20 * time.Minute), verdict{"clock", Fail, "20m0s ahead of", "timedatectl"}},
		"no date":     {l.judgeClock(0, origin.ErrNoDate)[0], verdict{"clock", OK, "not compared", ""}},
		"able":        {can(func(*origin.Abilities) {}), verdict{"origin", OK, "12ms, region eu-central-1, ranges, If-Match, strong ETags", ""}},
		"empty":       {can(func(a *origin.Abilities) { *a = origin.Abilities{} }), verdict{"origin", Warn, "no object", "check the prefix"}},
		"archived":    {can(func(a *origin.Abilities) { a.Passed = "k: it is archived; restore it" }), verdict{"origin", Warn, "k: it is archived; restore it", "--dry-run"}},
		"no other":    {can(func(a *origin.Abilities) { a.Range, a.Passed = false, "k: it is archived" }), verdict{"origin", Warn, "nothing that was tried can be read: k: it is archived", "restore what"}},
		"no If-Match": {can(func(a *origin.Abilities) { a.IfMatch = false }), verdict{"origin", Warn, "ignores If-Match", "knows If-Match"}},
		"weak ETags":  {can(func(a *origin.Abilities) { a.StrongETag = false }), verdict{"origin", Warn, "nothing can be cached", "ETags are strong"}},
		"listings":    {l.judgeListings("d/k", `size 1, and 2 by HEAD`, nil)[0], verdict{"listings", Warn, "other versions than HEADs (d/k: size 1, and 2 by HEAD)", "report it"}},
		"far":         {can(func(a *origin.Abilities) { a.RoundTrip = time.Second }), verdict{"origin", Warn, "within 1s", "nearer"}},
		"no such dir": {l.judgeProbe(origin.Abilities{}, errors.New("open origin file:///x: gone")), verdict{"origin", Fail, "gone", "check the origin's name"}},
	} {
		compare(t, name, []Finding{c.got}, c.want)
	}
	if f := l.judgeClock(0, errors.New("nobody there")); f != nil {
		t.Errorf("a clock that could not be asked: %+v", f)
	}
}

func TestDoorVerdicts(t *testing.T) {
	// Each state of socket, address and node has its verdict.
	const asked, unasked = "127.0.0.1:9", config.DefaultListen
	long, file, left := filepath.Join(t.TempDir(), strings.Repeat("x", 108)), filepath.Join(t.TempDir(), "s"), filepath.Join(t.TempDir(), "s")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mknod(left, syscall.S_IFSOCK|0o600, 0); err != nil {
		t.Fatal(err)
	}
	open := t.TempDir()
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	socket := func(path string) Finding { return judgeSocket(path, lookSocket(path)) }
	for name, c := range map[string]struct {
		got  Finding
		want verdict
	}{
		"no node": {judgeNode("/s", nil, nil), verdict{"node", OK, "none runs at /s", ""}},
		"well":    {judgeNode("/s", &Running{Version: "1", PID: 7, Well: true}, nil), verdict{"node", OK, "process 7, answers that all is well", ""}},
		"started again": {judgeNode("/s", &Running{Version: "1", PID: 7, Well: true, Keeper: &status.KeeperLine{Starts: 3, Cause: "was killed by signal 9", StalledS: 0.25}}, nil),
			verdict{"node", OK, "its keeper has started 3: the last one was killed by signal 9, and its mounts stood still for 0.2 s", ""}},
		"ill":            {judgeNode("/s", &Running{Says: "an origin cannot be read"}, nil), verdict{"node", Warn, "an origin cannot be read", "hearth status"}},
		"hangs":          {judgeNode("/s", nil, context.DeadlineExceeded), verdict{"node", Fail, "does not answer within", "goroutines"}},
		"not allowed":    {judgeNode("/s", nil, errors.New("not allowed")), verdict{"node", Fail, "not allowed", "--admin-socket"}},
		"free":           {judgeAddress(asked, false, nil, false), verdict{"metrics address", OK, "free", ""}},
		"the node's":     {judgeAddress(asked, true, syscall.EADDRINUSE, true), verdict{"metrics address", OK, "the node answers", ""}},
		"no metrics":     {judgeAddress(asked, true, nil, false), verdict{"metrics address", Warn, "serves no metrics", "log"}},
		"another's":      {judgeAddress(asked, false, syscall.EADDRINUSE, true), verdict{"metrics address", Warn, "another hearth", "--metrics-listen"}},
		"busy default":   {judgeAddress(unasked, false, syscall.EADDRINUSE, false), verdict{"metrics address", Warn, "another program", "--metrics-listen"}},
		"busy":           {judgeAddress(asked, false, syscall.EADDRINUSE, false), verdict{"metrics address", Fail, "address already in use", "--metrics-listen"}},
		"not ours":       {judgeAddress(unasked, false, syscall.EADDRNOTAVAIL, false), verdict{"metrics address", Fail, "assign requested address", "--metrics-listen"}},
		"a new socket":   {socket(filepath.Join(t.TempDir(), "a", "b", "s")), verdict{"admin socket", OK, "free", ""}},
		"a dead one":     {socket(left), verdict{"admin socket", OK, "left it behind", ""}},
		"too long":       {socket(long), verdict{"admin socket", Fail, "107 bytes", "--admin-socket"}},
		"a file":         {socket(file), verdict{"admin socket", Warn, "no socket", "move it away"}},
		"not trusted":    {socket(filepath.Join(open, "s")), verdict{"admin socket", Fail, "writable for others", "XDG_RUNTIME_DIR"}},
		"cannot be made": {socket(filepath.Join(hearthtest.Tmpfs(t, "ro,size=1m"), "d", "s")), verdict{"admin socket", Fail, "cannot be made", "--admin-socket"}},
	} {
		compare(t, name, []Finding{c.got}, c.want)
	}
}

func TestWhatDoesNotAnswerCostsItsBound(t *testing.T) {
	// A look that hangs after its first finding ends at its bound, with that finding and a note about the
	// rest. A look that runs beside it is not delayed.
	synctest.Test(t, func(t *testing.T) {
		began, stuck := time.Now(), make(chan struct{})
		defer close(stuck)
		found := together(t.Context(), []look{
			{"cache directory", "/c", diskBound, func(_ context.Context, tell func(...Finding)) {
				tell(Finding{Check: "cache directory", Verdict: OK, Found: "there"})
				<-stuck
			}},
			{"mount", "", mountBound, func(context.Context, func(...Finding)) { <-stuck }},
			{"origin", "s3://b", originBound, func(ctx context.Context, _ func(...Finding)) { <-stuck }},
			{"machine", "", nodeBound, func(_ context.Context, tell func(...Finding)) {
				tell(Finding{Check: "machine", Verdict: OK, Found: "well"})
			}},
			{"addresses", "", nodeBound, func(context.Context, func(...Finding)) { <-stuck }},
		})
		compare(t, "all", found, verdict{"cache directory", OK, "there", ""}, verdict{"cache directory", Fail, "no answer within 10s", "dmesg"},
			verdict{"mount", Fail, "no answer within 10s", "mountinfo"}, verdict{"origin", Fail, "no answer within 20s", "firewalls"},
			verdict{"machine", OK, "well", ""}, verdict{"addresses", Fail, "no answer within 3s", "load"})
		if took := time.Since(began); took > originBound {
			t.Errorf("it took %v", took)
		}
		if !Failed(found) || Failed(found[:1]) {
			t.Error("FAIL is not told from OK")
		}
	})
}

func TestAnAddressThatIsInUse(t *testing.T) {
	// An address is free after it was tried. It may be in use by another program, or by a hearth.
	free, ours := lookAddress(t.Context(), "127.0.0.1:0")
	if free != nil || ours {
		t.Error(free, ours)
	}
	for body, want := range map[string]bool{"hello": false, "hearth_problems 0\n": true} {
		listener, err := newListener()
		if err != nil {
			t.Fatal(err)
		}
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(body)) })}
		go func() { _ = s.Serve(listener) }()
		failed, ours := lookAddress(t.Context(), listener.Addr().String())
		if !errors.Is(failed, syscall.EADDRINUSE) || ours != want {
			t.Errorf("%q: %v, ours %v", body, failed, ours)
		}
		_ = s.Close()
	}
}

func TestLooksApart(t *testing.T) {
	// A look that asks a device runs in another process. If that cannot be started, it runs in this one.
	here := func(f string) func(context.Context, func(...Finding)) {
		return func(_ context.Context, tell func(...Finding)) { tell(Finding{Check: f, Verdict: OK, Found: "here"}) }
	}
	o := Options{Apart: func(_ context.Context, index int, tell func(...Finding)) error {
		if index == 2 {
			return errors.New("no more processes")
		}
		tell(Finding{Check: "apart", Verdict: OK, Found: "there"})
		return nil
	}}
	found := together(t.Context(), o.apart([]look{{"machine", "", nodeBound, here("machine")}, {"mount", "", nodeBound, here("mount")}, {"cache directory", "/c", nodeBound, here("disk")}}))
	compare(t, "all", found, verdict{"machine", OK, "here", ""}, verdict{"apart", OK, "there", ""}, verdict{"disk", OK, "here", ""})
	o = Options{Cache: config.Cache{Disks: []machine.Disk{{Path: t.TempDir()}}}}
	var told []Finding
	if err := LookAt(t.Context(), o, 3, func(f ...Finding) { told = append(told, f...) }); err != nil || len(told) == 0 || told[0].Check != "cache directory" {
		t.Errorf("%+v, %v", told, err)
	}
	if err := LookAt(t.Context(), o, 4, nil); err == nil {
		t.Error("a look that there is not")
	}
}
