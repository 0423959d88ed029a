package status

// RingLine is a node's part in a ring, from what the node itself knows: no other node is asked for it.
type RingLine struct {
	// Name is the node's name, and Address where it gossips.
	Name    string `json:"name"`
	Address string `json:"address"`
	Zone    string `json:"zone,omitempty"`
	// Cluster is the name that all nodes share. Encryption is on, off or none.
	Cluster    string `json:"cluster"`
	Encryption string `json:"encryption"`
	// State is joining, active or leaving.
	State string `json:"state"`
	// Alive counts the members that answer, this node among them. Suspect counts those that did not lately.
	// Missing counts those that died, and were seen within a day.
	Alive   int64 `json:"alive"`
	Suspect int64 `json:"suspect"`
	Missing int64 `json:"missing"`
	// Absent are the first of the missing by name, at most MostAbsent.
	Absent []Absent `json:"absent,omitempty"`
	// AloneS is for how many seconds no other node has been in the ring although Join names nodes. 0 means that
	// one is, or that Join names none.
	AloneS int64    `json:"alone_s,omitempty"`
	Join   []string `json:"join,omitempty"`
	// Share is the part of all blocks that the node owns, 0 to 1. Donated is in bytes.
	Share   float64 `json:"share"`
	Donated int64   `json:"donated"`
	// Reads counts what became of this node's reads of others' blocks.
	Reads RingReads `json:"reads"`
	// Served is what peers asked this node for. Peers is what this node asked them for, with a row for each of
	// some peers, and one row, "other", for the rest.
	Served Served `json:"served"`
	Peers  []Peer `json:"peers,omitempty"`
	// Names counts pages of listings and single names by what became of them: "asked" of their owners, "bucket"
	// if the bucket was asked instead, "told" to others, "refused" to them, and "failed".
	Names map[string]int64 `json:"names"`
	// News counts directories in which names changed: "told" to a node, "heard" from one, "asked" for because
	// of that, and "lost" if they were not told or not taken up.
	News map[string]int64 `json:"news"`
	// Refused counts messages of nodes that may not be in this ring. JoinsFailed counts attempts to find a node
	// that nobody answered.
	Refused     int64 `json:"refused"`
	JoinsFailed int64 `json:"joins_failed"`
	// Cut counts connections that had not yet shown the key when others took their places.
	Cut int64 `json:"cut"`
	// Unreachable counts members that are alive by gossip but have failed everything that this node asked for a
	// while. Barred are the first of them by name, at most MostAbsent.
	Unreachable int64    `json:"unreachable"`
	Barred      []Barred `json:"barred,omitempty"`
	// Refusal is why this node and an answering node of Join cannot be in one ring. Rival is the node that has
	// this one's name or identity, as found at most half a minute ago. Both are empty if there is none.
	Refusal string `json:"refusal,omitempty"`
	Rival   string `json:"rival,omitempty"`
}

// Barred is a member that this node cannot ask: where it answers reads (Data), for how many seconds, and the
// cause.
type Barred struct {
	Name  string `json:"name"`
	Data  string `json:"data"`
	ForS  int64  `json:"for_s"`
	Cause string `json:"cause"`
}

// MostAbsent bounds the missing members that are named.
const MostAbsent = 8

// Absent is a missing member, with the seconds since it went missing.
type Absent struct {
	Name    string `json:"name"`
	Address string `json:"address"`
	ForS    int64  `json:"for_s"`
}

// Served is what a node's peers asked it for.
type Served struct {
	// Connections is the number of open connections, and Queued the bytes of answers that wait to be written.
	Connections int64 `json:"connections"`
	Queued      int64 `json:"queued"`
	// Bytes counts what was sent since the start. Answers counts requests by their answer: data, miss, refused,
	// stale, error, cancelled.
	Bytes   int64            `json:"bytes"`
	Answers map[string]int64 `json:"answers,omitempty"`
}

// Peer is what a node has asked another node for since the start.
type Peer struct {
	Name     string `json:"name"`
	Requests int64  `json:"requests"`
	// Bytes were received from it.
	Bytes int64 `json:"bytes"`
	// Failures are counted by kind: refused, error, mismatch (a wrong checksum), silence, broken (a lost
	// connection).
	Failures map[string]int64 `json:"failures,omitempty"`
}
