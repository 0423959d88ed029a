package hearth

import (
	"strings"
	"time"
)

// Directory is what the nodes of a ring call a directory of a bucket.
type Directory struct {
	// ID is the same on all nodes that have the link.
	ID [16]byte
	// Link names the link, and Identity its origin, as in VersionOf.
	Link, Identity string
	// Prefix of the keys in the directory: "" or ending in "/".
	Prefix string
}

// IsLocal reports whether an origin of an identity is a local directory, of which each node
// has its own.
func IsLocal(identity string) bool { return strings.HasPrefix(identity, "file ") }

// Told is what a node that tells names of a directory says beside them.
type Told struct {
	// Age is how long before the question the origin was asked for the names, at most.
	Age time.Duration
	// Took is how long the origin took to list the directory, so far if that goes on.
	Took time.Duration
	// Last: there are no names behind these. Hidden is then how many in the directory
	// cannot be delivered.
	Last   bool
	Hidden int64
}

// Found is what a name in a directory stands for: nothing, unless a field says so.
type Found struct {
	// Object is that of a file.
	Object *Object
	// Dir: it is a directory.
	Dir bool
	// Age is how long before the question the origin was asked, at most.
	Age time.Duration
}
