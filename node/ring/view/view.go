// Package view is how a node's part in a ring looks from outside: what of it is wrong, and
// its metrics, which are made of the status document.
package view

import (
	"fmt"
	"strings"
	"time"

	"github.com/hearthfs/hearth/node/status"
)

// settle is how long a node may be alone before that is a problem: nodes that start at once
// have found each other by then, as a round of asking for them takes half of it at most.
const settle = time.Minute

// Problems are what a person should do something about: a node that should be in a ring and
// is refused, or is not in one for longer than a minute, whose place another node has, or that
// none of the others answers. A nil ring has none.
func Problems(r *status.RingLine) (all []string) {
	if r == nil {
		return nil
	}
	switch {
	case r.Refusal != "" && r.Alive+r.Suspect <= 1:
		all = append(all, "the ring refuses this node, which is alone: "+r.Refusal)
	case r.AloneS >= int64(settle/time.Second):
		all = append(all, fmt.Sprintf("this node is alone in its ring: none of join (%s) has been there for %s; look whether a node runs there and what its log says of %s, and whether that port and the one above are open both ways", strings.Join(r.Join, ", "), since(r.AloneS), r.Name))
	}
	if r.Rival != "" {
		all = append(all, "two nodes want to be one member of the ring, and this is one of them: "+r.Rival)
	}
	if r.Unreachable > 0 && r.Unreachable == r.Alive-1 {
		all = append(all, "none of the ring's other nodes answers what this one asks: "+barred(r))
	}
	return all
}

// barred names who cannot be asked, why, and what to do.
func barred(r *status.RingLine) string {
	var who []string
	for _, b := range r.Barred {
		who = append(who, fmt.Sprintf("%s at %s for %s (%s)", b.Name, b.Data, since(b.ForS), b.Cause))
	}
	return some(who, r.Unreachable) + "; look whether that port is open both ways, and what the logs of both say: reads go around, to other nodes and the bucket"
}

// Warnings are what a person should know while the node is well: who is missing, or there
// and cannot be asked, or of another ring, and that the node gives nothing. A nil ring has none.
func Warnings(r *status.RingLine) (all []string) {
	if r == nil {
		return nil
	}
	if r.Donated == 0 && r.State == "active" {
		all = append(all, "this node gives less than 64 MiB to the ring, which counts as nothing: it owns no blocks; give it a larger cache")
	}
	if r.Unreachable > 0 && r.Unreachable < r.Alive-1 {
		all = append(all, fmt.Sprintf("%d of the ring's %d nodes fail what this one asks, and are alive: %s", r.Unreachable, r.Alive+r.Suspect+r.Missing, barred(r)))
	}
	if r.Refusal != "" && r.Alive+r.Suspect > 1 {
		all = append(all, "a node of join is in no ring with this one: "+r.Refusal)
	}
	if r.Missing == 0 {
		return all
	}
	var who []string
	for _, m := range r.Absent {
		who = append(who, fmt.Sprintf("%s (%s) for %s", m.Name, m.Address, since(m.ForS)))
	}
	all = append(all, fmt.Sprintf("%d of the ring's %d nodes are missing: %s; start them again, or leave it: reads go on, what they held comes from the bucket once more, and they are forgotten after a day", r.Missing, r.Alive+r.Suspect+r.Missing, some(who, r.Missing)))
	return all
}

