package status

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/namespace"
)

// This file explains a file. It says where the file's bytes lie on this node, and how long its name may
// still be believed. It says whether a kernel would be lent the file, and what a read would do now.
//
// All of it comes from what the tiers know without reading. In a ring, the owners of what is not here are
// asked one question. No admission or eviction policy hears of it, nothing is fetched or verified for it,
// and it holds only for the moment.
//
// A read goes through the tiers in their order: memory, disk, a fetch in flight, and else one ranged GET.
// The GET is of the whole block where a tier would keep it, and of what was asked for where none would.

// ExplainedBy is what a node knows of an object. Funcs of the disk tier are nil if there is none.
type ExplainedBy struct {
	// RAM reports whether memory holds a block, and Fetching whether a fetch of it is in flight.
	RAM, Fetching func(hearth.ID) bool
	// Find, Whole and WouldTake are as in disk.Store.
	Find      func(hearth.ID) (dir, kind string, unread bool)
	Whole     func(*hearth.Object) (whole, verified bool)
	WouldTake func(hearth.Block) (dir string, err error)
	// Volume returns the address of a volume that has a block, or "". nil means that the node has no volumes.
	Volume func(hearth.ID) string
	// Mounts are the mounts that show the object.
	Mounts []LendingMount
	// Owners returns the names of the nodes that a block belongs to, by rank, and whether the first is this
	// one. nil means that the node is in no ring.
	Owners func(hearth.Block) (names []string, mine bool)
	// Peers asks the nodes that some blocks belong to whether their disks hold them. The result returns the
	// name of the node that has a block, or "". nil means that the node is in no ring.
	Peers func([]hearth.Block) func(hearth.ID) string
}

// LendingMount is a mount that shows the object, how it opens files, and the reason.
type LendingMount struct{ Dir, Open, Why string }

// ExplainedName is how a name was found.
type ExplainedName struct {
	// Path is what was asked for. Dir means that it is a directory.
	Path string
	Dir  bool
	// Link is the path of its link, and Origin the link's URL.
	Link, Origin string
	// Freshness is its link's. Left is how long the name may still be believed.
	Freshness namespace.Freshness
	Left      time.Duration
	// Asked means that the name was not known, so that the origin was asked for it now.
	Asked bool
	// Away is why the origin cannot be asked now. It is empty if it can.
	Away string
}

// Explanation is the answer to explain. Its keys are stable: keys may be added, and none is renamed or changes
// its meaning.
type Explanation struct {
	Path    string `json:"path"`
	Dir     bool   `json:"dir"`
	Link    string `json:"link"`
	Origin  string `json:"origin"`
	Key     string `json:"key,omitempty"`
	Version string `json:"version,omitempty"`
	ETag    string `json:"etag,omitempty"`
	Size    int64  `json:"size"`
	// Cacheable is false for an object without a strong ETag.
	Cacheable bool `json:"cacheable"`
	// Name is how fresh the name is.
	Name NameFreshness `json:"name"`
	// Held says where the object's bytes lie, by ranges.
	Held []HeldRange `json:"held"`
	// Mounts say whether the kernel would be lent the file at its next open.
	Mounts []Lent `json:"mounts"`
	// Read is what a read would do.
	Read *NextRead `json:"read,omitempty"`
}

// NameFreshness is how long a name may be believed.
type NameFreshness struct {
	Freshness string `json:"freshness"`
	// BelievedMS is how much longer it may be believed, in milliseconds. 0 means no longer.
	BelievedMS int64 `json:"believed_ms"`
	// Known means that the node knew the name before it was asked.
	Known bool `json:"known"`
	// Says is the same in words, with what a look-up would ask.
	Says string `json:"says"`
}

// HeldRange is a range [From, To) of the object's bytes, and the tiers that have all of it.
type HeldRange struct {
	From int64 `json:"from"`
	To   int64 `json:"to"`
	RAM  bool  `json:"ram"`
	// Disk is the cache directory, and Kind is queued, segment or sparse. Both are empty if no disk has the
	// range.
	Disk string `json:"disk,omitempty"`
	Kind string `json:"kind,omitempty"`
	// Unread means that the index of the file in Disk has not been read since the start. Only the index tells
	// whether the file has the range.
	Unread bool `json:"unread,omitempty"`
	// Volume is the volume from which the range is read if no disk here has it. It is empty if none has it.
	Volume string `json:"volume,omitempty"`
	// Peer is the node of the ring that has on its disk what is not here. It is empty if none said so.
	Peer string `json:"peer,omitempty"`
}

