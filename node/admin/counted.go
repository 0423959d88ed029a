package admin

import "io"

// counted is a Writer that counts the bytes written through it.
type counted struct {
	io.Writer
	// N is the number of bytes.
	N int64
}

// Write passes p on.
func (c *counted) Write(p []byte) (int, error) {
	n, err := c.Writer.Write(p)
	c.N += int64(n)
	return n, err
}
