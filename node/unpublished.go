package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/draft"
	"github.com/hearthfs/hearth/namespace"
	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/node/jobs"
	"github.com/hearthfs/hearth/node/status"
	"github.com/hearthfs/hearth/node/watch"
)

// This file shows people the drafts of a node, and does with them what they ask for: hearth drafts, and their lines in status.

// kept is what is known of a draft that a publish has failed for. The draft's own state begins anew with each try.
type kept struct {
	since time.Time
	raw   string // the error in the draft's own words
	why   string // with its cure
}

// keptFrom notes that publishing a draft failed, which was in another state before. It reports whether that is news.
func (n *Node) keptFrom(before, i *draft.Info, err error) (news bool) {
	s := &n.drafts
	s.told.Lock()
	defer s.told.Unlock()
	if s.kept == nil {
		s.kept = map[string]kept{}
	}
	k, ok := s.kept[i.File]
	if !ok {
		if k.since = i.Since; before.State == draft.Waiting || before.State == draft.Failed {
			k.since = before.Since
		}
	}
	news = k.raw != err.Error()
	k.raw, k.why = err.Error(), n.cured(i, err).Error()
	s.kept[i.File] = k
	return news
}

// behindOf counts the tasks that publish a draft behind, after it has added some.
func (s *drafts) behindOf(file string, more int) int {
	s.told.Lock()
	defer s.told.Unlock()
	if s.behind == nil {
		s.behind = map[string]int{}
	}
	if s.behind[file] += more; s.behind[file] == 0 {
		delete(s.behind, file)
	}
	return s.behind[file]
}

// cured is an error of publishing with what a person can do about it.
func (n *Node) cured(i *draft.Info, err error) error {
	explained := watch.Explained(err)
	e := &admin.Error{Kind: admin.KindOf(explained), Message: explained.Error(), Cause: err}
	switch {
	case explained != err && !errors.Is(err, hearth.ErrConflict) && !errors.Is(err, hearth.ErrUnanswered):
	case i.Conflict:
		e.Kind = admin.KindRefused
		e.Message = "somebody else has written the object of its name meanwhile (" + e.Message + "); hearth drafts publish puts it beside that, mv it over the other one if that is to go, or hearth drafts drop it"
	case errors.Is(err, hearth.ErrConflict):
		e.Kind = admin.KindRefused
		e.Message += "; copy the file away under another name if you need it, then hearth drafts drop it"
	case errors.Is(err, hearth.ErrUnanswered):
		e.Message += "; the next try asks whether it was done"
	case errors.Is(err, fs.ErrPermission):
		e.Message += "; grant these credentials the right to write there"
	case errors.Is(err, errNoDraft), i.Removed:
		e.Kind = admin.KindRefused
	}
	return e
}

// errNoDraft means that something cannot be published at all.
var errNoDraft = errors.New("it cannot be published")

// looking bounds how long a status waits for drafts: a writer holds its draft while the disk has it wait.
const looking = time.Second

// look is one look at all drafts.
type look struct {
	done chan struct{} // closed once infos are there
	all  []draft.Info
}

// infos tells of all drafts. If a disk does not answer it tells what the last look saw.
func (s *drafts) infos() []draft.Info {
	store := s.store.Load()
	if store == nil {
		return nil
	}
	s.told.Lock()
	l := s.running
	if l == nil {
		l = &look{done: make(chan struct{})}
		s.running = l
		go func() { // ends when the disk answers, as Close of the drafts does
			all := store.All()
			s.told.Lock()
			defer s.told.Unlock()
			l.all, s.seen, s.running = all, all, nil
			close(l.done)
		}()
	}
	s.told.Unlock()
	late := time.NewTimer(looking)
	defer late.Stop()
	select {
	case <-l.done:
		return l.all
	case <-late.C:
		s.told.Lock()
		defer s.told.Unlock()
		return s.seen
	}
}

