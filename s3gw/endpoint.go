package s3gw

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hearthfs/hearth/s3gw/keys"
	"github.com/hearthfs/hearth/s3gw/object"
)

// Bytes reads one object ahead of its reader.
type Bytes = object.Bytes

// Setup is the configuration of an endpoint. The zero Setup means that there is none.
type Setup struct {
	// Listen is the address, HOST:PORT or :PORT; "" means that there is no endpoint.
	Listen string
	// CredentialsFile says who may do what, a line each: ACCESS SECRET ro|rw BUCKET[/PREFIX]|*. ""
	// means one key, from AccessVariable and SecretVariable, that may read and write all, or no
	// key.
	CredentialsFile string
	// Anonymous are buckets, BUCKET[/PREFIX] or "*", that anybody may read.
	Anonymous []string
	// Certificate and CertificateKey are PEM files, read again when they change; "" means no TLS.
	Certificate, CertificateKey string
	// Domains are names under which buckets are hosts: bucket.DOMAIN.
	Domains []string
	// AllBuckets passes every bucket of the origin's account through.
	AllBuckets bool
	// Configure passes on the requests that configure buckets, such as policies and lifecycle
	// rules.
	Configure bool
	// AccessLog is a file with a line for each request, in the format of Amazon's server access
	// log. "" means that none is written.
	AccessLog string
	// CORS are the origins whose pages may use the endpoint, as browsers write them
	// (https://app.example.org), each with at most one *. None means no page.
	CORS []string
	// MaxConnections and MaxRequests bound open connections and requests at work. 0 means
	// DefaultConnections and DefaultRequests. A quarter of the open files limit bounds connections,
	// too.
	MaxConnections, MaxRequests int
}

// AccessVariable and SecretVariable hold the endpoint's one key where no file of keys is named.
// That key may read and write all.
const (
	AccessVariable = "HEARTH_S3_ACCESS_KEY"
	SecretVariable = "HEARTH_S3_SECRET_KEY"
)

// DefaultListen is where `hearth gateway` listens unless told.
const DefaultListen = "127.0.0.1:9875"

// Problems returns what is wrong in the Setup, by the keys of the configuration. It looks at no
// files.
func (s Setup) Problems() map[string]error {
	all := map[string]error{}
	if s.Listen == "" {
		for key, set := range map[string]bool{"s3.credentials_file": s.CredentialsFile != "", "s3.anonymous": len(s.Anonymous) > 0, "s3.certificate": s.Certificate != "", "s3.certificate_key": s.CertificateKey != "",
			"s3.domains": len(s.Domains) > 0, "s3.all_buckets": s.AllBuckets, "s3.configure": s.Configure, "s3.access_log": s.AccessLog != "", "s3.cors": len(s.CORS) > 0,
			"s3.max_connections": s.MaxConnections != 0, "s3.max_requests": s.MaxRequests != 0} {
			if set {
				all[key] = fmt.Errorf("%s: this node answers no S3 clients: say where (s3.listen), or take this setting away", key)
			}
		}
		return all
	}
	if (s.Certificate == "") != (s.CertificateKey == "") {
		all["s3.certificate"] = fmt.Errorf("s3.certificate and s3.certificate_key belong together: give both")
	}
	for _, d := range s.Domains {
		if d == "" || strings.ContainsAny(d, ":/*") || d[0] == '.' || d[len(d)-1] == '.' { // no client's Host would match it
			all["s3.domains"] = fmt.Errorf("s3.domains: %q is no name: give it without scheme, port, path, * and outer dots, as s3.example.org", d)
		}
	}
	if s.CredentialsFile == "" && len(s.Anonymous) == 0 && os.Getenv(AccessVariable) == "" {
		all["s3.credentials_file"] = fmt.Errorf("s3.listen: nobody could ask: give s3.credentials_file (a line ACCESS SECRET ro|rw BUCKET[/PREFIX]|*), or one key in %s and %s, or s3.anonymous for what anybody may read", AccessVariable, SecretVariable)
	}
	if _, err := s.rules(); err != nil {
		all["s3.cors"] = fmt.Errorf("s3.cors: %w", err)
	}
	return all
}

// rules returns the CORS rules; nil means none. The exposed names are for pages that send
// credentials; for all others * exposes every header.
func (s Setup) rules() (*CORSRules, error) {
	if len(s.CORS) == 0 {
		return nil, nil
	}
	return newCORS([]CORSRule{{Origins: s.CORS, Methods: []string{"GET", "HEAD", "PUT", "POST", "DELETE"},
		Expose: []string{"ETag", "x-amz-request-id", "x-amz-id-2", "x-amz-version-id", "x-amz-delete-marker", "x-amz-bucket-region", "x-amz-mp-parts-count", "*"}, MaxAge: time.Hour}})
}

