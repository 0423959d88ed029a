package hearth

import (
	"strings"
	"time"
)

// Directory names a directory of a bucket among the nodes of a ring.
type Directory struct {
	// ID is the same on all nodes that have the link.
	ID [16]byte
	// Link names the link, and Identity its origin, as in VersionOf.
	Link, Identity string
	// Prefix of the keys in the directory: "" or ending in "/".
	Prefix string
}

// IsLocal reports whether the origin with this identity is a local directory. Each node has its
// own.
func IsLocal(identity string) bool { return strings.HasPrefix(identity, "file ") }

// Told is what a node says beside the names of a directory that it tells to another node.
type Told struct {
	// Age is the most time that passed between the question to the origin and this node's question.
	Age time.Duration
	// Took is how long the origin took to list the directory; if the listing still runs, how long
	// so far.
	Took time.Duration
	// Last says that there are no names behind these. Hidden is then the number of names in the
	// directory that cannot be delivered.
	Last   bool
	Hidden int64
}

// Found is what a name in a directory stands for. The zero value means nothing.
type Found struct {
	// Object is set if the name is a file.
	Object *Object
	// Dir says that the name is a directory.
	Dir bool
	// Age is the most time that passed between the question to the origin and this question.
	Age time.Duration
}
