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

// This file says who may ask a node for what.
//
// Who asks is known from the kernel: the credentials of the peer of a Unix socket
// (SO_PEERCRED), noted once for a connection. Root, the user whom the node runs as and
// the node's own process are its owners. The group hearth are members: they see how the
// node is, read through it what its owners have named, and warm up and pin for
// themselves. All others, and whoever comes by a way without credentials, are strangers.
//
// Table has every route with the least that may ask for it. Check holds each request
// against it before any handler runs; a route that is not in the table is refused, to
// owners as well. A descriptor that is sent along, as with a mount at an automount point,
// is taken of owners alone. What belongs to somebody, a job or a pin, notes who made it: MayEnd
// says who else may end it.

// group is the one whose members may ask a node that root or a service's account runs.
const group = "hearth"

// Rank orders askers by what they may.
type Rank int

// The ranks, from the least.
const (
	stranger Rank = iota
	Member
	Owner
)

// Asker is who asks; the zero value is a stranger.
type Asker struct {
	Rank Rank
	UID  uint32
}

// refusal is an error that is fs.ErrPermission, in words of its own.
type refusal string

// Error is the line for people.
func (r refusal) Error() string { return string(r) }

// Unwrap says what it is.
func (refusal) Unwrap() error { return fs.ErrPermission }

// self is the node's own process.
func self() Asker { return Asker{Rank: Owner, UID: uint32(os.Geteuid())} }

// of ranks a peer; nil, which is one whom the kernel does not know, is a stranger.
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

// groupID is the group's number where its members may ask a node of this process: root's,
// or that of an account whose own group it is. A person's node is that person's alone.
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

// MayEnd reports whether a user may end or change what another one made; who is an owner
// may with everybody's. What was made before that was noted is root's.
func MayEnd(uid, madeBy uint32) bool { return uid == madeBy || isOwner(uid) }

// key is where With leaves who asks.
type key struct{}

// With notes who asks.
func With(ctx context.Context, a Asker) context.Context { return context.WithValue(ctx, key{}, a) }

// From is who asks; a stranger where nobody has noted it.
func From(ctx context.Context) Asker {
	a, _ := ctx.Value(key{}).(Asker)
	return a
}

// Check lets those requests through that the table allows to who asks, and has refuse
// answer all others.
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
			refuse(w, refusal("this node is not asked for "+r.Method+" "+strconv.QuoteToASCII(r.URL.Path)+": use the hearth of its version"))
		case asker.Rank < right.Least:
			refuse(w, refusal("only root and the node's user may "+right.What+", not the group "+group+": "+right.Cure))
		default:
			mux.ServeHTTP(w, r)
		}
	})
}
