package nvmetcp

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/big"
	"strings"
)

// DH-HMAC-CHAP (Base, 8.13.5): messages, and what we offer. nvmet refuses a host that offers the NULL group alone.
const (
	authRequired = 1<<17 | 1<<18 // AUTHREQ in the result of Connect: ATR and ASCR

	authCommon    = 0x00 // AUTH_TYPE
	authDHCHAP    = 0x01
	authNegotiate = 0x00 // AUTH_ID
	authChallenge = 0x01
	authReply     = 0x02
	authSuccess1  = 0x03
	authFailure1  = 0xf1

	hashSHA256  = 0x01
	groupNULL   = 0x00
	groupFFDHE  = 0x01 // ffdhe2048 (RFC 7919)
	groupLen    = 256  // bytes of its numbers
	authMessage = 4096 // the most bytes of a message from the target
)

// prime2048 is the modulus of ffdhe2048 (RFC 7919, A.1). Its generator is 2.
const prime2048 = "ffffffffffffffffadf85458a2bb4a9aafdc5620273d3cf1d8b9c583ce2d3695a9e13641146433fbcc939dce249b3ef9" +
	"7d2fe363630c75d8f681b202aec4617ad3df1ed5d5fd65612433f51f5f066ed0856365553ded1af3b557135e7f57c935" +
	"984f0c70e0e68b77e2a689daf3efe8721df158a136ade73530acca4f483a797abc0ab182b324fb61d108a94bb2c8e3fb" +
	"b96adab760d7f4681d4f42a3de394df4ae56ede76372bb190b07a7c8ee0a6d709e02fce1cdf7e2ecc03404cd28342f61" +
	"9172fe9ce98583ff8e4f1232eef28183c3fe3b1b4c6fad733bb5fcbc2ec22005c58ef1837d1683b2c6f34a26c1b2effa" +
	"886b423861285c97ffffffffffffffff"

// parseSecret decodes a key (Base, 8.13.5.7): DHHC-1, the hash that it is transformed with, base64 of key and CRC-32.
// The errors do not repeat it.
func parseSecret(text, hostNQN string) ([]byte, error) {
	if text == "" {
		return nil, nil
	}
	parts := strings.Split(strings.TrimSpace(text), ":")
	if len(parts) != 4 || parts[0] != "DHHC-1" || parts[3] != "" {
		return nil, errors.New("nvmetcp: the secret does not look like DHHC-1:00:...: (nvme gen-dhchap-key makes one)")
	}
	b, err := base64.StdEncoding.DecodeString(parts[2])
	n := len(b) - digestLen
	if err != nil || n != 32 && n != 48 && n != 64 ||
		crc32.ChecksumIEEE(b[:n]) != binary.LittleEndian.Uint32(b[n:]) {
		return nil, errors.New("nvmetcp: the secret is damaged: its length or its CRC is wrong")
	}
	key := b[:n]
	switch {
	case parts[1] == "00":
		return key, nil
	case parts[1] == "01" && len(key) == sha256.Size:
		return mac(key, []byte(hostNQN), []byte("NVMe-over-Fabrics")), nil
	}
	return nil, errors.New("nvmetcp: the secret wants another hash than SHA-256: make one with DHHC-1:00 or DHHC-1:01")
}

func mac(key []byte, parts ...[]byte) []byte {
	h := hmac.New(sha256.New, key)
	for _, p := range parts {
		_, _ = h.Write(p) // it never fails (hash.Hash)
	}
	return h.Sum(nil)
}

// authenticate answers the target's wish for authentication on a queue, which is in the result of Connect.
func authenticate(q *queue, o *Options, result uint32) error {
	if result&authRequired == 0 {
		return nil
	}
	key, err := parseSecret(o.Secret, o.HostNQN)
	if err != nil {
		return err
	}
	if key == nil {
		return fmt.Errorf("%w: it wants authentication (DH-HMAC-CHAP): configure the secret of host %s", ErrRefused,
			o.HostNQN)
	}
	var id [2]byte
	_, _ = rand.Read(id[:]) // it never fails (crypto/rand)
	b := authHeader(8+64, authCommon, authNegotiate, id)
	b[7] = 1 // one protocol follows
	copy(b[8:], []byte{authDHCHAP, 0, 1, 2, hashSHA256})
	copy(b[8+4+30:], []byte{groupNULL, groupFFDHE})
	if err := sendAuth(q, b); err != nil {
		return err
	}
	if b, err = receiveAuth(q, authChallenge, id); err != nil {
		return err
	}
	c, err := parseChallenge(b)
	if err != nil {
		return err
	}
	reply, err := c.reply(key, id, o)
	if err != nil {
		return err
	}
	if err := sendAuth(q, reply); err != nil {
		return err
	}
	if _, err = receiveAuth(q, authSuccess1, id); errors.Is(err, ErrPath) { // nvmet may end it before its answer came
		err = fmt.Errorf("%w: after our proof: are the host's NQN and its secret right?", err)
	}
	return err
}

