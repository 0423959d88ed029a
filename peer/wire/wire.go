// Package wire is the protocol by which nodes read each other's blocks. It works over
// any net.Conn and knows nothing of placement, membership or who may talk.
//
// The side that dials asks, and the side that accepts answers. Both begin with a hello: the
// versions that they speak, a random number, and how many requests the answering side takes at a
// time. Then frames follow. A frame is a header of fixed size, a bounded meta part, and a payload
// of up to a block. Header and meta have a checksum each. The header's checksum is seeded by both
// random numbers, so that a frame of another connection is invalid here. Requests are numbered one
// by one and answered in any order, each item of each exactly once.
//
// A request is a Fill or Peek of up to MaxItems ranges, or a Call of a number that both sides gave
// a meaning. A payload carries an XXH3 of each piece of 64 KiB, as the cache's files do. The
// checksum of an answer's meta is seeded by that of its request, so that an answer to another
// question is invalid. The receiver takes a View of the node's Pool when the header has come, and
// reads the payload into it. If there is no memory for a tenth of a second, it drops the payload
// and that answer fails. Otherwise two nodes whose memory waits to be sent to each other would wait
// for ever.
//
// Silence concerns the peer as a whole. A side that owes an answer and has sent nothing for 100 ms
// sends "filling". An asker gives the peer up when something is owed, a dial included, and no byte
// has come on any connection for 500 ms. It fails everything that waits with one ErrSilent and
// closes the connections. It also fails new requests at once until a pause is over, which doubles
// (exponential back-off).
//
// Everything is bounded per peer: connections, requests, bytes that wait to be written. Requests
// beyond a bound are refused (load shedding), so that the reader goes elsewhere. A side loses its
// connection if it does not take its answers, asks for more than allowed, or sends something that
// is no frame. An asker that cancels a request leaves at once. Its place is free on both sides when
// the other side has confirmed it.
package wire

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"time"

	"github.com/hearthfs/hearth"
)

const (
	// MaxItems is the most ranges that one request asks for.
	MaxItems = 64
	// MaxBody is the most bytes of a Call and of its answer.
	MaxBody = hearth.BlockSize
	// Silence is how long a peer that owes an answer may send nothing.
	Silence = 500 * time.Millisecond
	// fillingAfter is a fifth of Silence. So one "filling" that is lost in a pause of the garbage
	// collector or of the network causes no detour.
	fillingAfter = Silence / 5
	// memoryWait is the longest wait for memory for a payload that has come. The
	// connection stands still meanwhile, so it is less than Silence.
	memoryWait = 100 * time.Millisecond
	// stallAfter is how long one write (a block at most) may take. Over a link of
	// 200 Mbit/s that a hundred connections share a block takes 4 s.
	stallAfter = 10 * time.Second
	// idleAfter is how long connections are kept that nobody uses.
	idleAfter = time.Minute
)

var (
	// ErrSilent says that a peer sent nothing for Silence though it owed an answer.
	ErrSilent = errors.New("silent while it owes an answer")
	// ErrDown says that there is no connection to a peer: it cannot be dialled, or the
	// connection was lost before the answer. It wraps the cause.
	ErrDown = errors.New("no connection")
	// ErrChecksum says that an answer's bytes are not those that were sent.
	ErrChecksum = errors.New("checksum mismatch")
	// ErrMemory says that an answer came and there was no memory to take it.
	ErrMemory = errors.New("no memory for the answer: donate more RAM, or read less at a time")
	// ErrIncompatible says that both sides have no version of the protocol in common.
	ErrIncompatible = errors.New("incompatible version of the protocol: run releases next to each other")
	// ErrProtocol says that what came is no frame, or none that may come now.
	ErrProtocol = errors.New("protocol violated")
	// ErrClosed says that the Peer was closed.
	ErrClosed = errors.New("closed")

	errCancelled = errors.New("cancelled by the asker")
	errMissed    = errors.New("ended without an answer")
	errIdle      = errors.New("nobody used it")
	errRange     = errors.New("it cannot be asked for")
	errShort     = errors.New("cut off")
)

// Verb says what a peer may do to answer.
type Verb uint8

const (
	// Fill lets an owner fetch what it does not hold.
	Fill Verb = 1
	// Peek is answered from local stores only.
	Peek Verb = 2
)

