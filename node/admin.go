package node

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/hearthfs/hearth/cache/check"
	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/node/fsck"
	"github.com/hearthfs/hearth/node/machine"
)

// routes returns the admin API: HTTP with JSON bodies, and errors as {"kind", "error"}. admin.Check refuses
// requests that a client may not make.
func (n *Node) routes() http.Handler {
	mux := http.NewServeMux()
	answer := func(pattern string, do func(r *http.Request) (any, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			v, err := do(r)
			if err != nil {
				admin.Fail(w, err)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(v) // an error means that the client went away
		})
	}
	answer("GET /v1/status", func(r *http.Request) (any, error) { return n.Status(r.Context()), nil })
	answer("POST /v1/mounts", n.serveMount)
	answer("DELETE /v1/mounts", func(r *http.Request) (any, error) {
		lazy, _ := strconv.ParseBool(r.FormValue("lazy"))
		return struct{}{}, n.Unmount(r.FormValue("dir"), lazy)
	})
	answer("GET /v1/mounts/wait", func(r *http.Request) (any, error) {
		return struct{}{}, n.waitUnmounted(r.Context(), r.FormValue("dir"))
	})
	answer("POST /v1/upgrade", func(r *http.Request) (any, error) {
		return struct{}{}, n.Upgrade(r.Context(), r.FormValue("program"))
	})
	answer("GET /v1/stat", func(r *http.Request) (any, error) { return n.stat(r.Context(), r.FormValue("path")) })
	answer("GET /v1/explain", n.serveExplain)
	answer("POST /v1/refresh", n.serveRefresh)
	answer("GET /v1/du", func(r *http.Request) (any, error) { return n.usage(r.Context(), r.FormValue("path")) })
	n.jobs.Serve(mux, answer)
	n.jobs.keeper.Serve(answer)
	n.ring.routes(answer, n.fileOf)
	n.volumeRoutes(answer)
	n.draftRoutes(answer)
	mux.HandleFunc("GET /v1/ls", func(w http.ResponseWriter, r *http.Request) { admin.ServeList(w, r, n.list) })
	mux.HandleFunc("GET /v1/cat", func(w http.ResponseWriter, r *http.Request) { admin.ServeCat(w, r, n.cat) })
	mux.HandleFunc("GET /v1/goroutines", serveGoroutines)
	mux.HandleFunc("POST /v1/fsck", func(w http.ResponseWriter, r *http.Request) {
		repair, _ := strconv.ParseBool(r.FormValue("repair"))
		fsck.Serve(w, repair, func(run *check.Run) error {
			return n.parts().Live(r.Context(), r.FormValue("dir"), run)
		})
	})
	n.addHealth(mux)
	return admin.Check(mux, admin.Fail)
}

// Client returns a Client that asks this node from within its own process.
func (n *Node) Client() *admin.Client { return admin.Over(n.doors.Pipe.Dial) }

// addHealth adds /metrics and /healthz, which anyone on this machine may ask for.
func (n *Node) addHealth(mux *http.ServeMux) {
	registry := prometheus.NewRegistry()
	register(registry, n)
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) {
		if s := n.Status(r.Context()); len(s.Problems) > 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = fmt.Fprintln(w, machine.Line(s.Says)) // an error means that the client went away
			return
		}
		_, _ = fmt.Fprintln(w, "ok") // an error means that the client went away
	})
}

func (n *Node) serveMount(r *http.Request) (any, error) {
	var m admin.MountRequest
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(&m); err != nil {
		return nil, usage("mount: %v", err)
	}
	if m.At = admin.Handed(r.Context()); m.Handed && m.At == nil {
		return nil, usage("mount %s: it is an automount point, and its descriptor did not come along: ask at the node's own socket", m.Dir)
	}
	return n.Mount(r.Context(), m)
}

// openDoors opens the admin socket at path. An empty path means the default socket, "-" means none.
func openDoors(path string) (*admin.Doors, error) {
	d, err := admin.Open(cmp.Or(path, admin.DefaultSocket()))
	if err != nil {
		return nil, &admin.Error{Kind: admin.KindOf(err), Message: err.Error(), Cause: err}
	}
	return d, nil
}

// serveAdmin serves the admin API and the metrics on the node's listeners until the node ends.
func (n *Node) serveAdmin() {
	health := http.NewServeMux()
	n.addHealth(health)
	routes := n.routes()
	n.group.Go(func() error { return admin.Serve(n.ctx, n.doors.Socket, routes) })
	n.group.Go(func() error { return admin.Serve(n.ctx, n.doors.Metrics, health) })
	n.group.Go(func() error { return admin.Serve(n.ctx, n.doors.Pipe, routes) })
}
