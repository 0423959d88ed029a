package fakenvmet

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math/big"
	"slices"
	"strings"
)

// DH-HMAC-CHAP (NVMe Base 2.0, section 8.13.5) with SHA-256, and the NULL group or ffdhe2048.
const (
	atSECP, atTransfer = 43, 44 // of Authentication Send and Receive; SPSP1 and SPSP0 stand before SECP
	securityProtocol   = 0xE9

	authCommon, authDHCHAP                                 = 0x00, 0x01 // AUTH_TYPE
	authNegotiate, authChallenge, authReply                = 0x00, 0x01, 0x02
	authSuccess1, authSuccess2, authFailure2, authFailure1 = 0x03, 0x04, 0xF0, 0xF1 // AUTH_ID

	hashSHA256, groupNull, groupFFDHE2048 = 0x01, 0x00, 0x01

	failedKey, failedProtocol, failedHash, failedGroup = 0x01, 0x02, 0x04, 0x05 // reason code explanations
	failedPayload, failedMessage                       = 0x06, 0x07

	hashLen, groupLen = sha256.Size, 256
)

// ffdhe2048 is the prime of RFC 7919, appendix A.1; its generator is 2.
const ffdhe2048 = "FFFFFFFFFFFFFFFFADF85458A2BB4A9AAFDC5620273D3CF1D8B9C583CE2D3695A9E13641146433FB" +
	"CC939DCE249B3EF97D2FE363630C75D8F681B202AEC4617AD3DF1ED5D5FD65612433F51F5F066ED0" +
	"856365553DED1AF3B557135E7F57C935984F0C70E0E68B77E2A689DAF3EFE8721DF158A136ADE735" +
	"30ACCA4F483A797ABC0AB182B324FB61D108A94BB2C8E3FBB96ADAB760D7F4681D4F42A3DE394DF4" +
	"AE56EDE76372BB190B07A7C8EE0A6D709E02FCE1CDF7E2ECC03404CD28342F619172FE9CE98583FF" +
	"8E4F1232EEF28183C3FE3B1B4C6FAD733BB5FCBC2EC22005C58EF1837D1683B2C6F34A26C1B2EFFA" +
	"886B423861285C97FFFFFFFFFFFFFFFF"

// dialogue is an authentication transaction of one queue.
type dialogue struct {
	wants     byte // the AUTH_ID that the host must send next
	id        uint16
	group     byte
	sequence  uint32
	challenge [hashLen]byte
	private   *big.Int
	message   []byte // what the host receives next
	failed    bool   // the connection ends after message
}

// authSend takes a message of the host.
func (q *queue) authSend(c *command) Status {
	m := c.data
	if c.entry[atSECP] != securityProtocol || c.entry[atSECP-1] != 1 || c.entry[atSECP-2] != 1 ||
		c.dword(atTransfer) != uint32(c.length) || len(m) < 8 || q.ctrl.secret == "" {
		return invalidFieldForever
	}
	kind, id := m[1], binary.LittleEndian.Uint16(m[4:])
	d := q.auth
	switch {
	case m[0] == authCommon && kind == authNegotiate:
		q.auth = q.negotiate(m, id)
	case m[0] == authCommon && kind == authFailure2:
		q.authenticated = false
		q.auth = &dialogue{id: id, failed: true}
	case d == nil || m[0] != authDHCHAP || kind != d.wants || id != d.id:
		q.note("authentication message %02xh of transaction %d out of turn", kind, id)
		q.auth = failure(id, failedMessage)
	case kind == authReply:
		q.verify(d, m)
	case kind == authSuccess2:
		q.auth = nil
	}
	return Success
}

// authReceive gives the host the next message, and ends the connection behind a Failure1.
func (q *queue) authReceive(c *command) error {
	d := q.auth
	if d == nil || c.dword(atTransfer) != uint32(c.length) || c.length < len(d.message) || c.length > adminCapsule {
		q.respond(c, 0, invalidFieldForever)
		return nil
	}
	c.reply = make([]byte, c.length)
	copy(c.reply, d.message)
	q.reply(c, c.length)
	d.message = nil
	if !d.failed {
		return nil
	}
	if err := q.flush(); err != nil {
		return err
	}
	return errEnded
}

// failure is a dialogue that ends with a Failure1.
func failure(id uint16, why byte) *dialogue {
	m := make([]byte, 8)
	m[0], m[1], m[6], m[7] = authCommon, authFailure1, 1, why // reason code 1: authentication failure
	binary.LittleEndian.PutUint16(m[4:], id)
	return &dialogue{id: id, message: m, failed: true}
}

