// Package origin reads the object stores that hold the truth: S3, and a local directory for tests and
// small sites. It writes to S3, whole objects at a time (hearth.Uploader).
//
// An Origin answers three questions: what is this key (Head), which keys are there (List), what are
// these bytes (Read). Probe tells at the start whether it can. Objects come out complete, with their
// Version computed.
//
// Each answer is checked against the Object. A Read asks with If-Match and compares status, ETag,
// Content-Range and length of the answer with the Object. If any of them shows another version, the
// error is hearth.ErrStale, unless a HEAD finds the Object still there: then the origin is asked again.
// A body that is cut off or stalls is resumed at its offset, under the same comparison.
//
// All retries are made here and nowhere else. Each request has one budget of attempts and time. It is
// spent with jittered exponential back-off on 5xx, SlowDown, timeouts and resets, on resumed bodies and
// on renewed credentials alike. A Retry-After is honoured. What still fails is an *Error, and Explain
// turns that into one line with its cure.
//
// S3 takes credentials from the AWS SDK's chain (package identity). minio-go's signer costs 17 us and
// 100 allocations; package sign costs 2 us, and is tested to give the same signature. minio-go's object
// layer is not used either: over one connection pool it costs a GET of 100 KiB a third more CPU than a
// request of our own, hides the answer's Content-Range and refuses keys that S3 allows.
//
// Writes go through minio-go's Core, over the same connections, signed and addressed like reads, within the
// same budget (do). A write that the origin may have acted on is sent again only where that does no harm:
// a part, a copy, the joining of parts, or what has a condition that the origin heeds. Else a HEAD tells by
// the draft in the object's metadata whether it was done, or the error is hearth.ErrUnanswered.
//
// A client's request that is not a read of Hearth's own is forwarded as the client made it
// (S3.Forward): signed anew, streamed, and never sent twice if the origin may have acted on it.
//
// Bucket makes origins a hearth.Source: bytes go from the socket into the View. It waits in a fixed
// order, first for a connection, then for memory, and never for memory while holding a View. So whoever
// holds memory never waits for a connection, and whoever holds a connection waits only for memory that
// others will give back.
package origin

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/origin/identity"
)

// Origin is an object store that holds the truth.
type Origin interface {
	// Head returns the object that a key names now. The error is fs.ErrNotExist when there is none.
	Head(ctx context.Context, key string) (hearth.Object, error)
	// List streams what a Listing asks for, in the byte order of keys. Groups come as Objects of
	// PrefixSize. An error of each ends the listing and is returned.
	List(ctx context.Context, q hearth.Listing, each func(hearth.Object) error) error
	// Read opens bytes [off, off+n) of exactly this version, 0 < n. It yields n bytes or an error,
	// which is hearth.ErrStale when the version is gone.
	Read(ctx context.Context, o *hearth.Object, off, n int64) (io.ReadCloser, error)
	// Probe tries what Hearth needs; its error names the cure in one line.
	Probe(ctx context.Context) (Abilities, error)
	// Stats returns the figures since the start.
	Stats() Stats
}

// Abilities are what a Probe found.
type Abilities struct {
	// Objects says that there is an object to try reads with. Without one the fields below say nothing.
	Objects bool
	// Passed says why an object that was tried first could not be read, with the cure; "" means that
	// none failed. If all objects that were tried are archived, the fields below say nothing.
	Passed string
	// Range: a ranged GET is answered with that range and the whole size.
	Range bool
	// IfMatch: a GET under another ETag is refused. An origin without it is used too: its answers are
	// compared with the version, which shows a change a round trip later.
	IfMatch bool
	// Listed and Told are what a listing and a HEAD said of the object that was tried. Nil means that
	// they were not asked, or that a HEAD had to replace the listing too.
	Listed, Told *hearth.Object
	// StrongETag: objects have an ETag that is safe to cache by.
	StrongETag bool
	// Region is what requests are signed for now: the configured one, or what the origin named.
	Region string
	// RoundTrip is the time of the fastest request of the probe.
	RoundTrip time.Duration
}

// Stats are an origin's figures. Requests are attempts, retries included.
type Stats struct {
	Gets, Heads, Lists int64
	// Passes are forwarded requests.
	Passes int64
	// Bytes counts bytes of bodies that were read, NameBytes those of listings among them.
	Bytes, NameBytes int64
	// Puts, Parts and Copies are writes: of whole objects, of parts, and of objects and parts made of
	// another object.
	// Written counts bytes that were read of what is written, to be sent: those that were sent again, too.
	Puts, Parts, Copies, Written int64
	// Writing are writes in flight.
	Writing int64
	// Errors are attempts that failed, and Retries those that were tried again. Throttled are those
	// answered SlowDown or 429, and Resumed are bodies that were continued at an offset.
	Errors, Retries, Throttled, Resumed int64
	// InFlight are connections in use.
	InFlight int64
	// FirstByte is how long answers took until their first byte, those of errors included.
	FirstByte LatencyStats
	// Last is the last failure that Errors counts, or of a search for new credentials. Nil means that
	// nothing failed.
	Last *Failure
}

