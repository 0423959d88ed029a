package identity

import (
	"crypto/sha1"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// place is a machine where somebody names an identity: variables and files, in which FILES stands for
// a directory of the test, SERVICES for their URL and THEROLE for its ARN.
type place struct {
	env   map[string]string
	files map[string]string
}

// settle makes a place, with the instance's metadata there for whoever falls through to it.
func settle(t *testing.T, p place) (*hearthtest.FakeAWS, string) {
	t.Helper()
	home, f := hearthtest.Clear(t), hearthtest.StartFakeAWS(t)
	fill := strings.NewReplacer("FILES", home, "SERVICES", f.URL, "THEROLE", f.Role).Replace
	if err := os.MkdirAll(filepath.Join(home, ".aws", "sso", "cache"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range p.files {
		if err := os.WriteFile(filepath.Join(home, name), []byte(fill(text)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	env := map[string]string{"AWS_EC2_METADATA_SERVICE_ENDPOINT": f.URL, "AWS_MAX_ATTEMPTS": "1"}
	for _, service := range []string{"STS", "SSO", "SSO_OIDC"} {
		env["AWS_ENDPOINT_URL_"+service] = f.URL
	}
	maps.Copy(env, p.env)
	for name, value := range env {
		t.Setenv(name, fill(value))
	}
	return f, home
}

// find looks once, as a Keyring does.
func find(t *testing.T) (*Identity, *Error) {
	t.Helper()
	return (&chain{}).find(t.Context())
}

// cached is where the AWS tools keep what a login gave.
func cached(key string) string {
	sum := sha1.Sum([]byte(key))
	return filepath.Join(".aws", "sso", "cache", hex.EncodeToString(sum[:])+".json")
}

const (
	base      = "[base]\naws_access_key_id = BASE\naws_secret_access_key = secret\n"
	session   = "[sso-session corp]\nsso_region = us-east-1\nsso_start_url = https://corp.example\n[profile p]\nsso_session = corp\nsso_account_id = 123456789012\nsso_role_name = Reader\n"
	process   = "[profile p]\ncredential_process = cat FILES/keys.json\n"
	roleless  = "[profile p]\nregion = eu-7\n"
	ofProfile = "profile p of FILES/.aws/config"
)

func TestWhatIsNamedIsFound(t *testing.T) {
	// Each way to name an identity gives it, by the service that it is of, and is told in words; the
	// instance's metadata is there meanwhile, and asked only where it is meant.
	for name, c := range map[string]struct {
		place
		how    string
		key    string
		asked  string // the service
		signer string // at STS
	}{
		"keys":               {place: place{env: map[string]string{"AWS_ACCESS_KEY_ID": "AK", "AWS_SECRET_ACCESS_KEY": "s"}}, how: "the variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY", key: "AK"},
		"keys' other names":  {place: place{env: map[string]string{"AWS_ACCESS_KEY": "AK", "AWS_SECRET_KEY": "s"}}, how: "the variables", key: "AK"},
		"keys and a profile": {place: place{map[string]string{"AWS_ACCESS_KEY_ID": "AK", "AWS_SECRET_ACCESS_KEY": "s", "AWS_PROFILE": "base"}, map[string]string{".aws/credentials": base}}, how: "AWS_SECRET_ACCESS_KEY (which goes before AWS_PROFILE=base)", key: "AK"},
		"web identity": {place: place{map[string]string{"AWS_WEB_IDENTITY_TOKEN_FILE": "FILES/token", "AWS_ROLE_ARN": "THEROLE"}, map[string]string{"token": "identity"}},
			how: "the role THEROLE, by the web identity in FILES/token", key: "KEY1", asked: "sts"},
		"web identity and a profile": {place: place{map[string]string{"AWS_WEB_IDENTITY_TOKEN_FILE": "FILES/token", "AWS_ROLE_ARN": "THEROLE", "AWS_PROFILE": "base"}, map[string]string{"token": "identity", ".aws/credentials": base}},
			how: "by the web identity in FILES/token (which goes before AWS_PROFILE=base)", key: "KEY1", asked: "sts"},
		"the default profile":       {place: place{files: map[string]string{".aws/credentials": strings.Replace(base, "base", "default", 1)}}, how: "profile default of FILES/.aws/credentials", key: "BASE"},
		"a profile":                 {place: place{map[string]string{"AWS_PROFILE": "base"}, map[string]string{".aws/credentials": base}}, how: "profile base of FILES/.aws/credentials", key: "BASE"},
		"by the other variable":     {place: place{map[string]string{"AWS_DEFAULT_PROFILE": "base"}, map[string]string{".aws/credentials": base}}, how: "profile base of FILES/.aws/credentials", key: "BASE"},
		"a profile of the config":   {place: place{map[string]string{"AWS_PROFILE": "base"}, map[string]string{".aws/config": strings.Replace(base, "[", "[profile ", 1)}}, how: "profile base of FILES/.aws/config", key: "BASE"},
		"files by variables":        {place: place{map[string]string{"AWS_PROFILE": "base", "AWS_SHARED_CREDENTIALS_FILE": "FILES/own", "AWS_CONFIG_FILE": "/dev/null"}, map[string]string{"own": base}}, how: "profile base of FILES/own", key: "BASE"},
		"a role of another profile": {place: place{map[string]string{"AWS_PROFILE": "p"}, map[string]string{".aws/credentials": base, ".aws/config": "[profile p]\nrole_arn = THEROLE\nsource_profile = base\n"}}, how: ofProfile + ": the role THEROLE, assumed by profile base of FILES/.aws/credentials", key: "KEY1", asked: "sts", signer: "BASE"},
		"a role of a role": {place: place{map[string]string{"AWS_PROFILE": "p"}, map[string]string{".aws/credentials": base, ".aws/config": "[profile p]\nrole_arn = THEROLE\nsource_profile = q\n[profile q]\nrole_arn = THEROLE\nsource_profile = base\n"}},
			how: ofProfile + ": the role THEROLE, assumed by profile q of FILES/.aws/config: the role THEROLE, assumed by profile base", key: "KEY2", asked: "sts", signer: "KEY1"},
		"a role of itself": {place: place{map[string]string{"AWS_PROFILE": "base"}, map[string]string{".aws/credentials": base + "role_arn = THEROLE\nsource_profile = base\n"}}, how: "profile base of FILES/.aws/credentials: the role THEROLE, assumed by profile base of", key: "KEY1", asked: "sts", signer: "BASE"},
		"a role of variables": {place: place{map[string]string{"AWS_PROFILE": "p", "AWS_ACCESS_KEY_ID": "AK", "AWS_SECRET_ACCESS_KEY": "s"}, map[string]string{".aws/config": "[profile p]\nrole_arn = THEROLE\ncredential_source = Environment\n"}},
			how: ofProfile + ": the role THEROLE, assumed by the variables", key: "KEY1", asked: "sts", signer: "AK"},
		"a role of an instance": {place: place{map[string]string{"AWS_PROFILE": "p"}, map[string]string{".aws/config": "[profile p]\nrole_arn = THEROLE\ncredential_source = Ec2InstanceMetadata\n"}},
			how: "assumed by the instance's role node-role", key: "KEY2", asked: "sts imds", signer: "KEY1"},
		"a role of a container": {place: place{map[string]string{"AWS_PROFILE": "p", "AWS_CONTAINER_CREDENTIALS_FULL_URI": "SERVICES/v1/credentials", "AWS_CONTAINER_AUTHORIZATION_TOKEN": "identity"}, map[string]string{".aws/config": "[profile p]\nrole_arn = THEROLE\ncredential_source = EcsContainer\n"}},
			how: "assumed by the container's role", key: "KEY2", asked: "sts agent", signer: "KEY1"},
		"a profile's web identity": {place: place{map[string]string{"AWS_PROFILE": "p"}, map[string]string{"token": "identity", ".aws/config": "[profile p]\nrole_arn = THEROLE\nweb_identity_token_file = FILES/token\n"}},
			how: ofProfile + ": the role THEROLE, by the web identity in FILES/token", key: "KEY1", asked: "sts"},
		"SSO": {place: place{map[string]string{"AWS_PROFILE": "p"}, map[string]string{".aws/config": session, cached("corp"): `{"accessToken": "identity", "expiresAt": "2999-01-01T00:00:00Z"}`}},
			how: ofProfile + ": SSO, the role Reader of the account 123456789012", key: "KEY1", asked: "sso"},
		"SSO whose login is over, with a way on": {place: place{map[string]string{"AWS_PROFILE": "p"}, map[string]string{".aws/config": session,
			cached("corp"): `{"accessToken": "old", "expiresAt": "2001-01-01T00:00:00Z", "refreshToken": "r", "clientId": "c", "clientSecret": "s"}`}}, how: "SSO", key: "KEY1", asked: "sso oidc"},
		"SSO as it was before sessions": {place: place{map[string]string{"AWS_PROFILE": "p"}, map[string]string{".aws/config": "[profile p]\nsso_region = us-east-1\nsso_start_url = https://corp.example\nsso_account_id = 123456789012\nsso_role_name = Reader\n",
			cached("https://corp.example"): `{"accessToken": "identity", "expiresAt": "2999-01-01T00:00:00Z"}`}}, how: "SSO", key: "KEY1", asked: "sso"},
		"a process": {place: place{map[string]string{"AWS_PROFILE": "p"}, map[string]string{".aws/config": process, "keys.json": `{"Version": 1, "AccessKeyId": "OF-A-PROCESS", "SecretAccessKey": "s"}`}}, how: ofProfile + ": its credential_process", key: "OF-A-PROCESS"},
		"a container": {place: place{map[string]string{"AWS_CONTAINER_CREDENTIALS_FULL_URI": "SERVICES/v1/credentials", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": "FILES/token"}, map[string]string{"token": "identity"}},
			how: "the container's role (AWS_CONTAINER_CREDENTIALS_FULL_URI)", key: "KEY1", asked: "agent"},
		"an instance":                     {how: "the instance's role node-role", key: "KEY1", asked: "imds"},
		"an instance, and only a region":  {place: place{files: map[string]string{".aws/config": "[default]\nregion = eu-7\n"}}, how: "the instance's role node-role", key: "KEY1", asked: "imds"},
		"a container, and only a region":  {place: place{map[string]string{"AWS_CONTAINER_CREDENTIALS_FULL_URI": "SERVICES/v1/credentials", "AWS_CONTAINER_AUTHORIZATION_TOKEN": "identity"}, map[string]string{".aws/config": "[default]\nregion = eu-7\n"}}, how: "the container's role", key: "KEY1", asked: "agent"},
		"keys, where a file is not there": {place: place{env: map[string]string{"AWS_ACCESS_KEY_ID": "AK", "AWS_SECRET_ACCESS_KEY": "s", "AWS_CONFIG_FILE": "FILES/none"}}, how: "the variables", key: "AK"},
	} {
		t.Run(name, func(t *testing.T) {
			f, home := settle(t, c.place)
			id, err := find(t)
			if err != nil {
				t.Fatal(err)
			}
			if how := strings.NewReplacer("FILES", home, "THEROLE", f.Role).Replace(c.how); id.Value.AccessKeyID != c.key || !strings.Contains(id.How, how) {
				t.Errorf("the key %s, %s; want %s, %s", id.Value.AccessKeyID, id.How, c.key, how)
			}
			for _, service := range []string{"sts", "sso", "oidc", "agent", "imds"} {
				if n := f.Asked(service); (n > 0) != strings.Contains(" "+c.asked+" ", " "+service+" ") {
					t.Errorf("%s was asked %d times", service, n)
				}
			}
			if left := time.Until(id.Expires); c.asked != "" && (left < 59*time.Minute || left > time.Hour) || c.asked == "" && !id.Expires.IsZero() {
				t.Errorf("it ends in %v", left)
			}
			if f.Signer() != c.signer {
				t.Errorf("%q signed for STS, want %q", f.Signer(), c.signer)
			}
		})
	}
}

func TestWhatIsNamedAndCannotBeUsedIsAnError(t *testing.T) {
	// Where one thing is named and cannot be used, the error names it and what to do, and nothing else
	// is taken in its place: not the instance's role, which is there for the asking.
	with := func(all ...string) map[string]string {
		env := map[string]string{}
		for _, v := range all {
			name, value, _ := strings.Cut(v, "=")
			env[name] = value
		}
		return env
	}
	const token, uri = "AWS_CONTAINER_AUTHORIZATION_TOKEN", "AWS_CONTAINER_CREDENTIALS_FULL_URI=SERVICES/v1/credentials"
	type refused struct {
		service string
		status  int
		body    string
	}
	for name, c := range map[string]struct {
		place
		refused
		problem, cure string
		imds          bool // it is what was named
	}{
		"no such profile":               {place: place{with("AWS_PROFILE=absent"), map[string]string{".aws/credentials": base}}, problem: "there is no profile absent, which AWS_PROFILE names, in FILES/.aws/config or FILES/.aws/credentials", cure: "unset AWS_PROFILE"},
		"no such profile, a container":  {place: place{env: with("AWS_PROFILE=absent", uri, token+"=identity")}, problem: "there is no profile absent", cure: "aws configure list-profiles"},
		"no such profile, and keys":     {place: place{env: with("AWS_PROFILE=absent", "AWS_ACCESS_KEY_ID=AK", "AWS_SECRET_ACCESS_KEY=s")}, problem: "there is no profile absent", cure: "unset AWS_PROFILE"},
		"no such profile, other name":   {place: place{env: with("AWS_DEFAULT_PROFILE=absent")}, problem: "which AWS_DEFAULT_PROFILE names", cure: "unset AWS_DEFAULT_PROFILE"},
		"no default profile":            {place: place{env: with("AWS_PROFILE=default")}, problem: "there is no profile default", cure: "unset AWS_PROFILE"},
		"a profile without the word":    {place: place{with("AWS_PROFILE=base"), map[string]string{".aws/config": base}}, problem: "there is no profile base", cure: "[profile base]"},
		"a profile without credentials": {place: place{with("AWS_PROFILE=p"), map[string]string{".aws/config": roleless}}, problem: ofProfile + ", which AWS_PROFILE names, has no credentials", cure: "role_arn with source_profile"},
		"that, and a container":         {place: place{with("AWS_PROFILE=p", uri, token+"=identity"), map[string]string{".aws/config": roleless}}, problem: "has no credentials", cure: "unset AWS_PROFILE"},
		"half of a profile's keys":      {place: place{with("AWS_PROFILE=base"), map[string]string{".aws/credentials": "[base]\naws_access_key_id = BASE\n"}}, problem: "profile base of FILES/.aws/config or FILES/.aws/credentials has one half", cure: "aws_secret_access_key"},
		"half of the default's keys":    {place: place{files: map[string]string{".aws/credentials": "[default]\naws_secret_access_key = s\n"}}, problem: "profile default of", cure: "aws_access_key_id"},
		"a role without a source":       {place: place{with("AWS_PROFILE=p"), map[string]string{".aws/config": "[profile p]\nrole_arn = THEROLE\n"}}, problem: ofProfile + " does not say who assumes its role THEROLE", cure: "source_profile"},
		"the default's, too":            {place: place{files: map[string]string{".aws/config": "[default]\nrole_arn = THEROLE\n"}}, problem: "profile default of FILES/.aws/config does not say who", cure: "credential_source"},
		"a source that is not there":    {place: place{with("AWS_PROFILE=p"), map[string]string{".aws/config": "[profile p]\nrole_arn = THEROLE\nsource_profile = absent\n"}}, problem: "there is no profile absent, which assumes the role THEROLE", cure: "name another"},
		"a source without credentials":  {place: place{with("AWS_PROFILE=p"), map[string]string{".aws/config": "[profile p]\nrole_arn = THEROLE\nsource_profile = q\n[profile q]\nregion = r\n"}}, problem: "profile q, which assumes the role THEROLE (source_profile), has no credentials", cure: "add keys"},
		"a source with half of keys":    {place: place{with("AWS_PROFILE=p"), map[string]string{".aws/config": "[profile p]\nrole_arn = THEROLE\nsource_profile = q\n[profile q]\naws_access_key_id = r\n"}}, problem: "profile q of", cure: "aws_secret_access_key"},
		"a source of no kind":           {place: place{with("AWS_PROFILE=p"), map[string]string{".aws/config": "[profile p]\nrole_arn = THEROLE\ncredential_source = Moon\n"}}, problem: "credential_source = Moon", cure: "Ec2InstanceMetadata"},
		"variables that are not set":    {place: place{with("AWS_PROFILE=p"), map[string]string{".aws/config": "[profile p]\nrole_arn = THEROLE\ncredential_source = Environment\n"}}, problem: "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set", cure: "set them"},
		"a container that is none":      {place: place{with("AWS_PROFILE=p"), map[string]string{".aws/config": "[profile p]\nrole_arn = THEROLE\ncredential_source = EcsContainer\n"}}, problem: "AWS_CONTAINER_CREDENTIALS_FULL_URI are not set", cure: "another source"},
		"a role with a code":            {place: place{with("AWS_PROFILE=p"), map[string]string{".aws/credentials": base, ".aws/config": "[profile p]\nrole_arn = THEROLE\nsource_profile = base\nmfa_serial = m\n"}}, problem: "mfa_serial", cure: "export-credentials"},
		"a web identity without a role": {place: place{with("AWS_PROFILE=p"), map[string]string{".aws/config": "[profile p]\nweb_identity_token_file = /t\n"}}, problem: "profile p of", cure: "role_arn"},
		"a role that is denied":         {place: place{with("AWS_PROFILE=p"), map[string]string{".aws/credentials": base, ".aws/config": "[profile p]\nrole_arn = THEROLE/other\nsource_profile = base\n"}}, problem: "the role THEROLE/other, assumed by profile base of FILES/.aws/credentials cannot be had: HOST: 403 AccessDenied Not authorized to perform it", cure: "sts:AssumeRole"},
		"an STS that nobody is":         {place: place{with("AWS_PROFILE=p", "AWS_ENDPOINT_URL_STS=http://127.0.0.1:1"), map[string]string{".aws/credentials": base, ".aws/config": "[profile p]\nrole_arn = THEROLE\nsource_profile = base\n"}}, problem: "127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused", cure: "sts:AssumeRole"},
		"a login that is over":          {place: place{with("AWS_PROFILE=p"), map[string]string{".aws/config": session, cached("corp"): `{"accessToken": "identity", "expiresAt": "2001-01-01T00:00:00Z"}`}}, problem: "SSO, the role Reader of the account 123456789012 cannot be had", cure: "aws sso login --profile p"},
		"no login":                      {place: place{with("AWS_PROFILE=p"), map[string]string{".aws/config": session}}, problem: "no such file", cure: "aws sso login --profile p"},
		"a login that SSO refuses":      {place: place{with("AWS_PROFILE=p"), map[string]string{".aws/config": session, cached("corp"): `{"accessToken": "another", "expiresAt": "2999-01-01T00:00:00Z"}`}}, problem: "HOST: 401 UnauthorizedException Session token not found or invalid", cure: "aws sso login"},
		"a session that is not there":   {place: place{with("AWS_PROFILE=p"), map[string]string{".aws/config": "[profile p]\nsso_session = none\nsso_account_id = 1\nsso_role_name = Reader\n"}}, problem: "SSO session section, none", cure: "correct it"},
		"a process that fails":          {place: place{with("AWS_PROFILE=p"), map[string]string{".aws/config": "[profile p]\ncredential_process = exit 7\n"}}, problem: ofProfile + ": its credential_process cannot be had: error in credential_process: exit status 7", cure: "run that command"},
		"a process without an answer":   {place: place{with("AWS_PROFILE=p"), map[string]string{".aws/config": "[profile p]\ncredential_process = true\n"}}, problem: "credential_process", cure: "JSON with Version 1"},
		"one that is not there":         {place: place{with("AWS_PROFILE=p"), map[string]string{".aws/config": "[profile p]\ncredential_process = FILES/none\n"}}, problem: "exit status 127", cure: "run that command"},
		"a config that is not there":    {place: place{env: with("AWS_CONFIG_FILE=FILES/none")}, problem: "FILES/none, which AWS_CONFIG_FILE names, cannot be read: no such file", cure: "unset AWS_CONFIG_FILE"},
		"credentials that are a folder": {place: place{env: with("AWS_SHARED_CREDENTIALS_FILE=FILES/none")}, problem: "which AWS_SHARED_CREDENTIALS_FILE names", cure: "unset AWS_SHARED_CREDENTIALS_FILE"},
		"a profile of no file":          {place: place{env: with("AWS_PROFILE=p", "AWS_CONFIG_FILE=FILES/none")}, problem: "FILES/none cannot be read: no such file", cure: "unset AWS_PROFILE"},

		"an access key alone":    {place: place{env: with("AWS_ACCESS_KEY_ID=AK")}, problem: "AWS_ACCESS_KEY_ID is set without AWS_SECRET_ACCESS_KEY", cure: "set both"},
		"a secret key alone":     {place: place{with("AWS_SECRET_ACCESS_KEY=s", "AWS_PROFILE=base"), map[string]string{".aws/credentials": base}}, problem: "AWS_SECRET_ACCESS_KEY is set without AWS_ACCESS_KEY_ID", cure: "set both"},
		"a session token alone":  {place: place{env: with("AWS_SESSION_TOKEN=t")}, problem: "AWS_SESSION_TOKEN is set without", cure: "unset it"},
		"a key of blanks":        {place: place{env: with("AWS_ACCESS_KEY_ID=\n", "AWS_SECRET_ACCESS_KEY=s")}, problem: "AWS_ACCESS_KEY_ID holds nothing but white space", cure: "unset it"},
		"a token over two lines": {place: place{env: with("AWS_ACCESS_KEY_ID=AK", "AWS_SECRET_ACCESS_KEY=s", "AWS_SESSION_TOKEN=abc\ndef")}, problem: "AWS_SESSION_TOKEN has a line break", cure: "one line"},
		"a region of two words":  {place: place{env: with("AWS_ACCESS_KEY_ID=AK", "AWS_SECRET_ACCESS_KEY=s", "AWS_REGION=eu west")}, problem: "AWS_REGION has", cure: "one line"},

		"a role's token that is not there": {place: place{env: with("AWS_WEB_IDENTITY_TOKEN_FILE=FILES/none", "AWS_ROLE_ARN=THEROLE")}, problem: "the token file FILES/none, which AWS_WEB_IDENTITY_TOKEN_FILE names, cannot be read: no such file", cure: "mounted"},
		"a role's token that is empty":     {place: place{with("AWS_WEB_IDENTITY_TOKEN_FILE=FILES/token", "AWS_ROLE_ARN=THEROLE"), map[string]string{"token": " \n"}}, problem: "FILES/token, which AWS_WEB_IDENTITY_TOKEN_FILE names, is empty", cure: "anew"},
		"a role's token of two lines":      {place: place{with("AWS_WEB_IDENTITY_TOKEN_FILE=FILES/token", "AWS_ROLE_ARN=THEROLE"), map[string]string{"token": "iden\ntity"}}, problem: "has a line break", cure: "one line"},
		"a role's token without a role":    {place: place{with("AWS_WEB_IDENTITY_TOKEN_FILE=FILES/token"), map[string]string{"token": "identity"}}, problem: "without AWS_ROLE_ARN", cure: "set both"},
		"a role without its token":         {place: place{env: with("AWS_ROLE_ARN=THEROLE")}, problem: "AWS_ROLE_ARN is set without AWS_WEB_IDENTITY_TOKEN_FILE", cure: "source_profile"},
		"a role's token that is refused":   {place: place{with("AWS_WEB_IDENTITY_TOKEN_FILE=FILES/token", "AWS_ROLE_ARN=THEROLE"), map[string]string{"token": "another"}}, problem: "by the web identity in FILES/token cannot be had: HOST: 403 AccessDenied", cure: "trust policy"},
		"a profile's token":                {place: place{with("AWS_PROFILE=p"), map[string]string{".aws/config": "[profile p]\nrole_arn = THEROLE\nweb_identity_token_file = FILES/none\n"}}, problem: "the token file FILES/none, which " + ofProfile + " names, cannot be read", cure: "mounted"},

		"an agent that refuses":         {place: place{env: with(uri, token+"=another")}, problem: "the container's role (AWS_CONTAINER_CREDENTIALS_FULL_URI) cannot be had: 403 not you", cure: "AWS_CONTAINER_CREDENTIALS_FULL_URI"},
		"an agent that is not well":     {place: place{env: with(uri)}, refused: refused{"agent", 500, `{"code": "Internal", "message": "try later"}`}, problem: "500 Internal try later", cure: "the agent's token"},
		"an agent without keys":         {place: place{env: with(uri)}, refused: refused{"agent", 200, `{}`}, problem: "the answer has no keys in it", cure: "AWS_CONTAINER_CREDENTIALS_FULL_URI"},
		"an agent that babbles":         {place: place{env: with(uri)}, refused: refused{"agent", 200, `<html>`}, problem: "no such JSON", cure: "AWS_CONTAINER_CREDENTIALS_FULL_URI"},
		"an agent that is not there":    {place: place{env: with("AWS_CONTAINER_CREDENTIALS_FULL_URI=http://127.0.0.1:1/")}, problem: "127.0.0.1:1: dial", cure: "AWS_CONTAINER_CREDENTIALS_FULL_URI"},
		"an agent elsewhere":            {place: place{env: with("AWS_CONTAINER_CREDENTIALS_FULL_URI=http://192.0.2.1/")}, problem: "192.0.2.1", cure: "AWS_CONTAINER_CREDENTIALS_FULL_URI"},
		"an agent's token not there":    {place: place{env: with(uri, token+"_FILE=FILES/none")}, problem: "the token file FILES/none, which AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE names, cannot be read", cure: "mounted"},
		"an agent's token of two lines": {place: place{with(uri, token+"_FILE=FILES/token"), map[string]string{"token": "iden\ntity"}}, problem: "has a line break", cure: "one line"},

		"an instance that refuses":   {refused: refused{"imds", 403, "no"}, problem: "the instance's role (AWS_EC2_METADATA_SERVICE_ENDPOINT) cannot be had: HOST: 403", cure: "AWS_EC2_METADATA_SERVICE_ENDPOINT", imds: true},
		"an instance that is away":   {place: place{env: with("AWS_EC2_METADATA_SERVICE_ENDPOINT=http://127.0.0.1:1")}, problem: "connection refused", cure: "AWS_EC2_METADATA_SERVICE_ENDPOINT"},
		"an instance that is denied": {place: place{with("AWS_PROFILE=p", "AWS_EC2_METADATA_DISABLED=true"), map[string]string{".aws/config": "[profile p]\nrole_arn = THEROLE\ncredential_source = Ec2InstanceMetadata\n"}}, problem: "AWS_EC2_METADATA_DISABLED", cure: "role"},
	} {
		t.Run(name, func(t *testing.T) {
			f, home := settle(t, c.place)
			f.Refuse(c.service, c.status, c.body)
			id, err := find(t)
			if err == nil {
				t.Fatalf("found %s", id.How)
			}
			fill := strings.NewReplacer("FILES", home, "THEROLE", f.Role, "HOST", strings.TrimPrefix(f.URL, "http://")).Replace
			if !strings.Contains(err.Problem, fill(c.problem)) || !strings.Contains(err.Cure, fill(c.cure)) || strings.Contains(err.Problem, "no credentials were found") {
				t.Errorf("problem %q, cure %q;\nwant    %q, cure %q", err.Problem, err.Cure, fill(c.problem), fill(c.cure))
			}
			if n := f.Asked("imds"); n > 0 && !c.imds {
				t.Errorf("the instance was asked %d times", n)
			}
		})
	}
}

func TestWhereNothingIsNamedTheInstanceIsAsked(t *testing.T) {
	// No variable and no profile: the instance's role, at its real address. One without a role, one
	// that refuses, and none at all are told apart, and each is told with what can be named.
	for name, c := range map[string]struct {
		env    map[string]string
		role   string
		refuse int
		cure   string // "": it is found
	}{
		"a role":    {role: "node-role"},
		"no role":   {cure: "or give this instance a role: it has none"},
		"a refusal": {role: "node-role", refuse: 403, cure: "(of the instance's role: 169.254.169.254: 403 Forbidden)"},
		"none":      {role: "node-role", env: map[string]string{"AWS_EC2_METADATA_DISABLED": "TRUE\n"}, cure: "or anonymous: true for a public bucket"},
	} {
		t.Run(name, func(t *testing.T) {
			f, _ := settle(t, place{env: c.env})
			t.Setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "")
			f.Profile = c.role
			f.Refuse("imds", c.refuse, "no")
			id, err := (&chain{direct: f}).find(t.Context())
			switch {
			case c.cure == "" && (err != nil || id.How != "the instance's role node-role"):
				t.Errorf("%+v, %v", id, err)
			case c.cure != "" && (err == nil || err.Problem != "no credentials were found" || !strings.HasSuffix(err.Cure, c.cure) || err.Away):
				t.Errorf("%+v", err)
			}
			if n := f.Asked("imds"); (n == 0) != (c.env != nil) {
				t.Errorf("the instance was asked %d times", n)
			}
		})
	}
}

func TestWhiteSpaceAtEndsIsTakenOff(t *testing.T) {
	// A newline that echo wrote behind a key, a token, a name or a URL is not part of it.
	for name, p := range map[string]place{
		"keys":      {env: map[string]string{"AWS_ACCESS_KEY_ID": "KEY1\n", "AWS_SECRET_ACCESS_KEY": "secret\r\n", "AWS_SESSION_TOKEN": " session 1\n", "AWS_REGION": "eu-7\n"}},
		"a profile": {map[string]string{"AWS_PROFILE": "p\n", "AWS_CONFIG_FILE": "FILES/config \n"}, map[string]string{"config": "[profile p]\r\nregion = eu-7 \r\nrole_arn = THEROLE\r\ncredential_source = Ec2InstanceMetadata\r\n"}},
		"a container's file": {map[string]string{"AWS_CONTAINER_CREDENTIALS_FULL_URI": "SERVICES/v1/credentials\n", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": "FILES/token\n", "AWS_DEFAULT_REGION": "eu-7\t"},
			map[string]string{"token": "identity\n"}},
		"a container's variable": {env: map[string]string{"AWS_CONTAINER_CREDENTIALS_FULL_URI": "SERVICES/v1/credentials", "AWS_CONTAINER_AUTHORIZATION_TOKEN": "identity\n", "AWS_REGION": "eu-7\n"}},
		"a web identity": {map[string]string{"AWS_WEB_IDENTITY_TOKEN_FILE": "FILES/token\n", "AWS_ROLE_ARN": "THEROLE\n", "AWS_ENDPOINT_URL_STS": "SERVICES\n", "AWS_REGION": "\teu-7"},
			map[string]string{"token": "\nidentity\n"}},
		"an instance":         {env: map[string]string{"AWS_EC2_METADATA_SERVICE_ENDPOINT": "SERVICES\n", "AWS_REGION": "eu-7\n"}},
		"a role of variables": {map[string]string{"AWS_PROFILE": "p", "AWS_ACCESS_KEY_ID": "AK\n", "AWS_SECRET_ACCESS_KEY": "s\n"}, map[string]string{".aws/config": "[profile p]\nregion = eu-7\nrole_arn = THEROLE\ncredential_source = Environment\n"}},
	} {
		t.Run(name, func(t *testing.T) {
			settle(t, p)
			s, problem := Look(t.Context())
			id, err := find(t)
			if err != nil || problem != nil {
				t.Fatal(err, problem)
			}
			if v := id.Value; !strings.HasPrefix(v.AccessKeyID, "KEY") || strings.TrimSpace(v.AccessKeyID) != v.AccessKeyID || v.SecretAccessKey != "secret" || !strings.HasPrefix(v.SessionToken, "session ") || s.Region != "eu-7" {
				t.Errorf("%q, %q, %q, region %q", v.AccessKeyID, v.SecretAccessKey, v.SessionToken, s.Region)
			}
		})
	}
}

// fakeNetwork notes whom it is asked for.
type fakeNetwork struct {
	*hearthtest.FakeAWS
	hosts []string
}

func (n *fakeNetwork) Do(r *http.Request) (*http.Response, error) {
	n.hosts = append(n.hosts, r.URL.Host)
	return n.FakeAWS.Do(r)
}

func TestSTSIsAskedWhereItIs(t *testing.T) {
	// In the region that is named, by a variable before the origin's; an endpoint of S3 is none of STS.
	for name, c := range map[string]struct {
		env    map[string]string
		region string // of the origin
		host   string
	}{
		"nothing named":      {nil, "", "sts.us-east-1.amazonaws.com"},
		"a variable":         {map[string]string{"AWS_REGION": "eu-central-1"}, "eu-west-1", "sts.eu-central-1.amazonaws.com"},
		"the origin's":       {nil, "cn-north-1", "sts.cn-north-1.amazonaws.com.cn"},
		"an endpoint of all": {map[string]string{"AWS_ENDPOINT_URL": "http://minio:9000"}, "", "sts.us-east-1.amazonaws.com"},
		"its own":            {map[string]string{"AWS_ENDPOINT_URL_STS": "http://sts:7480", "AWS_ENDPOINT_URL": "http://minio:9000"}, "", "sts:7480"},
	} {
		t.Run(name, func(t *testing.T) {
			settle(t, place{map[string]string{"AWS_ENDPOINT_URL_STS": "", "AWS_WEB_IDENTITY_TOKEN_FILE": "FILES/token", "AWS_ROLE_ARN": "THEROLE"}, map[string]string{"token": "identity"}})
			for name, value := range c.env {
				t.Setenv(name, value)
			}
			n := &fakeNetwork{FakeAWS: hearthtest.NewFakeAWS()}
			if _, err := (&chain{Options: Options{Region: c.region}, direct: n, proxied: n}).find(t.Context()); err != nil || !slices.Equal(n.hosts, []string{c.host}) {
				t.Errorf("asked %v, want %s; %v", n.hosts, c.host, err)
			}
		})
	}
}

func TestServicesAreTrustedAsTheBucketIs(t *testing.T) {
	// STS and an agent by HTTPS, of an authority that the origin's ca_file names: they are asked; without it they are not believed.
	for name, env := range map[string]map[string]string{
		"sts":   {"AWS_WEB_IDENTITY_TOKEN_FILE": "FILES/token", "AWS_ROLE_ARN": "THEROLE"},
		"agent": {"AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": "FILES/token"},
	} {
		t.Run(name, func(t *testing.T) {
			f, _ := settle(t, place{env, map[string]string{"token": "identity"}})
			server := httptest.NewUnstartedServer(f)
			server.Config.ErrorLog = log.New(io.Discard, "", 0)
			server.StartTLS()
			defer server.Close()
			if name == "sts" {
				t.Setenv("AWS_ENDPOINT_URL_STS", server.URL)
			} else {
				t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", server.URL+"/v1/credentials")
			}
			roots := x509.NewCertPool()
			roots.AddCert(server.Certificate())
			if _, err := (&chain{Options: Options{Roots: roots}}).find(t.Context()); err != nil {
				t.Error(err)
			}
			if _, err := find(t); err == nil || !strings.Contains(err.Problem, "certificate") {
				t.Errorf("an authority that nobody named: %v", err)
			}
		})
	}
}

func TestNoErrorShowsASecret(t *testing.T) {
	// A process that prints keys which are no such JSON, an agent that repeats the token that it was
	// shown, a URL with a password: none of them is in the line.
	const hidden = "hidden-from-all"
	for name, p := range map[string]place{
		"a process's keys":   {map[string]string{"AWS_PROFILE": "p"}, map[string]string{".aws/config": process, "keys.json": `{"Version": 1, "AccessKeyId": "A", "SecretAccessKey": "` + hidden + `"} and more`}},
		"a process's text":   {map[string]string{"AWS_PROFILE": "p"}, map[string]string{".aws/config": process, "keys.json": hidden}},
		"a process's number": {map[string]string{"AWS_PROFILE": "p"}, map[string]string{".aws/config": process, "keys.json": `{"Version": "` + hidden + `"}`}},
		"an agent's token":   {env: map[string]string{"AWS_CONTAINER_CREDENTIALS_FULL_URI": "SERVICES/v1/credentials", "AWS_CONTAINER_AUTHORIZATION_TOKEN": hidden}},
		"a token's file":     {map[string]string{"AWS_CONTAINER_CREDENTIALS_FULL_URI": "SERVICES/v1/credentials", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": "FILES/token"}, map[string]string{"token": hidden + "\n"}},
		"a URL's password":   {env: map[string]string{"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://user:" + hidden + "@127.0.0.1:1/?key=" + hidden}},
		"a broken URL":       {env: map[string]string{"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://user:" + hidden + "@127.0.0.1:port/"}},
		"a key over lines":   {env: map[string]string{"AWS_ACCESS_KEY_ID": "A", "AWS_SECRET_ACCESS_KEY": hidden + "\n" + hidden}},
		"half of a profile":  {files: map[string]string{".aws/credentials": "[default]\naws_secret_access_key = " + hidden + "\n"}},
	} {
		t.Run(name, func(t *testing.T) {
			settle(t, p)
			_, err := find(t)
			if err == nil || strings.Contains(fmt.Sprint(err, err.Problem, err.Cure), hidden) {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestSettingsAreAsTheSDKHasThem(t *testing.T) {
	// Region, endpoint and certificates come from the variables, then from the profile; what is said of S3 alone goes first.
	const file = "[default]\nregion = of-profile\nca_bundle = /of/profile\nendpoint_url = http://of-profile\nservices = s\n[services s]\ns3 =\n  endpoint_url = http://s3-of-profile\n"
	for name, c := range map[string]struct {
		env  map[string]string
		want Settings
	}{
		"profile":               {nil, Settings{"http://s3-of-profile", "of-profile", "/of/profile"}},
		"variables":             {map[string]string{"AWS_REGION": "r", "AWS_DEFAULT_REGION": "d", "AWS_ENDPOINT_URL": "http://all", "AWS_ENDPOINT_URL_S3": "http://s3", "AWS_CA_BUNDLE": "/ca"}, Settings{"http://s3", "r", "/ca"}},
		"the other region":      {map[string]string{"AWS_DEFAULT_REGION": "d"}, Settings{"http://s3-of-profile", "d", "/of/profile"}},
		"another file":          {map[string]string{"AWS_CONFIG_FILE": "/dev/null", "AWS_ENDPOINT_URL": "http://all"}, Settings{"http://all", "", ""}},
		"endpoints are ignored": {map[string]string{"AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true", "AWS_ENDPOINT_URL": "http://all"}, Settings{"", "of-profile", "/of/profile"}},
	} {
		t.Run(name, func(t *testing.T) {
			settle(t, place{c.env, map[string]string{".aws/config": file}})
			if got, err := Look(t.Context()); err != nil || got != c.want {
				t.Errorf("%+v, %v, want %+v", got, err, c.want)
			}
		})
	}
}
