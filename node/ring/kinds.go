package ring

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/peer/members"
)

// wrong marks an error of a configuration that does not heal by itself, so that a service is not started again.
// It returns nil for nil.
func wrong(err error) error {
	if err == nil {
		return nil
	}
	return &admin.Error{Kind: admin.KindUsage, Message: err.Error(), Cause: err}
}

// lacking marks an error of something that may be there the next time: a name, an interface, an address.
func lacking(err error) error {
	return &admin.Error{Kind: admin.KindFailed, Message: err.Error(), Cause: err}
}

// Unjoined returns the error of a failed join for the user. It is of kind refused if the ring refuses the node,
// or if its port is taken.
func Unjoined(err error) error {
	kind := admin.KindOf(err)
	if errors.Is(err, members.ErrRefused) || errors.Is(err, members.ErrPort) || errors.Is(err, syscall.EADDRINUSE) {
		kind = admin.KindRefused
	}
	return &admin.Error{Kind: kind, Message: fmt.Sprintf("join the ring: %v", err), Cause: err}
}
