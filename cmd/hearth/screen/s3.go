package screen

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/node/status"
)

// s3 is the line about the node's S3 endpoint.
func s3(l *status.S3Line) (x section) {
	if l == nil {
		return x
	}
	requests, cached, bytes := l.Sum()
	from := "none"
	if requests > 0 {
		share := float64(cached) / float64(requests)
		from = part(share)
	}
	x.head = []string{fmt.Sprintf("s3  %s; %s, %s from the cache; sent %s; %d under way", at(l), countOf(requests, "request"), from, cli.Bytes(bytes), l.UnderWay)}
	return x
}

// at is the URL of the endpoint.
func at(l *status.S3Line) string {
	if l.TLS {
		return "https://" + l.Listen
	}
	return "http://" + l.Listen
}

// s3Details are the lines that -v adds about an endpoint.
func s3Details(l *status.S3Line) (lines []string) {
	if l == nil {
		return nil
	}
	who := cli.Count(l.Keys, "key")
	if l.Anonymous {
		who += ", and some of it for anybody"
	}
	lines = append(lines, fmt.Sprintf("s3 endpoint: buckets %s; %s; headers of %s, %s, %d asked for", strings.Join(l.Buckets, ", "), who, cli.Count(l.Headers.Entries, "object"), cli.Bytes(l.Headers.Bytes), l.Headers.Asks))
	b := l.Bounds
	lines = append(lines, fmt.Sprintf("s3 clients: %d of %d connections, %d closed to make room; at work %d of %d by the cache and %d of %d by the bucket, %d waiting",
		b.Connections, b.MostConnections, b.Closed, b.Reads, b.MostReads, b.Ways, b.MostWays, b.Waiting))
	for _, code := range slices.Sorted(maps.Keys(l.Faults)) {
		lines = append(lines, fmt.Sprintf("s3 told %s: %s", code, cli.Count(l.Faults[code], "time")))
	}
	for _, r := range l.Requests {
		lines = append(lines, fmt.Sprintf("s3 %s %s, %s: %s, %s", r.Operation, r.Code, r.How, cli.Count(r.Requests, "request"), cli.Bytes(r.Bytes)))
	}
	return lines
}
