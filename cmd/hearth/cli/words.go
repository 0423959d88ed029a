package cli

import (
	"fmt"
	"strings"
)

// Choice returns s if it is one of the choices.
func Choice(s string, choices ...string) (string, error) {
	for _, c := range choices {
		if s == c {
			return s, nil
		}
	}
	return "", fmt.Errorf("%q is not one of %s", s, strings.Join(choices, ", "))
}

// Nearest is the name that s was most likely meant to be, or "". A third of its letters may be
// wrong, or two if both begin alike. Of two that are equally near, it is the one that begins alike.
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

// distance is the Damerau-Levenshtein distance of a and b, with no letter changed twice. It counts
// insertions, deletions, replacements and swaps of neighbours.
func distance(a, b string) int {
	d := make([][]int, len(a)+1)
	for i := range d {
		d[i] = make([]int, len(b)+1)
		d[i][0] = i
	}
	for j := range b {
		d[0][j+1] = j + 1
	}
	for i := range len(a) {
		for j := range len(b) {
			cost := d[i][j]
			if a[i] != b[j] {
				cost = 1 + min(cost, d[i][j+1], d[i+1][j])
			}
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				cost = min(cost, 1+d[i-1][j-1])
			}
			d[i+1][j+1] = cost
		}
	}
	return d[len(a)][len(b)]
}
