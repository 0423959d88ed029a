// Wired is a Hearth whose wiring holds a second disk where the volume will stand
// and a loop-back Source where the ring will stand: the proof that each of them
// is one more value in the wiring. Its clock can be moved, too; so can that of a node of a
// real ring, which it is instead where it is told of one. It takes the arguments of
// `hearth mount --config FILE ORIGIN DIR` and, from the environment, what the
// end-to-end tests set.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/disk"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/namespace"
	"github.com/hearthfs/hearth/node"
	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/node/wiring"
)

func main() {
	if err := run(os.Args[len(os.Args)-2], os.Args[len(os.Args)-1]); err != nil {
		fmt.Fprintln(os.Stderr, "wired:", err)
		os.Exit(1)
	}
}

func run(url, dir string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	config := node.Config{
		Links: []node.Link{{Path: "/", Freshness: os.Getenv("WIRED_FRESHNESS"), Origin: node.Origin{URL: url, Endpoint: os.Getenv("WIRED_ENDPOINT"), Region: "us-east-1", PathStyle: "on"}}},
		Cache: node.Cache{RAM: node.Size{Bytes: 256 << 20}, FreeFloor: node.Size{Bytes: 1 << 30},
			Disks: []node.Disk{{Path: os.Getenv("WIRED_CACHE"), Size: node.Size{Bytes: 20 << 30}}}},
		Admin: node.Admin{Socket: os.Getenv("WIRED_SOCKET"), Listen: "-"},
		Clock: movedClock(ctx, os.Getenv("WIRED_CLOCK")),
	}
	if text := os.Getenv("WIRED_RING"); text != "" {
		if err := json.Unmarshal([]byte(text), &config.Ring); err != nil {
			return err
		}
	} else {
		// The volume's own pool: node makes one for itself.
		volume, err := disk.Open(disk.Options{
			Dirs: []disk.DirOptions{{Path: filepath.Join(filepath.Dir(dir), "volume"), Budget: 20 << 30, Floor: 1 << 30}}, Pool: hearth.NewPool(256 << 20),
		})
		if err != nil {
			return err
		}
		defer func() { _ = volume.Close() }()
		config.Wiring = wiring.Wiring{Volumes: lasting{volume}, All: true, Ring: &loop{}}
	}
	n, err := node.New(ctx, config)
	if err != nil {
		return err
	}
	if _, err := n.Mount(ctx, admin.MountRequest{Mount: node.Mount{Dir: dir, Open: "none"}}); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
	case <-n.Done():
	}
	return n.Close()
}

// movedClock is a wall clock that is wrong by what file holds, such as -2h, at the
// start and again at each SIGUSR1; nil: right, for there is no file.
func movedClock(ctx context.Context, file string) func() time.Time {
	if file == "" {
		return nil
	}
	var by atomic.Int64
	read := func() {
		text, err := os.ReadFile(file)
		d, err2 := time.ParseDuration(string(text))
		if err := errors.Join(err, err2); err != nil {
			fmt.Fprintln(os.Stderr, "wired: the clock stays:", err)
			return
		}
		by.Store(int64(d))
	}
	read()
	moved := make(chan os.Signal, 1)
	signal.Notify(moved, syscall.SIGUSR1)
	go func() {
		for {
			select {
			case <-moved:
				read()
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() time.Time { return time.Now().Round(0).Add(time.Duration(by.Load())) } // Round: no monotonic reading, which nobody can set
}

// lasting is a volume that takes every block: a disk declines what its device is too
// slow for, and what the origin is asked for again would then be the device's to say.
type lasting struct{ *disk.Store }

// Put waits for the device, as no Store of a node may.
func (l lasting) Put(b hearth.Block, v *hearth.View) error {
	return l.Keep(context.Background(), b, v)
}

// loop is a ring of one that owns every second block only: the others are asked
// of their owner - itself, through Fill - as they would be over the wire.
type loop struct{ answers wiring.Answers }

// Former has no former owners to peek at.
func (l *loop) Former(next hearth.Source) hearth.Source { return next }

// Fill asks the owner.
func (l *loop) Fill(_, _ hearth.Source) hearth.Source { return hearthtest.Source(fill{l}) }

// Route sends blocks of odd index or version to their owner.
func (l *loop) Route(own, theirs hearth.Source) hearth.Source {
	return hearthtest.Source(route{own, theirs})
}

// List lists without asking anybody else.
func (l *loop) List(origin namespace.Origin) namespace.Origin { return origin }

// Serve keeps what peers may fill from.
func (l *loop) Serve(a wiring.Answers) error { l.answers = a; return nil }

type fill struct{ l *loop }

func (f fill) Get(ctx context.Context, b hearth.Block, off, n int) (*hearth.View, error) {
	return f.l.answers.Owned.Get(ctx, b, off, n)
}

type route struct{ own, theirs hearth.Source }

func (r route) Get(ctx context.Context, b hearth.Block, off, n int) (*hearth.View, error) {
	if (int64(b.Object.Version[0])+b.Index)%2 == 0 {
		return r.own.Get(ctx, b, off, n)
	}
	return r.theirs.Get(ctx, b, off, n)
}
