package node

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hearthfs/hearth/namespace"
	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/node/fsck"
	"github.com/hearthfs/hearth/warmup"
)

// as returns a Client of a node whose requests come from an asker.
func as(t *testing.T, n *Node, who admin.Asker) *admin.Client {
	t.Helper()
	s := httptest.NewUnstartedServer(n.routes())
	s.Config.ConnContext = func(ctx context.Context, _ net.Conn) context.Context { return admin.With(ctx, who) }
	s.Start()
	c := admin.Over(func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", s.Listener.Addr().String())
	})
	t.Cleanup(func() { c.Close(); s.Close() })
	return c
}

// shared starts a node with a disk tier and two files in its origin. A directory with two more files lies
// beside the origin. It returns the Clients of root and of two members of the group.
func shared(t *testing.T) (n *Node, beside string, root, one, two *admin.Client) {
	t.Helper()
	dir := t.TempDir()
	beside = filepath.Join(dir, "beside")
	for _, d := range []string{"open", "beside"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"a", "b"} {
			if err := os.WriteFile(filepath.Join(dir, d, name), []byte(d), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	n = start(t, "file://"+filepath.Join(dir, "open"), withDisk(filepath.Join(dir, "cache"), 64<<20))
	member := func(uid uint32) *admin.Client { return as(t, n, admin.Asker{Rank: admin.Member, UID: uid}) }
	return n, beside, as(t, n, admin.Asker{Rank: admin.Owner}), member(1001), member(1002)
}

// refused compares an error with what it must say.
func refused(t *testing.T, what string, err error, says ...string) {
	t.Helper()
	if admin.KindOf(err) != admin.KindRefused {
		t.Errorf("%s: %v, not refused", what, err)
		return
	}
	for _, word := range append(says, "root") {
		if !strings.Contains(err.Error(), word) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %q does not say %q in one line", what, err, word)
		}
	}
}

func TestTheGroupDoesNotMount(t *testing.T) {
	// A member names an origin of its own and a directory of the system, and takes a mount away. It asks to
	// have the shared cache emptied and checked. All are refused, and nothing was made.
	n, beside, _, one, _ := shared(t)
	ctx, dir := t.Context(), t.TempDir()
	for _, r := range []admin.MountRequest{{Origin: &Origin{URL: "file://" + beside}}, {Origin: &Origin{URL: "file:///etc", CAFile: "/etc/shadow"}}, {}} {
		r.Dir = dir
		_, err := one.Mount(ctx, r)
		refused(t, fmt.Sprintf("mount %+v", r), err, "mount", "a node of your own")
	}
	refused(t, "umount", one.Unmount(ctx, dir, true), "take a mount away")
	refused(t, "wait", one.WaitUnmounted(ctx, dir), "wait")
	refused(t, "fsck", one.Fsck(ctx, n.dirs.First(), true, func(fsck.Event) {}), "check a cache directory")
	_, err := one.Evict(ctx, []string{"/a"}, true)
	refused(t, "evict", err, "evict")
	if all := n.links.list(); len(all) != 1 || len(n.Mounts()) != 0 {
		t.Errorf("%d links, mounts %v", len(all), n.Mounts())
	}
}

func TestTheGroupReadsWhatTheNodeHas(t *testing.T) {
	// A member reads and warms up what links lead to, by path and by URL, whatever the modes at the origin.
	// No spelling of a URL or a path leads it to anything else.
	n, beside, _, one, _ := shared(t)
	ctx := t.Context()
	open := n.links.list()[0].Origin.URL
	for _, name := range []string{"/a", open + "/a"} {
		var out bytes.Buffer
		if err := one.Cat(ctx, name, 0, -1, &out); err != nil || out.String() != "open" {
			t.Errorf("cat %s: %q, %v", name, out.String(), err)
		}
	}
	if v := ended(t, one, warmup.Request{Targets: []string{"/"}}, ""); !v.State.Over() || v.Counters.Sum().Files != 2 || v.UID != 1001 {
		t.Errorf("%+v", v)
	}
	for _, name := range []string{"file://" + beside + "/a", open + "/../beside/a", open + "/%2e%2e/beside/a", "/../beside/a", "file:///etc/passwd", "s3://other/a", "../beside/a"} {
		var out bytes.Buffer
		err := one.Cat(ctx, name, 0, -1, &out)
		_, errStat := one.Stat(ctx, name)
		_, errDu := one.Usage(ctx, name)
		_, errList := one.List(ctx, name, true, func(admin.Entry) error { return nil })
		_, errExplain := one.Explain(ctx, name, 0)
		_, errJob := one.Jobs().Submit(ctx, warmup.Request{Targets: []string{name}}, nil, false)
		for what, err := range map[string]error{"cat": err, "stat": errStat, "du": errDu, "ls": errList, "explain": errExplain, "warmup": errJob} {
			if kind := admin.KindOf(err); kind != admin.KindNoLink && kind != admin.KindNotFound {
				t.Errorf("%s %s: %v, %q", what, name, err, out.String())
			}
		}
		v := ended(t, one, warmup.Request{List: "list"}, name+"\n")
		if v.Counters.Done.Files+v.Counters.Present.Files != 0 {
			t.Errorf("a list with %s: %+v", name, v.Counters)
		}
	}
	// A list is what the request carries, never a file of the node's machine.
	v := ended(t, one, warmup.Request{List: filepath.Join(beside, "a")}, "/a\n")
	if !v.State.Over() || v.Counters.Sum().Files != 1 {
		t.Errorf("%+v", v)
	}
}

func TestOthersPinsAndJobs(t *testing.T) {
	// The user who pinned may unpin and pin again. Root may do so with everybody's pins, and another member
	// may not. unpin of all ends one's own pins. The same holds for a job's end and its retry.
	n, _, root, one, two := shared(t)
	ctx := t.Context()
	pin := func(c *admin.Client, path string, s int64) (*warmup.View, error) {
		return c.Jobs().Submit(ctx, warmup.Request{Targets: []string{path}, PinS: s}, nil, false)
	}
	ends := func(all []namespace.PinView) map[string]bool {
		ends := map[string]bool{}
		for _, p := range all {
			ends[fmt.Sprint(p.Path, " ", p.UID)] = p.Expires != nil
		}
		return ends
	}
	jobOfOne := pinned(t, one, "/a")
	pinned(t, root, "/b")
	pinned(t, two, "/")
	_, err := pin(two, "/a", 1)
	refused(t, "pin another's anew", err, "/a", "1001", "pin it anew")
	_, err = pin(one, "/b", 1)
	refused(t, "pin root's anew", err, "/b")
	_, err = two.Unpin(ctx, []string{"/", "/a"})
	refused(t, "unpin another's", err, "/a", "1001", "unpin it")
	all, err := one.Pins(ctx)
	if got := ends(all); err != nil || len(got) != 3 || !got["/a 1001"] || !got["/b 0"] || !got["/ 1002"] {
		t.Fatalf("%v, %v", got, err)
	}
	if ended, err := two.Unpin(ctx, nil); err != nil || len(ended) != 1 || ended[0] != "/" {
		t.Errorf("all of one's own: %v, %v", ended, err)
	}

	refused(t, "retry another's", two.Jobs().Retry(ctx, jobOfOne.ID), jobOfOne.ID, "1001", "retry")
	refused(t, "cancel another's", two.Jobs().Cancel(ctx, jobOfOne.ID), jobOfOne.ID, "cancel")
	if err := two.Jobs().Retry(ctx, "none"); admin.KindOf(err) != admin.KindNotFound {
		t.Errorf("a job that is none: %v", err)
	}
	if err := root.Jobs().Retry(ctx, jobOfOne.ID); err != nil {
		t.Error(err)
	}
	if err := one.Jobs().Watch(ctx, jobOfOne.ID, func(v warmup.View) bool { jobOfOne = v; return true }); err != nil || jobOfOne.UID != 1001 {
		t.Errorf("%+v, %v", jobOfOne, err)
	}
	if ended, err := one.Unpin(ctx, []string{"/a"}); err != nil || len(ended) != 1 {
		t.Errorf("one's own: %v, %v", ended, err)
	}
	pinned(t, one, "/a")
	if ended, err := n.Client().Unpin(ctx, nil); err != nil || len(ended) != 2 {
		t.Errorf("everybody's, for the node's own process: %v, %v", ended, err)
	}
}

func TestOnlyTheSocketKnowsWhoAsks(t *testing.T) {
	// At the metrics' port, and wherever else no credentials come with a connection, there is no admin API.
	n := start(t, "file://"+t.TempDir(), func(c *Config) { c.Links = nil })
	for _, path := range []string{"/v1/status", "/v1/goroutines", "/v1/cat?path=/a&off=0&n=1", "/debug/pprof/"} {
		resp, err := http.Get("http://" + n.doors.Metrics.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != http.StatusNotFound || err != nil {
			t.Errorf("%s at the metrics' port: %s, %.100s", path, resp.Status, text)
		}
	}
	if _, err := as(t, n, admin.Asker{}).Status(t.Context()); admin.KindOf(err) != admin.KindRefused {
		t.Errorf("a stranger: %v", err)
	}
}
