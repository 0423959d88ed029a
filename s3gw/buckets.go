package s3gw

import (
	"cmp"
	"context"
	"encoding/xml"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hearthfs/hearth/namespace"
	"github.com/hearthfs/hearth/origin"
	"github.com/hearthfs/hearth/s3gw/listing"
	"github.com/hearthfs/hearth/s3gw/request"
)

// shown returns the links of a bucket. Where all buckets are shown, it makes a missing link, by one
// request for all callers that come meanwhile (singleflight).
func (g *Gateway) shown(ctx context.Context, bucket string) ([]Link, error) {
	if links := g.bucket(bucket); len(links) > 0 {
		return links, nil
	}
	if g.o.Other == nil {
		return nil, request.New("NoSuchBucket", "The specified bucket does not exist: this endpoint shows the buckets of its links.")
	}
	if request.Reserved(bucket) {
		return nil, noBucket(nil)
	}
	l, _, err := g.made.Do(ctx, bucket, func(ctx context.Context) (Link, error) {
		if links := g.bucket(bucket); len(links) > 0 { // made by the flight before
			return links[0], nil
		}
		l, err := g.o.Other(ctx, bucket)
		if err == nil {
			g.others.Store(l.Name, true)
		}
		return l, err
	})
	var asked *origin.Error
	switch {
	case err == nil:
		return []Link{l}, nil
	case errors.As(err, &asked) && (asked.Code == "NoSuchBucket" || asked.Status == http.StatusNotFound):
		return nil, noBucket(err)
	}
	return nil, err
}

func noBucket(cause error) error {
	return request.Of(cause, "NoSuchBucket", "The specified bucket does not exist")
}

// create answers CreateBucket. Some clients send it before any upload. A bucket that is shown
// exists, unless clients may have removed it: then the origin is asked.
func (x *exchange) create() error {
	if x.links = x.all(x.asks.Bucket); len(x.links) > 0 {
		switch {
		case x.removable(x.links) && x.asks.Allowed(func(n request.Need) bool { return x.may(n) && x.shows(n) }):
			return x.write()
		case x.other(x.links[0]) && !x.removable(x.links):
			return x.configures()
		}
		return request.New("BucketAlreadyOwnedByYou", "Your previous request to create the named bucket succeeded and you already own it.")
	}
	all := x.o.Links()
	switch {
	case !x.o.Configure:
		return x.configures()
	case x.o.Other == nil || len(all) == 0:
		return request.New("AccessDenied", "This endpoint shows the buckets of its links, and no new one: s3.all_buckets is not true.")
	case request.Reserved(x.asks.Bucket):
		return request.New("InvalidBucketName", "The specified bucket is not valid.")
	}
	x.links = []Link{{Bucket: x.asks.Bucket, Origin: all[0].Origin}} // no link yet, so there are no names to forget
	return x.passWrite(namespace.Write{})
}

// removable reports whether clients may make and remove the bucket of links: all of it is shown.
func (x *exchange) removable(links []Link) bool {
	return slices.ContainsFunc(links, func(l Link) bool { return l.Prefix == "" && (x.o.Configure || x.configurable(l)) })
}

// mayBeGone reports whether the bucket of links may have been removed: by clients, or because it is
// the account's. Then the origin is asked whether it exists.
func (x *exchange) mayBeGone(links []Link) bool {
	return x.removable(links) || len(links) > 0 && x.other(links[0])
}

// other reports whether a link was made because a client named its bucket. The bucket may be gone
// by now; the account knows.
func (x *exchange) other(l Link) bool {
	_, made := x.others.Load(l.Name)
	return made
}

const (
	// bucketsWithin bounds the wait for the account's buckets.
	bucketsWithin = 30 * time.Second
	// mostBuckets bounds the bytes read of the answer: Amazon's 10,000 buckets fit many times.
	mostBuckets = 8 << 20
	// bucketsAtOnce is how many buckets are asked for at a time.
	bucketsAtOnce = 8
)

