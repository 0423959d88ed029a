package fuse

import (
	"encoding/hex"
	"strconv"
	"strings"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/hearthfs/hearth"
)

// xattrPrefix is the prefix of our extended attributes: key, version, etag, and bytes.TIER for the
// bytes of a file in each tier of this node.
const xattrPrefix = "user.hearth."

// GetXAttr answers GETXATTR. Attributes of others (security.*, system.*) cost no look-up. They are
// not answered with ENOSYS, which would turn ours off too.
func (f *fileSystem) GetXAttr(cancel <-chan struct{}, in *gofuse.InHeader, name string, dest []byte) (uint32, gofuse.Status) {
	name, ours := strings.CutPrefix(name, xattrPrefix)
	if !ours {
		return 0, gofuse.ENODATA
	}
	r := f.request(cancel, in)
	defer r.finish()
	rec, err := f.record(r, in.NodeId)
	if err != nil {
		return 0, f.status(r, err)
	}
	if rec.node.Dir {
		return 0, gofuse.ENODATA
	}
	value, ok := f.xattr(&rec.node.Object, name)
	if !ok {
		return 0, gofuse.ENODATA
	}
	return fit(dest, value)
}

// ListXAttr answers LISTXATTR.
func (f *fileSystem) ListXAttr(cancel <-chan struct{}, in *gofuse.InHeader, dest []byte) (uint32, gofuse.Status) {
	r := f.request(cancel, in)
	defer r.finish()
	rec, err := f.record(r, in.NodeId)
	if err != nil {
		return 0, f.status(r, err)
	}
	if rec.node.Dir {
		return 0, gofuse.OK
	}
	names := xattrPrefix + "key\x00" + xattrPrefix + "version\x00" + xattrPrefix + "etag\x00"
	f.tiers(&rec.node.Object, func(tier string, _ int64) { names += xattrPrefix + "bytes." + tier + "\x00" })
	return fit(dest, names)
}

func (f *fileSystem) xattr(o *hearth.Object, name string) (value string, ok bool) {
	switch name {
	case "key":
		return o.Key, true
	case "version":
		return hex.EncodeToString(o.Version[:]), true
	case "etag":
		return o.ETag, true
	}
	tier, bytes := strings.CutPrefix(name, "bytes.")
	if bytes {
		f.tiers(o, func(t string, n int64) {
			if t == tier {
				value, ok = strconv.FormatInt(n, 10), true
			}
		})
	}
	return value, ok
}

func (f *fileSystem) tiers(o *hearth.Object, each func(string, int64)) {
	if f.o.Held != nil {
		f.o.Held(o, each)
	}
}

// fit copies a value, or returns how much room it needs.
func fit(dest []byte, value string) (uint32, gofuse.Status) {
	if len(value) > len(dest) {
		return uint32(len(value)), gofuse.ERANGE
	}
	return uint32(copy(dest, value)), gofuse.OK
}
