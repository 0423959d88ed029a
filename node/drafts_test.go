package node

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hearthfs/hearth/draft"
	"github.com/hearthfs/hearth/internal/faultproxy"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/node/status"
)

// keysOf are the keys of a bucket.
func keysOf(t *testing.T, s *hearthtest.Server) string {
	t.Helper()
	r, err := s.Request(t.Context(), http.MethodGet, "data", "", url.Values{"list-type": {"2"}})
	if err != nil {
		t.Fatal(err)
	}
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = a.Body.Close() }() // it was only read
	text, err := io.ReadAll(a.Body)
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, part := range strings.Split(string(text), "<Key>")[1:] {
		key, _, _ := strings.Cut(part, "</Key>")
		keys = append(keys, key)
	}
	return strings.Join(keys, " ")
}

// staged makes a closed draft with a temporary name.
func staged(t *testing.T, n *Node, key, text string) *draft.Draft {
	t.Helper()
	d := written(t, n, key, text, 0)
	if err := d.Stage(); err != nil {
		t.Fatal(err)
	}
	d.Release()
	return d
}

func TestWhatNobodyRenamesIsPublished(t *testing.T) {
	// What was closed under a temporary name is published as it is once it has been left alone for staging_age. A directory goes
	// as a whole: not while anything in it is younger, or open.
	s, _, c := outage(t, "immutable")
	var late atomic.Int64
	n := start(t, "", func(o *Config) {
		c.with(o)
		o.Clock = func() time.Time { return time.Now().Add(time.Duration(late.Load())) }
	})
	staged(t, n, "a.tmp", "a")
	staged(t, n, "d.tmp/", "")
	staged(t, n, "d.tmp/x", "x")
	open := written(t, n, "d.tmp/y", "y", 0)
	store := n.drafts.store.Load()
	n.publishStaged(store)
	late.Store(int64(time.Hour))
	n.publishStaged(store)
	if !hearthtest.Eventually(t.Context(), time.Minute, func() bool { return keysOf(t, s) == "a.tmp dir/known" }) {
		t.Fatalf("the bucket has %q", keysOf(t, s))
	}
	if err := open.Stage(); err != nil {
		t.Fatal(err)
	}
	open.Release()
	n.publishStaged(store)
	if got := draftsOf(t, client(t, n)); len(got) != 3 || got["/d.tmp/y"].State != "staged" {
		t.Fatalf("%+v", got)
	}
	late.Store(int64(2 * time.Hour))
	n.publishStaged(store)
	if !hearthtest.Eventually(t.Context(), time.Minute, func() bool { return keysOf(t, s) == "a.tmp d.tmp/ d.tmp/x d.tmp/y dir/known" }) {
		t.Fatalf("the bucket has %q", keysOf(t, s))
	}
}

func TestALogIsPublishedWhileItIsOpen(t *testing.T) {
	// A file that is open to be appended to is published each publish_every, from 64 MiB on once it has grown by a tenth. Another one
	// that is open is not, nor one with a temporary name, nor any if publish_every is 0.
	s, _, c := outage(t, "immutable")
	var late atomic.Int64
	n := start(t, "", func(o *Config) {
		c.with(o)
		o.Clock = func() time.Time { return time.Now().Add(time.Duration(late.Load())) }
	})
	log, other, tmp := written(t, n, "log", "one", 0), written(t, n, "model", "half", 0), written(t, n, "log.tmp", "tmp", 0)
	log.Append()
	tmp.Append()
	store := n.drafts.store.Load()
	tick := func(age time.Duration, due bool) {
		t.Helper()
		late.Add(int64(age))
		n.publishOpen(store)
		if busy := n.drafts.behindOf(log.Info().File, 0) > 0; !due && busy {
			t.Fatal("it is published")
		}
		if due && !hearthtest.Eventually(t.Context(), time.Minute, func() bool { return !log.Info().Dirty && n.drafts.behindOf(log.Info().File, 0) == 0 }) {
			t.Fatalf("it is not published: %+v", log.Info())
		}
	}
	grow := func(to int64) {
		t.Helper()
		if err := log.Truncate(to); err != nil {
			t.Fatal(err)
		}
	}
	tick(29*time.Second, false)
	tick(2*time.Second, true)
	tick(time.Minute, false)
	grow(4)
	tick(time.Minute, true)
	grow(largeLog)
	tick(time.Minute, true)
	grow(largeLog + largeLog/11)
	tick(time.Minute, false)
	grow(largeLog + largeLog/9)
	tick(time.Minute, true)
	if got := keysOf(t, s); got != "dir/known log" {
		t.Errorf("the bucket has %q", got)
	}
	log.Release()
	other.Release()
	tmp.Release()

	_, _, c = outage(t, "immutable")
	never := start(t, "", func(o *Config) {
		c.with(o)
		o.Clock = func() time.Time { return time.Now().Add(time.Hour) }
		o.Links[0].Staging.Every = -1
	})
	kept := written(t, never, "kept", "one", 0)
	kept.Append()
	never.publishOpen(never.drafts.store.Load())
	if never.drafts.behindOf(kept.Info().File, 0) > 0 || !kept.Info().Dirty {
		t.Error("it is published, though publish_every is 0")
	}
	kept.Release()
}