// some are those of so many who are named.
func some(who []string, all int64) string {
	if more := all - int64(len(who)); more > 0 {
		who = append(who, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(who, ", ")
}

// since is a number of seconds as people say it.
func since(seconds int64) string {
	d := time.Duration(seconds) * time.Second
	if d >= time.Hour {
		return fmt.Sprintf("%.1f h", d.Hours())
	}
	if d >= time.Minute {
		return fmt.Sprintf("%.0f min", d.Minutes())
	}
	return fmt.Sprintf("%d s", seconds)
}

// Export sends the figures of a ring; nil: none.
func Export(r *status.RingLine, m status.Sink) {
	if r == nil {
		return
	}
	alone := int64(0)
	if r.AloneS > 0 {
		alone = 1
	}
	for health, n := range map[string]int64{"alive": r.Alive, "suspect": r.Suspect, "missing": r.Missing} {
		m.Gauge("hearth_ring_members", "Members of the ring as this node sees them, itself among them; alert on missing ones.", n, "health", health)
	}
	m.Gauge("hearth_ring_alone", "1 while nobody else is in the ring though join names nodes.", alone)
	m.Ratio("hearth_ring_share_ratio", "Part of all blocks that this node owns.", r.Share)
	m.Gauge("hearth_ring_donated_bytes", "Bytes that this node gives to the ring's cache.", r.Donated)
	m.Count("hearth_ring_asked_total", "Reads of others' blocks that asked their owners.", r.Reads.Asked)
	m.Count("hearth_ring_asked_bytes_total", "Bytes of these reads.", r.Reads.Bytes)
	m.Count("hearth_ring_loaded_total", "Blocks that owners were asked to load, without sending their bytes.", r.Reads.Loaded)
	m.Count("hearth_ring_detours_total", "Reads that went on to another owner than the first, which was silent or refused; this node itself may be that owner.", r.Reads.Detours)
	m.Count("hearth_ring_elsewhere_total", "Reads of others' blocks that went to the bucket, past owners that were silent or refused.", r.Reads.Elsewhere)
	m.Count("hearth_ring_strays_bytes_total", "Bytes that warm-ups here had another node than the owner load, which did not answer.", r.Reads.Strays)
	m.Count("hearth_ring_peeks_total", "Blocks that this node owns and asked former owners for.", r.Reads.Peeks)
	m.Count("hearth_ring_peeks_found_total", "Blocks that a former owner had.", r.Reads.Found)
	m.Count("hearth_ring_peeks_late_total", "Blocks that the bucket was asked for since former owners took longer than usual or failed.", r.Reads.Late)
	m.Count("hearth_ring_peeks_gone_total", "Blocks that the bucket was asked for since former owners hold them no more.", r.Reads.Gone)
	m.Count("hearth_ring_alone_reads_total", "Blocks that the bucket was asked for while this node knew of nobody else in the ring.", r.Reads.Alone)
	for why, n := range r.Reads.Passed {
		m.Count("hearth_ring_passed_total", "Blocks that an owner did not give, so that their read went past it, by why.", n, "why", why)
	}
	m.Count("hearth_ring_refused_total", "Messages of nodes that may not be in this ring: another key, name or protocol.", r.Refused)
	m.Count("hearth_ring_cut_total", "Connections that had not shown the cluster key yet when others took their places: somebody floods the ports of the ring.", r.Cut)
	m.Count("hearth_ring_joins_failed_total", "Attempts to find a node of join, or a missing one, that nobody answered.", r.JoinsFailed)
	m.Gauge("hearth_ring_connections", "Connections of peers that are open.", r.Served.Connections)
	m.Gauge("hearth_ring_queued_bytes", "Bytes of answers to peers that wait to be written.", r.Served.Queued)
	m.Count("hearth_ring_served_bytes_total", "Bytes sent to peers that asked.", r.Served.Bytes)
	for answer, n := range r.Served.Answers {
		m.Count("hearth_ring_served_total", "What peers asked this node for, by what came of it.", n, "answer", answer)
	}
	for outcome, n := range r.Names {
		m.Count("hearth_ring_names_total", "Pages of listings and single names that nodes tell each other, by what became of them.", n, "told", outcome)
	}
	for outcome, n := range r.News {
		m.Count("hearth_ring_news_total", "Directories in which names changed, as nodes tell each other, by what became of that.", n, "news", outcome)
	}
	for _, p := range r.Peers {
		m.Count("hearth_ring_peer_requests_total", "What this node asked a peer for.", p.Requests, "peer", p.Name)
		m.Count("hearth_ring_peer_bytes_total", "Bytes that a peer sent to this node.", p.Bytes, "peer", p.Name)
		for failure, n := range p.Failures {
			m.Counts("hearth_ring_peer_failures_total", "What this node asked a peer for, or held with it, and failed.", n, []string{"failure", "peer"}, failure, p.Name)
		}
	}
}
