// Package keys says who may do what at the endpoint.
//
// A file has a line for each access key:
//
//	ACCESS SECRET ro|rw TARGET...
//
// A target is `*`, BUCKET or BUCKET/PREFIX; targets are separated by blanks or commas, and a
// byte that cannot be written in one is %XX. A prefix covers every key that begins with it:
// `b/photos/` what lies in photos, `b/photos` also photos-of-others. A key with other rights
// elsewhere has another line with the same secret. What begins with # where a field could is a
// comment. Who has rw may read, too.
//
// The file is looked at again, at most once a second and when somebody asks: when it changed,
// its keys replace the old ones all at once. A file that is wrong, gone or readable by others
// replaces nothing and is reported once. Errors name the line and never what stands in it.
package keys

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// pollEach bounds how often the file is looked at.
	pollEach = time.Second
	// settle is how old a file's modification time must be for an equal one to mean the same
	// content: file systems' clocks tick in up to 2 s (FAT).
	settle = 2 * time.Second
)

// Options of Keys. Without any, nobody may anything.
type Options struct {
	// File of keys; "": none.
	File string
	// Access and Secret are one more key, that of an environment; "": none.
	Access, Secret string
	// Rights of that key, `ro|rw TARGET...`; "": `rw *`.
	Rights string
	// Anonymous is what those may who sign nothing, `ro|rw TARGET...`; "": nothing.
	Anonymous string
	// Report is told of a changed file that could not be taken over, once for each change,
	// from the goroutine of whoever asked; nil: nobody is told.
	Report func(error)
	// Now is the clock; nil: time.Now.
	Now func() time.Time
}

// Keys are the keys that count now. Methods may be called from many goroutines.
type Keys struct {
	options Options
	table   atomic.Pointer[table]
	looked  atomic.Int64 // when the file was looked at, ns since 1970

	mu   sync.Mutex  // guards what follows, and is held while the file is read
	seen fs.FileInfo // of the file that was read last, right or wrong; nil: it could not be asked
	read time.Time   // when that was
	err  error       // what was wrong with it
}

// Open reads the keys.
func Open(o Options) (*Keys, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	k := &Keys{options: o}
	k.looked.Store(o.Now().UnixNano())
	if err := k.Reload(); err != nil {
		return nil, err
	}
	return k, nil
}

// Secret is that of an access key, and whether there is such a key.
func (k *Keys) Secret(access string) (string, bool) {
	k.poll()
	if owner := k.table.Load().keys[access]; owner != nil && access != "" {
		return owner.secret, true
	}
	return "", false
}

// Holds says whether some key has this secret: so that one which was given in an access key's place
// is not told to others. It looks at all of them.
func (k *Keys) Holds(secret string) bool {
	for _, owner := range k.table.Load().keys {
		if secret != "" && owner.secret == secret {
			return true
		}
	}
	return false
}

// May says whether a key, "" for nobody's, may read or write what lies at key in a bucket. For
// a listing key is its prefix; with key "" it is the whole bucket.
func (k *Keys) May(access string, write bool, bucket, key string) bool {
	k.poll()
	owner := k.table.Load().keys[access]
	if owner == nil {
		return false
	}
	for _, t := range owner.targets {
		if (t.write || !write) && (t.all || t.bucket == bucket && strings.HasPrefix(key, t.prefix)) {
			return true
		}
	}
	return false
}

// Sees says whether a key may anything in a bucket: for a list of buckets, and for questions
// that are about the bucket and tell nothing of what is in it.
func (k *Keys) Sees(access, bucket string) bool {
	k.poll()
	if owner := k.table.Load().keys[access]; owner != nil {
		for _, t := range owner.targets {
			if t.all || t.bucket == bucket {
				return true
			}
		}
	}
	return false
}

// Stats are figures of Keys.
type Stats struct {
	// Keys that count, nobody's aside.
	Keys int
	// Err is what was wrong with the file when it was last read, nil: nothing.
	Err error
}

