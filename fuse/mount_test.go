package fuse

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const MiB = 1 << 20

func standardFiles() []fileSpec {
	return []fileSpec{
		{"small", 1, 100_000, false}, {"empty", 1, 0, false}, {"byte", 1, 1, false}, {"block", 1, MiB, false},
		{"dir/large", 1, 5*MiB + 123, false}, {"dir/whole", 1, 3*MiB + 7, true}, {"dir/page", 1, 4096, true},
	}
}

func (f fileSpec) args(m *mounted) []string {
	return []string{m.path(f.Key), f.Key, strconv.Itoa(f.Version), strconv.FormatInt(f.Size, 10)}
}

func TestReadersOfEveryKind(t *testing.T) {
	// However a file is opened and read, the bytes are those of its version.
	for _, c := range []struct {
		name, open, granted string
		without             []string
	}{
		{"none", "none", "none", nil},
		{"masked", "auto", "plain", []string{"all"}},
		{"plain", "none", "plain", []string{"open", "readahead"}},
		{"passthrough", "passthrough", "passthrough", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := mount(t, setup{Open: c.open, Without: c.without, Files: standardFiles(), Local: true,
				Exec: "/bin/echo", Options: "fmask=0222,_netdev,x-systemd.automount"})
			for _, f := range standardFiles() {
				kinds := []string{"whole", "past"}
				if f.Size > 0 {
					kinds = append(kinds, "mmap", "direct", "sendfile", "splice", "random", "threads")
				}
				m.read("kinds", append([]string{strings.Join(kinds, ",")}, f.args(m)...)...)
			}
			if out := m.read("exec", m.path("program"), "it", "runs"); out != "it runs" {
				t.Errorf("a program in the mount says %q", out)
			}
			s := m.do(command{Do: "stats"}).Stats
			if string(s.Open) != c.granted {
				t.Errorf("open mode %s (%s), not %s", s.Open, s.Why, c.granted)
			}
			checkRequests(t, c.name, s)
		})
	}
}

func checkRequests(t *testing.T, name string, s Stats) {
	t.Helper()
	t.Logf("%s: %v %v read_ahead=%d largest=%d why=%s", name, s.Requests, s.Outcomes, s.ReadAheadKiB, s.LargestRead, s.Why)
	if s.Outcomes["complaints"] != 0 || s.Outcomes["errors"] != 0 {
		t.Errorf("complaints or errors: %v", s.Outcomes)
	}
	switch name {
	case "none":
		if s.Requests["open"] != 1 {
			t.Errorf("%d OPENs, not one", s.Requests["open"])
		}
		if s.LargestRead != MiB || s.ReadAheadKiB != 1024 {
			t.Errorf("largest READ %d, read-ahead %d KiB", s.LargestRead, s.ReadAheadKiB)
		}
	case "masked":
		for _, name := range slices.DeleteFunc(Abilities(), func(name string) bool { return name == "splice" }) {
			if !slices.Contains(s.Lacks, name+": masked by fuse.without") {
				t.Errorf("without everything, %s is not among %q", name, s.Lacks)
			}
		}
		if s.LargestRead > 128<<10 {
			t.Errorf("largest READ %d without max_pages", s.LargestRead)
		}
	case "passthrough":
		if s.Outcomes["lent"] == 0 {
			t.Error("no file was lent to the kernel")
		}
	}
}

func TestAttributes(t *testing.T) {
	// stat, statfs and xattrs say what a user of a read-only tree expects.
	m := mount(t, setup{Files: standardFiles(), Options: "ro,uid=7,gid=8,noatime"})
	for path, want := range map[string]string{
		"small":     "mode=100444 size=100000 blocks=196 nlink=1 uid=7 gid=8 mtime=1500000001",
		"empty":     "mode=100444 size=0 blocks=0 nlink=1 uid=7 gid=8 mtime=1500000001",
		"dir":       "mode=40555 size=0 blocks=0 nlink=1 uid=7 gid=8 mtime=1000000003",
		"dir/large": "mode=100444 size=5243003 blocks=10241 nlink=1 uid=7 gid=8 mtime=1500000001",
	} {
		if got := m.read("stat", m.path(path)); got != want {
			t.Errorf("%s: %s, not %s", path, got, want)
		}
	}
	if got := m.read("statfs", m.dir); got != "bsize=4096 namelen=255 readonly=true free=true" {
		t.Error(got)
	}
	o := fakeObject("dir/large", 1, 5*MiB+123)
	for name, want := range map[string]string{"key": "dir/large", "version": fmt.Sprintf("%x", o.Version), "etag": "v1", "bytes.ram": "5", "bytes.disk": "7"} {
		if got := m.read("xattr", m.path("dir/large"), "user.hearth."+name); got != want {
			t.Errorf("user.hearth.%s is %q, not %q", name, got, want)
		}
	}
	want := "user.hearth.bytes.disk user.hearth.bytes.ram user.hearth.etag user.hearth.key user.hearth.version"
	if got := m.read("xattrs", m.path("small")); got != want {
		t.Errorf("xattrs %s", got)
	}
	for _, name := range []string{"user.other", "user.hearth.nothing", "security.capability", "security.selinux"} {
		if _, err := m.reader("xattr", m.path("small"), name); err == nil || !strings.Contains(err.Error(), "no data available") {
			t.Errorf("%s: %v, not ENODATA", name, err)
		}
	}
	if _, err := m.reader("stat", m.path("nothing")); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("a name that is not there: %v", err)
	}
}

