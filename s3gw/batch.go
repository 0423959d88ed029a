package s3gw

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/origin"
	"github.com/hearthfs/hearth/origin/sign"
	"github.com/hearthfs/hearth/s3gw/request"
)

const (
	// batchAhead objects of a batch are looked up ahead of the one that is sent, and as many blocks
	// are read. So up to 16 misses are in flight at a time.
	batchAhead = 16
	// batchShare is the part of the Pool for blocks that batches read ahead: an eighth. Batches
	// only try to take it, since slow clients may hold all of it. A block that finds no room is
	// read in its turn and copied, batchCopy bytes at a time.
	batchShare = 8
	batchCopy  = hearth.PieceSize
	// batchStall bounds how long a client may take for a piece of an answer, of batchPiece bytes.
	batchStall = time.Minute
	batchPiece = 256 << 10
)

// batch answers POST /BUCKET?hearth-batch, by which many small objects cost one request:
//
//	body    a line for each object: its key, or {"key": KEY, "range": "bytes=0-99"}; at most 10,000
//	answer  for each of them, in order, a line "STATUS LENGTH ETAG" and LENGTH bytes, or
//	        "STATUS 0 CODE" with S3's code of what is wrong with that one; at last "end COUNT"
//
// The formats are those of request.Batch and request.BatchWriter. Each key needs the right to read
// it, and gives what GetObject would. What the cache does not know is asked of the origin, in its
// turn. The answer has no length: it begins when the first object is there. An answer without the
// last line is incomplete. The connection is cut where an object breaks off.
func (x *exchange) batch() error {
	body, err := x.read(request.MaxBatchBytes)
	if err != nil {
		return err
	}
	items, err := request.Batch(bytes.NewReader(body))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(x.r.Context())
	b := &batch{exchange: x, ctx: ctx, found: make(chan *batched, batchAhead), parts: make(chan *batchPart, batchAhead)}
	defer b.work.Wait()
	defer b.drain()
	defer cancel()
	b.work.Go(func() { b.look(items) })
	b.work.Go(b.fetch)
	x.how = "cached"
	x.w.Header().Set("Content-Type", request.BatchType)
	x.w.WriteHeader(http.StatusOK)
	b.to = request.NewBatchWriter(x.w)
	if err := b.send(); err != nil {
		x.cause = err
		panic(http.ErrAbortHandler) // a broken answer must not look complete
	}
	return nil
}

// batch is one batch under way: a pipeline of three stages. look finds the objects of the keys,
// fetch begins to read their blocks in order, and send writes them.
type batch struct {
	*exchange
	ctx   context.Context
	to    *request.BatchWriter
	found chan *batched   // in order, closed at the end
	parts chan *batchPart // in order, closed at the end
	work  sync.WaitGroup
	copy  []byte // buffer for what was not read ahead; nil until it is needed
}

// batched is the object found for one key, or the reason why there is none.
type batched struct {
	request.Item
	done chan struct{} // closed when the fields below are set
	link *Link
	o    *hearth.Object // nil means: ask the origin
	off  int64          // of the requested bytes
	n    int64
	err  error
}

// batchPart is the part of an object in one block, or an object without bytes.
type batchPart struct {
	of    *batched
	first bool
	block hearth.Block
	off   int // in the block
	n     int // 0 means that there is no block
	lent  int64
	done  chan struct{} // closed when view or err is set; nil means not read ahead
	view  *hearth.View
	err   error
}

func (b *batch) look(items []request.Item) {
	defer close(b.found)
	for _, it := range items {
		o := &batched{Item: it, done: make(chan struct{})}
		select {
		case b.found <- o: // this bounds how many are under way
		case <-b.ctx.Done():
			return
		}
		b.work.Go(func() {
			defer close(o.done)
			o.err = b.lookUp(o)
		})
	}
}

// lookUp finds the object of an item, if the client may read it.
func (b *batch) lookUp(o *batched) (err error) {
	may := func(n request.Need) bool { return b.may(n) && b.shows(n) }
	if !(request.Need{Bucket: b.asks.Bucket, Key: o.Key}).Granted(may) {
		return request.New("AccessDenied", "Access Denied: %q.", o.Key)
	}
	if o.link = holding(b.links, o.Key); o.link == nil {
		return request.New("AccessDenied", "This endpoint does not show %q.", o.Key)
	}
	if alias, _ := request.Alias(o.Key); alias != o.Key {
		return nil // origins differ about such keys
	}
	if o.o, err = b.find(o.link, o.Key); err != nil || o.o == nil {
		return err
	}
	if !o.o.Cacheable() || o.o.Size < 0 {
		o.o = nil
		return nil
	}
	var ok bool
	if o.off, o.n, ok = span(o.Range, o.o.Size); !ok {
		return request.New("InvalidRange", "The requested range is not satisfiable")
	}
	return nil
}