// Stats returns the figures of now.
func (k *Keys) Stats() Stats {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := len(k.table.Load().keys)
	if k.options.Anonymous != "" {
		n--
	}
	return Stats{Keys: n, Err: k.err}
}

// Reload reads the file now, changed or not. What is wrong keeps the old keys.
func (k *Keys) Reload() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.loadLocked(nil)
}

// poll looks whether the file changed, if nobody did within a second.
func (k *Keys) poll() {
	now, last := k.options.Now().UnixNano(), k.looked.Load()
	if k.options.File == "" || now-last < int64(pollEach) && now >= last || !k.looked.CompareAndSwap(last, now) {
		return
	}
	if !k.mu.TryLock() {
		return // somebody reads it just now
	}
	told := k.lookLocked()
	k.mu.Unlock()
	if told != nil && k.options.Report != nil {
		k.options.Report(told)
	}
}

// lookLocked reads the file if it changed; the error is one that was not told before.
func (k *Keys) lookLocked() error {
	info, err := os.Stat(k.options.File)
	if !k.changedLocked(info, err) {
		return nil
	}
	seen, before := k.seen, k.err
	if err = k.loadLocked(seen); errors.Is(err, errBeingWritten) {
		k.err, k.seen = before, seen
		return nil
	}
	if err != nil && before != nil && err.Error() == before.Error() && same(seen, k.seen) {
		return nil
	}
	return err
}

// changedLocked says whether the file may be another than the one that was read. One that was
// written just before it was read may have been written again within a tick of its clock.
func (k *Keys) changedLocked(info fs.FileInfo, err error) bool {
	if err != nil {
		return k.seen != nil || k.err == nil // it is gone, and was there
	}
	age := k.read.Sub(info.ModTime())
	return !same(info, k.seen) || -settle < age && age < settle
}

// emptied says whether the file has just become empty: whoever writes it anew, and not a new
// one in its place, has it so for a moment. To take all keys away, that is waited for. The kernel
// cuts a file first and sets its time then: who looks between the two finds it empty and old.
func emptied(before, now fs.FileInfo) bool {
	if before == nil || before.Size() == 0 || now == nil || now.Size() > 0 {
		return false
	}
	age := time.Since(now.ModTime())
	return -settle < age && age < settle || now.ModTime().Equal(before.ModTime())
}

// same says whether two looks at the file saw the same one, unchanged.
func same(a, b fs.FileInfo) bool {
	return a != nil && b != nil && os.SameFile(a, b) && a.Size() == b.Size() && a.Mode() == b.Mode() && a.ModTime().Equal(b.ModTime())
}

// loadLocked reads file and options into a new table. before is the file as it was read last; nil:
// whatever is in it now counts.
func (k *Keys) loadLocked(before fs.FileInfo) error {
	t, err := k.options.table()
	k.read, k.seen = time.Now(), nil
	if err == nil && k.options.File != "" {
		if k.seen, err = t.readFile(k.options.File); err == nil && emptied(before, k.seen) {
			err = errBeingWritten
		}
	}
	if err != nil {
		k.err = fmt.Errorf("read keys: %w", err)
		return k.err
	}
	k.err = nil
	k.table.Store(t)
	return nil
}

// table is that of the options, without the file's.
func (o *Options) table() (*table, error) {
	t := &table{keys: map[string]*owner{}}
	if (o.Access == "") != (o.Secret == "") {
		return nil, errors.New("of the one key that is not from a file there is only the access key or only the secret")
	}
	if o.Access != "" {
		if err := t.add(o.Access, o.Secret, strings.Fields(cmp.Or(o.Rights, "rw *"))); err != nil {
			return nil, fmt.Errorf("the one key that is not from a file: %w", err)
		}
	}
	if o.Anonymous != "" {
		nobody := &owner{}
		if err := nobody.grant(strings.Fields(o.Anonymous)); err != nil {
			return nil, fmt.Errorf("the rights of those who sign nothing: %w", err)
		}
		t.keys[""] = nobody
	}
	return t, nil
}
