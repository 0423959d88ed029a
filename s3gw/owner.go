package s3gw

import (
	"context"
	"encoding/xml"
	"io"
	"net/http"
	"time"

	"github.com/hearthfs/hearth/origin/sign"
	"github.com/hearthfs/hearth/s3gw/listing"
)

const (
	// ownerWithin bounds the wait for the owner of a bucket's objects.
	ownerWithin = 5 * time.Second
	// mostOwner bounds the bytes read of that answer: a page of one key.
	mostOwner = 64 << 10
)

// owner returns the owner of the bucket's objects, for listings that tell it. The origin is asked
// once.
func (x *exchange) owner(q listing.Query) listing.Owner {
	if q.Version != 1 && !q.Owner {
		return listing.Owner{}
	}
	l := &x.links[0]
	if known, ok := x.owners.Load(l.Name); ok {
		return known.(listing.Owner)
	}
	o, err := askOwner(x.r.Context(), l)
	if err != nil || o.ID == "" { // an empty bucket has no owner to tell: ask again next time
		return listing.Owner{}
	}
	x.owners.Store(l.Name, o)
	return o
}

func askOwner(ctx context.Context, l *Link) (o listing.Owner, err error) {
	ctx, cancel := context.WithTimeout(ctx, ownerWithin)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "/?max-keys=1&prefix="+sign.Encode(l.Prefix, true), nil)
	if err != nil {
		return o, err
	}
	answer, err := l.Origin.Forward(ctx, r, l.Bucket, "")
	if err != nil {
		return o, err
	}
	defer answer.Body.Close()
	var page struct {
		Contents []struct {
			Owner struct {
				ID          string
				DisplayName string
			}
		}
	}
	if err := xml.NewDecoder(io.LimitReader(answer.Body, mostOwner)).Decode(&page); err != nil {
		return o, err
	}
	if len(page.Contents) > 0 {
		o.ID, o.Name = page.Contents[0].Owner.ID, page.Contents[0].Owner.DisplayName
	}
	return o, nil
}
