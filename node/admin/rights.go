package admin

import (
	"context"
	"io/fs"
	"net/http"
	"os"
	"os/user"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// This file says what each client may ask a node for.
//
// The kernel tells who a client is: the credentials of the peer of a Unix socket (SO_PEERCRED), read once per
// connection. Root, the user that runs the node, and the node's own process are owners. Users in the group
// hearth are members: they see the node's status, read through it what its owners have named, and warm up and
// pin for themselves. All other users, and connections without credentials, are strangers.
//
// table has every route with the least rank that may ask for it. Check compares each request with the table
// before any handler runs. A route that is not in the table is refused, even to owners. Only an owner's
// descriptors are taken, as with a mount at an automount point. A job or a pin notes the user who made it:
// MayEnd says who else may end it.

// group is the group whose members may ask a node that runs as root or as a service's account.
const group = "hearth"

// Rank orders clients by their rights.
type Rank int

// The ranks, from the least.
const (
	stranger Rank = iota
	Member
	Owner
)

// Asker is a client's rank and user. The zero Asker is a stranger.
type Asker struct {
	Rank Rank
	UID  uint32
}

// refusal is an error with a text of its own that is fs.ErrPermission.
type refusal string

// Error returns the line for people.
func (r refusal) Error() string { return string(r) }

// Unwrap makes a refusal an fs.ErrPermission.
func (refusal) Unwrap() error { return fs.ErrPermission }

// self returns the Asker of the node's own process, which is an owner.
func self() Asker { return Asker{Rank: Owner, UID: uint32(os.Geteuid())} }

// of ranks a peer by its credentials. nil means that the kernel does not know the peer, which is then a
// stranger.
func of(cred *unix.Ucred) Asker {
	switch {
	case cred == nil:
		return Asker{}
	case isOwner(cred.Uid):
		return Asker{Owner, cred.Uid}
	case isMember(cred):
		return Asker{Member, cred.Uid}
	}
	return Asker{stranger, cred.Uid}
}

func isOwner(uid uint32) bool { return uid == 0 || uid == uint32(os.Geteuid()) }

// groupID returns the number of the group whose members may ask a node of this process. There is one if the
// process runs as root, or as an account whose own group it is. A person's own node answers nobody else.
func groupID() (gid int, ok bool) {
	g, err := user.LookupGroup(group)
	if err != nil {
		return 0, false
	}
	gid, err = strconv.Atoi(g.Gid)
	return gid, err == nil && (os.Geteuid() == 0 || os.Getegid() == gid)
}

func isMember(cred *unix.Ucred) bool {
	gid, ok := groupID()
	if !ok {
		return false
	}
	if int(cred.Gid) == gid {
		return true
	}
	u, err := user.LookupId(strconv.Itoa(int(cred.Uid)))
	if err != nil {
		return false
	}
	groups, err := u.GroupIds()
	return err == nil && slices.Contains(groups, strconv.Itoa(gid))
}

// MayEnd reports whether a user may end or change what another one made. An owner may do so with everybody's.
// Records from before the maker was noted belong to root.
func MayEnd(uid, madeBy uint32) bool { return uid == madeBy || isOwner(uid) }

// key is the context key under which With leaves the Asker.
type key struct{}

// With returns a context that notes the Asker.
func With(ctx context.Context, a Asker) context.Context { return context.WithValue(ctx, key{}, a) }

// From returns the Asker that a context notes. Without one it returns a stranger.
func From(ctx context.Context) Asker {
	a, _ := ctx.Value(key{}).(Asker)
	return a
}

// Check passes on the requests that the table allows to their Asker. It has refuse answer all others.
func Check(mux *http.ServeMux, refuse func(http.ResponseWriter, error)) http.Handler {
	table := table()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, pattern := mux.Handler(r) // the very one that answers below
		right, listed := table[pattern]
		asker := From(r.Context())
		switch {
		case asker.Rank < Member:
			refuse(w, refusal("only root, the node's user and the group "+group+" may ask this node: become one of them"))
		case !listed:
			refuse(w, refusal("this node's API has no "+r.Method+" "+strconv.QuoteToASCII(r.URL.Path)+": use a hearth of the node's version"))
		case asker.Rank < right.Least:
			refuse(w, refusal("only root and the node's user may "+right.What+", not the group "+group+": "+right.Cure))
		default:
			mux.ServeHTTP(w, r)
		}
	})
}
