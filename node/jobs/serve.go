package jobs

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/warmup"
)

// Serve adds the jobs' part of the admin API. plain adds a route that answers with one document.
func (j *Jobs) Serve(mux *http.ServeMux, plain func(pattern string, do func(*http.Request) (any, error))) {
	plain("POST /v1/jobs", j.submit)
	plain("GET /v1/jobs", func(*http.Request) (any, error) { return j.engine.List(), nil })
	plain("GET /v1/jobs/{id}", func(r *http.Request) (any, error) {
		v, _, err := j.engine.Get(r.PathValue("id"))
		return v, err
	})
	plain("POST /v1/jobs/{id}/cancel", func(r *http.Request) (any, error) {
		id, err := j.own(r, "cancel")
		if err != nil {
			return nil, err
		}
		return struct{}{}, j.engine.Cancel(r.Context(), id)
	})
	plain("POST /v1/jobs/{id}/retry", func(r *http.Request) (any, error) {
		id, err := j.own(r, "retry")
		if err != nil {
			return nil, err
		}
		return struct{}{}, j.retry(id)
	})
	mux.HandleFunc("GET /v1/jobs/{id}/watch", j.watch)
	mux.HandleFunc("GET /v1/jobs/{id}/found", j.found)
}

// own returns the id of the job that a request names, if the caller may do that with it.
func (j *Jobs) own(r *http.Request, do string) (id string, err error) {
	id = r.PathValue("id")
	v, _, err := j.engine.Get(id)
	if err == nil && !admin.MayEnd(admin.From(r.Context()).UID, v.UID) {
		err = warmup.Refusal(fmt.Sprintf("the job %s is of the user %d: only that user, root and the node's user may %s it (hearth warmup begins one of your own)", id, v.UID, do))
	}
	return id, err
}

// submit reads the request from the query, which may have any bytes, and a list from the body.
func (j *Jobs) submit(r *http.Request) (any, error) {
	v := r.URL.Query()
	flag := func(name string) bool { return v.Get(name) == "true" }
	q := warmup.Request{Targets: v["target"], List: v.Get("list"), MetadataOnly: flag("metadata_only"), DryRun: flag("dry_run"), Check: flag("check"),
		ToVolume: flag("to_volume"), UID: admin.From(r.Context()).UID}
	var err error
	if text := v.Get("rate"); text != "" {
		q.Rate, err = strconv.ParseInt(text, 10, 64)
	}
	if text := v.Get("pin_s"); text != "" && err == nil {
		q.PinS, err = strconv.ParseInt(text, 10, 64)
	}
	if err != nil || q.Rate < 0 || (len(q.Targets) == 0) == (q.List == "") {
		return nil, &admin.Error{Kind: admin.KindUsage, Message: "warmup: either targets or a list, and a rate in bytes per second"}
	}
	if q.Check && (q.MetadataOnly || q.DryRun) {
		return nil, &admin.Error{Kind: admin.KindUsage, Message: "warmup: a check loads nothing, and is no dry run"}
	}
	if q.ToVolume && (q.MetadataOnly || q.PinS != 0) {
		return nil, &admin.Error{Kind: admin.KindUsage, Message: "warmup: volumes keep blocks, not names alone, and pins hold what disks have"}
	}
	if q.ToVolume {
		if err := j.parts.Volumes.refuses(); err != nil {
			return nil, err
		}
	}
	for _, asked := range q.Targets {
		if err := j.parts.Check(r.Context(), asked); err != nil {
			return nil, err
		}
	}
	canonical := j.parts.Canonical
	if q.PinS != 0 {
		if canonical, err = j.pinned(r.Context(), &q); err != nil {
			return nil, err
		}
	}
	var record warmup.Record
	err = j.begin(q.List != "", func() (err error) {
		record, err = j.engine.Submit(q, r.Body, flag("nul"), canonical)
		return err
	})
	if err != nil {
		return nil, err
	}
	view, _, err := j.engine.Get(record.ID)
	return view, err
}

// retry begins an ended job again, which takes a place as a new one does.
func (j *Jobs) retry(id string) error {
	v, _, err := j.engine.Get(id)
	if err != nil {
		return err
	}
	return j.begin(v.List != "", func() error { return j.engine.Retry(id) })
}

// pinned turns the targets of a request that pins into paths of the tree, since pins follow paths.
func (j *Jobs) pinned(ctx context.Context, q *warmup.Request) (canonical func(string) string, err error) {
	if q.PinS < warmup.Forever || q.List != "" || q.MetadataOnly || q.DryRun {
		return nil, &admin.Error{Kind: admin.KindUsage, Message: "warmup: only paths and URLs that are loaded can be pinned, not a list, names alone or a dry run; for a time, or until they are unpinned"}
	}
	if j.parts.Owners != nil {
		return nil, warmup.Refusal("a pin keeps what this node holds, and on a member of a ring most of it lies at other nodes: " +
			"warm up without a pin, and give the nodes as much disk as all of it takes")
	}
	asked := q.Targets
	q.Targets, q.As = nil, nil
	for _, a := range asked {
		paths, err := j.parts.Paths(ctx, a)
		if err != nil {
			return nil, err
		}
		q.Targets = append(q.Targets, paths...)
		for _, path := range paths {
			if len(paths) == 1 {
				path = a
			}
			q.As = append(q.As, path)
		}
	}
	return func(path string) string { return path }, nil
}

// watch answers with a line for each change of a job until the job is over. So an answer that broke off is
// never taken for the job's end.
func (j *Jobs) watch(w http.ResponseWriter, r *http.Request) {
	e := json.NewEncoder(w)
	tell := func(l warmup.Update) {
		_ = e.Encode(l) // an error means that the client went away
		if f, ok := w.(http.Flusher); ok {
			f.Flush()
		}
	}
	for {
		v, changed, err := j.engine.Get(r.PathValue("id"))
		if err != nil {
			tell(warmup.Update{Error: err.Error()})
			return
		}
		tell(warmup.Update{Job: &v})
		if v.State.Over() {
			return
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		case <-j.engine.Done():
			tell(warmup.Update{Error: warmup.ErrEnded.Error()})
			return
		}
	}
}

// found answers with a line for each path that a check has found not to be whole.
func (j *Jobs) found(w http.ResponseWriter, r *http.Request) {
	in, err := j.engine.Findings(r.PathValue("id"))
	if err != nil {
		w.WriteHeader(http.StatusNotFound)
		_ = json.NewEncoder(w).Encode(&admin.Error{Kind: admin.KindOf(err), Message: err.Error()})
		return
	}
	defer in.Close()
	_, _ = io.Copy(w, in) // an error means that the client went away
}
