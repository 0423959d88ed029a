package status

// RingStatus is the ring as one node sees it.
type RingStatus struct {
	// Self is the node's id, Cluster the name that all share, Fingerprint that of name and
	// key; "": there is no key. Encryption is on, off or none.
	Self        string `json:"self"`
	Cluster     string `json:"cluster"`
	Fingerprint string `json:"fingerprint,omitempty"`
	Encryption  string `json:"encryption"`
	// Generation of what the node knows of the ring; it grows with each change.
	Generation uint64 `json:"generation"`
	// Members are in the ring, this node among them, and those that died lately.
	Members []Member `json:"members"`
	// Reads are what came of this node's reads of others' blocks.
	Reads RingReads `json:"reads"`
}

// RingReads are counts since the node started.
type RingReads struct {
	// Asked are reads of others' blocks at their owners, Loaded those that had an owner load.
	// Bytes is what came of the reads.
	Asked  int64 `json:"asked"`
	Loaded int64 `json:"loaded"`
	Bytes  int64 `json:"bytes"`
	// Detours went to another rank than the first, this node itself among them, Elsewhere to
	// the bucket past all owners.
	Detours   int64 `json:"detours"`
	Elsewhere int64 `json:"elsewhere"`
	// Strays are bytes that a warm-up here had another rank load, or found it its own to load,
	// since the owner did not answer: where that had loaded them as well, they were read twice.
	Strays int64 `json:"strays"`
	// Passed are blocks that an owner did not give, so that their read went past it, by why:
	// silent, down, refused, memory (none here for the answer) or failed. Most is how many
	// owners one read asked in vain.
	Passed map[string]int64 `json:"passed"`
	Most   int64            `json:"most"`
	// Peeks asked former owners; Found are blocks that one of them had, Late were given up since
	// they did not say in time, and Gone are held by none of them any more. Alone are blocks that
	// were read from the bucket while the node knew of nobody else, as one that has just come does.
	Peeks int64 `json:"peeks"`
	Found int64 `json:"found"`
	Late  int64 `json:"late"`
	Gone  int64 `json:"gone"`
	Alone int64 `json:"alone"`
}

// Member is one node of the ring. What a member says of itself is missing, and
// Silent says why, where it did not answer.
type Member struct {
	ID      string `json:"id"`
	Name    string `json:"name"`
	Zone    string `json:"zone,omitempty"`
	Address string `json:"address"`
	// Data is where it answers reads.
	Data string `json:"data"`
	// State is joining, active, leaving or missing; Health is alive, suspect or dead, as the
	// node that was asked thinks.
	State  string `json:"state"`
	Health string `json:"health"`
	// Share is the part of all blocks that it owns, 0 to 1; Donated is in bytes.
	Share   float64 `json:"share"`
	Donated int64   `json:"donated"`
	MemberFigures
	// Silent is why the member said nothing of itself; "": it did.
	Silent string `json:"silent,omitempty"`
}

// MemberFigures are what a member says of itself.
type MemberFigures struct {
	Version string `json:"version,omitempty"`
	UptimeS int64  `json:"uptime_s"`
	// Used bytes of its cache directories. HitRatio is of its own readers' bytes, 0 to 1;
	// -1: there were none.
	Used     int64   `json:"used"`
	HitRatio float64 `json:"hit_ratio"`
	// Served are the bytes that its peers got of it, Asked those that it got of them.
	Served int64 `json:"served"`
	Asked  int64 `json:"asked"`
	// Suspects are the names of members that it does not think alive.
	Suspects []string `json:"suspects,omitempty"`
	// Unreached are those of members that it thinks alive and gets no answers from.
	Unreached []string `json:"unreached,omitempty"`
}

// Owned says who owns the parts of a file.
type Owned struct {
	Path string `json:"path"`
	Size int64  `json:"size"`
	// Extents are the parts of 16 MiB, in order; a small file has one.
	Extents []OwnedExtent `json:"extents"`
}

// OwnedExtent is one part of a file and the nodes that it belongs to, by rank.
type OwnedExtent struct {
	Offset int64 `json:"offset"`
	// Owners are names, the owner first.
	Owners []string `json:"owners"`
}
