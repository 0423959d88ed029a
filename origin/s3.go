package origin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"golang.org/x/time/rate"

	"github.com/hearthfs/hearth/origin/identity"
	"github.com/hearthfs/hearth/origin/sign"
)

// S3 is a bucket behind an S3 endpoint.
type S3 struct {
	link, bucket, prefix string
	prober               string // how the names begin of what is put there to find out its abilities
	identity             string
	says                 said
	root                 string // the endpoint's path, "" or "/storage/s3"
	anonymous            bool
	pathStyle            bool
	fixedRegion          bool
	silence              silence // silence.Read is the timeout of reads
	retry                Retry
	transport            *http.Transport
	keys                 *identity.Keyring
	signer               sign.Signer
	place                atomic.Pointer[place]
	data, meta           chan struct{} // semaphores: each request in flight holds a token
	passes               passes        // semaphores of forwarded requests
	limit                *rate.Limiter // nil: no limit
	shown                manner
	out                  *writer
	counts               counters
}

// said are headers that each request has.
type said struct {
	agent  []string
	coding []string // accepted encodings of objects: without gzip Google's servers decompress some
	payer  []string // nil: the bucket's owner
}

// place is where requests go. It changes once at most, when AWS says that the bucket lies in another
// region than the one guessed.
type place struct {
	region, scheme, host string
	base                 string // what stands before a key in a request's path
	whole                string // path of requests about the bucket; "": base and "/"
}

// path is the path of a key in requests; for "" it is the bucket's.
func (p *place) path(key string) string {
	if key == "" && p.whole != "" {
		return p.whole
	}
	return p.base + "/" + key
}

func (p *place) url() string { return p.scheme + "://" + p.host }

type counters struct {
	gets, heads, lists, passes, bytes, names, errors, retries, throttled, resumed atomic.Int64
	firstByte                                                                     Latency
	last                                                                          atomic.Pointer[Failure]
}

// DefaultConnections bounds requests to an S3 origin. Small objects 20 ms away come faster the more
// are in flight, up to some 130 on two cores, and an eighth is for names. Warm-up
// uses as many as raise its throughput.
const DefaultConnections = 160

// DefaultTimeout is how long an origin may be silent over a read, where no other bound is configured.
const DefaultTimeout = 10 * time.Second

const defaultRegion = "us-east-1"

func newS3(ctx context.Context, c Config, u *url.URL) (*S3, error) {
	c, err := c.fromEnvironment(ctx)
	if err != nil && c.Anonymous { // else a request's search says it
		return nil, fmt.Errorf("read the AWS settings: %w", err)
	}
	s := &S3{link: c.Link, bucket: u.Host, anonymous: c.Anonymous, says: said{agent: []string{c.UserAgent}, coding: []string{"gzip"}}, identity: c.Identity,
		fixedRegion: c.Region != "", silence: newSilence(cmp.Or(c.Timeout, DefaultTimeout))}
	s.prefix, _ = Prefix(c.URL) // it was parsed before
	s.prober = c.prober()
	s.retry = c.Retry.withDefaults(s.silence.Read)
	if c.UserAgent == "" {
		s.says.agent = []string{"hearth/dev"}
	}
	if c.RequesterPays {
		if s.says.payer = []string{"requester"}; c.Anonymous {
			return nil, fmt.Errorf("origin %s: requester_pays and anonymous: a requester who pays needs credentials; leave one of them out", c.URL)
		}
	}
	if err := s.locate(c); err != nil {
		return nil, err
	}
	if c.Connections <= 0 {
		c.Connections = DefaultConnections
	}
	s.slots(c.Connections)
	if s.out, err = newWriter(c.Write, c.Connections); err != nil {
		return nil, err
	}
	if s.transport, err = newTransport(c.Connections+s.out.Connections, c.CAFile, PassPatience); err != nil {
		return nil, err
	}
	s.keys = identity.New(identity.Options{Region: c.Region, Roots: s.transport.TLSClientConfig.RootCAs}, func(err error) {
		s.note("probe", s.prefix, err) // no request failed
	})
	if c.Bandwidth > 0 {
		// The burst is a block, so that a limit never cuts one read into many.
		s.limit = rate.NewLimiter(rate.Limit(c.Bandwidth), hearth.BlockSize)
	}
	return s, nil
}

// slots divides the connections. An eighth is for names, so that a look-up never waits behind sixty
// downloads. If there are too few to divide, both use all. Forwarded requests may use half of the rest.
func (s *S3) slots(n int) {
	s.data = make(chan struct{}, n)
	s.meta = s.data
	if n >= 4 {
		names := max(1, n/8)
		s.data, s.meta = make(chan struct{}, n-names), make(chan struct{}, names)
	}
	n = max(1, cap(s.data)/2)
	s.passes = passes{make(chan struct{}, n), newShares(max(1, n/2))}
}

// Identity is what the origin is called in versions, as in hearth.VersionOf.
func (s *S3) Identity() string { return s.identity }

