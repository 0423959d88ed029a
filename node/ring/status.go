package ring

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/node/status"
	"github.com/hearthfs/hearth/peer/members"
)

const (
	// askFor bounds the time in which members answer with their figures.
	askFor = time.Second
	// mostAsked bounds the members that are asked at the same time.
	mostAsked = 32
)

// own returns what this node says of itself.
func (r *Part) own() status.MemberFigures {
	f := r.o.Figures()
	joined := r.joined()
	if joined == nil {
		return f
	}
	_, served := joined.Stats()
	f.Served, f.Asked = served.Sent, r.o.Reads().Bytes
	for _, m := range joined.Members().Members {
		if m.Health != members.Alive {
			f.Suspects = append(f.Suspects, m.Name)
		}
	}
	for _, m := range joined.Members().Missing {
		f.Suspects = append(f.Suspects, m.Name)
	}
	for _, b := range barred(joined.Members(), joined.Outages()) {
		f.Unreached = append(f.Unreached, b.Name)
	}
	return f
}

// Status returns the ring as this node sees it. It asks each member for what the member says of itself.
func (r *Part) Status(ctx context.Context) (*status.RingStatus, error) {
	joined := r.joined()
	if joined == nil {
		return nil, fmt.Errorf("the node has not joined its ring yet")
	}
	s := joined.Members()
	doc := &status.RingStatus{Self: r.ID(), Cluster: r.name(), Encryption: "none", Generation: s.Generation, Reads: r.o.Reads()}
	if r.cluster != nil {
		doc.Fingerprint, doc.Encryption = r.cluster.Fingerprint(), "on"
		if r.o.Plain {
			doc.Encryption = "off"
		}
	}
	for _, m := range slices.Concat(s.Members, s.Missing) {
		doc.Members = append(doc.Members, r.member(m))
	}
	for i := len(s.Members); i < len(doc.Members); i++ {
		doc.Members[i].State, doc.Members[i].Silent = "missing", "it is not in the ring"
	}
	r.ask(ctx, doc.Members[:len(s.Members)])
	slices.SortFunc(doc.Members, func(a, b status.Member) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID)) })
	return doc, nil
}

// addressOf returns an address as text. It is empty if the address is not known, as of a node that this one
// only remembers.
func addressOf(a netip.AddrPort) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

func (r *Part) member(m members.Member) status.Member {
	return status.Member{ID: m.ID.String(), Name: m.Name, Zone: m.Zone, Address: m.Address.String(), Data: addressOf(m.Data),
		State: m.State.String(), Health: m.Health.String(), Donated: m.Donated, Share: r.share(m.ID)}
}

// share returns the part of all blocks that a member is expected to own.
func (r *Part) share(id members.ID) float64 {
	t := r.Router.Table()
	if t == nil {
		return 0
	}
	return t.Map.Share(id.String())
}

// ask asks members for their figures, at most mostAsked at a time, and all of them within askFor.
func (r *Part) ask(ctx context.Context, all []status.Member) {
	ctx, cancel := context.WithTimeoutCause(ctx, askFor, fmt.Errorf("no answer in %v", askFor))
	defer cancel()
	places := make(chan struct{}, mostAsked)
	var asking sync.WaitGroup
	for i := range all {
		m := &all[i]
		if m.ID == r.ID() {
			m.MemberFigures = r.own()
			continue
		}
		places <- struct{}{}
		asking.Go(func() {
			defer func() { <-places }()
			if err := r.askOne(ctx, m); err != nil {
				m.Silent = err.Error()
			}
		})
	}
	asking.Wait()
}

func (r *Part) askOne(ctx context.Context, m *status.Member) error {
	v, err := r.Router.Call(ctx, m.ID, callFigures, nil)
	if err != nil || v == nil {
		return err
	}
	defer v.Release()
	return json.Unmarshal(v.Bytes(), &m.MemberFigures)
}

// Owners returns the names of the nodes that each extent of an object belongs to.
func (r *Part) Owners(o *hearth.Object) (all []status.OwnedExtent) {
	names := r.names()
	for i := int64(0); i < o.Blocks(); i += hearth.ExtentBlocks {
		b := o.Block(i)
		all = append(all, status.OwnedExtent{Offset: b.Offset(), Owners: r.named(names, b)})
	}
	return all
}

// Names returns the names of the nodes that a block belongs to, its owner first.
func (r *Part) Names(b hearth.Block) []string { return r.named(r.names(), b) }

// Name returns the name of a node by its id.
func (r *Part) Name(id string) string { return cmp.Or(r.names()[id], id) }

// names returns the names of the members by their ids.
func (r *Part) names() map[string]string {
	names := map[string]string{}
	if joined := r.joined(); joined != nil {
		for _, m := range joined.Members().Members {
			names[m.ID.String()] = m.Name
		}
	}
	return names
}

func (r *Part) named(names map[string]string, b hearth.Block) (all []string) {
	for _, id := range r.Router.Owners(b) {
		all = append(all, cmp.Or(names[id], id))
	}
	return all
}
