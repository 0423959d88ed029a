package scaling

import (
	"math"
	"math/bits"
	"time"

	"github.com/hearthfs/hearth/peer/members"
)

// Gossip is what the ring's membership sends: memberlist with the settings of
// peer/members, whose fields have the same names here. Its messages are maps of MessagePack,
// from the names of fields to their values, so their sizes follow from memberlist's types; a
// test holds them to what memberlist sends.
type Gossip struct {
	// ProbeInterval is how often a node probes one other.
	ProbeInterval time.Duration
	// PushPullInterval is how often a node compares all it knows with one other, in a ring of
	// up to 32; it grows with the logarithm of more.
	PushPullInterval time.Duration
	// GossipInterval is how often news are sent, to GossipNodes others.
	GossipInterval time.Duration
	GossipNodes    int
	// RetransmitMult is how often each node sends a piece of news on, for each digit of the
	// ring's size.
	RetransmitMult int
	// Meta are the bytes that a node says of itself beside its id and address.
	Meta int
}

// RingGossip is memberlist's DefaultLANConfig with members.Timing's defaults, and members.Tells.
func RingGossip(meta int) Gossip {
	return Gossip{ProbeInterval: time.Second, PushPullInterval: 30 * time.Second, GossipInterval: 200 * time.Millisecond, GossipNodes: 3, RetransmitMult: members.Tells, Meta: meta}
}

// MetaOf is the length of a node's metadata with an IPv4 address (peer/members, meta): format,
// state, two versions, donated bytes, address and port, and three texts after their lengths.
func MetaOf(name, zone, cluster string) int {
	return 4 + 4 + 1 + 4 + 2 + 3 + len(name) + len(zone) + len(cluster)
}

const (
	nameLen = 32 // a node's id in hexadecimal digits, which is its name in memberlist
	addrLen = 4  // IPv4
	vsnLen  = 6  // versions of the protocol and of the delegate
	port    = 7946
	// seq is a sequence number of a node that has run for some minutes: two bytes of it.
	seq = 1000
	// sealed is what encryption adds to a message: version 1, nonce 12, tag 16.
	sealed = 29
	// streamed is what comes before an encrypted stream: its type and its length.
	streamed = 5
	// crc is what memberlist puts before news for a node that understands it.
	crc = 5
	// compound is the type and number of a packet of several messages, and the length of each.
	compound, compounded = 2, 2
)

// Sizes of MessagePack, as memberlist's codec writes it.
func text(n int) int {
	if n < 32 {
		return 1 + n
	}
	return 3 + n
}

func number(v int) int {
	switch {
	case v < 1<<7:
		return 1
	case v < 1<<8:
		return 2
	case v < 1<<16:
		return 3
	}
	return 5
}

// field is a field's name with its value.
func field(name string, value int) int { return text(len(name)) + value }

// Ping and Ack are a probe's two packets, their payload of UDP in bytes.
func (g Gossip) Ping() int {
	return 1 + 1 + field("SeqNo", number(seq)) + field("Node", text(nameLen)) + field("SourceAddr", text(addrLen)) +
		field("SourcePort", number(port)) + field("SourceNode", text(nameLen)) + sealed
}

// Ack answers a Ping.
func (g Gossip) Ack() int { return 1 + 1 + field("SeqNo", number(seq)) + field("Payload", 1) + sealed }

// Alive is the news that a node is there, or says something else of itself, in bytes of a
// message.
func (g Gossip) Alive() int {
	return 1 + 1 + field("Incarnation", 1) + field("Node", text(nameLen)) + field("Addr", text(addrLen)) + field("Port", number(port)) +
		field("Meta", text(g.Meta)) + field("Vsn", text(vsnLen))
}

// Dead is the news that a node left, or is gone.
func (g Gossip) Dead() int {
	return 1 + 1 + field("Incarnation", 1) + field("Node", text(nameLen)) + field("From", text(nameLen))
}

// Entry is what is told of one node when two compare all they know, in bytes.
func (g Gossip) Entry() int {
	return 1 + field("Name", text(nameLen)) + field("Addr", text(addrLen)) + field("Port", number(port)) + field("Meta", text(g.Meta)) +
		field("Incarnation", 1) + field("State", 1) + field("Vsn", text(vsnLen))
}

// State is all that a node of a ring of n knows, as it goes over a connection.
func (g Gossip) State(n int) int {
	header := 1 + 1 + field("Nodes", number(n)) + field("UserStateLen", 1) + field("Join", 1)
	return streamed + sealed + header + n*g.Entry()
}

// PushPull is the interval in a ring of n nodes.
func (g Gossip) PushPull(n int) time.Duration {
	const threshold = 32 // memberlist's
	if n <= threshold {
		return g.PushPullInterval
	}
	return g.PushPullInterval * time.Duration(math.Ceil(math.Log2(float64(n))-math.Log2(threshold))+1)
}

// Idle is what each node of a ring of n sends in a second while nobody comes or goes, in
// bytes of its link: its probes and its answers to those of others, and its half of the
// exchanges that it begins and of those that it answers.
func (g Gossip) Idle(n int) float64 {
	if n < 2 {
		return 0
	}
	probes := float64(Datagram(g.Ping())+Datagram(g.Ack())) / g.ProbeInterval.Seconds() * Probes(n)
	return probes + float64(Exchange(int64(g.State(n)), int64(g.State(n))))/g.PushPull(n).Seconds()
}

// Probes is in which part of its probe intervals a node of a ring of n probes. memberlist goes
// through a shuffled list of all nodes, itself among them, and gives an interval up when it
// has skipped as many entries as there are nodes, the end of the list counting as one. Of two
// nodes that happens in three intervals of seven, of three in one of nineteen, where it
// stands last in one list and first in the next; of more never.
func Probes(n int) float64 {
	switch n {
	case 2:
		return 4. / 7
	case 3:
		return 18. / 19
	}
	return 1
}

// Transmits is how often each node of a ring of n sends a piece of news on.
func (g Gossip) Transmits(n int) int {
	return g.RetransmitMult * int(math.Ceil(math.Log10(float64(n+1))))
}

// News is what a piece of news of so many bytes costs each node of a ring of n, in bytes of
// its link, if it travels alone in its packets.
func (g Gossip) News(n, message int) int64 {
	return int64(g.Transmits(n)) * Datagram(crc+sealed+compound+compounded+message)
}

// Spread is about how long it takes until all of n nodes know: each interval who knows tells
// GossipNodes others.
func (g Gossip) Spread(n int) time.Duration {
	rounds := math.Ceil(math.Log(float64(n)) / math.Log(float64(1+g.GossipNodes)))
	return time.Duration(rounds) * g.GossipInterval
}

// NodesIn is how many nodes' State fits in so many bytes.
func (g Gossip) NodesIn(bytes int) int { return (bytes - g.State(0)) / g.Entry() }

// varint is the length of a number in groups of seven bits.
func varint(v uint64) int64 { return int64(max(1, (bits.Len64(v)+6)/7)) }
