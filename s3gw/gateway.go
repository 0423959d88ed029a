// Package s3gw shows buckets as an S3 endpoint: reads come from the cache, and writes go to the
// origin.
//
// Package request reads a request: what it asks for, and how it is to be answered. sigv4
// authenticates it, and keys says whether its sender may do that. Then it is one of
//
//	cached    an object (GetObject, HeadObject) or a listing, by the tree's names; what is
//	          not surely right is passed
//	passed    to the origin by pass, byte for byte, signed with the origin's own key
//	written   passed as well; before the answer goes out the tree asks again for what was
//	          written, so that it is seen at once here, in mounts and on other nodes
//	refused   by a fault
//
// Bounds limit what all clients together may take (rooms.go, connections.go). Requests refused for
// a key, a signature or a right are counted, and logged at a limited rate (audit.go).
//
// Before a request is authenticated and its rights are known, nothing is asked of the origin, no
// body is read and no 100 Continue sent. The key by which it goes on is stronger than its own.
package s3gw

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/flight"
	"github.com/hearthfs/hearth/namespace"
	"github.com/hearthfs/hearth/origin"
	"github.com/hearthfs/hearth/s3gw/keys"
	"github.com/hearthfs/hearth/s3gw/object"
	"github.com/hearthfs/hearth/s3gw/pass"
	"github.com/hearthfs/hearth/s3gw/request"
	"github.com/hearthfs/hearth/s3gw/sigv4"
)

// Options are what a Gateway works with. All must be given unless it says otherwise.
type Options struct {
	// Links returns the links that it shows, as they are now.
	Links func() []Link
	// Other makes a link of a bucket that no link shows; nil means that other buckets are refused.
	Other func(ctx context.Context, bucket string) (Link, error)
	// Settle returns once mounts show what the tree has; nil means that there are no mounts.
	Settle func(ctx context.Context)
	// Begun is how many links there are at the start, including those that it cannot show. If there
	// are some and none can be shown, Open refuses. 0 means that links come later.
	Begun int
	// Tree has the names, Source the blocks.
	Tree   *namespace.Tree
	Source hearth.Getter
	// Open reads a large object, ahead of a sequential reader.
	Open func(o *hearth.Object, until int64) object.Bytes
	// Pool counts the memory of answers.
	Pool *hearth.Pool
	// Keys say who may do what.
	Keys *keys.Keys
	// Domains are names under which buckets are hosts; none means that buckets are in the path
	// alone.
	Domains []string
	// Configure passes on the requests that configure buckets, whatever their links say.
	Configure bool
	// CORS are the rules for pages in browsers. Without them, passed answers carry the bucket's own
	// rules, and no preflight is answered.
	CORS *CORSRules
	// MostRequests may be at work at once. A quarter of them may be on their way to the origin; the
	// rest is for answers from the cache. 0 means DefaultRequests.
	MostRequests int
	// Access gets a line for each request; may be nil.
	Access func(AccessLine)
	// Refused gets refusals for a key, a signature or a right, at most some each minute; may be
	// nil.
	Refused func(what string, attributes ...any)
	// Trouble gets each fault found here, as often as it occurs; may be nil.
	Trouble func(what string, attributes ...any)
	// Now is the clock by which signatures are judged; nil means time.Now.
	Now func() time.Time
}

// Gateway is an S3 endpoint, as an http.Handler.
type Gateway struct {
	o       Options
	verify  *sigv4.Verifier
	objects *object.Server
	passes  *pass.Pass
	ids     atomic.Uint64
	prefix  string                      // of the request ids
	started time.Time                   // also given as the creation time of buckets
	spare   sync.Pool                   // of *[]byte, for documents
	owners  sync.Map                    // listing.Owner of links' objects, by the link's name
	work    work                        // under way
	foreign sync.Map                    // links not shown that were reported already, by name
	others  sync.Map                    // links made because a client named their bucket, by name
	fine    sync.Map                    // links whose listings have fractions of seconds, by name
	made    *flight.Twins[string, Link] // by bucket
	lending *semaphore.Weighted         // bytes of blocks lent to batches
	rooms   rooms
	audit   audit
	// patience bounds the wait for clients' bodies, leave the wait for bodies that are not read
	// here.
	patience, leave time.Duration
	figures         figures
}