func TestAFileThatIsWrittenAgainIsNotThereByHalf(t *testing.T) {
	// A file waits to be published behind, and somebody opens it again to write it: the bucket gets it once that writer has gone, and
	// not before, though it would take it. Another file that waits is published meanwhile.
	s, p, c := outage(t, "immutable")
	n := start(t, "", c.with)
	half, other := written(t, n, "half", "one", 0), written(t, n, "other", "other", 0)
	p.AddRule(faultproxy.Rule{Verb: faultproxy.Other, Status: http.StatusNotImplemented, Code: "NotImplemented"})
	closed(n, half)
	if !hearthtest.Eventually(t.Context(), time.Minute, func() bool { return half.Info().State == draft.Waiting }) {
		t.Fatalf("%+v", half.Info())
	}
	if err := half.Hold(); err != nil {
		t.Fatal(err)
	}
	half.Writes(1)
	closed(n, other)
	if !hearthtest.Eventually(t.Context(), time.Minute, func() bool { return other.Info().State == draft.Waiting }) {
		t.Fatalf("%+v", other.Info())
	}
	p.ClearRules()
	if !hearthtest.Eventually(t.Context(), time.Minute, func() bool { return strings.Contains(keysOf(t, s), "other") }) {
		t.Fatal("it is not published")
	}
	if got := keysOf(t, s); got != "dir/known other" {
		t.Errorf("the bucket has %q", got)
	}
	if _, err := half.WriteAt([]byte("two"), 3); err != nil {
		t.Fatal(err)
	}
	half.Writes(-1)
	half.Release()
	if !hearthtest.Eventually(t.Context(), time.Minute, func() bool { return objectOf(t, s, "half") == "onetwo" }) {
		t.Errorf("the bucket has %q", objectOf(t, s, "half"))
	}

	// A log is left to who publishes what is open.
	log := written(t, n, "log", "one", 0)
	p.AddRule(faultproxy.Rule{Verb: faultproxy.Other, Status: http.StatusNotImplemented, Code: "NotImplemented"})
	closed(n, log)
	if !hearthtest.Eventually(t.Context(), time.Minute, func() bool { return log.Info().State == draft.Waiting }) {
		t.Fatalf("%+v", log.Info())
	}
	if err := log.Hold(); err != nil {
		t.Fatal(err)
	}
	log.Append()
	log.Writes(1)
	if !hearthtest.Eventually(t.Context(), time.Minute, func() bool { return n.drafts.behindOf(log.Info().File, 0) == 0 }) {
		t.Error("a task waits for the end of a log")
	}
	log.Writes(-1)
	log.Release()
}