// unpublished are the drafts that their bucket does not have as they are here.
func (n *Node) unpublished() []status.Draft {
	all := []status.Draft{}
	infos := n.drafts.infos()
	n.drafts.told.Lock()
	defer n.drafts.told.Unlock()
	for file := range n.drafts.kept { // what was published or removed is not kept from its bucket any more
		if !containsFile(infos, file) {
			delete(n.drafts.kept, file)
		}
	}
	for i := range infos {
		x := &infos[i]
		if x.State == draft.Published || n.drafts.dropped[x.File] {
			continue
		}
		all = append(all, n.told(x))
	}
	return all
}

func containsFile(infos []draft.Info, file string) bool {
	for i := range infos {
		if infos[i].File == file && infos[i].State != draft.Published {
			return true
		}
	}
	return false
}

// told is a draft as people see it; drafts.told is held.
func (n *Node) told(i *draft.Info) status.Draft {
	d := status.Draft{Size: i.Size, State: string(i.State), Since: i.Since, Why: i.Why, Users: i.Users, UID: i.Attr.UID, File: i.File}
	if i.Key != "" {
		url := i.Link[strings.LastIndexByte(i.Link, ' ')+1:] // see links.add
		bucket, _ := splitURL(url)
		d.URL = bucket + "/" + i.Key
	}
	if l := n.links.named(i.Link); l != nil && strings.HasPrefix(i.Key, l.prefix) {
		dir, last := path.Split(strings.TrimSuffix(strings.TrimPrefix(i.Key, l.prefix), "/"))
		d.Path = n.links.short(cleanPath(jobs.Path(l.Path, dir) + "/" + namespace.MountName(last)))
	}
	d.Name = cmp.Or(d.Path, d.URL, d.File)
	if k, ok := n.drafts.kept[i.File]; ok {
		if d.Since = k.since; d.Why == "" || d.Why == k.raw {
			d.Why = k.why
		}
	}
	switch {
	case isAside(i):
		d.State, d.Name = status.DraftAside, d.File
		d.Why = strings.TrimPrefix(cmp.Or(d.Path, d.URL)+": "+d.Why, ": ") + "; copy the file away if you need it, then hearth drafts drop it"
	case i.Removed: // another draft has its name
		d.Name, d.Why = d.File, cmp.Or(d.Path, d.URL)+": "+d.Why
	case i.State == draft.Failed && n.isLog(i):
		d.State = status.DraftWaiting
	case i.State == draft.Opened && i.Users == 0, i.State == draft.Staged:
		if d.State = status.DraftWaiting; n.staged(i.Name) {
			d.State = status.DraftStaged
		}
	}
	d.KeepBytes()
	return d
}

// isAside reports whether a draft is only a file whose record is damaged.
func isAside(i *draft.Info) bool { return strings.HasSuffix(i.File, asideTag) }

// asideTag ends the names of files that were set aside.
const asideTag = ".aside"

// draftsLine is what status says of drafts. It is nil if the node has none and never had.
func (n *Node) draftsLine() *status.Drafts {
	if n.drafts.store.Load() == nil {
		return nil
	}
	s := status.SumDrafts(n.unpublished(), n.now())
	s.Published, s.Failures = n.drafts.published.Load(), n.drafts.failures.Load()
	if x := n.drafts.seeds.Load(); x != nil {
		s.Seeded, s.Unseeded = x.seeded.Load(), x.dropped.Load()
	}
	return s
}

// namedDrafts finds drafts by a path below a mount, a path of the tree, a URL, or the file of one that has no name. With below it
// finds all that lie below a directory or prefix, too.
func (n *Node) namedDrafts(asked string, below bool) []status.Draft {
	var found []status.Draft
	at := ""
	if !isURL(asked) {
		at = n.treePath(asked)
	}
	for _, d := range n.unpublished() {
		_, lies := belowPath(n.links.within(d.Path), at)
		switch {
		case path.Base(asked) == filepath.Base(d.File):
			return []status.Draft{d} // its name is drawn of 128 bits
		case d.Name == d.File: // has no name of its own
		case isURL(asked) && (d.URL == asked || below && strings.HasPrefix(d.URL, strings.TrimSuffix(asked, "/")+"/")),
			at != "" && d.Path != "" && (n.links.within(d.Path) == at || below && lies):
			found = append(found, d)
		}
	}
	return found
}

