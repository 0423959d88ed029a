package status

// RingLine is a node's part in a ring, as it knows it by itself: nobody is asked for it.
type RingLine struct {
	// Name of the node, and Address, where it gossips.
	Name    string `json:"name"`
	Address string `json:"address"`
	Zone    string `json:"zone,omitempty"`
	// Cluster is the name that all nodes share. Encryption is on, off or none.
	Cluster    string `json:"cluster"`
	Encryption string `json:"encryption"`
	// State is joining, active or leaving.
	State string `json:"state"`
	// Alive members answer, this node among them; Suspect ones did not lately; Missing ones
	// died, and were seen within a day.
	Alive   int64 `json:"alive"`
	Suspect int64 `json:"suspect"`
	Missing int64 `json:"missing"`
	// Absent are the first of the missing, by name; at most MostAbsent.
	Absent []Absent `json:"absent,omitempty"`
	// AloneS is for how many seconds nobody else was in the ring though Join names nodes;
	// 0: somebody is, or it names none.
	AloneS int64    `json:"alone_s,omitempty"`
	Join   []string `json:"join,omitempty"`
	// Share is the part of all blocks that the node owns, 0 to 1; Donated is in bytes.
	Share   float64 `json:"share"`
	Donated int64   `json:"donated"`
	// Reads are what came of this node's reads of others' blocks.
	Reads RingReads `json:"reads"`
	// Served is what peers asked this node for, Peers what it asked each of them for: a row
	// each for some, and one, "other", for the rest.
	Served Served `json:"served"`
	Peers  []Peer `json:"peers,omitempty"`
	// Names are pages of listings and single names, by what became of them: "asked" of their
	// owners, "bucket" instead, "told" to others, "refused" to them, and "failed".
	Names map[string]int64 `json:"names"`
	// News are directories in which names changed: "told" to a node, "heard" of one, "asked" for
	// because of that, and "lost": not told, or not taken up.
	News map[string]int64 `json:"news"`
	// Refused are messages of nodes that may not be in this ring, JoinsFailed attempts to
	// find a node that nobody answered.
	Refused     int64 `json:"refused"`
	JoinsFailed int64 `json:"joins_failed"`
	// Cut are connections that had not shown the key yet when others took their places.
	Cut int64 `json:"cut"`
	// Unreachable members are alive by gossip and fail what this node asks them, all of it for
	// a while; Barred are the first of them, by name, at most MostAbsent.
	Unreachable int64    `json:"unreachable"`
	Barred      []Barred `json:"barred,omitempty"`
	// Refusal is why a node of Join that answers and this one cannot be in one ring, Rival the
	// node that has this one's name or identity, as found half a minute ago at most; "": nothing.
	Refusal string `json:"refusal,omitempty"`
	Rival   string `json:"rival,omitempty"`
}

// Barred is a member that this node cannot ask, at Data, where it answers reads, for how many
// seconds, and why.
type Barred struct {
	Name  string `json:"name"`
	Data  string `json:"data"`
	ForS  int64  `json:"for_s"`
	Cause string `json:"cause"`
}

// MostAbsent of the missing are named.
const MostAbsent = 8

// Absent is a member that is missing, for how many seconds.
type Absent struct {
	Name    string `json:"name"`
	Address string `json:"address"`
	ForS    int64  `json:"for_s"`
}

// Served is what a node's peers asked it for.
type Served struct {
	// Connections are open, and Queued bytes of answers wait to be written, now.
	Connections int64 `json:"connections"`
	Queued      int64 `json:"queued"`
	// Bytes were sent, since the start. Answers count what was asked for, by what came of
	// it: data, miss, refused, stale, error, cancelled.
	Bytes   int64            `json:"bytes"`
	Answers map[string]int64 `json:"answers,omitempty"`
}

// Peer is what a node asked another one for, since the start.
type Peer struct {
	Name     string `json:"name"`
	Requests int64  `json:"requests"`
	// Bytes were received of it.
	Bytes int64 `json:"bytes"`
	// Failures by kind: refused, error, mismatch (a wrong checksum), silence, broken (a
	// connection that was lost).
	Failures map[string]int64 `json:"failures,omitempty"`
}
