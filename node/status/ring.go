package status

// RingStatus is the ring as one node sees it.
type RingStatus struct {
	// Self is the node's id. Cluster is the name that all nodes share. Fingerprint is that of the name and the
	// key, and empty if there is no key. Encryption is on, off or none.
	Self        string `json:"self"`
	Cluster     string `json:"cluster"`
	Fingerprint string `json:"fingerprint,omitempty"`
	Encryption  string `json:"encryption"`
	// Generation numbers what the node knows of the ring, and grows with each change.
	Generation uint64 `json:"generation"`
	// Members are the nodes in the ring, this one among them, and those that died lately.
	Members []Member `json:"members"`
	// Reads counts what became of this node's reads of others' blocks.
	Reads RingReads `json:"reads"`
}

// RingReads are counts since the node started.
type RingReads struct {
	// Asked counts reads of others' blocks at their owners, and Loaded those in which the owner only loaded the
	// block. Bytes is what the reads brought.
	Asked  int64 `json:"asked"`
	Loaded int64 `json:"loaded"`
	Bytes  int64 `json:"bytes"`
	// Detours went to another rank than the first, this node itself among them. Elsewhere counts reads that
	// went to the bucket, past all owners.
	Detours   int64 `json:"detours"`
	Elsewhere int64 `json:"elsewhere"`
	// Strays are bytes that a warm-up here had another rank load, this node itself among them, since the owner
	// did not answer. If the owner loaded them as well, they were read twice.
	Strays int64 `json:"strays"`
	// Passed counts blocks that an owner did not give, so that the read went past it. It counts them by
	// reason: silent, down, refused, memory (this node had none for the answer) or failed. Most is how many
	// owners a single read asked in vain.
	Passed map[string]int64 `json:"passed"`
	Most   int64            `json:"most"`
	// Peeks counts blocks for which former owners were asked. Found are blocks that one of them had. Late are
	// blocks for which they did not answer in time. Gone are blocks that none of them holds any longer. Alone
	// are blocks that were read from the bucket while the node knew of no other node, as when it has just come.
	Peeks int64 `json:"peeks"`
	Found int64 `json:"found"`
	Late  int64 `json:"late"`
	Gone  int64 `json:"gone"`
	Alone int64 `json:"alone"`
}

// Member is one node of the ring. What a member says of itself is missing if it did not answer, and Silent says
// why.
type Member struct {
	ID      string `json:"id"`
	Name    string `json:"name"`
	Zone    string `json:"zone,omitempty"`
	Address string `json:"address"`
	// Data is where it answers reads.
	Data string `json:"data"`
	// State is joining, active, leaving or missing. Health is alive, suspect or dead, in the view of the node
	// that was asked.
	State  string `json:"state"`
	Health string `json:"health"`
	// Share is the part of all blocks that the member owns, 0 to 1. Donated is in bytes.
	Share   float64 `json:"share"`
	Donated int64   `json:"donated"`
	MemberFigures
	// Silent is why the member said nothing of itself. It is empty if it answered.
	Silent string `json:"silent,omitempty"`
}

// MemberFigures are what a member says of itself.
type MemberFigures struct {
	Version string `json:"version,omitempty"`
	UptimeS int64  `json:"uptime_s"`
	// Used is how many bytes its cache directories hold. HitRatio is the hit ratio of its own readers' bytes, 0
	// to 1, or -1 if there were none.
	Used     int64   `json:"used"`
	HitRatio float64 `json:"hit_ratio"`
	// Served are the bytes that it sent to its peers, and Asked those that it got from them.
	Served int64 `json:"served"`
	Asked  int64 `json:"asked"`
	// Suspects are the names of members that it does not believe alive.
	Suspects []string `json:"suspects,omitempty"`
	// Unreached are the names of members that it believes alive but gets no answers from.
	Unreached []string `json:"unreached,omitempty"`
}

// Owned says which nodes own the parts of a file.
type Owned struct {
	Path string `json:"path"`
	Size int64  `json:"size"`
	// Extents are the parts of 16 MiB, in order. A small file has one.
	Extents []OwnedExtent `json:"extents"`
}

// OwnedExtent is one part of a file and the nodes that it belongs to, by rank.
type OwnedExtent struct {
	Offset int64 `json:"offset"`
	// Owners are the nodes' names, the owner first.
	Owners []string `json:"owners"`
}
