package draft

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/device"
)

// Format is the version of records that this package writes. A record of a later one is not touched: Open fails. Those of drafts
// without a base are of version 1, which earlier versions read.
const Format = 2

// extentsName is the end of the name of a draft's journal.
const extentsName = ".extents"

// A record is a line "hearth draft FORMAT HASH" with the XXH3 of the rest, and JSON. Names are bytes, as keys are.
type record struct {
	ID      uint64
	Link    string
	Key     []byte
	Draft   string    // 128 random bits in hex: the beginning of all tokens, and the files' name
	Seq     uint64    // of the last token
	Boot    []byte    `json:",omitempty"` // the time since a start of the machine in which it was written
	Durable bool      // a Sync has answered: from then on each record is fsynced before it replaces the last one
	Named   time.Time // when it got its name: of two drafts of one name the later one has it
	Moving  []byte    `json:",omitempty"` // of a directory: the key to which it and all below it are being renamed
	Size    int64     // when the record was written; after a restart the file's size counts
	Attr    Attr
	Wrote   time.Time // when bytes or size changed last
	State   State
	Why     string
	Since   time.Time

	TakesBack bool `json:",omitempty"` // Moving is the old key, since the rename failed
	Conflict  bool `json:",omitempty"` // it is kept under Key beside another object: see conflict.go
	Replaced  bool `json:",omitempty"` // another draft began under its name: it is removed, and not written any more
	Outnamed  bool `json:",omitempty"` // a later draft had its name after a power cut: it has none, whatever becomes of that one

	Base *object // what the bucket has of this draft, or what it began with
	// Over is the size of the object that the draft began with: what is no extent is still that one's (extents.go). 0 means that
	// all bytes are in the data file.
	Over     int64   `json:",omitempty"`
	Under    *object `json:",omitempty"` // that, or what was published since, whose key is UnderKey
	UnderKey []byte  `json:",omitempty"`
	Anew     bool    `json:",omitempty"` // it overwrites whatever the bucket has

	Published *attempt    `json:",omitempty"` // the bytes of Base
	Pending   *attempt    `json:",omitempty"` // sent, and not known whether it was done
	Begins    []begin     `json:",omitempty"` // of uploads that are being begun, or whose ids are not known
	Upload    *uploadRec  `json:",omitempty"`
	Abort     []uploadRef `json:",omitempty"` // uploads that were given up and are still to be aborted

	Unwritten    *object `json:",omitempty"` // made by a rename that is taken back, at UnwrittenKey, and to be deleted
	UnwrittenKey []byte  `json:",omitempty"`
}

// object is a hearth.Object without its names, which need not be UTF-8.
type object struct {
	ETag    string
	Size    int64
	ModTime time.Time
	Exact   bool   `json:",omitempty"`
	Class   string `json:",omitempty"`
	Version [16]byte
}

func objectOf(o *hearth.Object) *object {
	return &object{o.ETag, o.Size, o.ModTime, o.Exact, o.Class, o.Version}
}

func (o *object) named(n Name) hearth.Object {
	return hearth.Object{Link: n.Link, Key: n.Key, ETag: o.ETag, Size: o.Size, ModTime: o.ModTime, Exact: o.Exact, Class: o.Class, Version: o.Version}
}

// attempt is one try to make an object: what it was to be made of.
type attempt struct {
	Token    string
	Size     int64
	PartSize int64 // that Sum is made with
	Sum      []byte
	gen      uint64   // of the bytes; 0 after a restart, when only Sum tells whether the file still has them
	sums     [][]byte // of the parts; nil after a restart
}

type uploadRef struct {
	Key []byte
	ID  string
}

type uploadRec struct {
	uploadRef
	Token    string
	PartSize int64
	Copies   bool `json:",omitempty"`
	Parts    []partRec
}

type partRec struct {
	hearth.Part
	Sum []byte
	Gen uint64 // of the bytes, until the next restart; after it Sum tells
}

func (r *record) name() Name { return Name{r.Link, string(r.Key)} }

func (r *record) encode() ([]byte, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	format := Format
	if r.Over == 0 {
		format = 1
	}
	const head = len("hearth draft 1 0123456789abcdef\n")
	if over := (head + len(body) + 1) % recordStep; over > 0 {
		body = append(body, bytes.Repeat([]byte(" "), recordStep-over)...)
	}
	return fmt.Appendf(nil, "hearth draft %d %016x\n%s\n", format, xxh3.Hash(body), body), nil
}

