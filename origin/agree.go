package origin

import (
	"context"
	"errors"
	"fmt"

	"github.com/hearthfs/hearth"
)

// errHeads is an origin whose HEADs name versions that it does not let read.
var errHeads = errors.New("the origin contradicts itself: HEAD and GET name different versions")

// agree asks with a HEAD for an object that was read. listed is the version that the listing named, and
// read the one that could be read. A listing that names another version than HEAD is no obstacle, since
// versions can come from HEADs. A HEAD whose version cannot be read is one.
func (s *S3) agree(ctx context.Context, a *Abilities, listed, read *hearth.Object) error {
	told, err := s.Head(ctx, read.Key)
	if err != nil {
		return nil // it is gone, or the next request shows the error
	}
	a.Listed, a.Told = listed, &told
	if told.Version == read.Version {
		return nil
	}
	if again := s.probeByte(ctx, &told); !errors.Is(again, hearth.ErrStale) && !errors.Is(again, errContradiction) {
		return again // it changed meanwhile
	}
	if s.probeByte(ctx, read) != nil {
		return nil // it changes all the time
	}
	return s.wrap("probe", read.Key, fmt.Errorf("%w: ETag %q of %d bytes by HEAD, %q of %d by GET", errHeads, told.ETag, told.Size, read.ETag, read.Size))
}

// probeByte reads one byte of an object. The error hearth.ErrStale means that there is no such version.
func (s *S3) probeByte(ctx context.Context, o *hearth.Object) error {
	if o.Size == 0 {
		return fmt.Errorf("probe %s: it is empty: %w", o.Key, hearth.ErrStale)
	}
	body, err := s.Read(ctx, o, o.Size-1, 1)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }() // it was read
	_, err = body.Read(make([]byte, 1))
	return err
}
