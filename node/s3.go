package node

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache"
	"github.com/hearthfs/hearth/namespace"
	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/node/status"
	"github.com/hearthfs/hearth/origin"
	"github.com/hearthfs/hearth/s3gw"
)

// openS3 starts the S3 endpoint, if the configuration has one.
func (n *Node) openS3(ctx context.Context) (err error) {
	if n.config.S3.Listen == "" {
		return nil
	}
	o := s3gw.Options{Links: n.buckets, Begun: len(n.links.list()), Settle: n.settle, Tree: n.tree.Tree, Source: n.tiers.Reads, Pool: n.pool,
		Open: func(x *hearth.Object, until int64) s3gw.Bytes {
			return cache.NewReader(n.tiers.Reads, x, cache.ReaderOptions{Until: until})
		},
		Refused: n.events.Warn, Trouble: func(what string, attributes ...any) { n.events.Trouble("s3 "+what, what, attributes...) }}
	if n.config.S3.AllBuckets {
		o.Other = n.otherBucket
	}
	if n.s3, err = s3gw.Open(ctx, n.config.S3, o); err != nil {
		return &admin.Error{Kind: admin.KindRefused, Message: err.Error(), Cause: err}
	}
	n.group.Go(func() error { return n.s3.Wait(n.ctx) })
	return nil
}

// settle waits until the kernels of all mounts know of a change.
func (n *Node) settle(ctx context.Context) {
	for _, x := range n.mounts.served() {
		x.server.Settle(ctx)
	}
}

// buckets returns what S3 clients are shown: the links to S3 origins.
func (n *Node) buckets() (all []s3gw.Link) {
	for _, l := range n.links.list() {
		o, ok := l.origin.(*origin.S3)
		if !ok {
			continue
		}
		x := s3gw.Link{Name: l.name, Bucket: o.Bucket(), Prefix: l.prefix, Region: o.Region(), Fresh: l.freshness.Bound, Configure: l.Configure, Origin: o}
		if l.freshness.Mode == namespace.Immutable {
			x.Fresh = -1
		}
		all = append(all, x)
	}
	return all
}

// otherBucket makes a link to a bucket of the first S3 link's account.
func (n *Node) otherBucket(ctx context.Context, bucket string) (s3gw.Link, error) {
	for _, l := range n.links.list() {
		if !strings.HasPrefix(l.Origin.URL, "s3:") {
			continue
		}
		o := l.Origin
		o.URL, o.Identity = "s3://"+bucket, ""
		made, _, err := n.linkTo(ctx, admin.MountRequest{Mount: Mount{Freshness: l.Freshness}, Origin: &o, FailStale: l.FailStale, NoSeed: l.NoSeed, Staging: l.Staging})
		if err != nil {
			return s3gw.Link{}, err
		}
		all := n.buckets()
		if i := slices.IndexFunc(all, func(x s3gw.Link) bool { return x.Name == made.name }); i >= 0 {
			return all[i], nil
		}
	}
	return s3gw.Link{}, fmt.Errorf("bucket %s: no link leads to S3", bucket)
}

// s3Line returns the endpoint's part of the status. It is nil if there is no endpoint.
func (n *Node) s3Line() *status.S3Line {
	if n.s3 == nil {
		return nil
	}
	at, x := n.s3.Summary(), n.s3.Stats()
	l := &status.S3Line{Listen: at.Listen, TLS: at.TLS, Buckets: at.Buckets, Keys: at.Keys, Anonymous: at.Anonymous, UnderWay: x.UnderWay, Bounds: at.Bounds, Faults: x.Faults, Headers: x.Headers}
	if at.Ill != nil {
		l.Ill = at.Ill.Error()
	}
	for k, sum := range x.Kinds {
		l.Requests = append(l.Requests, status.S3Requests{Operation: k.Operation, Code: k.Code, How: k.How, Requests: sum.Requests, Bytes: sum.Bytes, Seconds: sum.Seconds})
	}
	slices.SortFunc(l.Requests, func(a, b status.S3Requests) int {
		return cmp.Or(cmp.Compare(a.Operation, b.Operation), cmp.Compare(a.Code, b.Code), cmp.Compare(a.How, b.How))
	})
	return l
}
