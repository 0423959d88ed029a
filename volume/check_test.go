package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/cache/check"
)

// checked checks a device in virtual time, so that what is bad is looked at again at once. It returns the findings in
// the order of their places.
func checked(t *testing.T, d Device, repair bool) (sum Checked, found []check.Finding) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var err error
		r := &check.Run{Repair: repair, Found: func(f check.Finding) { found = append(found, f) }}
		if sum, err = Check(t.Context(), d, "the device", r); err != nil {
			t.Fatal(err)
		}
		if int(r.Files.Load()) != sum.Free+sum.Closed+sum.Open || r.Bad.Load() != int64(len(found)) {
			t.Errorf("%+v of %d segments, %d findings of %d", sum, r.Files.Load(), len(found), r.Bad.Load())
		}
	})
	slices.SortFunc(found, func(a, b check.Finding) int { return int(a.Offset - b.Offset) })
	return sum, found
}

// filled is a volume that was closed, with 30 blocks in two segments of four.
func filled(t *testing.T) *rig {
	r := newRig(t, 4, nil)
	for i := range 30 {
		r.mustKeep(i, 1000+i*10_001)
	}
	r.close()
	return r
}

func TestACheckFindsWhatIsHarmed(t *testing.T) {
	// A whole volume is clean. A flipped bit in a block, in a record's header, in an index, in a segment's header and in
	// either superblock is found at its place, and costs no more than what it is in. A repair mends superblocks alone.
	r := filled(t)
	whole := append([]byte(nil), r.dev.durable...)
	if sum, found := checked(t, r.dev, false); sum != (Checked{Free: 2, Closed: 2, Good: 30}) || len(found) > 0 {
		t.Fatalf("%+v, %v", sum, found)
	}
	_, notes, err := (&geometry{volume: r.info().ID, size: r.info().Size, segment: minSegment, count: 4, span: 1}).look(0, r.readAt)
	if err != nil || len(notes) < 10 {
		t.Fatal(len(notes), err)
	}
	first, last := notes[0].Offset(), int64(len(whole)-pageSize)
	index := int64(minSegment) - indexSize(len(notes))
	for _, c := range []struct {
		name       string
		flip, at   int64
		good       int64
		damaged    int64
		open, free int
		mends      bool
		cause      string
	}{
		{"a block", firstSegment + first + 500, firstSegment + first, 29, 1, 0, 2, false, "does not verify"},
		{"a record's header", firstSegment + first + 10, firstSegment + first, 29, 1, 0, 2, false, "does not verify"},
		{"an index", firstSegment + index + 20, firstSegment + index, 30, 0, 1, 2, false, "the segment's index does not verify"},
		{"a header", firstSegment + 33, firstSegment, 30, 0, 0, 2, false, "the segment's header does not verify"},
		{"the header of a free segment", firstSegment + 3*minSegment + 33, firstSegment + 3*minSegment, 30, 0, 0, 2, false, "the segment's header does not verify"},
		{"superblock 1", 20, 0, 30, 0, 0, 2, true, "superblock 1 does not verify; hearth volume check --repair"},
		{"superblock 2", last + 20, last, 30, 0, 0, 2, true, "superblock 2 does not verify; hearth volume check --repair"},
	} {
		copy(r.dev.durable, whole)
		r.dev.durable[c.flip] ^= 1
		sum, found := checked(t, r.dev, false)
		if sum != (Checked{Free: c.free, Closed: 4 - c.free - c.open, Open: c.open, Good: c.good, Damaged: c.damaged}) ||
			len(found) != 1 || found[0].Offset != c.at || !strings.Contains(found[0].Cause, c.cause) || found[0].Repaired {
			t.Errorf("%s: %+v, %v, want it at %d", c.name, sum, found, c.at)
		}
		if _, found := checked(t, r.dev, true); len(found) != 1 || found[0].Repaired != c.mends {
			t.Errorf("%s: a repair: %v", c.name, found)
		}
		if err := r.dev.Flush(); err != nil || slices.Equal(r.dev.durable, whole) != c.mends {
			t.Errorf("%s: a repair left something else (%v)", c.name, err)
		}
	}
	g, err := look(r.dev)
	if err != nil {
		t.Fatal(err)
	}
	copy(r.dev.durable, whole)
	g.copy, g.volume = 1, [16]byte{7} // of an earlier volume
	g.put(r.dev.durable[last:])
	if _, found := checked(t, r.dev, true); len(found) != 1 || !found[0].Repaired || !strings.Contains(found[0].Cause, "says otherwise") {
		t.Errorf("another volume's superblock: %v", found)
	}
}

