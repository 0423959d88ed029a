package draft

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/hearthfs/hearth"
)

const (
	// maxParts is how many parts an object has at most, in S3.
	maxParts = 10_000
	// firstWake is how many bytes a draft has before its parts' size is asked for: two of the smallest parts of S3.
	firstWake = 10 << 20
	// growth is how much larger than now a draft is expected to become, when an upload is begun ahead: it fixes the
	// size of the parts. What outgrows it is begun anew, and so at most a third is sent twice.
	growth = 4
	// tries is how often a request without an answer is sent.
	tries = 3
)

// upload is an upload in parts. It is read and changed as Draft says.
type upload struct {
	uploadRef
	token    string
	partSize int64
	copies   bool                // parts may be copies of the base
	parts    map[int64]*sentPart // what the origin has, by number less 1
	wrote    []uint64            // the generation of the last write since Begin, by part
	outgrown bool                // more than maxParts were written
	known    bool                // it was begun here, or the origin's parts were compared since the restart
	tried    []byte              // the Sum of a Complete without an answer: no other may be sent
	unsaved  int                 // parts that the record does not tell of
}

type sentPart struct {
	hearth.Part
	sum []byte
	gen uint64
}

// mark notes that [from, to) was written.
func (u *upload) mark(from, to int64, gen uint64) {
	first, end := from/u.partSize, (to-1)/u.partSize+1
	if end > maxParts {
		u.outgrown, end = true, maxParts
	}
	for int64(len(u.wrote)) < end {
		u.wrote = append(u.wrote, 0)
	}
	for i := first; i < end; i++ {
		u.wrote[i] = gen
	}
}

// fresh tells whether the origin's part has the bytes that the draft has now.
func (u *upload) fresh(i, size int64) bool {
	p := u.parts[i]
	return p != nil && p.Size == min(u.partSize, size-i*u.partSize) && (i >= int64(len(u.wrote)) || p.gen >= u.wrote[i])
}

// staleLocked are the parts that are to be sent, and their bytes.
func (d *Draft) staleLocked(u *upload) (stale []int64, bytes int64) {
	for i := int64(0); i*u.partSize < d.size; i++ {
		if !u.fresh(i, d.size) {
			stale = append(stale, i)
			bytes += min(u.partSize, d.size-i*u.partSize)
		}
	}
	return stale, bytes
}

// taken are bytes of one moment, in memory.
type taken struct {
	index int64
	off   int64
	data  []byte // nil: all of it is a copy of the base's
	size  int64
	holes []extent // that are the base's
	base  *hearth.Object
	sum   []byte
	gen   uint64
	again bool // it was sent more than once: a connection that gave no answer may read data still
}

// takeLocked takes n bytes at off. copies says that what has none of the draft's own may be copied from the base. The bucket has not
// got that of a conflict any more.
func (d *Draft) takeLocked(index, off, n int64, copies bool) (*taken, error) {
	t, copied := d.whichLocked(index, off, n, copies)
	if copied {
		return t, nil
	}
	t.data = make([]byte, n)
	if n > 0 {
		if got, err := d.readLocked(t.data, off); int64(got) < n {
			return nil, fmt.Errorf("read the draft's data: %w", err)
		}
	}
	t.hash()
	return t, nil
}

// takeStep is how much of a part is read while its writer waits.
const takeStep = 1 << 20

// take takes n bytes at off, not all at one moment: what is written meanwhile makes the part one that is to be sent again. So a
// writer does not wait for a whole part. nil means that the file was cut.
func (d *Draft) take(index, off, n int64, copies bool) (*taken, error) {
	d.mu.RLock()
	t, copied := d.whichLocked(index, off, n, copies)
	d.mu.RUnlock()
	if copied {
		return t, nil
	}
	t.data = d.s.buffer(n)
	for at := int64(0); at < n; at += takeStep {
		p := t.data[at:min(at+takeStep, n)]
		d.mu.RLock()
		got, err := d.readLocked(p, off+at)
		cut := d.size < off+n
		d.mu.RUnlock()
		switch {
		case cut:
			return nil, nil
		case got < len(p):
			return nil, fmt.Errorf("read the draft's data: %w", err)
		}
	}
	t.hash()
	return t, nil
}

// whichLocked tells of a part what it is now, without its bytes. copied says that it has none of the draft's own.
func (d *Draft) whichLocked(index, off, n int64, copies bool) (t *taken, copied bool) {
	t = &taken{index: index, off: off, size: n, gen: d.gen, holes: d.ext.holes(extent{off, off + n}), base: d.under}
	copied = copies && d.base != nil && len(t.holes) == 1 && t.holes[0] == (extent{off, off + n})
	if copied {
		h := newHasher()
		h.skip(t.holes[0])
		t.sum = h.sum()
	}
	return t, copied
}

