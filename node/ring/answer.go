package ring

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"strings"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/node/wiring"
	"github.com/hearthfs/hearth/peer/wire"
)

// callFigures is the number of a call that all nodes know. Calls for names have the numbers 1 to 15, warm-ups
// 16 to 31.
const callFigures uint16 = 32

func newID() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	return hex.EncodeToString(id[:])
}

// Answer sets the sources from which peers are answered, before any of them asks.
func (r *Part) Answer(a wiring.Answers) { r.answers = a }

// Load is GetMany without Views: a tier keeps each block before each hears of it.
type Load func(ctx context.Context, first hearth.Block, n int, each func(hearth.Block, *hearth.View, error) bool)

// Warms sets, before any peer asks, what loads blocks for peers that warm up, and the answers to calls with
// numbers of their own. A nil load means that nothing is loaded, as without Warms.
func (r *Part) Warms(load Load, calls map[uint16]wire.Answer) {
	if r.calls = calls; load != nil {
		r.load = load
	}
}

// keepsNothing is the Load of a node without a disk tier.
func keepsNothing(_ context.Context, first hearth.Block, _ int, each func(hearth.Block, *hearth.View, error) bool) {
	each(first, nil, &wire.Error{Class: wire.NotKept, Text: "it has no disk tier to keep blocks for later: start it with --cache-disks PATH=SIZE"})
}

// Handler returns the answers to what peers ask.
func (r *Part) Handler() wire.Handler {
	calls := map[uint16]wire.Answer{callFigures: r.figures}
	maps.Copy(calls, r.calls)
	h := wire.Handler{Ready: r.answers.Ready, Fill: r.fill, Peek: r.peek, Run: r.run, Calls: calls}
	if r.answers.Here != nil {
		h.Here = r.here
	}
	return h
}

// here is Fill from the disk alone.
func (r *Part) here(ctx context.Context, b hearth.Block, off, n int, stead func()) *hearth.View {
	if r.Check(b.Object) != nil {
		return nil // Fill says why
	}
	return r.answers.Here(ctx, b, off, n, stead)
}

// Check compares an Object from a peer with this node's link of that name. A peer's Object is not believed as
// it is: what is fetched for it is kept under its Version. It is also fetched with this node's credentials,
// which may have rights in the bucket beyond what the link shows.
func (r *Part) Check(o *hearth.Object) error {
	identity, prefix, ok := r.o.Link(o.Link)
	switch {
	case !ok || !strings.HasPrefix(o.Key, prefix):
		return hearth.ErrMiss
	case hearth.VersionOf(identity, o.Key, o.ETag, o.Size) != o.Version:
		return &wire.Error{Class: wire.Mismatch, Text: "the version of " + o.Key + " is not that of its fields at this node: its link has another origin or identity"}
	}
	return nil
}

func (r *Part) fill(ctx context.Context, b hearth.Block, off, n int) (*hearth.View, error) {
	if n == 0 {
		err := hearth.ErrMiss
		r.run(ctx, b, 1, true, func(_ hearth.Block, _ *hearth.View, failed error) bool {
			err = failed
			return false
		})
		return nil, err
	}
	if err := r.Check(b.Object); err != nil {
		return nil, err
	}
	v, err := r.answers.Owned.Get(ctx, b, off, n)
	return v, r.said(err)
}

// run is Fill of many blocks. With load it has them loaded instead.
func (r *Part) run(ctx context.Context, first hearth.Block, n int, load bool, each func(hearth.Block, *hearth.View, error) bool) {
	if err := r.Check(first.Object); err != nil {
		each(first, nil, err)
		return
	}
	get := r.answers.Owned.GetMany
	if load {
		get = r.load
	}
	get(ctx, first, n, func(b hearth.Block, v *hearth.View, err error) bool { return each(b, v, r.said(err)) })
}

func (r *Part) peek(ctx context.Context, b hearth.Block, off, n int) (*hearth.View, error) {
	switch {
	case n > 0:
		return r.answers.Local.Get(ctx, b, off, n)
	case r.answers.Local.Has(b.ID()):
		return nil, nil
	}
	return nil, hearth.ErrMiss
}

// said turns an error of an origin that cannot be asked into one that tells the asking node so.
func (r *Part) said(err error) error {
	if err != nil && !errors.Is(err, fs.ErrPermission) && r.o.Away(err) {
		return &wire.Error{Class: wire.Away, Text: err.Error()}
	}
	return err
}

// figures answers with what the node says of itself.
func (r *Part) figures(ctx context.Context, _ []byte) (*hearth.View, error) {
	data, err := json.Marshal(r.own())
	if err != nil {
		return nil, err
	}
	v, err := r.o.Pool.Alloc(ctx, len(data))
	if err == nil {
		copy(v.Bytes(), data)
	}
	return v, err
}
