package origin

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// fakeAWS stands for the services that give out credentials: security tokens for
// a web identity, an instance's metadata (version 2 only) and a container's. It
// is asked at their real names, which minio-go fixes: no variable changes them.
type fakeAWS struct {
	token string // the file that holds the web identity, or the pod's

	mu       sync.Mutex // guards the fields below
	host     string     // the one that answers; "": none does
	lifetime time.Duration
	access   string // of an account without sessions; "": a new session each time
	secret   string
	given    int // how often credentials were given
	refused  int // how many requests nobody answered
}

// RoundTrip answers as the service that a request names.
func (f *fakeAWS) RoundTrip(r *http.Request) (*http.Response, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r.URL.Host != f.host {
		f.refused++
		<-r.Context().Done() // a packet that nobody answers
		return nil, context.Cause(r.Context())
	}
	w := httptest.NewRecorder()
	switch {
	case strings.HasPrefix(r.URL.Host, "sts."):
		f.assumeRole(w, r)
	case r.URL.Host == "169.254.169.254":
		f.metadata(w, r)
	default:
		f.container(w, r)
	}
	return w.Result(), nil
}

// given is an answer with credentials, in the names of metadata and tokens.
type given struct {
	XMLName                      xml.Name `json:"-" xml:"Credentials"`
	Code                         string   `xml:"-"`
	AccessKeyId, SecretAccessKey string
	Token                        string `xml:"-"`
	SessionToken                 string `json:"-"`
	Expiration                   time.Time
}

func (f *fakeAWS) give() given {
	f.given++
	g := given{Code: "Success", AccessKeyId: f.access, SecretAccessKey: f.secret, Expiration: time.Now().Add(f.lifetime).UTC()}
	if g.AccessKeyId == "" {
		g.AccessKeyId, g.SecretAccessKey = fmt.Sprintf("KEY%d", f.given), "secret"
		g.Token = fmt.Sprintf("session %d", f.given)
		g.SessionToken = g.Token
	}
	return g
}

// identity is what the token's file holds now: it is replaced on the way.
func (f *fakeAWS) identity() string {
	text, _ := os.ReadFile(f.token) // none: no request has it
	return string(text)
}

func (f *fakeAWS) assumeRole(w http.ResponseWriter, r *http.Request) {
	const role = "arn:aws:iam::123456789012:role/reader"
	if r.Method != http.MethodPost || r.URL.Scheme != "https" || r.FormValue("Action") != "AssumeRoleWithWebIdentity" ||
		r.FormValue("RoleArn") != role || r.FormValue("RoleSessionName") == "" || r.FormValue("WebIdentityToken") != f.identity() {
		http.Error(w, "<ErrorResponse><Error><Code>AccessDenied</Code></Error></ErrorResponse>", http.StatusForbidden)
		return
	}
	text, err := xml.Marshal(f.give())
	if err != nil {
		panic(err)
	}
	_, _ = fmt.Fprintf(w, `<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleWithWebIdentityResult>%s</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>`, text)
}

func (f *fakeAWS) metadata(w http.ResponseWriter, r *http.Request) {
	const token = "metadata, version 2"
	switch {
	case r.Method == http.MethodPut && r.URL.Path == "/latest/api/token" && r.Header.Get("X-aws-ec2-metadata-token-ttl-seconds") != "":
		_, _ = fmt.Fprint(w, token)
	case r.Header.Get("X-aws-ec2-metadata-token") != token:
		http.Error(w, "version 1", http.StatusUnauthorized)
	case r.URL.Path == "/latest/meta-data/iam/security-credentials/":
		_, _ = fmt.Fprintln(w, "reader")
	case r.URL.Path == "/latest/meta-data/iam/security-credentials/reader":
		_ = json.NewEncoder(w).Encode(f.give())
	default:
		http.NotFound(w, r)
	}
}

func (f *fakeAWS) container(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/v1/credentials" || r.Header.Get("Authorization") != f.identity() {
		http.Error(w, "not you", http.StatusForbidden)
		return
	}
	_ = json.NewEncoder(w).Encode(f.give())
}