func (t *taken) hash() {
	h := newHasher()
	h.add(t.data, t.off, t.holes)
	t.sum = h.sum()
}

// buffer is memory for a part, which a part before may have had: fresh memory costs the kernel more than the bytes.
func (s *Store) buffer(n int64) []byte {
	if b, ok := s.buffers.Get().(*[]byte); ok && int64(cap(*b)) >= n {
		return (*b)[:n]
	}
	return make([]byte, n)
}

// fill reads what of a part is the base's, if it is not copied.
func (d *Draft) fill(ctx context.Context, t *taken) error {
	if t.data == nil || len(t.holes) == 0 {
		return nil
	}
	d.silent.Add(1)
	defer d.silent.Add(-1)
	return d.s.fill(ctx, t.base, t.data, t.off, t.holes)
}

func combine(sums [][]byte) []byte {
	sum := xxh3.Hash128(bytes.Join(sums, nil)).Bytes()
	return sum[:]
}

// same tells whether the file still has the bytes of an attempt, and the generation at which it had.
func (d *Draft) same(a *attempt) (gen uint64, same bool) {
	d.mu.RLock()
	gen = d.gen
	same = d.size == a.Size
	d.mu.RUnlock()
	var sums [][]byte
	for off := int64(0); same && (off < a.Size || off == 0); off += a.PartSize {
		sum, at, err := d.sum(off, min(a.PartSize, a.Size-off))
		same = err == nil && at == gen
		sums = append(sums, sum)
	}
	return gen, same && bytes.Equal(combine(sums), a.Sum)
}

// sum is the hash of a range, and the generation that it had all the while.
func (d *Draft) sum(off, n int64) (sum []byte, gen uint64, err error) {
	d.mu.RLock()
	gen = d.gen
	d.mu.RUnlock()
	h, buf := newHasher(), make([]byte, min(n, 1<<20))
	for n > 0 {
		d.mu.RLock()
		if d.gen != gen {
			d.mu.RUnlock()
			return nil, 0, errors.New("it was written meanwhile")
		}
		got, err := d.readLocked(buf[:min(n, int64(len(buf)))], off)
		holes := d.ext.holes(extent{off, off + int64(got)})
		d.mu.RUnlock()
		if got == 0 {
			return nil, 0, fmt.Errorf("read the draft's data: %w", err)
		}
		h.add(buf[:got], off, holes)
		off, n = off+int64(got), n-int64(got)
	}
	return h.sum(), gen, nil
}

// spec is an upload of the draft to a key; "" means its own.
func (d *Draft) spec(key, token string, size int64) *hearth.Upload {
	d.mu.RLock()
	defer d.mu.RUnlock()
	u := &hearth.Upload{Key: cmp.Or(key, d.name.Key), Size: size, Draft: token}
	switch {
	case d.anew:
	case d.base != nil && d.base.Cacheable():
		u.IfMatch = d.base.ETag
	case d.base == nil:
		u.IfNone = d.attr.Exclusive || d.attr.New
	}
	u.Copies = d.up != nil && d.up.token == token && d.up.copies
	return u
}

func (d *Draft) token() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.seq++
	return d.random + "-" + strconv.FormatUint(d.seq, 10)
}

// begun returns the upload to a key that goes on, or begins one for a draft of that size.
func (d *Draft) begun(ctx context.Context, up hearth.Uploader, key string, size int64) (*upload, error) {
	d.mu.RLock()
	u := d.up
	other := u != nil && (u.outgrown || (d.size-1)/u.partSize >= maxParts || string(u.Key) != key)
	d.mu.RUnlock()
	if u != nil && !other && !u.known {
		if err := d.resume(ctx, up); err != nil {
			return nil, err
		}
		u = d.up
	}
	if other {
		if err := d.giveUp(ctx, up); err != nil {
			return nil, err
		}
		u = nil
	}
	if u != nil {
		return u, nil
	}
	for tries := 1; ; tries++ {
		u, err := d.beginOne(ctx, up, key, size)
		if err == nil || tries == beginTries || !errors.Is(err, hearth.ErrUnanswered) {
			return u, err
		}
	}
}

// beginTries is how often an upload is begun that the origin has not answered. Those before are aborted.
const beginTries = 3

