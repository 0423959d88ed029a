package volume

import (
	"crypto/sha256"
	"encoding/binary"
)

// Cluster is the cluster's id as volumes have it, made of its name and of the fingerprint of its key. Without a key
// the fingerprint is "", and clusters are told apart by their names alone. It keeps volumes of others from being used
// by mistake. It is no secret, and proves nothing.
//
// The id is the first half of SHA-256 over "hearth volume" and a zero, then each of the two with its length before it,
// in 8 bytes, little endian. The fingerprint stands for the key, so that a guess at a pass phrase costs as much by a
// volume as by a certificate (peer/secret).
func Cluster(name, fingerprint string) [16]byte {
	b := []byte("hearth volume\x00")
	for _, text := range []string{name, fingerprint} {
		b = binary.LittleEndian.AppendUint64(b, uint64(len(text)))
		b = append(b, text...)
	}
	sum := sha256.Sum256(b)
	return [16]byte(sum[:16])
}
