package ring

import (
	"context"
	"net/http"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/node/status"
)

// errAlone is the answer of a node that is in no ring.
func errAlone() error {
	return &admin.Error{Kind: admin.KindRefused, Message: "this node is in no ring: start it with --listen ADDRESS, and all but the first with --join HOST[,HOST] (node.listen and join in the configuration)"}
}

// Routes adds the admin API's questions about the ring. file finds the object at a path. A nil Part answers
// that the node is in no ring.
func (r *Part) Routes(add func(pattern string, do func(*http.Request) (any, error)), file func(ctx context.Context, asked string) (*hearth.Object, error)) {
	add("GET /v1/ring", func(q *http.Request) (any, error) {
		if r == nil {
			return nil, errAlone()
		}
		return r.Status(q.Context())
	})
	add("GET /v1/ring/owners", func(q *http.Request) (any, error) {
		if r == nil {
			return nil, errAlone()
		}
		asked := q.FormValue("path")
		o, err := file(q.Context(), asked)
		if err != nil {
			return nil, err
		}
		return &status.Owned{Path: asked, Size: o.Size, Extents: r.Owners(o)}, nil
	})
}
