package draft

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/hearthfs/hearth"
)

// seedOf is the seed of a draft that was published.
func seedOf(t *testing.T, d *Draft) *Seed {
	t.Helper()
	x, err := d.Seed()
	must(t, err)
	return x
}

// blocksOf reads all blocks of a seed. It is an error if one is not given.
func blocksOf(x *Seed, size int64) (all []byte, err error) {
	for off := int64(0); off < size; off += hearth.BlockSize {
		p := make([]byte, min(hearth.BlockSize, size-off))
		if err := x.Read(p, off); err != nil {
			return nil, err
		}
		all = append(all, p...)
	}
	return all, nil
}

func TestASeedHasWhatWasSent(t *testing.T) {
	// A draft's object is read from its file, block by block, whatever the size of the parts: as one, in parts that blocks lie
	// across, and in parts of several blocks. The files go with the seed, and not with the last handle before it.
	for _, x := range []struct {
		name     string
		partSize int64
		size     int
	}{
		{"one request", 8 << 20, 2<<20 + 5}, {"a small file", 8 << 20, 5}, {"parts below a block", 700_001, 3<<20 + 7}, {"parts of blocks", 2 << 20, 5 << 20}, {"parts across blocks", 1_500_000, 4<<20 + 1},
	} {
		t.Run(x.name, func(t *testing.T) {
			s := open(t, options(t.TempDir(), newFake(x.partSize)))
			d := create(t, s, "a", 1)
			must(t, d.Hold())
			data := content(x.size, 1)
			write(t, d, data, 0)
			if _, err := d.Seed(); !errors.Is(err, ErrNoSeed) {
				t.Errorf("before it was published: %v", err)
			}
			o := published(t, d)
			seed := seedOf(t, d)
			d.Release()
			if got, err := seed.Object(); err != nil || got.Version != o.Version {
				t.Errorf("%+v, %v", got, err)
			}
			if got, err := blocksOf(seed, int64(x.size)); err != nil || !bytes.Equal(got, data) {
				t.Errorf("%d bytes, %v", len(got), err)
			}
			if seed.Read(make([]byte, 1), int64(x.size)) == nil || x.size > 1 && seed.Read(make([]byte, 1), 1) == nil {
				t.Error("what is no block was given")
			}
			if _, ok := s.ID(1); !ok || len(files(t, s)) != 2 {
				t.Errorf("the files went before the seed: %q", files(t, s))
			}
			seed.Close()
			seed.Close() // once more does nothing
			if left := files(t, s); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
			if _, ok := s.ID(1); ok {
				t.Error("the draft has its id still")
			}
		})
	}
}

func TestASeedNeverHasOtherBytes(t *testing.T) {
	// What is written after the publish, on another moment's bytes, is not given, nor is what a disk changes behind our back:
	// before a part was compared or after. The rest of the file still is. Who has it open as the seed ends keeps the draft.
	s := open(t, options(t.TempDir(), newFake(2<<20)))
	d := create(t, s, "a", 1)
	must(t, d.Hold())
	data := content(6<<20, 1)
	write(t, d, data, 0)
	published(t, d)
	seed := seedOf(t, d)
	block := func(i int64) error { return seed.Read(make([]byte, hearth.BlockSize), i*hearth.BlockSize) }
	flip := func(off int64) {
		t.Helper()
		f, err := os.OpenFile(d.Info().File, os.O_RDWR, 0)
		must(t, err)
		_, err = f.WriteAt([]byte{data[off] ^ 1}, off)
		must(t, errors.Join(err, f.Close()))
	}
	must(t, block(0)) // compares the first part
	flip(5)
	flip(1<<20 + 5)
	flip(5 << 20)
	for i, want := range []error{ErrNoSeed, ErrNoSeed, nil, nil, ErrNoSeed, ErrNoSeed} {
		if err := block(int64(i)); !errors.Is(err, want) {
			t.Errorf("block %d: %v, not %v", i, err, want)
		}
	}
	write(t, d, []byte("changed"), 2<<20+9)
	if _, err := seed.Object(); !errors.Is(err, ErrNoSeed) || !errors.Is(block(2), ErrNoSeed) {
		t.Errorf("changed: %v, %v", err, block(2))
	}
	if _, err := d.Seed(); !errors.Is(err, ErrNoSeed) {
		t.Errorf("changed: %v", err)
	}
	must(t, d.Truncate(3<<20))
	if block(5) == nil {
		t.Error("what was cut off was given")
	}
	published(t, d) // another moment: the seed of the one before is nobody's
	if _, err := seed.Object(); !errors.Is(err, ErrNoSeed) {
		t.Errorf("published anew: %v", err)
	}
	seed.Close()
	if _, ok := s.ID(1); !ok {
		t.Error("the draft went with its seed, though somebody has it open")
	}
	d.Release()
	if left := files(t, s); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

func TestASeedOfWhatHasAnotherNameOrNone(t *testing.T) {
	// An object that was copied to another key is what the seed is of then. One that was removed, or that a later draft replaced,
	// is nobody's, and the end of its seed leaves nothing behind.
	f := newFake(2 << 20)
	s := open(t, options(t.TempDir(), f))
	d := create(t, s, "a", 1)
	must(t, d.Hold())
	write(t, d, content(3<<20, 1), 0)
	o := published(t, d)
	seed := seedOf(t, d)
	d.Release()
	copied, err := f.Copy(t.Context(), &hearth.Upload{Key: "b", Size: o.Size}, &o)
	must(t, err)
	if _, err := d.Renamed(t.Context(), Name{"link", "b"}, o.ETag, copied); err != nil {
		t.Fatal(err)
	}
	if got, err := seed.Object(); err != nil || got.Key != "b" || got.Version != copied.Version {
		t.Errorf("renamed: %+v, %v", got, err)
	}
	if got, err := blocksOf(seed, o.Size); err != nil || !bytes.Equal(got, content(3<<20, 1)) {
		t.Errorf("renamed: %d bytes, %v", len(got), err)
	}
	create(t, s, "b", 2)
	if _, err := seed.Object(); !errors.Is(err, ErrNoSeed) {
		t.Errorf("replaced: %v", err)
	}
	seed.Close()
	if left := files(t, s); len(left) != 2 {
		t.Errorf("the files of one draft, not %q", left)
	}
}

func TestASeedReadsNothingOfABase(t *testing.T) {
	// Of an object that was changed in place only parts are seeded that were written whole. The bucket is not asked for others.
	f := newFake(part)
	s := open(t, changing(t.TempDir(), f))
	want := content(3*part, 1)
	d := changed(t, s, f, "a", slices.Clone(want))
	defer d.Release()
	write(t, d, []byte("x"), 5)
	write(t, d, content(part, 2), part)
	published(t, d)
	seed, err := d.Seed()
	must(t, err)
	defer seed.Close()
	asked := f.count("Base")
	if err := seed.Read(make([]byte, 3*part), 0); !errors.Is(err, ErrNoSeed) || f.count("Base") != asked {
		t.Fatalf("%v, after %d requests", err, f.count("Base")-asked)
	}
}
