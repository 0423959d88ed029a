package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/hearthfs/hearth/warmup"
)

// Jobs asks a node about its jobs.
type Jobs struct {
	// send returns the answer, or the error that the node answered.
	send func(*http.Request) (*http.Response, error)
}

// Submit begins a job. list is the list of targets, if the request has one. nul says that its paths are
// separated by NUL.
func (c *Jobs) Submit(ctx context.Context, q warmup.Request, list io.Reader, nul bool) (*warmup.View, error) {
	v := url.Values{"target": q.Targets, "list": {q.List}, "metadata_only": {strconv.FormatBool(q.MetadataOnly)},
		"dry_run": {strconv.FormatBool(q.DryRun)}, "rate": {strconv.FormatInt(q.Rate, 10)}, "pin_s": {strconv.FormatInt(q.PinS, 10)}, "nul": {strconv.FormatBool(nul)}, "check": {strconv.FormatBool(q.Check)}, "to_volume": {strconv.FormatBool(q.ToVolume)}}
	view := &warmup.View{}
	return view, c.ask(ctx, http.MethodPost, "?"+v.Encode(), list, view)
}

// List gives all jobs, the latest first.
func (c *Jobs) List(ctx context.Context) (all []warmup.View, err error) {
	return all, c.ask(ctx, http.MethodGet, "", nil, &all)
}

// Get returns the state of a job. It also finds jobs that ended, for as long as the node keeps their records.
func (c *Jobs) Get(ctx context.Context, id string) (*warmup.View, error) {
	view := &warmup.View{}
	return view, c.ask(ctx, http.MethodGet, "/"+url.PathEscape(id), nil, view)
}

// Cancel ends a job.
func (c *Jobs) Cancel(ctx context.Context, id string) error {
	return c.ask(ctx, http.MethodPost, "/"+url.PathEscape(id)+"/cancel", nil, nil)
}

// Retry begins an ended job again.
func (c *Jobs) Retry(ctx context.Context, id string) error {
	return c.ask(ctx, http.MethodPost, "/"+url.PathEscape(id)+"/retry", nil, nil)
}

// Found calls each with every finding of a check so far.
func (c *Jobs) Found(ctx context.Context, id string, each func(warmup.Sample) error) error {
	body, err := c.open(ctx, http.MethodGet, "/"+url.PathEscape(id)+"/found", nil)
	if err != nil {
		return err
	}
	defer body.Close()
	for d := json.NewDecoder(body); d.More(); {
		var s warmup.Sample
		if err := d.Decode(&s); err != nil {
			return fmt.Errorf("read what the check found: %w", err)
		}
		if err := each(s); err != nil {
			return err
		}
	}
	return nil
}

// Watch calls each with a job's present state and at each change, until the job is over or each returns false.
func (c *Jobs) Watch(ctx context.Context, id string, each func(warmup.View) bool) error {
	body, err := c.open(ctx, http.MethodGet, "/"+url.PathEscape(id)+"/watch", nil)
	if err != nil {
		return err
	}
	defer body.Close()
	d := json.NewDecoder(body)
	for {
		var l warmup.Update
		switch err := d.Decode(&l); {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return &Error{Kind: KindUnreachable, Message: warmup.ErrEnded.Error()}
		case l.Error == warmup.ErrEnded.Error():
			return &Error{Kind: KindUnreachable, Message: l.Error}
		case l.Job == nil:
			return &Error{Kind: KindNotFound, Message: l.Error}
		}
		if !each(*l.Job) || l.Job.State.Over() {
			return nil
		}
	}
}

func (c *Jobs) open(ctx context.Context, method, rest string, body io.Reader) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://hearth/v1/jobs"+rest, body)
	if err != nil {
		return nil, err
	}
	resp, err := c.send(req)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

func (c *Jobs) ask(ctx context.Context, method, rest string, body io.Reader, out any) error {
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
		return &Error{Kind: KindUnreachable, Message: "read the node's answer: " + err.Error(), Cause: errors.Unwrap(err)}
	}
	return err
}
