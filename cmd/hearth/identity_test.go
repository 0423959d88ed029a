package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// fakeProxy notes what it is asked, and refuses it.
type fakeProxy struct {
	*httptest.Server
	mu    sync.Mutex // guards asked
	asked []string
}

func startFakeProxy(t *testing.T) *fakeProxy {
	p := &fakeProxy{}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		p.asked = append(p.asked, r.Method+" "+r.URL.Scheme+"://"+r.URL.Host)
		p.mu.Unlock()
		w.WriteHeader(http.StatusForbidden)
	}))
	t.Cleanup(p.Close)
	return p
}

func TestMetadataAndAgentsAreNotAskedByAProxy(t *testing.T) {
	// With a proxy in the environment, metadata of an instance and a container's agent are asked
	// directly, however they are named. Through the proxy they would give the role of the proxy's
	// machine. STS and SSO are asked through the proxy.
	const role = "arn:aws:iam::123456789012:role/reader"
	login := `{"accessToken": "identity", "expiresAt": "2999-01-01T00:00:00Z"}`
	for name, c := range map[string]struct {
		env     string
		profile string // what AWS_PROFILE=p is
		asked   string // of the proxy
	}{
		"nothing":                   {},
		"another address":           {env: "AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE=IPv6"},
		"an instance's endpoint":    {env: "AWS_EC2_METADATA_SERVICE_ENDPOINT=http://metadata.invalid"},
		"an ECS task":               {env: "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI=/v2/task"},
		"a pod":                     {env: "AWS_CONTAINER_CREDENTIALS_FULL_URI=http://169.254.170.23/v1/credentials"},
		"an agent by HTTPS":         {env: "AWS_CONTAINER_CREDENTIALS_FULL_URI=https://agent.invalid/v1/credentials"},
		"a role of an instance":     {profile: "role_arn = " + role + "\ncredential_source = Ec2InstanceMetadata"},
		"a role of a container":     {profile: "role_arn = " + role + "\ncredential_source = EcsContainer", env: "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI=/v2/task"},
		"an instance by a profile":  {profile: "role_arn = " + role + "\ncredential_source = Ec2InstanceMetadata\nec2_metadata_service_endpoint = http://metadata.invalid"},
		"the SDK's automatic mode":  {profile: "aws_access_key_id = AK\naws_secret_access_key = s", env: "AWS_DEFAULTS_MODE=auto"},
		"that mode in the profile":  {profile: "defaults_mode = auto\naws_access_key_id = AK\naws_secret_access_key = s"},
		"a role of a key, by STS":   {profile: "role_arn = " + role + "\nsource_profile = base", env: "AWS_ENDPOINT_URL_STS=http://sts.example", asked: "POST http://sts.example"},
		"a web identity, by STS":    {profile: "role_arn = " + role + "\nweb_identity_token_file = TOKEN", env: "AWS_ENDPOINT_URL_STS=http://sts.example", asked: "POST http://sts.example"},
		"a web identity, by HTTPS":  {profile: "role_arn = " + role + "\nweb_identity_token_file = TOKEN", asked: "CONNECT ://sts.us-east-1.amazonaws.com:443"},
		"an account's role, by SSO": {profile: "sso_region = us-east-1\nsso_start_url = s\nsso_account_id = 1\nsso_role_name = r", env: "AWS_ENDPOINT_URL_SSO=http://sso.example", asked: "GET http://sso.example"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, p := newHearth(t), startFakeProxy(t)
			tools := filepath.Join(h.home, ".aws")
			if err := os.MkdirAll(filepath.Join(tools, "sso", "cache"), 0o700); err != nil {
				t.Fatal(err)
			}
			token := writeFile(t, filepath.Join(tools, "token"), "identity")
			writeFile(t, filepath.Join(tools, "sso", "cache", "a0f1490a20d0211c997b44bc357e1972deab8ae3.json"), login) // of "s"
			writeFile(t, filepath.Join(tools, "credentials"), "[base]\naws_access_key_id = BASE\naws_secret_access_key = s\n")
			writeFile(t, filepath.Join(tools, "config"), "[profile p]\n"+strings.ReplaceAll(c.profile, "TOKEN", token)+"\n")
			h.env = append(h.env, "AWS_EC2_METADATA_DISABLED=false", "HTTP_PROXY="+p.URL, "HTTPS_PROXY="+p.URL, c.env)
			if c.profile != "" {
				h.env = append(h.env, "AWS_PROFILE=p")
			}
			stdout, stderr, code := h.run("doctor", "--endpoint", "http://127.0.0.1:1", "s3://data")
			p.mu.Lock()
			defer p.mu.Unlock()
			asked := strings.Join(p.asked, ", ")
			if c.asked == "" && asked != "" || !strings.HasPrefix(asked, c.asked) || code != 6 {
				t.Errorf("the proxy was asked %q, want %q; exit code %d\n%s%s", asked, c.asked, code, stdout, stderr)
			}
		})
	}
}

