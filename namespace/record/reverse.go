package record

import (
	"encoding/binary"
	"time"
)

// Reverse is the reverse record of a node id: what the id stands for.
type Reverse struct {
	Dir        bool
	Link, Path string // of a directory; Link is "=" and the link's name, or "" where there is no link

	Parent     uint64 // of a file: the directory's node id
	Sort       string
	Superseded bool
	Entry      Entry // of a superseded file
}

const (
	revFile = iota
	revDir
	revSuperseded
)

// Append appends the record to buf.
func (r *Reverse) Append(buf []byte) []byte {
	switch {
	case r.Dir:
		buf = append(buf, revDir)
		buf = binary.AppendUvarint(buf, uint64(len(r.Link)))
		buf = append(buf, r.Link...)
		return append(buf, r.Path...)
	case r.Superseded:
		buf = append(buf, revSuperseded)
		buf = binary.AppendUvarint(buf, r.Parent)
		buf = binary.AppendUvarint(buf, uint64(len(r.Sort)))
		buf = append(buf, r.Sort...)
		return r.Entry.Append(buf)
	}
	buf = append(buf, revFile)
	buf = binary.AppendUvarint(buf, r.Parent)
	return append(buf, r.Sort...)
}

// ParseReverse reads a record.
func ParseReverse(b []byte) (Reverse, error) {
	r := reader{b: b}
	switch kind := r.byte(); {
	case r.bad:
	case kind == revDir:
		x := Reverse{Dir: true}
		x.Link = string(r.bytes(r.uvarint()))
		x.Path = string(r.rest())
		return x, r.end()
	case kind == revFile:
		x := Reverse{Parent: r.uvarint()}
		x.Sort = string(r.rest())
		return x, r.end()
	case kind == revSuperseded:
		x := Reverse{Parent: r.uvarint(), Superseded: true}
		x.Sort = string(r.bytes(r.uvarint()))
		if r.bad {
			break
		}
		var err error
		x.Entry, err = ParseEntry(r.rest())
		return x, err
	}
	return Reverse{}, errRecord
}

// Directory is the record of a directory: its node id and its last whole listing.
type Directory struct {
	ID uint64
	// Listed is when that listing began, in Unix milliseconds; 0 means never. Took is how long it took.
	Listed int64
	Took   time.Duration
	// Seen is when the present listing was first seen, in Unix nanoseconds.
	Seen int64
	// Refused counts the keys in the directory that cannot be shown.
	Refused uint64
}

// Append appends the record to buf.
func (d *Directory) Append(buf []byte) []byte {
	buf = binary.AppendUvarint(buf, d.ID)
	buf = binary.AppendVarint(buf, d.Listed)
	buf = binary.AppendUvarint(buf, uint64(d.Took.Milliseconds()))
	buf = binary.AppendVarint(buf, d.Seen)
	return binary.AppendUvarint(buf, d.Refused)
}

// maxTook is a year in milliseconds.
const maxTook = 366 * 24 * 3600 * 1000

// ParseDirectory reads a record.
func ParseDirectory(b []byte) (Directory, error) {
	r := reader{b: b}
	d := Directory{ID: r.uvarint(), Listed: r.varint()}
	took := r.uvarint()
	d.Took, d.Seen, d.Refused = time.Duration(took)*time.Millisecond, r.varint(), r.uvarint()
	if took > maxTook { // no listing takes a year, and this one would be believed for twenty
		return Directory{}, errRecord
	}
	return d, r.end()
}
