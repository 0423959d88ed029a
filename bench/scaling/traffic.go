package scaling

import (
	"fmt"
	"path"
	"strings"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// Sizes of peer/wire's frames and of namespace/share' pages, as their packages' comments have them.
const (
	frameHeader = 32
	frameSeal   = 8
	asks        = 8  // deadline and number of a request's items
	item        = 58 // of a block, without its names
	sum         = 8  // of each piece of 64 KiB
	called      = 4  // deadline of a Call
	question    = 1 + 8 + 16
	page        = 25
	pageNames   = 1000
	pageBytes   = 128 << 10
	etag        = 34 // an MD5 in hexadecimal digits, with its quotes
	mtime       = 5 + 5
	link        = 1 // "/"
)

// Set is what readers ask for, as far as traffic depends on it.
type Set struct {
	// Files, Blocks and Bytes are all of it; Gets are the requests that bring it from the
	// bucket, one for each extent.
	Files, Blocks, Gets, Bytes int64
	// Dirs hold files, or such directories, the root included; Lists are the requests that
	// list each of them once, and Listed the bytes of their answers.
	Dirs, Lists, Listed int64

	served, asked, offered, pages int64 // on a link between nodes, each once
}

// Of a LIST's answer, what S3 says beside names; keys and sizes are added.
const (
	listFront = `<?xml version="1.0" encoding="UTF-8"?>` + "\n" + `<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>bench</Name><Prefix></Prefix><MaxKeys>1000</MaxKeys>` +
		`<Delimiter>/</Delimiter><EncodingType>url</EncodingType><IsTruncated>false</IsTruncated><KeyCount>1000</KeyCount></ListBucketResult>`
	listName = `<Contents><ETag>&#34;00000000000000000000000000000000&#34;</ETag><Key></Key><LastModified>2006-01-02T15:04:05Z</LastModified>` +
		`<Size></Size><StorageClass>STANDARD</StorageClass></Contents>`
	listDir = `<CommonPrefixes><Prefix></Prefix></CommonPrefixes>`
)

// SetOf is a set of files, each read whole.
func SetOf(files []hearthtest.File) Set {
	s, names := Set{}, map[string][]hearthtest.File{}
	dirs := map[string]map[string]bool{".": {}}
	for _, f := range files {
		s.file(f)
		dir := path.Dir(f.Path)
		names[dir] = append(names[dir], f)
		for at := dir; at != "."; at = path.Dir(at) {
			if dirs[at] == nil {
				dirs[at] = map[string]bool{}
			}
			up := path.Dir(at)
			if dirs[up] == nil {
				dirs[up] = map[string]bool{}
			}
			dirs[up][at] = true
		}
	}
	for dir, below := range dirs {
		s.dir(dir, names[dir], below)
	}
	return s
}

func (s *Set) file(f hearthtest.File) {
	s.Files++
	s.Bytes += f.Size
	o := hearth.Object{Key: f.Path, Size: f.Size}
	s.Gets += up(o.Blocks(), hearth.ExtentBlocks)
	about := item + link + int64(len(f.Path)) + etag
	for i := range o.Blocks() {
		n := int64(o.Block(i).Len())
		s.Blocks++
		s.asked += Stream(Secured(frameHeader + asks + about + frameSeal))
		s.served += Stream(Secured(frameHeader + up(n, hearth.PieceSize)*sum + frameSeal + n))
		s.offered += Stream(Secured(frameHeader+asks+about+frameSeal)) + Stream(Secured(frameHeader+frameSeal))
	}
}

func (s *Set) dir(name string, files []hearthtest.File, below map[string]bool) {
	var told, listed int64
	for _, f := range files {
		base, size := int64(len(path.Base(f.Path))), uint64(f.Size)
		told += 1 + varint(uint64(base)) + base + varint(size) + mtime + 1 + etag
		listed += int64(len(listName) + len(f.Path) + len(fmt.Sprint(f.Size)))
	}
	for d := range below {
		told += 2 + int64(len(path.Base(d)))
		listed += int64(len(listDir) + len(d) + 1)
	}
	n := int64(len(files) + len(below))
	lists := max(1, up(n, pageNames))
	pages := max(lists, up(told, pageBytes))
	prefix := int64(len(strings.TrimPrefix(name, ".")) + 1)
	s.Dirs++
	s.Lists += lists
	s.Listed += listed + lists*int64(len(listFront))
	asked := Stream(Secured(frameHeader + called + frameSeal + sum + question + 3 + link + prefix))
	s.pages += pages*asked + Stream(Secured(told+pages*(frameHeader+frameSeal+page)+up(told, hearth.PieceSize)*sum))
}

// mostPeeks is peer/route's: how many former owners are asked for a block after a change.
const mostPeeks = 2

// Predicted is what n nodes cause together while each reads the whole set once, in an order
// of its own, from an empty ring.
type Predicted struct {
	// Gets and Lists are requests to the bucket, OriginBytes the bodies of its answers.
	Gets, Lists, OriginBytes int64
	// PeerBytes are those between nodes, as their links carry them.
	PeerBytes int64
	// Gossip is what each node sends meanwhile, in bytes of its link a second.
	Gossip float64
}

// Predict is the model. Each block is read from the bucket by its owner, once, and by each
// other node from its owner, once, since all keep a copy: so n-1 times the set passes between
// nodes, whoever owns what. The owner, which came to it a moment ago, first asks two others
// whether they hold the block. Small files are offered to their owners beside that, since the
// order of readers cannot be known: once by each other node at most. A directory is listed by
// its owner, and copied by the others.
func Predict(s Set, g Gossip, n int) Predicted {
	others := int64(n - 1)
	peeks := min(mostPeeks, others)
	return Predicted{
		Gets: s.Gets, Lists: s.Lists, OriginBytes: s.Bytes + s.Listed,
		PeerBytes: others*(s.served+s.asked+s.offered+s.pages) + peeks*s.offered,
		Gossip:    g.Idle(n),
	}
}
