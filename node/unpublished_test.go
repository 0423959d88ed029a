package node

import (
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hearthfs/hearth/draft"
	"github.com/hearthfs/hearth/internal/faultproxy"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/node/status"
)

// written makes a draft with bytes that somebody has open, as a mount does.
func written(t *testing.T, n *Node, key, text string, uid uint32) *draft.Draft {
	t.Helper()
	store, err := n.openDrafts()
	if err != nil {
		t.Fatal(err)
	}
	id, err := n.tree.NewID()
	if err != nil {
		t.Fatal(err)
	}
	return begun(t, n, store, id, key, text, uid)
}

func begun(t *testing.T, n *Node, store *draft.Store, id uint64, key, text string, uid uint32) *draft.Draft {
	t.Helper()
	d, err := store.Create(draft.Name{Link: n.links.list()[0].name, Key: key}, id, draft.Attr{Mode: 0o644, UID: uid})
	if err == nil {
		err = d.Hold()
	}
	if err == nil {
		_, err = d.WriteAt([]byte(text), 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// closed closes a draft whose publish failed, as a mount does.
func closed(n *Node, d *draft.Draft) {
	d.Release()
	n.publishBehind(d, d.Info())
}

// drafts lists a node's drafts by name.
func draftsOf(t *testing.T, c *admin.Client) map[string]status.Draft {
	t.Helper()
	all, err := c.Drafts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]status.Draft{}
	for _, d := range all {
		byName[d.Name] = d
	}
	return byName
}

// refusesWrites has the bucket answer writes with 403.
func refusesWrites(p *faultproxy.Proxy) { p.AddRule(faultproxy.Denied(faultproxy.Other)) }

func TestDraftsAreSeenAndPublished(t *testing.T) {
	// The bucket refuses writes. What was written is listed with the reason and the cure, status has it as a problem, and publish
	// says why. Once the bucket takes writes, one call brings all that nobody has open, and nothing more is said.
	s, p, c := outage(t, "immutable")
	var late atomic.Int64
	n := start(t, "", func(o *Config) {
		c.with(o)
		o.Clock = func() time.Time { return time.Now().Add(time.Duration(late.Load())) }
	})
	all := client(t, n)
	if got := draftsOf(t, all); len(got) != 0 || n.Status(t.Context()).Drafts != nil {
		t.Errorf("before a write: %v", got)
	}
	refusesWrites(p)
	a, b := written(t, n, "dir/a", "bytes of a", 0), written(t, n, "b", "bytes of b", 0)
	if _, err := a.Publish(t.Context()); err == nil {
		t.Fatal("the bucket took it")
	}
	closed(n, a)
	told := func() bool {
		d := draftsOf(t, all)["/dir/a"]
		return strings.Contains(d.Why, "writing is denied; grant s3:PutObject")
	}
	if !hearthtest.Eventually(t.Context(), time.Minute, told) {
		t.Fatalf("%+v", draftsOf(t, all))
	}
	got := draftsOf(t, all)
	if d := got["/dir/a"]; len(got) != 2 || d.State != "failed" || d.URL != "s3://data/dir/a" || d.Size != 10 || d.Users != 0 || !strings.HasPrefix(d.File, c.Cache.Disks[0].Path) || d.Since.IsZero() {
		t.Errorf("%+v", got)
	}
	if d := got["/b"]; d.State != "open" || d.Users != 1 || d.Why != "" {
		t.Errorf("%+v", d)
	}
	is := n.Status(t.Context())
	if f := is.Drafts.States; f.Failed != (status.DraftSum{Files: 1, Bytes: 10}) || f.Open != (status.DraftSum{Files: 1, Bytes: 10}) || is.Drafts.Failures < 2 || is.Drafts.Published != 0 || !strings.HasPrefix(is.Drafts.Why, "/dir/a: ") {
		t.Errorf("%+v", is.Drafts)
	}
	if !strings.HasPrefix(is.Says, "a file that was written is not in the bucket, and nobody tries it again: /dir/a, for ") || !strings.Contains(is.Says, "grant s3:PutObject") || !strings.HasSuffix(is.Says, "hearth drafts publish --all tries again") {
		t.Errorf("%q", is.Says)
	}

	results, err := all.PublishDrafts(t.Context(), []string{"/dir"})
	if err != nil || len(results) != 1 || results[0].Failed == nil || !strings.Contains(results[0].Failed.Message, "/dir/a: ") || !strings.Contains(results[0].Failed.Message, "grant s3:PutObject") {
		t.Errorf("%+v, %v", results, err)
	}
	late.Store(int64(time.Hour)) // it is kept from the bucket since the first try, not the last one
	if _, err := all.PublishDrafts(t.Context(), []string{"/dir/a"}); err != nil {
		t.Error(err)
	}
	if now := n.Status(t.Context()).Drafts; now.OldestS < 3600 || now.Troubles[0].ForS < 3600 || !draftsOf(t, all)["/dir/a"].Since.Equal(got["/dir/a"].Since) {
		t.Errorf("an hour later: %+v", now)
	}
	if _, err := all.PublishDrafts(t.Context(), []string{"/dir/known"}); admin.KindOf(err) != admin.KindNotFound {
		t.Errorf("what is in the bucket: %v", err)
	}
	p.ClearRules()
	results, err = all.PublishDrafts(t.Context(), nil)
	if err != nil || len(results) != 1 || results[0].Name != "/dir/a" || results[0].Failed != nil {
		t.Errorf("%+v, %v", results, err)
	}
	if got := draftsOf(t, all); len(got) != 1 || got["/b"].State != "open" {
		t.Errorf("afterwards: %+v", got)
	}
	results, err = all.PublishDrafts(t.Context(), []string{"s3://data/b"}) // open, and asked for by its name
	if err != nil || len(results) != 1 || results[0].Failed != nil {
		t.Errorf("%+v, %v", results, err)
	}
	is = n.Status(t.Context())
	if len(draftsOf(t, all)) != 0 || is.Drafts.Published != 2 || is.Drafts.States != (status.DraftStates{}) || is.Drafts.OldestS != 0 || is.Drafts.Why != "" || is.Says != "ok" {
		t.Errorf("at last: %q, %+v", is.Says, is.Drafts)
	}
	for key, want := range map[string]string{"dir/a": "bytes of a", "b": "bytes of b"} {
		if got := objectOf(t, s, key); got != want {
			t.Errorf("%s is %q", key, got)
		}
	}
	b.Release()
}

func TestADirectoryIsPublishedAsAWhole(t *testing.T) {
	// A file of a directory that is a draft is not published alone: the directory would lack it, and be renamed without it. Who asks
	// for it hears of the directory, at any depth, and --all leaves what is in it. The directory itself goes with all that is below;
	// what the bucket refuses of it is told by file.
	s, p, c := outage(t, "immutable")
	n := start(t, "", c.with)
	all := client(t, n)
	for _, key := range []string{"d.tmp/", "d.tmp/in/", "d.tmp/in/a", "d.tmp/b", "d.tmp/marker", "alone.tmp"} {
		staged(t, n, key, key[strings.LastIndexByte(key, '/')+1:])
	}
	plain := written(t, n, "plain", "plain", 0)
	plain.Release()
	for _, path := range []string{"/d.tmp/b", "/d.tmp/in/a", "/d.tmp/in", "s3://data/d.tmp/b"} {
		_, err := all.PublishDrafts(t.Context(), []string{"/alone.tmp", path})
		if says := " lies in /d.tmp, which is not in the bucket and goes there as a whole: rename that directory, or hearth drafts publish /d.tmp"; admin.KindOf(err) != admin.KindRefused || !strings.HasSuffix(err.Error(), says) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if got := keysOf(t, s); got != "dir/known" {
		t.Errorf("the bucket has %q", got)
	}
	refusesWrites(p)
	store := n.drafts.store.Load()
	if d, ok := store.Find(draft.Name{Link: n.links.list()[0].name, Key: "d.tmp/b"}); !ok {
		t.Fatal("no draft")
	} else if _, err := d.Publish(t.Context()); err == nil {
		t.Fatal("the bucket took it")
	}
	results, err := all.PublishDrafts(t.Context(), []string{"/d.tmp"})
	if err != nil || len(results) != 5 {
		t.Errorf("%+v, %v", results, err)
	}
	for _, r := range results {
		if r.Failed == nil || !strings.HasPrefix(r.Failed.Message, r.Name+": ") || !strings.Contains(r.Failed.Message, "grant s3:PutObject") {
			t.Errorf("%+v", r.Failed)
		}
	}
	p.ClearRules()
	if results, err = all.PublishDrafts(t.Context(), nil); err != nil || len(results) != 1 || results[0].Name != "/plain" {
		t.Errorf("%+v, %v", results, err)
	}
	if got := keysOf(t, s); got != "dir/known plain" {
		t.Errorf("with --all the bucket has %q", got)
	}
	results, err = all.PublishDrafts(t.Context(), []string{"/alone.tmp", "/d.tmp"})
	if err != nil || len(results) != 6 {
		t.Errorf("%+v, %v", results, err)
	}
	for _, r := range results {
		if r.Failed != nil {
			t.Errorf("%s: %v", r.Name, r.Failed)
		}
	}
	if got := keysOf(t, s); got != "alone.tmp d.tmp/ d.tmp/b d.tmp/in/ d.tmp/in/a d.tmp/marker dir/known plain" || len(draftsOf(t, all)) != 0 {
		t.Errorf("the bucket has %q, and this node %+v", got, draftsOf(t, all))
	}
}

// objectOf reads an object past the node.
func objectOf(t *testing.T, s *hearthtest.Server, key string) string {
	t.Helper()
	r, err := s.Request(t.Context(), "GET", "data", key, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := s.Client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 200 {
		return resp.Status
	}
	return string(text)
}

func TestDraftsAreDropped(t *testing.T) {
	// A draft that failed is dropped with its bytes, and the object that it hid is there again, under another node id than the
	// draft had. One that is open needs force. A user of the group may drop his own alone.
	_, p, c := outage(t, "immutable")
	n := start(t, "", c.with)
	all := client(t, n)
	before, err := all.Stat(t.Context(), "/dir/known")
	if err != nil {
		t.Fatal(err)
	}
	store, err := n.openDrafts()
	if err != nil {
		t.Fatal(err)
	}
	refusesWrites(p)
	over := begun(t, n, store, before.Inode, "dir/known", "it is written again", 0)
	if _, err := over.Publish(t.Context()); err == nil {
		t.Fatal("the bucket took it")
	}
	_, err = all.DropDraft(t.Context(), "/dir/known", false)
	if admin.KindOf(err) != admin.KindRefused || !strings.Contains(err.Error(), "/dir/known is open") || !strings.Contains(err.Error(), "--force") {
		t.Errorf("one that is open: %v", err)
	}
	over.Release()
	_, err = as(t, n, admin.Asker{Rank: admin.Member, UID: 1001}).DropDraft(t.Context(), "/dir/known", false)
	refused(t, "another's", err, "a file of the user 0", "may drop it")
	_, err = as(t, n, admin.Asker{Rank: admin.Member, UID: 1001}).PublishDrafts(t.Context(), []string{"/dir/known"})
	refused(t, "another's", err, "may publish it")
	if _, err := all.DropDraft(t.Context(), "/dir", false); admin.KindOf(err) != admin.KindNotFound {
		t.Errorf("a directory: %v", err)
	}
	d, err := all.DropDraft(t.Context(), "s3://data/dir/known", false)
	if err != nil || d.Size != 19 || d.Name != "/dir/known" {
		t.Errorf("%+v, %v", d, err)
	}
	if _, err := os.Stat(d.File); !os.IsNotExist(err) {
		t.Errorf("its bytes are there: %v", err)
	}
	after, err := all.Stat(t.Context(), "/dir/known")
	if err != nil || after.Version != before.Version || after.Inode == before.Inode {
		t.Errorf("%+v, then %+v, %v", before, after, err)
	}

	own := written(t, n, "own", "of a user", 1001)
	if d, err = as(t, n, admin.Asker{Rank: admin.Member, UID: 1001}).DropDraft(t.Context(), "/own", true); err != nil || d.Size != 9 {
		t.Errorf("%+v, %v", d, err)
	}
	if got := draftsOf(t, all); len(got) != 0 {
		t.Errorf("%+v", got)
	}
	if _, err := own.WriteAt([]byte("more"), 9); err != nil {
		t.Errorf("who writes it: %v", err)
	}
	own.Release()
}

func TestDraftsThatWereSetAsideAreDropped(t *testing.T) {
	// A draft whose record is damaged is set aside at the start. It is listed and a problem, is not published, and is dropped by
	// the name of its file.
	_, _, c := outage(t, "immutable")
	dir := filepath.Join(c.Cache.Disks[0].Path, "drafts")
	n := start(t, "", c.with) // makes the cache directory
	d := written(t, n, "x", "text", 0)
	file := d.Info().File
	d.Release()
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	for _, ext := range []string{".json", ".extents"} { // the latter as of a file that was changed in place
		if err := os.WriteFile(strings.TrimSuffix(file, ".data")+ext, []byte("nonsense"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	n = start(t, "", c.with)
	all := client(t, n)
	got, err := all.Drafts(t.Context())
	if err != nil || len(got) != 1 || got[0].State != "set_aside" || got[0].Name != file+".aside" || got[0].Size != 4 {
		t.Fatalf("%+v, %v", got, err)
	}
	is := n.Status(t.Context())
	if is.Drafts.States.Aside.Files != 1 || !strings.HasPrefix(is.Says, "a file that was written is set aside and never published: "+file) || !strings.Contains(is.Says, "then hearth drafts drop it") {
		t.Errorf("%q, %+v", is.Says, is.Drafts)
	}
	results, err := all.PublishDrafts(t.Context(), []string{got[0].Name})
	if err != nil || len(results) != 1 || results[0].Failed == nil || results[0].Failed.Kind != admin.KindRefused {
		t.Errorf("%+v, %v", results, err)
	}
	if results, err := all.PublishDrafts(t.Context(), nil); err != nil || len(results) != 0 {
		t.Errorf("%+v, %v", results, err)
	}
	if _, err := all.DropDraft(t.Context(), filepath.Base(file)+".aside", false); err != nil {
		t.Error(err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 0 || len(draftsOf(t, all)) != 0 || n.Status(t.Context()).Says != "ok" {
		t.Errorf("%v, %v, %+v", left, err, n.Status(t.Context()).Drafts)
	}
}

func TestTheFormatOfDraftsIsAsked(t *testing.T) {
	// A version that cannot read the drafts of this one does not take its place. Where there are none, one that knows of no drafts may.
	if Formats()["drafts"] != draft.Format || draft.Format < 1 {
		t.Errorf("%v", Formats())
	}
	_, _, c := outage(t, "immutable")
	n := start(t, "", c.with)
	if _, asked := n.formats()["drafts"]; asked {
		t.Errorf("without drafts: %v", n.formats())
	}
	written(t, n, "a", "text", 0).Release()
	if n.formats()["drafts"] != draft.Format {
		t.Errorf("with drafts: %v", n.formats())
	}
}

func TestStatusDoesNotWaitForADraft(t *testing.T) {
	// A disk does not answer a writer, who holds its draft meanwhile. Status says what was seen last, and the truth once the disk
	// has answered.
	_, _, c := outage(t, "immutable")
	n := start(t, "", c.with)
	d := written(t, n, "a", "text", 0)
	if open := n.Status(t.Context()).Drafts.States.Open; open != (status.DraftSum{Files: 1, Bytes: 4}) {
		t.Fatalf("%+v", open)
	}
	hangs, answers, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		_ = d.SetAttr(func(*draft.Attr) { close(hangs); <-answers })
		_, _ = d.WriteAt([]byte("more"), 4)
	}()
	<-hangs
	for range 2 { // and no second look begins
		if open := n.Status(t.Context()).Drafts.States.Open; open != (status.DraftSum{Files: 1, Bytes: 4}) {
			t.Errorf("%+v", open)
		}
	}
	close(answers)
	<-ended
	if !hearthtest.Eventually(t.Context(), time.Minute, func() bool { return n.Status(t.Context()).Drafts.States.Open.Bytes == 8 }) {
		t.Error("the write is not seen")
	}
	d.Release()
}

func TestConditionsThatAreIgnoredAreSaid(t *testing.T) {
	// The server does not know the conditions of writes, of which the proxy strips one. With the first file that has one the log says
	// so, once, and status what it means.
	_, p, c := outage(t, "immutable")
	var log lines
	n := start(t, "", func(o *Config) {
		c.with(o)
		o.Log = slog.New(slog.NewTextHandler(&log, nil))
	})
	p.AddRule(faultproxy.Rule{Verb: faultproxy.Other, Strip: "If-None-Match"})
	for i, key := range []string{"a", "b"} {
		store, err := n.openDrafts()
		if err != nil {
			t.Fatal(err)
		}
		d, err := store.Create(draft.Name{Link: n.links.list()[0].name, Key: key}, uint64(1000+i), draft.Attr{Exclusive: true})
		if err != nil {
			t.Fatal(err)
		}
		if says := n.Status(t.Context()).Links[0].Unheeded; (says != "") != (i > 0) {
			t.Errorf("before %s: %q", key, says)
		}
		if _, err := d.Publish(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	const says = "ignores conditions of writes, or denied what tries them (If-None-Match"
	if is := n.Status(t.Context()); !strings.Contains(is.Links[0].Unheeded, says) || !slices.Contains(is.FindWarnings(), is.Links[0].Unheeded) {
		t.Errorf("status says %q", is.Links[0].Unheeded)
	}
	if n := strings.Count(log.String(), says); n != 1 {
		t.Errorf("the log says it %d times:\n%s", n, log.String())
	}
}

func TestDraftsOfADirectoryThatReturns(t *testing.T) {
	// A cache directory was out of use when the node opened its drafts. As it returns with some, the log says what to do.
	_, _, c := outage(t, "immutable")
	var log lines
	n := start(t, "", func(o *Config) {
		c.with(o)
		o.Log = slog.New(slog.NewTextHandler(&log, nil))
	})
	written(t, n, "a", "text", 0)
	other := t.TempDir()
	const says = "a cache directory that was out of use when this node started"
	n.draftsReturned(other)
	n.draftsReturned(c.Cache.Disks[0].Path)
	if strings.Contains(log.String(), says) {
		t.Errorf("without a draft there, or of a directory in use:\n%s", log.String())
	}
	if err := os.MkdirAll(filepath.Join(other, "drafts"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(other, "drafts", "x.json"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n.draftsReturned(other)
	if !strings.Contains(log.String(), says) {
		t.Error("nothing is said")
	}
}