// draftRoutes adds the drafts' part of the admin API.
func (n *Node) draftRoutes(answer func(pattern string, do func(*http.Request) (any, error))) {
	answer("GET /v1/drafts", func(*http.Request) (any, error) { return n.unpublished(), nil })
	answer("POST /v1/drafts/publish", func(r *http.Request) (any, error) {
		return n.publishAsked(r.Context(), r.URL.Query()["path"])
	})
	answer("DELETE /v1/drafts", func(r *http.Request) (any, error) {
		force, _ := strconv.ParseBool(r.FormValue("force"))
		return n.dropDraft(r.Context(), r.FormValue("path"), force)
	})
}

// mayChange returns an error unless who asks may publish or drop a draft: its owner, root and the node's user.
func mayChange(ctx context.Context, d *status.Draft, do string) error {
	if admin.MayEnd(admin.From(ctx).UID, d.UID) {
		return nil
	}
	return &admin.Error{Kind: admin.KindRefused, Message: fmt.Sprintf("%s is a file of the user %d: only that user, root and the node's user may %s it", d.Name, d.UID, do)}
}

func noDraft(asked string) error {
	return &admin.Error{Kind: admin.KindNotFound, Message: asked + ": no file that was written waits there (hearth drafts lists those that do)"}
}

// atOnce is how many drafts are published at once that somebody asks for. Their parts share the store's own bound.
const atOnce = 8

// publishAsked publishes the drafts at and below paths, or without paths all that nobody has open and that are not staged, and
// waits. A directory that is a draft goes as a whole: a mount shows drafts alone in it, so that a file of it which the bucket has
// already would be missing there, and stay behind when the directory is renamed.
func (n *Node) publishAsked(ctx context.Context, asked []string) ([]admin.PublishedDraft, error) {
	var all []status.Draft
	dirOf := n.dirsOfDrafts()
	if len(asked) == 0 {
		for _, d := range n.unpublished() {
			dir, in := dirOf[d.File]
			if d.Users == 0 && d.State != status.DraftStaged && d.Name != d.File && !(in && n.staged(dir)) && mayChange(ctx, &d, "publish") == nil {
				all = append(all, d)
			}
		}
	}
	for _, a := range asked {
		found := n.namedDrafts(a, true)
		if len(found) == 0 {
			return nil, noDraft(a)
		}
		for i := range found {
			if err := mayChange(ctx, &found[i], "publish"); err != nil {
				return nil, err
			}
		}
		all = append(all, found...)
	}
	whole := map[draft.Name][]*admin.PublishedDraft{}
	results := make([]admin.PublishedDraft, len(all))
	var work errgroup.Group
	work.SetLimit(atOnce)
	for i := range all {
		if dir, in := dirOf[all[i].File]; in {
			whole[dir] = append(whole[dir], &results[i])
		}
		results[i].Draft = all[i]
	}
	for dir, of := range whole {
		if err := n.lacks(dir, of); err != nil && len(asked) > 0 {
			return nil, err
		}
	}
	for i := range all {
		if _, in := dirOf[all[i].File]; in {
			continue
		}
		work.Go(func() error {
			failed(&results[i], n.publishNow(ctx, &all[i]))
			return nil
		})
	}
	for dir, of := range whole {
		work.Go(func() error {
			n.publishWhole(ctx, dir, of)
			return nil
		})
	}
	return results, work.Wait()
}

// failed notes why a draft is not in its bucket, if it is not.
func failed(x *admin.PublishedDraft, err error) {
	if err != nil {
		x.Failed = &admin.Error{Kind: admin.KindOf(err), Message: x.Name + ": " + err.Error()}
	}
}

// dirsOfDrafts tells for the files of drafts the uppermost directory that is a draft, and that they lie in or are.
func (n *Node) dirsOfDrafts() map[string]draft.Name {
	of, dirs := map[string]draft.Name{}, map[draft.Name]bool{}
	store := n.drafts.store.Load()
	if store == nil {
		return of
	}
	all := store.All()
	for _, i := range all {
		if i.IsDir() && i.Dirty && !i.Removed {
			dirs[i.Name] = true
		}
	}
	for _, i := range all {
		if dir := n.within(i.Name, dirs); dir != nil && !i.Removed {
			of[i.File] = *dir
		}
	}
	return of
}

