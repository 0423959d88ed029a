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
	// listingShare: listing a directory takes at most a twentieth of its time.
	listingShare = 20
	// CopyShare is how many times its duration a listing may be old for another node to copy
	// it, as CopyAge has it.
	CopyShare = listingShare - listingShare/4
)

// Freshness is how old a name may be.
type Freshness struct {
	Mode Mode
	// Bound is the age up to which a name is believed, for Bounded; 0: 60 s.
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

// Life is how long a name is believed that was asked for alone. It is also how long an immutable link
// remembers a name that it did not find.
func (f Freshness) Life() time.Duration {
	if f.Bound <= 0 {
		return defaultBound
	}
	return f.Bound
}

// ListingLife is how long a listing that took so long is believed.
func (f Freshness) ListingLife(took time.Duration) time.Duration {
	return max(f.Life(), listingShare*took)
}

// CopyAge is how old a listing that took so long may be for another node to copy it: the
// copy is believed for a quarter of its time at least before it is renewed, and by then
// a renewal is due for all.
func (f Freshness) CopyAge(took time.Duration) time.Duration {
	if f.Mode == Immutable {
		return math.MaxInt64
	}
	life := f.ListingLife(took)
	return life - life/4
}

// Copies reports whether a listing of an age may be told to one that takes nothing older
// than old: who knows no listing yet does not know either what it took.
func (f Freshness) Copies(old, age, took time.Duration) bool {
	return age <= old || old >= f.CopyAge(0) && age <= f.CopyAge(took)
}
