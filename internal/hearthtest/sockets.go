package hearthtest

import (
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
)

// Sockets are the two ends of a TCP connection over loopback. The caller closes them.
func Sockets(t *testing.T) (a, b net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if a, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if b, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	return a, b
}

// Port returns a port, for TCP and UDP, that no other process gets by chance. It lies below the
// ports that the kernel hands out, and no other test that calls Port gets it before this one has
// ended. It is for a node that comes back at its address, and for a node that has another node's
// port at an address of its own.
func Port(t testing.TB) string {
	t.Helper()
	handedOut := 32768 // where the kernel's default range begins
	if text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		if low, err := strconv.Atoi(strings.Fields(string(text))[0]); err == nil {
			handedOut = min(handedOut, low)
		}
	}
	for port := handedOut - 1; port > 1024; port-- {
		text := strconv.Itoa(port)
		mark, err := net.Listen("tcp", "127.255.255.254:"+text) // nobody else listens there; other callers see it
		if err != nil {
			continue
		}
		if l, err := net.Listen("tcp", "127.0.0.1:"+text); err != nil { // a service of this machine
			_ = mark.Close() // this port is taken
			continue
		} else if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = mark.Close() }) // the same
		return text
	}
	t.Fatal("no port is free")
	return ""
}
