package secret

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func cluster(t testing.TB, text, name string) *Cluster {
	t.Helper()
	k, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	c, err := k.Cluster(name)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func identity(t testing.TB, c *Cluster, id string, o Options) *Identity {
	t.Helper()
	i, err := c.Identity(id, o)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func TestDerivationStays(t *testing.T) {
	// A version that derives anything else from a key does not find the nodes of other
	// versions. The figures were made with Python's hashlib and hmac, and OpenSSL; the
	// authority's certificate was not.
	for _, x := range []struct{ key, name, fingerprint, gossip, plain, authority string }{
		{keyHex, "test", "hkv4-tyof-avwu-kug5", "00d92fa096e7a6d73b955ec35749e7dc545b52c572102dcc22b20aad5e7ddc3d",
			"6e50c0391a2fd176509fe7aedf55ffd8cceff8d20c5d0a20748a5537ce78772b", "2d8f13e56fd9170fb77b59cc8978350a4d911ab336c003db5a52b2eacb3b3691"},
		{keyHex, "other", "667k-d7bd-7j7y-dek4", "d2423b6f206bb846c24528694b9ba3510080801be58d32296762e4d4a06cf5f3",
			"d667aaa3569373f102ff8a458e37a4574f7d121dd301633cd0929b496161a39a", "930e4a54516a091f81f6850c3cdd7d120379595cdd803349fe264b812bbcdb0b"},
		{phrase, "test", "drhf-e3lb-nea5-h7om", "789c0fe2b2747014d66bbae817bd53ca4960589b619dbefb72a22354a4c4cfa6",
			"7b7a9d433daf78467e5dd67cf8f64f5f69e468cb6e3ccc30876947defcf4773d", "b6fd34935d6a37fe45886c89dc3e3a978f324292b8ca2be214f4fc7893b9e09f"},
	} {
		c := cluster(t, x.key, x.name)
		sum := sha256.Sum256(c.authority.Raw)
		for what, got := range map[string][2]string{
			"fingerprint": {c.Fingerprint(), x.fingerprint},
			"gossip key":  {hex.EncodeToString(c.GossipKey()), x.gossip},
			"plain key":   {hex.EncodeToString(c.keys().plain), x.plain},
			"authority":   {hex.EncodeToString(sum[:]), x.authority},
		} {
			if got[0] != got[1] {
				t.Errorf("%.8s... %s: the %s is %s", x.key, x.name, what, got[0])
			}
		}
	}
}

func TestOtherKeyOrNameIsOtherCluster(t *testing.T) {
	// No derived value is the same for two keys, two names or two uses.
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[A-Za-z0-9._-]{1,64}`)
		key := rapid.SliceOfN(rapid.Byte(), 32, 64)
		derive := func() (*Cluster, string) {
			k, n := key.Draw(t, "key"), name.Draw(t, "name")
			c, err := newKey(material{bytes: k}).Cluster(n)
			if err != nil {
				t.Fatal(err)
			}
			return c, string(k) + "/" + n
		}
		a, inputA := derive()
		b, inputB := derive()
		same := inputA == inputB
		if bytes.Equal(a.keys().gossip, b.keys().gossip) != same || bytes.Equal(a.keys().plain, b.keys().plain) != same ||
			(a.Fingerprint() == b.Fingerprint()) != same || a.authority.Equal(b.authority) != same {
			t.Fatal("two clusters share what is derived")
		}
		if bytes.Equal(a.keys().gossip, a.keys().plain) || bytes.Equal(a.keys().gossip, a.keys().authority.Seed()) || bytes.Equal(a.keys().plain, a.keys().authority.Seed()) {
			t.Fatal("two uses share a key")
		}
	})
}

func TestNames(t *testing.T) {
	// A name that could be mistaken for another, or does not fit, is refused. So is a
	// missing key.
	k, err := Parse(keyHex)
	if err != nil {
		t.Fatal(err)
	}
	for name, good := range map[string]bool{"a": true, "Prod-1.eu_west": true, strings.Repeat("x", 64): true,
		"": false, strings.Repeat("x", 65): false, "a b": false, "größe": false, "a/b": false, "a\x00": false} {
		c, err := k.Cluster(name)
		if good != (err == nil) {
			t.Errorf("cluster %q: %v", name, err)
		}
		if good && c.Name() != name {
			t.Errorf("%q is named %q", name, c.Name())
		}
		i, err := cluster(t, keyHex, "test").Identity(name, Options{})
		if good != (err == nil) || good && i.ID() != name {
			t.Errorf("node %q: %v", name, err)
		}
		if _, err := Keyless("test", name); good != (err == nil) {
			t.Errorf("node without key %q: %v", name, err)
		}
	}
	if _, err := (Key{}).Cluster("test"); err == nil {
		t.Error("no key makes a cluster")
	}
}

func TestGossipKeyIsTheCallers(t *testing.T) {
	// A caller that overwrites the key that it got changes nobody else's.
	c := cluster(t, keyHex, "test")
	clear(c.GossipKey())
	if bytes.Equal(c.GossipKey(), make([]byte, derivedBytes)) {
		t.Error("the key is shared")
	}
}

func TestConfigsWithoutGreeting(t *testing.T) {
	// TLS by the two configurations alone names the peer, too.
	c := cluster(t, keyHex, "test")
	a, b := identity(t, c, "a", Options{}), identity(t, c, "b", Options{})
	near, far := pair(t)
	client, server := tls.Client(near, a.ClientConfig()), tls.Server(far, b.ServerConfig())
	done := make(chan error, 1)
	go func() { done <- server.Handshake() }()
	if err := client.Handshake(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	atClient, err1 := PeerID(client.ConnectionState())
	atServer, err2 := PeerID(server.ConnectionState())
	if atClient != "b" || atServer != "a" {
		t.Errorf("%q %v, %q %v", atClient, err1, atServer, err2)
	}
	if _, err := PeerID(tls.ConnectionState{}); err == nil {
		t.Error("who showed no certificate has an id")
	}
	plain := identity(t, c, "c", Options{Plain: true})
	if plain.ClientConfig() != nil || plain.ServerConfig() != nil {
		t.Error("a node that does not encrypt has a configuration for it")
	}
}