// locate decides the endpoint, the addressing style and the identity.
func (s *S3) locate(c Config) error {
	region := c.Region
	if region == "" {
		region = defaultRegion
	}
	if strings.ContainsAny(region, " \t\r\n/") {
		return fmt.Errorf("region %q is none: write it in one word", region)
	}
	switch c.PathStyle {
	case "", "auto":
		// A bucket with dots has no certificate as a virtual host.
		s.pathStyle = c.Endpoint != "" && !isAWS(c.Endpoint) || strings.Contains(s.bucket, ".")
	case "on", "off":
		s.pathStyle = c.PathStyle == "on"
	default:
		return fmt.Errorf("path style %q is none of auto, on and off", c.PathStyle)
	}
	if c.Endpoint == "" || isAWS(c.Endpoint) {
		if s.identity == "" {
			s.identity = "s3 " + s.bucket
		}
	}
	if c.Endpoint == "" {
		s.place.Store(s.atAWS(region))
		return nil
	}
	endpoint := c.Endpoint
	if !strings.Contains(endpoint, "://") {
		endpoint = "https://" + endpoint
	}
	u, err := url.Parse(endpoint)
	if err != nil {
		return fmt.Errorf("endpoint %q is not http://host:port or https://host:port", c.Endpoint)
	}
	if err := s.check(u); err != nil {
		return fmt.Errorf("endpoint %q %w", c.Endpoint, err)
	}
	if s.root = strings.TrimRight(u.Path, "/"); s.identity == "" {
		s.identity = "s3 " + u.Scheme + "://" + u.Host + s.root + " " + s.bucket
	}
	s.place.Store(s.at(region, u.Scheme, u.Host))
	return nil
}

