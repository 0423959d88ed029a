package fakenvmet

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"hash/crc32"
	"math/big"
	"testing"
)

// authHost is a host's side of DH-HMAC-CHAP, by hand.
type authHost struct {
	*fakeHost
	hostKey, targetKey []byte // as the response's HMAC takes them
	groups             []byte
	bidirectional      bool

	challenge []byte // ours
	shared    []byte
}

func secretOf(kind string, key []byte) string {
	sum := crc32.ChecksumIEEE(key)
	whole := append(bytes.Clone(key), byte(sum), byte(sum>>8), byte(sum>>16), byte(sum>>24))
	return "DHHC-1:" + kind + ":" + base64.StdEncoding.EncodeToString(whole) + ":"
}

func hmacOf(key []byte, text ...[]byte) []byte {
	h := hmac.New(sha256.New, key)
	h.Write(bytes.Join(text, nil))
	return h.Sum(nil)
}

// message sends one by Authentication Send.
func (h *authHost) message(m []byte) answer {
	h.t.Helper()
	e := h.entry(0x7F, 0, len(m), 0x01)
	e[4], e[41], e[42], e[43] = 0x05, 1, 1, 0xE9
	set32(e, 44, len(m))
	_, c := h.do(e, m)
	return c
}

// receive takes one by Authentication Receive.
func (h *authHost) receive() []byte {
	h.t.Helper()
	e := h.entry(0x7F, 0, 4096, 0x5A)
	e[4], e[41], e[42], e[43] = 0x06, 1, 1, 0xE9
	set32(e, 44, 4096)
	got, c := h.do(e, nil)
	if c.status() != 0 {
		h.t.Fatalf("Authentication Receive: %x", c.status())
	}
	return got
}

// prove goes through one transaction, and returns the last message of the target.
func (h *authHost) prove() []byte {
	h.t.Helper()
	n := make([]byte, 8+64)
	n[4], n[7], n[8], n[10], n[11] = 7, 1, 1, 1, byte(len(h.groups))
	n[12] = 1
	copy(n[8+34:], h.groups)
	if c := h.message(n); c.status() != 0 {
		h.t.Fatalf("AUTH_Negotiate: %x", c.status())
	}
	m := h.receive()
	if m[0] != 1 || m[1] != 1 {
		return m
	}
	if m[4] != 7 || m[6] != 32 || m[8] != 1 {
		h.t.Fatalf("challenge: % x", m[:16])
	}
	c1, s1, public := m[16:48], bytes.Clone(m[12:16]), []byte(nil)
	if m[9] == 1 {
		p, _ := new(big.Int).SetString(ffdhe2048, 16)
		x := new(big.Int).SetBytes(random(9, 64))
		public = new(big.Int).Exp(big.NewInt(2), x, p).FillBytes(make([]byte, 256))
		h.shared = new(big.Int).Exp(new(big.Int).SetBytes(m[48:48+u16(m, 10)]), x, p).FillBytes(make([]byte, 256))
	}
	r := make([]byte, 16)
	r[0], r[1], r[4], r[6] = 1, 2, 7, 32
	set16(r, 10, len(public))
	set32(r, 12, 5)
	h.challenge = random(3, 32)
	if h.bidirectional {
		r[8] = 1
	}
	response := hmacOf(h.hostKey, h.bound(c1), s1, []byte{7, 0, 0}, []byte("HostHost"+testHost+"\x00"+NQN))
	r = append(append(append(r, response...), h.challenge...), public...)
	if c := h.message(r); c.status() != 0 {
		h.t.Fatalf("reply: %x", c.status())
	}
	return h.receive()
}

func (h *authHost) bound(challenge []byte) []byte {
	if h.shared == nil {
		return challenge
	}
	key := sha256.Sum256(h.shared)
	return hmacOf(key[:], challenge)
}

