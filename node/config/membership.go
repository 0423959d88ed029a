package config

// Membership is a node's part in a ring of nodes. The zero Membership means that the node is alone.
type Membership struct {
	// Name is the node's name, unique in its cluster. Empty means the host name.
	Name string
	// Listen is where the node gossips, by TCP and UDP. One port above, it answers its peers' reads. It is
	// an address, an interface or a CIDR, with :port or without (7946). Empty means the address by which
	// the machine reaches the first node of Join that is elsewhere.
	Listen string
	// Zone is where the node stands, such as a rack. What lies in one zone fails together.
	Zone string
	// Join names nodes of the ring, HOST or HOST:PORT. None means that this is the first node.
	Join []string
	// Cluster is the name that all nodes of the ring share. Empty means hearth.
	Cluster string
	// KeyFile is the file of the cluster key. Empty means that the key is in the environment, in
	// HEARTH_CLUSTER_KEY, or that there is none and the node listens only on loopback.
	KeyFile string
	// Plain has peers authenticate each other but not encrypt, for isolated networks.
	Plain bool
}

// KeyVariable is the environment variable with the cluster key, which is read if no file is named.
const KeyVariable = "HEARTH_CLUSTER_KEY"

// On reports whether the node is to be part of a ring.
func (m Membership) On() bool { return m.Listen != "" || len(m.Join) > 0 }
