package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/hearthfs/hearth/node"
)

// parseBytes reads 512MiB, 1.5TB or 4096.
func parseBytes(s string) (int64, error) {
	n, err := humanize.ParseBytes(s)
	if err != nil || n > math.MaxInt64 {
		return 0, fmt.Errorf("%q is not a size such as 512MiB or 1.5TB", s)
	}
	return int64(n), nil
}

// parseSize reads what parseBytes reads, or a percentage such as 20%.
func parseSize(s string) (node.Size, error) {
	if p, ok := strings.CutSuffix(strings.TrimSpace(s), "%"); ok {
		f, err := strconv.ParseFloat(strings.TrimSpace(p), 64)
		if err != nil || !(f > 0 && f <= 100) {
			return node.Size{}, fmt.Errorf("%q is not a percentage above 0%% and up to 100%%", s)
		}
		return node.Size{Percent: f}, nil
	}
	n, err := parseBytes(s)
	if err != nil {
		return node.Size{}, fmt.Errorf("%q is not a size such as 512MiB, 1.5TB or 20%%", s)
	}
	if n == 0 {
		return node.Size{}, fmt.Errorf("a size of 0 is not possible here")
	}
	return node.Size{Bytes: n}, nil
}

// parseRate reads 200MiB/s or 200MiB.
func parseRate(s string) (int64, error) {
	n, err := parseBytes(strings.TrimSuffix(strings.TrimSpace(s), "/s"))
	if err != nil {
		return 0, fmt.Errorf("%q is not a rate such as 200MiB/s", s)
	}
	return n, nil
}

// leastBandwidth is the lowest limit on an origin's bandwidth, bytes/s: below it a
// checked piece, 64 KiB, takes longer than a second.
const leastBandwidth = 64 << 10

// parseBandwidth reads a rate that is no lower than leastBandwidth, or 0, no limit.
func parseBandwidth(s string) (int64, error) {
	n, err := parseRate(s)
	if err == nil && n > 0 && n < leastBandwidth {
		return 0, fmt.Errorf("%q is below 64KiB/s, the lowest limit there is; 0 is no limit", s)
	}
	return n, err
}

// parseDuration reads 60s or 24h.
func parseDuration(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%q is not a duration such as 60s or 24h", s)
	}
	return d, nil
}

// parseBool reads what YAML and people write.
func parseBool(s string) (bool, error) {
	switch strings.ToLower(s) {
	case "true", "yes", "on", "1":
		return true, nil
	case "false", "no", "off", "0":
		return false, nil
	}
	return false, fmt.Errorf("%q is neither true nor false", s)
}

func parseCount(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil {
		return 0, fmt.Errorf("%q is not a number", s)
	}
	return int(n), nil
}

// parseConnections reads a number of connections, which is not 0: without any,
// nothing could be read.
func parseConnections(s string) (int, error) {
	n, err := parseCount(s)
	if err == nil && n == 0 {
		return 0, fmt.Errorf("%q connections read nothing: at least 1", s)
	}
	return n, err
}

func parseID(s string) (*uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("%q is not a numeric user or group", s)
	}
	id := uint32(n)
	return &id, nil
}

// parseMode reads permission bits in octal.
func parseMode(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 8, 32)
	if err != nil || n > 0o777 || n == 0 {
		return 0, fmt.Errorf("%q is not a mode such as 0444", s)
	}
	return uint32(n), nil
}

func parseChoice(s string, choices ...string) (string, error) {
	for _, c := range choices {
		if s == c {
			return s, nil
		}
	}
	return "", fmt.Errorf("%q is not one of %s", s, strings.Join(choices, ", "))
}

// nearest is the name among names that s most likely was meant to be, or "". A
// third of its letters may be wrong, or two where it begins alike; of two that are
// equally near, the one that begins alike.
func nearest(s string, names []string) string {
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

// formatBytes is a number of bytes for people.
func formatBytes(n int64) string {
	if n < 0 {
		return "-" + humanize.IBytes(uint64(-n))
	}
	return humanize.IBytes(uint64(n))
}
