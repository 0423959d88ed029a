package namespace

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// Mode says when a name that is known must be asked for again.
type Mode int

const (
	// Bounded names are believed for a time.
	Bounded Mode = iota
	// Immutable names are believed for ever.
	Immutable
	// Strict names are asked for each time.
	Strict
)

const (
	// defaultBound is as long as people wait for a change before they wonder.
	defaultBound = time.Minute
	// Forever is what a kernel is told of names that do not change.
	Forever = 24 * time.Hour
	// listingShare bounds the cost of listings: a directory is being listed for at most a twentieth of the time.
	listingShare = 20
	// CopyShare bounds the age of a listing that another node copies, in multiples of the listing's
	// duration. See CopyAge.
	CopyShare = listingShare - listingShare/4
)

// Freshness is how old a name may be.
type Freshness struct {
	Mode Mode
	// Bound is the age up to which a name is believed, for Bounded. 0 means 60 s.
	Bound time.Duration
}

// ParseFreshness reads "immutable", "strict", "bounded" or "bounded(90s)".
func ParseFreshness(s string) (Freshness, error) {
	switch s {
	case "immutable":
		return Freshness{Mode: Immutable}, nil
	case "strict":
		return Freshness{Mode: Strict}, nil
	case "", "bounded":
		return Freshness{Mode: Bounded, Bound: defaultBound}, nil
	}
	inner, ok := strings.CutPrefix(s, "bounded(")
	inner, closed := strings.CutSuffix(inner, ")")
	d, err := time.ParseDuration(inner)
	if !ok || !closed || err != nil || d <= 0 {
		return Freshness{}, fmt.Errorf("freshness %q is none of immutable, strict, bounded(60s)", s)
	}
	return Freshness{Mode: Bounded, Bound: d}, nil
}

// String writes it as ParseFreshness reads it.
func (f Freshness) String() string {
	switch f.Mode {
	case Immutable:
		return "immutable"
	case Strict:
		return "strict"
	}
	s := f.Life().String()
	if rest, ok := strings.CutSuffix(s, "m0s"); ok {
		s = rest + "m"
	}
	if rest, ok := strings.CutSuffix(s, "h0m"); ok {
		s = rest + "h"
	}
	return "bounded(" + s + ")"
}

// Life is how long a name that was asked for alone is believed. It is also how long an immutable link
// believes that a name does not exist.
func (f Freshness) Life() time.Duration {
	if f.Bound <= 0 {
		return defaultBound
	}
	return f.Bound
}

// ListingLife is how long a listing is believed, given how long it took.
func (f Freshness) ListingLife(took time.Duration) time.Duration {
	return max(f.Life(), listingShare*took)
}

// CopyAge is how old a listing may be for another node to copy it, given how long it took. The copy is
// then believed for at least a quarter of its life before it is renewed, and by then a renewal is due
// for all.
func (f Freshness) CopyAge(took time.Duration) time.Duration {
	if f.Mode == Immutable {
		return math.MaxInt64
	}
	life := f.ListingLife(took)
	return life - life/4
}

// Copies reports whether a listing of that age may be told to a node that accepts nothing older than
// old. A node that has no listing yet does not know how long one takes, so it asks with CopyAge(0).
func (f Freshness) Copies(old, age, took time.Duration) bool {
	return age <= old || old >= f.CopyAge(0) && age <= f.CopyAge(took)
}
