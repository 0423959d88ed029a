package node

import (
	"github.com/hearthfs/hearth/node/answer"
	"github.com/hearthfs/hearth/node/api"
	"github.com/hearthfs/hearth/node/door"
)

// Error and Kind are what the admin API answers when it does not do what was asked.
type (
	Error = answer.Error
	Kind  = answer.Kind
)

// The kinds of errors.
const (
	KindFailed      = answer.KindFailed
	KindUsage       = answer.KindUsage
	KindNotFound    = answer.KindNotFound
	KindNoLink      = answer.KindNoLink
	KindRefused     = answer.KindRefused
	KindTimeout     = answer.KindTimeout
	KindUnreachable = answer.KindUnreachable
)

// ErrAnother is of a node that does not start, as another one answers at its socket.
const ErrAnother = door.ErrAnother

// What is asked and answered lies in a package of its own, which needs no node.
type (
	Client           = api.Client
	Status           = api.Status
	BroughtStatus    = api.BroughtStatus
	OriginStatus     = api.OriginStatus
	OthersStatus     = api.OthersStatus
	LinkStatus       = api.LinkStatus
	TierStatus       = api.TierStatus
	DirStatus        = api.DirStatus
	MountStatus      = api.MountStatus
	MachineStatus    = api.MachineStatus
	MemoryStatus     = api.MemoryStatus
	ProcessorsStatus = api.ProcessorsStatus
	NamesStatus      = api.NamesStatus
	Entry            = api.Entry
	Stat             = api.Stat
	Usage            = api.Usage
	Refreshed        = api.Refreshed
	MountRequest     = api.MountRequest
)

// Dial returns a Client of the node at address: a path, unix://path, or "" for
// DefaultSocket. It does not connect yet.
func Dial(address string) (*Client, error) { return api.Dial(address) }

// DefaultSocket is where the node of this machine is asked.
func DefaultSocket() string { return api.DefaultSocket() }

// Client returns a Client of this node within its process.
func (n *Node) Client() *Client { return api.Over(n.doors.Pipe.Dial) }