// span returns where a range lies in an object; request.Batch has checked its form. false means
// nowhere.
func span(text string, size int64) (off, n int64, ok bool) {
	if text == "" {
		return 0, size, true
	}
	first, last, _ := strings.Cut(strings.TrimPrefix(text, "bytes="), "-")
	from, _ := strconv.ParseInt(first, 10, 64) // they are at most 18 digits, or none
	to, _ := strconv.ParseInt(last, 10, 64)
	switch {
	case first == "": // the suffix of to bytes
		n = min(to, size)
		return size - n, n, n > 0
	case last == "":
		to = size - 1
	}
	to = min(to, size-1)
	return from, to - from + 1, from < size
}

// fetch starts the read-ahead of the blocks, in order.
func (b *batch) fetch() {
	defer close(b.parts)
	for o := range b.found {
		<-o.done
		if o.err != nil || o.o == nil || o.n == 0 {
			if !b.put(&batchPart{of: o, first: true}) {
				return
			}
			continue
		}
		for at, end := o.off, o.off+o.n; at < end; {
			block := o.o.Block(at / hearth.BlockSize)
			off := int(at - block.Offset())
			p := &batchPart{of: o, first: at == o.off, block: block, off: off, n: int(min(end-at, int64(block.Len()-off)))}
			if b.begin(p); !b.put(p) {
				return
			}
			at += int64(p.n)
		}
	}
}

// begin starts to read a part, if there is memory for it.
func (b *batch) begin(p *batchPart) {
	lent := int64(p.block.Len()) // a View of a part may hold the whole block
	if !b.lending.TryAcquire(lent) {
		return
	}
	p.lent, p.done = lent, make(chan struct{})
	b.work.Go(func() {
		defer close(p.done)
		p.view, p.err = b.get(p, p.off, p.n)
	})
}

// get gets n bytes of a part's block.
func (b *batch) get(p *batchPart, off, n int) (*hearth.View, error) {
	v, err := b.o.Source.Get(b.ctx, p.block, off, n)
	if err == nil && v.Len() != n {
		v.Release()
		return nil, io.ErrUnexpectedEOF
	}
	return v, err
}

// put passes a part on to send, or releases it.
func (b *batch) put(p *batchPart) bool {
	select {
	case b.parts <- p:
		return true
	case <-b.ctx.Done():
		b.release(p)
		return false
	}
}

// release waits for a part and gives back what it holds.
func (b *batch) release(p *batchPart) {
	if p.done == nil {
		return
	}
	<-p.done
	if p.view != nil {
		p.view.Release()
		p.view = nil
	}
	b.lending.Release(p.lent)
	p.done = nil
}

// drain releases what was not sent, once the context has ended.
func (b *batch) drain() {
	for p := range b.parts {
		b.release(p)
	}
}

// send writes the objects in order.
func (b *batch) send() error {
	var skip *batched // the rest of this object is not sent
	for p := range b.parts {
		if p.of == skip {
			b.release(p)
			continue
		}
		broken, err := b.sendPart(p)
		b.release(p)
		if err != nil {
			return err
		}
		if broken {
			skip = p.of
			if err := b.again(p.of); err != nil {
				return err
			}
		}
	}
	if err := context.Cause(b.ctx); err != nil {
		return err
	}
	b.allow()
	if err := b.to.Close(); err != nil {
		return err
	}
	return http.NewResponseController(b.w).Flush()
}

// sendPart writes a part. broken means that nothing of its object was written, and that the cache
// cannot give it. An error ends the batch.
func (b *batch) sendPart(p *batchPart) (broken bool, err error) {
	o := p.of
	switch {
	case o.err != nil:
		return false, b.fault(o.err)
	case o.o == nil:
		return true, nil
	case p.n == 0:
		return false, b.line(o)
	case p.done == nil:
		return b.sendLate(p)
	}
	if <-p.done; p.err != nil {
		return b.failed(p, p.err)
	}
	if p.first {
		if err := b.line(o); err != nil {
			return false, err
		}
	}
	return false, b.write(p.view.Bytes())
}

