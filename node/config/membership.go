package config

// Membership is a node's part in a ring of nodes; the zero Membership: it is alone.
type Membership struct {
	// Name of the node, unique in its cluster; "": the host name.
	Name string
	// Listen is where the node gossips, by TCP and UDP, and one port above answers its
	// peers' reads: an address, an interface or a CIDR, with :port or without (7946). "":
	// the address by which the machine reaches the first of Join that is elsewhere.
	Listen string
	// Zone is where the node stands, such as a rack: what lies in one zone fails together.
	Zone string
	// Join are nodes of the ring, HOST or HOST:PORT; none: this is the first one.
	Join []string
	// Cluster is the name that all nodes of the ring share; "": hearth.
	Cluster string
	// KeyFile holds the cluster key; "": it is in the environment, HEARTH_CLUSTER_KEY, or
	// there is none and the node listens on loopback only.
	KeyFile string
	// Plain has peers authenticate each other and not encrypt, for isolated networks.
	Plain bool
}

// KeyVariable is where the cluster key is looked for when no file is named.
const KeyVariable = "HEARTH_CLUSTER_KEY"

// On reports whether the node is to be part of a ring.
func (m Membership) On() bool { return m.Listen != "" || len(m.Join) > 0 }
