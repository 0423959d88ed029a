package ring

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/node/config"
	"github.com/hearthfs/hearth/peer/members"
	"github.com/hearthfs/hearth/peer/secret"
)

// elsewhere returns an interface of this machine whose first address is not loopback. It is empty if there is
// none.
func elsewhere(t *testing.T) string {
	all, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range all {
		if at, err := members.ResolveListen(i.Name, 1); err == nil && !at.Addr().IsLoopback() {
			return i.Name
		}
	}
	return ""
}

func TestWhatDoesNotGetBetterIsUsage(t *testing.T) {
	// A configuration that is not valid ends with the exit code of usage, after which no service starts again.
	// A name or an address that may be there the next time does not. An interface is one address once the node
	// is made.
	t.Setenv(config.KeyVariable, "")
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte(secret.Generate()), 0o600); err != nil {
		t.Fatal(err)
	}
	type told struct {
		config.Membership
		kind admin.Kind
		says string
	}
	cases := []told{
		{config.Membership{Listen: "10.0.0.0/99"}, admin.KindUsage, "is no CIDR"},
		{config.Membership{Listen: "0.0.0.0/0", KeyFile: key}, admin.KindUsage, "is every address"},
		{config.Membership{Listen: "127.0.0.1", Join: []string{"a:0"}}, admin.KindUsage, "port 0"},
		{config.Membership{Listen: "127.0.0.1", KeyFile: key + "s"}, admin.KindUsage, "cluster.key_file"},
		{config.Membership{Listen: "127.0.0.1", KeyFile: key, Cluster: "a b"}, admin.KindUsage, "cluster.name"},
		{config.Membership{Listen: "none0", KeyFile: key}, admin.KindFailed, "no interface has that name"},
		{config.Membership{Listen: "203.0.113.1", KeyFile: key}, admin.KindFailed, "no such address"},
		{config.Membership{Listen: "203.0.113.0/24", KeyFile: key}, admin.KindFailed, "no address of this machine"},
		{config.Membership{Join: []string{"no name"}, KeyFile: key}, admin.KindFailed, "find the address by which"},
	}
	if name := elsewhere(t); name != "" {
		cases = append(cases, told{config.Membership{Listen: name}, admin.KindUsage, "without a cluster key"})
	}
	for _, c := range cases {
		if _, err := New(t.Context(), Options{Membership: c.Membership}, ""); admin.KindOf(err) != c.kind || err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %s, %v", c.Membership, admin.KindOf(err), err)
		}
	}
	if _, err := New(t.Context(), Options{}, "id"); admin.KindOf(err) != admin.KindUsage {
		t.Error(err)
	}
	r, err := New(t.Context(), Options{Membership: config.Membership{Listen: "lo:7950"}}, "")
	if err != nil {
		t.Fatal(err)
	}
	if at, err := netip.ParseAddrPort(r.Members(0, "").Listen); err != nil || !at.Addr().IsLoopback() || at.Port() != 7950 {
		t.Errorf("%v, %v", at, err)
	}
	itself := func(_ context.Context, host, _ string) ([]netip.Addr, error) {
		if host == "gone" {
			return nil, errors.New("no such host")
		}
		return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
	}
	for join, want := range map[string]admin.Kind{"gpu-1": admin.KindUsage, "gpu-1,gone": admin.KindFailed} {
		if _, err := towards(t.Context(), strings.Split(join, ","), itself); admin.KindOf(err) != want {
			t.Errorf("%s: %s, %v", join, admin.KindOf(err), err)
		}
	}
}

func TestWhatARingDoesNotTakeIsRefused(t *testing.T) {
	// A node that is refused, or whose port is taken, gets the kind refused. One that stopped waiting gets
	// timeout, and all else failed.
	_, failed := net.Listen("tcp", "203.0.113.1:7946") // not an address of this machine
	for _, c := range []struct {
		err  error
		kind admin.Kind
	}{
		{fmt.Errorf("%w: another key", members.ErrRefused), admin.KindRefused},
		{fmt.Errorf("gossip: %w", members.ErrPort), admin.KindRefused},
		{fmt.Errorf("wait: %w", context.DeadlineExceeded), admin.KindTimeout},
		{fmt.Errorf("listen: %w", failed), admin.KindFailed},
		{errors.New("something else"), admin.KindFailed},
	} {
		if err := Unjoined(c.err); admin.KindOf(err) != c.kind || !strings.HasPrefix(err.Error(), "join the ring: ") || !errors.Is(err, c.err) {
			t.Errorf("%v: %s", err, admin.KindOf(err))
		}
	}
}
