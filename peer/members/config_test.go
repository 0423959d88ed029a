package members

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestDonatedBytesGoBySteps(t *testing.T) {
	// Steps are 64 MiB below 64 GiB and 1 GiB from there on, always rounded down.
	for _, c := range []struct{ in, want int64 }{
		{-1, 0}, {0, 0}, {64<<20 - 1, 0}, {64 << 20, 64 << 20}, {1<<30 + 1, 1 << 30}, {64<<30 - 1, 64<<30 - 64<<20},
		{64 << 30, 64 << 30}, {65<<30 - 1, 64 << 30}, {5<<40 + 12345, 5 << 40},
	} {
		if got := Donated(c.in); got != c.want {
			t.Errorf("%d: %d, not %d", c.in, got, c.want)
		}
	}
}

func TestMetadataComeBack(t *testing.T) {
	// What any allowed configuration says of its node is read as it was written, and
	// fits. What a later version appends is skipped.
	rapid.Check(t, func(t *rapid.T) {
		text := func(what string) string {
			return rapid.StringMatching(`[a-zäöü0-9. -]{0,80}`).Draw(t, what)
		}
		addr := netip.AddrFrom4([4]byte{10, 1, 2, rapid.Byte().Draw(t, "v4")})
		if rapid.Bool().Draw(t, "six") {
			addr = netip.MustParseAddr("fd00::7")
		}
		speaks := rapid.Uint8Range(1, 255).Draw(t, "speaks")
		m := meta{State: State(rapid.Uint8Range(0, 2).Draw(t, "state")),
			Protocol: Protocol{Speaks: speaks, Oldest: rapid.Uint8Range(1, speaks).Draw(t, "oldest")},
			Donated:  Donated(rapid.Int64Range(0, maxDonated).Draw(t, "donated")),
			Data:     netip.AddrPortFrom(addr, rapid.Uint16Min(1).Draw(t, "port")),
			Name:     text("name"), Zone: text("zone"), Cluster: text("cluster")}
		b := m.encode()
		if len(b) > maxMeta {
			t.Skip("Check refuses it")
		}
		got, err := decodeMeta(b)
		if err != nil || got != m {
			t.Fatalf("%+v came back as %+v, %v", m, got, err)
		}
		if got, err := decodeMeta(append(b, 7)); len(b) < maxMeta && (err != nil || got != m) {
			t.Fatalf("with more behind it: %+v, %v", got, err)
		}
		for i := range b {
			if _, err := decodeMeta(b[:i]); err == nil {
				t.Fatalf("%d of %d bytes were taken for all", i, len(b))
			}
		}
	})
}

func testMeta() meta {
	return meta{State: Active, Protocol: Protocol{Speaks: 2, Oldest: 1}, Donated: 1 << 40,
		Data: netip.MustParseAddrPort("10.0.0.7:7947"), Name: "gpu-17.example.org", Zone: "rack 7", Cluster: "hearth"}
}

func FuzzMetadata(f *testing.F) {
	whole := testMeta().encode()
	f.Add(whole)
	f.Add(whole[:len(whole)-1])
	f.Add(append([]byte{2}, whole[1:]...))
	f.Add(bytes.Repeat([]byte{255}, maxMeta))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		// Any bytes are refused, or mean something that is written as the same bytes.
		m, err := decodeMeta(b)
		if err != nil {
			return
		}
		again, err := decodeMeta(m.encode())
		if err != nil || again != m {
			t.Fatalf("%+v, then %+v, %v", m, again, err)
		}
	})
}

func TestNewerMetadataAreNamed(t *testing.T) {
	// A node that meets a later format reports that, not damage.
	b := testMeta().encode()
	b[0] = 9
	if _, err := decodeMeta(b); err == nil || !strings.Contains(err.Error(), "format 9") {
		t.Error(err)
	}
}