func TestALogThatIsRefusedOnceIsPublishedLater(t *testing.T) {
	// The bucket refuses a log that is open: the log says so, and status as of what is tried again by itself. A minute later, or after
	// publish_every if that is longer, it is tried again, until the bucket has it. Another file that is open is not tried.
	for every, again := range map[time.Duration]time.Duration{0: time.Minute, 5 * time.Minute: 5 * time.Minute} {
		s, p, c := outage(t, "immutable")
		var late atomic.Int64
		var log lines
		began := time.Now()
		n := start(t, "", func(o *Config) {
			c.with(o)
			o.Links[0].Staging.Every = every
			o.Log = slog.New(slog.NewTextHandler(&log, nil))
			o.Clock = func() time.Time { return began.Add(time.Duration(late.Load())) }
		})
		d, model := written(t, n, "log", "one", 0), written(t, n, "model", "half", 0)
		d.Append()
		store, all := n.drafts.store.Load(), client(t, n)
		tick := func(more time.Duration, failures int64) {
			t.Helper()
			late.Add(int64(more))
			n.publishOpen(store)
			if !hearthtest.Eventually(t.Context(), time.Minute, func() bool { return n.drafts.behindOf(d.Info().File, 0) == 0 }) {
				t.Fatal("it does not end")
			}
			if got := n.Status(t.Context()).Drafts.Failures; got != failures {
				t.Fatalf("after %v more %d requests failed, expected %d", more, got, failures)
			}
		}
		refusesWrites(p)
		tick(again, 1)
		if got := draftsOf(t, all)["/log"]; d.Info().State != draft.Failed || got.State != "waiting" || got.Users != 1 || !strings.Contains(got.Why, "grant s3:PutObject") {
			t.Errorf("%+v, told as %+v", d.Info(), got)
		}
		const says = `msg="a file that was written is not in the bucket: it is kept here"`
		if strings.Count(log.String(), says) != 1 || !strings.Contains(log.String(), "key=log ") {
			t.Errorf("the log:\n%s", log.String())
		}
		if _, err := model.Publish(t.Context()); err == nil {
			t.Fatal("the bucket took it")
		}
		tick(again-10*time.Second, 2) // the model's
		tick(10*time.Second+tendEvery/2, 3)
		troubles := n.Status(t.Context()).Drafts.Troubles
		if strings.Count(log.String(), says) != 1 || !slices.ContainsFunc(troubles, func(x status.DraftTrouble) bool { return x.State == "waiting" && x.Name == "/log" }) {
			t.Errorf("%+v, and the log:\n%s", troubles, log.String())
		}
		p.ClearRules()
		tick(again/2, 3)
		if !d.Info().Dirty {
			t.Error("it is published too early")
		}
		tick(again/2, 3)
		if got := keysOf(t, s); got != "dir/known log" || d.Info().Dirty {
			t.Errorf("the bucket has %q", got)
		}
		if got := draftsOf(t, all); len(got) != 1 || got["/model"].State != "failed" {
			t.Errorf("%+v", got)
		}
		d.Release()
		model.Release()
	}
}

