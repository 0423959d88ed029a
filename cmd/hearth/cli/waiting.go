package cli

import (
	"context"
	"fmt"
	"io"
	"time"
)

// patience is how long a verb waits in silence: whoever typed it wonders by then whether it hangs.
const patience = 2 * time.Second

// Waiting says on w what is waited for, if that takes longer than people wait in silence. what is asked for it then; "": nothing
// is said. The function that comes back ends it.
func (c *Common) Waiting(w io.Writer, what func(context.Context) string) (ended func()) {
	if c.Quiet {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	said := make(chan struct{})
	timer := time.AfterFunc(patience, func() {
		defer close(said)
		if text := what(ctx); text != "" && ctx.Err() == nil {
			_, _ = fmt.Fprintf(w, "hearth: still waiting for %s\n", text) // whoever cannot see it waits all the same
		}
	})
	return func() {
		cancel()
		if !timer.Stop() {
			<-said
		}
	}
}
