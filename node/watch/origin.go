package watch

import (
	"github.com/hearthfs/hearth/node/figures"
	"github.com/hearthfs/hearth/origin"
)

// FirstByte is what an origin tells of the first bytes of its answers.
func FirstByte(s origin.Stats) figures.FirstByte {
	const ms = 1e6
	f := figures.FirstByte{SumS: s.FirstByte.Sum.Seconds(), MedianMS: float64(s.FirstByte.Median) / ms,
		P99MS: float64(s.FirstByte.P99) / ms, WorstMS: float64(s.FirstByte.Worst) / ms}
	for _, b := range s.FirstByte.Buckets {
		f.Count += b.Count
		f.Buckets = append(f.Buckets, figures.Bucket{LE: b.LE.Seconds(), Count: b.Count})
	}
	return f
}

// LastError is what failed last at an origin; nil: nothing did.
func LastError(s origin.Stats) *figures.Failure {
	if s.Last == nil {
		return nil
	}
	return &figures.Failure{At: s.Last.At, Says: s.Last.Says}
}
