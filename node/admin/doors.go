package admin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/hearthfs/hearth/internal/admit"
)

// Doors are the listeners at which a node answers. A nil listener means that it does not answer there.
type Doors struct {
	Socket, Metrics net.Listener
	Pipe            *Pipe
	// Warning says why there are no metrics. It is empty if there are, or if nobody wants them.
	Warning string
	made    string // the socket's directory if Open made it; "" means that it existed before
}

// Open opens the admin socket at path. "-" means none.
func Open(path string) (*Doors, error) {
	d := &Doors{Pipe: newPipe()}
	if path == "-" {
		return d, nil
	}
	socket, made, err := listen(path)
	if err != nil {
		return nil, err
	}
	d.Socket = socket
	if made {
		d.made = filepath.Dir(path)
	}
	return d, nil
}

// ListenForMetrics listens for metrics at address. "-" means none. If nobody asked for the address (it is the
// default), a busy one is only a warning, since two users may each run a node.
func (d *Doors) ListenForMetrics(address string, asked bool) (err error) {
	if address != "-" {
		d.Metrics, err = net.Listen("tcp", address)
	}
	switch {
	case err == nil:
		return nil
	case asked:
		return fmt.Errorf("listen for metrics: %w", err)
	}
	d.Warning = fmt.Sprintf("no metrics: %v (choose another address with --metrics-listen)", err)
	return nil
}

// Close closes all listeners, and removes the directory that was made for the socket.
func (d *Doors) Close() {
	_ = d.Pipe.Close() // the pipe ends here even if Close fails
	for _, l := range []net.Listener{d.Socket, d.Metrics} {
		if l != nil {
			l.Close() // the socket's file goes with it
		}
	}
	if d.made != "" {
		_ = os.Remove(d.made) // this fails if something else lies there
	}
}

// answerGrace is how long answers in flight may take once the node ends.
const answerGrace = 2 * time.Second

const (
	// headersWithin bounds the time of a request's headers, and by TCP of the whole request: no request there
	// has a body.
	headersWithin = 10 * time.Second
	// idleFor is how long an idle connection stays open. Prometheus asks each minute.
	idleFor = 2 * time.Minute
	// takenWithin is how long a client by TCP may take to read an answer of some hundred KiB.
	takenWithin = 30 * time.Second
	// mostHeaders bounds the headers of a request by TCP, in bytes: it has a path and no credentials. At the
	// socket a request names all that is to be warmed up.
	mostHeaders = 8 << 10
	// mostByTCP bounds the connections by TCP: some scrapers, and people who look.
	mostByTCP = 64
	// mostOfOne bounds the connections at the socket of one user who is no owner: the tasks of a large machine,
	// each of which waits for a warm-up.
	mostOfOne = 128
)

// Serve answers at a listener until ctx ends, and then finishes the requests in flight. With a nil listener it
// returns at once.
//
// By TCP anyone may connect. All connections there are bounded together. If there are too many, the oldest
// connection of the address with the most connections is closed. At a Unix socket each user has a bound, except
// the node's owners.
func Serve(ctx context.Context, l net.Listener, h http.Handler) error {
	if l == nil {
		return nil
	}
	s := &http.Server{Handler: h, ConnContext: note,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ReadHeaderTimeout: headersWithin, IdleTimeout: idleFor}
	switch l.(type) {
	case *net.TCPListener:
		s.ReadTimeout, s.WriteTimeout, s.MaxHeaderBytes = headersWithin, takenWithin, mostHeaders
		l = admit.Listener{Listener: l, Table: admit.New(mostByTCP, nil)}
	case *net.UnixListener:
		l = newShares(l)
	}
	ended, end := context.WithCancel(ctx)
	shut := make(chan struct{})
	go func() {
		defer close(shut)
		<-ended.Done() // this is the handlers' context, too: they are about to return
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerGrace)
		defer cancel()
		if s.Shutdown(grace) != nil {
			_ = s.Close() // what outlives its grace ends with the process
		}
	}()
	err := s.Serve(l)
	if failed := !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed); failed {
		end()
		<-shut
		return fmt.Errorf("admin API: %w", err)
	}
	<-shut
	end()
	return nil
}
