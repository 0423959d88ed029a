package hearthtest

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// SeedVariable is the environment's name of the seed that tests draw from. rapid has its
// own, RAPID_SEED; the Makefile gives both one number.
const SeedVariable = "HEARTH_SEED"

// Seed returns the number that a test draws all else from: what SeedVariable says, or
// one drawn here where it says nothing. The log names it: a failure is repeated by it.
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
