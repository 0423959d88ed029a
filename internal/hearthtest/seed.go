package hearthtest

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// SeedVariable names the variable with the seed that tests draw from. rapid has its own,
// RAPID_SEED. The Makefile sets both to one number.
const SeedVariable = "HEARTH_SEED"

// Seed returns the number from which a test draws everything else: SeedVariable's, or one drawn
// here if it is not set. The log names it, so that a failure can be repeated.
func Seed(t testing.TB) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv(SeedVariable); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("%s=%q: a number from 0 to %d", SeedVariable, text, uint64(1<<64-1))
		}
	}
	t.Logf("%s=%d draws the same again", SeedVariable, seed)
	return seed
}