// Failure is when an attempt failed, and why, in the words of Explain.
type Failure struct {
	At   time.Time `json:"at"`
	Says string    `json:"says"`
}

// Config says where an origin is and how it is reached.
type Config struct {
	// URL is s3://bucket/prefix or file:///dir.
	URL string
	// Link is the name that Objects carry.
	Link string
	// Endpoint is an S3 server's URL, with a path or without. "": AWS_ENDPOINT_URL_S3, the S3 endpoint
	// of the profile's services section, AWS_ENDPOINT_URL, the profile's endpoint_url, then AWS.
	Endpoint string
	// Region to sign for; "": AWS_REGION, AWS_DEFAULT_REGION, the profile's
	// region, then what the origin says.
	Region string
	// PathStyle is auto, on or off; "" and auto: virtual hosts at AWS, else paths.
	PathStyle string
	// Anonymous sends requests without a signature.
	Anonymous bool
	// RequesterPays says in each request that the requester pays for it, as buckets with that setting
	// demand.
	RequesterPays bool
	// CAFile is a PEM file of certificates trusted besides the system's; "":
	// AWS_CA_BUNDLE, then the profile's ca_bundle.
	CAFile string
	// Identity replaces scheme, endpoint and bucket in versions, for one bucket behind several
	// endpoints.
	Identity string
	// Node is what the node has of its own, and its next process has, too: a random id. "": nothing.
	Node string
	// UserAgent names the program and its version, "hearth/1.0".
	UserAgent string
	// Connections bounds the requests in flight; 0: DefaultConnections.
	Connections int
	// Bandwidth limits reads, in bytes/s; 0: no limit.
	Bandwidth int64
	// Timeout is how long an answer or a body may be silent; 0: 10 s.
	Timeout time.Duration
	// Retry is the retry budget of each request.
	Retry Retry
	// Write says how the bucket is written. A directory is not.
	Write Write
}

// FromEnvironment fills empty fields from the AWS variables, then from the shared config's profile, as
// the AWS SDK does.
func (c Config) FromEnvironment() Config {
	c, _ = c.fromEnvironment(context.Background()) // what a broken profile would say stays empty
	return c
}

func (c Config) fromEnvironment(ctx context.Context) (Config, error) {
	said, err := identity.Look(ctx)
	c.Endpoint = cmp.Or(strings.TrimSpace(c.Endpoint), said.Endpoint)
	c.Region = cmp.Or(strings.TrimSpace(c.Region), said.Region)
	c.CAFile = cmp.Or(c.CAFile, said.CAFile)
	return c, err
}

// Open makes the origin of a Config. It sends nothing to the origin; Probe does.
func Open(ctx context.Context, c Config) (Origin, error) {
	u, err := parse(c.URL)
	if err != nil {
		return nil, err
	}
	if u.Scheme == "file" {
		return newDir(c, u.Path)
	}
	return newS3(ctx, c, u)
}

// Prefix returns the prefix of keys that a URL names: "" or ending in "/". Keys
// of a file:// origin are relative to its directory, so there it is "".
func Prefix(rawURL string) (string, error) {
	u, err := parse(rawURL)
	if err != nil || u.Scheme == "file" {
		return "", err
	}
	prefix := u.Path // a "/" at its beginning is the key's
	if prefix != "" && !strings.HasSuffix(prefix, "/") {
		prefix += "/"
	}
	return prefix, nil
}

// parse splits a URL without decoding it: a bucket's prefix is a key, and "%" in it is a byte like any
// other.
func parse(raw string) (*url.URL, error) {
	if dir, ok := strings.CutPrefix(raw, "file://"); ok {
		if !path.IsAbs(dir) {
			return nil, fmt.Errorf("origin %q: a directory is named file:///absolute/path", raw)
		}
		return &url.URL{Scheme: "file", Path: path.Clean(dir)}, nil
	}
	rest, ok := strings.CutPrefix(raw, "s3://")
	bucket, prefix, _ := strings.Cut(rest, "/")
	if !ok || bucket == "" || strings.ContainsAny(bucket, "?#@: \\") {
		return nil, fmt.Errorf("origin %q is neither s3://bucket/prefix nor file:///dir", raw)
	}
	if i := strings.IndexFunc(bucket, notInBucket); i >= 0 {
		return nil, fmt.Errorf("origin %q: no bucket's name has %q in it; it is made of lower-case letters, digits, dots and hyphens", raw, bucket[i:i+1])
	}
	return &url.URL{Scheme: "s3", Host: bucket, Path: prefix}, nil
}

// notInBucket reports whether a bucket's name cannot have a rune. Old names may have capitals and
// underscores.
func notInBucket(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '-' || r == '_')
}
