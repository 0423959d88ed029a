package ring

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/peer/members"
)

// wrong is an error of a configuration that does not get better by itself; nil: there is none.
// A service is not started again for it.
func wrong(err error) error {
	if err == nil {
		return nil
	}
	return &admin.Error{Kind: admin.KindUsage, Message: err.Error(), Cause: err}
}

// lacking is an error of what may be there the next time: a name, an interface, an address.
func lacking(err error) error {
	return &admin.Error{Kind: admin.KindFailed, Message: err.Error(), Cause: err}
}

// Unjoined is an error of joining a ring as its reader is told: refused is who the ring does
// not take, or whose port somebody has.
func Unjoined(err error) error {
	kind := admin.KindOf(err)
	if errors.Is(err, members.ErrRefused) || errors.Is(err, members.ErrPort) || errors.Is(err, syscall.EADDRINUSE) {
		kind = admin.KindRefused
	}
	return &admin.Error{Kind: kind, Message: fmt.Sprintf("join the ring: %v", err), Cause: err}
}