func TestDraftsWaitForTheirLink(t *testing.T) {
	// The link of a mount that is made by hand comes some time after the node's start. What the node before left waits for it, with the
	// reason. Then what has a temporary name stays, closed or open at that node's end, and all else is published.
	s, _, c := outage(t, "immutable")
	n := start(t, "", c.with)
	staged(t, n, "closed.tmp", "closed")
	staged(t, n, "d.tmp/", "")
	staged(t, n, "d.tmp/x", "x")
	written(t, n, "open.tmp", "open", 0)
	written(t, n, "plain", "plain", 0)
	store := n.drafts.store.Load()
	for _, i := range store.All() {
		if d, _ := store.ID(i.ID); i.Users > 0 {
			if err := d.Sync(); err != nil {
				t.Fatal(err)
			}
			d.Release()
		}
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	n = start(t, "", func(o *Config) {
		c.with(o)
		o.Links = nil
	})
	wait := func(what string, fact func(d map[string]status.Draft) bool) {
		t.Helper()
		if !hearthtest.Eventually(t.Context(), time.Minute, func() bool { return fact(draftsOf(t, client(t, n))) }) {
			t.Fatalf("%s: the bucket has %q, and %+v", what, keysOf(t, s), draftsOf(t, client(t, n)))
		}
	}
	wait("no link", func(d map[string]status.Draft) bool {
		x, ok := d["s3://data/plain"]
		y := d["s3://data/open.tmp"]
		return ok && x.State == "waiting" && strings.Contains(x.Why, "no link is named") && y.State == "waiting" && len(d) == 5
	})
	if got := keysOf(t, s); got != "dir/known" {
		t.Errorf("without a link the bucket has %q", got)
	}
	if _, err := n.links.add(t.Context(), c.Links[0], func(*link) error { return nil }); err != nil {
		t.Fatal(err)
	}
	wait("a link", func(d map[string]status.Draft) bool {
		for _, name := range []string{"/closed.tmp", "/open.tmp", "/d.tmp", "/d.tmp/x"} {
			if d[name].State != "staged" || d[name].Why != "" {
				return false
			}
		}
		return len(d) == 4
	})
	if got := keysOf(t, s); got != "dir/known plain" {
		t.Errorf("the bucket has %q", got)
	}
}

func TestARenameThatAKillBrokeOffGoesOn(t *testing.T) {
	// The node was killed when a directory had its new name and nothing of it was in the bucket: the next one publishes all of it, the
	// file that was written last at the end. What has a temporary name stays.
	s, _, c := outage(t, "immutable")
	n := start(t, "", func(o *Config) { c.with(o) })
	for _, key := range []string{"d.tmp/", "d.tmp/a", "d.tmp/in.tmp", "d.tmp/b", "left.tmp", "d.tmp/marker"} {
		staged(t, n, key, key[strings.LastIndexByte(key, '/')+1:])
	}
	store := n.drafts.store.Load()
	link := n.links.list()[0].name
	if err := store.RenameDir(t.Context(), draft.Name{Link: link, Key: "d.tmp/"}, draft.Name{Link: link, Key: "d/"}, func(draft.Info) bool { return false }, nil); err != nil {
		t.Fatal(err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	n = start(t, "", func(o *Config) { c.with(o) })
	if !hearthtest.Eventually(t.Context(), time.Minute, func() bool { return strings.Contains(keysOf(t, s), "d/marker") }) {
		t.Fatalf("the bucket has %q", keysOf(t, s))
	}
	if got := keysOf(t, s); got != "d/ d/a d/b d/marker dir/known" {
		t.Errorf("when the last file was there, the bucket had %q", got)
	}
	if got := draftsOf(t, client(t, n)); got["/left.tmp"].State != "staged" || got["/d/in.tmp"].State != "staged" {
		t.Errorf("%+v", got)
	}
}

func TestASlowRenameIsToldOf(t *testing.T) {
	// A rename may wait as long as its origin may be silent; of a link that is gone it waits for ever. The log names both keys, how
	// far it is, and why it has failed.
	_, _, c := outage(t, "immutable")
	var log bytes.Buffer
	n := start(t, "", func(o *Config) {
		c.with(o)
		o.Log = slog.New(slog.NewTextHandler(&log, nil))
	})
	link := n.links.list()[0]
	for timeout, want := range map[time.Duration]time.Duration{0: 10 * time.Second, time.Minute: time.Minute} {
		link.Origin.Timeout = timeout
		if got := n.patience(link.name); got != want {
			t.Errorf("patience %v, want %v", got, want)
		}
	}
	if got := n.patience("gone"); got != 0 {
		t.Errorf("patience %v of a link that is gone", got)
	}
	from, to := draft.Name{Link: link.name, Key: "a.tmp"}, draft.Name{Link: link.name, Key: "a"}
	n.slowRename(from, to, 3, 7, nil)
	n.slowRename(from, to, 3, 7, errors.New("nothing is sent"))
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`level=WARN msg="a rename waits for the bucket, and both directories with it"`,
		`level=ERROR msg="a rename has failed: what was written is kept here"`, `key=a.tmp to=a sent=3 bytes=7 cause="nothing is sent"`} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log has no %s:\n%s", want, log.String())
		}
	}
}
