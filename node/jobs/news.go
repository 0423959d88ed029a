package jobs

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hearthfs/hearth/namespace"
	"github.com/hearthfs/hearth/namespace/record"
	"github.com/hearthfs/hearth/warmup"
)

const (
	// A change is followed up after a second without another change, and after ten seconds at most. A
	// listing that finds many changes brings them page by page.
	quietFor, waitMost = time.Second, 10 * time.Second
	// mostChanged bounds the names that are loaded one by one. If there are more, all that their pins hold is
	// looked at.
	mostChanged = 64
	// mostNews bounds the changes that wait to be looked at. If there are more, all pins are looked at.
	mostNews = 1024
	// beginning stands for a job that has no id yet.
	beginning = "beginning"
	// retryAfter is the back-off after an attempt that failed early.
	retryAfter = time.Minute
)

// news is what has changed below pins.
type news struct {
	heard []namespace.Change // not looked at yet
	all   bool               // heard overflowed: any pin may have changed
	gen   int64              // the generation of the database at the last look
	lost  bool               // the database is new, and what is pinned is not listed in it yet

	changed     map[string]bool // paths to load
	first, last time.Time       // when the first and the last of these changed
	job         string          // the warm-up that follows the changes; "" means none
	ended       []warmup.Record // jobs that ended while job was beginning
	loading     []string        // the paths that job loads
	retry       time.Time       // no attempt before this time
}

// changed is called for every change of the tree, and must not block.
func (k *Keeper) changed(c namespace.Change) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case len(k.held) == 0:
		return
	case len(k.news.heard) == mostNews:
		k.news.all = true
	default:
		k.news.heard = append(k.news.heard, c)
	}
	k.wakeUp()
}

// touch notes that what a path means is to be loaded.
func (k *Keeper) touch(path string) {
	k.mu.Lock()
	k.news.touch(path)
	k.mu.Unlock()
	k.wakeUp()
}

func (n *news) touch(path string) {
	if n.changed == nil {
		n.changed = map[string]bool{}
	}
	if n.last = time.Now(); len(n.changed) == 0 {
		n.first = n.last
	}
	n.changed[path] = true
}

// follow looks at the news, and begins to load what changed once it is time. It returns when to look again.
func (k *Keeper) follow() time.Duration {
	gen := k.parts.Tree.Records().Generation()
	k.mu.Lock()
	k.news.lost = k.news.lost || gen != k.news.gen && len(k.held) > 0
	heard, all := k.news.heard, k.news.all || gen != k.news.gen
	k.news.heard, k.news.all, k.news.gen = nil, false, gen
	k.mu.Unlock()
	touched := map[string]bool{}
	pinned := k.paths()
	for _, c := range heard {
		path, ok := k.where(c)
		for _, pin := range pinned {
			switch {
			case ok && covers(pin, path):
				touched[path] = true
			case ok && covers(path, pin):
				touched[pin] = true
			}
		}
	}
	if all {
		for _, pin := range pinned {
			touched[pin] = true
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	n := &k.news
	for path := range touched {
		n.touch(path)
	}
	if len(n.changed) == 0 || n.job != "" {
		return lookEvery
	}
	due := n.last.Add(quietFor)
	if most := n.first.Add(waitMost); due.After(most) {
		due = most
	}
	if due.Before(n.retry) {
		due = n.retry
	}
	if left := time.Until(due); left > 0 {
		return left
	}
	n.loading = slices.Sorted(maps.Keys(n.changed))
	n.changed, n.job, n.ended = nil, beginning, nil
	k.mu.Unlock()
	k.load()
	k.mu.Lock()
	return lookEvery
}

// load begins a warm-up of what changed. If all of it is gone, it only rebuilds the sets of the pins above.
func (k *Keeper) load() {
	var targets []string
	pinned := k.paths()
	for _, path := range k.news.loading { // sorted: a directory before what lies below it
		if slices.ContainsFunc(targets, func(t string) bool { return covers(t, path) }) {
			continue
		}
		_, err := k.parts.Tree.Resolve(namespace.Quiet(k.ctx), path)
		if err == nil || slices.Contains(pinned, path) {
			targets = append(targets, path)
		}
	}
	if len(targets) > mostChanged {
		targets = slices.DeleteFunc(pinned, func(pin string) bool {
			return !slices.ContainsFunc(targets, func(t string) bool { return covers(pin, t) })
		})
	}
	if len(targets) == 0 {
		for _, pin := range pinned {
			if slices.ContainsFunc(k.news.loading, func(t string) bool { return covers(pin, t) }) {
				k.rebuild(k.ctx, pin)
			}
		}
		k.began("", nil)
		return
	}
	id, err := k.parts.Load(targets)
	if err != nil {
		k.parts.Log("what changed below a pin is not loaded yet", err)
	}
	k.began(id, err)
}

// began notes the job that follows the changes, which may have ended by now.
func (k *Keeper) began(id string, err error) {
	k.mu.Lock()
	n := &k.news
	if n.job = id; err != nil {
		n.again()
	}
	n.lost = n.lost && len(k.held) > 0
	ended := n.ended
	n.ended = nil
	k.mu.Unlock()
	for i := range ended {
		k.loaded(&ended[i])
	}
}

// again schedules another attempt for what was not loaded.
func (n *news) again() {
	for _, path := range n.loading {
		n.touch(path)
	}
	n.retry = time.Now().Add(retryAfter)
}

// follows reports whether a job is the one that follows the changes.
func (k *Keeper) follows(job string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.news.job == job || k.news.job == beginning
}

// loaded notes that a job has ended. It may be the one that follows the changes.
func (k *Keeper) loaded(r *warmup.Record) {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := &k.news
	if n.job == beginning {
		n.ended = append(n.ended, *r)
	}
	if n.job != r.ID {
		return
	}
	if n.job = ""; r.State == warmup.Failed {
		n.again()
	}
	k.wakeUp()
}

// where returns the path in the tree of what changed.
func (k *Keeper) where(c namespace.Change) (path string, ok bool) {
	path = "/"
	if c.Dir != rootID {
		v, held, err := k.parts.Tree.Records().Get(nil, record.IDKey(nil, record.KindReverse, c.Dir))
		if err != nil || !held {
			return "", false
		}
		r, err := record.ParseReverse(v)
		if err != nil || !r.Dir {
			return "", false
		}
		if r.Link != "" {
			if path, ok = k.parts.Link(r.Link[1:]); !ok {
				return "", false
			}
		}
		path = Path(path, r.Path)
	}
	if c.Name != "" {
		path = strings.TrimSuffix(path, "/") + "/" + c.Name
	}
	return path, true
}

// rootID is the node id of the root, whose path needs no record.
const rootID = 1

// Path returns the path in the tree of the directory whose keys begin with key, below a link.
func Path(link, key string) string {
	for segment := range strings.SplitSeq(strings.TrimSuffix(key, "/"), "/") {
		if key != "" {
			link = strings.TrimSuffix(link, "/") + "/" + record.MountName(segment+"/", false)
		}
	}
	return link
}
