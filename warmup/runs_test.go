package warmup

import (
	"slices"
	"testing"
)

func TestRunsGoAroundWhatIsHeld(t *testing.T) {
	// An object has an extent of 16 blocks and five more. The second and the last are
	// held. Each missing block is in one run, and no run is too long or crosses the end
	// of the extent.
	held := func(i int64) int64 { return map[int64]int64{1: 1000, 20: 7}[i] }
	const blocks, extent = 21, 16
	for most, want := range map[int][][2]int64{
		3:   {{0, 1}, {2, 3}, {5, 3}, {8, 3}, {11, 3}, {14, 2}, {16, 3}, {19, 1}},
		4:   {{0, 1}, {2, 4}, {6, 4}, {10, 4}, {14, 2}, {16, 4}},
		100: {{0, 1}, {2, 14}, {16, 4}},
	} {
		var got [][2]int64
		bytes := int64(0)
		for from := int64(0); from < blocks; {
			at, n, passed := NextRun(held, from, min(from-from%extent+extent, blocks), most)
			if bytes += passed; n > 0 {
				got = append(got, [2]int64{at, n})
			}
			from = at + n
		}
		if !slices.Equal(got, want) || bytes != 1007 {
			t.Errorf("at most %d: %v, %d bytes held", most, got, bytes)
		}
		if bytes, requests := CountRuns(held, blocks, extent, most); bytes != 1007 || requests != int64(len(want)) {
			t.Errorf("at most %d: %d requests for %v, %d bytes held", most, requests, want, bytes)
		}
	}
	if _, requests := CountRuns(held, blocks, extent, 1); requests != blocks-2 {
		t.Errorf("one by one: %d requests for %d blocks", requests, blocks-2)
	}
}
