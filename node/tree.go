package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/fuse"
	"github.com/hearthfs/hearth/namespace"
	"github.com/hearthfs/hearth/origin"
)

func compare(a, b string) int { return cmp.Compare(a, b) }

// strict reports whether each open asks the origin.
func (l *link) strict() bool { return l.freshness.Mode == namespace.Strict }

// explained puts what an origin said into one line with the cure; other errors
// stay what they are.
func explained(err error) error {
	var asked *origin.Error
	if err == nil || !errors.As(err, &asked) || errors.Is(err, fs.ErrNotExist) {
		return err
	}
	kind := KindFailed
	if errors.Is(err, context.DeadlineExceeded) {
		kind = KindTimeout
	}
	return &Error{Kind: kind, Message: origin.Explain(err)}
}

// config is the link's origin as package origin has it.
func (l *link) config(version string) origin.Config {
	o := l.Origin
	return origin.Config{URL: o.URL, Link: l.name, Endpoint: o.Endpoint, Region: o.Region, PathStyle: o.PathStyle,
		Anonymous: o.Anonymous, CAFile: o.CAFile, Identity: o.Identity, UserAgent: "hearth/" + version,
		Connections: o.Connections, Bandwidth: o.Bandwidth, Timeout: o.Timeout}
}

func (n *Node) openTree() error {
	o := namespace.Options{Events: n.treeEvents(), FirstID: firstID(n.dirs)}
	o.Events.Reserved = func(upTo uint64) {
		n.group.Go(func() error { return n.keepReserved(upTo) })
	}
	for _, l := range n.links.list() {
		o.Links = append(o.Links, l.inTree(n.tiers.ring.List))
	}
	if n.disk != nil {
		o.Dir, o.Next = namesDir(n.disk.NamesDirs()), n.disk.NamesDirs
	}
	var err error
	n.tree, err = namespace.Open(o)
	return err
}

// namesDir is where names are kept: where they moved to before the last restart,
// else in the first directory; "" if there is none.
func namesDir(dirs []string) string {
	for _, dir := range dirs {
		if namespace.Kept(dir) {
			return dir
		}
	}
	if len(dirs) == 0 {
		return ""
	}
	return dirs[0]
}

// inTree is the link as the namespace has it; list decorates its origin.
func (l *link) inTree(list func(namespace.Origin) namespace.Origin) namespace.Link {
	n := namespace.Link{Path: l.Path, Name: l.name, Prefix: l.prefix, Origin: list(l.origin),
		Freshness: l.freshness, StaleIfError: !l.FailStale}
	if named, ok := l.origin.(interface{ Identity() string }); ok {
		n.Identity = named.Identity()
	}
	return n
}

// reservedName is the file in each cache directory that outlives the namespace's
// database: a node id that a kernel may still hold is never given out again.
const reservedName = "node-ids"

// firstID is above every node id that was noted in a cache directory.
func firstID(dirs []directory) uint64 {
	first := uint64(0)
	for _, d := range dirs {
		text, err := os.ReadFile(filepath.Join(d.path, reservedName))
		if upTo, bad := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 63); err == nil && bad == nil {
			first = max(first, upTo+1)
		}
	}
	return first
}

// keepReserved notes in each cache directory how far node ids are in use. A
// directory that fails has told so elsewhere.
func (n *Node) keepReserved(upTo uint64) error {
	for _, d := range n.dirs {
		name := filepath.Join(d.path, reservedName)
		if firstID([]directory{d}) > upTo {
			continue // a later reservation was faster
		}
		if err := os.WriteFile(name+".new", []byte(strconv.FormatUint(upTo, 10)), 0o600); err == nil {
			err = os.Rename(name+".new", name)
			if err != nil {
				n.events.warn("node ids "+d.path, "node ids are not noted", "dir", d.path, "cause", err)
			}
		}
	}
	return nil
}

// addToTree makes a link that was added at run time part of the tree.
func (n *Node) addToTree(l *link) error { return n.tree.AddLink(l.inTree(n.tiers.ring.List)) }

// sampleKeys is how many keys one LIST gives, and what open=auto judges by.
const sampleKeys = 1000

// mostlyLarge looks at the first keys below a mount's root, once per link and
// prefix: what was found is kept in the cache directory.
func (n *Node) mostlyLarge(ctx context.Context, x *mounted) (bool, error) {
	_, rest := n.links.at(x.Prefix)
	prefix := x.link.prefix
	if rest != "" {
		prefix += rest + "/"
	}
	key := x.link.Origin.Endpoint + " " + strings.TrimRight(x.link.Origin.URL, "/") + " " + prefix
	if large, ok := n.judged.get(key); ok {
		return large, nil
	}
	var sizes []int64
	query := hearth.Listing{Prefix: prefix, Limit: sampleKeys, Recursive: true}
	err := x.link.origin.List(ctx, query, func(o hearth.Object) error {
		sizes = append(sizes, o.Size)
		return nil
	})
	if err != nil {
		return false, explained(err)
	}
	large := fuse.MostlyLarge(sizes)
	if err := n.judged.put(key, large); err != nil {
		n.events.warn("open modes", "open mode is not kept", "cause", err)
	}
	return large, nil
}

// judgements are what open=auto found per link and prefix, kept over a restart.
type judgements struct {
	mu    sync.Mutex // guards large and the file; held across the file's write, which is rare
	file  string     // "": memory only
	large map[string]bool
}

func openJudgements(dirs []directory) *judgements {
	j := &judgements{large: map[string]bool{}}
	if len(dirs) == 0 {
		return j
	}
	j.file = filepath.Join(dirs[0].path, "open-modes.json")
	if text, err := os.ReadFile(j.file); err == nil {
		_ = json.Unmarshal(text, &j.large) // a damaged file is judged anew
	}
	return j
}

func (j *judgements) get(key string) (large, ok bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	large, ok = j.large[key]
	return large, ok
}

func (j *judgements) put(key string, large bool) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.large[key] = large
	if j.file == "" {
		return nil
	}
	text, err := json.Marshal(j.large)
	if err != nil {
		return err
	}
	if err := os.WriteFile(j.file+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(j.file+".new", j.file)
}
