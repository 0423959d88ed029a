package s3gw

import (
	"errors"
	"net/http"
	"time"

	"github.com/hearthfs/hearth/s3gw/request"
)

const (
	// DefaultRequests may be at work at once: half of DefaultConnections.
	DefaultRequests = 5000
	// wayShare is the part of the requests at work that may be on their way to the origin: a
	// quarter, many times what its connections let through. So clients of a slow origin do not keep
	// others from the cache.
	wayShare = 4
	// roomPatience is how long a request waits for its turn: the shortest time after which clients
	// retry.
	roomPatience = time.Second
	// bodyShare is the part of the Pool's size, beside the Pool, for bodies that the endpoint reads
	// itself. leastBodies is the minimum: two bodies of the largest kind.
	bodyShare   = 8
	leastBodies = 2 * request.MaxBatchBytes
)

// rooms are the semaphores of requests.
type rooms struct {
	reads  *places // for answers from the cache
	ways   *places // for requests to the origin
	gets   *places // for those of them that only read: half, so that readers cannot stop all writes
	bodies *places // bytes
}

func newRooms(most int, memory int64) rooms {
	if most <= 0 {
		most = DefaultRequests
	}
	ways := int64(max(1, most/wayShare))
	reads := max(1, int64(most)-ways)
	return rooms{newPlaces(reads, reads, roomPatience), newPlaces(ways, ways, roomPatience), newPlaces(max(1, ways/2), ways, roomPatience),
		newPlaces(max(leastBodies, memory/bodyShare), reads, roomPatience)}
}

// begin takes a place for a request that its sender may make.
func (x *exchange) begin() error {
	switch x.asks.How {
	case request.Pass, request.Write, request.Configure:
		return x.enter(x.rooms.ways)
	}
	return x.enter(x.rooms.reads)
}

// enter moves to another place, so that a request that waits for a way keeps no reader out.
func (x *exchange) enter(p *places) error {
	if x.place == p {
		return nil
	}
	x.yield()
	if p == x.rooms.ways && (x.r.Method == http.MethodGet || x.r.Method == http.MethodHead || x.asks.Operation == "SelectObjectContent") {
		if err := x.rooms.gets.Take(x.r.Context(), 1); err != nil {
			return x.slowDown(err)
		}
		x.gets = x.rooms.gets
	}
	if err := p.Take(x.r.Context(), 1); err != nil {
		return x.slowDown(err)
	}
	x.place = p
	return nil
}

// hold reserves a body of at most most bytes, until the request's end.
func (x *exchange) hold(most int64) error {
	if n := x.r.ContentLength; n >= 0 {
		most = min(most, n+1)
	}
	if err := x.rooms.bodies.Take(x.r.Context(), most); err != nil {
		return x.slowDown(err)
	}
	x.holds += most
	return nil
}

// yield gives the request's place back.
func (x *exchange) yield() {
	if x.place != nil {
		x.place.Give(1)
		x.place = nil
	}
	if x.gets != nil {
		x.gets.Give(1)
		x.gets = nil
	}
}

// vacate gives back all places of the request.
func (x *exchange) vacate() {
	x.yield()
	if x.holds > 0 {
		x.rooms.bodies.Give(x.holds)
		x.holds = 0
	}
}

// slowDown sheds a request for which there is no place.
func (x *exchange) slowDown(err error) error {
	if !errors.Is(err, errFull) {
		return err
	}
	if x.o.Trouble != nil {
		x.o.Trouble("requests are put off with SlowDown: as many are at work as may be (s3.max_requests), or as much memory is in their bodies")
	}
	return request.Of(err, "SlowDown", "Please reduce your request rate.")
}

// Bounds are what all clients together take, and how much they may take.
type Bounds struct {
	// Connections are open, of MostConnections. Closed counts those that waited for a request and
	// were closed to make room.
	Connections     int64 `json:"connections"`
	MostConnections int64 `json:"most_connections"`
	Closed          int64 `json:"closed"`
	// Reads are requests answered from the cache, of MostReads.
	Reads     int64 `json:"reads"`
	MostReads int64 `json:"most_reads"`
	// Ways are requests answered by the origin, of MostWays.
	Ways     int64 `json:"ways"`
	MostWays int64 `json:"most_ways"`
	// Waiting are requests that wait for one of these places, or for room for their bodies.
	Waiting int64 `json:"waiting"`
}

// bounds returns the present figures, without connections.
func (r *rooms) bounds() Bounds {
	return Bounds{Reads: r.reads.Taken(), MostReads: r.reads.Most(), Ways: r.ways.Taken(), MostWays: r.ways.Most(),
		Waiting: r.reads.Waiting() + r.ways.Waiting() + r.gets.Waiting() + r.bodies.Waiting()}
}
