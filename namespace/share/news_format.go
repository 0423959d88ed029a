package share

import (
	"encoding/binary"
	"fmt"
	"strings"
	"time"
)

// News are the format 1, and to their end directories: the id 16, link and prefix with their lengths
// in front, the number of names, and of each the milliseconds since the bucket said so and
// the segment with its length, both varints. The one segment "" says that the directory changed.
const newsFormat = 1

// maxAge is older than any news: what is believed for longer is asked for by who wants to know.
const maxAge = 24 * time.Hour

// newsBytes are what news of one call take, but for those of its last directory.
const newsBytes = 64 << 10

// appendNews writes news of as many directories as have room, one at least.
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
