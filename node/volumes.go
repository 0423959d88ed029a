package node

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/node/config"
	"github.com/hearthfs/hearth/node/status"
	"github.com/hearthfs/hearth/node/watch"
	"github.com/hearthfs/hearth/volume"
	"github.com/hearthfs/hearth/warmup"
)

// mostQueued bounds the bytes of blocks that wait to be written to one volume. In a small cache it is less.
const mostQueued = 16 << 20

// makeVolumes makes the node's set of volumes, without any. The disk tier gives it what it evicts.
func (n *Node) makeVolumes() {
	owns := func(volume [16]byte, span int) bool { // placed as the extents of an object are
		return n.owner.owns(hearth.ID{Version: volume, Index: int64(span) * hearth.ExtentBlocks})
	}
	n.places.turn = make(chan struct{}, 1)
	n.volumeNews = make(chan struct{}, 1)
	n.volumes = volume.NewSet(volume.SetOptions{Copies: n.config.Volumes.Copies, Told: n.tellVolume, Who: n.who,
		Options: volume.Options{Pool: n.pool, Queue: min(mostQueued, n.pool.Stats().Budget/16), Mine: n.owner.owns, Owns: owns}})
}

// openVolumes begins to attach the configured volumes.
func (n *Node) openVolumes() error {
	n.group.Go(func() error {
		n.followVolumes(n.ctx)
		return nil
	})
	for _, v := range n.config.Volumes.Devices {
		if _, err := n.attach(v, false); err != nil {
			return err
		}
	}
	if n.ring != nil {
		n.group.Go(func() error {
			n.followPlaces(n.ctx)
			return nil
		})
	}
	return nil
}

// attach begins to attach a volume. once ends that if the first attempt fails.
func (n *Node) attach(v config.Volume, once bool) (*volume.Attachment, error) {
	address, err := volume.ParseAddress(v.URL)
	if err != nil {
		return nil, usage("%v", err)
	}
	a, err := n.volumes.Attach(volume.Spec{Address: address, SecretFile: v.SecretFile, Once: once})
	if err != nil {
		return nil, &admin.Error{Kind: admin.KindRefused, Message: err.Error()}
	}
	return a, nil
}

// volumeLoader has volumes keep this node's own blocks. A block that no volume takes now is not read for that.
type volumeLoader struct {
	warmup.Loader
	set *volume.Set
}

func (n *Node) toVolumes() warmup.Loader {
	return volumeLoader{watch.WarmUp{Loader: n.tiers.Lasting}, n.volumes}
}

// Load implements warmup.Loader. The blocks lie in one extent, and so on the same volumes.
func (l volumeLoader) Load(ctx context.Context, first hearth.Block, n int, each func(hearth.Block, error) bool) {
	err := l.set.Refuses(first.ID())
	if err == nil {
		l.Loader.Load(ctx, first, n, each)
		return
	}
	for i := range n {
		if !each(first.Object.Block(first.Index+int64(i)), hearth.NotKept(err.Error())) {
			return
		}
	}
}

// volumesKnown waits until it is known what the volumes hold of the blocks that belong to this node now.
func (n *Node) volumesKnown(ctx context.Context) error {
	if err := n.learnPlaces(ctx); err != nil {
		return err
	}
	return n.volumes.Known(ctx)
}

// places is for which owners the volumes were learned last. turn has capacity 1; who has put into it has the rest.
type places struct {
	turn  chan struct{}
	known time.Time
}

// learnPlaces has volumes learn again what they hold for this node, if blocks belong to other nodes than before.
func (n *Node) learnPlaces(ctx context.Context) error {
	if n.ring == nil {
		return nil
	}
	p := &n.places
	select {
	case p.turn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-p.turn }()
	t := n.ring.Table()
	if t == nil || t.Changed.Equal(p.known) {
		return nil
	}
	err := n.volumes.Relearn(ctx)
	if err == nil {
		p.known = t.Changed
	}
	return err
}

// placesEvery is how often a node looks whether blocks belong to other nodes now.
const placesEvery = time.Second

