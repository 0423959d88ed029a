package namespace

import (
	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/namespace/record"
)

// object is the version that a file's entry stands for.
func object(l *link, e *record.Entry, key string) hearth.Object {
	o := hearth.Object{Link: l.Name, Key: key, ETag: e.ETag, Size: e.Size, ModTime: e.ModTime, Version: e.Version}
	if !e.HasVersion {
		o.Version = hearth.VersionOf(l.Identity, key, e.ETag, e.Size)
	}
	return o
}

// fileEntry is the entry of a version, without an id.
func fileEntry(l *link, o *hearth.Object) record.Entry {
	e := record.Entry{Size: o.Size, ModTime: o.ModTime, ETag: o.ETag}
	if l.Identity == "" || hearth.VersionOf(l.Identity, o.Key, o.ETag, o.Size) != o.Version {
		e.Version, e.HasVersion = o.Version, true
	}
	return e
}
