package node

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/draft"
	"github.com/hearthfs/hearth/namespace"
	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/node/config"
	"github.com/hearthfs/hearth/node/watch"
	"github.com/hearthfs/hearth/origin"
)

// links holds the node's links: its origins, and where they stand in the tree.
type links struct {
	version    string
	node       string                   // its random id, "" without a cache disk
	configured int                      // how many links the configuration names
	mu         sync.RWMutex             // guards what follows; never held while an origin is asked
	all        []*link                  // links are added, never removed
	making     map[string]chan struct{} // by path, links that are being made; a channel is closed at the end
}

// turn waits until nobody else makes a link at a path. The caller calls done when its own link is made.
func (ls *links) turn(ctx context.Context, path string) (done func(), err error) {
	for {
		ls.mu.Lock()
		others := ls.making[path]
		if others == nil {
			mine := make(chan struct{})
			if ls.making == nil {
				ls.making = map[string]chan struct{}{}
			}
			ls.making[path] = mine
			ls.mu.Unlock()
			return func() {
				ls.mu.Lock()
				defer ls.mu.Unlock()
				delete(ls.making, path)
				close(mine)
			}, nil
		}
		ls.mu.Unlock()
		select {
		case <-others:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// link is one link, with its origin open.
type link struct {
	Link
	name      string // the name that every Object of the link carries
	prefix    string // the prefix of its keys
	origin    origin.Origin
	freshness namespace.Freshness
	temporary draft.Temporary              // by Staging, which has their age
	health    watch.Health                 // the state of its origin by its fetches
	names     watch.Health                 // the state of its origin by questions for names
	found     atomic.Pointer[disagreement] // what its probe found; nil means none
	differs   atomic.Pointer[string]       // how its listings differ from HEADs; nil means that they do not
	passed    atomic.Pointer[string]       // why objects that the last probe tried cannot be read; "" means that all can
	doubted   atomic.Pointer[string]       // why its origin could not be probed; nil means that it was
	written   bool                         // it is made for a writable mount
	ignores   sync.Once                    // tells that its origin ignores conditions
}

func parseFreshness(s string) (namespace.Freshness, error) {
	if s == "" {
		s = "bounded(60s)"
	}
	f, err := namespace.ParseFreshness(s)
	if err != nil {
		return f, usage("%v", err)
	}
	return f, nil
}

// unheeded says what it means that the link's origin ignores conditions of writes; "": it does not, as far as is known.
func (l *link) unheeded() string {
	s, ok := l.origin.(*origin.S3)
	if !ok {
		return ""
	}
	which := s.Unheeded()
	if which == "" {
		return ""
	}
	return fmt.Sprintf("%s ignores conditions of writes, or denied what tries them (%s): a HEAD goes before each, and what others write between the two is lost; write a name from one node at a time", l.Origin.URL, which)
}

// add opens a link's origin. probe asks it; after an error of probe there is no link.
func (ls *links) add(ctx context.Context, l Link, probe func(*link) error) (*link, error) {
	l.Path = cleanPath(l.Path)
	l.Origin = l.Origin.WithEnvironment()
	f, err := parseFreshness(l.Freshness)
	if err != nil {
		return nil, err
	}
	temporary, err := l.Staging.Temporary()
	if err != nil {
		return nil, usage("staging: %v", err)
	}
	// Names are kept over a restart: another bucket at the same path is another link.
	added := &link{Link: l, name: l.Path + " " + l.Origin.Endpoint + " " + strings.TrimRight(l.Origin.URL, "/"), freshness: f, temporary: temporary}
	added.health.Pause = max(tryAfter, 3*cmp.Or(l.Origin.Timeout, 10*time.Second)) // the default of origin.timeout
	added.names.Pause = added.health.Pause
	if added.prefix, err = origin.Prefix(l.Origin.URL); err != nil {
		return nil, usage("%v", err)
	}
	c := config.OriginConfig(l.Origin, added.name, ls.version)
	c.Node = ls.node
	if added.origin, err = origin.Open(ctx, c); err != nil {
		return nil, usage("%v", err) // nothing was asked yet
	}
	if err := probe(added); err != nil {
		added.close()
		return nil, err
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, old := range ls.all {
		if old.Path == l.Path {
			added.close()
			return nil, &admin.Error{Kind: admin.KindRefused, Message: "there is a link at " + l.Path + " already"}
		}
	}
	ls.all = append(ls.all, added)
	return added, nil
}

// probe asks the origin whether it can be used, and what the link's prefix is. A prefix that is one object is
// no directory. A prefix with nothing below it is most likely a mistake, unless it is to be written. An error of the origin is returned as
// it is.
func (l *link) probe(ctx context.Context) error {
	can, err := l.origin.Probe(ctx)
	if err != nil {
		return err
	}
	l.passed.Store(&can.Passed)
	l.found.Store(differ(ctx, l.origin, can))
	if can.Objects || l.prefix == "" {
		return nil
	}
	empty := true
	err = l.first(ctx, func(hearth.Object) error {
		empty = false
		return nil
	})
	if err != nil || !empty {
		return err
	}
	key := strings.TrimSuffix(l.prefix, "/")
	if _, err := l.origin.Head(ctx, key); err == nil {
		return usage("%s is one object, not a directory: name the prefix that it lies in", l.Origin.URL)
	}
	if l.written || l.Write == config.WriteThrough {
		return nil
	}
	return &admin.Error{Kind: admin.KindNotFound, Message: "nothing lies below " + l.Origin.URL + ": check the prefix (hearth ls shows what there is)"}
}

// disagreement is a key for which an origin's listings and its HEADs name two versions, and how they differ.
type disagreement struct{ key, says string }

// differ checks whether listings and HEADs really differ where a probe says so. nil means that they do not, as
// far as can be told.
func differ(ctx context.Context, o namespace.Origin, can origin.Abilities) *disagreement {
	if can.Listed == nil || can.Listed.Version == can.Told.Version {
		return nil
	}
	says, err := namespace.Compare(ctx, o, can.Listed.Key, can.Listed, can.Told)
	if err != nil || says == "" {
		return nil // a reader that meets a difference has it checked again
	}
	return &disagreement{can.Listed.Key, says}
}

// first calls each with the first object of the link, if there is one.
func (l *link) first(ctx context.Context, each func(hearth.Object) error) error {
	return l.origin.List(ctx, hearth.Listing{Prefix: l.prefix, Limit: 1, Recursive: true}, each)
}

// close releases what the origin holds: its connections, or its directory.
func (l *link) close() {
	if o, ok := l.origin.(io.Closer); ok {
		_ = o.Close() // nobody asks it any more
	}
}

// list returns a copy of the present links.
func (ls *links) list() []*link {
	ls.mu.RLock()
	defer ls.mu.RUnlock()
	return append([]*link(nil), ls.all...)
}

// origin returns the origin of the link that an Object names. The bucket calls it.
func (ls *links) origin(name string) origin.Origin {
	if l := ls.named(name); l != nil {
		return l.origin
	}
	return nil
}

func (ls *links) named(name string) *link {
	ls.mu.RLock()
	defer ls.mu.RUnlock()
	for _, l := range ls.all {
		if l.name == name {
			return l
		}
	}
	return nil
}

// path returns the path in the tree of the link that an Object names. false means that there is no such link.
func (ls *links) path(name string) (string, bool) {
	l := ls.named(name)
	if l == nil {
		return "", false
	}
	return l.Path, true
}

// at returns the link that a path of the tree belongs to, and the rest of the path.
func (ls *links) at(p string) (found *link, rest string) {
	for _, l := range ls.list() {
		r, ok := belowPath(p, l.Path)
		if ok && (found == nil || len(l.Path) > len(found.Path)) {
			found, rest = l, strings.TrimPrefix(r, "/")
		}
	}
	return found, rest
}

// forMount returns the link whose rules hold for a mount of a path of the tree. A path above several links is a
// mount of all of them. These must have one freshness, since the kernel has one set of timeouts for a mount.
func (ls *links) forMount(p string) (*link, error) {
	if l, _ := ls.at(p); l != nil {
		return l, nil
	}
	var found *link
	for _, l := range ls.list() {
		switch _, ok := belowPath(l.Path, p); {
		case !ok:
		case found == nil:
			found = l
		case found.freshness != l.freshness:
			return nil, &admin.Error{Kind: admin.KindRefused, Message: p + " holds links of different freshness, " + found.Path + " and " + l.Path +
				": mount each by itself"}
		}
	}
	if found == nil {
		return nil, &admin.Error{Kind: admin.KindNotFound, Message: "no link leads to " + p + ": name an origin, such as s3://bucket/prefix, or a path below " + ls.paths()}
	}
	return found, nil
}

// writes returns a mount, of which link holds the rules, with what its links say of writing where it says nothing, and the origin of
// the one that says it.
func (ls *links) writes(m Mount, link *link) (Mount, string, error) {
	if _, lies := belowPath(m.Prefix, link.Path); lies {
		return writes(m, link.Link), link.Origin.URL, nil
	}
	return writesAbove(m, ls.below(m.Prefix, link))
}

// below returns the links that decide whether a mount above them is written: those of the configuration. Others come later, and do not
// change what a mount is; without any it is the first that has come.
func (ls *links) below(prefix string, first *link) []Link {
	all := ls.list()
	var configured []Link
	for _, l := range all[:min(ls.configured, len(all))] {
		configured = append(configured, l.Link)
	}
	if below := linksBelow(configured, prefix); len(below) > 0 {
		return below
	}
	return []Link{first.Link}
}

// written returns the names of the links that a writable mount changes: of those that it shows the ones that say so themselves, and the
// one that it lies in, or the only one. A link that is made at run time says nothing: only its own mounts change it.
func (ls *links) written(x *mounted) map[string]bool {
	all := map[string]bool{}
	for _, l := range ls.list() {
		if _, shows := belowPath(l.Path, x.Prefix); shows && l.Write == config.WriteThrough {
			all[l.name] = true
		}
	}
	if _, lies := belowPath(x.Prefix, x.link.Path); lies || len(ls.below(x.Prefix, x.link)) == 1 {
		all[x.link.name] = true
	}
	return all
}

// covering returns the link whose origin holds what o names, and o's path within it.
func (ls *links) covering(o Origin) (found *link, rest string) {
	for _, l := range ls.list() {
		if o.In(l.Origin) && (found == nil || len(l.Origin.URL) > len(found.Origin.URL)) {
			found, rest = l, o.Below(l.Origin)
		}
	}
	return found, rest
}

// home returns the path of the link in which a path is looked up that names no link. It is the first link of a
// node that was configured with at most one. So a path goes on meaning the same when other origins are mounted
// beside it. "/" means that there is no such link.
func (ls *links) home() string {
	if all := ls.list(); ls.configured < 2 && len(all) > 0 {
		return all[0].Path
	}
	return "/"
}

// within returns the path in the tree that p means. A p that names a link, or a directory above one, is
// returned as it is. Any other p is taken within home.
func (ls *links) within(p string) string {
	p = cleanPath(p)
	if l, _ := ls.at(p); l != nil {
		return p
	}
	for _, l := range ls.list() {
		if _, above := belowPath(l.Path, p); above {
			return p
		}
	}
	return cleanPath(ls.home() + "/" + p)
}

// short returns the shortest path that means p.
func (ls *links) short(p string) string {
	home := ls.home()
	if rest, ok := belowPath(p, home); home != "/" && ok && rest != "" && ls.within(rest) == p {
		return cleanPath(rest)
	}
	return p
}

// hint names the links of a node that has several. It returns text only if the path that was asked for named
// none of them, and so was taken for p, where nothing is.
func (ls *links) hint(asked, p string) string {
	asked = cleanPath(asked)
	if l, _ := ls.at(asked); l != nil || len(ls.list()) < 2 || ls.within(asked) != p {
		return ""
	}
	where := ""
	if home := ls.home(); home != "/" {
		where = " in " + home
	}
	return where + "; a path begins with one of this node's links: " + ls.paths()
}

// paths names the links in one line.
func (ls *links) paths() string {
	var named []string
	for _, l := range ls.list() {
		named = append(named, l.Path)
	}
	return cmp.Or(strings.Join(named, ", "), "a link, of which there is none yet")
}
