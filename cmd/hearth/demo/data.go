package demo

import (
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
)

// file is one file of the data set: its name below the bucket, its size, and the seed of its bytes.
type file struct {
	name string
	size int64
	seed uint64
	hash [sha256.Size]byte // of the bytes made; in the user's own bucket zero until the first read
}

const largeSize = 64 << 20

// plan lays out images in 20 class directories, and large files beside them.
func plan(images, large int) []file {
	rng := rand.New(rand.NewPCG(1, 2))
	files := make([]file, 0, images+large)
	for i := range images {
		name := fmt.Sprintf("images/class-%02d/picture-%05d.ppm", i%20, i)
		files = append(files, file{name: name, size: int64(60<<10 + rng.IntN(100<<10)), seed: uint64(i)})
	}
	for i := range large {
		name := fmt.Sprintf("models/shard-%02d-of-%02d.safetensors", i+1, large)
		files = append(files, file{name: name, size: largeSize, seed: uint64(1 + images + i)})
	}
	return files
}

// content makes the file's bytes, which nothing can compress, and notes their hash.
func (f *file) content() []byte {
	data := make([]byte, f.size)
	var seed [32]byte
	copy(seed[:], fmt.Sprintf("hearth demo %d", f.seed))
	_, _ = rand.NewChaCha8(seed).Read(data)
	if f.size < largeSize {
		// A picture: the header of a PPM, whose pixels are what follows. Trailing
		// bytes that fill no row are allowed by readers of the format.
		copy(data, fmt.Sprintf("P6\n128 %d\n255\n", (f.size-16)/(128*3)))
	}
	f.hash = sha256.Sum256(data)
	return data
}

func total(files []file) int64 {
	var n int64
	for _, f := range files {
		n += f.size
	}
	return n
}
