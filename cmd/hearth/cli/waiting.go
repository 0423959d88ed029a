package cli

import (
	"context"
	"fmt"
	"io"
	"time"
)

// patience is how long a verb waits in silence. After that the user wonders whether it hangs.
const patience = 2 * time.Second

// Waiting prints to w what the verb waits for, if that takes longer than patience. It calls what to
// learn it then; "" prints nothing. The function that it returns ends the waiting.
func (c *Common) Waiting(w io.Writer, what func(context.Context) string) (ended func()) {
	if c.Quiet {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	said := make(chan struct{})
	timer := time.AfterFunc(patience, func() {
		defer close(said)
		if text := what(ctx); text != "" && ctx.Err() == nil {
			_, _ = fmt.Fprintf(w, "hearth: still waiting for %s\n", text) // the verb goes on if nobody can see it
		}
	})
	return func() {
		cancel()
		if !timer.Stop() {
			<-said
		}
	}
}
