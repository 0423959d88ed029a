package fakenvmet

// input is the buffered input of a queue.
type input struct {
	recv   func([]byte) (int, error) // reads from the connection
	buffer []byte
	r, w   int // what of buffer is not used yet
	header [capsuleLen + digestLen]byte
}

// empty reports whether all that was read is used.
func (i *input) empty() bool { return i.r == i.w }

// peek returns the next n bytes, at most inputSize, without using them.
func (i *input) peek(n int) ([]byte, error) {
	if i.empty() {
		i.r, i.w = 0, 0
	}
	if i.r+n > len(i.buffer) {
		i.w = copy(i.buffer, i.buffer[i.r:i.w])
		i.r = 0
	}
	for i.w-i.r < n {
		got, err := i.recv(i.buffer[i.w:])
		i.w += got
		if err != nil {
			return nil, err
		}
	}
	return i.buffer[i.r : i.r+n], nil
}

// skip uses n bytes that peek has shown.
func (i *input) skip(n int) { i.r += n }

// hold uses n bytes, a header and its digest, and keeps them until the next one.
func (i *input) hold(n int) ([]byte, error) {
	b, err := i.peek(n)
	if err != nil {
		return nil, err
	}
	i.skip(n)
	return i.header[:copy(i.header[:], b)], nil
}

// take uses the next bytes: what is buffered, and then directly from the connection.
func (i *input) take(b []byte) error {
	n := copy(b, i.buffer[i.r:i.w])
	i.skip(n)
	for n < len(b) {
		got, err := i.recv(b[n:])
		n += got
		if err != nil {
			return err
		}
	}
	return nil
}
