package config

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"os"
	"strings"

	"github.com/hearthfs/hearth/peer/members"
	"github.com/hearthfs/hearth/peer/secret"
	"github.com/hearthfs/hearth/volume"
)

// This file finds settings of a ring that are not valid, before anything listens: names, addresses, what
// gossip can carry of them, and the cluster key. The key's file is the only thing outside of the settings
// that it reads.
//
// The parts of the ring check themselves (peer/members, peer/secret). Here each setting is put alone into a
// configuration that is valid otherwise. So an error has the name of its key. What is wrong only with
// several settings together is checked last.

// ClusterKey returns the cluster key that a node was given, by file or by the environment. false means that
// there is none.
func ClusterKey(r Membership) (secret.Key, bool, error) {
	if r.KeyFile != "" {
		k, err := secret.ReadFile(r.KeyFile)
		return k, err == nil, err
	}
	if os.Getenv(KeyVariable) == "" {
		return secret.Key{}, false, nil
	}
	k, err := secret.ReadEnv(KeyVariable)
	return k, err == nil, err
}

// ClusterID returns the id by which volumes know the cluster of a node: that of its name and key. A node that was
// given neither has the id of all such nodes.
func ClusterID(r Membership) (id [16]byte, err error) {
	name, fingerprint := cmp.Or(r.Cluster, members.DefaultCluster), ""
	key, keyed, err := ClusterKey(r)
	if err != nil && r.KeyFile != "" {
		err = fmt.Errorf("cluster.key_file: %w", err)
	}
	if err != nil {
		return id, err
	}
	if keyed {
		c, err := key.Cluster(name)
		if err != nil {
			return id, fmt.Errorf("cluster.name: %w", err)
		}
		fingerprint = c.Fingerprint()
	}
	return volume.Cluster(name, fingerprint), nil
}

// RingProblems returns the keys whose settings are not valid, as the file names them, each with what is
// wrong and the cure.
func RingProblems(r Membership) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for _, p := range problems(r) {
			if !yield(p.key, p.err) {
				return
			}
		}
	}
}

type problem struct {
	key string
	err error
}

func problems(r Membership) (all []problem) {
	add := func(key string, err error) {
		if err != nil {
			all = append(all, problem{key, fmt.Errorf("%s: %w", key, err)})
		}
	}
	if !r.On() {
		for _, k := range []struct {
			key string
			set bool
		}{{"cluster.name", r.Cluster != ""}, {"cluster.key_file", r.KeyFile != ""}, {"cluster.encryption", r.Plain}} {
			if k.set {
				add(k.key, errAlone)
			}
		}
		return all
	}
	_, keyed, err := ClusterKey(r)
	if errors.Is(err, os.ErrNotExist) {
		err = fmt.Errorf("%w (make one: hearth ring key > %s, mode 0600, the same for all nodes)", err, r.KeyFile)
	}
	switch {
	case err != nil && r.KeyFile == "":
		add(KeyVariable, err)
	default:
		add("cluster.key_file", err)
	}
	well := members.Config{ID: members.ID{1}, Name: "n", Listen: "127.0.0.1", Protocol: members.Protocol{Speaks: 1}, Key: make([]byte, members.KeySize),
		Data: netip.AddrPortFrom(netip.IPv6LinkLocalAllNodes(), 65535)} // as many bytes of metadata as any address takes
	alone := func(key string, change func(c *members.Config)) {
		c := well
		change(&c)
		add(key, c.Check())
	}
	alone("node.name", func(c *members.Config) { c.Name = r.Name })
	alone("node.zone", func(c *members.Config) { c.Zone = r.Zone })
	add("cluster.name", clusterName(r.Cluster))
	alone("join", func(c *members.Config) { c.Seeds = r.Join })
	if r.Listen != "" {
		alone("node.listen", func(c *members.Config) { c.Listen = r.Listen })
		add("node.listen", portAbove(r.Listen))
	}
	if !keyed && err == nil { // a key that cannot be read is not missing
		add("node.listen", strangers(r.Listen))
		if r.Listen == "" {
			add("join", strangers(r.Join...))
		}
	}
	if len(all) == 0 {
		alone("node.name", func(c *members.Config) { c.Name, c.Zone, c.Cluster = r.Name, r.Zone, r.Cluster })
	}
	return all
}

// errAlone is the error of a cluster setting on a node that is in no ring.
var errAlone = errors.New("this node is in no ring: say where it listens (node.listen), and whom it joins (join), which the first node may leave out; or take this setting away")

// clusterName refuses a name for which no keys can be derived. It tries with a key of its own, since the
// configured one may be a pass phrase, which takes time.
func clusterName(name string) error {
	if name == "" {
		return nil
	}
	k, err := secret.Parse(secret.Generate())
	if err == nil {
		_, err = k.Cluster(name)
	}
	return errors.Unwrap(err) // without the outer "derive keys", which helps nobody
}

// portAbove refuses the one port that has none above it for peers' reads.
func portAbove(listen string) error {
	if strings.HasSuffix(listen, ":65535") {
		return errors.New("port 65535 has none above it, where peers' reads are answered: choose another")
	}
	return nil
}

// strangers refuses, without a key, addresses and networks that others can reach. The address of an
// interface or of a name is checked when the node starts. A node that joins a node elsewhere listens at no
// loopback address.
func strangers(at ...string) error {
	for _, text := range at {
		if a, ok := address(text); ok && !a.IsLoopback() && !a.IsUnspecified() { // the wildcard is refused for another reason
			return fmt.Errorf("%s without a cluster key: anybody who reaches this node could join. Give all nodes the same key (hearth ring key > FILE, cluster.key_file: FILE, or $%s), or listen at 127.0.0.1", text, KeyVariable)
		}
	}
	return nil
}

// address returns the address in the text of an address or a network, with a port or without.
func address(text string) (netip.Addr, bool) {
	if p, err := netip.ParseAddrPort(text); err == nil {
		return p.Addr().Unmap(), true
	}
	for _, s := range []string{text, text[:max(0, strings.LastIndexByte(text, ':'))]} {
		s = strings.TrimSuffix(strings.TrimPrefix(s, "["), "]")
		if a, err := netip.ParseAddr(s); err == nil {
			return a.Unmap(), true
		}
		if p, err := netip.ParsePrefix(s); err == nil {
			return p.Addr().Unmap(), true
		}
	}
	return netip.Addr{}, false
}
