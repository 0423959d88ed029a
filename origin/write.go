package origin

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/minio/minio-go/v7"
	"golang.org/x/time/rate"

	"github.com/hearthfs/hearth"
)

// Write says how a bucket is written.
type Write struct {
	// Connections bounds the writes in flight, beside the reads. 0: 32. At most half of Config.Connections:
	// reads go first.
	Connections int
	// Bandwidth limits what is sent of objects, in bytes/s; 0: no limit.
	Bandwidth int64
	// PartSize is the size of the parts of a large object, in bytes, from 5 MiB to 5 GiB; 0: 16 MiB. It
	// grows with objects of more than 10,000 parts.
	PartSize int64
	// SSE is how the origin encrypts what is written: AES256, aws:kms or aws:kms:dsse; "": as the bucket says.
	SSE string
	// KMSKey is the id or ARN of the key for aws:kms and aws:kms:dsse; "": the origin's own.
	KMSKey string
	// StorageClass of what is written; "": the bucket's default.
	StorageClass string
}

const (
	defaultWrites   = 32
	defaultPartSize = 16 << 20
	leastPart       = 5 << 20 // of all parts but the last, says S3
	mostPart        = 5 << 30 // and of what is copied at once
	mostParts       = 10_000
)

// writer is an S3's side for writes.
type writer struct {
	Write
	core   *minio.Core   // makes requests and reads answers; courier sends them
	slots  chan struct{} // each write in flight holds a token
	limit  *rate.Limiter // nil: no limit
	atOnce int64         // bytes; a larger object is copied by parts
	sum    atomic.Int32  // a checksum, which the origin is believed to know
	probed atomic.Pointer[WriteAbilities]
	probe  sync.Mutex // held while the origin is probed
	counts struct{ puts, parts, copies, bytes atomic.Int64 }
}

// Problem returns what is not valid of w, for an origin of that many connections. 0 connections mean DefaultConnections.
func (w Write) Problem(connections int) error {
	connections = cmp.Or(connections, DefaultConnections)
	half := max(1, connections/2)
	switch {
	case w.Connections < 0 || w.Connections > half:
		return fmt.Errorf("write.connections is %d: 1 to %d, half of connections, which is %d", w.Connections, half, connections)
	case w.Bandwidth < 0:
		return fmt.Errorf("write.bandwidth is %d bytes/s: write 0 for no limit", w.Bandwidth)
	case w.PartSize != 0 && (w.PartSize < leastPart || w.PartSize > mostPart):
		return fmt.Errorf("write.part_size is %d bytes: S3 takes parts of 5 MiB to 5 GiB", w.PartSize)
	case w.SSE != "" && w.SSE != "AES256" && w.SSE != "aws:kms" && w.SSE != "aws:kms:dsse":
		return fmt.Errorf("write.sse %q is none of AES256, aws:kms and aws:kms:dsse", w.SSE)
	case w.KMSKey != "" && (w.SSE == "" || w.SSE == "AES256"):
		return errors.New("write.kms_key is for write.sse aws:kms or aws:kms:dsse: set that, or leave the key out")
	}
	return nil
}

// newWriter makes one for an origin of that many connections.
func newWriter(w Write, connections int) (*writer, error) {
	if err := w.Problem(connections); err != nil {
		return nil, err
	}
	w.Connections = cmp.Or(w.Connections, min(defaultWrites, max(1, connections/2)))
	w.PartSize = cmp.Or(w.PartSize, defaultPartSize)
	out := &writer{Write: w, slots: make(chan struct{}, w.Connections), atOnce: mostPart}
	if w.Bandwidth > 0 {
		out.limit = rate.NewLimiter(rate.Limit(w.Bandwidth), hearth.BlockSize)
	}
	// The courier addresses and signs each request anew, so the client needs no keys and no real address.
	var err error
	out.core, err = minio.NewCore("origin.invalid", &minio.Options{Secure: true, Region: defaultRegion, BucketLookup: minio.BucketLookupPath,
		Transport: courier{}, MaxRetries: 1})
	if err != nil {
		return nil, fmt.Errorf("make a client for writes: %w", err)
	}
	return out, nil
}

// PartSize is hearth.Uploader's: a whole number of MiB.
func (s *S3) PartSize(size int64) int64 {
	const unit = 1 << 20
	grown := (size + mostParts - 1) / mostParts
	return max(s.out.Write.PartSize, (grown+unit-1)/unit*unit)
}
