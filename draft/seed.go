package draft

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"sync"

	"github.com/zeebo/xxh3"

	"github.com/hearthfs/hearth"
)

// Seed has the bytes of a draft's object as the draft still has them: those that were sent. It keeps the draft's files until
// Close. Its methods may be called at the same time.
type Seed struct {
	d    *Draft
	of   *attempt
	once sync.Once

	mu    sync.Mutex             // held while a part is read and compared
	known map[int64]xxh3.Uint128 // the hashes of ranges of parts that were compared, by where they begin; they end where a part or a block does
}

// mostKnown bounds the hashes that a Seed remembers, to a megabyte. Of larger files a part may be compared twice.
const mostKnown = 1 << 14

var (
	// ErrNoSeed says that a draft does not have the bytes of its object any more, or that nobody knows.
	ErrNoSeed = errors.New("the draft has not the bytes of its object")

	errLess = errors.New("it has less than was sent")
)

// Seed is of the object that was published last; the error is ErrNoSeed if there is none, or if the draft was changed since. A
// publish of before a restart is none: the hashes of its parts are not known.
func (d *Draft) Seed() (*Seed, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := &Seed{d: d, of: d.published}
	if s.of == nil || s.of.sums == nil || d.gone || !s.standsLocked() {
		return nil, ErrNoSeed
	}
	d.seeds++
	return s, nil
}

func (s *Seed) standsLocked() bool {
	d := s.d
	return !d.removed && !d.nameless && d.base != nil && d.published == s.of && d.gen == s.of.gen
}

// Object is the object, which a rename may have copied to another key since. It is ErrNoSeed once the draft was changed, removed
// or replaced: nobody needs the bytes then, or they are others.
func (s *Seed) Object() (hearth.Object, error) {
	s.d.mu.RLock()
	defer s.d.mu.RUnlock()
	if !s.standsLocked() {
		return hearth.Object{}, ErrNoSeed
	}
	return *s.d.base, nil
}

// Read fills p with the bytes at off of the object. An error says that the draft does not give them: a disk that changes bytes is
// seen here, since each part is compared with the hash of what was sent, and each range with what was compared.
func (s *Seed) Read(p []byte, off int64) error {
	if off < 0 || off+int64(len(p)) > s.of.Size {
		return fmt.Errorf("read a seed at %d: %w", off, io.EOF)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if off%hearth.BlockSize != 0 || (off+int64(len(p)))%hearth.BlockSize != 0 && off+int64(len(p)) != s.of.Size {
		return fmt.Errorf("read a seed at %d: it has whole blocks alone", off)
	}
	// What it has of its base has no hash of what was sent, and reading it would ask the bucket.
	part := extent{off - off%s.of.PartSize, min(s.of.Size, (off+int64(len(p))-1)/s.of.PartSize*s.of.PartSize+s.of.PartSize)}
	s.d.mu.RLock()
	holes := s.d.ext.holes(part)
	s.d.mu.RUnlock()
	if len(holes) > 0 {
		return ErrNoSeed
	}
	if err := s.readLocked(p, off); err != nil {
		return err
	}
	for len(p) > 0 {
		n := s.rangeAt(off) - off
		sum, err := s.sumLocked(off)
		if err == nil && xxh3.Hash128(p[:n]) != sum {
			err = ErrNoSeed
		}
		if err != nil {
			return err
		}
		p, off = p[n:], off+n
	}
	return nil
}

func (s *Seed) readLocked(p []byte, off int64) error {
	if n, err := s.d.ReadAt(p, off); n < len(p) {
		return fmt.Errorf("read the draft's data: %w", errors.Join(errLess, err))
	}
	return nil
}

// rangeAt is the end of a range that has a hash of its own: the next end of a block or of a part.
func (s *Seed) rangeAt(off int64) int64 {
	return min((off/hearth.BlockSize+1)*hearth.BlockSize, (off/s.of.PartSize+1)*s.of.PartSize, s.of.Size)
}

// sumLocked is the hash of a range of what was sent. The part in which it lies is read and compared, if it was not yet.
func (s *Seed) sumLocked(off int64) (sum xxh3.Uint128, err error) {
	if sum, ok := s.known[off]; ok {
		return sum, nil
	}
	part := off / s.of.PartSize
	from, to := part*s.of.PartSize, min((part+1)*s.of.PartSize, s.of.Size)
	if len(s.known) > mostKnown {
		clear(s.known)
	}
	whole, buf, sums := xxh3.New128(), make([]byte, min(hearth.BlockSize, to-from)), map[int64]xxh3.Uint128{}
	for at := from; at < to; {
		p := buf[:s.rangeAt(at)-at]
		if err := s.readLocked(p, at); err != nil {
			return sum, err
		}
		_, _ = whole.Write(p) // it never fails
		sums[at] = xxh3.Hash128(p)
		at += int64(len(p))
	}
	all := whole.Sum128().Bytes()
	if part >= int64(len(s.of.sums)) || !bytes.Equal(all[:], s.of.sums[part]) {
		return sum, ErrNoSeed
	}
	if s.known == nil {
		s.known = sums
	}
	maps.Copy(s.known, sums)
	return sums[off], nil
}

// Close lets the draft's files go, if nothing else keeps them.
func (s *Seed) Close() { s.once.Do(func() { s.d.leave(&s.d.seeds) }) }