func (d *Draft) beginOne(ctx context.Context, up hearth.Uploader, key string, size int64) (*upload, error) {
	if err := d.lost(ctx, up); ctx.Err() != nil {
		return nil, context.Cause(ctx)
	} else if err != nil { // it may not be allowed
		d.s.log("draft %s: %v: a rule of the bucket for incomplete uploads removes what was broken off", key, err)
	} else if err := d.aborts(ctx, up); err != nil {
		d.s.log("draft %s: %v: it is tried again", key, err)
	}
	u := &upload{uploadRef: uploadRef{Key: []byte(key)}, token: d.token(), partSize: up.PartSize(size), parts: map[int64]*sentPart{}, known: true}
	d.mu.Lock()
	d.begins = append(slices.Clone(d.begins), begin{[]byte(key), d.s.o.Now()})
	u.copies = d.base != nil && d.ext != nil && d.ext.over > 0
	d.mu.Unlock()
	if err := d.save(false); err != nil {
		return nil, err
	}
	spec := d.spec(key, u.token, size)
	spec.Copies = u.copies
	id, err := up.Begin(ctx, spec)
	d.mu.Lock()
	if u.ID = id; err == nil {
		d.up = u
	}
	if !errors.Is(err, hearth.ErrUnanswered) {
		d.begins = d.begins[:len(d.begins)-1]
	}
	d.mu.Unlock()
	if err != nil {
		return nil, fmt.Errorf("begin an upload: %w", err)
	}
	return u, d.save(false)
}

// resume compares what the origin has of an upload, and the file, with what the record says.
func (d *Draft) resume(ctx context.Context, up hearth.Uploader) error {
	u := d.up
	list, err := up.Parts(ctx, d.spec(string(u.Key), u.token, 0), u.ID)
	if errors.Is(err, fs.ErrNotExist) {
		d.mu.Lock()
		d.up = nil
		d.mu.Unlock()
		return nil
	}
	if err != nil {
		return fmt.Errorf("list the upload's parts: %w", err)
	}
	d.mu.RLock()
	parts := make(map[int64]*sentPart, len(u.parts))
	for i, p := range u.parts {
		parts[i] = p
	}
	d.mu.RUnlock()
	for i, p := range parts {
		listed := slices.ContainsFunc(list, func(l hearth.Part) bool { return l.Number == p.Number && l.Size == p.Size && l.ETag == p.ETag })
		gen := p.gen
		if listed && gen == 0 { // of before the restart
			var sum []byte
			sum, gen, err = d.sum(i*u.partSize, p.Size)
			listed = err == nil && bytes.Equal(sum, p.sum)
		}
		d.mu.Lock()
		if p.gen = gen; !listed {
			delete(u.parts, i)
		}
		d.mu.Unlock()
	}
	u.known = true
	return nil
}

// giveUp begins to abort the upload. What fails is left to Clean.
func (d *Draft) giveUp(ctx context.Context, up hearth.Uploader) error {
	d.mu.Lock()
	if d.up != nil {
		d.abort = append(slices.Clone(d.abort), d.up.uploadRef)
		d.up = nil
	}
	d.mu.Unlock()
	if err := d.save(false); err != nil {
		return err
	}
	if err := d.aborts(ctx, up); err != nil {
		d.s.log("draft %s: %v: it is tried again", d.Info().Key, err)
	}
	return nil
}

func (d *Draft) aborts(ctx context.Context, up hearth.Uploader) error {
	d.mu.RLock()
	due := d.abort
	d.mu.RUnlock()
	var left []uploadRef
	var failed []error
	for _, a := range due {
		if err := up.Abort(ctx, &hearth.Upload{Key: string(a.Key)}, a.ID); err != nil {
			left, failed = append(left, a), append(failed, fmt.Errorf("abort an upload of %s: %w", a.Key, err))
		}
	}
	d.mu.Lock()
	d.abort = left
	d.changed = true
	d.mu.Unlock()
	return errors.Join(failed...)
}

// mayDiffer is how far the origin's clock may be from ours. Beyond it signatures are refused.
const mayDiffer = 15 * time.Minute

// begin is a Begin that was sent and whose answer is not known.
type begin struct {
	Key []byte // JSON would harm other bytes
	At  time.Time
}

// lateBegin is how long after a Begin was sent its upload may appear: the origin may do it after who sent it was killed.
const lateBegin = time.Minute

