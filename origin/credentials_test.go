package origin

import (
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// services are ways to come by credentials without a key in a variable: the variables that name each,
// in which URL stands for the services' and TOKEN for a token's file.
func services() map[string]map[string]string {
	return map[string]map[string]string{
		"web identity": {"AWS_ENDPOINT_URL_STS": "URL", "AWS_WEB_IDENTITY_TOKEN_FILE": "TOKEN", "AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/reader", "AWS_REGION": "eu-central-1"},
		"instance":     {"AWS_EC2_METADATA_SERVICE_ENDPOINT": "URL"},
		"pod":          {"AWS_CONTAINER_CREDENTIALS_FULL_URI": "URL/v1/credentials", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": "TOKEN"},
	}
}

// newFakeAWS clears the environment but for what the service needs.
func newFakeAWS(t *testing.T, service string) *hearthtest.FakeAWS {
	t.Helper()
	home, f := hearthtest.Clear(t), hearthtest.StartFakeAWS(t)
	token := filepath.Join(home, "token")
	if err := os.WriteFile(token, []byte("identity"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, value := range services()[service] {
		t.Setenv(name, strings.NewReplacer("URL", f.URL, "TOKEN", token).Replace(value))
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
	for service := range services() {
		t.Run(service, func(t *testing.T) {
			f := newFakeAWS(t, service)
			f.Account(server.AccessKey, server.SecretKey)
			if _, err := reader(t, bucket, server.Endpoint).Head(t.Context(), "k"); err != nil {
				t.Fatal(err)
			}
			f.Account(server.AccessKey, "another")
			if _, err := reader(t, bucket, server.Endpoint).Head(t.Context(), "k"); err == nil {
				t.Error("a server that verifies took a wrong secret")
			}
			if n := f.Given(); n != 2 {
				t.Errorf("asked %d times for two readers", n)
			}
		})
	}
}

func TestSessionsAreSentAndSigned(t *testing.T) {
	// What a service gives is a session: each request bears its token, under the
	// signature.
	for service := range services() {
		t.Run(service, func(t *testing.T) {
			newFakeAWS(t, service)
			asked := make(chan http.Header, 1)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked <- r.Header
				http.NotFound(w, r)
			}))
			defer server.Close()
			if _, err := reader(t, "b", server.URL).Head(t.Context(), "k"); !errors.Is(err, fs.ErrNotExist) {
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

// reader asks a server with the credentials that the environment gives.
func reader(t *testing.T, bucket, endpoint string) *S3 {
	t.Helper()
	return open(t, Config{URL: "s3://" + bucket, Endpoint: endpoint, Region: "us-east-1"}).(*S3)
}

// list asks for a page of names.
func list(t *testing.T, s *S3) error {
	return s.List(t.Context(), hearth.Listing{}, func(hearth.Object) error { return nil })
}

func TestASessionThatExpiredIsRenewedWithinARequest(t *testing.T) {
	// The server finds a session expired, or does not know its key any more, though nobody said that
	// it would be: the same request is signed with a new one, and sent again. With none it fails.
	f := newFakeAWS(t, "pod")
	for _, code := range []string{"ExpiredToken", "InvalidAccessKeyId", "InvalidToken"} {
		t.Run(code, func(t *testing.T) {
			refused := ""
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				token := r.Header.Get("X-Amz-Security-Token")
				if refused == "" || refused == token || refused == "all" {
					refused = max(refused, token)
					w.WriteHeader(http.StatusBadRequest)
					_, _ = w.Write([]byte("<Error><Code>" + code + "</Code></Error>"))
					return
				}
				_, _ = w.Write([]byte("<ListBucketResult></ListBucketResult>"))
			}))
			defer server.Close()
			s, before := reader(t, "b", server.URL), f.Given()
			if err := list(t, s); err != nil || f.Given()-before != 2 {
				t.Errorf("%v, %d sessions", err, f.Given()-before)
			}
			refused = "all"
			var e *Error
			if err := list(t, s); !errors.As(err, &e) || e.Code != code {
				t.Errorf("refused for good: %v", err)
			}
		})
	}
}

func TestCredentialsReadAgainSignTheNextRequest(t *testing.T) {
	// Reread, as on a signal: the next request is signed with what the service gives then.
	newFakeAWS(t, "instance")
	var tokens []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tokens = append(tokens, r.Header.Get("X-Amz-Security-Token"))
		_, _ = w.Write([]byte("<ListBucketResult></ListBucketResult>"))
	}))
	defer server.Close()
	s := reader(t, "b", server.URL)
	for i := range 4 {
		if i == 2 {
			if err := s.Reread(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if err := list(t, s); err != nil {
			t.Fatal(err)
		}
	}
	if got := strings.Join(tokens, ", "); got != "session 1, session 1, session 2, session 2" {
		t.Errorf("signed with %s", got)
	}
}

func TestAProfileThatIsNotThereIsAnErrorWithoutSignatures(t *testing.T) {
	// Nothing is signed, and yet AWS_PROFILE may name the endpoint: where it names nothing, that is said.
	newFakeAWS(t, "")
	t.Setenv("AWS_PROFILE", "absent")
	if _, err := Open(t.Context(), Config{URL: "s3://b", Anonymous: true}); err == nil || !strings.Contains(err.Error(), "there is no profile absent, which AWS_PROFILE names") {
		t.Error(err)
	}
}

func TestOnlyWhatWaitingMendsIsAway(t *testing.T) {
	// A node whose origin is away goes on with what it knows. So it does where a service that gives
	// credentials cannot be asked, or will not give them; what nobody set up right is no such thing.
	for name, c := range map[string]struct {
		service string
		env     map[string]string
		away    bool
	}{
		"a service that is not there": {"pod", map[string]string{"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://127.0.0.1:1/"}, true},
		"no such profile":             {"pod", map[string]string{"AWS_PROFILE": "absent"}, false},
		"half of a pair":              {"pod", map[string]string{"AWS_ACCESS_KEY_ID": "AK"}, false},
		"nothing":                     {"", map[string]string{"AWS_EC2_METADATA_DISABLED": "true"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			newFakeAWS(t, c.service)
			for name, value := range c.env {
				t.Setenv(name, value)
			}
			t.Setenv("AWS_MAX_ATTEMPTS", "1")
			if err := list(t, reader(t, "b", "http://127.0.0.1:1")); err == nil || Away(err) != c.away {
				t.Errorf("away %v: %v", Away(err), err)
			}
		})
	}
}
