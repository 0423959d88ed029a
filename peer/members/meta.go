package members

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
)

// State is what a node says of itself.
type State uint8

const (
	// Joining nodes are in the ring and own nothing yet.
	Joining State = iota
	// Active nodes are full members.
	Active
	// Leaving nodes go soon. A node that is silent after that has left, not died.
	Leaving
)

// String is the state in a word.
func (s State) String() string {
	switch s {
	case Joining:
		return "joining"
	case Active:
		return "active"
	case Leaving:
		return "leaving"
	}
	return fmt.Sprintf("state %d", uint8(s))
}

const (
	// maxMeta is memberlist's limit for the metadata of a node, in bytes.
	maxMeta = 512
	// maxText is what the length of a name or zone can say, in bytes.
	maxText = 255
	// metaFormat is the first byte. This version skips what later versions append. A
	// format that it cannot read has another number.
	metaFormat = 1
	// donatedStep is the step of donated bytes up to donatedCoarse; above that it is
	// largeStep. So a file system that grows by a little moves no blocks.
	donatedStep   = 64 << 20
	donatedCoarse = 64 << 30
	largeStep     = 1 << 30
)

// Donated rounds donated bytes down, as the ring hears of them: to steps of 64 MiB, and
// from 64 GiB on to steps of 1 GiB. Less than one step is 0.
func Donated(bytes int64) int64 {
	if bytes < donatedCoarse {
		return max(0, bytes) &^ (donatedStep - 1)
	}
	return bytes &^ (largeStep - 1)
}

// meta is what memberlist carries of a node beside its id and gossip address. First come
// format, state, the newest and the oldest version of the protocol, a byte each. Then
// donated bytes in steps of 64 MiB (4 bytes), and the data address (its length, 4 or 16
// bytes, a port of 2). Then name, zone and cluster, each after a byte of its length.
// Numbers are big-endian.
type meta struct {
	State    State
	Protocol Protocol
	Donated  int64
	Data     netip.AddrPort
	Name     string
	Zone     string
	Cluster  string
}

// encode may return more than maxMeta bytes, or a text whose length does not fit its
// byte. Config.Check refuses both.
func (m meta) encode() []byte {
	b := []byte{metaFormat, byte(m.State), m.Protocol.Speaks, m.Protocol.Oldest}
	b = binary.BigEndian.AppendUint32(b, uint32(Donated(m.Donated)/donatedStep))
	addr := m.Data.Addr().Unmap().AsSlice()
	b = append(append(b, byte(len(addr))), addr...)
	b = binary.BigEndian.AppendUint16(b, m.Data.Port())
	for _, s := range []string{m.Name, m.Zone, m.Cluster} {
		b = append(append(b, byte(len(s))), s...)
	}
	return b
}

// decodeMeta reads what any node may have sent.
func decodeMeta(b []byte) (meta, error) {
	if len(b) > 0 && b[0] != metaFormat {
		return meta{}, fmt.Errorf("metadata have format %d, and this version of hearth knows %d", b[0], metaFormat)
	}
	damaged := errors.New("metadata are damaged")
	if len(b) < 9 || len(b) > maxMeta {
		return meta{}, damaged
	}
	m := meta{State: State(b[1]), Protocol: Protocol{Speaks: b[2], Oldest: b[3]}}
	if m.State > Leaving || m.Protocol.Speaks == 0 || m.Protocol.Oldest > m.Protocol.Speaks || m.Protocol.Oldest == 0 {
		return meta{}, damaged
	}
	m.Donated = Donated(int64(binary.BigEndian.Uint32(b[4:])) * donatedStep)
	n := int(b[8])
	b = b[9:]
	if len(b) < n+2 {
		return meta{}, damaged
	}
	addr, ok := netip.AddrFromSlice(b[:n])
	if !ok || addr.Is4In6() || addr.IsUnspecified() {
		return meta{}, damaged
	}
	m.Data = netip.AddrPortFrom(addr, binary.BigEndian.Uint16(b[n:]))
	if m.Data.Port() == 0 {
		return meta{}, damaged
	}
	b = b[n+2:]
	for _, s := range []*string{&m.Name, &m.Zone, &m.Cluster} {
		if len(b) == 0 || len(b) < 1+int(b[0]) {
			return meta{}, damaged
		}
		end := 1 + int(b[0])
		*s, b = string(b[1:end]), b[end:]
		if !printable(*s) {
			return meta{}, damaged
		}
	}
	return m, nil
}
