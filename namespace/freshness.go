package namespace

import "github.com/hearthfs/hearth/namespace/age"

// Freshness is how old a name may be.
type Freshness = age.Freshness

// The modes of Freshness.
const (
	Bounded   = age.Bounded
	Immutable = age.Immutable
	Strict    = age.Strict
)

// ParseFreshness reads "immutable", "strict", "bounded" or "bounded(90s)".
func ParseFreshness(s string) (Freshness, error) { return age.ParseFreshness(s) }
