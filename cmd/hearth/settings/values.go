package settings

import (
	"fmt"
	"math"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/hearthfs/hearth/draft"
	"github.com/hearthfs/hearth/node/config"
)

// ParseBytes reads 512MiB, 1.5TB or 4096.
func ParseBytes(s string) (int64, error) {
	n, err := humanize.ParseBytes(s)
	if err != nil || n > math.MaxInt64 {
		return 0, fmt.Errorf("%q is not a size such as 512MiB or 1.5TB", s)
	}
	return int64(n), nil
}

// parseSize reads what ParseBytes reads, or a percentage such as 20%.
func parseSize(s string) (config.Size, error) {
	if p, ok := strings.CutSuffix(strings.TrimSpace(s), "%"); ok {
		f, err := strconv.ParseFloat(strings.TrimSpace(p), 64)
		if err != nil || !(f > 0 && f <= 100) {
			return config.Size{}, fmt.Errorf("%q is not a percentage above 0%% and up to 100%%", s)
		}
		return config.Size{Percent: f}, nil
	}
	n, err := ParseBytes(s)
	if err != nil {
		return config.Size{}, fmt.Errorf("%q is not a size such as 512MiB, 1.5TB or 20%%", s)
	}
	if n == 0 {
		return config.Size{}, fmt.Errorf("a size of 0 is not possible here")
	}
	return config.Size{Bytes: n}, nil
}

// ParseRate reads 200MiB/s or 200MiB.
func ParseRate(s string) (int64, error) {
	n, err := ParseBytes(strings.TrimSuffix(strings.TrimSpace(s), "/s"))
	if err != nil {
		return 0, fmt.Errorf("%q is not a rate such as 200MiB/s", s)
	}
	return n, nil
}

// leastBandwidth is the lowest limit on an origin's bandwidth, in bytes per second. Below it a
// piece of 64 KiB, the unit of checksums, takes longer than a second.
const leastBandwidth = 64 << 10

// parseBandwidth reads a rate of at least leastBandwidth, or 0, which means no limit.
func parseBandwidth(s string) (int64, error) {
	n, err := ParseRate(s)
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

// parsePatterns reads patterns of temporary names with commas between them. An empty text and none have none.
func parsePatterns(s string) ([]string, error) {
	patterns := []string{} // nil would be the usual ones
	if s = strings.TrimSpace(s); s != "" && s != "none" {
		for p := range strings.SplitSeq(s, ",") {
			patterns = append(patterns, strings.TrimSpace(p))
		}
	}
	_, err := draft.ParseTemporary(patterns)
	return patterns, err
}

// parseStagingAge reads for how long a name is temporary. 0 would publish what a program is about to rename.
func parseStagingAge(s string) (time.Duration, error) {
	d, err := parseDuration(s)
	if err == nil && d < config.LeastStagingAge {
		return 0, fmt.Errorf("%q is below %v, the least, since a program needs time to rename what it has closed; staging: [] has no temporary names", s, config.LeastStagingAge)
	}
	return d, err
}

// parsePublishEvery reads how often what is appended to is published; never is less than 0.
func parsePublishEvery(s string) (time.Duration, error) {
	d, err := parseDuration(s)
	switch {
	case err == nil && d == 0:
		return -1, nil
	case err == nil && d < time.Second:
		return 0, fmt.Errorf("%q is below 1s, the least; 0 publishes a file at its close alone", s)
	}
	return d, err
}

// parseBool reads true and false as YAML and people write them.
func parseBool(s string) (bool, error) {
	switch strings.ToLower(s) {
	case "true", "yes", "on", "1":
		return true, nil
	case "false", "no", "off", "0":
		return false, nil
	}
	return false, fmt.Errorf("%q is neither true nor false", s)
}

// parseOff reads on or off, and returns true for off.
func parseOff(s string) (bool, error) {
	b, err := parseBool(s)
	if err != nil {
		return false, fmt.Errorf("%q is neither on nor off", s)
	}
	return !b, nil
}

// parseHosts reads names and addresses with commas between them. An empty text has none.
func parseHosts(s string) (hosts []string, err error) {
	if strings.TrimSpace(s) == "" {
		return nil, nil
	}
	for _, h := range strings.Split(s, ",") {
		if h = strings.TrimSpace(h); h == "" {
			return nil, fmt.Errorf("%q has a host without a name", s)
		}
		hosts = append(hosts, h)
	}
	return hosts, nil
}

// parseListen reads where a node gossips. The port may be left out. Port 0, any free port, is only
// for tests: nobody could name it in join.
func parseListen(s string) (string, error) {
	_, text, err := net.SplitHostPort(s)
	if err != nil {
		return s, nil // without a port
	}
	if n, err := strconv.ParseUint(text, 10, 16); err == nil && n == 0 {
		return "", fmt.Errorf("port 0 of %q would be another one at each start: name a port, or none for 7946", s)
	}
	return s, nil
}

func parseCount(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil {
		return 0, fmt.Errorf("%q is not a number", s)
	}
	return int(n), nil
}

// parseConnections reads a number of connections. It refuses 0, since nothing could be read then.
func parseConnections(s string) (int, error) {
	n, err := parseCount(s)
	if err == nil && n == 0 {
		return 0, fmt.Errorf("%q connections read nothing: at least 1", s)
	}
	return n, err
}

// parseMost reads a bound on clients. It refuses 0, since nobody would be answered then.
func parseMost(s string) (int, error) {
	n, err := parseCount(s)
	if err == nil && n == 0 {
		return 0, fmt.Errorf("%q answers nobody: at least 1", s)
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
