package origin

import (
	"bufio"
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
)

// FromEnvironment fills what a Config leaves open from the AWS variables, then
// from the shared config's profile.
func (c Config) FromEnvironment() Config {
	profile := sharedProfile()
	first := func(values ...string) string {
		for _, v := range values {
			if v != "" {
				return v
			}
		}
		return ""
	}
	c.Endpoint = first(c.Endpoint, os.Getenv("AWS_ENDPOINT_URL_S3"), os.Getenv("AWS_ENDPOINT_URL"), profile["endpoint_url"])
	c.Region = first(c.Region, os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION"), profile["region"])
	c.CAFile = first(c.CAFile, os.Getenv("AWS_CA_BUNDLE"), profile["ca_bundle"])
	return c
}

// sharedProfile reads the settings of AWS_PROFILE from the shared config, which
// minio-go reads for credentials only.
func sharedProfile() map[string]string {
	settings, _ := profileIn("AWS_CONFIG_FILE", "config")
	return settings
}

// profileName is the profile in force.
func profileName() string {
	if name := os.Getenv("AWS_PROFILE"); name != "" {
		return name
	}
	return "default"
}

// missingProfile is the profile that AWS_PROFILE names and no shared file has; "":
// there is one, or none is named.
func missingProfile() string {
	_, inConfig := profileIn("AWS_CONFIG_FILE", "config")
	_, inCredentials := profileIn("AWS_SHARED_CREDENTIALS_FILE", "credentials")
	if inConfig || inCredentials {
		return ""
	}
	return os.Getenv("AWS_PROFILE")
}

// profileIn reads the profile's settings from the shared file that a variable
// names, or that of its name in ~/.aws; false: the file has no such profile.
func profileIn(variable, file string) (settings map[string]string, found bool) {
	settings = map[string]string{}
	path := os.Getenv(variable)
	if path == "" {
		home, _ := os.UserHomeDir() // without one there is no file
		path = filepath.Join(home, ".aws", file)
	}
	f, err := os.Open(path)
	if err != nil {
		return settings, false
	}
	defer f.Close()
	inside := false
	for lines := bufio.NewScanner(f); lines.Scan(); {
		line := strings.TrimSpace(lines.Text())
		if section, ok := strings.CutPrefix(line, "["); ok {
			section = strings.TrimSpace(strings.TrimSuffix(section, "]"))
			section = strings.TrimSpace(strings.TrimPrefix(section, "profile "))
			inside = section == profileName()
			found = found || inside
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		if inside && ok && !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, ";") {
			settings[strings.TrimSpace(key)] = strings.TrimSpace(value)
		}
	}
	return settings, found
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

func newKeyring() *keyring {
	providers := []credentials.Provider{&credentials.EnvAWS{}, &credentials.FileAWSCredentials{}}
	if metadata() {
		providers = append(providers, &credentials.IAM{})
	}
	return &keyring{
		turn:   make(chan struct{}, 1),
		creds:  credentials.NewChainCredentials(providers),
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
