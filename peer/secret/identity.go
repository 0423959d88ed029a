package secret

import (
	"cmp"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

// Options say how a node talks to its peers.
type Options struct {
	// Plain authenticates connections without encrypting them (cluster.encryption: off),
	// for isolated networks. The default is to encrypt.
	Plain bool
	// Within is how long a handshake may take. 0 means 10 s.
	Within time.Duration
}

// mode is how a node talks. Both sides must have the same.
type mode byte

const (
	encrypted mode = 1 + iota
	plain
	keyless
)

// Identity is a node as its peers know it: its id, and the proof that it belongs to the
// cluster. It is safe for concurrent use.
type Identity struct {
	id, name       string
	patience       time.Duration // how long a handshake may take
	mode           mode
	tag            [tagBytes]byte // hash of the cluster's name
	cluster        *Cluster       // nil means keyless
	client, server *tls.Config    // nil unless encrypted
	spare          sync.Pool      // buffers for records, of all connections
}

var (
	errDates  = errors.New("its certificate is not valid from 2000 to 2100, as all that nodes make")
	errNodeID = errors.New("its certificate has no node id")
)

// Identity makes a node's Identity, with a new key pair and certificate. An id has 1 to
// 64 ASCII letters, digits, dots, dashes and underscores.
func (c *Cluster) Identity(id string, o Options) (*Identity, error) {
	if err := checkName(id); err != nil {
		return nil, fmt.Errorf("make a certificate: node id %w", err)
	}
	i := &Identity{id: id, name: c.name, patience: cmp.Or(o.Within, maxHandshake), mode: encrypted, tag: nameTag(c.name), cluster: c, spare: sync.Pool{New: newRoom}}
	if o.Plain {
		i.mode = plain
		return i, nil
	}
	certificate, err := c.sign(nodeTemplate(id))
	if err != nil {
		return nil, fmt.Errorf("make a certificate for node %s: %w", id, err)
	}
	i.client, i.server = c.configs(certificate)
	return i, nil
}

// Keyless makes the Identity of a node that has no key. It talks to other nodes without a
// key, over loopback alone.
func Keyless(name, id string) (*Identity, error) {
	if err := errors.Join(checkName(name), checkName(id)); err != nil {
		return nil, fmt.Errorf("make an identity without a cluster key: %w", err)
	}
	return &Identity{id: id, name: name, patience: maxHandshake, mode: keyless, tag: nameTag(name)}, nil
}

func nameTag(name string) (tag [tagBytes]byte) {
	sum := sha256.Sum256([]byte(labelName + "\x00" + name))
	copy(tag[:], sum[:])
	return tag
}

// ID is the node's id.
func (i *Identity) ID() string { return i.id }

// Format prints the node's id and its cluster's name, with any verb.
func (i *Identity) Format(f fmt.State, _ rune) {
	_, _ = fmt.Fprintf(f, "node %s of cluster %s", i.id, i.name)
}

// configs are the configurations for both ends of TLS.
func (c *Cluster) configs(certificate tls.Certificate) (client, server *tls.Config) {
	trusted := x509.NewCertPool()
	trusted.AddCert(c.authority)
	client = &tls.Config{
		MinVersion:             tls.VersionTLS13,
		Certificates:           []tls.Certificate{certificate},
		RootCAs:                trusted,
		ServerName:             serverName,
		NextProtos:             []string{protocol},
		Time:                   validAt,
		SessionTicketsDisabled: true, // each connection shows the certificate anew
		// A block is useless until all of it has come, so small records at the beginning
		// of a connection gain nothing. Also, records must be able to count them.
		DynamicRecordSizingDisabled: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			_, err := PeerID(s)
			return err
		},
	}
	server = client.Clone()
	server.RootCAs, server.ServerName = nil, ""
	server.ClientCAs, server.ClientAuth = trusted, tls.RequireAndVerifyClientCert
	return client, server
}

// ClientConfig is for TLS with a node of the same cluster, without the greeting that
// Client sends. It is nil if nothing is encrypted. Its protocol is "hearth/1"; to speak
// another, set NextProtos. The result belongs to the caller.
func (i *Identity) ClientConfig() *tls.Config { return i.client.Clone() }

// ServerConfig is for the other end of ClientConfig.
func (i *Identity) ServerConfig() *tls.Config { return i.server.Clone() }

// PeerID is the node id in the peer's certificate, which a configuration made here has
// verified against the authority. It is an error if no node made the certificate.
func PeerID(s tls.ConnectionState) (string, error) {
	if len(s.VerifiedChains) == 0 {
		return "", errNodeID
	}
	leaf := s.VerifiedChains[0][0]
	if !leaf.NotBefore.Equal(validFrom()) || !leaf.NotAfter.Equal(validUntil()) {
		return "", errDates
	}
	if len(leaf.URIs) != 1 || leaf.URIs[0].Scheme != uriScheme {
		return "", errNodeID
	}
	id, ok := strings.CutPrefix(leaf.URIs[0].Opaque, uriPrefix)
	if !ok || checkName(id) != nil {
		return "", errNodeID
	}
	return id, nil
}
