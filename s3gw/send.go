package s3gw

import (
	"net/http"
	"time"
)

const (
	// documentPiece is how many bytes of a document are written at a time. A client must take one
	// within documentPatience.
	documentPiece    = 64 << 10
	documentPatience = time.Minute
)

// send writes the body of an answer, and renews the client's deadline for each piece. A client that
// asks for listings and takes none would otherwise keep their memory for ever. net/http clears the
// deadline after the answer.
func send(w http.ResponseWriter, text []byte, patience time.Duration) error {
	c := http.NewResponseController(w)
	for len(text) > 0 {
		_ = c.SetWriteDeadline(time.Now().Add(patience)) // a test's recorder has none
		n, err := w.Write(text[:min(len(text), documentPiece)])
		if err != nil {
			return err
		}
		text = text[n:]
	}
	return nil
}
