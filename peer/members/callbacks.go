package members

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/hashicorp/memberlist"
)

// refusedMark begins the error of a merge. memberlist wraps that error in text.
const refusedMark = "refused: "

// callbacks are what memberlist asks and tells, mostly under its locks. None of them
// waits. They are a type of their own, so that they are not methods of Members.
type callbacks struct{ m *Members }

var (
	_ memberlist.Delegate         = callbacks{}
	_ memberlist.EventDelegate    = callbacks{}
	_ memberlist.AliveDelegate    = callbacks{}
	_ memberlist.MergeDelegate    = callbacks{}
	_ memberlist.ConflictDelegate = callbacks{}
	_ memberlist.PingDelegate     = callbacks{}
)

// NodeMeta is what this node says of itself now.
func (c callbacks) NodeMeta(int) []byte { return c.m.cfg.meta(State(c.m.state.Load())).encode() }

// NotifyMsg does nothing, as the next three: gossip carries membership only.
func (c callbacks) NotifyMsg([]byte) {}

// GetBroadcasts has none.
func (c callbacks) GetBroadcasts(int, int) [][]byte { return nil }

// LocalState has none.
func (c callbacks) LocalState(bool) []byte { return nil }

// MergeRemoteState has none.
func (c callbacks) MergeRemoteState([]byte, bool) {}

// NotifyJoin notes a member that is here, or is here again.
func (c callbacks) NotifyJoin(n *memberlist.Node) { c.came(n) }

// NotifyUpdate notes that a member says something new of itself.
func (c callbacks) NotifyUpdate(n *memberlist.Node) { c.came(n) }

func (c callbacks) came(n *memberlist.Node) {
	if member, _, err := memberOf(n); err == nil {
		c.m.table.came(member)
	}
}

// NotifyLeave notes a member that died or left.
func (c callbacks) NotifyLeave(n *memberlist.Node) {
	if id, ok := nodeID(n.Name); ok {
		c.m.table.went(id)
	}
}

// AckPayload has none.
func (c callbacks) AckPayload() []byte { return nil }

// NotifyPingComplete notes that a member answers.
func (c callbacks) NotifyPingComplete(n *memberlist.Node, _ time.Duration, _ []byte) {
	if id, ok := nodeID(n.Name); ok {
		c.m.table.suspect(id, Alive)
	}
}

// NotifyAlive is called for each message that says a node lives. An error keeps the node
// out.
func (c callbacks) NotifyAlive(n *memberlist.Node) error {
	if n.Name == c.m.cfg.ID.String() {
		return nil // NotifyConflict reports it
	}
	member, err := c.m.judge(n)
	if err != nil {
		return err
	}
	taken := ""
	if member.Name == c.m.cfg.Name {
		// In the ring, the other node has the name.
		c.m.meet(rival{member.ID, member.Address, fmt.Sprintf("the name %q", member.Name)})
		taken = "this node"
	} else if holder, ok := c.m.table.holder(member.Name); ok && holder.ID != member.ID {
		taken = fmt.Sprintf("the node %v at %v", holder.ID, holder.Address)
	}
	if taken != "" {
		err := fmt.Errorf("refused the node %v at %v: its name %q is that of %s; if both run, give one another name, else it is let in when the other was silent for some seconds",
			member.ID, member.Address, member.Name, taken)
		if member.Address != c.m.Address() { // at this node's address it is what this node was before
			c.m.refuse("name "+n.Name, levelWarn, err.Error())
		}
		return err
	}
	// A node that denies a suspicion sends such a message. An old one that is still in
	// flight makes it look healthy for one probe.
	c.m.table.suspect(member.ID, Alive)
	return nil
}

// NotifyMerge is called on both sides when nodes join. A ring is one cluster, in which
// all nodes understand each other.
func (c callbacks) NotifyMerge(peers []*memberlist.Node) error {
	if c.m.cfg.meets != nil {
		c.m.cfg.meets()
	}
	for _, n := range peers {
		if n.State != memberlist.StateAlive && n.State != memberlist.StateSuspect {
			continue
		}
		if n.Name == c.m.cfg.ID.String() {
			continue
		}
		if _, err := c.m.judge(n); err != nil {
			return errors.New(refusedMark + err.Error())
		}
	}
	return nil
}

// NotifyConflict notes an id that two addresses claim.
func (c callbacks) NotifyConflict(existing, other *memberlist.Node) {
	id, ok := nodeID(existing.Name)
	if !ok {
		return
	}
	here, there := addressOf(existing), addressOf(other)
	if id == c.m.cfg.ID {
		c.m.meet(rival{id, there, "the id " + id.String()})
		return
	}
	name := "?"
	if member, ok := c.m.table.find(id); ok {
		name = member.Name
	}
	c.m.refuse("id "+existing.Name, levelWarn, fmt.Sprintf("refused a node at %v: it has the id %v of %s at %v; if both run, a cache directory was copied: delete the copy; else it is let in when the other was silent for some seconds", there, id, name, here))
}

func addressOf(n *memberlist.Node) netip.AddrPort {
	a, _ := netip.AddrFromSlice(n.Addr)
	return netip.AddrPortFrom(a.Unmap(), n.Port)
}

// memberOf reads what is said of a node. The cluster's name is for judge.
func memberOf(n *memberlist.Node) (Member, string, error) {
	id, ok := nodeID(n.Name)
	if !ok {
		return Member{}, "", fmt.Errorf("%.80q is no node id of hearth's", n.Name)
	}
	x, err := decodeMeta(n.Meta)
	if err != nil {
		return Member{}, "", err
	}
	return Member{ID: id, Name: x.Name, Address: addressOf(n), Data: x.Data, Zone: x.Zone, Donated: x.Donated, State: x.State, Protocol: x.Protocol}, x.Cluster, nil
}

// judge says why a node cannot be in one ring with this one.
func (m *Members) judge(n *memberlist.Node) (Member, error) {
	member, cluster, err := memberOf(n)
	switch {
	case err != nil:
		err = fmt.Errorf("a node at %v cannot be understood: %w", addressOf(n), err)
	case cluster != m.cfg.Cluster:
		err = fmt.Errorf("%s at %v is of the cluster %q, and %s of %q: correct the cluster's name, or the seeds", member.Name, member.Address, cluster, m.cfg.Name, m.cfg.Cluster)
	case !member.Protocol.understands(m.cfg.Protocol):
		err = fmt.Errorf("%s at %v speaks protocol %v, and %s speaks %v: update the older one", member.Name, member.Address, member.Protocol, m.cfg.Name, m.cfg.Protocol)
	default:
		return member, nil
	}
	m.refuse(n.Name+addressOf(n).String(), levelError, refusedMark+err.Error())
	return Member{}, err
}
