// Package secret is what follows from a cluster key: who belongs to a cluster, and who talks.
//
// Everything is derived from the key and the cluster's name by HKDF-SHA256, each value under a
// label of its own. So the same key under another name is another cluster. Three values are derived:
// the seed of an Ed25519 certificate authority, the gossip key, and the key for authentication
// without encryption. A pass phrase goes through PBKDF2 first, so that each guess costs something.
// The authority's certificate and its private key are the same on all nodes: each node makes a key
// pair and signs its own certificate, with its node id in it. The key is the credential. All
// certificates are valid from 2000 to 2100, and are verified as of 2050, so that no node's clock
// matters.
//
// A connection begins with a greeting from each side: a magic, a version, whether the node has a
// key and encrypts, and a hash of the cluster's name. Nothing is negotiated. A difference is an
// error on both sides that says what differs. The greetings are trusted for nothing else. Then
//
//	encrypted  TLS 1.3, each side's certificate verified against the authority alone;
//	           the server says welcome, for a client of TLS 1.3 is done before
//	           the server has looked at its certificate
//	plain      client: HMAC(role, name, both greetings)   greetings have nonces and ids,
//	           server: the same for its role              and the server proves last:
//	           then plain bytes                           strangers get no proof from it
//	keyless    nothing more, and on loopback only
//
// The plain form keeps strangers out of an isolated network. It does not protect the bytes that
// follow from an attacker who can change packets. Greetings tell anybody who asks the hash of the
// cluster's name and, in the plain form, the node's id. A server shows its certificate to every
// client, and a client its plain proof to every server. Guesses at the key can be tried on both; so
// a key has minimum lengths.
package secret

import (
	"crypto"
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base32"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/url"
	"strings"
	"time"
)

// The labels under which values are derived. A change of one makes every cluster another
// one.
const (
	labelCluster     = "hearth 1 cluster"
	labelAuthority   = "hearth 1 certificate authority"
	labelGossip      = "hearth 1 gossip"
	labelPlain       = "hearth 1 plain connections"
	labelFingerprint = "hearth 1 fingerprint"
	labelName        = "hearth 1 cluster name"
)

const (
	derivedBytes = 32
	// phraseRounds of PBKDF2 are what OWASP asks for with SHA-256. They take a node 0.2
	// s, once.
	phraseRounds = 600_000
	// fingerprintBytes make 16 characters to compare. They decide nothing.
	fingerprintBytes = 10
	// maxName bounds the name of a cluster or a node, in bytes. Both travel in greetings
	// and certificates.
	maxName = 64
	// serverName is in every node's certificate, so that TLS verifies as usual, without
	// knowing hosts.
	serverName = "node.hearth.internal"
	// uriPrefix stands before the node id in a certificate.
	uriPrefix = "node:"
	uriScheme = "hearth"
	// protocol is announced in TLS, so that no other server with the same certificate is
	// taken for a node.
	protocol = "hearth/1"
)

var errNoKey = errors.New("there is no cluster key")

// Cluster is a key together with a cluster's name.
type Cluster struct {
	name        string
	fingerprint string
	keys        func() keys // as in Key
	authority   *x509.Certificate
}

type keys struct {
	authority     ed25519.PrivateKey
	gossip, plain []byte
}

// Cluster derives what all nodes of the cluster with that name share. A name has 1 to 64
// ASCII letters, digits, dots, dashes and underscores. With a pass phrase it takes about
// 0.2 s.
func (k Key) Cluster(name string) (*Cluster, error) {
	c, err := k.cluster(name)
	if err != nil {
		return nil, fmt.Errorf("derive the keys of cluster %q: %w", name, err)
	}
	return c, nil
}