// lacks is an error if a directory is not among what is to be published of it.
func (n *Node) lacks(dir draft.Name, of []*admin.PublishedDraft) error {
	d, ok := n.drafts.store.Load().Find(dir)
	if !ok {
		return nil // the bucket has it by now
	}
	i := d.Info()
	for _, x := range of {
		if x.File == i.File {
			return nil
		}
	}
	n.drafts.told.Lock()
	name := n.told(&i).Name
	n.drafts.told.Unlock()
	return &admin.Error{Kind: admin.KindRefused, Message: fmt.Sprintf("%s lies in %s, which is not in the bucket and goes there as a whole: rename that directory, or hearth drafts publish %s", of[0].Name, name, name)}
}

// publishWhole publishes the draft of a directory and those of it that are asked for, in the order of a rename. What may succeed later
// goes on by itself.
func (n *Node) publishWhole(ctx context.Context, dir draft.Name, of []*admin.PublishedDraft) {
	store, asked := n.drafts.store.Load(), map[string]bool{}
	for _, x := range of {
		asked[x.File] = true
		if d, _ := n.draftOf(&x.Draft); d != nil {
			d.Claim()
		}
	}
	err := store.RenameDir(ctx, dir, dir, func(i draft.Info) bool { return asked[i.File] || !i.Conflict && (n.staged(dir) || !n.staged(i.Name)) }, nil)
	if err == nil {
		return
	}
	again := true
	for _, x := range of {
		d, i := n.draftOf(&x.Draft)
		if d == nil || !i.Dirty {
			continue
		}
		n.keptFrom(&i, &i, err)
		failed(x, n.cured(&i, err))
		again = again && i.State != draft.Failed
	}
	if d, ok := store.Find(dir); ok && again && n.drafts.behindOf(d.Info().File, 0) == 0 {
		n.publishDir(store, dir)
	}
}

// publishNow publishes a draft. What may succeed later goes on by itself, if nobody has it open.
func (n *Node) publishNow(ctx context.Context, x *status.Draft) error {
	d, before := n.draftOf(x)
	if d == nil {
		if strings.HasSuffix(x.File, asideTag) {
			return n.cured(&draft.Info{}, fmt.Errorf("%w: %s", errNoDraft, x.Why))
		}
		return nil // it has gone: the bucket has it, or somebody removed it
	}
	d.Claim()
	_, err := d.Publish(ctx)
	if err == nil {
		return nil
	}
	i := d.Info()
	n.keptFrom(&before, &i, err)
	if i.State == draft.Waiting && i.Writers == 0 && !i.Removed && n.drafts.behindOf(i.File, 0) == 0 {
		n.publishBehind(d, i)
	}
	return n.cured(&i, err)
}

// draftOf finds a draft again.
func (n *Node) draftOf(x *status.Draft) (*draft.Draft, draft.Info) {
	store := n.drafts.store.Load()
	for _, i := range store.All() {
		if i.File == x.File {
			d, _ := store.ID(i.ID)
			return d, i
		}
	}
	return nil, draft.Info{}
}