func TestDoctorSaysWhoAsks(t *testing.T) {
	// For an identity of each kind at a real server, doctor says who it is, how it was found, and
	// until when it lasts. A profile that does not exist is a FAIL, whatever else could be found.
	h := newHearth(t)
	url, f := h.bucket(t, map[string]string{"a": "hello"}), hearthtest.StartFakeAWS(t)
	var access, secret string
	for _, v := range h.env {
		if key, ok := strings.CutPrefix(v, "AWS_ACCESS_KEY_ID="); ok {
			access = key
		}
		if key, ok := strings.CutPrefix(v, "AWS_SECRET_ACCESS_KEY="); ok {
			secret = key
		}
	}
	f.Account(access, secret)
	keys := writeFile(t, filepath.Join(h.home, "keys"), "[base]\naws_access_key_id = "+access+"\naws_secret_access_key = "+secret+
		"\n[default]\naws_access_key_id = "+access+"\naws_secret_access_key = "+secret+"\n")
	roles := writeFile(t, filepath.Join(h.home, "roles"), "[profile p]\nrole_arn = "+f.Role+"\nsource_profile = base\n")
	token := writeFile(t, filepath.Join(h.home, "token"), f.Token+"\n")
	with := func(env []string, more ...string) []string { return slices.Concat(env, more) }
	without := with(h.env, "AWS_ACCESS_KEY_ID=", "AWS_SECRET_ACCESS_KEY=", "AWS_EC2_METADATA_DISABLED=", "AWS_ENDPOINT_URL_STS="+f.URL)
	for _, c := range []struct {
		env  []string
		says string
		fail bool
	}{
		{h.env, "from the variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY", false},
		{with(h.env, "AWS_ACCESS_KEY_ID="+access+"\n", "AWS_SECRET_ACCESS_KEY="+secret+"\n", "AWS_REGION=us-east-1\n"), "from the variables", false},
		{with(without, "AWS_SHARED_CREDENTIALS_FILE="+keys), "from profile default of " + keys, false},
		{with(without, "AWS_SHARED_CREDENTIALS_FILE="+keys, "AWS_CONFIG_FILE="+roles, "AWS_PROFILE=p"),
			"from profile p of " + roles + ": the role " + f.Role + ", assumed by profile base of " + keys + ", for 1h0m0s (until 2", false},
		{with(without, "AWS_WEB_IDENTITY_TOKEN_FILE="+token, "AWS_ROLE_ARN="+f.Role), "from the role " + f.Role + ", by the web identity in " + token + ", for 1h0m0s (until 2", false},
		{with(without, "AWS_EC2_METADATA_SERVICE_ENDPOINT="+f.URL), "from the instance's role node-role", false},
		{with(without, "AWS_CONTAINER_CREDENTIALS_FULL_URI="+f.URL+"/v1/credentials", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE="+token), "from the container's role (AWS_CONTAINER_CREDENTIALS_FULL_URI), for 1h0m0s (until 2", false},
		{with(without, "AWS_CONTAINER_CREDENTIALS_FULL_URI="+f.URL+"/v1/credentials", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE="+token, "AWS_PROFILE=no-such-profile"), "there is no profile no-such-profile, which AWS_PROFILE names", true},
	} {
		h := &hearth{bin: h.bin, env: c.env}
		stdout, stderr, code := h.run("doctor", url)
		if !strings.Contains(stdout, c.says) || (code == 6) != c.fail || code != 0 && code != 6 || strings.Contains(stdout+stderr, secret) {
			t.Errorf("exit code %d, want %q\n%s%s", code, c.says, stdout, stderr)
		}
	}
}
