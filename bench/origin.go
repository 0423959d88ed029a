package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// origin is the real S3 server that Hearth's side reads from.
type origin = hearthtest.Server

func startOrigin(b *bench) (*origin, error) {
	dir := filepath.Join(b.dir, "origin")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	o, err := hearthtest.Run(b.ctx, hearthtest.ServerOptions{Dir: dir})
	if err != nil {
		return nil, fmt.Errorf("start the origin: %w", err)
	}
	return o, o.CreateBucket(b.ctx, "bench")
}
