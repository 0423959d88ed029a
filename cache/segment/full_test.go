package segment

import (
	"bytes"
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/record"
)

// fullLog is a log of blocks with pages of their own, blocks that share their ends with others, and
// tiny ones. Its file system becomes full, or its file of deaths fails, as cause says.
func fullLog(t *testing.T, o Options) (l *Log, cause *error, lengths []int) {
	t.Helper()
	cause = new(error)
	o.tap = func(c change) error {
		if c.What == "write" && c.Name == deathsName {
			return *cause
		}
		return nil
	}
	l = open(t, o)
	var batch []Entry
	for i := range 90 {
		lengths = append(lengths, []int{100_000, 20_000, 500}[i%3])
		batch = append(batch, entryOf(i, lengths[i]))
	}
	appendAll(t, l, batch...)
	return l, cause, lengths
}

func TestEvictingOnAFullFileSystemFrees(t *testing.T) {
	// Tombstones cannot be written, for lack of room or quota, or on a device that fails. The pages
	// are freed all the same, and only the device's error is reported. Once there is room the
	// tombstones are written with the next one, and no evicted block is found again.
	for _, failure := range []error{unix.ENOSPC, unix.EDQUOT, unix.EIO} {
		o := Options{Dir: t.TempDir()}
		l, cause, lengths := fullLog(t, o)
		*cause = failure
		used, freed := l.Used(), int64(0)
		for i := range 30 {
			freed += l.Evict(blockID(i))
		}
		if freed < 10*100_000 || used-l.Used() != freed {
			t.Errorf("%v: evicting 30 blocks freed %d, and %d less are used", failure, freed, used-l.Used())
		}
		err := l.Append([]Entry{entryOf(200, 500)})
		if told := errors.Is(err, failure); told != (failure == unix.EIO) {
			t.Errorf("%v: the next Append says %v", failure, err)
		}
		if err := l.Sync(); failure != unix.EIO && err != nil {
			t.Errorf("%v: Sync says %v", failure, err)
		}
		*cause = nil
		l.Evict(blockID(30))
		kill(t, l)
		l = open(t, Options{Dir: o.Dir})
		for i, n := range lengths {
			if i > 30 {
				mustHold(t, l, i, n)
			} else if l.Has(blockID(i)) {
				t.Errorf("%v: block %d was evicted and is held again", failure, i)
			}
		}
	}
}

func TestAKillOnAFullFileSystem(t *testing.T) {
	// The process dies before it had room for the tombstones of what it evicted and punched. The
	// next one finds the records. It serves no byte of a hole, takes none for damage, and holds all
	// that lived.
	o := Options{Dir: t.TempDir(), Damaged: func(file string, err error) { t.Errorf("%s is damaged: %v", file, err) }}
	l, cause, lengths := fullLog(t, o)
	*cause = unix.ENOSPC
	evicted := func(i int) bool { return i < 60 && i%3 < 2 } // the tiny ones stay: they hold the ends of others
	for i := range lengths {
		if evicted(i) {
			l.Evict(blockID(i))
		}
	}
	kill(t, l)
	l = open(t, o)
	misses := 0
	for i, n := range lengths {
		switch got := read(t, l, blockID(i), n, [2]int{0, n}); {
		case !evicted(i):
			mustHold(t, l, i, n)
		case got == nil:
			if misses++; l.Has(blockID(i)) {
				t.Errorf("block %d is a miss, and is said to be held", i)
			}
		case !bytes.Equal(got, blockData(i, n)):
			t.Errorf("block %d has wrong bytes", i)
		}
	}
	if s := l.Stats(); misses != 40 || s.Corrupt > 0 {
		t.Errorf("%d misses, %d corrupt", misses, s.Corrupt)
	}
}

func TestEvictingAnObjectOfAnySize(t *testing.T) {
	// All blocks of a version are evicted, and those of no other. That holds also for a version
	// with too many blocks to try one by one.
	for _, blocks := range []int64{100, 1 << 43} {
		l := open(t, Options{Dir: t.TempDir()})
		var batch []Entry
		for i := range int64(100) {
			for _, version := range []byte{1, 2} {
				batch = append(batch, Entry{ID: hearth.ID{Version: [16]byte{version}, Index: i * (min(blocks, record.MaxIndex) / 100)}, Data: blockData(int(i), 500)})
			}
		}
		appendAll(t, l, batch...)
		l.EvictObject([16]byte{1}, blocks)
		for _, e := range batch {
			if l.Has(e.ID) != (e.ID.Version[0] == 2) {
				t.Fatalf("of %d blocks: %v is held: %v", blocks, e.ID, l.Has(e.ID))
			}
		}
	}
}
