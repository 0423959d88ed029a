package node

import (
	"context"
	"errors"
	"fmt"
)

// Reload reads again what may change while the node runs: the credentials of its origins, keys and
// certificate of its S3 endpoint; and begins the endpoint's log anew where that was moved away.
// What is wrong is said, and goes on as it was.
func (n *Node) Reload(ctx context.Context) error {
	var errs []error
	for _, l := range n.links.list() {
		o, ok := l.origin.(interface{ Reread(context.Context) error })
		if !ok {
			continue
		}
		if err := o.Reread(ctx); err != nil {
			errs = append(errs, fmt.Errorf("link %s: %w", l.Path, err))
		}
	}
	if n.s3 != nil {
		errs = append(errs, n.s3.Reload())
	}
	return errors.Join(errs...)
}
