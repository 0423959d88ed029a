package identity

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
)

// Keyring caches an identity, and renews it when it is time.
type Keyring struct {
	find  func(context.Context) (*Identity, *Error) // one search
	noted func(error)                               // told the error of a search that failed; may be nil
	have  atomic.Pointer[held]                      // stored under mu

	ctx  context.Context // of searches; ended by Close
	stop context.CancelFunc
	work sync.WaitGroup // searches; Add under mu, while ctx is not done

	mu      sync.Mutex // guards the fields below; never held while somebody is asked
	running *search
	tried   stamps    // the files' stamps before the last search
	again   time.Time // until then no search begins without a new reason
	forced  time.Time // when an origin's refusal last began a search
	failed  error     // of the last search; nil: it found something
}

// held is what a search found. It is immutable.
type held struct {
	*Identity
	renew time.Time // when new ones are looked for; zero: never
	files [2]string // the files of profiles; was are their stamps at the search
	was   stamps
}

func (h *held) good(now time.Time) bool {
	return h != nil && (h.Expires.IsZero() || now.Before(h.Expires))
}

// search is one search, shared by all who wait.
type search struct {
	done chan struct{} // closed when the rest is set
	held *held
	err  error
}

const (
	// searchAgain is how long a failed search is remembered: an instance's metadata may take a
	// second to say no, and every request asks.
	searchAgain = 5 * time.Second
	// renewAgain is the same while the old credentials are still good.
	renewAgain = time.Minute
	// searchWithin bounds a search: the SDK gives a process a minute, and requests much less.
	searchWithin = 90 * time.Second
)

var (
	errClosed = errors.New("the origin is closed")
	errFound  = errors.New("others were found meanwhile")
)

// New makes an empty Keyring. It does not search yet. noted is told of failed searches that no caller
// learns of, since the old credentials are still good. It may be nil.
func New(o Options, noted func(error)) *Keyring {
	k := &Keyring{find: (&chain{Options: o}).find, noted: noted}
	k.ctx, k.stop = context.WithCancel(context.Background())
	return k
}

// Close ends the search that is under way, and waits for it.
func (k *Keyring) Close() {
	k.mu.Lock()
	k.stop()
	k.mu.Unlock()
	k.work.Wait()
}

// Find searches once, and does not use or change what is cached. What it finds may have expired.
func (k *Keyring) Find(ctx context.Context) (*Identity, error) {
	id, failed := k.find(ctx)
	if failed != nil {
		return nil, failed
	}
	return id, nil
}

// Reread searches for credentials now; all later callers use what it finds. When nothing usable is
// found, the error says why, and the old credentials stay in use.
func (k *Keyring) Reread(ctx context.Context) error {
	for {
		is := stampsOf(profileFiles())
		k.mu.Lock()
		s, before := k.running, k.running != nil // it began before the change
		if !before {
			s = k.beginLocked(is)
		}
		k.mu.Unlock()
		if s == nil {
			return errClosed
		}
		if _, err := s.wait(ctx); !before || ctx.Err() != nil {
			return err
		}
	}
}

// Get returns the present credentials. Callers wait for a search if there are none. After a file that
// had them was written, only the first caller waits. Otherwise the old credentials serve during a
// search.
func (k *Keyring) Get(ctx context.Context) (credentials.Value, error) {
	now, h := time.Now(), k.have.Load()
	good, changed := h.good(now), false // changed: its file was written
	var is stamps
	if h == nil {
		is = stampsOf(profileFiles())
	} else if h.ofFiles {
		is = stampsOf(h.files)
		changed = is != h.was
	}
	if good && !changed && (h.renew.IsZero() || now.Before(h.renew)) {
		return h.Value, nil
	}
	s, changed, err := k.join(now, h, is)
	switch {
	case errors.Is(err, errFound):
		return k.Get(ctx)
	case good && (s == nil || !changed):
		return h.Value, nil
	case s == nil:
		return credentials.Value{}, err
	}
	found, err := s.wait(ctx)
	switch {
	case err == nil:
		return found.Value, nil
	case ctx.Err() == nil && h.good(time.Now()):
		return h.Value, nil
	}
	return credentials.Value{}, err
}

