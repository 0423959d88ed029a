package scaling

// What a link carries beside the bytes that a program writes, with frames of 1,500 bytes.
const (
	ethernet  = 14
	ip        = 20
	udp       = 8
	tcp       = 32                  // with timestamps
	segment   = 1500 - ip - tcp     // of payload
	bare      = ethernet + ip + tcp // a frame without any
	handshake = 8                   // more options in the first frame of each side
	record    = 16 << 10            // of TLS
	recorded  = 22                  // header 5, type 1, tag 16
)

// Datagram is a packet of UDP with n bytes, as a link carries it.
func Datagram(n int) int64 { return int64(ethernet + ip + udp + n) }

// Stream is what n bytes of TCP are on a link, both ways together: a frame is acknowledged
// with the next one, as RFC 9293 has it.
func Stream(n int64) int64 {
	frames := up(n, segment)
	return n + frames*bare + up(frames, 2)*bare
}

// Secured is n bytes in records of TLS 1.3.
func Secured(n int64) int64 { return n + up(n, record)*recorded }

// Exchange is a connection over which one side sends so many bytes, the other answers, and
// both close it.
func Exchange(asked, answered int64) int64 {
	return 2*(bare+handshake) + bare + Stream(asked) + Stream(answered) + 4*bare
}

func up(n, by int64) int64 { return (n + by - 1) / by }
