package api

import (
	"context"
	"net/http"
	"net/url"

	"github.com/hearthfs/hearth/node/figures"
)

// What a ring looks like lies in the vocabulary of figures.
type (
	RingStatus    = figures.Ring
	RingReads     = figures.RingReads
	MemberStatus  = figures.Member
	MemberFigures = figures.MemberFigures
	Owned         = figures.Owned
	OwnedExtent   = figures.OwnedExtent
	RingLine      = figures.RingLine
)

// Ring asks how the node sees its ring, and each member for its figures.
func (c *Client) Ring(ctx context.Context) (*RingStatus, error) {
	s := &RingStatus{}
	return s, c.call(ctx, http.MethodGet, "/v1/ring", nil, s)
}

// Owners asks who owns the parts of a file.
func (c *Client) Owners(ctx context.Context, path string) (*Owned, error) {
	o := &Owned{}
	return o, c.call(ctx, http.MethodGet, "/v1/ring/owners?"+url.Values{"path": {path}}.Encode(), nil, o)
}
