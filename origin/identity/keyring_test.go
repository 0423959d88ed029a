package identity

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// keyring is a Keyring over services that answer without a network, for virtual time.
type keyring struct {
	*Keyring
	*hearthtest.FakeAWS
	noted []error
}

func newRing(t *testing.T, f *hearthtest.FakeAWS) *keyring {
	r := &keyring{FakeAWS: f}
	r.Keyring = New(Options{}, func(err error) { r.noted = append(r.noted, err) })
	r.find = (&chain{direct: f, proxied: f}).find
	t.Cleanup(r.Keyring.Close)
	return r
}

// expect has a reader ask: key is what it is given, "": an error.
func (r *keyring) expect(t *testing.T, key string) {
	t.Helper()
	v, err := r.Get(t.Context())
	if v.AccessKeyID != key || (key == "") != (err != nil) || err != nil && !errors.As(err, new(*Error)) {
		t.Errorf("the key %q, %v; expected %q", v.AccessKeyID, err, key)
	}
	if token := strings.Replace(key, "KEY", "session ", 1); key != "" && v.SessionToken != token {
		t.Errorf("the key %s has the token of %q", key, v.SessionToken)
	}
}

// services are the ways to come by credentials that end, by the variables that name them.
func services() map[string]map[string]string {
	return map[string]map[string]string{
		"sts":   {"AWS_WEB_IDENTITY_TOKEN_FILE": "TOKEN", "AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/reader"},
		"imds":  nil,
		"agent": {"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://169.254.170.23/v1/credentials", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": "TOKEN"},
	}
}

// name sets the variables of a service and writes its token.
func name(t *testing.T, service string) (f *hearthtest.FakeAWS, token string) {
	t.Helper()
	token = filepath.Join(hearthtest.Clear(t), "token")
	write(t, token, "identity")
	for name, value := range services()[service] {
		t.Setenv(name, strings.ReplaceAll(value, "TOKEN", token))
	}
	return hearthtest.NewFakeAWS(), token
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestCredentialsAreRenewedBeforeTheyExpire(t *testing.T) {
	// Credentials of an hour, or of six, are renewed when a fifth of their time is left, with the
	// token that the file holds by then. While the service is away the old ones are good until they
	// expire; when it is back, new ones are had.
	for service := range services() {
		for _, hours := range []time.Duration{1, 6} {
			t.Run(service, func(t *testing.T) {
				f, token := name(t, service)
				f.Lifetime(hours * time.Hour)
				synctest.Test(t, func(t *testing.T) {
					r := newRing(t, f)
					minute := hours * time.Minute
					r.expect(t, "KEY1")
					time.Sleep(47 * minute)
					r.expect(t, "KEY1")
					f.Token = "identity 2"
					write(t, token, f.Token)
					time.Sleep(2 * minute)
					r.expect(t, "KEY1") // it has the search begun
					synctest.Wait()
					r.expect(t, "KEY2")

					f.Silence(true)
					time.Sleep(49 * minute) // 11 of 60 more until they expire
					r.expect(t, "KEY2")
					time.Sleep(10 * minute)
					r.expect(t, "KEY2")
					time.Sleep(2 * minute)
					r.expect(t, "")
					f.Silence(false)
					time.Sleep(searchAgain)
					r.expect(t, "KEY3")
				})
			})
		}
	}
}

func TestNobodyWaitsWhileTheOldOnesAreGood(t *testing.T) {
	// The service is silent when it is time for new credentials: readers go on with the old ones at
	// once, one search a minute is made, and each that fails is told of.
	f, _ := name(t, "agent")
	synctest.Test(t, func(t *testing.T) {
		r := newRing(t, f)
		r.expect(t, "KEY1")
		f.Silence(true)
		time.Sleep(48 * time.Minute)
		for range 10 { // minutes
			for range 60 {
				before := time.Now()
				r.expect(t, "KEY1")
				if waited := time.Since(before); waited > 0 {
					t.Fatalf("a reader waited %v", waited)
				}
				time.Sleep(time.Second)
			}
		}
		synctest.Wait()
		if n := len(r.noted); n < 3 || n > 10 {
			t.Errorf("%d searches failed in ten minutes", n)
		}
		for _, err := range r.noted {
			if !strings.Contains(err.Error(), "the container's role (AWS_CONTAINER_CREDENTIALS_FULL_URI) cannot be had: no answer") {
				t.Errorf("told: %v", err)
			}
		}
	})
}

func TestASearchIsShared(t *testing.T) {
	// Many readers need credentials at once, first while the service is silent, then when it answers:
	// they wait for one search, and all learn what came of it. Who cannot wait leaves without ending it.
	f, _ := name(t, "agent")
	t.Setenv("AWS_MAX_ATTEMPTS", "1")
	synctest.Test(t, func(t *testing.T) {
		r := newRing(t, f)
		f.Silence(true)
		for round, key := range []string{"", "KEY1"} {
			var readers sync.WaitGroup
			before := f.Asked("agent")
			for range 20 {
				readers.Go(func() { r.expect(t, key) })
			}
			if key == "" {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				synctest.Wait()
				if _, err := r.Get(ctx); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("whose own time is over: %v", err)
				}
				cancel()
			}
			readers.Wait()
			if n := f.Asked("agent") - before; n < 1 || n > 3 { // the SDK's own attempts
				t.Errorf("round %d: asked %d times", round, n)
			}
			before = f.Asked("agent")
			if key != "" { // who looked before the search ended, and comes after it
				if s, _, err := r.join(time.Now(), nil, stamps{}); s != nil || !errors.Is(err, errFound) {
					t.Errorf("another search was begun, or %v", err)
				}
			}
			r.expect(t, key) // what failed is not begun again at once
			if n := f.Asked("agent") - before; n != 0 {
				t.Errorf("round %d: asked again, %d times", round, n)
			}
			f.Silence(false)
			time.Sleep(searchAgain)
		}
	})
}

func TestAFileThatIsWrittenIsReadByTheNextRequest(t *testing.T) {
	// Keys of a file that never end: who replaces them needs no restart. A file that is empty while
	// it is written, or gone, or wrong, changes nothing, least of all into the instance's role.
	f := hearthtest.NewFakeAWS()
	file := filepath.Join(hearthtest.Clear(t), "credentials")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", file)
	keys := func(key string) string {
		return "[default]\naws_access_key_id = " + key + "\naws_secret_access_key = secret\naws_session_token = session " + strings.TrimPrefix(key, "KEY") + "\n"
	}
	write(t, file, keys("KEY10"))
	synctest.Test(t, func(t *testing.T) {
		r := newRing(t, f)
		r.expect(t, "KEY10")
		write(t, file, keys("KEY200"))
		r.expect(t, "KEY200")
		for i, text := range []string{"", "[default]\naws_access_key_id = half\n", "[other]\nregion = r\n"} {
			write(t, file, text)
			for range 3 {
				r.expect(t, "KEY200")
			}
			if synctest.Wait(); len(r.noted) != i+1 {
				t.Errorf("%q: told of %d searches: %v", text, len(r.noted), r.noted)
			}
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		r.expect(t, "KEY200")
		write(t, file, keys("KEY3000"))
		r.expect(t, "KEY3000")
		time.Sleep(24 * time.Hour)
		r.expect(t, "KEY3000")
	})
}

func TestCredentialsAreReadAgain(t *testing.T) {
	// After Reread the next request has new credentials; if there are none now that is an error, and it goes on with the old.
	f, _ := name(t, "imds")
	synctest.Test(t, func(t *testing.T) {
		r := newRing(t, f)
		r.expect(t, "KEY1")
		r.expect(t, "KEY1")
		if err := r.Reread(t.Context()); err != nil {
			t.Error(err)
		}
		r.expect(t, "KEY2")
		f.Silence(true)
		if err := r.Reread(t.Context()); err == nil {
			t.Error("nobody answered, and all is well")
		}
		r.expect(t, "KEY2")
		before := f.Asked("imds")
		r.expect(t, "KEY2")
		if n := f.Asked("imds") - before; n != 0 {
			t.Errorf("asked again, %d times", n)
		}
	})
}

func TestWhatAnOriginRefusesIsLookedForOnce(t *testing.T) {
	// The origin refuses credentials: others are looked for, by one search for all whom it refused,
	// and again no sooner than five seconds later.
	f, _ := name(t, "imds")
	synctest.Test(t, func(t *testing.T) {
		r := newRing(t, f)
		old, err := r.Get(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var readers sync.WaitGroup
		for range 20 {
			readers.Go(func() {
				if !r.Refused(t.Context(), old) {
					t.Error("nothing new after a refusal")
				}
			})
		}
		readers.Wait()
		r.expect(t, "KEY2")
		now, err := r.Get(t.Context())
		if err != nil || r.Refused(t.Context(), now) {
			t.Errorf("%v, or looked for again at once", err)
		}
		time.Sleep(searchAgain)
		if !r.Refused(t.Context(), now) {
			t.Error("nothing new five seconds later")
		}
		r.expect(t, "KEY3")
	})
}

func TestCredentialsThatExpiredAreNotUsed(t *testing.T) {
	// A service gives what has expired already: an error that says when, and that clocks may be wrong.
	f, _ := name(t, "imds")
	f.Lifetime(-time.Hour)
	synctest.Test(t, func(t *testing.T) {
		_, err := newRing(t, f).Get(t.Context())
		if err == nil || !strings.Contains(err.Error(), "expired 1h0m0s ago") || !strings.Contains(err.Error(), "clock") {
			t.Error(err)
		}
	})
}

func TestCloseEndsASearch(t *testing.T) {
	// The origin is closed while a silent service is asked: who waits is told, and nothing is left running.
	f, _ := name(t, "sts")
	f.Silence(true)
	synctest.Test(t, func(t *testing.T) {
		r := newRing(t, f)
		began := time.Now()
		done := make(chan error)
		go func() {
			_, err := r.Get(t.Context())
			done <- err
		}()
		synctest.Wait()
		r.Keyring.Close()
		if err := <-done; err == nil || time.Since(began) > 0 {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		if _, err := r.Get(t.Context()); err == nil {
			t.Error("a closed one gives credentials")
		}
	})
}
