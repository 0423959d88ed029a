package volume

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/hearthfs/hearth/cache/check"
	"github.com/hearthfs/hearth/internal/device"
)

var (
	// ErrNoVolume means that a device has no whole superblock.
	ErrNoVolume = errors.New("no Hearth volume is there: format it by hearth volume format")
	// ErrForeign means that a volume belongs to another cluster.
	ErrForeign = errors.New("the volume belongs to another cluster")
	// ErrNewer means that a newer version of Hearth wrote a volume.
	ErrNewer = errors.New("a newer version of Hearth wrote the volume: update this one")
	// errSmaller means that a device is smaller than its volume.
	errSmaller = errors.New("it was made smaller")
	// ErrTaken means that a device holds something already.
	ErrTaken = errors.New("the device is not empty")
)

// FormatOptions say how a device is formatted.
type FormatOptions struct {
	// Cluster is the cluster that the volume will belong to, as Options.Cluster.
	Cluster [16]byte
	// Label is a name for people, of at most 32 bytes.
	Label string
	// Segment is the size of a segment in bytes, a multiple of 4096 from 4 MiB to 1 GiB. 0 has it chosen.
	Segment int64
	// Force formats a device that holds something. Without it that is ErrTaken.
	Force bool
	// DryRun writes nothing.
	DryRun bool
	// Now is the time of formatting. 0 means the present.
	Now time.Time
}

// Info is what a superblock says of a volume.
type Info struct {
	// ID is random, and the volume's for ever.
	ID [16]byte
	// Cluster is the cluster that it belongs to.
	Cluster [16]byte
	// Label is its name for people.
	Label string
	// Size is what it uses of its device, and Segment the size of a segment, in bytes.
	Size, Segment int64
	// Segments and Ranges are how many it has. The nodes of a ring share the ranges.
	Segments, Ranges int
	// Created is when it was formatted.
	Created time.Time
	// Format is the version of its format.
	Format uint32
}

func (g *geometry) info() Info {
	return Info{ID: g.volume, Cluster: g.cluster, Label: g.label, Size: g.size, Segment: g.segment,
		Segments: int(g.count), Ranges: g.ranges(), Created: time.Unix(g.created, 0), Format: g.format}
}

// MakeVolume writes an empty volume to a device. What the device held is lost. A file or a block device must be open
// nowhere else (ErrInUse).
func MakeVolume(d Device, o FormatOptions) (Info, error) {
	g, err := begin(d.Size(), o)
	if err != nil {
		return Info{}, err
	}
	if d.BlockSize() > pageSize {
		return Info{}, fmt.Errorf("the device has blocks of %d bytes: at most %d", d.BlockSize(), pageSize)
	}
	if d, ok := d.(*File); ok {
		if err := d.own(); err != nil {
			return Info{}, err
		}
		defer d.share()
	}
	if readOnly(d) {
		return Info{}, ErrReadOnly
	}
	switch held, err := Holds(d); {
	case o.Force:
	case err != nil:
		return Info{}, fmt.Errorf("what the device holds cannot be read, so that it was not formatted: %w; "+
			"try again, or have --force overwrite it unseen", err)
	case held != "":
		return Info{}, fmt.Errorf("%w: it holds %s; --force overwrites it", ErrTaken, held)
	}
	if o.DryRun {
		return g.info(), nil
	}
	return g.info(), g.write(d)
}

// Plan is what MakeVolume would make of a device with so many bytes, with another ID.
func Plan(size int64, o FormatOptions) (Info, error) {
	g, err := begin(size, o)
	if err != nil {
		return Info{}, err
	}
	return g.info(), nil
}

// begin is the geometry of a new volume.
func begin(size int64, o FormatOptions) (g geometry, err error) {
	if g, err = plan(size, o.Segment); err != nil {
		return g, err
	}
	if len(o.Label) > labelSize || !utf8.ValidString(o.Label) || strings.ContainsFunc(o.Label, unicode.IsControl) {
		return g, fmt.Errorf("label %q: at most %d bytes of printable UTF-8", o.Label, labelSize)
	}
	if _, err := rand.Read(g.volume[:]); err != nil {
		return g, fmt.Errorf("draw a volume's id: %w", err)
	}
	if o.Now.IsZero() {
		o.Now = time.Now()
	}
	g.cluster, g.label, g.created = o.Cluster, o.Label, o.Now.Unix()
	return g, nil
}

// write makes the segments free, and writes the second superblock before the first.
func (g *geometry) write(d Device) error {
	if err := d.Discard(0, g.size); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	page := device.Aligned(pageSize)
	for i := range g.count { // what a device does not discard may look like a segment
		if _, err := d.WriteAt(page, g.offset(i)); err != nil {
			return err
		}
	}
	for copy := uint32(1); ; copy-- {
		if err := d.Flush(); err != nil {
			return err
		}
		g.copy = copy
		g.put(page)
		if _, err := d.WriteAt(page, int64(copy)*g.last()); err != nil {
			return err
		}
		if copy == 0 {
			return d.Flush()
		}
	}
}