func (k Key) cluster(name string) (*Cluster, error) {
	if k.of == nil {
		return nil, errNoKey
	}
	if err := checkName(name); err != nil {
		return nil, err
	}
	salt := sha256.Sum256([]byte(labelCluster + "\x00" + name))
	m := k.of()
	secret := m.bytes
	if m.phrase {
		var err error
		if secret, err = pbkdf2.Key(sha256.New, string(secret), salt[:], phraseRounds, derivedBytes); err != nil {
			return nil, err
		}
	}
	root, err := hkdf.Extract(sha256.New, secret, salt[:])
	if err != nil {
		return nil, err
	}
	seed, err := hkdf.Expand(sha256.New, root, labelAuthority, ed25519.SeedSize)
	if err != nil {
		return nil, err
	}
	gossip, err := hkdf.Expand(sha256.New, root, labelGossip, derivedBytes)
	if err != nil {
		return nil, err
	}
	plain, err := hkdf.Expand(sha256.New, root, labelPlain, derivedBytes)
	if err != nil {
		return nil, err
	}
	all := keys{authority: ed25519.NewKeyFromSeed(seed), gossip: gossip, plain: plain}
	c := &Cluster{name: name, keys: func() keys { return all }}
	c.fingerprint = fingerprint(c.public())
	c.authority, err = c.signAuthority()
	return c, err
}

// checkName is for clusters and nodes. Letters beyond ASCII have several forms that look
// alike, which would make several clusters.
func checkName(name string) error {
	odd := func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("._-", r)
	}
	if name == "" || len(name) > maxName || strings.ContainsFunc(name, odd) {
		return fmt.Errorf("%q is not 1 to %d letters, digits, dots, dashes and underscores", name, maxName)
	}
	return nil
}

func (c *Cluster) public() ed25519.PublicKey {
	return c.keys().authority.Public().(ed25519.PublicKey)
}

// fingerprint is computed from the public key, which also verifies certificates. So a
// guess at the key costs as much as with a certificate.
func fingerprint(public ed25519.PublicKey) string {
	sum := sha256.Sum256(append([]byte(labelFingerprint+"\x00"), public...))
	text := strings.ToLower(base32.StdEncoding.EncodeToString(sum[:fingerprintBytes]))
	return text[:4] + "-" + text[4:8] + "-" + text[8:12] + "-" + text[12:]
}

// Format prints name and fingerprint, with any verb.
func (c *Cluster) Format(f fmt.State, _ rune) {
	_, _ = fmt.Fprintf(f, "cluster %s (%s)", c.name, c.fingerprint)
}

// Name is the cluster's name.
func (c *Cluster) Name() string { return c.name }

// Fingerprint is the same on two nodes if key and name are. It may be shown to anybody.
func (c *Cluster) Fingerprint() string { return c.fingerprint }

// GossipKey is for memberlist's keyring, 32 bytes. It belongs to the caller.
func (c *Cluster) GossipKey() []byte { return append([]byte(nil), c.keys().gossip...) }

// A certificate is valid as long as anybody may use Hearth, and is verified as of the
// middle of that time.
func validFrom() time.Time  { return time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) }
func validUntil() time.Time { return time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC) }
func validAt() time.Time    { return time.Date(2050, 1, 1, 0, 0, 0, 0, time.UTC) }

// signAuthority makes the authority's certificate. Nothing in it is random.
func (c *Cluster) signAuthority() (*x509.Certificate, error) {
	id := sha256.Sum256(c.public())
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "hearth cluster"},
		NotBefore:             validFrom(),
		NotAfter:              validUntil(),
		KeyUsage:              x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
		SubjectKeyId:          id[:20], // what the library would choose has changed before
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, c.public(), c.keys().authority)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// sign makes a node's certificate, and the key for it.
func (c *Cluster) sign(template *x509.Certificate) (tls.Certificate, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, c.authority, public, c.keys().authority)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: signer{public, private.Sign}}, nil
}

// signer is a private key that is not printed with the tls.Config that has it.
type signer struct {
	public crypto.PublicKey
	sign   func(io.Reader, []byte, crypto.SignerOpts) ([]byte, error)
}

// Public is crypto.Signer's.
func (s signer) Public() crypto.PublicKey { return s.public }

// Sign is crypto.Signer's.
func (s signer) Sign(random io.Reader, digest []byte, o crypto.SignerOpts) ([]byte, error) {
	return s.sign(random, digest, o)
}

func nodeTemplate(id string) *x509.Certificate {
	return &x509.Certificate{
		Subject:     pkix.Name{CommonName: "hearth node"},
		NotBefore:   validFrom(),
		NotAfter:    validUntil(),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		DNSNames:    []string{serverName},
		URIs:        []*url.URL{{Scheme: uriScheme, Opaque: uriPrefix + id}},
	}
}
