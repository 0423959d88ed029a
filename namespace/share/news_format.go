package share

import (
	"encoding/binary"
	"fmt"
	"strings"
	"time"
)

// The format of news, with sizes in bytes: the format 1, then directories to the end. A directory is the
// id 16, the strings link and prefix, the number of names, and the names. A name is the milliseconds since
// the bucket said so, and the string segment. Numbers are varints, and a string has its length in front.
// The single segment "" means that the directory changed.
const newsFormat = 1

// maxAge is the age at which older news is told. Nodes that believe names for longer than this ask when
// somebody wants to know.
const maxAge = 24 * time.Hour

// newsBytes bounds the news in one call, except for those of its last directory.
const newsBytes = 64 << 10

// appendNews appends the news of as many directories as fit, and of one at least.
func appendNews(dst []byte, list []*news, now time.Time) (body []byte, many int) {
	dst = append(dst, newsFormat)
	for _, x := range list {
		if len(dst) > newsBytes {
			break
		}
		many++
		dst = append(dst, x.dir.ID[:]...)
		dst = appendString(appendString(dst, x.dir.Link), x.dir.Prefix)
		if x.all {
			dst = appendAged(binary.AppendUvarint(dst, 1), "", now.Sub(x.at))
			continue
		}
		dst = binary.AppendUvarint(dst, uint64(len(x.names)))
		for name, at := range x.names {
			dst = appendAged(dst, name, now.Sub(at))
		}
	}
	return dst, many
}

func appendAged(dst []byte, name string, age time.Duration) []byte {
	return appendString(binary.AppendUvarint(dst, milliseconds(min(age, maxAge))), name)
}

// parseNews reads what another node says.
func parseNews(b []byte, now time.Time) (list []*news, err error) {
	r := reader{b: b}
	if v := r.byte(); v != newsFormat {
		return nil, fmt.Errorf("news of format %d, this node knows %d: run releases next to each other", v, newsFormat)
	}
	for len(r.b) > 0 && len(list) < newsDirs {
		x := &news{}
		copy(x.dir.ID[:], r.bytes(16))
		x.dir.Link, x.dir.Prefix = r.string(maxLink), r.string(maxKey)
		names := r.uvarint()
		if x.dir.Prefix != "" && !strings.HasSuffix(x.dir.Prefix, "/") || names == 0 || names > newsNames {
			r.bad = true
		}
		for range min(names, newsNames) {
			age := r.uvarint()
			if age > uint64(maxAge/time.Millisecond) {
				r.bad = true
			}
			if name := r.segment(); !r.bad {
				x.add(name, now.Add(-time.Duration(age)*time.Millisecond))
			}
		}
		list = append(list, x)
	}
	if !r.end() || len(list) == 0 {
		return nil, fmt.Errorf("news of %d bytes that cannot be read", len(b))
	}
	return list, nil
}