func TestACheckReadsOnBehindBadSectors(t *testing.T) {
	// A medium fails on one sector of a block, another one on a segment's header: the other blocks are found good. A
	// device that fails otherwise ends the check, and so does its caller.
	r := filled(t)
	bad := firstSegment + int64(1<<20)
	r.dev.fails(func(string, int64) error { return nil })
	d := &sectors{fakeDevice: r.dev, bad: bad, err: unix.EIO}
	sum, found := checked(t, d, false)
	if sum.Good != 29 || sum.Damaged != 1 || len(found) != 1 || !strings.Contains(found[0].Cause, "it cannot be read: ") {
		t.Errorf("%+v, %v", sum, found)
	}
	d.bad = firstSegment
	sum, found = checked(t, d, false)
	if sum.Good == 0 || sum.Good >= 30 || sum.Damaged != 0 || len(found) != 1 || !strings.Contains(found[0].Cause, "the segment cannot be read: ") {
		t.Errorf("%+v, %v", sum, found)
	}
	d.err = errors.New("no path")
	if _, err := Check(t.Context(), d, "x", &check.Run{}); err != d.err {
		t.Errorf("without a path: %v", err)
	}
	gone, cancel := context.WithCancelCause(t.Context())
	cancel(errAway)
	if _, err := Check(gone, r.dev, "x", &check.Run{}); err != errAway {
		t.Errorf("after its caller went away: %v", err)
	}
	if _, err := TakeSurvey(gone, r.dev); err != errAway {
		t.Errorf("a survey after its caller went away: %v", err)
	}
}

// sectors is a device that fails where one place is read.
type sectors struct {
	*fakeDevice
	bad int64
	err error
}

func (s *sectors) ReadAt(p []byte, off int64) (int, error) {
	if off <= s.bad && s.bad < off+int64(len(p)) {
		return 0, s.err
	}
	return s.fakeDevice.ReadAt(p, off)
}

func TestWhatIsWrittenMeanwhileIsNoDamage(t *testing.T) {
	// A check reads a block that is half written, and later whole, while another one is half written then. It reads a
	// segment whose blocks are gone already while its new header is not there yet. None of that is damage.
	r := filled(t)
	whole := append([]byte(nil), r.dev.durable...)
	at := firstSegment + 3*pageSize
	clear(r.dev.durable[at : at+pageSize])
	d := &turning{fakeDevice: r.dev, then: func() { copy(r.dev.durable, whole) }}
	if sum, found := checked(t, d, false); sum != (Checked{Free: 2, Closed: 2, Good: 30}) || len(found) > 0 {
		t.Errorf("a block that was half written: %+v, %v", sum, found)
	}
	clear(r.dev.durable[at : at+pageSize])
	d = &turning{fakeDevice: r.dev, then: func() {
		copy(r.dev.durable, whole)
		clear(r.dev.durable[at+1<<20 : at+1<<20+pageSize])
	}}
	if sum, found := checked(t, d, false); sum != (Checked{Free: 2, Closed: 2, Good: 29}) || len(found) > 0 {
		t.Errorf("one block after the other is half written: %+v, %v", sum, found)
	}
	copy(r.dev.durable, whole)
	clear(r.dev.durable[at : at+pageSize])
	h := header{format: Format, volume: r.info().ID, generation: 9, salt: 99}
	d = &turning{fakeDevice: r.dev, then: func() { h.put(r.dev.durable[firstSegment:]) }}
	if sum, found := checked(t, d, false); sum.Changed != 1 || sum.Open != 1 || sum.Closed != 1 || sum.Damaged != 0 || len(found) > 0 {
		t.Errorf("a segment that was begun anew: %+v, %v", sum, found)
	}
}