// negotiate answers AUTH_Negotiate by a challenge.
func (q *queue) negotiate(m []byte, id uint16) *dialogue {
	if len(m) < 8+64 || m[7] == 0 || m[8] != 0x01 {
		return failure(id, failedProtocol)
	}
	p := m[8:] // the first protocol descriptor: AUTHID, HALEN, DHLEN, hashes from 4, groups from 34
	hashes, groups := p[4:4+min(p[2], 30)], p[34:34+min(p[3], 30)]
	if !slices.Contains(hashes, hashSHA256) {
		return failure(id, failedHash)
	}
	d := &dialogue{id: id, wants: authReply}
	switch {
	case slices.Contains(groups, groupFFDHE2048) && (q.t.o.FFDHE || !slices.Contains(groups, groupNull)):
		d.group = groupFFDHE2048
	case !slices.Contains(groups, groupNull):
		return failure(id, failedGroup)
	}
	_, _ = rand.Read(d.challenge[:]) // never fails
	q.t.mu.Lock()
	q.t.lastTry++
	d.sequence = uint32(q.t.lastTry)
	q.t.mu.Unlock()
	d.message = make([]byte, 16+hashLen)
	b := d.message
	b[0], b[1], b[6], b[8], b[9] = authDHCHAP, authChallenge, hashLen, hashSHA256, d.group
	binary.LittleEndian.PutUint16(b[4:], id)
	binary.LittleEndian.PutUint32(b[12:], d.sequence)
	copy(b[16:], d.challenge[:])
	if d.group == groupFFDHE2048 {
		binary.LittleEndian.PutUint16(b[10:], groupLen)
		d.private = new(big.Int).SetBytes(randomBytes(groupLen / 4))
		public := new(big.Int).Exp(big.NewInt(2), d.private, prime())
		d.message = append(b, public.FillBytes(make([]byte, groupLen))...)
	}
	return d
}

// verify takes DH-HMAC-CHAP_Reply: HL at 6, CVALID at 8, DHVLEN at 10, SEQNUM at 12, and from 16
// the response, the host's challenge and its public value.
func (q *queue) verify(d *dialogue, m []byte) {
	public := 0
	if d.group == groupFFDHE2048 {
		public = groupLen
	}
	if len(m) < 16+2*hashLen+public || m[6] != hashLen || int(binary.LittleEndian.Uint16(m[10:])) != public {
		q.auth = failure(d.id, failedPayload)
		return
	}
	response, challenge, theirs := m[16:16+hashLen], m[16+hashLen:16+2*hashLen], m[16+2*hashLen:16+2*hashLen+public]
	var shared []byte
	if public > 0 {
		secret := new(big.Int).Exp(new(big.Int).SetBytes(theirs), d.private, prime())
		shared = secret.FillBytes(make([]byte, groupLen))
	}
	key, err := authKey(q.ctrl.secret, q.ctrl.hostNQN)
	want := authResponse(key, augmented(shared, d.challenge[:]), d.sequence, d.id,
		"HostHost"+q.ctrl.hostNQN+"\x00"+q.t.o.NQN)
	if err != nil || !hmac.Equal(want, response) {
		q.auth = failure(d.id, failedKey)
		return
	}
	b := make([]byte, 16)
	b[0], b[1], b[6] = authDHCHAP, authSuccess1, hashLen
	binary.LittleEndian.PutUint16(b[4:], d.id)
	d.wants = authSuccess2
	if m[8]&1 != 0 { // CVALID: the host wants to know who we are
		key, err := authKey(q.t.o.ControllerSecret, q.t.o.NQN)
		if err != nil {
			q.auth = failure(d.id, failedKey)
			return
		}
		b[8] = 1 // RVALID
		b = append(b, authResponse(key, augmented(shared, challenge), binary.LittleEndian.Uint32(m[12:]), d.id,
			"Controller"+q.t.o.NQN+"\x00"+q.ctrl.hostNQN)...)
	}
	d.message = b
	q.authenticated = true
}

// authKey takes the key out of its secret and binds it to a name (section 8.13.5.8).
func authKey(secret, name string) ([]byte, error) {
	parts := strings.Split(secret, ":")
	if len(parts) != 4 || parts[0] != "DHHC-1" {
		return nil, errors.New("a DH-HMAC-CHAP secret begins with DHHC-1 and has four parts")
	}
	key, err := base64.StdEncoding.DecodeString(parts[2])
	end := len(key) - 4
	if err != nil || end < 0 || crc32.ChecksumIEEE(key[:end]) != binary.LittleEndian.Uint32(key[end:]) {
		return nil, errors.New("the checksum of a DH-HMAC-CHAP secret is wrong")
	}
	key = key[:end]
	switch parts[1] {
	case "00":
		return key, nil
	case "01":
		return mac(key, []byte(name), []byte("NVMe-over-Fabrics")), nil
	}
	return nil, errors.New("a DH-HMAC-CHAP secret for another hash than SHA-256")
}

// augmented is the challenge, bound to the shared secret of a DH group (section 8.13.5.4).
func augmented(shared, challenge []byte) []byte {
	if shared == nil {
		return challenge
	}
	key := sha256.Sum256(shared)
	return mac(key[:], challenge)
}

// authResponse is R1 or R2 (section 8.13.5.4), over the role and both names at its end. The byte
// before them is SC_C.
func authResponse(key, challenge []byte, sequence uint32, id uint16, names string) []byte {
	b := binary.LittleEndian.AppendUint32(nil, sequence)
	b = append(binary.LittleEndian.AppendUint16(b, id), 0)
	return mac(key, challenge, append(b, names...))
}

func mac(key []byte, parts ...[]byte) []byte {
	h := hmac.New(sha256.New, key)
	for _, p := range parts {
		h.Write(p)
	}
	return h.Sum(nil)
}

func prime() *big.Int {
	p, _ := new(big.Int).SetString(ffdhe2048, 16)
	return p
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return b
}
