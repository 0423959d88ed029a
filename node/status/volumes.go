package status

import (
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/hearthfs/hearth/volume"
	"github.com/hearthfs/hearth/volume/nvmetcp"
)

// Volume is a volume that the node was told to attach.
type Volume struct {
	// Address is that of its device. ID, 32 hex digits, and Label are those of its superblock, and are empty before it
	// was attached.
	Address string `json:"address"`
	ID      string `json:"id,omitempty"`
	Label   string `json:"label,omitempty"`
	// Away says why the volume is not in use, and Stopped why it takes no writes. Both are empty if all is well.
	Away    string `json:"away,omitempty"`
	Stopped string `json:"stopped,omitempty"`
	// Learned of its Segments have been read for the places of blocks. Once both are equal, the volume is known.
	Learned  int `json:"learned"`
	Segments int `json:"segments"`
	// Size is what it may hold, and Used what the known segments that have been written take, both in bytes of the
	// device and by all nodes.
	Size int64 `json:"size"`
	Used int64 `json:"used"`
	// Blocks are those that this node answers for. Memory is what their index takes, Queued what waits to be
	// written, in bytes.
	Blocks int64 `json:"blocks"`
	Memory int64 `json:"memory"`
	Queued int64 `json:"queued"`
	// Hits are reads that it answered. Lost are blocks that were not there any more. Read and Written are bytes of
	// the device.
	Hits     int64 `json:"hits"`
	HitBytes int64 `json:"hit_bytes"`
	Lost     int64 `json:"lost"`
	Read     int64 `json:"read"`
	Written  int64 `json:"written"`
	// Kept blocks were written, Moved ones again when their segment was reclaimed. Dropped were offered and not
	// taken. Reclaimed segments were begun anew.
	Kept      int64 `json:"kept"`
	Moved     int64 `json:"moved"`
	Dropped   int64 `json:"dropped"`
	Reclaimed int64 `json:"reclaimed"`
	Flushes   int64 `json:"flushes"`
	// Errors are operations that failed, and Outages how often it went out of use. Unindexed blocks are unknown for
	// want of memory.
	Errors    int64 `json:"errors"`
	Outages   int64 `json:"outages"`
	Unindexed int64 `json:"unindexed"`
	// PaceS is the mean time of a read in seconds, without that of its bytes.
	PaceS float64 `json:"pace_s"`
	// WaitedS is how long operations have waited for the device in the last 10 s, in seconds. It is 0 unless they did so
	// for about a second again and again.
	WaitedS float64 `json:"waited_s,omitempty"`
	// Strangers counts the segments that other nodes wrote, though this node is in no ring.
	Strangers int64 `json:"strangers,omitempty"`
	// Remote is the connection to a target. It is nil for files and block devices.
	Remote *Remote `json:"remote,omitempty"`
}

// Remote is the connection to an NVMe/TCP target.
type Remote struct {
	// Portal is the address in use, and Access the state of that path (ANA). Both are empty without a connection.
	Portal string `json:"portal"`
	Access string `json:"access"`
	// Queues have Depth commands each at most; InFlight are on all of them.
	Queues   int `json:"queues"`
	Depth    int `json:"depth"`
	InFlight int `json:"in_flight"`
	// Connections were made, the first among them. Repeated commands were sent again after a connection ended.
	Connections int64 `json:"connections"`
	Repeated    int64 `json:"repeated"`
	// Operations are by kind: read, write, flush, discard.
	Operations map[string]RemoteOperation `json:"operations"`
}

// RemoteOperation counts the calls of one kind.
type RemoteOperation struct {
	Calls   int64   `json:"calls"`
	Errors  int64   `json:"errors"`
	Bytes   int64   `json:"bytes"`
	Seconds float64 `json:"seconds"` // of all calls together
}

// VolumeOf is what the status says of an attachment.
func VolumeOf(a volume.AttachmentStats) Volume {
	v := Volume{Address: a.Address, PaceS: a.Pace.Seconds()}
	if a.Remote != nil {
		v.Remote = remoteOf(a.Remote)
	}
	if a.Why != nil {
		v.Away = strings.TrimPrefix(a.Why.Error(), "volume "+a.Address+": ") // which stands before it wherever it is shown
		return v
	}
	s := a.Stats
	v.ID, v.Label = hex.EncodeToString(a.Info.ID[:]), a.Info.Label
	v.Learned, v.Segments, v.Size, v.Used = a.State.Learned, a.State.All, a.Info.Size, a.State.Used
	v.Blocks, v.Memory, v.Queued = s.Blocks, s.Memory, s.Queued
	v.Hits, v.HitBytes, v.Lost, v.Read, v.Written = s.Hits, s.HitBytes, s.Lost, s.Read, s.Written
	v.Kept, v.Moved, v.Dropped, v.Reclaimed, v.Flushes = s.Appended, s.Moved, s.Dropped, s.Reclaimed, s.Flushes
	v.Errors, v.Outages, v.Unindexed = s.Errors, s.Outages, s.Unindexed
	v.WaitedS = s.Waited.Seconds()
	if a.State.Away != nil {
		v.Away = a.State.Away.Error()
	}
	if a.State.Stopped != nil {
		v.Stopped = a.State.Stopped.Error()
	}
	return v
}

func remoteOf(s *nvmetcp.Stats) *Remote {
	r := &Remote{Portal: s.Portal, Access: s.Access, Queues: s.Queues, Depth: s.Depth, InFlight: s.InFlight, Connections: s.Connections, Repeated: s.Repeated,
		Operations: map[string]RemoteOperation{}}
	for name, o := range map[string]nvmetcp.Operation{"read": s.Reads, "write": s.Writes, "flush": s.Flushes, "discard": s.Discards} {
		r.Operations[name] = RemoteOperation{Calls: o.Calls, Errors: o.Errors, Bytes: o.Bytes, Seconds: o.Time.Seconds()}
	}
	return r
}

// problem says why the volume is out of use, and the cure. It is empty if it is in use.
func (v *Volume) problem() string {
	if v.Away == "" {
		return ""
	}
	return fmt.Sprintf("volume %s is out of use: %s; look at its device and the way to it: it is tried again by itself, and reads go to the bucket meanwhile", v.Address, v.Away)
}

// warning says what is not well with the volume while it is in use.
func (v *Volume) warning() string {
	switch {
	case v.Away != "":
		return ""
	case v.Stopped != "":
		return fmt.Sprintf("volume %s takes no writes, and serves what it has: %s; it is tried again by itself", v.Address, v.Stopped)
	case v.Strangers > 0:
		return fmt.Sprintf("volume %s is written by other nodes, and this node is in no ring with them: each writes over what the others keep; have them join one ring, or give each a volume of its own", v.Address)
	case v.Unindexed > 0:
		return fmt.Sprintf("volume %s holds %d blocks that there is no memory to index: they are read from the bucket; raise cache.ram", v.Address, v.Unindexed)
	case v.WaitedS > 0:
		return fmt.Sprintf("volume %s lets operations wait again and again, for %.1f s and more: reads of it are slow, and one that waits for 2 s takes it out of use; look at its device and who shares it", v.Address, v.WaitedS)
	}
	return ""
}
