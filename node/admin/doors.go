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

// Doors are where a node answers; nil listeners: it does not there.
type Doors struct {
	Socket, Metrics net.Listener
	Pipe            *Pipe
	// Warning is why there are no metrics; "": there are, or nobody wants them.
	Warning string
	made    string // the socket's directory if it was made for it; "": it was there
}

// Open opens the admin socket at path; "-": none.
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

// ListenForMetrics opens their address; "-": none. A busy one is a warning where nobody
// asked for it, since two users may each run a node.
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

// Close ends all, and takes away what was made for the socket.
func (d *Doors) Close() {
	_ = d.Pipe.Close() // it ends here, whatever Close says
	for _, l := range []net.Listener{d.Socket, d.Metrics} {
		if l != nil {
			l.Close() // the socket's file goes with it
		}
	}
	if d.made != "" {
		_ = os.Remove(d.made) // unless something else lies there
	}
}

// answerGrace is how long answers under way may take once the node ends.
const answerGrace = 2 * time.Second

const (
	// headersWithin is how long a request's headers may take, and by TCP all of it: no request
	// there has a body.
	headersWithin = 10 * time.Second
	// idleFor is how long a connection may ask for nothing: Prometheus asks each minute.
	idleFor = 2 * time.Minute
	// takenWithin is how long a client by TCP may take for an answer of some hundred KiB.
	takenWithin = 30 * time.Second
	// mostHeaders of a request by TCP, in bytes: it has a path and no credentials. At the socket
	// a request names all that is to be warmed up.
	mostHeaders = 8 << 10
	// mostByTCP are connections by TCP: some scrapers, and people who look.
	mostByTCP = 64
	// mostOfOne are connections at the socket of one user who is no owner: the tasks of a
	// large machine, each of which waits for a warm-up.
	mostOfOne = 128
)

// Serve answers at a listener until ctx ends, and then those who have asked; nil: nobody
// asks there.
//
// By TCP anyone may come: all connections are bounded together, and where there are too
// many, the oldest of the address that has most goes. At a Unix socket each user has a
// bound, but for the node's owners.
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
		<-ended.Done() // the handlers' context as well: they are about to return
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerGrace)
		defer cancel()
		if s.Shutdown(grace) != nil {
			_ = s.Close() // what outlived its grace ends with the process
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
