package node

import (
	"context"
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/hearthfs/hearth/node/jobs"
	"github.com/hearthfs/hearth/node/pins"
	"github.com/hearthfs/hearth/node/ring/view"
	"github.com/hearthfs/hearth/node/siblings"
	"github.com/hearthfs/hearth/node/status"
)

// register exports a node's status and the process's own figures.
func register(r *prometheus.Registry, n *Node) {
	r.MustRegister(collector{n}, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
}

// collector turns one status document into metrics, so that the two never
// disagree; it adds the mounts that are gone, which no status has.
type collector struct{ node *Node }

// Describe sends nothing: the set of metrics follows the mounts and tiers.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect sends the figures of one status document.
func (c collector) Collect(out chan<- prometheus.Metric) {
	export(c.node.Status(context.Background()), out)
	status.Sink(out).Mounts(c.node.mounts.counted())
}

// export sends a status document's figures. docs/metrics.md is made from what it
// says of them.
func export(s *status.Status, m status.Sink) {
	m.Build(s.Version, runtime.Version())
	s.Export(m)
	jobs.Export(s.Jobs, s.Warmup, m)
	pins.Export(s.Pins, m)
	siblings.Export(s.Prefetch, m)
	view.Export(s.Ring, m)
	m.S3(s.S3)
}
