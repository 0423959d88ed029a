package origin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/hearthfs/hearth"
	"golang.org/x/sync/errgroup"
)

// Walk lists every key below prefix with up to workers requests at once, calling
// each for one Object at a time, in no order.
//
// It begins as one flat listing. Whenever a worker is idle, a listing that has
// more pages asks for the groups at "/" behind its last key, keeps the first
// share of them and gives the others away as ranges of keys. So a wide bucket is
// split after one page, a narrow one costs no request more than a flat listing,
// and a bucket of a million directories with a file each is not listed
// directory by directory.
func Walk(ctx context.Context, o Origin, prefix string, workers int, each func(hearth.Object) error) error {
	w := &walk{origin: o, workers: max(1, workers), each: each, idle: max(1, workers)}
	w.group, w.ctx = errgroup.WithContext(ctx)
	w.start(span{prefix: prefix})
	if err := w.group.Wait(); err != nil {
		return fmt.Errorf("list below %q: %w", prefix, err)
	}
	return ctx.Err()
}

// span is a range of keys below a prefix: those after one and before another.
type span struct {
	prefix      string
	level       string // below prefix, where groups were found before
	from, until string // from <= key < until; "": no bound
}

type walk struct {
	origin  Origin
	workers int
	each    func(hearth.Object) error
	group   *errgroup.Group
	ctx     context.Context

	mu   sync.Mutex // guards idle and calls of each
	idle int
}

// errSplit ends a listing whose rest was given away.
var errSplit = errors.New("split")

// start runs a span in its own goroutine, whose place was counted before, or is
// the first.
func (w *walk) start(s span) {
	w.mu.Lock()
	w.idle--
	w.mu.Unlock()
	w.group.Go(func() error {
		err := w.list(s)
		w.mu.Lock()
		w.idle++
		w.mu.Unlock()
		return err
	})
}

// list delivers a span; its rest goes to others where it can be split.
func (w *walk) list(s span) error {
	for {
		var page []string // the keys of the page under way
		stubborn := false
		q := hearth.Listing{Prefix: s.prefix, After: before(s.from), Recursive: true}
		err := w.origin.List(w.ctx, q, func(o hearth.Object) error {
			if s.until != "" && o.Key >= s.until {
				return errSplit
			}
			if o.Key < s.from {
				return nil
			}
			if err := w.deliver(o); err != nil {
				return err
			}
			// At a page's end, where the next page is not asked for yet.
			if page = append(page, o.Key); len(page) < pageKeys {
				return nil
			}
			keys := page
			page = page[:0]
			if stubborn || !w.spare() {
				return nil
			}
			rest, err := w.split(s, keys)
			if err == nil && rest != nil {
				s = *rest
				return errAgain
			}
			stubborn = true
			return err
		})
		switch {
		case errors.Is(err, errAgain):
			continue
		case errors.Is(err, errSplit):
			return nil
		}
		return err
	}
}

// errAgain ends a listing that goes on as a smaller span.
var errAgain = errors.New("again")

func (w *walk) deliver(o hearth.Object) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.each(o)
}

func (w *walk) spare() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.idle > 0
}

// split asks for the groups behind last and gives all but the first share of
// them to idle workers, each about a page of keys at least. It returns the span
// that stays, or nil where there is nothing worth splitting.
func (w *walk) split(s span, page []string) (*span, error) {
	last := page[len(page)-1]
	groups, level, full, err := w.groups(s, last)
	if err != nil || len(groups) < 2 {
		return nil, err
	}
	worth := max(1, len(groups)*len(page)/distinct(page, level)/pageKeys)
	w.mu.Lock()
	idle := w.idle
	w.mu.Unlock()
	if idle < 1 {
		return nil, nil
	}
	// Behind a full page of groups there may be any number more: a last part of
	// its own, however few keys the groups that are known hold.
	var bounds []string
	if full {
		bounds = append(bounds, groups[len(groups)-1])
		groups, idle = groups[:len(groups)-1], idle-1
	}
	parts := min(idle+1, worth, len(groups))
	for i := parts - 1; i > 0; i-- {
		bounds = append(bounds, groups[i*len(groups)/parts])
	}
	until := s.until
	for _, bound := range bounds {
		w.start(span{prefix: s.prefix, level: level, from: bound, until: until})
		until = bound
	}
	if len(bounds) == 0 {
		return nil, nil
	}
	return &span{prefix: s.prefix, level: level, from: last + "\x00", until: until}, nil
}

// groups are the common prefixes behind last at the shallowest level that has
// two of them, that level's prefix, and whether the page that told them was full.
func (w *walk) groups(s span, last string) (found []string, level string, full bool, err error) {
	if level = s.level; !strings.HasPrefix(last, level) || level == "" {
		level = s.prefix
	}
	for {
		found = nil
		names := 0
		q := hearth.Listing{Prefix: level, After: last, Limit: pageKeys}
		err := w.origin.List(w.ctx, q, func(o hearth.Object) error {
			if s.until != "" && o.Key >= s.until {
				return errSplit
			}
			names++
			if o.IsPrefix() && o.Key > last && !strings.HasPrefix(last, o.Key) {
				found = append(found, o.Key)
			}
			return nil
		})
		if err != nil && !errors.Is(err, errSplit) {
			return nil, "", false, err
		}
		// With nothing behind it at this level, the rest lies in last's own group.
		next, ok := deeper(level, last)
		if len(found) >= 2 || !ok {
			return found, level, names == pageKeys, nil
		}
		level = next
	}
}

// distinct counts the groups that a page's keys lie in at a level.
func distinct(page []string, level string) int {
	count, group := 0, ""
	for _, key := range page {
		if next, _ := deeper(level, key); count == 0 || next != group {
			count, group = count+1, next
		}
	}
	return count
}

// deeper is the group below prefix that holds key; "" and false: none does.
func deeper(prefix, key string) (string, bool) {
	rest, ok := strings.CutPrefix(key, prefix)
	i := strings.IndexByte(rest, '/')
	if !ok || i < 0 {
		return "", false
	}
	return key[:len(prefix)+i+1], true
}

// before is a name that key follows closely, to be used as After where key itself
// is to be listed: "." is the byte before "/".
func before(key string) string {
	if key == "" {
		return ""
	}
	if group, ok := strings.CutSuffix(key, "/"); ok {
		return group + ".\U0010FFFF"
	}
	return key[:len(key)-1]
}
