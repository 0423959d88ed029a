package origin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hearthfs/hearth"
)

// Dir is a directory as an origin: each regular file below it is an object whose key is its path. Its
// ETag is made of device, inode, size, mtime and ctime. A file that changed in the last two seconds has
// a weak one, since a second change within a clock tick could leave all five as they were.
//
// Symbolic links are followed only to files inside the directory. What is not a regular file is
// reported as hidden. Only files and directories are ever opened: opening a pipe waits for its writer,
// and would release a writer that then finds no reader.
type Dir struct {
	link, identity, path string
	root                 *os.Root
	now                  func() time.Time
	gets, heads, lists   atomic.Int64
	bytes, errors        atomic.Int64
}

// settle is how long a file must have been left alone for its ETag to be strong:
// the coarsest time stamps in use are FAT's, 2 s.
const settle = 2 * time.Second

// leased is the wait between two attempts to open a file on which another program
// holds a lease. The kernel breaks the lease within 45 s.
const leased = 10 * time.Millisecond

func newDir(c Config, path string) (*Dir, error) {
	root, err := os.OpenRoot(path + "/") // the slash makes this fail if it is no directory
	if failed := (*fs.PathError)(nil); errors.As(err, &failed) {
		failed.Path = path // as the user wrote it
	}
	if err != nil {
		return nil, fmt.Errorf("open origin file://%s: %w", path, err)
	}
	d := &Dir{link: c.Link, identity: c.Identity, path: path, root: root, now: time.Now}
	if d.identity == "" {
		d.identity = "file " + path
	}
	return d, nil
}

// Close gives up the directory.
func (d *Dir) Close() error { return d.root.Close() }

// Identity is what the origin is called in versions, as in hearth.VersionOf.
func (d *Dir) Identity() string { return d.identity }

// Stats returns the figures since the start.
func (d *Dir) Stats() Stats {
	return Stats{Gets: d.gets.Load(), Heads: d.heads.Load(), Lists: d.lists.Load(), Bytes: d.bytes.Load(), Errors: d.errors.Load()}
}

// Head asks what a key names now.
func (d *Dir) Head(_ context.Context, key string) (hearth.Object, error) {
	d.heads.Add(1)
	if !fs.ValidPath(key) || key == "." {
		return hearth.Object{}, fmt.Errorf("head file://%s/%s: %w", d.path, key, fs.ErrNotExist)
	}
	info, err := d.root.Stat(key)
	if err == nil && !info.Mode().IsRegular() {
		err = fs.ErrNotExist
	}
	if err != nil {
		return hearth.Object{}, d.failed("head", key, err)
	}
	return d.object(key, info), nil
}

func (d *Dir) failed(op, key string, err error) error {
	if !none(err) {
		d.errors.Add(1)
		return &Error{Op: op, Where: "file://" + d.path + "/" + key, Err: err}
	}
	return fmt.Errorf("%s file://%s/%s: %w", op, d.path, key, fs.ErrNotExist)
}

// none reports whether an error says that there is no such file: the name is not valid for a file or
// directory, or a link leads nowhere, in a circle, or out of the directory. For the last os.Root has no
// error value; its other errors are the kernel's.
func none(err error) bool {
	for _, no := range []error{fs.ErrNotExist, syscall.ENOTDIR, syscall.ENAMETOOLONG, syscall.ELOOP, syscall.ENXIO, syscall.ENODEV} {
		if errors.Is(err, no) {
			return true
		}
	}
	return errors.As(err, new(*fs.PathError)) && !errors.As(err, new(syscall.Errno)) && !errors.Is(err, fs.ErrClosed)
}

func (d *Dir) object(key string, info fs.FileInfo) hearth.Object {
	o := hearth.Object{Link: d.link, Key: key, ETag: d.etag(info), Size: info.Size(), ModTime: info.ModTime(), Exact: info.ModTime().Nanosecond() == 0}
	o.Version = hearth.VersionOf(d.identity, o.Key, o.ETag, o.Size)
	return o
}

func (d *Dir) etag(info fs.FileInfo) string {
	st := info.Sys().(*syscall.Stat_t)
	changed := time.Unix(st.Ctim.Unix())
	if info.ModTime().After(changed) {
		changed = info.ModTime()
	}
	if d.now().Sub(changed) < settle {
		return "W/" + stamp(info)
	}
	return stamp(info)
}

func stamp(info fs.FileInfo) string {
	st := info.Sys().(*syscall.Stat_t)
	b := make([]byte, 0, 80)
	for i, n := range []int64{int64(st.Dev), int64(st.Ino), st.Size, st.Mtim.Nano(), st.Ctim.Nano()} {
		if i > 0 {
			b = append(b, '-')
		}
		b = strconv.AppendUint(b, uint64(n), 36)
	}
	return string(b)
}

// Read opens a range of one version. The last byte is yielded only if the file is then still the
// version that was opened.
func (d *Dir) Read(ctx context.Context, o *hearth.Object, off, n int64) (io.ReadCloser, error) {
	d.gets.Add(1)
	if !fs.ValidPath(o.Key) {
		return nil, fmt.Errorf("get %s: %w", o.Key, hearth.ErrStale)
	}
	f, err := d.open(ctx, o.Key)
	if err != nil {
		if err = d.failed("get", o.Key, err); errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("get %s: it is gone: %w", o.Key, hearth.ErrStale)
		}
		return nil, err
	}
	r := &dirBody{dir: d, file: f, object: o, rest: n, in: io.NewSectionReader(f, off, n)}
	if err := r.same(); err != nil {
		_ = f.Close() // it was only read
		return nil, err
	}
	return r, nil
}