// followPlaces has volumes learn again what they hold for this node, whenever blocks belong to other nodes.
func (n *Node) followPlaces(ctx context.Context) {
	tick := time.NewTicker(placesEvery)
	defer tick.Stop()
	for {
		if n.learnPlaces(ctx) != nil {
			return // the node ends
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// tellVolume has followVolumes look at the volumes.
func (n *Node) tellVolume(*volume.Attachment) {
	select {
	case n.volumeNews <- struct{}{}:
	default:
	}
}

// followVolumes logs how the volumes are, each time that changes.
func (n *Node) followVolumes(ctx context.Context) {
	said := map[*volume.Attachment]*volumeSaid{}
	var again <-chan time.Time
	for {
		select {
		case <-n.volumeNews:
		case <-again:
		case <-ctx.Done():
			return
		}
		again = nil
		soonest := logEvery
		now, all := time.Now(), n.volumes.All()
		maps.DeleteFunc(said, func(a *volume.Attachment, _ *volumeSaid) bool { return !slices.Contains(all, a) })
		for _, a := range all {
			s := a.Stats()
			what, cause := stateOf(&s)
			if what == "" {
				continue
			}
			if said[a] == nil {
				said[a] = &volumeSaid{}
			}
			say, changes, wait := said[a].next(what+fmt.Sprint(cause), now)
			switch {
			case wait > 0:
				soonest = min(soonest, wait)
				again = time.After(soonest)
			case !say:
			case cause != nil:
				n.events.Warn(what, "volume", s.Address, "cause", cause, "changes", changes)
			default:
				n.events.Info(what, "volume", s.Address, "label", s.Info.Label, "id", hex.EncodeToString(s.Info.ID[:4]), "blocks", s.Stats.Blocks, "changes", changes)
			}
		}
	}
}

// stateOf says how a volume is, and why. It is empty while that is on its way to something else.
func stateOf(s *volume.AttachmentStats) (what string, cause error) {
	switch {
	case errors.Is(s.Why, volume.ErrAttaching):
	case s.Why != nil:
		return volumeOut, s.Why
	case s.State.Away != nil:
		return volumeOut, s.State.Away
	case s.State.Stopped != nil:
		return "volume takes no writes; it is tried again", s.State.Stopped
	case s.State.Learned == s.State.All:
		return "volume is in use", nil
	}
	return "", nil
}

const volumeOut = "volume is out of use; it is tried again"

// mostSaid is how many changes of a volume are logged in a minute: an outage is two, and its cause may change.
const mostSaid = 4

// volumeSaid is what the log says of a volume. Of one that comes and goes all the time the log has mostSaid changes a
// minute, and how it is once that minute is over.
type volumeSaid struct {
	state   string    // that was logged last
	seen    string    // that was seen last
	began   time.Time // of the minute
	times   int       // logged in it
	changes int       // seen since the log's last line, with the one that it tells
}

// next reports whether a state is to be logged now, and how many changes that tells. wait says when to look again at
// the latest; 0 means when something changes.
func (v *volumeSaid) next(state string, now time.Time) (say bool, changes int, wait time.Duration) {
	if state != v.seen {
		v.seen = state
		v.changes++
	}
	if state == v.state {
		return false, 0, 0
	}
	if now.Sub(v.began) >= logEvery {
		v.began, v.times = now, 0
	}
	if v.times == mostSaid {
		return false, 0, v.began.Add(logEvery).Sub(now)
	}
	changes = v.changes
	v.state, v.changes = state, 0
	v.times++
	return true, changes, 0
}

// volumeTier returns the volumes' part of the status. It is nil if the node has none.
func (n *Node) volumeTier() *status.Tier {
	all := n.volumes.All()
	if len(all) == 0 {
		return nil
	}
	t := &status.Tier{Name: "volume"}
	for _, a := range all {
		s := a.Stats()
		v := status.VolumeOf(s)
		if n.ring == nil { // in a ring blocks get other owners
			v.Strangers = s.Stats.Strangers
		}
		t.Volumes = append(t.Volumes, v)
		t.Used += v.Used
		t.Budget += v.Size
		t.Hits += v.Hits
		t.HitBytes += v.HitBytes
		t.Written += v.Written
		t.Errors += v.Errors + v.Lost
	}
	t.Misses = n.tiers.VolumeMisses()
	return t
}

// volumeRoutes adds the admin API's part about volumes.
func (n *Node) volumeRoutes(answer func(string, func(*http.Request) (any, error))) {
	answer("GET /v1/volumes", func(*http.Request) (any, error) {
		if t := n.volumeTier(); t != nil {
			return t.Volumes, nil
		}
		return []status.Volume{}, nil
	})
	answer("POST /v1/volumes", func(r *http.Request) (any, error) {
		var v config.Volume
		d := json.NewDecoder(r.Body)
		d.DisallowUnknownFields()
		if err := d.Decode(&v); err != nil {
			return nil, usage("attach a volume: %v", err)
		}
		return n.attachNow(r.Context(), v)
	})
	answer("DELETE /v1/volumes", func(r *http.Request) (any, error) {
		name := r.FormValue("name")
		a := n.volumes.Find(name)
		if a == nil {
			return nil, &admin.Error{Kind: admin.KindNotFound, Message: fmt.Sprintf("no volume of this node is %q, or several are; hearth volume list names them", name)}
		}
		last := a.Stats() // none is left behind it
		n.volumes.Detach(a)
		return status.VolumeOf(last), nil
	})
}

// attachNow attaches a volume that somebody asks for, who waits and hears why it fails. A volume that cannot be
// attached at once is not kept.
func (n *Node) attachNow(ctx context.Context, v config.Volume) (any, error) {
	a, err := n.attach(v, true)
	if err != nil {
		return nil, err
	}
	if err := a.Tried(ctx); err != nil {
		n.volumes.Detach(a)
		kind := admin.KindOf(err)
		for _, refused := range []error{volume.ErrForeign, volume.ErrNoVolume, volume.ErrNewer, volume.ErrInUse} {
			if errors.Is(err, refused) {
				kind = admin.KindRefused
			}
		}
		return nil, &admin.Error{Kind: kind, Message: err.Error(), Cause: err}
	}
	return status.VolumeOf(a.Stats()), nil
}

// who returns the cluster's id and the node's. The node notes its own in the segments that it writes, and targets
// know it by that. A node without a disk has a random one.
func (n *Node) who() (cluster, node [16]byte, err error) {
	if cluster, err = config.ClusterID(n.config.Ring); err != nil {
		return cluster, node, err
	}
	if n.disk != nil {
		if b, err := hex.DecodeString(n.disk.NodeID()); err == nil && copy(node[:], b) == len(node) {
			return cluster, node, nil
		}
	}
	_, _ = rand.Read(node[:]) // it never fails (crypto/rand)
	return cluster, node, nil
}
