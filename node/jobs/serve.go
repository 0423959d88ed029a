package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/hearthfs/hearth/node/answer"
	"github.com/hearthfs/hearth/warmup"
)

// Serve adds the jobs' part of the admin API; plain adds a path that is answered with
// one document.
func (j *Jobs) Serve(mux *http.ServeMux, plain func(pattern string, do func(*http.Request) (any, error))) {
	plain("POST /v1/jobs", j.submit)
	plain("GET /v1/jobs", func(*http.Request) (any, error) { return j.engine.List(), nil })
	plain("GET /v1/jobs/{id}", func(r *http.Request) (any, error) {
		v, _, err := j.engine.Get(r.PathValue("id"))
		return v, err
	})
	plain("POST /v1/jobs/{id}/cancel", func(r *http.Request) (any, error) {
		return struct{}{}, j.engine.Cancel(r.PathValue("id"))
	})
	plain("POST /v1/jobs/{id}/retry", func(r *http.Request) (any, error) {
		return struct{}{}, j.engine.Retry(r.PathValue("id"))
	})
	mux.HandleFunc("GET /v1/jobs/{id}/watch", j.watch)
}

// submit takes what is asked for from the query, whose bytes may be any, and a list
// from the body.
func (j *Jobs) submit(r *http.Request) (any, error) {
	v := r.URL.Query()
	flag := func(name string) bool { return v.Get(name) == "true" }
	q := warmup.Request{Targets: v["target"], List: v.Get("list"), MetadataOnly: flag("metadata_only"), DryRun: flag("dry_run")}
	var err error
	if text := v.Get("rate"); text != "" {
		q.Rate, err = strconv.ParseInt(text, 10, 64)
	}
	if err != nil || q.Rate < 0 || (len(q.Targets) == 0) == (q.List == "") {
		return nil, &answer.Error{Kind: answer.KindUsage, Message: "warmup: either targets or a list, and a rate in bytes per second"}
	}
	for _, asked := range q.Targets {
		if err := j.parts.Check(r.Context(), asked); err != nil {
			return nil, err
		}
	}
	record, err := j.engine.Submit(q, r.Body, flag("nul"), j.parts.Canonical)
	if err != nil {
		return nil, err
	}
	view, _, err := j.engine.Get(record.ID)
	return view, err
}

// line is one of a watch: a job, or why there will be no more.
type line struct {
	Job   *warmup.View `json:"view,omitempty"`
	Error string       `json:"error,omitempty"`
}

// watch answers with a line for each change of a job until that is over, so that an
// answer that broke off is never taken for its end.
func (j *Jobs) watch(w http.ResponseWriter, r *http.Request) {
	e := json.NewEncoder(w)
	tell := func(l line) {
		_ = e.Encode(l) // the asker went away
		if f, ok := w.(http.Flusher); ok {
			f.Flush()
		}
	}
	for {
		v, changed, err := j.engine.Get(r.PathValue("id"))
		if err != nil {
			tell(line{Error: err.Error()})
			return
		}
		tell(line{Job: &v})
		if v.State.Over() {
			return
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		case <-j.engine.Done():
			tell(line{Error: errEnded.Error()})
			return
		}
	}
}

// Client asks a node about its jobs.
type Client struct {
	// Send sends a request and gives the answer if it is one, else the node's error.
	Send func(*http.Request) (*http.Response, error)
}

// Submit begins a job; list is that of a request that has one, its paths separated by
// NUL where nul is set.
func (c *Client) Submit(ctx context.Context, q warmup.Request, list io.Reader, nul bool) (*warmup.View, error) {
	v := url.Values{"target": q.Targets, "list": {q.List}, "metadata_only": {strconv.FormatBool(q.MetadataOnly)},
		"dry_run": {strconv.FormatBool(q.DryRun)}, "rate": {strconv.FormatInt(q.Rate, 10)}, "nul": {strconv.FormatBool(nul)}}
	view := &warmup.View{}
	return view, c.ask(ctx, http.MethodPost, "?"+v.Encode(), list, view)
}

// List gives all jobs, the latest first.
func (c *Client) List(ctx context.Context) (all []warmup.View, err error) {
	return all, c.ask(ctx, http.MethodGet, "", nil, &all)
}

// Get gives one job.
func (c *Client) Get(ctx context.Context, id string) (*warmup.View, error) {
	view := &warmup.View{}
	return view, c.ask(ctx, http.MethodGet, "/"+url.PathEscape(id), nil, view)
}

// Cancel ends a job.
func (c *Client) Cancel(ctx context.Context, id string) error {
	return c.ask(ctx, http.MethodPost, "/"+url.PathEscape(id)+"/cancel", nil, nil)
}

// Retry begins a job that is over again.
func (c *Client) Retry(ctx context.Context, id string) error {
	return c.ask(ctx, http.MethodPost, "/"+url.PathEscape(id)+"/retry", nil, nil)
}

// Watch calls each with a job now and at each change, until it is over or each
// returns false.
func (c *Client) Watch(ctx context.Context, id string, each func(warmup.View) bool) error {
	body, err := c.open(ctx, http.MethodGet, "/"+url.PathEscape(id)+"/watch", nil)
	if err != nil {
		return err
	}
	defer body.Close()
	d := json.NewDecoder(body)
	for {
		var l line
		switch err := d.Decode(&l); {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return &answer.Error{Kind: answer.KindUnreachable, Message: errEnded.Error()}
		case l.Error == errEnded.Error():
			return &answer.Error{Kind: answer.KindUnreachable, Message: l.Error}
		case l.Job == nil:
			return &answer.Error{Kind: answer.KindNotFound, Message: l.Error}
		}
		if !each(*l.Job) || l.Job.State.Over() {
			return nil
		}
	}
}

func (c *Client) open(ctx context.Context, method, rest string, body io.Reader) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://hearth/v1/jobs"+rest, body)
	if err != nil {
		return nil, err
	}
	resp, err := c.Send(req)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

func (c *Client) ask(ctx context.Context, method, rest string, body io.Reader, out any) error {
	in, err := c.open(ctx, method, rest, body)
	if err != nil {
		return err
	}
	defer in.Close()
	if out == nil {
		_, err = io.Copy(io.Discard, in)
	} else {
		err = json.NewDecoder(in).Decode(out)
	}
	if err != nil && ctx.Err() == nil {
		return &answer.Error{Kind: answer.KindUnreachable, Message: "read the node's answer: " + err.Error(), Cause: errors.Unwrap(err)}
	}
	return err
}