// services are the ways to come by credentials without a key in a variable or file.
var services = map[string]struct {
	host    string
	environ map[string]string
}{
	"web identity": {"sts.eu-central-1.amazonaws.com", map[string]string{
		"AWS_WEB_IDENTITY_TOKEN_FILE": "TOKEN", "AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/reader", "AWS_REGION": "eu-central-1"}},
	"instance": {"169.254.169.254", nil},
	"pod": {"169.254.170.23", map[string]string{
		"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://169.254.170.23/v1/credentials", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": "TOKEN"}},
}

// newFakeAWS clears the environment but for what the service needs.
func newFakeAWS(t *testing.T, service string) *fakeAWS {
	t.Helper()
	f := &fakeAWS{token: filepath.Join(t.TempDir(), "token"), host: services[service].host, lifetime: time.Hour}
	if err := os.WriteFile(f.token, []byte("identity 1"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOME", t.TempDir())
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "AWS_") {
			t.Setenv(name, "") // the test's end brings it back
		}
	}
	for name, value := range services[service].environ {
		t.Setenv(name, strings.ReplaceAll(value, "TOKEN", f.token))
	}
	return f
}

func TestServicesCredentialsSign(t *testing.T) {
	// A real server takes what was signed with the account that a service gave, and
	// nothing that was signed with another secret.
	server := hearthtest.StartS3(t)
	bucket := server.Bucket(t, "given")
	if _, err := server.PutBytes(t.Context(), bucket, "k", []byte("content")); err != nil {
		t.Fatal(err)
	}
	for service := range services {
		t.Run(service, func(t *testing.T) {
			f := newFakeAWS(t, service)
			f.access, f.secret = server.AccessKey, server.SecretKey
			if _, err := f.reader(t, bucket, server.Endpoint).Head(t.Context(), "k"); err != nil {
				t.Fatal(err)
			}
			f.secret = "another"
			if _, err := f.reader(t, bucket, server.Endpoint).Head(t.Context(), "k"); err == nil {
				t.Error("a server that verifies took a wrong secret")
			}
			if f.given != 2 {
				t.Errorf("asked %d times for two readers", f.given)
			}
		})
	}
}

func TestSessionsAreSentAndSigned(t *testing.T) {
	// What a service gives is a session: each request bears its token, under the
	// signature.
	for service := range services {
		t.Run(service, func(t *testing.T) {
			f := newFakeAWS(t, service)
			asked := make(chan http.Header, 1)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked <- r.Header
				http.NotFound(w, r)
			}))
			defer server.Close()
			if _, err := f.reader(t, "b", server.URL).Head(t.Context(), "k"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("what is not there: %v", err)
			}
			h := <-asked
			if h.Get("X-Amz-Security-Token") != "session 1" || !strings.Contains(h.Get("Authorization"), "Credential=KEY1/") ||
				!strings.Contains(h.Get("Authorization"), "x-amz-security-token,") {
				t.Errorf("the request's headers are %v", h)
			}
		})
	}
}

// reader asks a server with the credentials that the fake gives.
func (f *fakeAWS) reader(t *testing.T, bucket, endpoint string) *S3 {
	t.Helper()
	s := open(t, Config{URL: "s3://" + bucket, Endpoint: endpoint, Region: "us-east-1"}).(*S3)
	s.keys.client = &http.Client{Transport: f}
	return s
}

func TestCredentialsAreRenewedBeforeTheyExpire(t *testing.T) {
	// Credentials of an hour are renewed after 48 minutes, with the identity that the
	// file holds by then. While the service is away the old ones are good until they
	// expire; when it is back, new ones are had.
	for service := range services {
		t.Run(service, func(t *testing.T) {
			f := newFakeAWS(t, service)
			synctest.Test(t, func(t *testing.T) {
				k := newKeyring()
				k.client.Transport = f
				f.expect(t, k, "KEY1")
				time.Sleep(47 * time.Minute)
				f.expect(t, k, "KEY1")
				if err := os.WriteFile(f.token, []byte("identity 2"), 0o600); err != nil {
					t.Fatal(err)
				}
				time.Sleep(2 * time.Minute)
				f.expect(t, k, "KEY2")

				f.answer("")
				time.Sleep(49 * time.Minute) // 11 more until they expire
				f.expect(t, k, "KEY2")
				time.Sleep(10 * time.Minute)
				f.expect(t, k, "KEY2")
				time.Sleep(2 * time.Minute)
				f.expect(t, k, "")
				f.answer(services[service].host)
				time.Sleep(searchAgain)
				f.expect(t, k, "KEY3")
			})
		})
	}
}

func TestASearchInVainIsShared(t *testing.T) {
	// Many requests need credentials while the service is silent: they wait for one
	// search and all learn what came of it.
	f := newFakeAWS(t, "pod")
	f.host = ""
	synctest.Test(t, func(t *testing.T) {
		k := newKeyring()
		k.client.Transport = f
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() { f.expect(t, k, "") })
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		synctest.Wait()
		if _, err := k.get(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("whose own time is over: %v", err)
		}
		wg.Wait()
		if f.refused != 1 {
			t.Errorf("asked %d times, expected once", f.refused)
		}
	})
}

// answer has the service of a host answer, "": none.
func (f *fakeAWS) answer(host string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.host = host
}

func (f *fakeAWS) expect(t *testing.T, k *keyring, key string) {
	t.Helper()
	v, err := k.get(t.Context())
	if v.AccessKeyID != key || (key == "") != errors.Is(err, errNoCredentials) {
		t.Errorf("the key %q, %v; expected %q", v.AccessKeyID, err, key)
	}
	if key != "" && v.SessionToken != strings.Replace(key, "KEY", "session ", 1) {
		t.Errorf("the key %s has the token of %q", key, v.SessionToken)
	}
}