func TestAuthentication(t *testing.T) {
	// A host with the right key is let in, one without learns why; the target proves itself if asked.
	key, other := random(1, 32), random(2, 32)
	bound := hmacOf(key, []byte(testHost), []byte("NVMe-over-Fabrics"))
	for _, c := range []struct {
		story         string
		secret        string
		hostKey       []byte
		groups        []byte
		ffdhe, mutual bool
		last, why     byte // AUTH_ID of the last message; the reason of a failure
	}{
		{"NULL group", secretOf("00", key), key, []byte{0}, false, false, 3, 0},
		{"ffdhe2048", secretOf("00", key), key, []byte{0, 1}, true, false, 3, 0},
		{"ffdhe2048 alone", secretOf("00", key), key, []byte{1}, false, true, 3, 0},
		{"a transformed key", secretOf("01", key), bound, []byte{0}, false, true, 3, 0},
		{"a wrong key", secretOf("00", key), other, []byte{0}, false, false, 0xF1, 1},
		{"a wrong key, ffdhe2048", secretOf("00", key), other, []byte{1}, false, false, 0xF1, 1},
		{"another group", secretOf("00", key), key, []byte{4}, false, false, 0xF1, 5},
	} {
		t.Run(c.story, func(t *testing.T) {
			target := start(t, Options{Secret: c.secret, ControllerSecret: secretOf("00", other), FFDHE: c.ffdhe})
			h := &authHost{fakeHost: dial(t, target.Address(), 0, 1), hostKey: c.hostKey, targetKey: other, groups: c.groups, bidirectional: c.mutual}
			_, got := h.do(h.connectEntry(0, 31, false), connectBytes(0xFFFF, NQN, testHost))
			if got.status() != 0 || got.result()&(1<<17) == 0 {
				t.Fatalf("Connect: %x, %x", got.status(), got.result())
			}
			if _, got := h.identify(1, 0); got.status() != 0x4191 {
				t.Errorf("Identify before: %x", got.status())
			}
			m := h.prove()
			if m[1] != c.last || m[1] == 0xF1 && (m[0] != 0 || m[6] != 1 || m[7] != c.why) {
				t.Fatalf("the last message: % x", m[:16])
			}
			if c.last == 0xF1 {
				h.ended()
				return
			}
			if c.mutual {
				want := hmacOf(other, h.bound(h.challenge), []byte{5, 0, 0, 0, 7, 0, 0}, []byte("Controller"+NQN+"\x00"+testHost))
				if m[8] != 1 || !bytes.Equal(m[16:48], want) {
					t.Error("the target's response is wrong")
				}
				s := make([]byte, 16)
				s[0], s[1], s[4] = 1, 4, 7
				if got := h.message(s); got.status() != 0 {
					t.Errorf("success2: %x", got.status())
				}
			}
			(&association{fakeHost: h.fakeHost}).enable()
			if _, got := h.identify(1, 0); got.status() != 0 {
				t.Errorf("Identify after: %x", got.status())
			}
			clean(t, target)
		})
	}
}

func TestAuthenticationOfQueues(t *testing.T) {
	// Each I/O queue proves the key anew, and a message out of turn fails.
	key := random(1, 32)
	target := start(t, Options{Secret: secretOf("00", key)})
	admin := &authHost{fakeHost: dial(t, target.Address(), 0, 1), hostKey: key, groups: []byte{0}}
	_, c := admin.do(admin.connectEntry(0, 31, false), connectBytes(0xFFFF, NQN, testHost))
	id := int(c.result() & 0xFFFF)
	admin.prove()
	(&association{fakeHost: admin.fakeHost}).enable()
	q := &authHost{fakeHost: dial(t, target.Address(), 0, 1), hostKey: key, groups: []byte{0}}
	if _, c := q.do(q.connectEntry(1, 31, false), connectBytes(id, NQN, testHost)); c.status() != 0 || c.result()&(1<<17) == 0 {
		t.Fatalf("Connect: %x, %x", c.status(), c.result())
	}
	if _, c := q.get(0, 1, 4096); c.status() != 0x4191 {
		t.Errorf("read before: %x", c.status())
	}
	q.prove()
	if _, c := q.get(0, 1, 4096); c.status() != 0 {
		t.Errorf("read after: %x", c.status())
	}
	clean(t, target)
	s := make([]byte, 16)
	s[0], s[1], s[4] = 1, 2, 9
	q.message(s)
	if m := q.receive(); m[1] != 0xF1 || m[7] != 7 {
		t.Errorf("a reply out of turn: % x", m[:8])
	}
	q.ended()
}
