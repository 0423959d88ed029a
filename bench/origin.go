package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/hearthfs/hearth/internal/faultproxy"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// origin is the real S3 server that Hearth's side reads from, behind a proxy that
// counts what it is asked.
type origin struct {
	*hearthtest.Server
	proxy *faultproxy.Proxy
}

func startOrigin(b *bench, name string) (*origin, error) {
	dir := filepath.Join(b.dir, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	s, err := hearthtest.Run(b.ctx, hearthtest.ServerOptions{Dir: dir})
	if err != nil {
		return nil, fmt.Errorf("start the origin: %w", err)
	}
	proxy, err := faultproxy.Start(faultproxy.Options{Target: s.Endpoint})
	if err != nil {
		s.Stop()
		return nil, err
	}
	return &origin{s, proxy}, s.CreateBucket(b.ctx, "bench")
}

func (o *origin) stop() {
	o.proxy.Close()
	o.Stop()
}

// firstByte is how long the far origin takes for the first byte of each answer.
const firstByte = 20 * time.Millisecond

// resident reads the files that the server gives out a set's objects from, so that
// they lie in its page cache, and its disk, which is ours too, is in no figure.
func (o *origin) resident(set hearthtest.DataSet) error {
	_, err := epoch(under(filepath.Join(o.Dir, "bench"), pathsOf(set)), 4, 1)
	return err
}

// asked is all that passed the proxy so far.
func (o *origin) asked() faultproxy.Counts {
	s := o.proxy.Stats()
	return faultproxy.Counts{
		Requests: s.Requests(),
		Bytes:    s.Get.Bytes + s.Head.Bytes + s.List.Bytes + s.Other.Bytes,
	}
}