// Lent says whether one mount's kernel would be lent the file.
type Lent struct {
	Dir  string `json:"dir"`
	Open string `json:"open"`
	Lent bool   `json:"lent"`
	Why  string `json:"why"`
}

// NextRead is what a read of N bytes at Offset would do.
type NextRead struct {
	Offset int64 `json:"offset"`
	N      int64 `json:"n"`
	// By is ram, disk, coalesced, volume, peer, origin or end.
	By string `json:"by"`
	// Owners are the nodes of a ring that the bytes belong to, their owner first.
	Owners []string `json:"owners,omitempty"`
	// GetOff and GetN are the range of the GET, for origin.
	GetOff int64 `json:"get_off,omitempty"`
	GetN   int64 `json:"get_n,omitempty"`
	// Kept is the tier that keeps what the GET brings: ram, the cache directory, or "" for none.
	Kept string `json:"kept,omitempty"`
	// Says is the same in words.
	Says string `json:"says"`
}

// Explain explains a name, the object that it means, and a read at offset.
func Explain(name ExplainedName, o *hearth.Object, offset int64, n ExplainedBy) *Explanation {
	e := &Explanation{Path: name.Path, Dir: name.Dir, Link: name.Link, Origin: name.Origin, Key: o.Key, Name: name.fresh(), Held: []HeldRange{}, Mounts: []Lent{}}
	if name.Dir {
		return e
	}
	e.Version, e.ETag, e.Size, e.Cacheable = hex.EncodeToString(o.Version[:]), o.ETag, o.Size, o.Cacheable()
	e.Held = n.held(o)
	for _, m := range n.Mounts {
		e.Mounts = append(e.Mounts, n.lent(m, o, e.Held))
	}
	e.Read = n.read(o, offset)
	if i := slices.IndexFunc(e.Held, func(h HeldRange) bool { return h.From <= offset && offset < h.To }); i >= 0 && e.Read.By == "peer" && e.Held[i].Peer != "" {
		e.Read.Says = "asks node " + e.Read.Owners[0] + ", which it belongs to; " + e.Held[i].Peer + " has it on disk"
	}
	return e
}

// fresh returns how long the name may be believed, and what happens after that.
func (m ExplainedName) fresh() NameFreshness {
	f := NameFreshness{Freshness: m.Freshness.String(), BelievedMS: m.Left.Milliseconds(), Known: !m.Asked}
	question := "one HEAD"
	if m.Dir {
		question = "one LIST of one key"
	}
	switch {
	case m.Asked:
		f.Says = "was not known, and has been asked for just now: a HEAD and a LIST of one key at once, its directory's listing beside them"
	case m.Freshness.Mode == namespace.Strict:
		f.Says = "never believed: each look-up and open asks, " + question
	case m.Left > 0 && m.Freshness.Mode == namespace.Immutable:
		f.Says = "believed for ever: a look-up asks nothing"
	case m.Left > 0:
		f.Says = fmt.Sprintf("believed for %v more; until then a look-up asks nothing", m.Left.Round(time.Millisecond))
	default:
		f.Says = "not believed any more: the next look-up asks, " + question
	}
	if m.Away != "" {
		f.Says += "; the origin cannot be asked now: " + m.Away
	}
	return f
}

// mostBlocks bounds the blocks that are looked up for a huge object: 64 GiB.
const mostBlocks = 1 << 16

// held returns the ranges of an object. Neighbouring blocks that lie in the same places are one range.
func (n ExplainedBy) held(o *hearth.Object) []HeldRange {
	all := []HeldRange{}
	blocks := make([]HeldRange, min(o.Blocks(), mostBlocks))
	var absent []hearth.Block
	for i := range blocks {
		b := o.Block(int64(i))
		blocks[i] = HeldRange{From: b.Offset(), To: b.Offset() + int64(b.Len()), RAM: n.RAM(b.ID())}
		if n.Find != nil {
			blocks[i].Disk, blocks[i].Kind, blocks[i].Unread = n.Find(b.ID())
		}
		if n.Volume != nil {
			blocks[i].Volume = n.Volume(b.ID())
		}
		if h := &blocks[i]; !h.RAM && h.Disk == "" && h.Volume == "" && o.Cacheable() {
			absent = append(absent, b)
		}
	}
	peer := func(hearth.ID) string { return "" }
	if n.Peers != nil && len(absent) > 0 {
		peer = n.Peers(absent)
	}
	for i, h := range blocks {
		if !h.RAM && h.Disk == "" && h.Volume == "" {
			h.Peer = peer(o.Block(int64(i)).ID())
		}
		if len(all) > 0 {
			last := &all[len(all)-1]
			if last.RAM == h.RAM && last.Disk == h.Disk && last.Kind == h.Kind && last.Unread == h.Unread && last.Volume == h.Volume && last.Peer == h.Peer {
				last.To = h.To
				continue
			}
		}
		all = append(all, h)
	}
	return all
}

