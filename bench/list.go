package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sync/errgroup"
)

// List writes size and key of all objects below the prefix to a file, a line each,
// and the file to the device. With one connection it asks for page after page, else
// for the directories right below the prefix at once.
func (o *plainOrigin) List(ctx context.Context, file string) (plainSum, error) {
	f, err := os.Create(file)
	if err != nil {
		return plainSum{}, err
	}
	l := lines{out: bufio.NewWriterSize(f, 1<<20)}
	if o.Connections > 1 {
		err = o.directories(ctx, l.add)
	} else {
		err = o.pages(ctx, o.Prefix, "", l.add)
	}
	return l.sum, errors.Join(err, l.out.Flush(), f.Sync(), f.Close())
}

func (o *plainOrigin) directories(ctx context.Context, each func(page) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(o.Connections)
	err := o.pages(ctx, o.Prefix, "/", func(p page) error {
		for _, d := range p.CommonPrefixes {
			group.Go(func() error { return o.pages(ctx, d.Prefix, "", each) })
		}
		return each(p)
	})
	return errors.Join(err, group.Wait())
}

// lines is a listing as it is written.
type lines struct {
	mu  sync.Mutex // guards the rest
	out *bufio.Writer
	sum plainSum
}

func (l *lines) add(p page) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, x := range p.Contents {
		l.sum.Files++
		l.sum.Bytes += x.Size
		if _, err := fmt.Fprintf(l.out, "%d\t%s\n", x.Size, x.Key); err != nil {
			return err
		}
	}
	return nil
}
