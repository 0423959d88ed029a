package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hearthfs/hearth/peer/secret"
)

// told returns the problems of a configuration, one on each line.
func told(r Membership) string {
	var all []string
	for key, err := range RingProblems(r) {
		all = append(all, key+" | "+err.Error())
	}
	return strings.Join(all, "\n")
}

// keyFile returns the name of a file with a valid key.
func keyFile(t *testing.T, mode os.FileMode) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(name, []byte(secret.Generate()), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(name, mode); err != nil { // past the umask
		t.Fatal(err)
	}
	return name
}

func TestWhatCanBeMeantIsNotRefused(t *testing.T) {
	// These are valid: no ring, a first node, and one that joins it by name, by address or by network, and
	// loopback without a key.
	t.Setenv(KeyVariable, "")
	key := keyFile(t, 0o640)
	for _, r := range []Membership{
		{}, {Name: "gpu-1", Zone: "a"},
		{Listen: "127.0.0.1"}, {Listen: "127.0.0.1:7950"}, {Listen: "[::1]:7946"}, {Listen: "127.0.0.0/8"}, {Listen: "eth0"},
		{Join: []string{"127.0.0.1:7946"}}, {Join: []string{"head.cluster"}, Plain: true},
		{Listen: "10.0.0.5:7946", KeyFile: key}, {Listen: "10.0.0.0/8", Join: []string{"head", "10.0.0.5", "[fd00::1]:7946"}, KeyFile: key, Zone: "rack 7", Cluster: "prod", Name: strings.Repeat("n", 255)},
	} {
		if got := told(r); got != "" {
			t.Errorf("%+v:\n%s", r, got)
		}
	}
	t.Setenv(KeyVariable, secret.Generate())
	if got := told(Membership{Listen: "10.0.0.5"}); got != "" {
		t.Errorf("a key of the environment:\n%s", got)
	}
	if _, ok, err := ClusterKey(Membership{}); !ok || err != nil {
		t.Errorf("a key of the environment: %v, %v", ok, err)
	}
}

func TestAVolumesClusterFollowsFromNameAndKey(t *testing.T) {
	// The cluster of a volume is the same for one name and one key, wherever the key comes from, and another for another
	// of either. Without a key the name alone tells. Whether the node is in a ring is no matter.
	t.Setenv(KeyVariable, "")
	key, other := keyFile(t, 0o600), keyFile(t, 0o600)
	seen := map[[16]byte]Membership{}
	for _, r := range []Membership{{}, {Cluster: "prod"}, {KeyFile: key}, {Cluster: "prod", KeyFile: key}, {KeyFile: other}} {
		id, err := ClusterID(r)
		if before, same := seen[id]; err != nil || same {
			t.Errorf("%+v and %+v are one cluster, %v", before, r, err)
		}
		seen[id] = r
	}
	text, err := os.ReadFile(key)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(KeyVariable, string(text))
	for _, r := range []Membership{{}, {Cluster: "hearth", Listen: "10.0.0.5:7946"}} {
		if id, err := ClusterID(r); err != nil || seen[id].KeyFile != key || seen[id].Cluster != "" {
			t.Errorf("%+v with the key in the environment: the cluster of %+v, %v", r, seen[id], err)
		}
	}
	for want, r := range map[string]Membership{"cluster.key_file: ": {KeyFile: "/none"}, "cluster.name: ": {Cluster: "a b"}} {
		if _, err := ClusterID(r); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%+v: %v", r, err)
		}
	}
}

func TestWhatCannotBeMeantIsRefused(t *testing.T) {
	// Each problem is reported with its key and its cure. A wrong key is not also reported as missing.
	t.Setenv(KeyVariable, "")
	key, open := keyFile(t, 0o600), keyFile(t, 0o644)
	long := strings.Repeat("x", 200)
	for want, r := range map[string]Membership{
		"cluster.name | cluster.name: this node is in no ring: say where it listens (node.listen)":                                            {Cluster: "prod"},
		"cluster.key_file | cluster.key_file: this node is in no ring":                                                                        {KeyFile: key},
		"cluster.encryption | cluster.encryption: this node is in no ring":                                                                    {Plain: true},
		"cluster.key_file | cluster.key_file: read the cluster key: open /none: no such file or directory (make one: hearth ring key > /none": {Listen: "10.0.0.5", KeyFile: "/none"},
		"so that others may read or change it (chmod 600 ":                                                                                    {Listen: "10.0.0.5", KeyFile: open},
		"node.listen | node.listen: 10.0.0.5:7946 without a cluster key: anybody who reaches this node could join":                            {Listen: "10.0.0.5:7946"},
		"node.listen | node.listen: 10.0.0.0/8:7946 without a cluster key":                                                                    {Listen: "10.0.0.0/8:7946"},
		"node.listen | node.listen: fd00::1 without a cluster key":                                                                            {Listen: "fd00::1"},
		"join | join: 10.0.0.5:7946 without a cluster key":                                                                                    {Join: []string{"10.0.0.5:7946"}},
		`node.listen | node.listen: listen at "0.0.0.0": the others must be told one address`:                                                 {Listen: "0.0.0.0", KeyFile: key},
		`node.listen | node.listen: listen at "10.0.0.5:port": port "port" is no number`:                                                      {Listen: "10.0.0.5:port", KeyFile: key},
		`node.listen | node.listen: listen at "10.0.0.0/99": 10.0.0.0/99 is no CIDR such as 10.0.0.0/8`:                                       {Listen: "10.0.0.0/99", KeyFile: key},
		`node.listen | node.listen: listen at "0.0.0.0/0": 0.0.0.0/0 is every address`:                                                        {Listen: "0.0.0.0/0", KeyFile: key},
		`node.listen | node.listen: listen at "::/0": ::/0 is every address`:                                                                  {Listen: "::/0"},
		`join | join: seed "gpu-1:0": nobody listens at port 0`:                                                                               {Join: []string{"gpu-1:0"}, KeyFile: key},
		"node.listen | node.listen: port 65535 has none above it":                                                                             {Listen: "10.0.0.5:65535", KeyFile: key},
		`join | join: seed "10.0.0.0/8": expected host or host:port, not a network`:                                                           {Join: []string{"10.0.0.0/8"}, KeyFile: key},
		"join | join: 65 seeds: 64 at most":                                                                                                   {Join: strings.Split(strings.Repeat(",h", 65)[1:], ","), KeyFile: key},
		`node.name | node.name: the node's name, "a\nb", has characters that cannot be shown`:                                                 {Listen: "lo", Name: "a\nb"},
		"node.zone | node.zone: the zone has 300 bytes, at most 255 are possible":                                                             {Listen: "lo", Zone: strings.Repeat("z", 300)},
		`cluster.name | cluster.name: "our ring" is not 1 to 64 letters, digits, dots, dashes and underscores`:                                {Listen: "lo", Cluster: "our ring"},
		"node.name | node.name: the names of node, zone and cluster are ":                                                                     {Listen: "lo", Name: long, Zone: long + long[:50], Cluster: long[:64]},
	} {
		got := told(r)
		if !strings.Contains(got, want) || strings.Contains(got, "\n") {
			t.Errorf("%+v: want\n%s\ngot\n%s", r, want, got)
		}
	}
	t.Setenv(KeyVariable, "short")
	if got := told(Membership{Listen: "10.0.0.5"}); !strings.HasPrefix(got, "HEARTH_CLUSTER_KEY | HEARTH_CLUSTER_KEY: read the cluster key in $HEARTH_CLUSTER_KEY: ") || strings.Contains(got, "\n") {
		t.Errorf("a bad key of the environment:\n%s", got)
	}
}
