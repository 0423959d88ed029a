package nvmetcp

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math/big"
	"strings"
	"testing"
)

// secretOf is a key as nvme-cli prints it.
func secretOf(key []byte, hash string) string {
	b := binary.LittleEndian.AppendUint32(bytes.Clone(key), crc32.ChecksumIEEE(key))
	return "DHHC-1:" + hash + ":" + base64.StdEncoding.EncodeToString(b) + ":"
}

func TestSecrets(t *testing.T) {
	// A secret is its key, or the key's HMAC; a damaged one is refused by words that do not repeat it.
	key := bytes.Repeat([]byte("secret!?"), 4)
	for _, c := range []struct {
		story, secret string
		want          []byte
	}{
		{"none", "", nil},
		{"plain", secretOf(key, "00"), key},
		{"plain, 64 bytes", secretOf(append(key, key...), "00"), append(key, key...)},
		{"transformed", secretOf(key, "01"), mac(key, []byte("hostNVMe-over-Fabrics"))},
	} {
		if got, err := parseSecret(c.secret, "host"); err != nil || !bytes.Equal(got, c.want) {
			t.Errorf("%s: %x %v", c.story, got, err)
		}
	}
	good := secretOf(key, "00")
	for _, bad := range []string{"secret", good[:len(good)-1], strings.Replace(good, "A", "B", 1) + ":", strings.Replace(good, "c2V", "c2W", 1),
		secretOf(key, "02"), secretOf(key[:31], "00"), "DHHC-1:00::", "DHHC-1:00:AAAA:"} {
		_, err := parseSecret(bad, "host")
		if err == nil || strings.Contains(err.Error(), "c2V") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func TestKeyExchange(t *testing.T) {
	// Both sides of ffdhe2048 share one secret, over a safe prime; numbers that give it away are refused.
	p, _ := new(big.Int).SetString(prime2048, 16)
	half := new(big.Int).Rsh(p, 1)
	if p.BitLen() != 2048 || !p.ProbablyPrime(10) || !half.ProbablyPrime(10) {
		t.Fatal("not a safe prime of 2048 bits")
	}
	x := big.NewInt(0x1234567)
	theirs := new(big.Int).Exp(big.NewInt(2), x, p).FillBytes(make([]byte, groupLen))
	public, shared, err := exchangeKeys(theirs)
	if err != nil || !bytes.Equal(shared, new(big.Int).Exp(new(big.Int).SetBytes(public), x, p).FillBytes(make([]byte, groupLen))) {
		t.Error(err)
	}
	for _, weak := range []*big.Int{new(big.Int), big.NewInt(1), new(big.Int).Sub(p, big.NewInt(1)), p} {
		if _, _, err := exchangeKeys(weak.FillBytes(make([]byte, groupLen))); !errors.Is(err, ErrPath) {
			t.Errorf("%v: %v", weak, err)
		}
	}
}

func TestChallenges(t *testing.T) {
	// A challenge has SHA-256 and one of the two groups, with a number of its length, inside the message.
	message := func(hash, size, group byte, length uint16) []byte {
		b := make([]byte, authMessage)
		b[6], b[8], b[9] = size, hash, group
		binary.LittleEndian.PutUint16(b[10:], length)
		return b
	}
	for _, c := range []struct {
		b  []byte
		ok bool
	}{
		{message(1, 32, 0, 0), true}, {message(1, 32, 1, 256), true}, {message(2, 48, 0, 0), false}, {message(1, 64, 0, 0), false},
		{message(1, 32, 0, 1), false}, {message(1, 32, 1, 0), false}, {message(1, 32, 1, 0xffff), false}, {message(1, 32, 2, 384), false},
	} {
		got, err := parseChallenge(c.b)
		if (err == nil) != c.ok || err == nil && (len(got.value) != sha256.Size || len(got.exponent) != int(c.b[11])<<8) {
			t.Errorf("%x: %+v %v", c.b[:16], got, err)
		}
	}
}
