package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/node/config"
)

// askNode asks whether a node runs, and how it is.
func askNode(ctx context.Context, o Options) (*Running, []Finding) {
	if o.Node == nil || o.Admin.Socket == "-" {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, nodeBound)
	defer cancel()
	r, err := o.Node(ctx)
	return r, []Finding{judgeNode(o.Admin.Socket, r, err)}
}

func judgeNode(socket string, r *Running, err error) Finding {
	f := Finding{Check: "node", Verdict: OK}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		f.Verdict, f.Cure = Fail, "look at its log; what it waits for is seen by curl --unix-socket "+socket+" http://node/v1/goroutines, else end it"
		f.Found = fmt.Sprintf("one listens at %s and does not answer within %v", socket, nodeBound)
	case err != nil:
		f.Verdict, f.Cure = Fail, "fix what the line names, or choose another socket with --admin-socket"
		f.Found = err.Error()
	case r == nil:
		f.Found = "none runs at " + socket
	case !r.Well:
		f.Verdict, f.Cure = Warn, "hearth status has all of it"
		f.Found = fmt.Sprintf("hearth %s, process %d, answers: %s", r.Version, r.PID, r.Says)
	default:
		f.Found = fmt.Sprintf("hearth %s, process %d, answers that all is well", r.Version, r.PID)
	}
	if r != nil && r.Keeper != nil && r.Keeper.Starts > 1 {
		f.Found += fmt.Sprintf("; its keeper has started %d: the last one %s, and its mounts stood still for %.1f s", r.Keeper.Starts, r.Keeper.Cause, r.Keeper.StalledS)
	}
	return f
}

// atDoors checks whether a node could listen where it is configured to.
func atDoors(ctx context.Context, o Options, running *Running) (all []Finding) {
	if o.Admin.Socket != "-" && running == nil {
		all = append(all, judgeSocket(o.Admin.Socket, lookSocket(o.Admin.Socket)))
	}
	if o.Admin.Listen != "-" {
		address := cmp.Or(o.Admin.Listen, config.DefaultListen)
		free, ours := lookAddress(ctx, address)
		all = append(all, judgeAddress(address, running != nil, free, ours))
	}
	return all
}

var (
	errLong      = errors.New("the path is longer than the 107 bytes that a socket's may have")
	errNoSocket  = errors.New("something that is no socket has that name")
	errNoPlace   = errors.New("its directory cannot be made or written")
	errForgotten = errors.New("a node that was killed left it behind")
)

// lookSocket says what is wrong with the place of a socket at which nobody answers.
func lookSocket(socket string) error {
	dir := filepath.Dir(socket)
	if err := admin.Trusted(dir); err != nil {
		return err
	}
	if len(socket) > 107 {
		return errLong
	}
	if info, err := os.Lstat(socket); err == nil && info.Mode()&os.ModeSocket == 0 {
		return errNoSocket
	}
	at := dir
	for {
		if _, err := os.Stat(at); !errors.Is(err, os.ErrNotExist) || at == "/" {
			break
		}
		at = filepath.Dir(at)
	}
	if unix.Access(at, unix.W_OK|unix.X_OK) != nil {
		return errNoPlace
	}
	if _, err := os.Lstat(socket); err == nil {
		return errForgotten
	}
	return nil
}

func judgeSocket(socket string, err error) Finding {
	f := Finding{"admin socket", socket, Fail, "", "choose another socket with --admin-socket"}
	switch {
	case err == nil:
		return Finding{Check: f.Check, Subject: socket, Verdict: OK, Found: "free"}
	case errors.Is(err, errForgotten):
		return Finding{Check: f.Check, Subject: socket, Verdict: OK, Found: err.Error() + "; the next one takes it over"}
	case errors.Is(err, errNoSocket):
		f.Verdict, f.Cure = Warn, "move it away: a node that starts removes it, or "+f.Cure
	}
	f.Found = err.Error()
	if found, cure := apart(f.Found, ": "); strings.Contains(cure, "--admin-socket") {
		f.Found, f.Cure = found, cure
	}
	return f
}

// lookAddress listens at an address for a moment. If the address is in use, it asks who answers there.
func lookAddress(ctx context.Context, address string) (failed error, ours bool) {
	var listen net.ListenConfig
	l, err := listen.Listen(ctx, "tcp", address)
	if err == nil {
		return l.Close(), false
	}
	if !errors.Is(err, syscall.EADDRINUSE) {
		return err, false
	}
	req, wrong := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", nil)
	if wrong != nil {
		return err, false
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, wrong := client.Do(req)
	if wrong != nil {
		return err, false
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	return err, strings.Contains(string(text), "hearth_problems")
}

// judgeAddress says whether there will be metrics. A busy default address costs the metrics. A busy address
// that was configured keeps the node from starting.
func judgeAddress(address string, runs bool, failed error, ours bool) Finding {
	f := Finding{Check: "metrics address", Subject: address, Verdict: OK, Found: "free"}
	switch {
	case failed == nil && runs:
		f.Verdict, f.Found = Warn, "free, though a node runs: it serves no metrics there"
		f.Cure = "see its log for the line \"no metrics\", and start it again"
	case failed == nil:
	case ours && runs:
		f.Found = "the node answers there"
	case ours:
		f.Verdict, f.Found, f.Cure = Warn, "another hearth answers there", "choose another address with --metrics-listen"
	case errors.Is(failed, syscall.EADDRINUSE) && address == config.DefaultListen:
		f.Verdict, f.Found, f.Cure = Warn, "in use by another program: a node starts without metrics", "choose another address with --metrics-listen"
	default:
		f.Verdict, f.Found, f.Cure = Fail, failed.Error(), "choose another address with --metrics-listen"
	}
	return f
}