func TestWritesAreRefused(t *testing.T) {
	// Whatever somebody tries to change, the answer is EROFS.
	m := mount(t, setup{Files: standardFiles(), Options: "umask=0"})
	if got := m.read("write", m.dir, "small"); got != "EROFS" {
		t.Errorf("writes are answered %s", got)
	}
}

func TestLargeListings(t *testing.T) {
	// 6,000 names, dozens of the kernel's buffers, come complete and once each, by each of the kernel's ways to
	// list, also while others come and go; and an old offset resumes behind its name.
	const names = 6000
	for name, without := range map[string][]string{"none": nil, "masked": {"all"}, "opendir": {"opendir"}} {
		t.Run(name, func(t *testing.T) {
			m := mount(t, setup{Many: names, Without: without})
			if got := strings.Fields(m.read("walk", m.path("m")))[0]; got != strconv.Itoa(names+1) {
				t.Errorf("walked over %s names", got)
			}
			listers := make(chan string, 2)
			for range cap(listers) {
				go func() {
					out, err := m.reader("listrace", m.path("m"))
					listers <- fmt.Sprint(out, err)
				}()
			}
			for i := 0; i < 1500 && len(listers) < cap(listers); i++ {
				key := fmt.Sprintf("m/%05d-%d", i*7%names, i%3)
				m.do(command{Do: []string{"put", "remove"}[i/500%2], Key: key, Version: 1, Size: 1})
			}
			for range cap(listers) {
				if got := <-listers; got != strconv.Itoa(names)+"<nil>" {
					t.Errorf("listed while changing: %s", got)
				}
			}
			m.read("seek", m.path("m"))
			s := m.do(command{Do: "stats"}).Stats
			t.Logf("%v %v names=%d", s.Requests, s.Outcomes, s.Names)
		})
	}
}

func TestKernelKeepsListings(t *testing.T) {
	// A second walk costs no request while the bound lasts; when it has passed the
	// listing is dropped, and the walk after that is READDIRPLUS again.
	m := mount(t, setup{Many: 1000, TTL: 3e9})
	m.read("walk", m.path("m"))
	first := m.do(command{Do: "stats"}).Stats
	m.read("walk", m.path("m"))
	second := m.do(command{Do: "stats"}).Stats
	if second.Requests["readdir"] != first.Requests["readdir"] || second.Requests["lookup"] > first.Requests["lookup"]+1 {
		t.Errorf("the second walk asked: %v, then %v", first.Requests, second.Requests)
	}
	m.until("the listing is dropped", func(r reply) bool { return r.Stats.Outcomes["news_told"] > second.Outcomes["news_told"] })
	m.read("walk", m.path("m"))
	third := m.do(command{Do: "stats"}).Stats
	if third.Requests["readdir"] == second.Requests["readdir"] || third.Requests["lookup"] > second.Requests["lookup"]+2 {
		t.Errorf("the third walk is no READDIRPLUS: %v, then %v", second.Requests, third.Requests)
	}
}

func TestChangesAreSeen(t *testing.T) {
	// A new, a changed and a removed name are seen as soon as the kernel was told,
	// long before any timeout, by stat, by read and in the listing.
	for _, without := range [][]string{nil, {"all"}} {
		m := mount(t, setup{Files: standardFiles(), Without: without})
		m.read("list", m.dir)
		if got, err := m.reader("stat", m.path("new")); err == nil { // remembered as absent
			t.Errorf("what is not there yet: %s", got)
		}
		m.read("whole", fileSpec{"small", 1, 100_000, false}.args(m)...)
		before := m.do(command{Do: "stats"}).Stats.Outcomes["news_told"]
		m.do(command{Do: "put", Key: "new", Version: 1, Size: 5})
		m.do(command{Do: "put", Key: "small", Version: 2, Size: 70_000})
		m.do(command{Do: "remove", Key: "byte"})
		m.until("six notifications", func(r reply) bool { return r.Stats.Outcomes["news_told"] >= before+4 })
		m.until("the queue is empty", func(r reply) bool {
			out, err := m.reader("list", m.dir)
			return err == nil && out == "block dir empty new small"
		})
		m.read("stat", m.path("new"))
		m.read("whole", fileSpec{"small", 2, 70_000, false}.args(m)...)
		if _, err := m.reader("stat", m.path("byte")); err == nil {
			t.Error("a removed name is still there")
		}
	}
}

func TestVersionIsGone(t *testing.T) {
	// The origin changed a file that nobody looked at. Who has it open reads ESTALE
	// and never a mixture; who opens it after that reads the new version.
	for _, c := range []setup{{Open: "none"}, {Open: "none", Without: []string{"all"}}, {Open: "passthrough", Local: true}} {
		c.Files = standardFiles()
		m := mount(t, c)
		for _, key := range []string{"small", "dir/large"} {
			m.read("stat", m.path(key)) // the kernel knows the name, and has no page
			m.read("list", m.dir)
			m.do(command{Do: "swap", Key: key, Version: 2})
			got := strings.Fields(m.read("again", m.path(key), key, "3"))
			if !slices.Equal(got, []string{"ESTALE", "v2", "v2"}) {
				t.Errorf("%s with open=%s: %v", key, c.Open, got)
			}
		}
	}
}
