package cli

import (
	"fmt"
	"strings"
)

// Choice reads one of the words that there are.
func Choice(s string, choices ...string) (string, error) {
	for _, c := range choices {
		if s == c {
			return s, nil
		}
	}
	return "", fmt.Errorf("%q is not one of %s", s, strings.Join(choices, ", "))
}

// Nearest is the name among names that s most likely was meant to be, or "". A
// third of its letters may be wrong, or two where it begins alike; of two that are
// equally near, the one that begins alike.
func Nearest(s string, names []string) string {
	best, least := "", 2*len(s)+1
	for _, n := range names {
		d, most := 2*distance(s, n), len(s)/3
		if n != "" && s != "" && n[0] == s[0] {
			most = max(2, most)
			d--
		}
		if (d+1)/2 <= most && d < least {
			best, least = n, d
		}
	}
	return best
}

// distance counts the insertions, deletions and replacements between a and b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		left := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := left
			if a[i] != b[j] {
				cost = 1 + min(left, row[j], row[j+1])
			}
			left, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}
