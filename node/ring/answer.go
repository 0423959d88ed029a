package ring

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/peer/wire"
)

// Numbers of calls that all nodes know. Names have 1 to 15, warm-ups 16 to 31.
const callFigures uint16 = 32

func newID() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	return hex.EncodeToString(id[:])
}

// Answers are what peers are answered from.
type Answers struct {
	// Owned is what they may Fill from.
	Owned interface {
		hearth.Source
		hearth.ManyGetter
	}
	// Load is GetMany of what is kept by a tier before each hears of it, with a View or
	// without.
	Load func(ctx context.Context, first hearth.Block, n int, each func(hearth.Block, *hearth.View, error) bool)
	// Local is what they may Peek at: it asks nobody.
	Local interface {
		hearth.Source
		Has(id hearth.ID) bool
	}
}

// Answer says what peers are answered from, before any of them asks.
func (r *Ring) Answer(a Answers) { r.answers = a }

// Warms has peers that warm up be answered by others, before any of them asks: load takes
// the place of the Answers' Load, and calls have numbers of their own.
func (r *Ring) Warms(load func(ctx context.Context, first hearth.Block, n int, each func(hearth.Block, *hearth.View, error) bool), calls map[uint16]wire.Answer) {
	r.answers.Load, r.calls = load, calls
}

// Handler is what peers get.
func (r *Ring) Handler() wire.Handler {
	calls := map[uint16]wire.Answer{callFigures: r.figures}
	maps.Copy(calls, r.calls)
	return wire.Handler{Fill: r.fill, Peek: r.peek, Run: r.run, Calls: calls}
}

// Check holds an Object against this node's link of its name. What peers say of an Object
// is not believed: what is fetched for it is kept under its Version.
func (r *Ring) Check(o *hearth.Object) error {
	identity, ok := r.o.Identity(o.Link)
	switch {
	case !ok:
		return hearth.ErrMiss
	case hearth.VersionOf(identity, o.Key, o.ETag, o.Size) != o.Version:
		return &wire.Error{Class: wire.Mismatch, Text: "the version of " + o.Key + " is not that of its fields at this node: its link has another origin or identity"}
	}
	return nil
}

func (r *Ring) fill(ctx context.Context, b hearth.Block, off, n int) (*hearth.View, error) {
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

// run is Fill of many blocks, or has them loaded.
func (r *Ring) run(ctx context.Context, first hearth.Block, n int, load bool, each func(hearth.Block, *hearth.View, error) bool) {
	if err := r.Check(first.Object); err != nil {
		each(first, nil, err)
		return
	}
	get := r.answers.Owned.GetMany
	if load {
		get = r.answers.Load
	}
	get(ctx, first, n, func(b hearth.Block, v *hearth.View, err error) bool {
		if load && v != nil {
			v.Release()
			v = nil
		}
		return each(b, v, r.said(err))
	})
}

func (r *Ring) peek(ctx context.Context, b hearth.Block, off, n int) (*hearth.View, error) {
	switch {
	case n > 0:
		return r.answers.Local.Get(ctx, b, off, n)
	case r.answers.Local.Has(b.ID()):
		return nil, nil
	}
	return nil, hearth.ErrMiss
}

// said has the asker know that it is the origin that does not answer.
func (r *Ring) said(err error) error {
	if err != nil && !errors.Is(err, fs.ErrPermission) && r.o.Away(err) {
		return &wire.Error{Class: wire.Away, Text: err.Error()}
	}
	return err
}

// figures answers with what the node says of itself.
func (r *Ring) figures(ctx context.Context, _ []byte) (*hearth.View, error) {
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
