package draft

import (
	"context"
	"errors"
	"io/fs"
	"testing"
)

// fakeRefusal is an origin's error, which says which key it is of.
type fakeRefusal struct{ key string }

func (e *fakeRefusal) Error() string { return e.key + ": denied" }
func (e *fakeRefusal) Unwrap() error { return fs.ErrPermission }

func TestOneThatIsBrokenOffHasAnErrorOfItsOwn(t *testing.T) {
	// The first request that fails breaks the others off. They are told why, and cannot take its error for theirs.
	g, ctx := newBeside(t.Context(), 2)
	g.run(func() error { return &fakeRefusal{"a"} })
	<-ctx.Done()
	cause := context.Cause(ctx)
	if e := (*fakeRefusal)(nil); errors.As(cause, &e) || !errors.Is(cause, fs.ErrPermission) || cause.Error() != "a: denied" {
		t.Errorf("%v", cause)
	}
	g.run(func() error { return cause })
	if e := (*fakeRefusal)(nil); !errors.As(g.wait(), &e) {
		t.Error("not the first's error")
	}
}
