package node

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/hearthfs/hearth/node/status"
)

// register exports a node's status, and the figures of the process itself.
func register(r *prometheus.Registry, n *Node) {
	r.MustRegister(collector{n, status.NewMetrics()}, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
}

// collector turns one status document into metrics, so that the two never disagree. It adds the mounts that are
// gone, which no status document has.
type collector struct {
	node    *Node
	metrics status.Metrics
}

// Describe sends nothing: the set of metrics follows the mounts and tiers.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect sends the figures of one status document.
func (c collector) Collect(out chan<- prometheus.Metric) {
	c.metrics.Export(c.node.Status(context.Background()), out)
	status.ExportMounts(c.node.mounts.counted(), out)
}