// Want is a range of a block: bytes [Off, Off+N), 0 <= Off, Off+N <= Block.Len(). N is 0
// for a Fill that loads without payload, and for a Peek that asks whether the block is held.
type Want struct {
	Block  hearth.Block
	Off, N int
}

// Get has the signature of hearth.Source's. With n = 0 it returns no View: a Fill makes the block
// present, and a Peek says by its error whether it is.
type Get func(ctx context.Context, b hearth.Block, off, n int) (*hearth.View, error)

// Answer answers a Call. body is valid until it returns. The View that it returns has at most
// MaxBody bytes and belongs to the caller; nil is an empty answer.
type Answer = func(ctx context.Context, body []byte) (*hearth.View, error)

// Handler answers requests, each on a goroutine of its own. A request without a handler
// is refused. The context ends with the request's deadline, its cancellation, or its
// connection. hearth.ErrMiss, hearth.ErrStale and hearth.ErrRefused travel as such, all
// other errors as an *Error. The Object of a Block is the asker's word: check its
// Version.
type Handler struct {
	Fill, Peek Get
	// Ready returns a block's range from memory, as a View that belongs to the caller. If it
	// returns nil, or if there is no Ready, Fill or Peek is called on a goroutine. Ready is called
	// on the goroutine that reads the connection, so it must not wait.
	Ready func(b hearth.Block, off, n int) *hearth.View
	// Here returns what this node's disk holds of a block, for a Fill. It is read on the
	// goroutine that reads the connection, while nothing else is asked over that. If it
	// returns nil, or if there is no Here, Fill is called. If reading takes too long,
	// Here calls stead once, on another goroutine, which takes over the connection.
	Here func(ctx context.Context, b hearth.Block, off, n int, stead func()) *hearth.View
	// Run is Fill for consecutive blocks of one request, so that an owner can fetch them as one.
	// nil means that Fill is called for each block.
	Run Run
	// Calls are the answers by number, which both sides know. The map must not change.
	Calls map[uint16]Answer
}

// Class says what kind of Error it is, so that a reader knows what to do.
type Class uint8

const (
	// Other is an error without a class.
	Other Class = iota
	// NotExist means that the object does not exist; errors.Is fs.ErrNotExist.
	NotExist
	// Permission means that the peer's credentials do not suffice; errors.Is fs.ErrPermission.
	Permission
	// Away means that the origin cannot be asked now.
	Away
	// Deadline means that the request's time was over; errors.Is context.DeadlineExceeded.
	Deadline
	// Mismatch means that the Version is not that of the Object's fields.
	Mismatch
	// NotKept means that a block was read to be kept, and that no tier keeps it.
	NotKept
	classes
)

// Error is what a peer says went wrong, most often at the origin.
type Error struct {
	Class Class
	// Text is for people. A text longer than MaxText bytes is cut off on the way.
	Text string
}

// MaxText is the most bytes of an Error's text that travel.
const MaxText = 1 << 10

// Error is the text.
func (e *Error) Error() string { return e.Text }

// Is matches an Error of a class with the sentinel that it had at the peer.
func (e *Error) Is(target error) bool {
	switch e.Class {
	case NotExist:
		return target == fs.ErrNotExist
	case Permission:
		return target == fs.ErrPermission
	case Deadline:
		return target == context.DeadlineExceeded
	case Other:
		return target == hearth.ErrArchived && strings.HasPrefix(e.Text, hearth.ErrArchived.Error())
	}
	return false
}

// errorOf is err as it travels.
func errorOf(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return &Error{Class: e.Class, Text: err.Error()}
	}
	e = &Error{Text: err.Error()}
	switch {
	case errors.Is(err, hearth.ErrArchived):
		// By its words: an earlier version would end the connection for a class that it
		// does not know.
		if words := hearth.ErrArchived.Error(); !strings.HasPrefix(e.Text, words) {
			e.Text = words + ": " + e.Text
		}
	case errors.Is(err, fs.ErrNotExist):
		e.Class = NotExist
	case errors.Is(err, fs.ErrPermission):
		e.Class = Permission
	case errors.Is(err, context.DeadlineExceeded):
		e.Class = Deadline
	}
	return e
}
