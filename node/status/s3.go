package status

// S3Line is a node's S3 endpoint in its status.
type S3Line struct {
	// Listen is where it answers, TLS whether in TLS.
	Listen string `json:"listen"`
	TLS    bool   `json:"tls"`
	// Buckets that it shows.
	Buckets []string `json:"buckets"`
	// Keys that may ask, Anonymous whether anybody may.
	Keys      int64 `json:"keys"`
	Anonymous bool  `json:"anonymous"`
	// Ill is why the file of keys goes on as it was; "": it does not.
	Ill string `json:"ill,omitempty"`
	// UnderWay are requests that are being answered.
	UnderWay int64 `json:"under_way"`
	// Bounds are what all clients together take, and how much they may.
	Bounds S3Bounds `json:"bounds"`
	// Faults are answers that were errors of the endpoint's own, by S3's code of them.
	Faults map[string]int64 `json:"faults"`
	// Requests are those that were, a row for each kind.
	Requests []S3Requests `json:"requests"`
	// Headers are those of objects that it remembers.
	Headers S3Headers `json:"headers"`
}

// S3Requests are requests of one kind.
type S3Requests struct {
	// Operation is Amazon's name, Code the status of the answer; How: cached, passed, written
	// or refused.
	Operation string `json:"operation"`
	Code      string `json:"code"`
	How       string `json:"how"`
	// Requests that were answered, Bytes of the answers' bodies, Seconds that they took.
	Requests int64   `json:"requests"`
	Bytes    int64   `json:"bytes"`
	Seconds  float64 `json:"seconds"`
}

// S3Bounds are what all clients together take, and how much they may.
type S3Bounds struct {
	// Connections are open, of MostConnections. Closed were: they waited for a request, and made
	// room for others.
	Connections     int64 `json:"connections"`
	MostConnections int64 `json:"most_connections"`
	Closed          int64 `json:"closed"`
	// Reads, from the cache, are at work, of MostReads; Ways, by the bucket, of MostWays.
	Reads     int64 `json:"reads"`
	MostReads int64 `json:"most_reads"`
	Ways      int64 `json:"ways"`
	MostWays  int64 `json:"most_ways"`
	// Waiting are requests that wait for their turn.
	Waiting int64 `json:"waiting"`
}

// S3Headers are what is remembered beside the bytes of objects.
type S3Headers struct {
	// Entries and Bytes are remembered now.
	Entries int64 `json:"entries"`
	Bytes   int64 `json:"bytes"`
	// Hits are answers by them, Asks are HEADs of origins for them.
	Hits int64 `json:"hits"`
	Asks int64 `json:"asks"`
}

// Sum is what all requests came to: how many, and how many of them from the cache.
func (l *S3Line) Sum() (requests, cached, bytes int64) {
	for _, r := range l.Requests {
		requests += r.Requests
		bytes += r.Bytes
		if r.How == "cached" {
			cached += r.Requests
		}
	}
	return requests, cached, bytes
}
