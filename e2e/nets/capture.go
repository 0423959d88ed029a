package nets

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	// captureBuffer bytes of packets wait for who looks at them: a second of 500 Mbit/s.
	captureBuffer = 64 << 20
	// largest packet on a veth: the kernel cuts what TCP sends when it leaves the machine.
	largest = 256 << 10
	// linkHeader is what stands before a packet of IP.
	linkHeader = 14
)

// Packet is what passed the router.
type Packet struct {
	// From and To are of the IP header.
	From, To netip.Addr
	// Data is the packet from its IP header on; it is another's after the call.
	Data []byte
}

// Ports are those of a packet of UDP or TCP, whose number in IP's header protocol is; 0: it
// is another's, or a piece of one that does not begin with them.
func (p Packet) Ports() (protocol int, from, to uint16) {
	header := int(p.Data[0]&15) * 4
	offset := binary.BigEndian.Uint16(p.Data[6:]) & 0x1fff
	protocol = int(p.Data[9])
	if protocol != unix.IPPROTO_UDP && protocol != unix.IPPROTO_TCP || offset > 0 || len(p.Data) < header+4 {
		return 0, 0, 0
	}
	return protocol, binary.BigEndian.Uint16(p.Data[header:]), binary.BigEndian.Uint16(p.Data[header+2:])
}

// Capture is a look at everything that passes the router.
type Capture struct {
	socket  *os.File
	ended   sync.WaitGroup
	packets int64
}

// Capture calls see for each packet of IPv4, and twice for one between two hosts: as it
// comes and as it goes. Stop it.
func (n *Net) Capture(see func(Packet)) (*Capture, error) {
	c := &Capture{}
	err := n.router.Do(func() error {
		const everything = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8 // in network order
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, everything)
		if err != nil {
			return err
		}
		c.socket = os.NewFile(uintptr(fd), "capture")
		return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, captureBuffer)
	})
	if err != nil {
		if c.socket != nil {
			_ = c.socket.Close()
		}
		return nil, fmt.Errorf("capture packets: %w", err)
	}
	c.ended.Go(func() { c.follow(see) })
	return c, nil
}

func (c *Capture) follow(see func(Packet)) {
	buf := make([]byte, largest)
	for {
		n, err := c.socket.Read(buf)
		if errors.Is(err, unix.ENETDOWN) { // of one link
			continue
		}
		if err != nil {
			return // closed
		}
		if n < linkHeader+20 || buf[12] != 8 || buf[13] != 0 {
			continue
		}
		ip := buf[linkHeader:n]
		c.packets++
		see(Packet{From: netip.AddrFrom4([4]byte(ip[12:16])), To: netip.AddrFrom4([4]byte(ip[16:20])), Data: ip})
	}
}

// Stop ends the capture. It returns how many packets were seen and how many were not, for
// want of room.
func (c *Capture) Stop() (seen, lost int64, err error) {
	raw, err := c.socket.SyscallConn()
	if err != nil {
		return 0, 0, fmt.Errorf("end a capture: %w", err)
	}
	var stats *unix.TpacketStats
	var failed error
	err = errors.Join(raw.Control(func(fd uintptr) {
		stats, failed = unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS)
	}), failed)
	err = errors.Join(err, c.socket.Close())
	c.ended.Wait()
	if err != nil {
		return 0, 0, fmt.Errorf("end a capture: %w", err)
	}
	return c.packets, int64(stats.Drops), nil
}
