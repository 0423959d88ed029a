package scaling

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
)

// counted is memberlist's transport, which notes what it sends.
type counted struct {
	*memberlist.NetTransport

	mu      sync.Mutex // guards the rest
	packets map[int]int
	streams []*counting
	note    chan struct{} // capacity 1
}

func (c *counted) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	c.mu.Lock()
	c.packets[len(b)]++
	c.mu.Unlock()
	select {
	case c.note <- struct{}{}:
	default:
	}
	return c.NetTransport.WriteToAddress(b, a)
}

func (c *counted) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	conn, err := c.NetTransport.DialAddressTimeout(a, timeout)
	if err != nil {
		return nil, err
	}
	s := &counting{Conn: conn}
	c.mu.Lock()
	c.streams = append(c.streams, s)
	c.mu.Unlock()
	return s, nil
}

type counting struct {
	net.Conn
	wrote, read int
}

func (c *counting) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.wrote += n
	return n, err
}

func (c *counting) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.read += n
	return n, err
}

// says has a node say something of itself; the rest of a delegate does nothing.
type says struct{ meta []byte }

func (s says) NodeMeta(int) []byte                                      { return s.meta }
func (says) NotifyMsg([]byte)                                           {}
func (says) GetBroadcasts(int, int) [][]byte                            { return nil }
func (says) LocalState(bool) []byte                                     { return nil }
func (says) MergeRemoteState([]byte, bool)                              {}
func (says) AckPayload() []byte                                         { return nil }
func (says) NotifyPingComplete(*memberlist.Node, time.Duration, []byte) {}

// listed is a node of memberlist with the settings of peer/members.
func listed(t *testing.T, i int, meta []byte) (*memberlist.Memberlist, *counted) {
	t.Helper()
	logger := log.New(io.Discard, "", 0)
	const at = "127.0.0.1"
	inner, err := memberlist.NewNetTransport(&memberlist.NetTransportConfig{BindAddrs: []string{at}, Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	tr := &counted{NetTransport: inner, packets: map[int]int{}, note: make(chan struct{}, 1)}
	c := memberlist.DefaultLANConfig()
	c.Name, c.Transport, c.Logger = fmt.Sprintf("%032x", i), tr, logger
	c.BindAddr, c.BindPort = at, inner.GetAutoBindPort() // a number as long as 7946's
	c.AdvertisePort = c.BindPort
	c.SecretKey, c.EnableCompression = bytes.Repeat([]byte{7}, 32), false
	c.ProbeInterval, c.PushPullInterval = 5*time.Millisecond, time.Hour
	c.Delegate, c.Ping = says{meta}, says{}
	list, err := memberlist.Create(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := list.Shutdown(); err != nil {
			t.Error(err)
		}
	})
	return list, tr
}

func TestMessagesAreAsLargeAsMemberlistsOwn(t *testing.T) {
	// Two nodes join and probe each other: what they send is what the model says, to the
	// byte, and the intervals of the model are those of the settings.
	meta := []byte(strings.Repeat("m", MetaOf("node-1", "", Ring)))
	g := RingGossip(len(meta))
	one, other := listed(t, 1, meta)
	two, sent := listed(t, 2, meta)
	if n, err := two.Join([]string{one.LocalNode().Address()}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	sent.mu.Lock()
	for _, s := range sent.streams {
		if s.wrote != g.State(1) || s.read != g.State(1) {
			t.Errorf("states of %d and %d bytes, the model has %d", s.wrote, s.read, g.State(1))
		}
	}
	sent.mu.Unlock()
	// Of either: one that finds the machine slow probes so rarely that its numbers stay short.
	seen := func(size int) (found bool) {
		for _, c := range []*counted{sent, other} {
			c.mu.Lock()
			found = found || c.packets[size] > 0
			c.mu.Unlock()
		}
		return found
	}
	// News travel alone, or those of both nodes behind a probe or its answer, whose number
	// may be shorter.
	news := func() bool {
		found := seen(crc + sealed + g.Alive())
		for short := range number(seq) {
			for count := 1; count <= 2; count++ {
				behind := compound + compounded + count*(compounded+g.Alive()) - short
				found = found || seen(g.Ping()+behind) || seen(g.Ack()+behind)
			}
		}
		return found
	}
	over := time.After(time.Minute)
	for !seen(g.Ping()) || !seen(g.Ack()) || !news() {
		select {
		case <-sent.note:
		case <-other.note:
		case <-over:
			sent.mu.Lock()
			defer sent.mu.Unlock()
			t.Fatalf("packets %v; the model has ping %d, ack %d, news %d", sent.packets, g.Ping(), g.Ack(), g.Alive())
		}
	}
	lan := memberlist.DefaultLANConfig()
	if g.GossipNodes != lan.GossipNodes || g.ProbeInterval != lan.ProbeInterval ||
		g.PushPullInterval != lan.PushPullInterval || g.GossipInterval != lan.GossipInterval {
		t.Errorf("%+v is not DefaultLANConfig", g)
	}
}
