// Package identity finds out with which identity a bucket is asked, by the chain of the AWS SDK.
//
// The SDK looks, in this order, at the keys in variables, at a web identity in variables, at the
// profile in force (keys, an assumed role, web identity, SSO, a login session, a process), at a
// container's agent, and at the instance's metadata. This package adds rules of its own:
//
//   - What is named is used, or it is an error that names it, says why and how to mend it. Only the
//     instance's metadata is asked without being named: nothing else falls through to it silently. A
//     profile that AWS_PROFILE names must exist even where keys in variables go before it.
//   - Keys in variables go before AWS_PROFILE, unless its profile itself uses them to assume a role.
//   - Metadata and agents are asked without a proxy: a proxy would answer with the role of the
//     machine that it runs on. STS, SSO and its OIDC service are asked through the environment's
//     proxy.
//   - White space at the ends of variables, token files and answers is removed: a secret that was
//     written by echo has a newline.
//   - No message has a secret in it: not what a process printed, nor a token that an agent repeats.
//
// A Keyring caches what was found. It searches for new credentials when a fifth of their time is left,
// when a file of profiles changed, and when an origin refused them. One search serves all who wait
// (singleflight). Nobody waits while the old credentials are good, and a search that fails leaves them
// in use.
package identity

import (
	"cmp"
	"context"
	"crypto/x509"
	"net"
	"net/http"
	"strings"
	"time"
	"unicode"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials/ec2rolecreds"
	"github.com/aws/aws-sdk-go-v2/credentials/endpointcreds"
	"github.com/aws/aws-sdk-go-v2/credentials/stscreds"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
	"github.com/aws/smithy-go/logging"
	"github.com/aws/smithy-go/middleware"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// Identity is what was found.
type Identity struct {
	// Value has the keys, which are secret.
	Value credentials.Value
	// How says how it was found, in words: profile, file, role, never a secret.
	How string
	// Expires is when it expires. Zero means that it does not, or that the time is unknown.
	Expires time.Time

	ofFiles bool // it came from files of profiles
}

// Options say how services are asked.
type Options struct {
	// Region is that of STS where neither the variables nor the profile name one; "": us-east-1.
	Region string
	// Roots are the trusted certificates; nil: the system's.
	Roots *x509.CertPool
}

// serviceTimeout bounds one request to a service. A search makes three, and doctor waits
// 20 s for all of them.
const serviceTimeout = 5 * time.Second

// directTimeout bounds the connection to an agent, which runs on this machine or the next.
const directTimeout = time.Second

// metadataAttempts bounds the requests for an instance's metadata: three take five
// seconds where nobody answers, and most machines are not instances.
const metadataAttempts = 2

const defaultRegion = "us-east-1"

// chain searches for an identity, anew each time: files and tokens may have changed.
type chain struct {
	Options
	direct  aws.HTTPClient // for metadata and agents; nil: one without a proxy
	proxied aws.HTTPClient // for all else; nil: one with the environment's
}

// find asks the SDK. It first finds out what the SDK will find, or why it cannot.
func (c *chain) find(ctx context.Context) (*Identity, *Error) {
	e, failed := look(ctx)
	if failed != nil {
		return nil, failed
	}
	from, failed := e.source()
	if failed != nil {
		return nil, failed
	}
	machine := &instance{}
	cfg, err := config.LoadDefaultConfig(ctx, c.options(ctx, e, from, machine)...)
	if err != nil {
		return nil, from.failed(err)
	}
	own := cfg.Copy()
	own.HTTPClient = c.client(c.direct, false)
	own.Retryer = func() aws.Retryer {
		return retry.NewStandard(func(o *retry.StandardOptions) { o.MaxAttempts = metadataAttempts })
	}
	machine.client = imds.NewFromConfig(own)
	v, err := cfg.Credentials.Retrieve(ctx)
	if err != nil {
		return nil, from.failed(err)
	}
	id := &Identity{How: from.how, ofFiles: from.ofFiles, Value: credentials.Value{SignerType: credentials.SignatureV4,
		AccessKeyID:     strings.TrimSpace(v.AccessKeyID),
		SecretAccessKey: strings.TrimSpace(v.SecretAccessKey),
		SessionToken:    strings.TrimSpace(v.SessionToken)}}
	if v.CanExpire {
		id.Expires = v.Expires
	}
	if from.ends == ofInstance {
		id.How = strings.Replace(id.How, instanceRole, instanceRole+" "+machine.role, 1)
		if from.plain {
			id.Expires = machine.expires // the SDK caps it at an hour
		}
	}
	id.Value.Expiration = id.Expires
	if id.Value.AccessKeyID == "" || id.Value.SecretAccessKey == "" {
		return nil, &Error{Problem: from.how + ": the answer has no keys in it", Cure: from.cure}
	}
	if strings.ContainsFunc(id.Value.AccessKeyID+id.Value.SessionToken, unicode.IsControl) {
		return nil, &Error{Problem: from.how + ": there is a control character in the key or the session token",
			Cure: from.cure}
	}
	return id, nil
}

// options configure the SDK.
func (c *chain) options(ctx context.Context, e *environment, from *source, machine *instance) []func(*config.LoadOptions) error {
	options := []func(*config.LoadOptions) error{
		config.WithSharedConfigFiles(e.files[:1]), config.WithSharedCredentialsFiles(e.files[1:]),
		config.WithHTTPClient(c.client(c.proxied, true)),
		config.WithDefaultRegion(cmp.Or(c.Region, defaultRegion)),
		// Mode auto would ask the instance for its region, through a proxy.
		config.WithDefaultsMode(aws.DefaultsModeLegacy),
		config.WithLogger(logging.Nop{}),
		config.WithCredentialsCacheOptions(func(o *aws.CredentialsCacheOptions) { o.ExpiryWindow = 0 }), // the Keyring renews early
		config.WithEC2RoleCredentialOptions(func(o *ec2rolecreds.Options) { o.Client = machine }),
		config.WithEndpointCredentialOptions(func(o *endpointcreds.Options) {
			o.HTTPClient = c.client(c.direct, false)
			o.AuthorizationToken, o.AuthorizationTokenProvider = from.token, nil
		}),
		config.WithWebIdentityRoleCredentialOptions(func(o *stscreds.WebIdentityRoleOptions) {
			if from.token != "" {
				o.TokenRetriever = heldToken(from.token)
			}
		}),
		// The SDK lets its requests outlive their callers.
		config.WithAPIOptions([]func(*middleware.Stack) error{endsWith(ctx)}),
	}
	if from.profileFirst {
		options = append(options, config.WithSharedConfigProfile(e.profile))
	}
	return options
}

// client is the given one, or one of the SDK's own: the SDK adds a profile's certificates only to its
// own. It keeps no connection alive: hours pass between two searches.
func (c *chain) client(given aws.HTTPClient, proxy bool) aws.HTTPClient {
	if given != nil {
		return given
	}
	made := awshttp.NewBuildableClient().WithTimeout(serviceTimeout)
	if !proxy {
		made = made.WithDialerOptions(func(d *net.Dialer) { d.Timeout = directTimeout })
	}
	return made.WithTransportOptions(func(t *http.Transport) {
		t.DisableKeepAlives = true
		if !proxy {
			t.Proxy = nil
		}
		if c.Roots != nil {
			t.TLSClientConfig.RootCAs = c.Roots.Clone() // the SDK writes to it
		}
	})
}

// heldToken is a web identity token that was read, and found to be one line.
type heldToken string

// GetIdentityToken returns the token. The SDK calls it before each exchange.
func (t heldToken) GetIdentityToken() ([]byte, error) { return []byte(t), nil }

// endsWith makes the SDK's requests end with a context.
func endsWith(outer context.Context) func(*middleware.Stack) error {
	return func(stack *middleware.Stack) error {
		return stack.Initialize.Add(middleware.InitializeMiddlewareFunc("EndsWithSearch", func(ctx context.Context, in middleware.InitializeInput,
			next middleware.InitializeHandler) (middleware.InitializeOutput, middleware.Metadata, error) {
			ctx, cancel := context.WithCancelCause(ctx)
			defer cancel(nil)
			defer context.AfterFunc(outer, func() { cancel(context.Cause(outer)) })()
			return next.HandleInitialize(ctx, in)
		}), middleware.Before)
	}
}