// Refused reports whether there are other credentials than those that an origin refused. It begins a
// search for them, but no sooner than searchAgain after the search of another refusal.
func (k *Keyring) Refused(ctx context.Context, used credentials.Value) bool {
	now, is := time.Now(), stampsOf(profileFiles())
	k.mu.Lock()
	h, s := k.have.Load(), k.running
	others := h != nil && differ(h.Value, used)
	if !others && s == nil && now.Sub(k.forced) >= searchAgain {
		k.forced = now
		s = k.beginLocked(is)
	}
	k.mu.Unlock()
	if others || s == nil {
		return others
	}
	found, err := s.wait(ctx)
	return err == nil && differ(found.Value, used)
}

func differ(a, b credentials.Value) bool {
	return a.AccessKeyID != b.AccessKeyID || a.SecretAccessKey != b.SecretAccessKey || a.SessionToken != b.SessionToken
}

func (s *search) wait(ctx context.Context) (*held, error) {
	select {
	case <-s.done:
		return s.held, s.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// join returns the search in flight, or begins one. If it is too soon for one, it returns why the last
// one failed. It returns errFound if one has ended with other credentials than h, which the caller saw.
// changed says that files, with the stamps is, may have something new.
func (k *Keyring) join(now time.Time, h *held, is stamps) (s *search, changed bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	changed = (h == nil || h.ofFiles) && is != k.tried
	switch {
	case k.have.Load() != h:
		return nil, false, errFound
	case k.running != nil:
		return k.running, changed, nil
	case !changed && now.Before(k.again):
		return nil, false, k.failed
	}
	if s = k.beginLocked(is); s == nil {
		return nil, false, errClosed
	}
	return s, changed, nil
}

// beginLocked begins a search. Nil means that the Keyring is closed.
func (k *Keyring) beginLocked(is stamps) *search {
	if k.ctx.Err() != nil {
		return nil
	}
	k.tried = is
	s := &search{done: make(chan struct{})}
	k.running = s
	k.work.Add(1)
	go k.run(s, is)
	return s
}

func (k *Keyring) run(s *search, is stamps) {
	defer k.work.Done()
	ctx, cancel := context.WithTimeout(k.ctx, searchWithin)
	defer cancel()
	id, failed := k.attempt(ctx)
	now, old := time.Now(), k.have.Load()
	if failed == nil {
		failed = judge(id, old, now)
	}
	k.mu.Lock()
	k.running, k.failed = nil, nil
	if failed == nil {
		s.held = &held{Identity: id, files: profileFiles(), was: is}
		if !id.Expires.IsZero() {
			s.held.renew = now.Add(max(id.Expires.Sub(now)/5*4, searchAgain))
		}
		k.have.Store(s.held)
	} else {
		failed.Away = failed.Away || old != nil // it was found before, so it may come back
		s.err, k.failed, k.again = failed, failed, now.Add(searchAgain)
		if old.good(now) {
			k.again = now.Add(renewAgain)
		}
	}
	k.mu.Unlock()
	close(s.done)
	if failed != nil && old.good(now) && k.noted != nil && k.ctx.Err() == nil {
		k.noted(failed)
	}
}

// attempt searches once, and turns a panic into an error.
func (k *Keyring) attempt(ctx context.Context) (id *Identity, failed *Error) {
	defer func() {
		if p := recover(); p != nil {
			failed = &Error{Problem: fmt.Sprintf("looking for credentials panicked: %v\n%s", p, debug.Stack()),
				Cure: "report it"}
		}
	}()
	return k.find(ctx)
}

// judge refuses an identity that was found where the old one is better.
func judge(id *Identity, old *held, now time.Time) *Error {
	switch {
	case !id.Expires.IsZero() && !now.Before(id.Expires):
		return &Error{Problem: fmt.Sprintf("%s: the credentials expired %v ago, at %s", id.How,
			now.Sub(id.Expires).Round(time.Second), id.Expires.UTC().Format(time.RFC3339)),
			Cure: "renew them (aws sso login, or whatever gives them), and see that this machine's clock is right", Away: true}
	case old.good(now) && old.ofFiles && !id.ofFiles:
		// A writer may have emptied the file first: that is no reason to switch to another identity.
		return &Error{Problem: old.How + " is gone; it would now be " + id.How, Cure: "bring it back, or restart the node"}
	}
	return nil
}

// stamps show whether the files of profiles were written.
type stamps [2]stamp

type stamp struct{ modified, size int64 }

func stampsOf(files [2]string) (all stamps) {
	for i, name := range files {
		if info, err := os.Stat(name); err == nil { // else the stamp is zero
			all[i] = stamp{info.ModTime().UnixNano(), info.Size()}
		}
	}
	return all
}