// failed handles a part that cannot be read, and of which nothing was written.
func (b *batch) failed(p *batchPart, err error) (broken bool, _ error) {
	if p.first && b.ctx.Err() == nil {
		p.of.err = err
		return true, nil
	}
	return false, err
}

// sendLate is sendPart for what was not read ahead. It holds no View while it writes.
func (b *batch) sendLate(p *batchPart) (broken bool, err error) {
	for at := 0; at < p.n; at += len(b.copy) {
		off := p.off + at
		v, err := b.get(p, off, min(p.n-at, batchCopy-off%batchCopy))
		switch {
		case err != nil && at == 0:
			return b.failed(p, err)
		case err != nil:
			return false, err
		}
		b.copy = append(b.copy[:0], v.Bytes()...)
		if v.Release(); at == 0 && p.first {
			if err := b.line(p.of); err != nil {
				return false, err
			}
		}
		if err := b.write(b.copy); err != nil {
			return false, err
		}
	}
	return false, nil
}

// line writes the line in front of an object.
func (b *batch) line(o *batched) error {
	b.allow()
	status := http.StatusOK
	if o.Range != "" {
		status = http.StatusPartialContent
	}
	return b.to.Object(status, o.n, `"`+o.o.ETag+`"`)
}

func (b *batch) write(p []byte) error {
	for len(p) > 0 {
		b.allow()
		n, err := b.to.Write(p[:min(len(p), batchPiece)])
		if err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

// allow renews the client's deadline.
func (b *batch) allow() {
	_ = http.NewResponseController(b.w).SetWriteDeadline(time.Now().Add(batchStall)) // a test recorder has none
}

// fault writes the error of one object.
func (b *batch) fault(err error) error {
	if b.ctx.Err() != nil {
		return context.Cause(b.ctx)
	}
	b.allow()
	var f *request.Error
	switch {
	case errors.As(err, &f):
	case errors.Is(err, hearth.ErrArchived):
		f = request.Of(err, "InvalidObjectState", "The object is archived: restore it first.")
	case origin.Away(err):
		f = request.Of(err, "ServiceUnavailable", "The bucket cannot be reached now.")
	default:
		f = request.Of(err, "InternalError", "It could not be read.")
	}
	return b.to.Fault(f)
}

// again asks the origin for an object that the cache cannot give: the origin has the last word.
func (b *batch) again(o *batched) error {
	switch {
	case errors.Is(o.err, hearth.ErrArchived):
		return b.fault(o.err)
	case errors.Is(o.err, hearth.ErrStale):
		b.o.Tree.Forget(o.o)
	}
	r, err := http.NewRequestWithContext(b.ctx, http.MethodGet, "/", nil)
	if err != nil {
		return b.fault(err)
	}
	r.Header.Set("Accept-Encoding", "gzip") // as stored, like the cache's bytes
	if o.Range != "" {
		r.Header.Set("Range", o.Range)
	}
	answer, err := o.link.Origin.Forward(origin.ForClient(b.ctx, b.who.Access), r, b.asks.Bucket, sign.Encode(o.Key, true))
	if err != nil {
		return b.fault(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK && answer.StatusCode != http.StatusPartialContent || answer.ContentLength < 0 {
		return b.fault(said(answer))
	}
	b.allow()
	if err := b.to.Object(answer.StatusCode, answer.ContentLength, answer.Header.Get("Etag")); err != nil {
		return err
	}
	space := make([]byte, 64<<10)
	for left := answer.ContentLength; left > 0; {
		n, err := answer.Body.Read(space)
		if e := b.write(space[:n]); e != nil {
			return e
		}
		if left -= int64(n); err != nil && left > 0 {
			return err
		}
	}
	return nil
}

// said turns an origin's answer into an error.
func said(answer *http.Response) error {
	code := "InternalError"
	switch answer.StatusCode {
	case http.StatusNotFound:
		code = "NoSuchKey"
	case http.StatusForbidden:
		code = "AccessDenied"
	case http.StatusRequestedRangeNotSatisfiable:
		code = "InvalidRange"
	case http.StatusServiceUnavailable:
		code = "SlowDown"
	}
	return request.Of(errors.New("the origin answers "+answer.Status), code, "The origin does not give it.")
}