// service answers ListBuckets with the buckets in which the key may do anything: those of the links
// or, where all buckets are shown, those of the account.
func (x *exchange) service() error {
	x.unread()
	const ownerID = "hearth"
	q, err := listing.ParseBuckets(x.r.URL.RawQuery)
	if err != nil {
		return err
	}
	var all []listing.Bucket
	if x.o.Other != nil {
		if err := x.enter(x.rooms.ways); err != nil {
			return err
		}
		if all, err = x.account(q.Region); err != nil {
			return err
		}
	}
	all, asked := x.standing(all)
	asked = asked || x.o.Other != nil
	slices.SortStableFunc(all, func(a, b listing.Bucket) int { return strings.Compare(a.Name, b.Name) })
	all = slices.CompactFunc(all, func(a, b listing.Bucket) bool { return a.Name == b.Name })
	all = slices.DeleteFunc(all, func(b listing.Bucket) bool { return !x.o.Keys.Sees(x.who.Access, b.Name) })
	err = x.document(q.Append(nil, listing.Owner{ID: ownerID, Name: ownerID}, all))
	if asked {
		x.how = "passed"
	}
	return err
}

// standing adds the links' buckets to those that the account lists. It asks the origin about
// buckets that clients may have removed.
func (x *exchange) standing(all []listing.Bucket) (_ []listing.Bucket, asked bool) {
	var links []Link // one of each bucket
	for _, l := range x.o.Links() {
		told := slices.ContainsFunc(all, func(b listing.Bucket) bool { return b.Name == l.Bucket })
		if !told && !x.other(l) && x.o.Keys.Sees(x.who.Access, l.Bucket) && !slices.ContainsFunc(links, func(b Link) bool { return b.Bucket == l.Bucket }) {
			links = append(links, l)
		}
	}
	gone := make([]bool, len(links))
	var work sync.WaitGroup
	room := make(chan struct{}, bucketsAtOnce)
	for i, l := range links {
		if !x.mayBeGone(x.bucket(l.Bucket)) {
			continue
		}
		asked = true
		room <- struct{}{}
		work.Go(func() {
			gone[i] = x.isGone(l)
			<-room
		})
	}
	work.Wait()
	for i, l := range links {
		if !gone[i] {
			all = append(all, listing.Bucket{Name: l.Bucket, Created: x.started, Region: region(l)})
		}
	}
	return all, asked
}

// isGone asks the origin whether a link's bucket is gone. Without an answer it returns false.
func (x *exchange) isGone(l Link) bool {
	ctx, cancel := context.WithTimeout(x.r.Context(), bucketsWithin)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodHead, "/", nil)
	if err != nil {
		return false
	}
	answer, err := l.Origin.Forward(ctx, r, l.Bucket, "")
	if err != nil {
		return false
	}
	_ = answer.Body.Close()
	return answer.StatusCode == http.StatusNotFound
}

// account returns the buckets of the first link's account, or those in one region. It leaves out
// reserved names, and names that XML or a path could not carry.
func (x *exchange) account(in string) ([]listing.Bucket, error) {
	links := x.o.Links()
	if len(links) == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(x.r.Context(), bucketsWithin)
	defer cancel()
	query := ""
	if in != "" {
		query = "?" + url.Values{"bucket-region": {in}}.Encode()
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "/"+query, nil)
	if err != nil {
		return nil, err
	}
	answer, err := links[0].Origin.Forward(ctx, r, "", "")
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, request.Of(errors.New("the origin answers ListBuckets with "+answer.Status), "AccessDenied", "The origin does not tell the account's buckets.")
	}
	var said struct {
		Buckets struct {
			Bucket []struct {
				Name         string
				CreationDate time.Time
				BucketRegion string
			}
		}
	}
	if err := xml.NewDecoder(io.LimitReader(answer.Body, mostBuckets)).Decode(&said); err != nil {
		return nil, err
	}
	var all []listing.Bucket
	for _, b := range said.Buckets.Bucket {
		if !request.Reserved(b.Name) {
			all = append(all, listing.Bucket{Name: b.Name, Created: b.CreationDate, Region: cmp.Or(b.BucketRegion, region(links[0]))})
		}
	}
	return all, nil
}
