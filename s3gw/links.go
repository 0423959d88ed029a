package s3gw

import (
	"cmp"
	"context"
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
	// Origin is where the bucket is.
	Origin Origin
}

// bucket are the links of a bucket, by their prefixes.
func (g *Gateway) bucket(name string) (links []Link) {
	for _, l := range g.o.Links() {
		if l.Bucket == name {
			links = append(links, l)
		}
	}
	slices.SortFunc(links, func(a, b Link) int { return cmp.Compare(a.Prefix, b.Prefix) })
	return slices.CompactFunc(links, func(a, b Link) bool { return a.Prefix == b.Prefix })
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