func TestCheck(t *testing.T) {
	// Each mistake has an error that names it and its cure. All are reported at once.
	long := strings.Repeat("x", 200)
	for _, c := range []struct {
		name   string
		spoil  func(*Config)
		expect string // "" means that it is right
	}{
		{"right", func(*Config) {}, ""},
		{"host name", func(c *Config) { c.Name = "" }, ""},
		{"seeds", func(c *Config) { c.Seeds = []string{"a", "a:1", "10.0.0.1", "[::1]:7", "::1", "[::1]"} }, ""},
		{"interface", func(c *Config) { c.Listen = "eth0" }, ""},
		{"networks", func(c *Config) { c.Listen = "[fd00::/8]:7946" }, ""},
		{"keyed", func(c *Config) { c.Listen, c.Key = "10.0.0.1", make([]byte, KeySize) }, ""},
		{"no id", func(c *Config) { c.ID = ID{} }, "node id is empty"},
		{"odd name", func(c *Config) { c.Name = "a\x1b[1m" }, "cannot be shown"},
		{"one long text", func(c *Config) { c.Zone = long + long }, "the zone has 400 bytes, at most 255"},
		{"long texts", func(c *Config) { c.Name, c.Zone, c.Cluster = long, long, long }, "bytes too long together"},
		{"no protocol", func(c *Config) { c.Protocol = Protocol{} }, "protocol versions"},
		{"protocol", func(c *Config) { c.Protocol = Protocol{1, 2} }, "protocol versions 2 to 1"},
		{"no data address", func(c *Config) { c.Data = netip.AddrPort{} }, "data address"},
		{"wildcard", func(c *Config) { c.Data = netip.MustParseAddrPort("0.0.0.0:1") }, "data address 0.0.0.0:1"},
		{"donated", func(c *Config) { c.Donated = -1 }, "donated bytes"},
		{"seed", func(c *Config) { c.Seeds = []string{"a:b"} }, `port "b"`},
		{"no port of a seed", func(c *Config) { c.Seeds = []string{"a:0"} }, "nobody listens at port 0"},
		{"network as seed", func(c *Config) { c.Seeds = []string{"10.0.0.0/8"} }, "not a network"},
		{"many seeds", func(c *Config) { c.Seeds = strings.Split(strings.Repeat("a,", maxSeeds)+"a", ",") }, "65 seeds"},
		{"short key", func(c *Config) { c.Key = []byte("secret") }, "6 bytes, not 32"},
		{"no key", func(c *Config) { c.Listen = "10.0.0.1:7946" }, "same cluster key (hearth ring key > FILE, cluster.key_file: FILE)"},
		{"any address", func(c *Config) { c.Listen, c.Key = "0.0.0.0:7946", make([]byte, KeySize) }, "one address"},
		{"no network", func(c *Config) { c.Listen = "10.0.0.0/99" }, "10.0.0.0/99 is no CIDR such as 10.0.0.0/8"},
		{"any network", func(c *Config) { c.Listen, c.Key = "0.0.0.0/0:7946", make([]byte, KeySize) }, "the others must be told one address"},
		{"no listen", func(c *Config) { c.Listen = "" }, "listen at"},
	} {
		cfg, _ := config(t, "a")
		c.spoil(&cfg)
		err := cfg.Check()
		if c.expect == "" && err != nil || c.expect != "" && (err == nil || !strings.Contains(err.Error(), c.expect)) {
			t.Errorf("%s: %v", c.name, err)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the key is shown: %v", c.name, err)
		}
	}
	if err := (Config{}).Check(); err == nil || strings.Count(err.Error(), "\n") < 2 {
		t.Errorf("several mistakes: %v", err)
	}
}

func TestResolveListen(t *testing.T) {
	// An address, an interface or a network becomes one address of this machine. If that
	// fails, the error lists what there is.
	a := netip.MustParseAddr
	there := []nic{{"lo", a("127.0.0.1")}, {"lo", a("::1")}, {"eth0", a("fe80::1")}, {"eth0", a("fd00::5")},
		{"eth0", a("10.1.2.3")}, {"eth0", a("10.1.2.4")}, {"ib0", a("192.168.7.1")}, {"wg0", a("fe80::2")}}
	for _, c := range []struct{ listen, want string }{
		{"10.1.2.4", "10.1.2.4:7946"}, {"10.1.2.3:1", "10.1.2.3:1"}, {"127.0.0.9:0", "127.0.0.9:0"}, {"[fd00::5]:9", "[fd00::5]:9"},
		{"eth0", "10.1.2.3:7946"}, {"ib0:99", "192.168.7.1:99"}, {"lo", "127.0.0.1:7946"},
		{"192.168.0.0/16", "192.168.7.1:7946"}, {"10.1.2.4/32:5", "10.1.2.4:5"}, {"[fd00::/8]:6", "[fd00::5]:6"}, {"fd00::/8", "[fd00::5]:7946"},
		{"10.9.9.9", "no such address; there are lo (127.0.0.1)"}, {"eth9", "no interface has that name"}, {"wg0", "no interface"},
		{"172.16.0.0/12", "no address of this machine lies within; there are lo"}, {"0.0.0.0", "one address"}, {"::", "one address"},
		{"10.0.0.0/99", "no CIDR"}, {"0.0.0.0/0", "0.0.0.0/0 is every address"}, {"[::/0]:7946", "::/0 is every address"}, {"10.0.0.0/0", "every address"},
		{"0.0.0.0/1", "10.1.2.3:7946"}, {"64.0.0.0/2", "no address of this machine lies within"}, {"127.0.0.0/8", "127.0.0.1:7946"}, {"::1/128", "[::1]:7946"}, {"::/1", "no address of this machine"}, {"eth0:x", `port "x"`}, {"", "expected host"}, {":7946", "expected host"},
	} {
		got, err := resolveListen(c.listen, DefaultPort, there)
		if err == nil && got.String() != c.want || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, %v", c.listen, got, err)
		}
	}
	if got, err := ResolveListen("127.0.0.0/8", 5); err != nil || got.String() != "127.0.0.1:5" {
		t.Errorf("this machine: %v, %v", got, err)
	}
	if _, err := resolveListen("eth0", 1, nil); err == nil || !strings.Contains(err.Error(), "there are none") {
		t.Error(err)
	}
}

