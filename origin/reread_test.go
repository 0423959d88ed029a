package origin

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hearthfs/hearth/origin/identity"
)

func TestCredentialsAreReadAgainWhenAsked(t *testing.T) {
	// A key is replaced in its file while the old one is good still: what follows once the origin
	// was told to read again is signed by the new one. A file that was emptied is an error. Who
	// signs nothing has nothing to read.
	var signed string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, rest, _ := strings.Cut(r.Header.Get("Authorization"), "Credential=")
		signed, _, _ = strings.Cut(rest, "/")
		w.Header().Set("Content-Length", "1")
		w.Header().Set("ETag", `"e"`)
	}))
	defer server.Close()
	name := filepath.Join(t.TempDir(), "credentials")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	key := func(access string) string {
		return "[default]\naws_access_key_id = " + access + "\naws_secret_access_key = secret\n"
	}
	for _, v := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_CONFIG_FILE"} {
		t.Setenv(v, "")
	}
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", name)
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	open := func(c Config) *S3 {
		t.Helper()
		c.URL, c.Endpoint = "s3://bucket", server.URL
		o, err := Open(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		s := o.(*S3)
		t.Cleanup(s.transport.CloseIdleConnections)
		return s
	}
	write(key("FIRST"))
	s := open(Config{})
	defer func() { _ = s.Close() }()
	expect := func(when, access string) {
		t.Helper()
		if _, err := s.Head(t.Context(), "k"); err != nil || signed != access {
			t.Errorf("%s: signed by %q, %v; expected %s", when, signed, err, access)
		}
	}
	expect("at first", "FIRST")
	write(key("SECOND"))
	if err := s.Reread(t.Context()); err != nil {
		t.Error(err)
	}
	expect("read again", "SECOND")
	write("")
	var why *identity.Error
	if err := s.Reread(t.Context()); !errors.As(err, &why) {
		t.Errorf("an empty file: %v", err)
	}
	expect("of an empty file", "SECOND")
	nobody := open(Config{Anonymous: true})
	defer func() { _ = nobody.Close() }()
	if err := nobody.Reread(t.Context()); err != nil {
		t.Errorf("who signs nothing: %v", err)
	}
}
