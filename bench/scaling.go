package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/hearthfs/hearth/bench/scaling"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// predicted is one figure of the model of a ring beside what was measured.
type predicted struct {
	Nodes     int     `json:"nodes"`
	What      string  `json:"what"`
	Predicted float64 `json:"predicted"`
	Measured  float64 `json:"measured"`
}

// err is by how much the model says too much, as a part of what was measured.
func (p predicted) err() float64 { return p.Predicted/p.Measured - 1 }

// wrong tells whether the model is of no use; so it is where what it divides by is nothing.
func (p predicted) wrong() bool { return !(math.Abs(p.err()) <= mostError) }

// gossipFor is two intervals in which each node compares all it knows with one other.
const gossipFor = time.Minute

// mostError is the greatest error of a model that may say something of larger rings.
const mostError = 0.2

// scales runs rings of 2, 4 and 8 nodes and puts what they send beside what the model of
// bench/scaling says of them.
func (b *bench) scales() error {
	const name = "scaling"
	if !b.wanted(name) {
		return nil
	}
	dirs := max(1, int(10*min(1, b.scale)))
	set := hearthtest.DataSet{Name: name, Groups: []hearthtest.Group{
		{Dir: "scaling/class", Dirs: dirs, Files: 200, Min: 60 << 10, Max: 160 << 10}, {Dir: "scaling/large", Dirs: 1, Files: min(4, dirs), Min: 32 << 20, Max: 32 << 20}}}
	if err := errors.Join(b.load(set), b.origin.resident(set)); err != nil {
		return err
	}
	var files []hearthtest.File
	for f := range set.Files() {
		files = append(files, f)
	}
	paths := pathsOf(set)
	o := scaling.Options{Hearth: b.hearth.Path, Dir: b.dir, Origin: b.origin.Endpoint, Bucket: "bench", Env: b.environ(), Cold: dropCaches, Idle: gossipFor,
		Read: func(dir string, seed uint64) error {
			_, err := epoch(under(dir, paths), 4, seed)
			return err
		}}
	model, gossip := scaling.SetOf(files), gossiped()
	for _, n := range []int{2, 4, 8} {
		m, err := scaling.Measure(b.ctx, o, n)
		if errors.Is(err, scaling.ErrNoNetwork) {
			fmt.Fprintf(os.Stderr, "scaling: skipped because %v\n", err)
			return nil
		}
		if err != nil {
			return err
		}
		rows := besides(m, scaling.Predict(model, gossip, n))
		if err := b.keep(map[string]any{"figure": name, "measured": m, "rows": rows}); err != nil {
			return err
		}
		for _, p := range rows {
			fmt.Fprintf(os.Stderr, "scaling to %d nodes: %s: %.0f predicted, %.0f measured, %+.1f %%\n", n, p.What, p.Predicted, p.Measured, 100*p.err())
		}
		b.predicted = append(b.predicted, rows...)
	}
	return nil
}

// besides are the rows of one ring.
func besides(m scaling.Measured, p scaling.Predicted) []predicted {
	o, again := m.Cold.Origin, m.Again.Origin
	return []predicted{
		{m.Nodes, "GETs of the bucket", float64(p.Gets), float64(o.Get.Requests + again.Get.Requests)},
		{m.Nodes, "LISTs of directories", float64(p.Lists), float64(o.List.Requests + again.List.Requests)},
		{m.Nodes, "bytes of the bucket", float64(p.OriginBytes), float64(o.Get.Bytes + o.List.Bytes + again.Get.Bytes + again.List.Bytes)},
		{m.Nodes, "bytes between nodes", float64(p.PeerBytes), float64(m.Cold.PeerBytes + m.Again.PeerBytes)},
		{m.Nodes, "gossip, bytes a second and node", p.Gossip, m.GossipRate()},
	}
}

// scalings are the rows of all rings, and what the model says of larger ones.
func (b *bench) scalings(w *tabwriter.Writer) {
	fmt.Fprint(w, "| nodes\t| what\t| predicted\t| measured\t| error\t|\n|--:\t|---\t|--:\t|--:\t|--:\t|\n")
	for _, p := range b.predicted {
		fmt.Fprintf(w, "| %d\t| %s\t| %.0f\t| %.0f\t| %+.1f %%\t|\n", p.Nodes, b.shown(p.What), p.Predicted, p.Measured, 100*p.err())
	}
	if slices.ContainsFunc(b.predicted, predicted.wrong) {
		fmt.Fprintf(w, "\nThe model is wrong by more than %.0f %%, so it says nothing of larger rings.\n", 100*mostError)
		return
	}
	scaling.Outlooks(w, gossiped())
}

// gossiped is the gossip of nodes with names as the measured ones have.
func gossiped() scaling.Gossip {
	return scaling.RingGossip(scaling.MetaOf(scaling.NameOf(0), "", scaling.Ring))
}