// Endpoint is a Gateway and where it answers.
type Endpoint struct {
	*Gateway
	setup  Setup
	keys   *keys.Keys
	server *Server
	log    *accessLog // nil means that none is written
	end    func()     // Close's work, done once
}

// Open starts an endpoint; the caller must Close it. For keys and the access log the Setup counts,
// not the Options.
func Open(ctx context.Context, s Setup, o Options) (*Endpoint, error) {
	for _, err := range s.Problems() {
		return nil, err
	}
	if o.Begun > 0 && len(o.Links()) == 0 && o.Other == nil {
		return nil, errors.New("s3.listen: S3 clients are shown buckets, and no link of this node leads to one: give an origin s3://bucket/prefix")
	}
	if err := clashing(o.Links()); err != nil {
		return nil, err
	}
	trouble := o.Trouble
	report := func(err error) {
		if trouble != nil {
			trouble("file of the endpoint goes on as it was", "cause", err)
		}
	}
	said := func(line string) {
		if trouble != nil {
			trouble("endpoint's server", "said", line)
		}
	}
	rights := ""
	if len(s.Anonymous) > 0 {
		rights = "ro " + strings.Join(s.Anonymous, " ")
	}
	x := &Endpoint{setup: s}
	x.end = sync.OnceFunc(x.close)
	var err error
	x.keys, err = keys.Open(keys.Options{File: s.CredentialsFile, Access: os.Getenv(AccessVariable), Secret: os.Getenv(SecretVariable), Anonymous: rights, Report: report})
	if err != nil {
		return nil, err
	}
	if s.AccessLog != "" {
		if x.log, err = openAccessLog(s.AccessLog, o.Pool, report); err != nil {
			return nil, err
		}
		o.Access = x.log.Take
	}
	o.Keys, o.Domains, o.Configure, o.MostRequests = x.keys, s.Domains, s.Configure, s.MaxRequests
	o.CORS, _ = s.rules() // Problems looked at them
	x.Gateway = New(o)
	x.server, err = Listen(ctx, ServerOptions{Listen: s.Listen, Certificate: s.Certificate, Key: s.CertificateKey, Handler: x.Gateway, MostConnections: s.MaxConnections, Trouble: report, Said: said})
	if err != nil {
		x.Close()
		return nil, err
	}
	return x, nil
}

// Reload reads keys and certificate again, changed or not, and reopens a log that was moved away. A
// bad file has no effect: the old content stays in force.
func (x *Endpoint) Reload() error {
	if x.log != nil {
		x.log.Reopen()
	}
	return errors.Join(x.keys.Reload(), x.server.Reload())
}

// Wait returns when ctx ends, and then closes the endpoint; or earlier, if the server stops.
func (x *Endpoint) Wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		x.Close()
		return nil
	case <-x.server.Done():
		x.Close() // requests under way end before what they read from
		return x.server.Err()
	}
}

// Close ends the endpoint and the requests under way.
func (x *Endpoint) Close() { x.end() }

func (x *Endpoint) close() {
	if x.server != nil {
		x.server.Close()
	}
	if x.Gateway != nil {
		x.Gateway.Close()
	}
	if x.log != nil {
		x.log.Close()
	}
}

// Summary is the state of the endpoint.
type Summary struct {
	// Listen is where it answers, TLS whether with TLS.
	Listen string
	TLS    bool
	// Buckets that it shows, by name.
	Buckets []string
	// Keys is how many may ask, Anonymous whether anybody may.
	Keys      int64
	Anonymous bool
	// Bounds are the bounds for all clients together, and their use.
	Bounds Bounds
	// Ill says why a changed file of keys is not in force; nil means that all is well.
	Ill error
}

// Summary returns the present one.
func (x *Endpoint) Summary() Summary {
	k := x.keys.Stats()
	s := Summary{Listen: x.server.Addr().String(), TLS: x.setup.Certificate != "", Keys: int64(k.Keys), Anonymous: len(x.setup.Anonymous) > 0, Ill: k.Err}
	c := x.server.Connections()
	s.Bounds = x.rooms.bounds()
	s.Bounds.Connections, s.Bounds.MostConnections, s.Bounds.Closed = c.Open, c.Most, c.Closed
	for _, l := range x.o.Links() {
		s.Buckets = append(s.Buckets, l.Bucket)
	}
	slices.Sort(s.Buckets)
	s.Buckets = slices.Compact(s.Buckets)
	return s
}
