package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// partSize is what is asked for by one GET at most, in bytes: the AWS CLI's.
const partSize = 8 << 20

// part of an object, or all of it.
type part struct {
	key, name string // name of the file
	at, n     int64
	ranged    bool
}

// Download brings all objects below the prefix to files below dir, and those to the
// device.
func (o *plainOrigin) Download(ctx context.Context, dir string) (sum plainSum, err error) {
	group, ctx := errgroup.WithContext(ctx)
	parts := make(chan part, 2000) // two pages: the listing is never what is waited for
	group.Go(func() error {
		defer close(parts)
		return o.parts(ctx, dir, &sum, parts)
	})
	for range o.Connections {
		group.Go(func() error {
			buf := make([]byte, 256<<10)
			for p := range parts {
				if err := o.fetch(ctx, p, buf); err != nil {
					return fmt.Errorf("get %s at %d: %w", p.key, p.at, err)
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return sum, err
	}
	at, err := os.Open(dir)
	if err != nil {
		return sum, err
	}
	defer func() { _ = at.Close() }()
	return sum, unix.Syncfs(int(at.Fd()))
}

// parts lists the objects, makes their directories, and hands out what to fetch.
func (o *plainOrigin) parts(ctx context.Context, dir string, sum *plainSum, to chan<- part) error {
	made, size := map[string]bool{}, cmp.Or(o.Part, partSize)
	return o.pages(ctx, o.Prefix, "", func(p page) error {
		for _, x := range p.Contents {
			name := filepath.Join(dir, x.Key)
			if in := filepath.Dir(name); !made[in] {
				if err := os.MkdirAll(in, 0o755); err != nil {
					return err
				}
				made[in] = true
			}
			sum.Files++
			sum.Bytes += x.Size
			for at := int64(0); at == 0 || at < x.Size; at += size {
				select {
				case to <- part{x.Key, name, at, min(size, x.Size-at), x.Size > size}:
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			}
		}
		return nil
	})
}

// fetch writes one part to its place.
func (o *plainOrigin) fetch(ctx context.Context, p part, buf []byte) error {
	r := request{key: p.key, status: http.StatusOK}
	if p.ranged {
		r.status, r.bytes = http.StatusPartialContent, fmt.Sprintf("bytes=%d-%d", p.at, p.at+p.n-1)
	}
	return o.get(ctx, r, func(body io.Reader) error {
		f, err := os.OpenFile(p.name, os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		n, err := io.CopyBuffer(io.NewOffsetWriter(f, p.at), body, buf)
		if err == nil && n != p.n {
			err = fmt.Errorf("%d bytes of %d came", n, p.n)
		}
		if err != nil {
			_ = f.Close()
			return err
		}
		return f.Close()
	})
}