// lost finds the uploads of Begins whose answers, or the process that waited for them, are lost: those of the key that are not
// known and were begun then. They are aborted with the others. For one that may come yet it is asked again.
func (d *Draft) lost(ctx context.Context, up hearth.Uploader) error {
	d.mu.RLock()
	begins := d.begins
	d.mu.RUnlock()
	var yet []begin
	for i, x := range begins {
		all, err := up.Uploads(ctx, string(x.Key))
		others := d.s.others(d)
		d.mu.Lock()
		found := d.s.o.Now().Sub(x.At) >= lateBegin
		for _, b := range all {
			ours := d.up != nil && d.up.ID == b.ID || slices.Contains(others, b.ID) || slices.ContainsFunc(d.abort, func(a uploadRef) bool { return a.ID == b.ID })
			if !ours && b.At.Sub(x.At).Abs() <= mayDiffer {
				d.abort, found = append(slices.Clone(d.abort), uploadRef{Key: x.Key, ID: b.ID}), true
			}
		}
		if !found || err != nil {
			yet = append(yet, x)
		}
		d.begins, d.changed = append(slices.Clone(yet), begins[i+1:]...), true
		d.mu.Unlock()
		if err != nil {
			return fmt.Errorf("list the uploads of %s: %w", x.Key, err)
		}
	}
	return nil
}

// others are the ids of the uploads of all other drafts.
func (s *Store) others(than *Draft) (ids []string) {
	for _, d := range s.all() {
		if d == than {
			continue
		}
		d.mu.RLock()
		if d.up != nil {
			ids = append(ids, d.up.ID)
		}
		d.mu.RUnlock()
	}
	return ids
}

// send sends a part from memory.
func (d *Draft) send(ctx context.Context, up hearth.Uploader, u *upload, t *taken) error {
	if err := d.queue(ctx, d.s.parts, 1); err != nil {
		return err
	}
	defer d.s.parts.Release(1)
	if err := d.fill(ctx, t); err != nil {
		return err
	}
	var p hearth.Part
	var err error
	for try := range tries {
		t.again = try > 0
		// That a part was sent twice does no harm.
		spec, number := d.spec(string(u.Key), u.token, 0), int(t.index+1)
		if t.data == nil {
			d.silent.Add(1) // the origin copies
			p, err = up.CopyPart(ctx, spec, u.ID, number, t.base, t.off, t.size)
			d.silent.Add(-1)
		} else {
			d.sent.Add(t.size)
			body := d.body(t.data)
			p, err = up.PutPart(ctx, spec, u.ID, number, body, t.size)
			body.turn()
		}
		if !errors.Is(err, hearth.ErrUnanswered) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("send part %d: %w", t.index+1, err)
	}
	d.mu.Lock()
	u.parts[t.index] = &sentPart{Part: p, sum: t.sum, gen: t.gen}
	u.unsaved++
	// A record grows with its parts: with a sixteenth more it is due, so that writing it costs no more than they do.
	due := u.unsaved > len(u.parts)/16
	if due {
		u.unsaved = 0
	}
	d.mu.Unlock()
	if due {
		return d.save(false)
	}
	return nil
}

// sendNow takes a part as it is now, and sends it.
func (d *Draft) sendNow(ctx context.Context, up hearth.Uploader, u *upload, index int64) error {
	// Memory first, then a place among the parts, here as in moment: else each could wait for the other's.
	room := min(u.partSize, d.s.o.Memory)
	if err := d.queue(ctx, d.s.memory, room); err != nil {
		return err
	}
	defer d.s.memory.Release(room)
	d.mu.RLock()
	n := min(u.partSize, d.size-index*u.partSize)
	if n <= 0 {
		d.mu.RUnlock()
		return nil
	}
	copies := u.copies
	d.mu.RUnlock()
	t, err := d.take(index, index*u.partSize, n, copies)
	if err != nil || t == nil {
		return err
	}
	if err = d.send(ctx, up, u, t); err == nil && !t.again && t.data != nil { // else a connection may read it still
		d.s.buffers.Put(&t.data)
	}
	return err
}

// moment sends what is missing of one moment, and returns its parts. nil parts mean that there was too much of it for one
// look: it was sent, and the next look may find less.
func (d *Draft) moment(ctx context.Context, up hearth.Uploader, u *upload) (parts []hearth.Part, a *attempt, err error) {
	d.mu.RLock()
	stale, n := d.staleLocked(u)
	d.mu.RUnlock()
	if n > d.s.o.Memory && len(stale) > 1 {
		g, ctx := newBeside(ctx, d.s.o.Parallel)
		for _, i := range stale {
			g.run(func() error { return d.sendNow(ctx, up, u, i) })
		}
		return nil, nil, g.wait()
	}
	room := min(max(n, 1), d.s.o.Memory)
	if err := d.queue(ctx, d.s.memory, room); err != nil {
		return nil, nil, err
	}
	defer d.s.memory.Release(room)
	missing, a, kept, err := d.look(u, n)
	if err != nil || a == nil {
		return nil, nil, err
	}
	g, sending := newBeside(ctx, d.s.o.Parallel)
	for _, t := range missing {
		g.run(func() error { return d.send(sending, up, u, t) })
	}
	if err := g.wait(); err != nil {
		return nil, nil, err
	}
	var sums [][]byte
	for i := range (a.Size-1)/u.partSize + 1 {
		p := kept[i]
		if p == nil {
			p = u.parts[i] // sent above
		}
		parts, sums = append(parts, p.Part), append(sums, p.sum)
	}
	a.Sum, a.sums = combine(sums), sums
	return parts, a, nil
}

