package clients

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"

	"github.com/hearthfs/hearth/s3gw/object"
)

const (
	// barePiece bytes are written at a time: what costs least here.
	barePiece = 256 << 10
	// bareBlock is the size of a piece of memory from which bareBytes in all are sent, as many as
	// the large objects have: what fits a processor's cache would cost less to send.
	bareBlock = 1 << 20
	bareBytes = 2 * largeSize
)

// Bare is the process of a server that does nothing but write: each GET is answered by net/http
// from memory, with as many bytes as its range has, or as a small object. It is what any server in
// Go costs here. Its address goes out as a line; it ends with ctx.
func Bare(ctx context.Context, out io.Writer) error { return bare(ctx, out, bareBytes) }

// bare has size bytes in memory.
func bare(ctx context.Context, out io.Writer, size int64) error {
	blocks := make([][]byte, size/bareBlock)
	for i := range blocks {
		blocks[i] = make([]byte, bareBlock)
		for j := 0; j < bareBlock; j += 4096 { // or it would all be one page
			blocks[i][j] = byte(i + j/4096)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(out, l.Addr()); err != nil {
		return err
	}
	s := &http.Server{ConnContext: object.OnConnection, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		first, last, status := int64(0), int64(smallSize-1), http.StatusOK
		if from, to, ok := strings.Cut(strings.TrimPrefix(r.Header.Get("Range"), "bytes="), "-"); ok {
			status = http.StatusPartialContent
			first, _ = strconv.ParseInt(from, 10, 64)
			last, _ = strconv.ParseInt(to, 10, 64)
		}
		w.Header().Set("Content-Length", strconv.FormatInt(last+1-first, 10))
		w.WriteHeader(status)
		for at := first; at <= last; {
			block, in := blocks[at/bareBlock%int64(len(blocks))], at%bareBlock
			n, err := w.Write(block[in:min(in+barePiece, in+last+1-at, bareBlock)])
			if err != nil {
				return
			}
			at += int64(n)
		}
	})}
	defer context.AfterFunc(ctx, func() { _ = s.Close() })()
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
