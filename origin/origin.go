// Package origin reads the object stores that hold the truth: S3, and a local
// directory for tests and small sites.
//
// An Origin answers three questions - what is this key (Head), what keys are
// there (List), what are these bytes (Read) - and says at the start whether it
// can (Probe). Objects come out complete, with their Version computed.
//
// Nothing that an origin says is believed twice. A Read asks with If-Match and
// compares status, ETag, Content-Range and length of the answer with the Object;
// another version is hearth.ErrStale, whichever of them told, unless a HEAD finds the
// Object still there: then the origin is asked again. A body that is cut
// off or stalls is resumed at its offset, under the same comparison.
//
// Every retry is made here and nowhere else: a request has one budget of
// attempts and time, spent with jittered backoff on 5xx, SlowDown, timeouts and
// resets, on resumed bodies and on renewed credentials alike, and a Retry-After
// is honoured. What is left is an *Error, and Explain turns that into one line
// with its cure.
//
// S3 takes credentials from the AWS SDK's chain (package identity), and its signature from
// minio-go's: that one costs 17 us and 100 allocations, package sign 2 us, and is tested to
// give the same. minio-go's object layer stays aside: over one connection pool it costs a GET of
// 100 KiB a third more CPU than a request of our own, hides the answer's Content-Range and
// refuses keys that S3 allows.
//
// What is not a read of Hearth's own goes on as its client made it (S3.Forward, package onward):
// signed anew, streamed, and never sent twice if it may have been done.
//
// Bucket makes origins a hearth.Source: bytes go from the socket into the View.
// Order of waiting: first a connection, then memory, and never for memory while
// holding a View. Whoever holds memory thus waits for no connection, and
// whoever holds a connection waits only for memory that others will give back.
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
	// Head returns the object that a key names now, or an error that is
	// fs.ErrNotExist.
	Head(ctx context.Context, key string) (hearth.Object, error)
	// List streams what a Listing asks for in the byte order of keys, groups
	// among them as Objects of PrefixSize. An error of each ends it and is
	// returned.
	List(ctx context.Context, q hearth.Listing, each func(hearth.Object) error) error
	// Read opens bytes [off, off+n) of exactly this version, 0 < n, and yields n
	// bytes or an error; hearth.ErrStale when the version is gone.
	Read(ctx context.Context, o *hearth.Object, off, n int64) (io.ReadCloser, error)
	// Probe tries what Hearth needs; its error names the cure in one line.
	Probe(ctx context.Context) (Abilities, error)
	// Stats returns the figures since the start.
	Stats() Stats
}

// Abilities are what a Probe found.
type Abilities struct {
	// Objects says that there is an object to try ranges with. Without one the
	// fields below say nothing.
	Objects bool
	// Passed is why an object that was tried before another one cannot be read, with the
	// cure; "": none was. Where none can be read that was tried, and each is archived, the
	// fields below say nothing.
	Passed string
	// Range: a ranged GET is answered with that range and the whole size.
	Range bool
	// IfMatch: a GET under another ETag is refused. Where it is not, versions are
	// told apart by comparing answers, a round trip later.
	IfMatch bool
	// Listed and Told are what a listing and a HEAD said of the object that was tried; nil: they were
	// not asked, or a HEAD was in the place of the listing, too.
	Listed, Told *hearth.Object
	// StrongETag: objects have an ETag that is safe to cache by.
	StrongETag bool
	// Region that requests are signed for now, whether it was configured or the origin named it.
	Region string
	// RoundTrip is the time of the fastest request of the probe.
	RoundTrip time.Duration
}

// Stats are an origin's figures. Requests are attempts, retries included.
type Stats struct {
	Gets, Heads, Lists int64
	// Passes are those that were forwarded.
	Passes int64
	// Bytes of bodies that were read, NameBytes of them those of listings.
	Bytes, NameBytes int64
	// Errors are attempts that failed, Retries those tried again, Throttled those
	// that were answered SlowDown or 429, Resumed bodies that went on at an offset.
	Errors, Retries, Throttled, Resumed int64
	// InFlight are connections in use.
	InFlight int64
	// FirstByte is how long answers let wait for their first byte, those of errors too.
	FirstByte LatencyStats
	// Last is what failed last of what Errors counts, or a search for new credentials; nil: nothing did.
	Last *Failure
}

// Failure is when an attempt failed, and why, as Explain has it.
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
	// Endpoint is an S3 server's URL, with a path or without; "": AWS_ENDPOINT_URL_S3, what the
	// profile's services say of S3, AWS_ENDPOINT_URL, the profile's endpoint_url, then AWS.
	Endpoint string
	// Region to sign for; "": AWS_REGION, AWS_DEFAULT_REGION, the profile's
	// region, then what the origin says.
	Region string
	// PathStyle is auto, on or off; "" and auto: virtual hosts at AWS, else paths.
	PathStyle string
	// Anonymous sends requests without a signature.
	Anonymous bool
	// RequesterPays says in each request that who asks pays for it, as buckets demand
	// whose owner does not.
	RequesterPays bool
	// CAFile is a PEM file of certificates trusted besides the system's; "":
	// AWS_CA_BUNDLE, then the profile's ca_bundle.
	CAFile string
	// Identity replaces scheme, endpoint and bucket in versions, for one bucket
	// behind several endpoints.
	Identity string
	// UserAgent names the program and its version, "hearth/1.0".
	UserAgent string
	// Connections is the most requests at once; 0: DefaultConnections.
	Connections int
	// Bandwidth limits what is read, in bytes/s; 0: no limit.
	Bandwidth int64
	// Timeout is how long an answer or a body may be silent; 0: 10 s.
	Timeout time.Duration
	// Retry is the budget of each request.
	Retry Retry
}

// FromEnvironment fills what a Config leaves open from the AWS variables, then from the shared
// config's profile, as the AWS SDK does.
func (c Config) FromEnvironment() Config {
	c, _ = c.fromEnvironment(context.Background()) // what a broken profile would say is left open
	return c
}

func (c Config) fromEnvironment(ctx context.Context) (Config, error) {
	said, err := identity.Look(ctx)
	c.Endpoint = cmp.Or(strings.TrimSpace(c.Endpoint), said.Endpoint)
	c.Region = cmp.Or(strings.TrimSpace(c.Region), said.Region)
	c.CAFile = cmp.Or(c.CAFile, said.CAFile)
	return c, err
}

// Open makes the origin of a Config. It asks the origin nothing; Probe does.
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

// parse takes a URL apart without decoding it: a bucket's prefix is a key, and
// "%" in it is a byte like any other.
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

// notInBucket are the runes that a bucket's name cannot have, not even the old
// ones with capitals and underscores.
func notInBucket(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '-' || r == '_')
}