// lent says whether a mount would lend the file to its kernel.
func (n ExplainedBy) lent(m LendingMount, o *hearth.Object, held []HeldRange) Lent {
	l := Lent{Dir: m.Dir, Open: m.Open}
	whole, verified := false, false
	if n.Whole != nil {
		whole, verified = n.Whole(o)
	}
	switch {
	case m.Open != "passthrough":
		l.Why = "the mount opens files otherwise: " + m.Why
	case n.Whole == nil:
		l.Why = "there is no disk tier to lend from"
	case o.Size <= hearth.BlockSize:
		l.Why = "objects of up to 1 MiB are packed with others, and no file by themselves"
	case !whole:
		var there int64
		for _, h := range held {
			if h.Disk != "" && !h.Unread {
				there += h.To - h.From
			}
		}
		l.Why = fmt.Sprintf("only a whole file is lent: %d of %d bytes are on disk", there, o.Size)
	case !verified:
		l.Why = "it is whole, and is read back and verified before it is lent: the next open begins that"
	default:
		l.Lent, l.Why = true, "it is whole and verified: an open while nobody has it open otherwise is lent, and its reads do not reach the node"
	}
	return l
}

// read says what a read at offset would do, within one block.
func (n ExplainedBy) read(o *hearth.Object, offset int64) *NextRead {
	r := &NextRead{Offset: offset}
	if offset >= o.Size {
		r.By, r.Says = "end", fmt.Sprintf("yields nothing: the file ends at %d", o.Size)
		return r
	}
	b := o.Block(offset / hearth.BlockSize)
	end := b.Offset() + int64(b.Len())
	r.N, r.GetOff, r.GetN = end-offset, offset, end-offset
	if !o.Cacheable() {
		r.origin("the object has no strong ETag, so no tier keeps it")
		return r
	}
	mine := true
	if n.Owners != nil {
		r.Owners, mine = n.Owners(b)
	}
	dir, kind, unread := "", "", false
	if n.Find != nil {
		dir, kind, unread = n.Find(b.ID())
	}
	switch {
	case n.RAM(b.ID()):
		r.here("ram", "is served from memory")
	case kind == "queued":
		r.here("disk", "is served from memory, where the block waits to be written to "+dir)
	case dir != "" && !unread:
		r.here("disk", fmt.Sprintf("is served from %s (%s), verified against its checksums", dir, kind))
	case n.Fetching(b.ID()):
		r.here("coalesced", "waits, with others, for the GET of this block that is under way")
	case mine && n.Volume != nil && n.Volume(b.ID()) != "":
		r.here("volume", "is read from volume "+n.Volume(b.ID())+", verified against its checksums, and kept on disk if that has room")
	case !mine && len(r.Owners) > 0:
		r.here("peer", "asks node "+r.Owners[0]+", which it belongs to and which fetches it if need be; where that is silent, the next of "+strings.Join(r.Owners, ", ")+", and at last the bucket")
	default:
		n.fetch(r, b)
		if unread {
			r.Says = fmt.Sprintf("reads the index of its file in %s first; where that has not got the block, it %s", dir, r.Says)
		}
	}
	return r
}

func (r *NextRead) here(by, says string) {
	r.By, r.Says, r.GetOff, r.GetN = by, says, 0, 0
}

// fetch says which GET would be sent, and which tier keeps what it brings.
func (n ExplainedBy) fetch(r *NextRead, b hearth.Block) {
	kept := "ram"
	if n.WouldTake != nil {
		dir, err := n.WouldTake(b)
		if err != nil {
			r.origin("the block would not be kept: " + err.Error())
			return
		}
		kept = dir
	}
	r.GetOff, r.GetN, r.Kept = b.Offset(), int64(b.Len()), kept
	where := kept
	if kept == "ram" {
		where = "memory"
	}
	r.origin("the whole block, which is then kept in " + where + "; a reader in order has more fetched ahead, in larger ones")
}

func (r *NextRead) origin(why string) {
	r.By = "origin"
	r.Says = fmt.Sprintf("sends one ranged GET of %d bytes, %d to %d: %s", r.GetN, r.GetOff, r.GetOff+r.GetN-1, why)
}
