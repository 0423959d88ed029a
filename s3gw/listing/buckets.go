package listing

import (
	"encoding/base64"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/hearthfs/hearth/s3gw/request"
)

// mostBuckets is the maximum of max-buckets ("ListBuckets" in Amazon's S3 API reference). Without
// that parameter all are listed.
const mostBuckets = 10_000

// BucketQuery holds the parameters of a ListBuckets request.
type BucketQuery struct {
	// Prefix of the names; "" means any.
	Prefix string
	// Region of the buckets; "" means any.
	Region string
	// Max buckets on a page; 0 means all.
	Max int
	// after is the name behind which the page begins, token the continuation token with that name.
	after, token string
	// given means that there was any parameter: then each bucket's region is listed.
	given bool
}

// ParseBuckets reads the parameters of a ListBuckets; others have no meaning there. The error is a
// *request.Error.
func ParseBuckets(rawQuery string) (q BucketQuery, err error) {
	values, err := url.ParseQuery(rawQuery)
	if err != nil {
		return q, request.Of(err, "InvalidURI", "Couldn't parse the specified URI.")
	}
	for _, name := range []string{"prefix", "bucket-region", "max-buckets", "continuation-token"} {
		q.given = q.given || values.Has(name)
	}
	q.Prefix, q.Region, q.token = values.Get("prefix"), values.Get("bucket-region"), values.Get("continuation-token")
	if values.Has("max-buckets") {
		if q.Max, err = strconv.Atoi(values.Get("max-buckets")); err != nil || q.Max < 1 || q.Max > mostBuckets {
			return q, request.New("InvalidArgument", "Argument max-buckets must be an integer between 1 and %d", mostBuckets)
		}
	}
	after, err := base64.RawURLEncoding.DecodeString(q.token)
	if err != nil {
		return q, request.New("InvalidArgument", "The continuation token provided is incorrect")
	}
	q.after = string(after)
	return q, nil
}

// Append appends the answer to a ListBuckets. The buckets are ordered by name.
func (q BucketQuery) Append(buf []byte, owner Owner, buckets []Bucket) []byte {
	buf = append(buf, open...)
	buf = append(buf, `<ListAllMyBucketsResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">`...)
	buf = appendOwner(buf, owner)
	buf = append(buf, "<Buckets>"...)
	buckets = slices.DeleteFunc(slices.Clone(buckets), func(b Bucket) bool {
		return !strings.HasPrefix(b.Name, q.Prefix) || b.Name <= q.after || q.Region != "" && b.Region != q.Region
	})
	next := ""
	if q.Max > 0 && len(buckets) > q.Max {
		buckets = buckets[:q.Max]
		next = base64.RawURLEncoding.EncodeToString([]byte(buckets[q.Max-1].Name))
	}
	for _, b := range buckets {
		buf = append(buf, "<Bucket>"...)
		buf = element(buf, "Name", b.Name)
		if !b.Created.IsZero() {
			buf = append(buf, "<CreationDate>"...)
			buf = appendTime(buf, b.Created)
			buf = append(buf, "</CreationDate>"...)
		}
		if q.given {
			buf = element(buf, "BucketRegion", b.Region)
		}
		buf = append(buf, "</Bucket>"...)
	}
	buf = append(buf, "</Buckets>"...)
	buf = element(element(buf, "ContinuationToken", next), "Prefix", q.Prefix)
	return append(buf, "</ListAllMyBucketsResult>"...)
}

// element appends an element with text that XML can carry; for "" it appends nothing.
func element(buf []byte, name, text string) []byte {
	if text == "" {
		return buf
	}
	buf = append(append(append(buf, '<'), name...), '>')
	buf, _ = appendText(buf, text)
	return append(append(append(buf, "</"...), name...), '>')
}
