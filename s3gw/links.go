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

// Origin is where a link's requests go that are not answered from the cache, as *origin.S3
// is.
type Origin interface {
	// Forward sends a client's request to a bucket of the origin, signed by the origin's own
	// key; escapedKey is as the client wrote it.
	Forward(ctx context.Context, r *http.Request, bucket, escapedKey string) (*http.Response, error)
	// Account says where a bucket's name means what it means here: origins of two accounts may
	// have two buckets of one name, and none can copy from the other.
	Account() string
}

// Link is a bucket, or what lies below a prefix of it, as the tree has it.
type Link struct {
	// Name is the link's in every Object.
	Name string
	// Bucket and Prefix are the origin's; Prefix is "" or ends in "/".
	Bucket, Prefix string
	// Region of the bucket; "": us-east-1.
	Region string
	// Fresh is how long names are believed; 0: not at all, negative: for ever.
	Fresh time.Duration
	// Configure passes on what configures the bucket, though Options.Configure may not.
	Configure bool
	// Origin is where the bucket is.
	Origin Origin
}

// bucket are the links of a bucket that are read, by their prefixes: of two with one prefix the
// first.
func (g *Gateway) bucket(name string) []Link {
	return slices.CompactFunc(g.all(name), func(a, b Link) bool { return a.Prefix == b.Prefix })
}

// all are the links of a bucket, by their prefixes: those of the account in which the first
// one of that name is. Another account's is another bucket, of which clients would read and
// write a mixture; that it is not shown is told once.
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

// clashing finds links that cannot both be shown; nil: there are none.
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

// configurable reports whether a link of a bucket's whole lets clients configure it.
func (g *Gateway) configurable(one Link) bool {
	return slices.ContainsFunc(g.o.Links(), func(l Link) bool {
		return l.Configure && l.Prefix == "" && l.Bucket == one.Bucket && l.Origin.Account() == one.Origin.Account()
	})
}

// Configurable reports why a link to this URL cannot let clients configure its bucket; nil: it can.
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

// reaches reports whether the origin of a link can read a bucket that a copy names.
func (g *Gateway) reaches(l *Link, bucket string) bool {
	from := g.bucket(bucket)
	if len(from) == 0 {
		from = g.o.Links() // which is made of the first one's account
	}
	return len(from) > 0 && from[0].Origin.Account() == l.Origin.Account()
}

// holding is the link that a key lies in, that with the longest prefix; nil: none shows it.
func holding(links []Link, key string) (found *Link) {
	for i := range links {
		if strings.HasPrefix(key, links[i].Prefix) {
			found = &links[i] // longer ones come later
		}
	}
	return found
}
