// Package keys says who may do what at the endpoint.
//
// A file has a line for each access key:
//
//	ACCESS SECRET ro|rw TARGET...
//
// A target is `*`, BUCKET or BUCKET/PREFIX. Targets are separated by blanks or commas, and a byte
// that cannot be written in one is %XX. A prefix covers every key that begins with it: `b/photos/`
// covers what lies in photos, `b/photos` also photos-of-others. Further rights of a key stand in
// another line with the same secret. A # where a field could begin starts a comment. rw includes
// reading.
//
// The file is checked again when a request comes, at most once a second. When it changed, its keys
// replace the old ones all at once. A file that is wrong, gone or readable by others replaces
// nothing and is reported once. Errors name the line, never its content.
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
	// pollEach bounds how often the file is checked.
	pollEach = time.Second
	// settle is how old a file's modification time must be for an equal one to mean the same
	// content: file systems' clocks tick in up to 2 s (FAT).
	settle = 2 * time.Second
)

// Options of Keys. The zero Options grants nothing to anybody.
type Options struct {
	// File of keys; "" means none.
	File string
	// Access and Secret are one more key, from the environment; "" means none.
	Access, Secret string
	// Rights of that key, `ro|rw TARGET...`; "" means `rw *`.
	Rights string
	// Anonymous is what unsigned requests may do, `ro|rw TARGET...`; "" means nothing.
	Anonymous string
	// Report gets a changed file that could not be used, once for each change, from the caller's
	// goroutine; may be nil.
	Report func(error)
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// Keys are the keys in force. Methods may be called from many goroutines.
type Keys struct {
	options Options
	table   atomic.Pointer[table]
	looked  atomic.Int64 // when the file was checked, ns since 1970

	mu   sync.Mutex  // guards what follows, and is held while the file is read
	seen fs.FileInfo // of the file that was read last, right or wrong; nil means that stat failed
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

// Secret returns the secret of an access key, and whether there is such a key.
func (k *Keys) Secret(access string) (string, bool) {
	k.poll()
	if owner := k.table.Load().keys[access]; owner != nil && access != "" {
		return owner.secret, true
	}
	return "", false
}

// Holds reports whether some key has this secret. So a secret that was sent in place of an access
// key is not logged. It looks at all keys.
func (k *Keys) Holds(secret string) bool {
	for _, owner := range k.table.Load().keys {
		if secret != "" && owner.secret == secret {
			return true
		}
	}
	return false
}

// May reports whether a key ("" means anonymous) may read or write key in a bucket. For a listing,
// key is its prefix. An empty key means the whole bucket.
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

// Sees reports whether a key has any right in a bucket. It serves lists of buckets, and questions
// about the bucket that tell nothing of its content.
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
	// Keys in force, without anonymous.
	Keys int
	// Err is what was wrong with the file when it was last read; nil means nothing.
	Err error
}

// Stats returns the present figures.
func (k *Keys) Stats() Stats {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := len(k.table.Load().keys)
	if k.options.Anonymous != "" {
		n--
	}
	return Stats{Keys: n, Err: k.err}
}

// Reload reads the file now, changed or not. A bad file leaves the old keys in force.
func (k *Keys) Reload() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.loadLocked(nil)
}

// poll checks whether the file changed, unless that was done within a second.
func (k *Keys) poll() {
	now, last := k.options.Now().UnixNano(), k.looked.Load()
	if k.options.File == "" || now-last < int64(pollEach) && now >= last || !k.looked.CompareAndSwap(last, now) {
		return
	}
	if !k.mu.TryLock() {
		return // another goroutine reads it just now
	}
	told := k.lookLocked()
	k.mu.Unlock()
	if told != nil && k.options.Report != nil {
		k.options.Report(told)
	}
}

// lookLocked reads the file if it changed. It returns only an error that was not reported before.
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

// changedLocked reports whether the file may differ from the one that was read. One that was
// written just before it was read may have been written again within a tick of its clock.
func (k *Keys) changedLocked(info fs.FileInfo, err error) bool {
	if err != nil {
		return k.seen != nil || k.err == nil // it is gone, and was there
	}
	age := k.read.Sub(info.ModTime())
	return !same(info, k.seen) || -settle < age && age < settle
}

// emptied reports whether the file has just become empty. A writer that rewrites it in place has it
// so for a moment, so it takes a while until an empty file removes all keys. The kernel truncates a
// file first and sets its time then: a look between the two finds it empty and old.
func emptied(before, now fs.FileInfo) bool {
	if before == nil || before.Size() == 0 || now == nil || now.Size() > 0 {
		return false
	}
	age := time.Since(now.ModTime())
	return -settle < age && age < settle || now.ModTime().Equal(before.ModTime())
}

// same reports whether two looks saw the same file, unchanged.
func same(a, b fs.FileInfo) bool {
	return a != nil && b != nil && os.SameFile(a, b) && a.Size() == b.Size() && a.Mode() == b.Mode() && a.ModTime().Equal(b.ModTime())
}

// loadLocked reads file and options into a new table. before is the file as it was read last; nil
// means that any content counts.
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

// table returns the table of the options, without the file's keys.
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
