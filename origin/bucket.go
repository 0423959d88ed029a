package origin

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/hearthfs/hearth"
)

// Bucket makes origins a hearth.Source, the last one behind all caches.
type Bucket struct {
	pool    *hearth.Pool
	resolve func(link string) Origin
}

var _ hearth.Source = (*Bucket)(nil)

// NewBucket reads from the origin that resolve gives for an Object's link, into Views of the pool.
// resolve returns nil for an unknown link.
func NewBucket(pool *hearth.Pool, resolve func(link string) Origin) *Bucket {
	return &Bucket{pool: pool, resolve: resolve}
}

// opener opens ranges of one object over a connection that it holds meanwhile.
type opener struct {
	origin Origin
	s3     *S3 // nil: the origin has no bound on connections
	slot   slot
}

// connect waits for a connection, before anything waits for memory.
func (b *Bucket) connect(ctx context.Context, o *hearth.Object) (opener, error) {
	origin := b.resolve(o.Link)
	if origin == nil {
		return opener{}, fmt.Errorf("get %s: no link %q", o.Key, o.Link)
	}
	s3, ok := origin.(*S3)
	if !ok {
		return opener{origin: origin}, nil
	}
	c, err := s3.slot(ctx)
	return opener{origin: origin, s3: s3, slot: c}, err
}

// another is a further connection, if one is free.
func (p opener) another() (opener, bool) {
	if p.s3 == nil {
		return p, true
	}
	c, ok := p.s3.trySlot()
	p.slot = c
	return p, ok
}

func (p opener) open(ctx context.Context, o *hearth.Object, off, n int64) (io.ReadCloser, error) {
	if p.s3 != nil {
		return p.s3.read(ctx, o, off, n)
	}
	return p.origin.Read(ctx, o, off, n)
}

// Get reads a range of a block with one request.
func (b *Bucket) Get(ctx context.Context, block hearth.Block, off, n int) (*hearth.View, error) {
	p, err := b.connect(ctx, block.Object)
	if err != nil {
		return nil, err
	}
	defer p.slot.release()
	v, err := b.pool.Alloc(ctx, n)
	if err != nil {
		return nil, err
	}
	body, err := p.open(ctx, block.Object, block.Offset()+int64(off), int64(n))
	if err == nil {
		err = fill(v, body)
		body.Close()
	}
	if err != nil {
		v.Release()
		return nil, err
	}
	return v, nil
}

// Has is hearth.Source's: a bucket is on no node.
func (b *Bucket) Has(hearth.ID) bool { return false }

// FromPeer is hearth.Source's: a bucket is no node.
func (b *Bucket) FromPeer(hearth.Block) bool { return false }

func fill(v *hearth.View, body io.Reader) error {
	_, err := io.ReadFull(body, v.Bytes())
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return fmt.Errorf("read a body: %w", io.ErrUnexpectedEOF)
	}
	return err
}

// partBlocks is the least size of a part of a large range, in blocks: 4 MiB take longer to come than
// their first byte does, on any link worth using.
const partBlocks = 4

// maxParts bounds the connections that one reader's range uses.
const maxParts = 4

// GetMany streams whole blocks with one ranged request, or with parallel ones where the run is long and
// connections and memory are free.
func (b *Bucket) GetMany(ctx context.Context, first hearth.Block, n int, each func(hearth.Block, *hearth.View, error) bool) {
	p, err := b.connect(ctx, first.Object)
	if err != nil {
		each(first, nil, err)
		return
	}
	defer p.slot.release()
	openers := []opener{p}
	for len(openers) < min(maxParts, n/partBlocks) {
		more, ok := p.another()
		if !ok {
			break
		}
		defer more.slot.release()
		openers = append(openers, more)
	}
	r := run{bucket: b, object: first.Object, next: first.Index, end: first.Index + int64(n), each: each}
	if len(openers) > 1 && !r.parallel(ctx, openers) {
		return
	}
	r.stream(ctx, p)
}

// run is what is left of a GetMany.
type run struct {
	bucket    *Bucket
	object    *hearth.Object
	next, end int64
	each      func(hearth.Block, *hearth.View, error) bool
}

// deliver hands over the next block. It returns false when the reader has had enough, or after an
// error.
func (r *run) deliver(v *hearth.View, err error) bool {
	block := r.object.Block(r.next)
	r.next++
	return r.each(block, v, err) && err == nil
}

// stream reads what is left with one request. It waits for memory only while it holds no View.
func (r *run) stream(ctx context.Context, p opener) {
	if r.next >= r.end {
		return
	}
	first, last := r.object.Block(r.next), r.object.Block(r.end-1)
	body, err := p.open(ctx, r.object, first.Offset(), last.Offset()+int64(last.Len())-first.Offset())
	if err != nil {
		r.deliver(nil, err)
		return
	}
	defer body.Close()
	for r.next < r.end {
		v, err := r.bucket.pool.Alloc(ctx, r.object.Block(r.next).Len())
		if err == nil {
			if err = fill(v, body); err != nil {
				v.Release()
				v = nil
			}
		}
		if !r.deliver(v, err) {
			return
		}
	}
}