// dropDraft deletes a draft with its bytes. One that somebody has open, or that is being sent, needs force.
func (n *Node) dropDraft(ctx context.Context, asked string, force bool) (*status.Draft, error) {
	found := n.namedDrafts(asked, false)
	if len(found) == 0 {
		return nil, noDraft(asked)
	}
	x := &found[0]
	if err := mayChange(ctx, x, "drop"); err != nil {
		return nil, err
	}
	if x.State == status.DraftAside {
		return x, n.dropAside(x)
	}
	d, i := n.draftOf(x)
	switch {
	case d == nil:
		return nil, noDraft(asked)
	case i.IsDir() && n.draftsBelow(i.Name) > 1:
		return nil, &admin.Error{Kind: admin.KindRefused, Message: asked + " is a directory with files that are not in the bucket: drop those first (hearth drafts lists them)"}
	case force:
	case i.Users > 0:
		return nil, &admin.Error{Kind: admin.KindRefused, Message: fmt.Sprintf("%s is open: who writes it would write into nothing; close it first, or drop it with --force", asked)}
	case i.State == draft.Publishing:
		return nil, &admin.Error{Kind: admin.KindRefused, Message: asked + " is being published: wait for that, or drop it with --force"}
	}
	if !i.Removed {
		n.uncover(ctx, &i)
	}
	if err := d.Remove(ctx); err != nil {
		return nil, fmt.Errorf("drop %s: %w", asked, err)
	}
	n.events.Warn("a file that was written was dropped", "link", i.Link, "key", i.Key, "bytes", i.Size, "was", x.State, "uid", admin.From(ctx).UID)
	if !i.Removed {
		n.doubted(ctx, i.Link, i.Key) // a lost answer may have left an object, which is deleted now
	}
	return x, nil
}

// uncover gives the object that a draft hides another node id, before the draft is dropped: kernels may have the draft's bytes
// under the one that both had. Meanwhile the name is the draft's on writable mounts; others miss it for a moment.
func (n *Node) uncover(ctx context.Context, i *draft.Info) {
	x, err := n.tree.File(namespace.Quiet(ctx), i.Link, i.Key)
	if err != nil || x.ID != i.ID {
		return
	}
	n.wrote(ctx, i.Link, i.Key, nil, 0)
	n.wrote(ctx, i.Link, i.Key, &x.Object, 0)
}

// dropAside removes the files of a draft that was set aside. That somebody removed them by hand is no error.
func (n *Node) dropAside(x *status.Draft) error {
	base := strings.TrimSuffix(x.File, ".data"+asideTag)
	for _, ext := range []string{".extents", ".data", ".json"} {
		if err := os.Remove(base + ext + asideTag); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("drop %s: %w", x.File, err)
		}
	}
	n.events.Warn("a file that was set aside was dropped", "file", x.File, "bytes", x.Size)
	n.drafts.told.Lock()
	defer n.drafts.told.Unlock()
	if n.drafts.dropped == nil {
		n.drafts.dropped = map[string]bool{}
	}
	n.drafts.dropped[x.File] = true
	return nil
}

// counting is an Uploader that counts what failed.
type counting struct {
	hearth.Uploader
	n *Node
}

func (c counting) failed(ctx context.Context, err error) {
	if err != nil && ctx.Err() == nil && !errors.Is(err, fs.ErrNotExist) { // an upload that is gone is begun anew
		c.n.drafts.failures.Add(1)
	}
}

// Put is part of hearth.Uploader.
func (c counting) Put(ctx context.Context, u *hearth.Upload, body io.ReaderAt) (hearth.Object, error) {
	o, err := c.Uploader.Put(ctx, u, body)
	c.failed(ctx, err)
	return o, err
}

// Copy is part of hearth.Uploader.
func (c counting) Copy(ctx context.Context, u *hearth.Upload, from *hearth.Object) (hearth.Object, error) {
	o, err := c.Uploader.Copy(ctx, u, from)
	c.failed(ctx, err)
	return o, err
}

// Begin is part of hearth.Uploader.
func (c counting) Begin(ctx context.Context, u *hearth.Upload) (string, error) {
	id, err := c.Uploader.Begin(ctx, u)
	c.failed(ctx, err)
	return id, err
}

// PutPart is part of hearth.Uploader.
func (c counting) PutPart(ctx context.Context, u *hearth.Upload, id string, number int, body io.ReaderAt, size int64) (hearth.Part, error) {
	p, err := c.Uploader.PutPart(ctx, u, id, number, body, size)
	c.failed(ctx, err)
	return p, err
}

// Complete is part of hearth.Uploader.
func (c counting) Complete(ctx context.Context, u *hearth.Upload, id string, parts []hearth.Part) (hearth.Object, error) {
	o, err := c.Uploader.Complete(ctx, u, id, parts)
	c.failed(ctx, err)
	return o, err
}