// turning is a device that changes when its first segment's header is read again.
type turning struct {
	*fakeDevice
	then func()
	seen atomic.Int64 // reads of the header
}

func (s *turning) ReadAt(p []byte, off int64) (int, error) {
	if off == firstSegment && s.seen.Add(1) == 2 {
		s.then()
	}
	return s.fakeDevice.ReadAt(p, off)
}

func TestACheckBesideAWriter(t *testing.T) {
	// A node fills its volume three times over while it is checked again and again: nothing is damage.
	r := newRig(t, 5, nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 250 {
			if err := r.keep(i, 150_000); err != nil {
				t.Error(err)
			}
		}
	}()
	for over := false; !over; {
		select {
		case <-done:
			over = true
		default:
		}
		var found []check.Finding
		sum, err := Check(t.Context(), r.dev, "x", &check.Run{Found: func(f check.Finding) { found = append(found, f) }})
		if err != nil || len(found) > 0 || sum.Damaged > 0 {
			t.Errorf("%+v, %v, %v", sum, found, err)
		}
	}
}

func TestASurveyCountsSegments(t *testing.T) {
	// Two nodes wrote, one of them went away in its segment: the survey tells free, closed and open segments apart, who
	// wrote them and when, and what is wrong with a superblock. An empty volume has nothing.
	r := newRig(t, 8, nil)
	empty, err := TakeSurvey(t.Context(), r.dev)
	if err != nil || empty.Free != 8 || empty.Oldest != nil || empty.Generations != [2]uint64{} || len(empty.Writers) > 0 || len(empty.Harm) > 0 {
		t.Errorf("%+v, %v", empty, err)
	}
	for i := range 30 {
		r.mustKeep(i, 1000+i*10_001)
	}
	r.close()
	r.o.Node = [16]byte{8}
	r.attach()
	r.mustKeep(100, 5000)
	if err := r.v.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.dev.durable[len(r.dev.durable)-1] ^= 1
	s, err := TakeSurvey(t.Context(), r.dev)
	if err != nil || s.Free != 5 || s.Closed != 2 || s.Open != 1 || s.Blocks != 31 || s.Generations != [2]uint64{1, 1} || s.Info != r.v.Info() {
		t.Fatalf("%+v, %v", s, err)
	}
	if len(s.Writers) != 2 || s.Writers[0] != (Writer{[16]byte{9}, 2}) || s.Writers[1] != (Writer{[16]byte{8}, 1}) || !s.Oldest.Began.Before(s.Newest.Began) {
		t.Errorf("written by %v, from %+v to %+v", s.Writers, s.Oldest, s.Newest)
	}
	if len(s.Harm) != 1 || !strings.Contains(s.Harm[0], "superblock 2 does not verify") {
		t.Errorf("superblock 2 is damaged: %q", s.Harm)
	}
	times, err := Latencies(r.dev, 5)
	if err != nil || len(times) != 5 || !slices.IsSorted(times) {
		t.Errorf("latencies %v, %v", times, err)
	}
}

