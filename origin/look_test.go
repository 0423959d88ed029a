package origin

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hearthfs/hearth/internal/faultproxy"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

func TestWhereCredentialsComeFrom(t *testing.T) {
	// Variables go before a profile, whose process says when they end; anonymous requests
	// need none; where there are none, the cure is said. No value is ever shown.
	ends := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	dir := t.TempDir()
	config := filepath.Join(dir, "config")
	answer := fmt.Sprintf(`{"Version":1,"AccessKeyId":"HTKEY","SecretAccessKey":"hidden","SessionToken":"t","Expiration":%q}`, ends.Format(time.RFC3339))
	process := filepath.Join(dir, "process")
	if err := errors.Join(os.WriteFile(process, []byte("#!/bin/sh\necho '"+answer+"'\n"), 0o700),
		os.WriteFile(config, []byte("[profile train]\ncredential_process = "+process+" now\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		env       map[string]string
		anonymous bool
		want      string
		ends      time.Time
		token     bool
	}{
		"variables": {map[string]string{"AWS_ACCESS_KEY_ID": "HTKEY", "AWS_SECRET_ACCESS_KEY": "hidden"}, false, "AWS_ACCESS_KEY_ID and", time.Time{}, false},
		"a token":   {map[string]string{"AWS_ACCESS_KEY_ID": "HTKEY", "AWS_SECRET_ACCESS_KEY": "hidden", "AWS_SESSION_TOKEN": "t"}, false, "AWS_ACCESS_KEY_ID and", time.Time{}, true},
		"profile":   {map[string]string{"AWS_PROFILE": "train"}, false, "profile train", ends, true},
		"anonymous": {nil, true, "none are sent", time.Time{}, false},
		"nothing":   {nil, false, "", time.Time{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			for _, v := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_ACCESS_KEY", "AWS_SECRET_KEY"} {
				t.Setenv(v, c.env[v])
			}
			t.Setenv("AWS_CONFIG_FILE", config)
			t.Setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
			t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
			have, err := open(t, Config{URL: "s3://b", Endpoint: "http://127.0.0.1:1", Anonymous: c.anonymous}).(*S3).Credentials(t.Context())
			if c.want == "" {
				if _, cure := Diagnose(err); !strings.Contains(cure, "AWS_PROFILE") {
					t.Errorf("%+v, %v", have, err)
				}
				return
			}
			if err != nil || !strings.Contains(have.Source, c.want) || !have.Expires.Equal(c.ends) || have.Token != c.token {
				t.Errorf("%+v, %v, want %s, %v", have, err, c.want, c.ends)
			}
			if strings.Contains(fmt.Sprintf("%+v", have), "hidden") || strings.Contains(fmt.Sprintf("%+v", have), "HTKEY") {
				t.Errorf("a value is shown: %+v", have)
			}
		})
	}
}

func TestAhead(t *testing.T) {
	// The clock is compared without credentials, by an answer that refuses; one without
	// a Date, and nobody, are errors.
	s := hearthtest.StartS3(t)
	proxy, err := faultproxy.Start(faultproxy.Options{Target: s.Endpoint})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	account(t, &s.S3)
	t.Setenv("AWS_ACCESS_KEY_ID", "NOBODY")
	o := open(t, Config{URL: "s3://nosuch", Endpoint: proxy.URL()}).(*S3)
	if ahead, err := o.Ahead(t.Context()); err != nil || ahead.Abs() > 10*time.Second {
		t.Errorf("%v, %v", ahead, err)
	}
	proxy.AddRule(faultproxy.Rule{Header: map[string]string{"Date": time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat)}})
	if ahead, err := o.Ahead(t.Context()); err != nil || (ahead-time.Hour).Abs() > 10*time.Second {
		t.Errorf("an hour ahead: %v, %v", ahead, err)
	}
	proxy.ClearRules()
	proxy.AddRule(faultproxy.Skewed())
	if _, err := o.Ahead(t.Context()); !errors.Is(err, ErrNoDate) {
		t.Errorf("without a Date: %v", err)
	}
	proxy.Down()
	if _, err := o.Ahead(t.Context()); !strings.Contains(Explain(err), "nobody listens") {
		t.Errorf("nobody there: %v", err)
	}
}