// New returns a Gateway that has answered nothing yet.
func New(o Options) *Gateway {
	g := &Gateway{o: o, passes: pass.New(pass.Options{}), verify: sigv4.New(sigv4.Options{Secret: o.Keys.Secret, Now: o.Now}), started: time.Now(), patience: bodyPatience, leave: leavePatience}
	g.work.writes = o.Tree.Writes(namespace.WritesOptions{Links: g.linksTo, Changed: g.changed, Settle: o.Settle})
	nothing := func(Link) {}
	g.lending = semaphore.NewWeighted(max(hearth.BlockSize, o.Pool.Stats().Budget/batchShare))
	g.rooms, g.audit = newRooms(o.MostRequests, o.Pool.Stats().Budget), audit{tell: o.Refused, now: time.Now}
	g.made = flight.NewTwins[string](nothing, nothing)
	var first [4]byte
	_, _ = rand.Read(first[:]) // never fails
	g.prefix = hex.EncodeToString(first[:])
	g.objects = object.New(object.Options{Source: o.Source, Open: o.Open, Head: g.head, Pool: o.Pool, Away: origin.Away,
		HeaderBytes: headerBytes(o.Pool.Stats().Budget), Fresh: g.fresh})
	return g
}

// headerBytes is the budget for the headers of objects. Of 256 MiB of memory and less it is 8 MiB,
// some 30,000 headers, but at most an eighth.
func headerBytes(memory int64) int64 { return max(memory/32, min(8<<20, memory/8)) }

// Close ends the requests under way, whose clients are gone, and releases what it holds. Nobody may
// call it any more. Names that an ended write may have changed are doubted.
func (g *Gateway) Close() {
	g.work.writes.Close()
	g.work.Wait()
	g.objects.Close()
}

// ServeHTTP answers a request.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := &exchange{Gateway: g, w: &answer{ResponseWriter: w}, r: r, began: time.Now(),
		id: g.prefix + strconv.FormatUint(g.ids.Add(1)+1<<32, 16)}
	w.Header().Set("X-Amz-Request-Id", x.id) // in a passed answer the origin's own id replaces it
	if g.o.CORS != nil && r.Method != http.MethodOptions {
		x.w.before = func(h http.Header) { g.o.CORS.Allow(h, r) }
	}
	g.work.Add(1)
	defer g.work.Done()
	g.figures.underway.Add(1)
	defer x.end()
	if err := x.serve(); err != nil {
		x.refuse(err)
	}
}

// work is what is under way in a Gateway.
type work struct {
	sync.WaitGroup                   // requests
	writes         *namespace.Writes // some go on after their clients have gone
}

// exchange is a request and its answer.
type exchange struct {
	*Gateway
	w     *answer
	r     *http.Request
	id    string
	began time.Time
	asks  *request.Request
	who   *sigv4.Signed
	links []Link // of the bucket
	body  []byte // read here, to be sent on; nil means that it was not read
	how   string // what became of the request, for the figures
	cause error
	place *places // where it holds one place; nil means nowhere
	gets  *places // where it holds one more, beside place
	holds int64   // bytes reserved in rooms.bodies
}

// serve answers. An error is a *request.Error, or an origin's; then nothing was written.
func (x *exchange) serve() error {
	var err error
	if x.asks, err = request.Parse(x.r, request.Options{Hosts: x.o.Domains, CORS: x.o.CORS != nil}); err != nil {
		return err
	}
	if x.asks.Operation == "Preflight" { // it is never signed, and reads nothing
		return x.preflight()
	}
	if x.who, err = x.verify.Verify(x.r); err != nil {
		return err
	}
	if err := x.allowed(); err != nil {
		return err
	}
	if err := x.begin(); err != nil {
		return err
	}
	if x.asks.Bucket == "" {
		return x.service()
	}
	if x.asks.Operation == "CreateBucket" {
		return x.create()
	}
	if x.links, err = x.shown(x.r.Context(), x.asks.Bucket); err != nil {
		return err
	}
	switch x.asks.How {
	case request.Cached:
		return x.cached()
	case request.Pass:
		return x.pass(nil)
	case request.Write:
		return x.write()
	case request.Configure:
		if !x.o.Configure && !x.configurable(x.links[0]) {
			return x.configures()
		}
		return x.write()
	}
	return x.batch()
}

func (x *exchange) configures() error {
	return request.New("AccessDenied", "%s configures a bucket: this endpoint passes that on only where s3.configure is true, or links[].configure of its link", x.asks.Operation)
}