// check says why an endpoint is not valid. An endpoint may have a path, as Supabase's does. But a path
// or host that contains the bucket's name was copied from a link to the bucket.
func (s *S3) check(u *url.URL) error {
	path := strings.TrimRight(u.Path, "/")
	switch {
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return errors.New("is not http://host:port or https://host:port")
	case u.User != nil:
		return errors.New("has a user in it: keys go into AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
	case u.RawQuery != "" || u.Fragment != "":
		return errors.New("has more than a host and a path: leave out what follows \"?\" or \"#\"")
	case path == "/"+s.bucket, strings.HasSuffix(path, "/"+s.bucket):
		return fmt.Errorf("has the bucket in it: write %s://%s%s", u.Scheme, u.Host, strings.TrimSuffix(path, "/"+s.bucket))
	case isAWS(u.String()) && strings.HasPrefix(u.Host, s.bucket+".s3"):
		return fmt.Errorf("has the bucket in it: write %s://%s", u.Scheme, strings.TrimPrefix(u.Host, s.bucket+"."))
	}
	return nil
}

func isAWS(endpoint string) bool {
	u, err := url.Parse(endpoint)
	return err == nil && (strings.HasSuffix(u.Hostname(), ".amazonaws.com") || strings.HasSuffix(u.Hostname(), ".amazonaws.com.cn"))
}

func (s *S3) atAWS(region string) *place {
	domain := ".amazonaws.com"
	if strings.HasPrefix(region, "cn-") {
		domain += ".cn"
	}
	return s.at(region, "https", "s3."+region+domain)
}

func (s *S3) at(region, scheme, host string) *place {
	p := &place{region: region, scheme: scheme, host: s.bucket + "." + host, base: s.root}
	if s.pathStyle {
		p.host, p.base = host, s.root+"/"+s.bucket
		p.whole = p.base
	}
	return p
}

// Close closes idle connections, and ends a search for credentials.
func (s *S3) Close() error {
	s.keys.Close()
	s.transport.CloseIdleConnections()
	return nil
}

// Reread searches for credentials anew: files, tokens and services may have changed. If it finds none
// that can be used, it returns an error, and the former ones stay in use.
func (s *S3) Reread(ctx context.Context) error {
	if s.anonymous {
		return nil
	}
	if err := s.keys.Reread(ctx); err != nil {
		return fmt.Errorf("read the credentials again: %w", err)
	}
	return nil
}

// Stats returns the figures since the start.
func (s *S3) Stats() Stats {
	c, w := &s.counts, &s.out.counts
	return Stats{Puts: w.puts.Load(), Parts: w.parts.Load(), Copies: w.copies.Load(), Written: w.bytes.Load(), Writing: int64(len(s.out.slots)),
		Gets: c.gets.Load(), Heads: c.heads.Load(), Lists: c.lists.Load(), Passes: c.passes.Load(), Bytes: c.bytes.Load(), NameBytes: c.names.Load(), Errors: c.errors.Load(),
		Retries: c.retries.Load(), Throttled: c.throttled.Load(), Resumed: c.resumed.Load(), InFlight: int64(len(s.data)), FirstByte: c.firstByte.Stats(time.Now()), Last: c.last.Load()}
}

// Head asks what a key names now.
func (s *S3) Head(ctx context.Context, key string) (hearth.Object, error) {
	o, _, err := s.head(ctx, key)
	return o, err
}

func (s *S3) head(ctx context.Context, key string) (hearth.Object, http.Header, error) {
	release, err := acquire(ctx, s.meta)
	if err != nil {
		return hearth.Object{}, nil, err
	}
	defer release()
	a, err := s.ask(ctx, &call{op: "head", method: http.MethodHead, key: key}, &budget{Retry: s.retry})
	if err != nil {
		return hearth.Object{}, nil, err
	}
	defer a.close()
	h := a.resp.Header
	if a.resp.ContentLength < 0 {
		return hearth.Object{}, nil, s.wrap("head", key, fmt.Errorf("%w: no Content-Length", errLied))
	}
	modified, _ := http.ParseTime(h.Get("Last-Modified")) // a zero time is none
	o := s.object(key, bareETag(h.Get("ETag")), a.resp.ContentLength, modified)
	if class := h.Get("X-Amz-Storage-Class"); class != "STANDARD" {
		o.Class = class
	}
	return o, h, nil
}

// object makes a complete Object.
func (s *S3) object(key, etag string, size int64, modified time.Time) hearth.Object {
	return hearth.Object{Link: s.link, Key: key, ETag: etag, Size: size, ModTime: modified, Version: hearth.VersionOf(s.identity, key, etag, size)}
}

// bareETag removes the quotes: "abc" becomes abc, W/"abc" becomes W/abc.
func bareETag(etag string) string {
	if strings.HasPrefix(etag, "W/") {
		return "W/" + strings.Trim(etag[2:], `"`)
	}
	return strings.Trim(etag, `"`)
}

// acquire takes a token of a semaphore.
func acquire(ctx context.Context, slots chan struct{}) (release func(), err error) {
	select {
	case slots <- struct{}{}:
		return func() { <-slots }, nil
	default:
	}
	select {
	case slots <- struct{}{}:
		return func() { <-slots }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for a connection to the origin: %w", context.Cause(ctx))
	}
}

func (s *S3) wrap(op, key string, err error) error {
	e := new(Error)
	if !errors.As(err, &e) {
		e = &Error{Err: err}
		err = e
	}
	e.pays = s.says.payer != nil
	if e.Op, e.Where = op, "s3://"+s.bucket+"/"+key; e.via == "" {
		e.Endpoint = s.place.Load().url()
	}
	return err
}

// renew handles what a second attempt can cure at once: a key that was replaced, a token that expired,
// and a bucket in another region than the one guessed.
func (s *S3) renew(ctx context.Context, err error, used *credentials.Value) bool {
	var e *Error
	if !errors.As(err, &e) {
		return false
	}
	switch e.Code {
	case "ExpiredToken", "ExpiredTokenException", "InvalidToken", "InvalidAccessKeyId", "XAdminUserNotFound", "SignatureDoesNotMatch":
		return s.keys.Refused(ctx, *used)
	}
	p := s.place.Load()
	if e.Region == "" || e.Region == p.region || s.fixedRegion || e.Status == http.StatusOK || errors.Is(err, fs.ErrNotExist) {
		return false
	}
	if strings.HasSuffix(p.host, "s3."+p.region+".amazonaws.com") {
		s.place.Store(s.atAWS(e.Region))
	} else {
		moved := *p
		moved.region = e.Region
		s.place.Store(&moved)
	}
	return true
}

// Bucket is the bucket's name.
func (s *S3) Bucket() string { return s.bucket }

// Account is the scope in which a bucket's name is unique: one name at origins of two accounts may be
// two buckets. It is not secret. All endpoints of one of Amazon's partitions are one account, since
// names are unique in a partition ("General purpose bucket naming rules" in the S3 user guide).
// Elsewhere it is the endpoint, and whether requests are signed, as some servers have names per tenant.
// All signed requests use the process's one key.
func (s *S3) Account() string {
	p := s.place.Load()
	at := url.URL{Host: strings.ToLower(p.host)}
	if !s.pathStyle {
		at.Host = strings.TrimPrefix(at.Host, s.bucket+".")
	}
	switch name := at.Hostname(); {
	case !isAWS("https://" + at.Host):
		if at.Port() == map[string]string{"http": "80", "https": "443"}[p.scheme] {
			at.Host = strings.TrimSuffix(at.Host, ":"+at.Port())
		}
		if s.anonymous {
			return p.scheme + "://" + at.Host + s.root + " unsigned"
		}
		return p.scheme + "://" + at.Host + s.root
	case strings.HasSuffix(name, ".cn"):
		return "aws-cn"
	case strings.Contains(name, ".us-gov-"):
		return "aws-us-gov"
	}
	return "aws"
}

// Fractions reports whether the origin's listings have told fractions of seconds. One key that has some
// shows it for all.
func (s *S3) Fractions() bool { return s.shown.fractions.Load() }

// Region is the one that the bucket lies in, as far as it is known.
func (s *S3) Region() string { return s.place.Load().region }
