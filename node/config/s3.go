package config

// S3 is a node's S3 endpoint; the zero S3: it has none.
type S3 struct {
	// Listen is the address, HOST:PORT or :PORT; "": there is no endpoint.
	Listen string
	// CredentialsFile says who may do what, a line each: ACCESS SECRET ro|rw BUCKET[/PREFIX]|*. "":
	// one key, of S3AccessVariable and S3SecretVariable, that may read and write all, or none.
	CredentialsFile string
	// Anonymous are buckets, BUCKET[/PREFIX] or "*", that anybody may read.
	Anonymous []string
	// Certificate and CertificateKey are PEM files, read again when they change; "": no TLS.
	Certificate, CertificateKey string
	// Domains are names under which buckets are hosts: bucket.DOMAIN.
	Domains []string
	// AllBuckets passes every bucket of the origin's account through.
	AllBuckets bool
	// Configure passes what configures buckets: policies, lifecycle rules and such.
	Configure bool
	// AccessLog is a file that gets a line for each request, as of Amazon's server access
	// log; "": none is written.
	AccessLog string
	// CORS are the origins whose pages may use the endpoint, as browsers write them
	// (https://app.example.org), each with at most one *; none: no page.
	CORS []string
	// MaxConnections may be open and MaxRequests at work at once; 0: 10,000 and 5,000. A quarter of
	// the limit on open files bounds connections, too.
	MaxConnections, MaxRequests int
}

// S3AccessVariable and S3SecretVariable are where the endpoint's one key is looked for when
// no file of keys is named.
const (
	S3AccessVariable = "HEARTH_S3_ACCESS_KEY"
	S3SecretVariable = "HEARTH_S3_SECRET_KEY"
)

// DefaultS3Listen is where `hearth gateway` listens unless told.
const DefaultS3Listen = "127.0.0.1:9875"
