package members

import (
	"cmp"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"
)

const (
	// KnownFile is the file of the last known members in Config.Dir.
	KnownFile   = "members.json"
	knownFormat = 1
	// maxKnown members are kept on disk. A member that is found knows the others.
	maxKnown = maxMissing
	// maxKnownBytes is many times what maxKnown members take.
	maxKnownBytes = 1 << 20
	// refreshKnown is how often ages are written if nothing else changes.
	refreshKnown = 10 * time.Minute
)

// known is the file. Ages count only while a node runs, and never by the wall clock. So a
// node that was off for a week finds the ring where it was.
type known struct {
	Format  int         `json:"format"`
	Cluster string      `json:"cluster"`
	Members []knownNode `json:"members"`
}

type knownNode struct {
	ID      string `json:"id"`
	Name    string `json:"name"`
	Address string `json:"address"`
	Absent  int64  `json:"absent_s"` // how long it was missing
}

// knownOf is what is kept of a snapshot. Members that were here last come first. Of a
// large ring each node keeps different members: those whose ids are nearest to its own.
func knownOf(s *Snapshot, self ID, cluster string) known {
	k := known{Format: knownFormat, Cluster: cluster, Members: []knownNode{}}
	all := slices.Concat(s.Members, s.Missing)
	all = slices.DeleteFunc(all, func(m Member) bool { return m.ID == self })
	absent := func(m Member) int64 {
		if m.Health != Dead {
			return 0
		}
		return int64(time.Since(m.HealthSince).Seconds())
	}
	distance := func(m Member) string {
		d := m.ID
		for i := range d {
			d[i] ^= self[i]
		}
		return string(d[:])
	}
	slices.SortFunc(all, func(a, b Member) int {
		return cmp.Or(cmp.Compare(absent(a), absent(b)), cmp.Compare(distance(a), distance(b)))
	})
	for _, m := range all[:min(len(all), maxKnown)] {
		k.Members = append(k.Members, knownNode{ID: m.ID.String(), Name: m.Name, Address: m.Address.String(), Absent: absent(m)})
	}
	return k
}

// same reports whether two files name the same nodes at the same addresses.
func (k known) same(o known) bool {
	key := func(n knownNode) string { return n.ID + n.Name + n.Address }
	mine, theirs := map[string]bool{}, map[string]bool{}
	for _, n := range k.Members {
		mine[key(n)] = true
	}
	for _, n := range o.Members {
		theirs[key(n)] = true
		if !mine[key(n)] {
			return false
		}
	}
	return len(mine) == len(theirs) && k.Cluster == o.Cluster
}

// parseKnown reads the file's text. A file of another cluster is an error.
func parseKnown(text []byte, cluster string, now time.Time) ([]Member, error) {
	var k known
	if err := json.Unmarshal(text, &k); err != nil {
		return nil, fmt.Errorf("it is damaged: %w", err)
	}
	if k.Format != knownFormat {
		return nil, fmt.Errorf("it has format %d, and this version of hearth knows %d", k.Format, knownFormat)
	}
	if k.Cluster != cluster {
		return nil, fmt.Errorf("it is of the cluster %q, and this node belongs to %q", k.Cluster, cluster)
	}
	if len(k.Members) > maxKnown {
		return nil, fmt.Errorf("it is damaged: %d members", len(k.Members))
	}
	var members []Member
	for _, n := range k.Members {
		id, err := hex.DecodeString(n.ID)
		if err != nil || len(id) != len(ID{}) || !printable(n.Name) || len(n.Name) > maxMeta {
			return nil, fmt.Errorf("it is damaged: member %.80q, %.80q", n.ID, n.Name)
		}
		addr, err := netip.ParseAddrPort(n.Address)
		if err != nil || addr.Addr().IsUnspecified() || n.Absent < 0 || n.Absent > int64(maxAge.Seconds()) {
			return nil, fmt.Errorf("it is damaged: member %s at %.80q, absent for %d s", n.ID, n.Address, n.Absent)
		}
		members = append(members, Member{ID: ID(id), Name: n.Name, Address: addr, Health: Dead,
			HealthSince: now.Add(-time.Duration(n.Absent) * time.Second)})
	}
	return members, nil
}

// maxAge is longer than any member is remembered, and far from where durations overflow.
const maxAge = 365 * 24 * time.Hour

func loadKnown(dir, cluster string) ([]Member, error) {
	if dir == "" {
		return nil, nil
	}
	name := filepath.Join(dir, KnownFile)
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the last known members: %w", err)
	}
	defer func() { _ = f.Close() }() // it was only read
	text, err := io.ReadAll(io.LimitReader(f, maxKnownBytes+1))
	if err == nil && len(text) > maxKnownBytes {
		err = fmt.Errorf("it is damaged: more than %d bytes", maxKnownBytes)
	}
	var members []Member
	if err == nil {
		members, err = parseKnown(text, cluster, time.Now())
	}
	if err != nil {
		return nil, fmt.Errorf("ignore the last known members in %s: %w", name, err)
	}
	return members, nil
}

// save replaces the file atomically: after a crash it is the old one or the new one.
func (k known) save(dir string) error {
	text, err := json.MarshalIndent(k, "", " ")
	if err != nil {
		return fmt.Errorf("keep the last known members: %w", err)
	}
	name := filepath.Join(dir, KnownFile)
	f, err := os.OpenFile(name+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("keep the last known members: %w", err)
	}
	_, err = f.Write(append(text, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(name+".new", name)
	}
	if err != nil {
		return fmt.Errorf("keep the last known members: %w", err)
	}
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("keep the last known members: %w", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("keep the last known members: %w", err)
	}
	return nil
}

// keepKnown writes the file as members come and go, until the node closes.
func (m *Members) keepKnown() {
	if m.cfg.Dir == "" {
		return
	}
	var last known
	var written time.Time
	write := func() {
		k := knownOf(m.Snapshot(), m.cfg.ID, m.cfg.Cluster)
		if !written.IsZero() && k.same(last) && time.Since(written) < refreshKnown {
			return
		}
		if err := k.save(m.cfg.Dir); err != nil {
			m.log.once("save", levelWarn, err.Error())
			return
		}
		last, written = k, time.Now()
	}
	settle, refresh := time.NewTimer(0), time.NewTicker(refreshKnown)
	defer settle.Stop()
	defer refresh.Stop()
	for {
		select {
		case <-settle.C:
		case <-m.stop.Done():
			write()
			return
		}
		seen := m.Snapshot()
		write()
		select {
		case <-seen.Superseded():
		case <-refresh.C:
		case <-m.stop.Done():
			write()
			return
		}
		settle.Reset(m.cfg.Timing.Save)
	}
}