// open opens a regular file. It does not open anything else, since that can have side effects. It opens
// without blocking, in case the file was just replaced by something else, which the body's own check
// shows. A non-blocking open meets EAGAIN only where the file is leased.
func (d *Dir) open(ctx context.Context, key string) (*os.File, error) {
	if info, err := d.root.Stat(key); err != nil || !info.Mode().IsRegular() {
		return nil, cmp.Or(err, fs.ErrNotExist)
	}
	for {
		f, err := d.root.OpenFile(key, os.O_RDONLY|syscall.O_NONBLOCK, 0)
		if !errors.Is(err, syscall.EAGAIN) {
			return f, err
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(leased):
		}
	}
}

type dirBody struct {
	dir    *Dir
	file   *os.File
	object *hearth.Object
	rest   int64
	in     *io.SectionReader
}

func (r *dirBody) same() error {
	info, err := r.file.Stat()
	if err != nil {
		return r.dir.failed("get", r.object.Key, err)
	}
	if now := stamp(info); now != strings.TrimPrefix(r.object.ETag, "W/") || !info.Mode().IsRegular() {
		return fmt.Errorf("get %s: its stamp is %s and was %s: %w", r.object.Key, now, r.object.ETag, hearth.ErrStale)
	}
	return nil
}

// Read yields the next bytes.
func (r *dirBody) Read(p []byte) (int, error) {
	if r.rest == 0 {
		return 0, io.EOF
	}
	n, err := r.in.Read(p)
	r.dir.bytes.Add(int64(n))
	if r.rest -= int64(n); r.rest == 0 {
		if stale := r.same(); stale != nil {
			return 0, stale
		}
		return n, nil
	}
	if err == io.EOF {
		err = fmt.Errorf("get %s: it became shorter: %w", r.object.Key, hearth.ErrStale)
	}
	return n, err
}

// Close closes the file.
func (r *dirBody) Close() error { return r.file.Close() }

// List streams a listing in the byte order of keys. The names of a directory are in memory while it is
// listed. An empty directory counts as a group, as one with a directory marker would.
func (d *Dir) List(ctx context.Context, q hearth.Listing, each func(hearth.Object) error) error {
	d.lists.Add(1)
	l := &dirListing{Dir: d, ctx: ctx, q: q, each: each}
	base := ""
	if i := strings.LastIndexByte(q.Prefix, '/'); i >= 0 {
		base = q.Prefix[:i+1]
	}
	if base != "" && !fs.ValidPath(strings.TrimSuffix(base, "/")) {
		return nil
	}
	err := l.dir(base)
	if errors.Is(err, errLimit) {
		return nil
	}
	return err
}

var errLimit = errors.New("limit reached")

type dirListing struct {
	*Dir
	ctx   context.Context
	q     hearth.Listing
	each  func(hearth.Object) error
	count int
}

// dir lists the directory whose keys begin with base.
func (l *dirListing) dir(base string) error {
	if err := context.Cause(l.ctx); err != nil {
		return err
	}
	name := strings.TrimSuffix(base, "/")
	if name == "" {
		name = "."
	}
	names, err := l.names(name)
	if err != nil {
		return err
	}
	for _, name := range names {
		key := base + name
		group := strings.HasSuffix(key, "/")
		// A group may hold keys after After although its own name sorts before.
		inside := group && l.q.Recursive && strings.HasPrefix(l.q.After, key)
		if key <= l.q.After && l.q.After != "" && !inside || !strings.HasPrefix(key, l.q.Prefix) {
			continue
		}
		switch {
		case !group:
			err = l.file(key)
		case l.q.Recursive:
			err = l.dir(key)
		default:
			err = l.deliver(hearth.Object{Link: l.link, Key: key, Size: hearth.PrefixSize})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// names are a directory's entries in the order of their keys; those of directories end in "/". A
// directory that does not exist has none.
func (l *dirListing) names(dir string) ([]string, error) {
	f, err := l.root.OpenFile(dir, os.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil && none(err) {
		return nil, nil
	}
	if err != nil {
		return nil, l.failed("list", dir, err)
	}
	defer func() { _ = f.Close() }() // it was only read
	entries, err := f.ReadDir(-1)
	if err != nil && none(err) && dir != "." { // a root that was removed is an error, not an empty listing
		return nil, nil
	}
	if err != nil {
		return nil, l.failed("list", dir, err)
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		name := e.Name()
		if e.IsDir() {
			name += "/"
		} else if !e.Type().IsRegular() && e.Type() != fs.ModeSymlink {
			l.q.Hide(l.key(dir, name)) // a socket, a device, a pipe
			continue
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return names, nil
}

// key is the key of a name in a directory.
func (*dirListing) key(dir, name string) string {
	if dir == "." {
		return name
	}
	return dir + "/" + name
}

// file delivers a file, or nothing if it is gone. A symbolic link that does not lead to a file of the
// directory is hidden.
func (l *dirListing) file(key string) error {
	info, err := l.root.Stat(key)
	if err != nil || !info.Mode().IsRegular() {
		if _, err := l.root.Lstat(key); err == nil {
			l.q.Hide(key)
		}
		return nil
	}
	return l.deliver(l.object(key, info))
}

func (l *dirListing) deliver(o hearth.Object) error {
	if err := l.each(o); err != nil {
		return err
	}
	if l.count++; l.count == l.q.Limit {
		return errLimit
	}
	return nil
}

// Probe lists the directory.
func (d *Dir) Probe(ctx context.Context) (Abilities, error) {
	a := Abilities{Range: true, IfMatch: true, StrongETag: true}
	start := time.Now()
	err := d.List(ctx, hearth.Listing{Limit: 1}, func(hearth.Object) error { a.Objects = true; return nil })
	a.RoundTrip = time.Since(start)
	return a, err
}
