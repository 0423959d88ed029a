//go:build !race

package device

import (
	"context"
	"testing"
)

// The race detector makes goroutines switch at other moments, so that more workers are made than
// are needed.

func TestACallCostsNoMemory(t *testing.T) {
	// A Call serves one operation after the other, on its caller's thread and on another, and nothing is allocated.
	g := New(Options{MaxLeft: 1})
	defer g.Close()
	c, stead, ctx := NewCall(func() {}, nil), func() {}, context.Background()
	for name, run := range map[string]func() bool{
		"Do":   func() bool { return g.Do(ctx, c) },
		"Here": func() bool { return g.Here(ctx, c, stead) },
	} {
		if n := testing.AllocsPerRun(1000, func() {
			if !run() {
				t.Error("it was left")
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
