package node

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/hearthfs/hearth/cache/check"
	"github.com/hearthfs/hearth/node/answer"
	"github.com/hearthfs/hearth/node/api"
	"github.com/hearthfs/hearth/node/door"
	"github.com/hearthfs/hearth/node/fsck/report"
	"github.com/hearthfs/hearth/node/leaks"
	"github.com/hearthfs/hearth/node/machine"
)

// routes is the admin API: HTTP and JSON, errors as {"kind", "error"}.
func (n *Node) routes() http.Handler {
	mux := http.NewServeMux()
	answer := func(pattern string, do func(r *http.Request) (any, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			v, err := do(r)
			if err != nil {
				answerError(w, err)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(v) // the asker went away
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
	answer("GET /v1/stat", func(r *http.Request) (any, error) { return n.stat(r.Context(), r.FormValue("path")) })
	answer("GET /v1/explain", n.serveExplain)
	answer("GET /v1/du", func(r *http.Request) (any, error) { return n.usage(r.Context(), r.FormValue("path")) })
	n.jobs.Serve(mux, answer)
	n.jobs.keeper.Serve(answer)
	n.ring.routes(answer, n.fileOf)
	mux.HandleFunc("GET /v1/ls", n.serveList)
	mux.HandleFunc("GET /v1/cat", n.serveCat)
	mux.HandleFunc("GET /v1/goroutines", leaks.Goroutines)
	mux.HandleFunc("POST /v1/fsck", func(w http.ResponseWriter, r *http.Request) {
		repair, _ := strconv.ParseBool(r.FormValue("repair"))
		report.Serve(w, repair, func(run *check.Run) error {
			return n.parts().Live(r.Context(), r.FormValue("dir"), run)
		})
	})
	n.addHealth(mux)
	return mux
}

// addHealth adds what anyone on this machine may see.
func (n *Node) addHealth(mux *http.ServeMux) {
	registry := prometheus.NewRegistry()
	register(registry, n)
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) {
		if s := n.Status(r.Context()); len(s.Problems) > 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprintln(w, machine.Line(s.Says))
			return
		}
		fmt.Fprintln(w, "ok")
	})
}

func answerError(w http.ResponseWriter, err error) {
	e := &Error{Kind: answer.KindOf(err), Message: err.Error()}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(api.HTTPStatus(e.Kind))
	_ = json.NewEncoder(w).Encode(e) // the asker went away
}

func (n *Node) serveMount(r *http.Request) (any, error) {
	var m MountRequest
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(&m); err != nil {
		return nil, usage("mount: %v", err)
	}
	return n.Mount(r.Context(), m)
}

// serveList streams one Entry a line and ends with {"end":true} or an error, so
// that a listing that broke off is never taken for a short one.
func (n *Node) serveList(w http.ResponseWriter, r *http.Request) {
	recursive, _ := strconv.ParseBool(r.FormValue("recursive"))
	e := json.NewEncoder(w)
	sent := false
	flushed := time.Now()
	hidden, err := n.list(r.Context(), r.FormValue("path"), recursive, func(entry Entry) error {
		sent = true
		if f, ok := w.(http.Flusher); ok && time.Since(flushed) > 100*time.Millisecond {
			f.Flush()
			flushed = time.Now()
		}
		return e.Encode(entry)
	})
	switch {
	case err != nil && !sent:
		answerError(w, err)
	case err != nil:
		_ = e.Encode(&Error{Kind: answer.KindOf(err), Message: err.Error()})
	default:
		_ = e.Encode(api.ListEnd{End: true, Hidden: hidden})
	}
}

func (n *Node) serveCat(w http.ResponseWriter, r *http.Request) {
	off, err := strconv.ParseInt(r.FormValue("off"), 10, 64)
	length, err2 := strconv.ParseInt(r.FormValue("n"), 10, 64)
	if errors.Join(err, err2) != nil || off < 0 {
		answerError(w, usage("cat: off and n are numbers of bytes"))
		return
	}
	w.Header().Set("Trailer", api.ErrorTrailer+", "+api.KindTrailer)
	out := &door.Counted{Writer: w}
	if err := n.cat(r.Context(), r.FormValue("path"), span{off, length}, out); err != nil {
		if out.N == 0 {
			w.Header().Del("Trailer")
			answerError(w, err)
			return
		}
		w.Header().Set(api.ErrorTrailer, err.Error())
		w.Header().Set(api.KindTrailer, string(answer.KindOf(err)))
	}
}

// openDoors opens the admin socket; "": the default one, "-": none.
func openDoors(path string) (*door.Doors, error) {
	d, err := door.Open(cmp.Or(path, DefaultSocket()))
	if err != nil {
		return nil, &Error{Kind: answer.KindOf(err), Message: err.Error()}
	}
	return d, nil
}

// serveAdmin answers at the doors until the node ends.
func (n *Node) serveAdmin() {
	health := http.NewServeMux()
	n.addHealth(health)
	routes := n.routes()
	n.group.Go(func() error { return door.Serve(n.ctx, n.doors.Socket, door.Check(routes, answerError)) })
	n.group.Go(func() error { return door.Serve(n.ctx, n.doors.Metrics, health) })
	n.group.Go(func() error { return door.Serve(n.ctx, n.doors.Pipe, routes) })
}
