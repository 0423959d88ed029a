package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/hearthfs/hearth/cache/disk"
	"github.com/hearthfs/hearth/cache/segment"
	"github.com/hearthfs/hearth/draft"
	"github.com/hearthfs/hearth/fuse"
	"github.com/hearthfs/hearth/fuse/keep"
	"github.com/hearthfs/hearth/namespace/record"
	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/node/status"
	"github.com/hearthfs/hearth/volume"
)

// takeOver serves the mounts of a node that has ended, which the keeper has, before anybody can ask for others. A mount that
// nobody can serve any more, since its link is gone from the configuration or since it was made by a version that speaks
// another protocol, is given up. After any other error the next node may serve them.
func (n *Node) takeOver(ctx context.Context) error {
	defer n.tree.Taken()
	k := n.config.Keeper
	if !k.Has() {
		return nil
	}
	// What was moved or detached comes first, as another mount may be at its directory.
	all := slices.Clone(k.Mounts)
	slices.SortStableFunc(all, func(a, b keep.Mount) int { return boolInt(a.Kept.Stands()) - boolInt(b.Kept.Stands()) })
	for _, m := range all {
		if err := n.takeOverOne(ctx, m); err != nil {
			return err
		}
	}
	stalled := time.Since(k.Begin.Ended)
	n.stalled.Store(int64(stalled))
	n.events.Warn("the node before "+k.Begin.Cause+": its mounts are served again", "mounts", len(k.Mounts),
		"stalled", stalled.Round(time.Millisecond), "starts", k.Begin.Starts)
	n.Serving()
	return nil
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (n *Node) takeOverOne(ctx context.Context, m keep.Mount) error {
	defer m.Kept.Close() // the mount has its own, and so has the keeper's other end
	dir := string(m.Kept.Dir)
	var r admin.MountRequest
	err := json.Unmarshal(m.Request, &r)
	if err == nil {
		r.Dir = dir
		_, err = n.serve(ctx, r, &m)
	}
	if err == nil {
		n.mounts.free(dir) // if it is not there
		n.toKeeper("get the mount "+dir+" again if it is killed", n.config.Keeper.Took(m))
		return nil
	}
	if errors.Is(err, fuse.ErrGone) {
		if m.Kept.Stands() { // nobody took it away: the next mount there cleans up
			n.events.Warn("a mount was cut off while no node served", "dir", dir)
		} else {
			n.events.Info("unmounted while no node served", "dir", dir)
			n.mounts.takenAway(dir)
		}
		n.toKeeper("forget the mount "+dir, n.config.Keeper.Drop(m.ID))
		return nil
	}
	if !errors.Is(err, errNoLink) && !errors.Is(err, fuse.ErrOther) {
		return fmt.Errorf("take over the mount %s: %w", dir, err)
	}
	n.events.Error("a mount cannot be served any more, and is given up: its users get errors", "dir", dir, "cause", err)
	n.toKeeper("give up the mount "+dir, n.config.Keeper.Drop(m.ID))
	return nil
}

// errNoLink means that no link leads to what a kept mount shows.
var errNoLink = errors.New("no link leads there any more")

// keep has the keeper keep a mount. Where nobody would ask the next node for what this one has taken, the mount outlives it
// only if that was answered.
func (n *Node) keep(k *fuse.Kept, x *mounted) {
	if x.drains = !k.Resends(); x.drains {
		n.events.Warn("the mount outlives this process only by hearth upgrade: Linux before 6.9 does not ask the next one for what a killed one has taken", "dir", x.Dir)
	}
	l := x.link
	r := admin.MountRequest{Mount: x.Mount, Origin: &l.Origin, FailStale: l.FailStale, NoSeed: l.NoSeed, Staging: l.Staging} // Prefix is in the tree by now
	text, err := json.Marshal(r)
	if err == nil {
		err = n.config.Keeper.Keep(keep.Mount{ID: x.id, Kept: k, Request: text})
	}
	x.keeps.Store(err == nil)
	n.toKeeper("keep the mount "+x.Dir+", which ends with this process", err)
}

// newMountID is an ID that no mount of this or another process has.
func (n *Node) newMountID() string { return fmt.Sprintf("%d.%d", os.Getpid(), n.mountIDs.Add(1)) }

// toKeeper tells of a keeper that cannot be told something.
func (n *Node) toKeeper(what string, err error) {
	if err != nil {
		n.events.Error("the keeper does not "+what, "cause", err)
	}
}

// keeperLine is what status says of the keeper.
func (n *Node) keeperLine() *status.KeeperLine {
	k := n.config.Keeper
	if k == nil {
		return nil
	}
	x := &status.KeeperLine{Starts: k.Begin.Starts, Cause: k.Begin.Cause, StalledS: time.Duration(n.stalled.Load()).Seconds()}
	if !k.Begin.Ended.IsZero() {
		x.Ended = k.Begin.Ended.Unix()
	}
	return x
}

// attendKeeper hears the keeper until the node ends.
func (n *Node) attendKeeper() {
	k := n.config.Keeper
	if k == nil {
		return
	}
	go k.Attend(func(text string) { n.events.Warn(text) }) // until the process ends, or Close
}

// Formats are the newest versions of what a node writes, by name. A program reads each up to its own.
func Formats() map[string]int {
	return map[string]int{"cache directory": disk.LabelFormat, "segments": segment.Format, "names": record.Format, "volume": volume.Format, "drafts": draft.Format}
}

// formats are the versions that a program must read to take this node's place.
func (n *Node) formats() map[string]int {
	all := Formats()
	if delete(all, "cache directory"); n.disk != nil {
		all["cache directory"] = n.disk.Format()
	}
	if n.drafts.store.Load() == nil { // it has none, and an earlier version need not know of them
		delete(all, "drafts")
	}
	return all
}

// flushing bounds how long a node that makes way for another one writes what is queued: readers do not wait for it, since it
// serves meanwhile.
const flushing = 10 * time.Second

// Upgrade has another program take the place of the keeper, and then of this node, which serves until then. It is refused
// where the program could not read the cache. Once it has returned nil, HandedOver is closed, and the process ends without
// Close.
func (n *Node) Upgrade(ctx context.Context, program string) error {
	k := n.config.Keeper
	if k == nil {
		return &admin.Error{Kind: admin.KindRefused, Message: "the node has no keeper, which would hold its mounts meanwhile: end it and start the other version (hearth up, without --no-keeper)"}
	}
	for _, x := range n.mounts.served() {
		if !x.keeps.Load() {
			return &admin.Error{Kind: admin.KindRefused, Message: "the mount " + x.Dir + " would end with the node: it needs a cache disk to outlive it. Unmount it, or end the node and start the other version"}
		}
	}
	if err := readsAll(ctx, program, n.formats()); err != nil {
		return err
	}
	if err := k.Become(program); err != nil {
		return err
	}
	n.handing.Do(func() {
		if n.disk != nil {
			ctx, cancel := context.WithTimeout(n.ctx, flushing)
			defer cancel()
			if err := n.disk.Flush(ctx); err != nil { // they are read again
				n.events.Warn("not all that was queued for the cache is written", "cause", err)
			}
		}
		n.drain()
		close(n.handed)
	})
	return nil
}

// draining bounds how long a node that makes way for another one answers what it has taken, where that is not asked of the
// next one. Its readers wait meanwhile. It is longer than the origin may take.
const draining = 3 * time.Minute

// drain ends this node's work for the mounts of which the next one would not be asked again.
func (n *Node) drain() {
	ctx, cancel := context.WithTimeout(n.ctx, draining)
	defer cancel()
	var work sync.WaitGroup
	for _, x := range n.mounts.served() {
		if !x.drains {
			continue
		}
		work.Go(func() {
			if err := x.server.Drain(ctx); err != nil {
				n.events.Error("the mount ends with this process", "dir", x.Dir, "cause", err)
				return
			}
			n.toKeeper("hear that the mount "+x.Dir+" is drained", n.config.Keeper.Drained(x.id))
		})
	}
	work.Wait()
}

// HandedOver is closed when another version has the node's place.
func (n *Node) HandedOver() <-chan struct{} { return n.handed }

// readsAll returns an error unless a program is a Hearth that reads formats.
func readsAll(ctx context.Context, program string, formats map[string]int) error {
	ctx, cancel := context.WithTimeout(ctx, flushing)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "version", "-o", "json")
	cmd.Env = []string{"HOME=/", "PATH=" + os.Getenv("PATH")} // not this node's own variables
	out, err := cmd.Output()
	var v struct {
		Version string
		Formats map[string]int
	}
	if err == nil {
		err = json.Unmarshal(out, &v)
	}
	if err != nil {
		return usage("%s does not tell its version: %v", program, err)
	}
	for name, ours := range formats {
		if theirs, ok := v.Formats[name]; !ok || theirs < ours {
			return &admin.Error{Kind: admin.KindRefused, Message: fmt.Sprintf("%s (%s) cannot read what this node has written: its format of the %s is %d, and this one's %d", program, v.Version, name, theirs, ours)}
		}
	}
	return nil
}

// Kept reports whether the next node has mounts to serve, if this one ends without Close.
func (n *Node) Kept() bool {
	return slices.ContainsFunc(n.mounts.served(), func(x *mounted) bool { return x.keeps.Load() && !x.drains })
}

// Serves reports whether the node has a mount at a directory, or had one that was taken away while no node served.
func (n *Node) Serves(dir string) bool {
	dir = filepath.Clean(dir)
	_, err := n.mounts.find(dir)
	return err == nil || n.mounts.wasTakenAway(dir)
}

// Serving tells the keeper that all mounts are served.
func (n *Node) Serving() { n.toKeeper("hear that all mounts are served", n.config.Keeper.Serving()) }

// Ending tells the keeper that Close follows, and that no other node is to serve the mounts.
func (n *Node) Ending() {
	n.ending.Store(true)
	n.toKeeper("hear that the node ends", n.config.Keeper.Ending())
}