func TestAnAddressWithoutAKeyIsRefusedThoughItsNameWasNot(t *testing.T) {
	// The network that was named holds an address that others reach, and there is no key.
	c, _ := config(t, "a")
	if err := c.mayListen(netip.MustParseAddr("192.0.2.1")); err == nil || !strings.Contains(err.Error(), "127.0.0.1") {
		t.Error(err)
	}
}

func testSnapshot(n int) *Snapshot {
	s := &Snapshot{}
	for i := range n {
		m := testMember(i)
		if i%2 == 1 {
			m.Health, m.HealthSince = Dead, time.Now().Add(-time.Duration(i)*time.Minute)
			s.Missing = append(s.Missing, m)
			continue
		}
		s.Members = append(s.Members, m)
	}
	return s
}

func TestTheLastKnownMembersComeBack(t *testing.T) {
	// What is written is read again, with ages, and bounded. A file that is cut anywhere
	// is damaged. A file of another cluster or format is ignored.
	dir := t.TempDir()
	self := testMember(0).ID
	k := knownOf(testSnapshot(8), self, "test")
	if err := k.save(dir); err != nil {
		t.Fatal(err)
	}
	got, err := loadKnown(dir, "test")
	if err != nil || len(got) != 7 {
		t.Fatalf("%v, %v", got, err)
	}
	last := got[len(got)-1]
	if age := time.Since(last.HealthSince).Round(time.Minute); last.ID != testMember(7).ID || age != 7*time.Minute || last.Address != testMember(7).Address {
		t.Errorf("the oldest is %+v, of %v", last, age)
	}
	if big := knownOf(testSnapshot(1000), self, "test"); len(big.Members) != maxKnown || big.Members[maxKnown-1].Absent != 0 {
		t.Errorf("%d members, the last %+v", len(big.Members), big.Members[len(big.Members)-1])
	}
	if !k.same(knownOf(testSnapshot(8), self, "test")) || k.same(knownOf(testSnapshot(6), self, "test")) || knownOf(testSnapshot(6), self, "test").same(k) {
		t.Error("same is not what it says")
	}
	name := filepath.Join(dir, KnownFile)
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for i := range len(text) - 2 { // without a brace and a line's end it is whole JSON
		if _, err := parseKnown(text[:i], "test", time.Now()); err == nil {
			t.Fatalf("%d of %d bytes were taken for all", i, len(text))
		}
	}
	spoil := func(old, new string) []byte { return []byte(strings.Replace(string(text), old, new, 1)) }
	for what, text := range map[string][]byte{
		"format 2": spoil(`"format": 1`, `"format": 2`), `cluster "other"`: spoil(`"cluster": "test"`, `"cluster": "other"`),
		"damaged": spoil(`"id": "0`, `"id": "x`), "is damaged: member": spoil(`10.0.0.`, `10.0.0.999.`), "at \"": spoil(`"absent_s": 0`, `"absent_s": -1`),
		"more than": bytes.Repeat([]byte(" "), maxKnownBytes+1),
	} {
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := loadKnown(dir, "test"); err == nil || got != nil || !strings.Contains(err.Error(), what) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v, %v", what, got, err)
		}
	}
	if err := k.save(filepath.Join(dir, "none")); err == nil {
		t.Error("saved in a directory that is not there")
	}
	if got, err := loadKnown(t.TempDir(), "test"); got != nil || err != nil {
		t.Errorf("a first start: %v, %v", got, err)
	}
}

func FuzzKnown(f *testing.F) {
	text, _ := json.Marshal(knownOf(testSnapshot(6), ID{}, "test"))
	f.Add(text)
	f.Add(text[:len(text)/2])
	f.Add([]byte(`{"format":1,"cluster":"test","members":[{"id":"","name":"","address":":0","absent_s":-1}]}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, text []byte) {
		// Any bytes are refused, or are members that have an address and a sane age.
		now := time.Now()
		got, err := parseKnown(text, "test", now)
		if err != nil && got != nil {
			t.Fatalf("%v and %v", got, err)
		}
		for _, m := range got {
			if !m.Address.IsValid() || m.HealthSince.After(now) || now.Sub(m.HealthSince) > maxAge || m.Health != Dead {
				t.Fatalf("%+v", m)
			}
		}
	})
}

func TestTimingIsFilled(t *testing.T) {
	// Each time that is not given has a default.
	v := reflect.ValueOf(Timing{}.filled())
	for i := range v.NumField() {
		if v.Field(i).Int() <= 0 {
			t.Errorf("%s has none", v.Type().Field(i).Name)
		}
	}
}

func BenchmarkMetadata(b *testing.B) {
	// This is the cost of reading a message that a node lives.
	text := testMeta().encode()
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := decodeMeta(text); err != nil {
			b.Fatal(err)
		}
	}
}