func TestASurveyGoesOnAfterWhatCannotBeRead(t *testing.T) {
	// A segment on a bad medium is counted, and the others are as they are. A device that is away ends the survey.
	r := newRig(t, 8, nil)
	for i := range 30 {
		r.mustKeep(i, 1000+i*10_001)
	}
	r.close()
	whole, err := TakeSurvey(t.Context(), r.dev)
	if err != nil || whole.Closed != 2 {
		t.Fatalf("%+v, %v", whole, err)
	}
	bad := firstSegment + int64(whole.Newest.Number)*minSegment
	r.dev.fails(func(_ string, off int64) error {
		if off >= bad && off < bad+minSegment {
			return unix.EIO
		}
		return nil
	})
	s, err := TakeSurvey(t.Context(), r.dev)
	if err != nil || s.Unread != 1 || !errors.Is(s.Cause, unix.EIO) || s.Closed != 1 || s.Free != 6 || s.Blocks == 0 || s.Blocks >= whole.Blocks {
		t.Errorf("%+v, %v", s, err)
	}
	if times, err := Latencies(r.dev, 64); err != nil || len(times) == 0 {
		t.Errorf("%d latencies, %v", len(times), err)
	}
	r.dev.fails(func(string, int64) error { return unix.EIO })
	if times, err := Latencies(r.dev, 5); !errors.Is(err, unix.EIO) {
		t.Errorf("latencies of what cannot be read: %v, %v", times, err)
	}
	r.dev.fails(func(_ string, off int64) error {
		if off > firstSegment {
			return errAway
		}
		return nil
	})
	if s, err := TakeSurvey(t.Context(), r.dev); err != errAway {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestAFileInUseIsNotFormatted(t *testing.T) {
	// A file that a node has open is not formatted, with force either, nor opened while it is formatted. A file that is
	// open nowhere else is formatted, and can be opened by others afterwards.
	r := newSet(t, 1)
	name := r.file("v", 4)
	r.attach(name)
	for _, force := range []bool{false, true} {
		f, err := OpenFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := MakeVolume(f, FormatOptions{Segment: minSegment, Force: force, DryRun: true}); !errors.Is(err, ErrInUse) {
			t.Errorf("force %v: %v", force, err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	r.set.Close()
	f, err := OpenFile(name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if err := f.own(); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenFile(name); !errors.Is(err, ErrInUse) {
		t.Errorf("opened while it is formatted: %v", err)
	}
	if _, err := MakeVolume(f, FormatOptions{Segment: minSegment, Force: true}); err != nil {
		t.Fatal(err)
	}
	other, err := OpenFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Close(); err != nil {
		t.Error(err)
	}
}

func TestLabelsAndTinyFiles(t *testing.T) {
	// A label that people could not read is refused. A file of some bytes has no volume.
	for _, label := range []string{strings.Repeat("x", 33), "a\x00b", "\xff", "a\nb"} {
		if _, err := Plan(64<<20, FormatOptions{Label: label}); err == nil {
			t.Errorf("label %q is taken", label)
		}
	}
	if info, err := Plan(64<<20, FormatOptions{Label: "größer"}); err != nil || info.Segments != 15 || info.Label != "größer" {
		t.Errorf("%+v, %v", info, err)
	}
	for _, size := range []int64{0, 5, pageSize, firstSegment - 1} {
		if _, err := Look(newDevice(size)); !errors.Is(err, ErrNoVolume) {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}

func TestClusterStays(t *testing.T) {
	// A version that makes another id of the same name and key refuses every volume. The figures were made with
	// Python's hashlib.
	for _, c := range []struct{ name, fingerprint, id string }{
		{"hearth", "", "83ca5a295f75588fe384b6f182321111"},
		{"prod", "hkv4-tyof-avwu-kug5", "36e333194a13b78d70fdda20536422e1"},
	} {
		if got := fmt.Sprintf("%x", Cluster(c.name, c.fingerprint)); got != c.id {
			t.Errorf("%s %s: %s", c.name, c.fingerprint, got)
		}
	}
	if Cluster("a", "bc") == Cluster("ab", "c") {
		t.Error("two names are one cluster")
	}
}

func TestSecretsThatOthersCanReadAreRefused(t *testing.T) {
	// A secret is read without the line's end, from a file that nobody else may read.
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte("DHHC-1:00:x:\n"), 0o640); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadSecret(file); err != nil || got != "DHHC-1:00:x:" {
		t.Errorf("%q, %v", got, err)
	}
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{file: "chmod 600 " + file, "/dev/null": "no regular file", file + ".gone": "no such file"} {
		if _, err := ReadSecret(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func (r *rig) info() Info {
	info, err := Look(r.dev)
	if err != nil {
		r.Fatal(err)
	}
	return info
}

// readAt reads from the first segment.
func (r *rig) readAt(b []byte, off int64) error {
	_, err := r.dev.ReadAt(b, firstSegment+off)
	return err
}
