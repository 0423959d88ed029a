package hearthtest

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// FakeAWS stands in for the services that give out credentials: STS, an instance's metadata
// (version 2 only), a container's agent, SSO and its OIDC service. It is one server; paths tell the
// services apart.
type FakeAWS struct {
	*httptest.Server
	// Token is what a web identity, an agent's client and an SSO session must show.
	Token string
	// Role is the ARN that STS gives, and Profile the name of the instance's role.
	Role, Profile string

	mu       sync.Mutex // guards the rest
	lifetime time.Duration
	access   string // of an account without sessions; "" means a new session each time
	secret   string
	refusal  map[string]refusal
	silent   bool
	asked    map[string]int // requests for credentials, by service
	given    int
	signer   string // the access key that signed the last request to STS
}

type refusal struct {
	status int
	body   string
}

// StartFakeAWS starts a server whose credentials end after an hour.
func StartFakeAWS(t testing.TB) *FakeAWS {
	t.Helper()
	f := NewFakeAWS()
	f.Server = httptest.NewServer(f)
	t.Cleanup(f.Close)
	return f
}

// NewFakeAWS returns one without a server, for Do alone.
func NewFakeAWS() *FakeAWS {
	return &FakeAWS{Token: "identity", Role: "arn:aws:iam::123456789012:role/reader", Profile: "node-role", lifetime: time.Hour,
		refusal: map[string]refusal{}, asked: map[string]int{}}
}

// Clear removes the AWS variables and the home directory from a test's environment.
func Clear(t testing.TB) (home string) {
	t.Helper()
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "AWS_") {
			t.Setenv(name, "") // the test's end brings it back
		}
	}
	home = t.TempDir()
	t.Setenv("HOME", home)
	return home
}

// Account lets it give the credentials of one account instead of sessions.
func (f *FakeAWS) Account(access, secret string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.access, f.secret = access, secret
}

// Lifetime sets the lifetime of credentials that are given from now on. 0 means that they do not
// end, and that no answer names an end.
func (f *FakeAWS) Lifetime(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lifetime = d
}

// Refuse lets one service (sts, imds, agent, sso, oidc) answer with that status and body. 0
// restores it.
func (f *FakeAWS) Refuse(service string, status int, body string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refusal[service] = refusal{status, body}
}

// Silence makes all services silent, or lets them answer again.
func (f *FakeAWS) Silence(on bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.silent = on
}

// Asked is how often a service was asked.
func (f *FakeAWS) Asked(service string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked[service]
}

// Given is how often credentials were given.
func (f *FakeAWS) Given() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.given
}

// Signer is the access key that signed the last request to STS.
func (f *FakeAWS) Signer() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.signer
}

// Do answers without a network, for tests in virtual time.
func (f *FakeAWS) Do(r *http.Request) (*http.Response, error) {
	f.mu.Lock()
	silent := f.silent
	f.mu.Unlock()
	if silent { // nobody answers
		f.count(f.service(r))
		<-r.Context().Done()
		return nil, context.Cause(r.Context())
	}
	if r.Body == nil {
		r.Body = http.NoBody
	}
	w := httptest.NewRecorder()
	f.ServeHTTP(w, r)
	w.Flush()
	answer := w.Result()
	answer.Request = r
	return answer, nil
}

func (f *FakeAWS) service(r *http.Request) string {
	switch {
	case strings.HasPrefix(r.URL.Path, "/latest/"):
		return "imds"
	case strings.HasPrefix(r.URL.Path, "/v1/") || strings.HasPrefix(r.URL.Path, "/v2/"):
		return "agent"
	case strings.HasPrefix(r.URL.Path, "/federation/"):
		return "sso"
	case r.URL.Path == "/token":
		return "oidc"
	}
	return "sts"
}

func (f *FakeAWS) count(service string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked[service]++
}

// ServeHTTP answers as the service that the path names.
func (f *FakeAWS) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	service := f.service(r)
	f.count(service)
	f.mu.Lock()
	no := f.refusal[service]
	f.mu.Unlock()
	if no.status != 0 {
		if strings.HasPrefix(no.body, "{") {
			w.Header().Set("Content-Type", "application/json")
		}
		w.WriteHeader(no.status)
		_, _ = fmt.Fprint(w, no.body)
		return
	}
	switch service {
	case "imds":
		f.metadata(w, r)
	case "agent":
		f.agent(w, r)
	case "sso":
		f.sso(w, r)
	case "oidc":
		_ = json.NewEncoder(w).Encode(map[string]any{"accessToken": f.Token, "expiresIn": 3600, "refreshToken": "refresh 2", "tokenType": "Bearer"})
	default:
		f.sts(w, r)
	}
}