// Look reads the superblock of a device. The error is ErrNoVolume or ErrNewer, or the device's.
func Look(d Device) (Info, error) {
	g, err := look(d)
	if err != nil {
		return Info{}, err
	}
	return g.info(), nil
}

// look reads the first superblock, or the second where the first is damaged.
func look(d Device) (g geometry, err error) {
	if d.Size() < firstSegment {
		return g, ErrNoVolume
	}
	var bad error
	page := device.Aligned(pageSize)
	for _, at := range []int64{0, d.Size()&^(pageSize-1) - pageSize} {
		_, err := d.ReadAt(page, at)
		if err != nil && !harmed(err) {
			return g, err
		}
		g, ok := parseGeometry(page)
		switch {
		case err != nil:
			bad = err
		case ok && g.format > Format:
			return g, fmt.Errorf("%w (its format is %d, and this version knows %d)", ErrNewer, g.format, Format)
		case ok && g.size > d.Size():
			return g, fmt.Errorf("the device ends at %d, and the volume needs %d: %w", d.Size(), g.size, errSmaller)
		case ok:
			return g, nil
		}
	}
	return g, cmp.Or(bad, ErrNoVolume)
}

// join is look for a node of a cluster.
func join(d Device, cluster [16]byte) (geometry, error) {
	g, err := look(d)
	if err == nil && g.cluster != cluster {
		err = fmt.Errorf("%w: its cluster is %s, and this node's %s; format it anew, or give this node the key of its cluster",
			ErrForeign, hex.EncodeToString(g.cluster[:4]), hex.EncodeToString(cluster[:4]))
	}
	return g, err
}

// signatures are those of what a device may hold, by their place.
func signatures() []struct {
	name, magic string
	at          int
} {
	return []struct {
		name, magic string
		at          int
	}{
		{"a partition table (GPT)", "EFI PART", 512}, {"a partition table (GPT)", "EFI PART", 4096},
		{"an ext file system", "\x53\xef", 0x438}, {"an XFS file system", "XFSB", 0},
		{"a Btrfs file system", "_BHRfS_M", 0x10040}, {"an LVM volume", "LABELONE", 512},
		{"a swap area", "SWAPSPACE2", 4086}, {"an encrypted volume (LUKS)", "LUKS\xba\xbe", 0},
		{"an MD RAID member", "\xfc\x4e\x2b\xa9", 4096}, {"a bcachefs file system", "\xc6\x85\x73\xf6", 4096 + 24},
		{"a partition table (MBR)", "\x55\xaa", 510}, {"a ZFS pool", "\x0c\xb1\xba\x00\x00\x00\x00\x00", 128 << 10},
	}
}

const (
	// headLook has the signatures of what begins at the beginning: the farthest is that of ZFS, at 128 KiB.
	headLook = 256 << 10
	// tailLook has what lies at the end of a device whose beginning was wiped: the second table of a GPT, the
	// superblocks of MD RAID 0.90 and 1.0, and two labels of ZFS.
	tailLook = 1 << 20
)

// Holds says what a device holds, as far as its first 256 KiB and its last MiB tell: "" means that both are zero. What
// lies between is not looked at. The error means that they cannot be read.
func Holds(d Device) (string, error) {
	g, err := look(d)
	switch {
	case err == nil || errors.Is(err, ErrNewer):
		return fmt.Sprintf("the Hearth volume %s %q", hex.EncodeToString(g.volume[:4]), g.label), nil
	case errors.Is(err, errSmaller):
		return "a Hearth volume that was larger", nil
	case !errors.Is(err, ErrNoVolume):
		return "", err
	}
	end := d.Size() &^ (pageSize - 1)
	head := device.Aligned(int(min(headLook, end)))
	if _, err := d.ReadAt(head, 0); err != nil {
		return "", err
	}
	for _, s := range signatures() {
		if end := s.at + len(s.magic); end <= len(head) && bytes.Equal(head[s.at:end], []byte(s.magic)) {
			return s.name, nil
		}
	}
	if !check.Zero(head) {
		return "bytes that are not zero", nil
	}
	tail := device.Aligned(int(min(tailLook, end)))
	if _, err := d.ReadAt(tail, end-int64(len(tail))); err != nil {
		return "", err
	}
	if !check.Zero(tail) {
		return "bytes that are not zero in its last MiB, as a second partition table or a part of a RAID has", nil
	}
	return "", nil
}
