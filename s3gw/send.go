package s3gw

import (
	"net/http"
	"time"
)

const (
	// documentPiece bytes of a document are written at a time: a client that takes less than
	// that within documentPatience gets no more.
	documentPiece    = 64 << 10
	documentPatience = time.Minute
)

// send writes the body of an answer, and gives the client its patience anew for each piece:
// whoever asks for listings and takes none would keep their memory for ever. net/http takes the
// deadline away after the answer.
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
