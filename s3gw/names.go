package s3gw

import (
	"context"
	"errors"
	"io/fs"
	"strings"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/s3gw/listing"
)

// names is a bucket as listings see it: what its links show, and the directories above them.
type names struct {
	*Gateway
	links []Link // of one bucket
	told  *bool  // set once any name was listed
}

// Dir is listing.Names'.
func (n names) Dir(ctx context.Context, prefix, after string, each func(listing.Entry) bool) error {
	for i := range n.links {
		if l := &n.links[i]; strings.HasPrefix(prefix, l.Prefix) {
			return n.inLink(ctx, l, prefix, after, each)
		}
	}
	return n.above(prefix, after, each)
}

// none reports whether the tree has no name in the bucket at all.
func (n names) none(ctx context.Context) bool {
	some := false
	err := n.Dir(ctx, n.links[0].Prefix, "", func(listing.Entry) bool { some = true; return false })
	return !some && (err == nil || errors.Is(err, fs.ErrNotExist))
}

// Asks is listing.Names'.
func (n names) Asks(prefix string, ahead bool) bool {
	for i := range n.links {
		if l := &n.links[i]; strings.HasPrefix(prefix, l.Prefix) {
			return n.o.Tree.Asks(l.Name, prefix, ahead)
		}
	}
	return false
}

// inLink lists what the tree has directly below a prefix.
func (n names) inLink(ctx context.Context, l *Link, prefix, after string, each func(listing.Entry) bool) error {
	whole := false
	hidden, err := n.o.Tree.Keys(ctx, l.Name, prefix, after, func(o *hearth.Object) bool {
		e := listing.Entry{Name: o.Key[len(prefix):], Object: o}
		*n.told = true
		switch {
		case o.Size == hearth.PrefixSize:
			e = listing.Entry{Name: strings.TrimSuffix(e.Name, "/"), Dir: true}
		case o.ModTime.Nanosecond() != 0 || o.Exact:
			n.fine.Store(l.Name, true)
		default:
			whole = true
		}
		return each(e)
	})
	_, coarse := n.fine.Load(l.Name)
	if o, ok := l.Origin.(interface{ Fractions() bool }); ok && whole {
		coarse = coarse || o.Fractions() // this gateway may not have listed one yet
	}
	coarse = coarse && whole // listings have fractions of seconds, and some of these names were not listed yet
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fs.ErrNotExist
	case err != nil && ctx.Err() == nil:
		return errors.Join(listing.ErrUnsure, err)
	case err == nil && (hidden > 0 || coarse): // their places in the order are unknown
		return listing.ErrUnsure
	}
	return err
}

// above lists the directories above the links' prefixes that lead to them.
func (n names) above(prefix, after string, each func(listing.Entry) bool) error {
	last, found := "", false
	for i := range n.links { // by prefix
		rest, below := strings.CutPrefix(n.links[i].Prefix, prefix)
		name, _, _ := strings.Cut(rest, "/")
		if !below || found && name == last {
			continue
		}
		last, found = name, true
		if name+"/" > after && !each(listing.Entry{Name: name, Dir: true}) {
			return nil
		}
	}
	if !found {
		return fs.ErrNotExist
	}
	return nil
}
