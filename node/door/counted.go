package door

import "io"

// Counted is a Writer that counts what went through it.
type Counted struct {
	io.Writer
	// N is the number of bytes.
	N int64
}

// Write passes p on.
func (c *Counted) Write(p []byte) (int, error) {
	n, err := c.Writer.Write(p)
	c.N += int64(n)
	return n, err
}
