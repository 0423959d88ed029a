package sigv4

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"sync"
)

// maxKeys bounds the derived keys that are kept. A key for each of 10,000 access keys, by day and
// region, would be more than are needed at once.
const maxKeys = 4096

// keyCache keeps the derived keys of clients that signed rightly, so nobody else can fill it. When
// it is full it is emptied.
type keyCache struct {
	mu   sync.RWMutex
	keys map[keyName]derivedKey // guarded by mu
}

type keyName struct{ access, day, region string }

// derivedKey holds also the secret that the key comes from, since that may change for the same
// name.
type derivedKey struct {
	secret string
	key    [32]byte
}

// get returns the key of a claim, and whether it was in the cache.
func (k *keyCache) get(c *claim, secret string) (key [32]byte, kept bool) {
	k.mu.RLock()
	d, ok := k.keys[keyName{c.access, c.day, c.region}]
	k.mu.RUnlock()
	if ok && d.secret == secret {
		return d.key, true
	}
	return derive(secret, c.day, c.region), false
}

// put keeps a key, with copies of the strings: those of a claim are parts of its request.
func (k *keyCache) put(c *claim, secret string, key [32]byte) {
	name := keyName{strings.Clone(c.access), strings.Clone(c.day), strings.Clone(c.region)}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.keys == nil || len(k.keys) >= maxKeys {
		k.keys = map[keyName]derivedKey{}
	}
	k.keys[name] = derivedKey{secret, key}
}

// derive returns the signing key for a day and region.
func derive(secret, day, region string) (key [32]byte) {
	sum := []byte("AWS4" + secret)
	for _, part := range [...]string{day, region, "s3", "aws4_request"} {
		h := hmac.New(sha256.New, sum)
		h.Write([]byte(part))
		sum = h.Sum(nil)
	}
	return [32]byte(sum)
}

// message is a text to be signed, behind room for one block of its key. So HMAC-SHA256 (RFC 2104)
// is two calls of sha256.Sum256, and allocates nothing (BenchmarkVerify).
type message []byte

// begin starts a text in the memory of the last one.
func (m message) begin(text string) message {
	const room = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef" // one block, overwritten by mac
	return append(append(m[:0], room...), text...)
}

// mac returns the signature of the text, in hexadecimal.
func (m message) mac(key *[32]byte) (text [64]byte) {
	var outer [sha256.BlockSize + sha256.Size]byte
	for i := range sha256.BlockSize {
		var k byte
		if i < len(key) {
			k = key[i]
		}
		m[i], outer[i] = k^0x36, k^0x5c
	}
	inner := sha256.Sum256(m)
	copy(outer[sha256.BlockSize:], inner[:])
	sum := sha256.Sum256(outer[:])
	hex.Encode(text[:], sum[:])
	return text
}
