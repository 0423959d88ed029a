// Package wire is the protocol by which nodes read each other's blocks. It works over
// any net.Conn and knows nothing of placement, membership or who may talk.
//
// Who dials asks, who accepts answers. Both begin with a hello: the versions that they
// speak, a random number, and how many requests the answering side takes at a time.
// Then frames follow: a header of fixed size with a checksum, seeded by both random
// numbers, so that a frame of another connection is none here; a bounded meta part with a
// checksum; and a payload of up to a block. Requests are numbered one by one and answered
// in any order, each item of each exactly once.
//
// A request is Fill or Peek of one range or of up to MaxItems, or a Call of a number that
// both sides gave a meaning. A payload carries an XXH3 of each piece of 64 KiB, as the
// cache's files do; the checksum of an answer's meta is seeded by that of its request,
// so that an answer to another question is none. The receiver reads a payload
// into a View of the node's Pool that it takes when the header has come. If there is
// no memory for a tenth of a second it throws the payload away and that answer fails:
// two nodes whose memory waits to be sent to each other would wait for ever.
//
// Silence belongs to the peer. Who owes an answer and has sent nothing for 100 ms sends
// "filling". An asker that has heard no byte on any connection for 500 ms while something
// is owed, a dial included, fails all that waits with one ErrSilent, closes the
// connections, and fails what comes at once until a pause is over that doubles.
//
// All is bounded per peer: connections, requests, bytes that wait to be written. What is
// beyond is refused, so that the reader goes elsewhere; who does not take its answers,
// asks for more than it was told, or sends what is no frame loses that connection. An asker
// that cancels a request leaves at once; its place is free on both sides when the
// other has confirmed it.
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
	// fillingAfter is a fifth of that: one that is lost in a pause of the garbage
	// collector or of the network costs nobody a detour.
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

// Get has the signature of hearth.Source. For n = 0 it returns no View: a Fill makes the
// block present, a Peek says by its error whether it is.
type Get func(ctx context.Context, b hearth.Block, off, n int) (*hearth.View, error)

// Answer answers a Call. body is valid until it returns; the View of at most MaxBody
// bytes is given away; nil is an empty answer.
type Answer = func(ctx context.Context, body []byte) (*hearth.View, error)

// Handler answers requests, each on a goroutine of its own. What is nil is refused. The
// context ends with the request's deadline, its cancellation, or its connection.
// hearth.ErrMiss, hearth.ErrStale and hearth.ErrRefused travel as such, and all else as an
// *Error. The Object of a Block is the asker's word: check its Version.
type Handler struct {
	Fill, Peek Get
	// Ready is what memory holds of a block, as a View that is given away; nil, or no Ready:
	// Fill or Peek is asked, on a goroutine. The goroutine that reads the connection asks
	// it, so it must not wait.
	Ready func(b hearth.Block, off, n int) *hearth.View
	// Here is what this node's disk holds of a block, of a Fill: read on the goroutine that reads
	// the connection, while nothing else is asked over it. Without a View Fill is asked, as without
	// Here. If it takes too long stead is called, once, on another goroutine, which goes on
	// in its place.
	Here func(ctx context.Context, b hearth.Block, off, n int, stead func()) *hearth.View
	// Run is Fill of what one request asks of blocks that follow each other, so that an
	// owner can fetch them as one; nil: Fill is asked for each.
	Run Run
	// Calls are by the number that both sides know them by. It must not change.
	Calls map[uint16]Answer
}

// Class of an Error, for a reader to know what to do.
type Class uint8

const (
	// Other is an error without a class.
	Other Class = iota
	// NotExist: the object is not there; errors.Is fs.ErrNotExist.
	NotExist
	// Permission: the peer's credentials will not do; errors.Is fs.ErrPermission.
	Permission
	// Away: the origin cannot be asked now.
	Away
	// Deadline: the time that the request gave was over; errors.Is
	// context.DeadlineExceeded.
	Deadline
	// Mismatch: the Version is not that of the Object's fields.
	Mismatch
	// NotKept: a block was read, to be kept, and no tier keeps it.
	NotKept
	classes
)

// Error is what a peer says went wrong, most often at the origin.
type Error struct {
	Class Class
	// Text is for people; what is beyond MaxText bytes is cut off on the way.
	Text string
}

// MaxText is the most bytes of an Error's text that travel.
const MaxText = 1 << 10

// Error is the text.
func (e *Error) Error() string { return e.Text }

// Is tells errors of a class from others by the sentinels that they had at the peer.
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
		// By its words: a frame of a class that an earlier version does not know ends the connection.
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
