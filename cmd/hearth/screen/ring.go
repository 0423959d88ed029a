package screen

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/node/status"
)

// ring is the line about the node's part in a ring.
func ring(r *status.RingLine) (x section) {
	if r == nil {
		return x
	}
	x.head = []string{fmt.Sprintf("ring  %s; share %s; served %s, got %s, %s",
		nodes(r), part(r.Share), cli.Bytes(r.Served.Bytes), cli.Bytes(r.Reads.Bytes), countOf(r.Reads.Detours, "detour"))}
	return x
}

// nodes says how many nodes there are, and which of them are not well.
func nodes(r *status.RingLine) string {
	text := cli.Count(r.Alive, "node") + " alive"
	if r.Suspect > 0 {
		text += fmt.Sprintf(", %d suspect", r.Suspect)
	}
	if r.Missing > 0 {
		text += fmt.Sprintf(", %d missing", r.Missing)
	}
	return text
}

func part(f float64) string { return percent(&f) }

// ringDetails are the lines that -v adds about a ring.
func ringDetails(r *status.RingLine) (lines []string) {
	if r == nil {
		return nil
	}
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	add("ring %s: this node is %s at %s, %s, encryption %s; it gives %s", r.Cluster, r.Name, r.Address, r.State, r.Encryption, cli.Bytes(r.Donated))
	add("reads of others' blocks: %d asked, %d loaded there, %d detours, %d past all owners; of own ones: %d asked former owners, %d had them, %d too late, %d gone",
		r.Reads.Asked, r.Reads.Loaded, r.Reads.Detours, r.Reads.Elsewhere, r.Reads.Peeks, r.Reads.Found, r.Reads.Late, r.Reads.Gone)
	add("peers: %s, asked for %s", cli.Count(r.Served.Connections, "connection"), cli.Counts(r.Served.Answers))
	for _, p := range r.Peers {
		add("peer %s: %s, %s; %s", p.Name, cli.Count(p.Requests, "request"), cli.Bytes(p.Bytes), cli.Counts(p.Failures))
	}
	return lines
}

// mostDoubters is how many nodes that doubt a node are named in its row.
const mostDoubters = 3

// PrintRing writes the nodes of a ring, sorted by name, with missing nodes last.
func PrintRing(w io.Writer, r *status.RingStatus) error {
	members := slices.Clone(r.Members)
	slices.SortFunc(members, func(a, b status.Member) int {
		return cmp.Or(cmp.Compare(order(&a), order(&b)), cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID))
	})
	doubts, unreached, asked := map[string][]string{}, map[string][]string{}, "another node"
	for _, m := range members {
		if m.ID == r.Self {
			asked = m.Name
		}
		for _, name := range m.Suspects {
			doubts[name] = append(doubts[name], m.Name)
		}
		for _, name := range m.Unreached {
			unreached[name] = append(unreached[name], m.Name)
		}
	}
	rows, foot := []string{"NODE\tZONE\tADDRESS\tSTATE\tGIVES\tUSED\tSHARE\tHIT BYTES\tSERVED\tGOT\tVERSION\tNOT ALIVE FOR"}, []string{}
	for _, m := range members {
		rows = append(rows, member(&m, doubts[m.Name]))
		if m.Silent != "" && m.State != "missing" {
			foot = append(foot, fmt.Sprintf("%s did not answer: %s", m.Name, m.Silent))
		}
		if by := unreached[m.Name]; len(by) > 0 {
			foot = append(foot, fmt.Sprintf("%s is alive, and fails what these ask it: %s; hearth status there says why", m.Name, some(by)))
		}
	}
	rows = append(rows, total(members))
	x := r.Reads
	foot = append(foot, fmt.Sprintf("%s asked others for %s: %d by a detour, %d of the bucket past all owners", asked, cli.Count(x.Asked, "block"), x.Detours, x.Elsewhere))
	head := fmt.Sprintf("ring %s, encryption %s", r.Cluster, r.Encryption)
	if r.Fingerprint != "" {
		head += ", key " + r.Fingerprint
	}
	t := table(rows...)
	for _, line := range slices.Concat([]string{head + ", as " + asked + " sees it"}, t.head, t.rows, foot) {
		if _, err := fmt.Fprintln(w, strings.TrimRight(cli.QuoteText(line), " ")); err != nil {
			return err
		}
	}
	return nil
}

func order(m *status.Member) int {
	if m.State == "missing" {
		return 1
	}
	return 0
}

// member is a node's row in the table. A node that did not answer has no figures.
func member(m *status.Member, doubters []string) string {
	state, zone := m.State, m.Zone
	if m.Health == "suspect" {
		state += ", suspect"
	}
	if zone == "" {
		zone = "-"
	}
	used, hits, served, got, version := "-", "-", "-", "-", "-"
	if m.Version != "" {
		used, served, got, version = cli.Bytes(m.Used), cli.Bytes(m.Served), cli.Bytes(m.Asked), m.Version
		if m.HitRatio >= 0 {
			hits = part(m.HitRatio)
		}
	}
	// Text of another node must not begin another column, or end a line.
	return fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s", cli.QuoteText(m.Name), cli.QuoteText(zone), cli.QuoteText(m.Address), cli.QuoteText(state), cli.Bytes(m.Donated), used, part(m.Share),
		hits, served, got, cli.QuoteText(version), cli.QuoteText(some(doubters)))
}

// total is the last row. It sums what the nodes of the ring give, and what those that answered use
// and sent.
func total(members []status.Member) string {
	states, by := []string{}, map[string]int64{}
	var gives, used, served, got int64
	share := 0.0
	for _, m := range members {
		if by[m.State]++; by[m.State] == 1 {
			states = append(states, m.State)
		}
		if m.State != "missing" {
			gives, share = gives+m.Donated, share+m.Share
		}
		used, served, got = used+m.Used, served+m.Served, got+m.Asked
	}
	for i, state := range states {
		states[i] = fmt.Sprintf("%d %s", by[state], cli.QuoteText(state))
	}
	return fmt.Sprintf("total\t\t%s\t%s\t%s\t%s\t%s\t\t%s\t%s\t\t", cli.Count(len(members), "node"), strings.Join(states, ", "), cli.Bytes(gives), cli.Bytes(used), part(share),
		cli.Bytes(served), cli.Bytes(got))
}

// some joins the first of the names, and counts the rest.
func some(names []string) string {
	if more := len(names) - mostDoubters; more > 0 {
		names = append(slices.Clone(names[:mostDoubters]), fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, ", ")
}

// PrintOwners writes the owners of the parts of files. Consecutive parts with the same owners share
// a line.
func PrintOwners(w io.Writer, all []status.Owned) error {
	rows := []string{"PATH\tBYTES\tOWNERS"}
	for _, o := range all {
		for i := 0; i < len(o.Extents); {
			next := i + 1
			for next < len(o.Extents) && slices.Equal(o.Extents[next].Owners, o.Extents[i].Owners) {
				next++
			}
			end := o.Size
			if next < len(o.Extents) {
				end = o.Extents[next].Offset
			}
			rows = append(rows, fmt.Sprintf("%s\t%d-%d\t%s", cli.QuoteName(o.Path), o.Extents[i].Offset, end, cli.QuoteText(strings.Join(o.Extents[i].Owners, ", "))))
			i = next
		}
	}
	t := table(rows...)
	_, err := fmt.Fprintln(w, strings.Join(append(t.head, t.rows...), "\n"))
	return err
}