// given is an answer with credentials. Its JSON names are those of metadata and of tokens.
type given struct {
	XMLName                      xml.Name `json:"-" xml:"Credentials"`
	Code                         string   `xml:"-"`
	AccessKeyId, SecretAccessKey string
	Token                        string     `json:",omitempty" xml:"-"`
	SessionToken                 string     `json:"-"`
	Expiration                   *time.Time `json:",omitempty"`
}

func (f *FakeAWS) give() given {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.given++
	g := given{Code: "Success", AccessKeyId: f.access, SecretAccessKey: f.secret}
	if f.lifetime != 0 {
		end := time.Now().Add(f.lifetime).UTC()
		g.Expiration = &end
	}
	if g.AccessKeyId == "" {
		g.AccessKeyId, g.SecretAccessKey = fmt.Sprintf("KEY%d", f.given), "secret"
		g.Token = fmt.Sprintf("session %d", f.given)
	}
	g.SessionToken = g.Token
	return g
}

func (f *FakeAWS) sts(w http.ResponseWriter, r *http.Request) {
	action := r.FormValue("Action")
	signed := regexp.MustCompile(`^AWS4-HMAC-SHA256 Credential=([^/]+)/`).FindStringSubmatch(r.Header.Get("Authorization"))
	switch {
	case r.Method != http.MethodPost || r.FormValue("RoleArn") != f.Role || r.FormValue("RoleSessionName") == "",
		action == "AssumeRole" && signed == nil,
		action == "AssumeRoleWithWebIdentity" && (signed != nil || r.FormValue("WebIdentityToken") != f.Token),
		action != "AssumeRole" && action != "AssumeRoleWithWebIdentity":
		w.WriteHeader(http.StatusForbidden)
		_, _ = fmt.Fprint(w, "<ErrorResponse><Error><Type>Sender</Type><Code>AccessDenied</Code><Message>Not authorized to perform it</Message></Error></ErrorResponse>")
		return
	}
	f.mu.Lock()
	if f.signer = ""; signed != nil {
		f.signer = signed[1]
	}
	f.mu.Unlock()
	text, err := xml.Marshal(f.give())
	if err != nil {
		panic(err)
	}
	_, _ = fmt.Fprintf(w, `<%sResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><%sResult>%s</%sResult></%sResponse>`, action, action, text, action, action)
}

func (f *FakeAWS) metadata(w http.ResponseWriter, r *http.Request) {
	const token, roles = "metadata, version 2", "/latest/meta-data/iam/security-credentials/"
	switch {
	case r.Method == http.MethodPut && r.URL.Path == "/latest/api/token" && r.Header.Get("X-aws-ec2-metadata-token-ttl-seconds") != "":
		w.Header().Set("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", "300")
		_, _ = fmt.Fprint(w, token)
	case r.Header.Get("X-aws-ec2-metadata-token") != token:
		http.Error(w, "version 1", http.StatusUnauthorized)
	case r.URL.Path == roles && f.Profile != "":
		_, _ = fmt.Fprintln(w, f.Profile)
	case r.URL.Path == roles+f.Profile && f.Profile != "":
		_ = json.NewEncoder(w).Encode(f.give())
	default:
		http.NotFound(w, r)
	}
}

func (f *FakeAWS) agent(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Authorization") != f.Token {
		http.Error(w, "not you: "+r.Header.Get("Authorization"), http.StatusForbidden)
		return
	}
	_ = json.NewEncoder(w).Encode(f.give())
}

func (f *FakeAWS) sso(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("X-Amz-Sso_bearer_token") != f.Token || r.FormValue("role_name") != "Reader" || r.FormValue("account_id") != "123456789012" {
		w.Header().Set("X-Amzn-Errortype", "UnauthorizedException")
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = fmt.Fprint(w, `{"message": "Session token not found or invalid"}`)
		return
	}
	g := f.give()
	_ = json.NewEncoder(w).Encode(map[string]any{"roleCredentials": map[string]any{"accessKeyId": g.AccessKeyId, "secretAccessKey": g.SecretAccessKey,
		"sessionToken": g.Token, "expiration": g.Expiration.UnixMilli()}})
}
