package namespace

import (
	"fmt"
	"path"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/hearthfs/hearth/namespace/record"
)

// Link binds the keys below a prefix of an origin to a path of the tree.
type Link struct {
	// Path in the tree, such as / or /imagenet. A longer path hides what a shorter one's origin has
	// there.
	Path string
	// Name of the link, in every Object.
	Name string
	// Prefix of the keys: "" or ending in "/".
	Prefix string
	// Origin is asked for listings and attributes; the objects that the Tree names are read from it.
	Origin Origin
	// Identity is the origin's, as in hearth.VersionOf. It keeps apart the names of two buckets that
	// one link led to at different times, and saves 16 bytes per name. "" is allowed.
	Identity string
	// Freshness of the names.
	Freshness Freshness
	// StaleIfError serves the last known names while the origin is unreachable. Strict links never do.
	StaleIfError bool
	// Differs is a key of which listings and HEADs of the origin name two versions, and DiffersBy says
	// in which way. "" means that none is known.
	Differs, DiffersBy string
}

// link is a Link in use.
type link struct {
	Link
	down    atomic.Pointer[error]    // why the origin is unreachable, or nil
	answers atomic.Int64             // of the origin, so far
	last    atomic.Pointer[question] // it answered, other than the one for Prefix itself

	differs   atomic.Pointer[differs] // if not nil, only HEADs tell versions; nil means that none is known
	comparing atomic.Bool             // a check of that is running

	mu      sync.Mutex // guards witness; a leaf
	witness *witness   // in flight, or nil
}

// has reports whether a key may belong to the link. The link may be nil.
func (l *link) has(key string) bool {
	return l != nil && strings.HasPrefix(key, l.Prefix) && record.Representable(key)
}

// split returns the directory of a key, and the key's segment in it.
func (l *link) split(key string) (place, string) {
	path := key[len(l.Prefix):]
	slash := strings.LastIndexByte(path, '/') + 1
	return place{link: l, path: path[:slash]}, path[slash:]
}

// linkTable is the links as the tree shows them. It is immutable.
type linkTable struct {
	links []*link
	root  place
	// below holds what links and the directories that lead to them put into a
	// directory, by its identity: mount name to what stands there.
	below map[[16]byte]map[string]place
}

// place identifies a directory: a link and the keys' path below its prefix, or,
// where no link covers it, the path in the tree.
type place struct {
	link *link
	path string // "", or ending in "/"
}

func (p place) hash() [16]byte {
	if p.link == nil {
		return record.DirectoryHash("", "", p.path)
	}
	return record.DirectoryHash(p.link.Name, p.link.Prefix+"\x00"+p.link.Identity, p.path)
}

// child is the place of a segment below p.
func (p place) child(segment string) place { return place{p.link, p.path + segment + "/"} }

// AddLink adds a link to the tree's root table.
func (t *Tree) AddLink(l Link) error {
	l.Path = path.Clean("/" + l.Path)
	t.linkMu.Lock()
	defer t.linkMu.Unlock()
	old := t.links.Load()
	for _, x := range old.links {
		if x.Path == l.Path || x.Name == l.Name {
			return fmt.Errorf("add the link %s: there is one at %s already", l.Path, x.Path)
		}
	}
	if l.Origin == nil || l.Prefix != "" && !strings.HasSuffix(l.Prefix, "/") {
		return fmt.Errorf("add the link %s: it needs an origin, and a prefix that ends in /", l.Path)
	}
	added := &link{Link: l}
	if l.Differs != "" {
		t.setDiffers(added, &differs{l.Differs, l.DiffersBy, 1})
	} else if err := t.differed(added); err != nil {
		return fmt.Errorf("add the link %s: %w", l.Path, err)
	}
	table := newLinkTable(append(append([]*link(nil), old.links...), added))
	t.links.Store(table)
	t.dirs.drop(rootID) // it may be another directory now
	return t.tellLink(table, l.Path)
}

// tellLink tells that the directory which shows the link has changed.
func (t *Tree) tellLink(table *linkTable, at string) error {
	dir := table.root
	changed := uint64(rootID)
	for _, name := range strings.Split(strings.Trim(at, "/"), "/") {
		next, ok := table.below[dir.hash()][name]
		if !ok {
			break
		}
		id, err := t.placeID(dir)
		if err != nil {
			return fmt.Errorf("add the link %s: %w", at, err)
		}
		dir, changed = next, id
	}
	t.news.Tell([]Change{{Dir: changed}})
	return nil
}

// newLinkTable lays out the links and the directories that lead to them.
func newLinkTable(links []*link) *linkTable {
	table := &linkTable{links: links, below: map[[16]byte]map[string]place{}}
	table.root = table.at("/")
	for _, l := range links {
		for at := l.Path; at != "/"; at = path.Dir(at) {
			parent := table.at(path.Dir(at)).hash()
			if table.below[parent] == nil {
				table.below[parent] = map[string]place{}
			}
			table.below[parent][path.Base(at)] = table.at(at)
		}
	}
	return table
}

// at is the place of a path of the tree: that of the longest link that leads to it.
func (table *linkTable) at(p string) place {
	var best *link
	for _, l := range table.links {
		if (p == l.Path || l.Path == "/" || strings.HasPrefix(p, l.Path+"/")) &&
			(best == nil || len(l.Path) > len(best.Path)) {
			best = l
		}
	}
	if best == nil {
		return place{path: strings.Trim(p, "/") + "/"}
	}
	at := place{link: best}
	for name := range strings.SplitSeq(strings.Trim(strings.TrimPrefix(p, best.Path), "/"), "/") {
		if name != "" {
			m, _ := record.ParseName(name)
			at = at.child(m.Segment)
		}
	}
	return at
}

// named is the link of a name, or nil.
func (table *linkTable) named(name string) *link {
	for _, l := range table.links {
		if l.Name == name {
			return l
		}
	}
	return nil
}

// believes reports whether the link serves last known names while its origin is unreachable.
func (l *link) believes() bool { return l.StaleIfError && l.Freshness.Mode != Strict }