// preflight answers a browser's CORS preflight.
func (x *exchange) preflight() error {
	if x.o.CORS == nil {
		return request.New("AccessDenied", "CORSResponse: CORS is not enabled at this endpoint: s3.cors says for which pages it is.")
	}
	x.how = "cached"
	x.unread() // browsers send none
	return x.o.CORS.Preflight(x.w, x.r)
}

// allowed checks the request against its sender's rights.
func (x *exchange) allowed() error {
	access := x.who.Access
	if access == "" && x.asks.Overrides {
		return request.New("InvalidRequest", "Request specific response headers cannot be used for anonymous GET requests.")
	}
	if access == "" && !x.asks.Plain { // an anonymous client has no buckets, for example
		return request.New("AccessDenied", "Access Denied. %s needs a key: without one this endpoint answers reads of objects and listings.", x.asks.Operation)
	}
	if x.asks.Operation == "ListBuckets" {
		return nil // the answer lists only what the sender may see
	}
	if x.asks.Operation == "CreateBucket" && access != "" && len(x.bucket(x.asks.Bucket)) > 0 && x.o.Keys.Sees(access, x.asks.Bucket) {
		return nil // one who may see the bucket is told that it exists
	}
	hidden := false
	if x.asks.Allowed(func(n request.Need) bool {
		if !x.may(n) {
			return false
		}
		hidden = !x.shows(n)
		return !hidden
	}) {
		return nil
	}
	if hidden {
		return request.New("AccessDenied", "This endpoint shows only a part of the bucket, and not what %s is to read or change.", x.asks.Operation)
	}
	return request.New("AccessDenied", "Access Denied.")
}

// may checks one needed right against those of the sender.
func (x *exchange) may(n request.Need) bool {
	if n.Some {
		return x.o.Keys.Sees(x.who.Access, n.Bucket)
	}
	return x.o.Keys.May(x.who.Access, n.Write, n.Bucket, n.Key)
}

// shows reports whether the target of a right lies in a link. A key may be stronger than what is
// shown, and the origin's own key is.
func (x *exchange) shows(n request.Need) bool {
	links := x.bucket(n.Bucket)
	switch {
	case n.Bucket == "": // the service, or a key whose dots lead out of its bucket
		return x.asks.Bucket == "" || x.o.Other != nil
	case len(links) == 0 && n.Bucket != x.asks.Bucket: // a copy's source
		return x.o.Other != nil && !request.Reserved(n.Bucket)
	case n.Some || len(links) == 0: // a later step says that there is no such bucket
		return true
	case holding(links, n.Key) != nil:
		return true
	}
	above := x.asks.How == request.Cached && (x.asks.Operation == "ListObjects" || x.asks.Operation == "ListObjectsV2")
	return above && slices.ContainsFunc(links, func(l Link) bool { return strings.HasPrefix(l.Prefix, n.Key) })
}

// refuse answers with an error.
func (x *exchange) refuse(err error) {
	x.cause = err
	x.unread()
	var f *request.Error
	switch {
	case errors.As(err, &f):
	case x.r.Context().Err() != nil:
		f = request.Of(err, "RequestTimeout", "the client has gone")
	case origin.Away(err):
		f = request.Of(err, "ServiceUnavailable", "The bucket cannot be reached now. Please try again.")
		x.w.Header().Set("Retry-After", "1")
	default:
		f = request.Of(err, "InternalError", "We encountered an internal error. Please try again.")
	}
	if f.Code == "SlowDown" {
		x.w.Header().Set("Retry-After", "1")
	}
	x.how, x.cause = "refused", f
	if x.w.status != 0 { // the status is out: too late for an error
		panic(http.ErrAbortHandler)
	}
	f.Write(x.w, x.r, x.id)
}

// unread bounds the wait for a body that is not read here: net/http reads some of it to keep the
// connection.
func (x *exchange) unread() {
	if x.r.ContentLength != 0 {
		_ = http.NewResponseController(x.w).SetReadDeadline(time.Now().Add(x.leave)) // a test's recorder has none
	}
}

// fresh returns how long a link's names are believed.
func (g *Gateway) fresh(link string) time.Duration {
	for _, l := range g.o.Links() {
		if l.Name == link {
			return l.Fresh
		}
	}
	return 0
}

// head asks the origin for the headers of a version.
func (g *Gateway) head(ctx context.Context, o *hearth.Object) (http.Header, error) {
	for _, l := range g.o.Links() {
		if l.Name == o.Link {
			return headOf(ctx, &l, o)
		}
	}
	return nil, fmt.Errorf("headers of %s: the link %q is not there any more", o.Key, o.Link)
}