const (
	// Records are padded to a multiple of recordStep bytes by spaces, which JSON may end with, so that most are as long as
	// the one before.
	recordStep = 1 << 10
	// recordWhole is the most that one write(2) at the beginning of a file replaces as a whole, though the process be
	// killed: a page.
	recordWhole = 4 << 10
)

// writeRecord replaces the record of a draft of which nothing is promised. It need not outlive a power cut, but it must be
// whole after a kill. That of a small file is written over the last one where it can be: its three records in new inodes took a
// third of the node's CPU time, since ext4 searches past each inode that was deleted just now. A large one's are new files,
// since ext4 sends what replaces a file to the disk soon.
func (d *Draft) writeRecord(text []byte, size int64) error {
	name := d.path(".json")
	over := d.recorded == len(text) && size <= hearth.BlockSize
	if len(text) <= recordWhole && (over || d.recorded == notRecorded) {
		flags := os.O_WRONLY
		if !over {
			flags |= os.O_CREATE | os.O_EXCL // killed before it is written it is a broken create: see take
		}
		f, err := os.OpenFile(name, flags, 0o600)
		if err == nil {
			_, err = f.WriteAt(text, 0)
			err = errors.Join(err, f.Close())
		}
		if err == nil {
			d.recorded = len(text)
			return nil
		}
		d.recorded = 0 // the next one is a new file
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	tmp := name + ".tmp"
	err := os.WriteFile(tmp, text, 0o600)
	if err == nil {
		err = os.Rename(tmp, name)
	}
	if err != nil {
		_ = os.Remove(tmp) // err says what is wrong; the next record begins with it
		return err
	}
	d.recorded = len(text)
	return nil
}

// notRecorded is the length of the record of a draft that has none yet.
const notRecorded = -1

var errDamaged = errors.New("the record is damaged")

// decode reads a record. A damaged one is returned as far as it can be read, with errDamaged.
func decode(file string, text []byte) (*record, error) {
	head, body, _ := bytes.Cut(text, []byte("\n"))
	var format uint32
	var hash string
	_, err := fmt.Sscanf(string(head), "hearth draft %d %s", &format, &hash)
	if err == nil && format > Format {
		return nil, &newerError{file, format}
	}
	r := &record{}
	body = bytes.TrimSuffix(body, []byte("\n"))
	said := json.Unmarshal(body, r)
	if err != nil || said != nil || hash != fmt.Sprintf("%016x", xxh3.Hash(body)) {
		return r, errDamaged
	}
	return r, nil
}

// newerError says that a record was written by a newer version of Hearth.
type newerError struct {
	file   string
	format uint32
}

// Error names the file and the cure.
func (e *newerError) Error() string {
	return fmt.Sprintf("draft %s has format %d, this version of hearth reads up to %d: run the newer hearth again until it is published",
		e.file, e.format, Format)
}

func (d *Draft) path(ext string) string {
	return filepath.Join(d.dir, d.random+ext)
}

// save writes the record. durable says that it is there after a power cut, when save returns.
func (d *Draft) save(durable bool) error {
	d.record.Lock()
	defer d.record.Unlock()
	return d.saveRecorded(durable)
}

// saveRecorded is save for who holds record.
func (d *Draft) saveRecorded(durable bool) error {
	d.mu.Lock()
	d.durable = d.durable || durable
	durable, d.changed = d.durable, false
	r := d.recordLocked()
	d.mu.Unlock()
	text, err := r.encode()
	if err == nil && durable {
		d.recorded = 0 // nothing is written over what was promised
		err = device.WriteDurably(d.path(".json"), text)
	} else if err == nil {
		err = d.writeRecord(text, r.Size)
	}
	if err != nil {
		d.mu.Lock()
		d.changed = true
		d.mu.Unlock()
		return fmt.Errorf("write the record of draft %s: %w", r.Key, err)
	}
	return nil
}

func (d *Draft) recordLocked() *record {
	r := &record{Boot: d.s.boot, ID: d.id, Link: d.name.Link, Key: []byte(d.name.Key), Draft: d.random, Seq: d.seq, Durable: d.durable, Named: d.named, Moving: []byte(d.moving), TakesBack: d.back, Conflict: d.beside, Replaced: d.replaced, Outnamed: d.outnamed,
		Size: d.size, Attr: d.attr, Wrote: d.wroteAt, State: d.state, Why: d.why, Since: d.since, Published: d.published, Pending: d.pending,
		Begins: d.begins, Abort: d.abort}
	if d.removed {
		r.State = removed
	}
	if d.base != nil {
		r.Base = objectOf(d.base)
	}
	if r.Anew = d.anew; d.ext != nil {
		r.Over, r.Under, r.UnderKey = d.began, objectOf(d.under), []byte(d.under.Key)
	}
	if d.unwritten != nil {
		r.Unwritten, r.UnwrittenKey = objectOf(d.unwritten), []byte(d.unwritten.Key)
	}
	if u := d.up; u != nil {
		r.Upload = &uploadRec{uploadRef: u.uploadRef, Token: u.token, PartSize: u.partSize, Copies: u.copies}
		for _, p := range u.parts {
			r.Upload.Parts = append(r.Upload.Parts, partRec{p.Part, p.sum, p.gen})
		}
	}
	return r
}

// restore makes a draft of its record.
func (s *Store) restore(dir string, r *record) *Draft {
	d := s.draft(dir, r.ID, r.name())
	d.random, d.seq, d.durable, d.named, d.size, d.attr = r.Draft, r.Seq, r.Durable, r.Named, r.Size, r.Attr
	d.state, d.why, d.since, d.published, d.pending, d.abort = r.State, r.Why, r.Since, r.Published, r.Pending, r.Abort
	d.wroteAt, d.beside, d.back, d.anew, d.replaced, d.outnamed = r.Wrote, r.Conflict, r.TakesBack, r.Anew, r.Replaced, r.Outnamed
	d.begins, d.moving = r.Begins, string(r.Moving)
	d.removed = r.State == removed
	if d.state == Publishing {
		d.state, d.why = Waiting, "the node ended while it was being published"
	}
	if r.Base != nil {
		o := r.Base.named(d.name)
		d.base = &o
	}
	if r.Under != nil {
		o := r.Under.named(Name{r.Link, string(r.UnderKey)})
		d.under = &o
	}
	if r.Unwritten != nil {
		o := r.Unwritten.named(Name{r.Link, string(r.UnwrittenKey)})
		d.unwritten = &o
	}
	if u := r.Upload; u != nil {
		d.up = &upload{uploadRef: u.uploadRef, token: u.Token, partSize: u.PartSize, copies: u.Copies, parts: map[int64]*sentPart{}}
		for _, p := range u.Parts {
			d.up.parts[int64(p.Number-1)] = &sentPart{Part: p.Part, sum: p.Sum}
		}
	}
	d.recovered = true
	return d
}

// erase removes the data, then the record: a record without data is explained by its state, data without a record is not.
func (d *Draft) erase() error {
	if err := d.eraseBytes(); err != nil {
		return err
	}
	d.record.Lock()
	defer d.record.Unlock()
	if err := os.Remove(d.path(".json")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove draft: %w", err)
	}
	return nil
}

func (d *Draft) eraseBytes() error {
	for _, ext := range []string{".data", extentsName} {
		if err := os.Remove(d.path(ext)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove draft: %w", err)
		}
	}
	return nil
}

// aside is what could not be read, and is kept for a person to look at.
type aside struct {
	Info
	bytes int64
}

// setAside renames a draft's files, so that nothing is written over them.
func (s *Store) setAside(dir, base string, n Name, why string) {
	var bytes, size int64
	var since time.Time
	to := filepath.Join(dir, base)
	for i := 1; exists(to+".json.aside") || exists(to+".data.aside"); i++ {
		to = filepath.Join(dir, base+"."+strconv.Itoa(i))
	}
	for _, ext := range []string{".json", extentsName, ".data"} {
		from := filepath.Join(dir, base+ext)
		if fi, err := os.Stat(from); err == nil {
			since, size, bytes = fi.ModTime(), fi.Size(), bytes+allocated(fi)
			if err := os.Rename(from, to+ext+".aside"); err != nil {
				why = fmt.Sprintf("%s; it cannot be set aside: %v", why, err)
			}
		}
	}
	s.noteAside(to, n, why, size, bytes, since)
	s.log("draft %s %s: %s; it is set aside: look at %s.*.aside, and remove them when you need them no more", n.Link, n.Key, why, to)
}

func (s *Store) noteAside(to string, n Name, why string, size, bytes int64, since time.Time) {
	s.asides = append(s.asides, aside{Info{Name: n, Size: size, State: Failed, Why: why, Since: since, File: to + ".data.aside"}, bytes})
}

func exists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}