// look takes, at one moment, all parts that are missing, if they have at most n bytes. kept are the others. Writers are
// kept out as long as that takes.
func (d *Draft) look(u *upload, n int64) (missing []*taken, a *attempt, kept map[int64]*sentPart, err error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	stale, now := d.staleLocked(u)
	if now > n || d.size <= u.partSize || (d.size-1)/u.partSize >= maxParts {
		return nil, nil, nil, nil
	}
	for _, i := range stale {
		t, err := d.takeLocked(i, i*u.partSize, min(u.partSize, d.size-i*u.partSize), u.copies)
		if err != nil {
			return nil, nil, nil, err
		}
		missing = append(missing, t)
	}
	kept = map[int64]*sentPart{}
	for i, p := range u.parts {
		if !slices.Contains(stale, i) {
			kept[i] = p
		}
	}
	return missing, &attempt{Token: u.token, Size: d.size, PartSize: u.partSize, gen: d.gen}, kept, nil
}

// ahead begins to send a draft's parts, if nothing else is done with it.
func (s *Store) ahead(d *Draft) {
	if s.o.Uploader == nil || d.aheadKey() == "" || !s.begin() {
		return
	}
	go func() {
		defer s.work.Done()
		select {
		case d.busy <- struct{}{}:
		default:
			d.mu.Lock()
			d.wakeAt = d.next + firstWake
			d.mu.Unlock()
			return
		}
		defer d.unlock()
		ctx, end, err := d.works(s.ctx)
		if err != nil {
			return
		}
		defer end()
		key := d.aheadKey() // it may have another name by now
		if key == "" {
			return
		}
		if err := d.sendAhead(ctx, key); err != nil && ctx.Err() == nil {
			// Publish sends what is missing, and has an error that somebody hears.
			s.log("send parts of %s ahead: %v", d.Info().Key, err)
		}
	}()
}

// aheadKey is the key that the draft will have at the bucket. "" means that nobody knows, or that it is a conflict, which is not sent.
func (d *Draft) aheadKey() string {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.beside {
		return ""
	}
	if d.s.o.Staged != nil {
		if staged, final := d.s.o.Staged(d.name); staged {
			return final
		}
	}
	return d.name.Key
}

// sendAhead sends each part that the writer is beyond by a part, once, until it has caught up.
func (d *Draft) sendAhead(ctx context.Context, key string) error {
	up, err := d.uploader()
	if err != nil {
		return err
	}
	d.mu.RLock()
	size, recovered := d.size, d.recovered
	d.mu.RUnlock()
	if recovered { // what it was before the restart is Publish's
		return nil
	}
	partSize := up.PartSize(growth * size)
	running, next, done := 0, int64(0), make(chan error)
	var u *upload
	for {
		d.mu.Lock()
		if d.up != nil {
			partSize = d.up.partSize
		}
		quiet := d.next/partSize - 1 // parts below are full, and the writer is beyond them
		if d.next-d.run < partSize {
			quiet = 0 // it jumps
		}
		for d.up != nil && next < quiet && d.up.parts[next] != nil {
			next++
		}
		caught := next >= quiet || err != nil || d.wanted.Load() > 0 || d.up != nil && d.up.outgrown && u != nil
		if caught && running == 0 {
			d.wakeAt = math.MaxInt64 // until the next publish, if it failed
			if err == nil {
				d.wakeAt = (max(next, quiet) + 2) * partSize
				if d.wakeAt <= d.next {
					d.wakeAt = d.next + partSize
				}
			}
			d.mu.Unlock()
			return err
		}
		d.mu.Unlock()
		if caught || running == d.s.o.Parallel {
			if failed := <-done; err == nil {
				err = failed
			}
			running--
			continue
		}
		if u == nil {
			if u, err = d.begun(ctx, up, key, growth*size); err != nil {
				continue
			}
			if u.partSize != partSize {
				continue
			}
		}
		index := next
		next++
		running++
		go func() { done <- d.sendNow(ctx, up, u, index) }()
	}
}
