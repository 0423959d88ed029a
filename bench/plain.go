package main

import (
	"cmp"
	"context"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// This file is what Hearth's warm-up is measured against: a downloader and a
// lister that do what has to be done over kept-alive connections, and no more. They
// keep no checksums, try nothing again, and cannot go on after a failure.
//
// Download lists a prefix page by page; N workers get what a page has named while the
// next one is asked for. What is larger than a part is fetched in parts by ranged
// GETs, as the usual tools do, so that a few large objects use all connections. A
// worker writes each body to its place in a file as it comes. At the end one
// syncfs brings everything to the device. It is the call that ends Hearth's own flush,
// so both sides are done when the same has been promised, and it costs the downloader
// less than an fsync of each file would.
//
// List asks for page after page, each as large as S3 allows, and writes a line a key; with more
// connections than one it has a worker each list a directory.

// plainOrigin is where the objects are.
type plainOrigin struct {
	hearthtest.S3
	// Bucket and Prefix say which; Prefix is "" or ends in "/".
	Bucket, Prefix string
	// Connections is how many requests are under way at once; those of a download's
	// listing, one at a time, come beside them.
	Connections int
	// Page is how many keys are asked for at a time; 0: 1000, the most that S3 gives.
	Page int
	// Part is the most that is asked for by one GET, in bytes; 0: PartSize.
	Part int64
}

// plainSum is what was done.
type plainSum struct {
	Files int64 `json:"files"`
	Bytes int64 `json:"bytes"`
}

// plainClient is one whose connections are kept between requests.
func plainClient(connections int) *http.Client {
	return &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: connections + 1, DisableCompression: true}}
}

// page of a listing.
type page struct {
	IsTruncated           bool
	NextContinuationToken string
	Contents              []struct {
		Key  string
		Size int64
	}
	CommonPrefixes []struct{ Prefix string }
}

// pages calls each for a listing's pages.
func (o *plainOrigin) pages(ctx context.Context, prefix, delimiter string, each func(page) error) error {
	query := url.Values{"list-type": {"2"}, "max-keys": {strconv.Itoa(cmp.Or(o.Page, 1000))}, "prefix": {prefix}}
	if delimiter != "" {
		query.Set("delimiter", delimiter)
	}
	for {
		p := page{}
		err := o.get(ctx, request{query: query, status: http.StatusOK}, func(body io.Reader) error {
			return xml.NewDecoder(body).Decode(&p)
		})
		if err != nil {
			return fmt.Errorf("list %s: %w", prefix, err)
		}
		if err := each(p); err != nil || !p.IsTruncated {
			return err
		}
		query.Set("continuation-token", p.NextContinuationToken)
	}
}

// request is a GET of a key, or, without one, of the bucket.
type request struct {
	key, bytes string // bytes: the range; "": all
	query      url.Values
	status     int // that is wanted
}

// get sends a request and gives its answer's body to read.
func (o *plainOrigin) get(ctx context.Context, r request, read func(body io.Reader) error) error {
	req, err := o.Request(ctx, http.MethodGet, o.Bucket, r.key, r.query)
	if err != nil {
		return err
	}
	if r.bytes != "" {
		req.Header.Set("Range", r.bytes)
	}
	resp, err := o.S3.Client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != r.status {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
		return fmt.Errorf("%s: %s", resp.Status, text)
	}
	return read(resp.Body)
}
