package s3gw

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Origin takes those requests to a link that the cache does not answer. *origin.S3 is one.
type Origin interface {
	// Forward sends a client's request to a bucket of the origin, signed with the origin's own key.
	// escapedKey is as the client wrote it.
	Forward(ctx context.Context, r *http.Request, bucket, escapedKey string) (*http.Response, error)
	// Account identifies the name space of bucket names. Origins of two accounts may have two
	// buckets of one name, and neither account can copy from the other.
	Account() string
}

// Link is a bucket in the tree, or the part of it below a prefix.
type Link struct {
	// Name is the link's name in every Object.
	Name string
	// Bucket and Prefix are the origin's; Prefix is "" or ends in "/".
	Bucket, Prefix string
	// Region is the bucket's; "" means us-east-1.
	Region string
	// Fresh is how long names are believed; 0 means never, a negative value for ever.
	Fresh time.Duration
	// Configure passes on requests that configure the bucket, even without Options.Configure.
	Configure bool
	// Origin is where the bucket is.
	Origin Origin
}

// bucket returns the links of a bucket that reads use, ordered by prefix. Of two with one prefix it
// is the first.
func (g *Gateway) bucket(name string) []Link {
	return slices.CompactFunc(g.all(name), func(a, b Link) bool { return a.Prefix == b.Prefix })
}

// all returns the links of a bucket, ordered by prefix. All belong to one account, that of the
// first link of this name. The same name in another account is another bucket, and clients would
// read and write a mixture of both. That it is not shown is reported once.
func (g *Gateway) all(name string) (links []Link) {
	for _, l := range g.o.Links() {
		switch {
		case l.Bucket != name:
		case len(links) > 0 && l.Origin.Account() != links[0].Origin.Account():
			if _, told := g.foreign.LoadOrStore(l.Name, true); !told && g.o.Trouble != nil {
				g.o.Trouble("link that S3 clients are not shown", "cause", clash(links[0], l))
			}
		default:
			links = append(links, l)
		}
	}
	slices.SortStableFunc(links, func(a, b Link) int { return cmp.Compare(a.Prefix, b.Prefix) })
	return links
}

// clashing returns an error for links that cannot both be shown, or nil.
func clashing(links []Link) error {
	first := map[string]Link{}
	for _, l := range links {
		if f, ok := first[l.Bucket]; !ok {
			first[l.Bucket] = l
		} else if f.Origin.Account() != l.Origin.Account() {
			return clash(f, l)
		}
	}
	return nil
}

func clash(a, b Link) error {
	return fmt.Errorf("s3.listen: the links %q and %q lead to buckets of one name, %s, at two origins (%s, %s), and S3 clients tell buckets by their names: give both links the same endpoint if it is one bucket, or show one of them at a node of its own",
		a.Name, b.Name, a.Bucket, a.Origin.Account(), b.Origin.Account())
}

// configurable reports whether clients may configure a bucket through a link that shows all of it.
func (g *Gateway) configurable(one Link) bool {
	return slices.ContainsFunc(g.o.Links(), func(l Link) bool {
		return l.Configure && l.Prefix == "" && l.Bucket == one.Bucket && l.Origin.Account() == one.Origin.Account()
	})
}

// Configurable says why clients cannot configure a bucket through a link to this URL; nil means
// they can.
func Configurable(url, listen string) error {
	bucket, ok := strings.CutPrefix(url, "s3://")
	switch {
	case listen == "":
		return errors.New("configure: this node answers no S3 clients: say where (s3.listen), or take this setting away")
	case !ok || strings.Contains(strings.TrimRight(bucket, "/"), "/"):
		return fmt.Errorf("configure: only a link to a whole bucket, s3://BUCKET, can let clients configure it, and %s is none", url)
	}
	return nil
}

// reaches reports whether a link's origin can read the source bucket of a copy.
func (g *Gateway) reaches(l *Link, bucket string) bool {
	from := g.bucket(bucket)
	if len(from) == 0 {
		from = g.o.Links() // a copy's source without a link is in the first link's account
	}
	return len(from) > 0 && from[0].Origin.Account() == l.Origin.Account()
}

// holding returns the link that contains a key, the one with the longest prefix; nil means none.
func holding(links []Link, key string) (found *Link) {
	for i := range links {
		if strings.HasPrefix(key, links[i].Prefix) {
			found = &links[i] // longer ones come later
		}
	}
	return found
}
