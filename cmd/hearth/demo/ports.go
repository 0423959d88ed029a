package demo

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
)

// freePorts returns a local address with n free ports in a row, for TCP and UDP. They lie below the
// range from which the kernel gives ports to connections. From that range another connection may
// take the next port before the node listens there.
func freePorts(n int) (string, error) {
	end := givenOut() - n
	const of = 16384
	var failed error
	for range 64 {
		at := end - rand.IntN(min(of, end-1024))
		if failed = listenAll(at, n); failed == nil {
			return net.JoinHostPort("127.0.0.1", strconv.Itoa(at)), nil
		}
	}
	return "", fmt.Errorf("find %d free ports in a row: %w", n, failed)
}

// givenOut is the first port that the kernel gives to connections (ip(7), ip_local_port_range).
func givenOut() int {
	const usual = 32768
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return usual
	}
	first, _, _ := strings.Cut(strings.TrimSpace(string(text)), "\t")
	if low, err := strconv.Atoi(first); err == nil && low > 4096 {
		return low
	}
	return usual
}

// listenAll tests that n ports from at on are free, by listening at each.
func listenAll(at, n int) error {
	for port := at; port < at+n; port++ {
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		l, err := net.Listen("tcp", address)
		if err != nil {
			return err
		}
		defer func() { _ = l.Close() }() // it was only tried
		u, err := net.ListenPacket("udp", address)
		if err != nil {
			return err
		}
		defer func() { _ = u.Close() }() // likewise
	}
	return nil
}