func authHeader(length int, kind, message byte, id [2]byte) []byte {
	b := make([]byte, length)
	b[0], b[1], b[4], b[5] = kind, message, id[0], id[1]
	return b
}

// authCommand has the security protocol of NVMe (Fabrics, 3.1 and 3.2: SPSP 0101h, SECP E9h).
func authCommand(kind byte, length int) command {
	return command{opcode: opFabrics, fabric: kind, out: kind == typeAuthSend, dw: [6]uint32{0xe9010100, uint32(length)}}
}

func sendAuth(q *queue, b []byte) error {
	_, err := q.do(authCommand(typeAuthSend, len(b)), b)
	return err
}

func receiveAuth(q *queue, want byte, id [2]byte) ([]byte, error) {
	b := make([]byte, authMessage)
	if _, err := q.do(authCommand(typeAuthReceive, len(b)), b); err != nil {
		return nil, err
	}
	switch {
	case b[0] == authCommon && b[1] == authFailure1:
		return nil, fmt.Errorf("%w: authentication failed (reason %02xh, %02xh): are the host's NQN and its secret right?",
			ErrRefused, b[6], b[7])
	case b[0] != authDHCHAP || b[1] != want || !bytes.Equal(b[4:6], id[:]):
		return nil, protocolError("authentication message %02xh/%02xh instead of %02xh", b[0], b[1], want)
	}
	return b, nil
}

// challenge is DH-HMAC-CHAP_Challenge.
type challenge struct {
	group    byte
	sequence []byte
	value    []byte
	exponent []byte // the target's, of the group
}

func parseChallenge(b []byte) (c challenge, err error) {
	c = challenge{group: b[9], sequence: b[12:16], value: b[16 : 16+sha256.Size]}
	length := int(binary.LittleEndian.Uint16(b[10:]))
	c.exponent = b[16+sha256.Size:]
	switch {
	case b[6] != sha256.Size || b[8] != hashSHA256:
		err = protocolError("a challenge with hash %02xh of %d bytes", b[8], b[6])
	case c.group == groupNULL && length == 0, c.group == groupFFDHE && length == groupLen:
		c.exponent = c.exponent[:length]
	default:
		err = protocolError("a challenge of group %02xh with %d bytes", c.group, length)
	}
	return c, err
}

// reply proves that we know the key: an HMAC of the challenge, which a group first mixes with its shared secret.
func (c challenge) reply(key []byte, id [2]byte, o *Options) ([]byte, error) {
	value, public := c.value, []byte(nil)
	if c.group == groupFFDHE {
		var shared []byte
		var err error
		if public, shared, err = exchangeKeys(c.exponent); err != nil {
			return nil, err
		}
		session := sha256.Sum256(shared)
		value = mac(session[:], c.value)
	}
	response := mac(key, value, c.sequence, id[:], []byte{0}, []byte("HostHost"), []byte(o.HostNQN), []byte{0},
		[]byte(o.SubsystemNQN))
	b := authHeader(16+2*sha256.Size+len(public), authDHCHAP, authReply, id)
	b[6] = sha256.Size
	binary.LittleEndian.PutUint16(b[10:], uint16(len(public)))
	copy(b[16:], response)
	copy(b[16+2*sha256.Size:], public) // between them is our challenge, of which there is none
	return b, nil
}

// exchangeKeys makes our number of ffdhe2048, and the secret that we share with the target.
func exchangeKeys(theirs []byte) (public, shared []byte, err error) {
	p, _ := new(big.Int).SetString(prime2048, 16)
	y := new(big.Int).SetBytes(theirs)
	one := big.NewInt(1)
	if y.Cmp(one) <= 0 || y.Cmp(new(big.Int).Sub(p, one)) >= 0 {
		return nil, nil, protocolError("a challenge with a weak number")
	}
	var secret [32]byte // RFC 7919, 5.2: at least 225 bits
	_, _ = rand.Read(secret[:])
	x := new(big.Int).SetBytes(secret[:])
	public = new(big.Int).Exp(big.NewInt(2), x, p).FillBytes(make([]byte, groupLen))
	shared = new(big.Int).Exp(y, x, p).FillBytes(make([]byte, groupLen))
	return public, shared, nil
}
