package node

import (
	"context"
	"errors"
	"fmt"
)

// Reload reads again what may change while the node runs: the credentials of its origins, and the keys and
// certificate of its S3 endpoint. It reopens the endpoint's log if the file was moved away. What cannot be read
// is returned as an error, and the old content stays in force.
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
