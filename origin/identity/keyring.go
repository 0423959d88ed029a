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

// Keyring keeps an identity, and has a new one when it is time.
type Keyring struct {
	find  func(context.Context) (*Identity, *Error) // looks once
	noted func(error)                               // what a search in vain ended with; nil: nobody wants to know
	have  atomic.Pointer[held]                      // stored under mu

	ctx  context.Context // of searches; ended by Close
	stop context.CancelFunc
	work sync.WaitGroup // searches; Add under mu, while ctx is not done

	mu      sync.Mutex // guards the fields below; never held while somebody is asked
	running *search
	tried   stamps    // of the files, before the last search
	again   time.Time // before this no search begins without a reason
	forced  time.Time // when an origin's refusal last began one
	failed  error     // of the last search; nil: it found something
}

// held is what a search found; it does not change.
type held struct {
	*Identity
	renew time.Time // when new ones are looked for; zero: never
	files [2]string // of profiles, and how they were then
	was   stamps
}

func (h *held) good(now time.Time) bool {
	return h != nil && (h.Expires.IsZero() || now.Before(h.Expires))
}

// search is one for all who wait.
type search struct {
	done chan struct{} // closed when the rest is set
	held *held
	err  error
}

const (
	// searchAgain is how long a search in vain is remembered: an instance's metadata may take a
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

// New makes a Keyring with nothing in it. It asks nobody yet. noted is told of searches in vain that
// no caller learns of, since the old credentials are still good; nil: nobody is.
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

// Find looks once, past what is held. What it finds may have expired.
func (k *Keyring) Find(ctx context.Context) (*Identity, error) {
	id, failed := k.find(ctx)
	if failed != nil {
		return nil, failed
	}
	return id, nil
}

// Reread looks for credentials now, and has all that follow use what it finds. Where there are none
// to use the error says why, and the old ones serve on.
func (k *Keyring) Reread(ctx context.Context) error {
	for {
		is := stampsOf(profileFiles())
		k.mu.Lock()
		s, before := k.running, k.running != nil // which began before what changed
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

// Get gives the credentials of now. Callers wait for a search where there are none; the first one
// does where a file that had them was written. Else the old ones serve meanwhile.
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

// Refused says whether there are other credentials than those that an origin refused. It has them
// looked for, but no sooner than searchAgain after another refusal did.
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

// join gives the search under way or a new one; or, where it is too soon for one, why the last failed,
// and errFound where one has ended with other credentials than h, those that the caller saw.
// changed says that there may be something new to find in files, which are as is says.
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

// beginLocked begins a search; nil: the Keyring is closed.
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
		failed.Away = failed.Away || old != nil // it was here before
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

// attempt looks once, and makes an error of a panic.
func (k *Keyring) attempt(ctx context.Context) (id *Identity, failed *Error) {
	defer func() {
		if p := recover(); p != nil {
			failed = &Error{Problem: fmt.Sprintf("looking for credentials panicked: %v\n%s", p, debug.Stack()),
				Cure: "report it"}
		}
	}()
	return k.find(ctx)
}

// judge refuses what was found where the old is better.
func judge(id *Identity, old *held, now time.Time) *Error {
	switch {
	case !id.Expires.IsZero() && !now.Before(id.Expires):
		return &Error{Problem: fmt.Sprintf("%s: the credentials expired %v ago, at %s", id.How,
			now.Sub(id.Expires).Round(time.Second), id.Expires.UTC().Format(time.RFC3339)),
			Cure: "renew them (aws sso login, or whatever gives them), and see that this machine's clock is right", Away: true}
	case old.good(now) && old.ofFiles && !id.ofFiles:
		// Whoever writes the file may have emptied it first: that is no reason to become another.
		return &Error{Problem: old.How + " is gone; it would now be " + id.How, Cure: "bring it back, or restart the node"}
	}
	return nil
}

// stamps tell whether the files of profiles were written.
type stamps [2]stamp

type stamp struct{ modified, size int64 }

func stampsOf(files [2]string) (all stamps) {
	for i, name := range files {
		if info, err := os.Stat(name); err == nil { // else it is the zero
			all[i] = stamp{info.ModTime().UnixNano(), info.Size()}
		}
	}
	return all
}
