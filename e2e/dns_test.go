package e2e

import (
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// nameServer answers each question for an address with 127.0.0.1, or that there is
// no such name.
type nameServer struct{ knows atomic.Bool }

// nameServer starts one and makes it the one of this mount namespace, for
// processes that are started from now on until the scenario ends. Its address is the first
// that is free: other runs on this machine have the same loopback.
func (e *env) nameServer() *nameServer {
	e.Helper()
	address, conn, err := "", net.PacketConn(nil), error(nil)
	for i := 1; i < 255 && conn == nil; i++ { // 127.0.0.0/16 is for others
		address = fmt.Sprintf("127.53.0.%d", i)
		conn, err = net.ListenPacket("udp", address+":53")
	}
	e.must(err, "listen as a name server")
	s := &nameServer{}
	s.answers(true)
	done := make(chan struct{})
	go func() { defer close(done); s.serve(conn) }()
	conf := e.path("resolv.conf")
	e.must(os.WriteFile(conf, []byte("nameserver "+address+"\noptions attempts:1 timeout:1\n"), 0o644), "write resolv.conf")
	e.must(unix.Mount(conf, "/etc/resolv.conf", "", unix.MS_BIND, ""), "show it in its place")
	e.Cleanup(func() {
		_ = unix.Unmount("/etc/resolv.conf", unix.MNT_DETACH)
		_ = conn.Close()
		<-done
	})
	return s
}

// byName is an endpoint by a name that the name server knows.
func byName(endpoint string) string {
	return strings.Replace(endpoint, "127.0.0.1", "origin.hearth.test", 1)
}

// answers says whether there is any name.
func (s *nameServer) answers(yes bool) { s.knows.Store(yes) }

func (s *nameServer) serve(conn net.PacketConn) {
	buf := make([]byte, 512)
	for {
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			return
		}
		if n < 17 { // a header and the shortest question
			continue
		}
		_, _ = conn.WriteTo(s.answer(buf[:n]), from) // who does not hear it asks again
	}
}

// answer is RFC 1035's: the question's header and first question, and one record.
func (s *nameServer) answer(question []byte) []byte {
	end := 12
	for end < len(question) && question[end] != 0 {
		end += int(question[end]) + 1
	}
	end = min(end+5, len(question)) // the root label, type and class
	a := append([]byte(nil), question[:end]...)
	a[2], a[3] = 0x84, 0         // an answer, with authority
	copy(a[6:], make([]byte, 6)) // no records yet
	switch kind := a[end-3]; {
	case !s.knows.Load():
		a[3] = 3 // no such name
	case kind == 1: // A
		a[7] = 1
		a = append(a, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4, 127, 0, 0, 1)
	}
	return a
}

// forgetName takes the name away and ends the connections, so that it is asked for.
func (s *sick) forgetName() {
	s.names.answers(false)
	s.p.Down()
	s.must(s.p.Up(), "open the port")
}
