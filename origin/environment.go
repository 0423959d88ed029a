package origin

import (
	"cmp"
	"context"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/hearthfs/hearth/origin/profile"
)

// FromEnvironment fills what a Config leaves open from the AWS variables, then
// from the shared config's profile.
func (c Config) FromEnvironment() Config {
	file := profile.Settings()
	first := func(values ...string) string {
		for _, v := range values {
			if v != "" {
				return v
			}
		}
		return ""
	}
	c.Endpoint = first(c.Endpoint, os.Getenv("AWS_ENDPOINT_URL_S3"), os.Getenv("AWS_ENDPOINT_URL"), file["endpoint_url"])
	c.Region = first(c.Region, os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION"), file["region"])
	c.CAFile = first(c.CAFile, os.Getenv("AWS_CA_BUNDLE"), file["ca_bundle"])
	return c
}

// keyring gives credentials, from where AWS programs take them: environment,
// shared files (SSO and credential processes included), web identity, container,
// instance.
type keyring struct {
	creds  *credentials.Credentials
	client *http.Client

	turn   chan struct{}     // taken while somebody searches; guards the fields below
	failed time.Time         // when the last search found nothing
	last   credentials.Value // what the last search found
}

// searchAgain is how long a search that found no credentials is remembered: an
// instance's metadata may take a second to say no, and every request asks.
const searchAgain = 5 * time.Second

// renewAgain is the same while the old credentials are still good: a service that
// is silent holds every request up for as long as a search takes.
const renewAgain = time.Minute

// providers are the places, the first that has credentials goes before all others.
func providers() []credentials.Provider {
	all := []credentials.Provider{&credentials.EnvAWS{}, &credentials.FileAWSCredentials{}}
	if metadata() {
		all = append(all, &credentials.IAM{})
	}
	return all
}

func newKeyring() *keyring {
	return &keyring{
		turn:   make(chan struct{}, 1),
		creds:  credentials.NewChainCredentials(providers()),
		client: &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true}},
	}
}

// metadata says whether a service may be asked for credentials. The variable
// that turns an instance's service off leaves the others on.
func metadata() bool {
	for _, name := range []string{"AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"} {
		if os.Getenv(name) != "" {
			return true
		}
	}
	return !strings.EqualFold(os.Getenv("AWS_EC2_METADATA_DISABLED"), "true")
}

// reread looks for credentials anew, from the first place on, and has all that follows use what it
// finds. Where nothing is found those of before go on.
func (k *keyring) reread(ctx context.Context) error {
	select {
	case k.turn <- struct{}{}:
		defer func() { <-k.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	found := credentials.NewChainCredentials(providers())
	v, err := found.GetWithContext(&credentials.CredContext{Client: k.client, Context: ctx})
	if err != nil || v.AccessKeyID == "" {
		return cmp.Or(context.Cause(ctx), errNoCredentials)
	}
	k.creds.Expire()
	k.failed = time.Time{}
	return nil
}

// get gives the credentials of now. minio-go asks for new ones when a fifth of
// their time is left: while the service is away, the old ones serve on for that.
// Who waited for another's search that failed does not begin the same.
func (k *keyring) get(ctx context.Context) (credentials.Value, error) {
	select {
	case k.turn <- struct{}{}:
		defer func() { <-k.turn }()
	case <-ctx.Done():
		return credentials.Value{}, context.Cause(ctx)
	}
	again := searchAgain
	if k.last.Expiration.After(time.Now()) {
		again = renewAgain
	}
	if time.Since(k.failed) >= again {
		v, err := k.creds.GetWithContext(&credentials.CredContext{Client: k.client, Context: ctx})
		if err == nil && v.AccessKeyID != "" {
			k.last = v
			return v, nil
		}
		if ctx.Err() == nil {
			k.failed = time.Now()
		}
	}
	if k.last.Expiration.After(time.Now()) {
		return k.last, nil
	}
	return credentials.Value{}, errNoCredentials
}
