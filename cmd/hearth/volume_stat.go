package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/cmd/hearth/settings"
	"github.com/hearthfs/hearth/node/config"
	"github.com/hearthfs/hearth/volume"
)

// deviceDoc is what stat says of a device. The fields from Portal on are those of a namespace over NVMe/TCP.
type deviceDoc struct {
	Address      string  `json:"address"`
	Size         int64   `json:"size"`
	BlockSize    int     `json:"block_size"`
	ReadOnly     bool    `json:"read_only"`
	Latencies    latency `json:"read_latency_us"`
	Portal       string  `json:"portal,omitempty"`
	Path         string  `json:"path,omitempty"`
	Queues       int     `json:"queues,omitempty"`
	Depth        int     `json:"depth,omitempty"`
	MaxTransfer  int     `json:"max_transfer,omitempty"`
	HeaderDigest bool    `json:"header_digest,omitempty"`
	DataDigest   bool    `json:"data_digest,omitempty"`

	is string
}

// latency is that of some reads of 4 KiB, one after another, in microseconds.
type latency struct {
	Reads  int     `json:"reads"`
	Least  float64 `json:"least"`
	Median float64 `json:"median"`
	Most   float64 `json:"most"`
}

// contents is what stat says of a volume's segments.
type contents struct {
	Free        int         `json:"free"`
	Closed      int         `json:"closed"`
	Open        int         `json:"open"`
	Unread      int         `json:"unread,omitempty"`
	Blocks      int64       `json:"blocks"`
	Bytes       int64       `json:"bytes"`
	Generations *[2]uint64  `json:"generations,omitempty"` // least and greatest
	Oldest      *segmentDoc `json:"oldest,omitempty"`
	Newest      *segmentDoc `json:"newest,omitempty"`
	Writers     []writerDoc `json:"writers"`
}

type segmentDoc struct {
	Segment    uint32 `json:"segment"`
	Generation uint64 `json:"generation"`
	Began      string `json:"began"`
}

type writerDoc struct {
	Node     string `json:"node"`
	Segments int    `json:"segments"`
}

// statDoc is what stat says to programs.
type statDoc struct {
	Device   deviceDoc  `json:"device"`
	Volume   superblock `json:"volume"`
	Ours     *bool      `json:"ours"`           // null: the cluster key cannot be read
	Harm     []string   `json:"harm,omitempty"` // of the superblocks
	Contents contents   `json:"contents"`

	whose string
}

func volumeStatCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "stat DEVICE", Short: "What a volume is, what its segments hold, and how fast its device answers",
		Long: "Read the superblock and the index of each segment of a volume, and time some reads. Nothing is\n" +
			"changed, and nodes may use the volume meanwhile. A segment is free, closed by its index, or open: a\n" +
			"node writes to it, or did until it went away. One that cannot be read is counted as unread. Exit\n" +
			"code 4: no volume is there.",
		Example: "  hearth volume stat /srv/volume\n" +
			"  hearth volume stat -o json nvme+tcp://10.0.0.5/nqn.2014-08.org.example:v1",
		Args: cli.Exactly("DEVICE"),
	}
	c := cli.AddCommon(cmd)
	cli.AddOutput(cmd, c)
	d := addDevice(cmd)
	settings.AddFlags(cmd, "cluster")
	cmd.RunE = volumeVerb(c, d, "look at", func(ctx context.Context, cmd *cobra.Command, s *settings.Settings) error {
		dev, err := d.open(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = dev.Close() }() // it was only read
		survey, err := volume.TakeSurvey(ctx, dev)
		if err != nil {
			return err
		}
		doc := statDoc{Volume: volumeDoc(survey.Info), Harm: survey.Harm, Contents: contentsOf(survey)}
		if doc.Device, err = lookAtDevice(d.address, dev); err != nil {
			return err
		}
		id, err := config.ClusterID(s.Ring)
		ours := id == survey.Cluster
		switch {
		case err != nil:
			doc.whose = "whose, cannot be told: " + err.Error()
		case ours:
			doc.whose, doc.Ours = "that of this configuration", &ours
		default:
			doc.whose, doc.Ours = fmt.Sprintf("another than that of this configuration (%x)", id[:4]), &ours
		}
		if c.Output != "table" {
			return c.PrintJSON(cli.Out(cmd), doc)
		}
		return doc.print(cli.Out(cmd), survey)
	})
	return cmd
}

// timedReads are enough to tell a disk from a network, and end in a second where each takes 60 ms.
const timedReads = 16

func lookAtDevice(a volume.Address, dev volume.Opened) (doc deviceDoc, err error) {
	times, err := volume.Latencies(dev, timedReads)
	if err != nil {
		return doc, err
	}
	us := func(i int) float64 { return float64(times[i].Nanoseconds()/100) / 10 }
	doc = deviceDoc{Address: a.String(), Size: dev.Size(), BlockSize: dev.BlockSize(), is: describe(a, dev),
		Latencies: latency{len(times), us(0), us(len(times) / 2), us(len(times) - 1)}}
	switch dev := dev.(type) {
	case *volume.File:
		doc.ReadOnly = dev.ReadOnly()
	case volume.Namespace:
		s := dev.Stats()
		doc.ReadOnly, doc.Portal, doc.Path = s.ReadOnly, s.Portal, s.Access
		doc.Queues, doc.Depth, doc.MaxTransfer = s.Queues, s.Depth, s.MaxTransfer
		doc.HeaderDigest, doc.DataDigest = a.Digests()
	}
	return doc, nil
}

func contentsOf(s *volume.Survey) contents {
	x := contents{Free: s.Free, Closed: s.Closed, Open: s.Open, Unread: s.Unread, Blocks: s.Blocks, Bytes: s.Bytes, Writers: []writerDoc{}}
	if s.Generations[1] > 0 {
		x.Generations = &s.Generations
	}
	of := func(s *volume.Segment) *segmentDoc {
		if s == nil {
			return nil
		}
		return &segmentDoc{s.Number, s.Generation, cli.Stamp(s.Began)}
	}
	x.Oldest, x.Newest = of(s.Oldest), of(s.Newest)
	for _, w := range s.Writers {
		x.Writers = append(x.Writers, writerDoc{hex.EncodeToString(w.Node[:]), w.Segments})
	}
	return x
}

// print writes the tables for people.
func (s *statDoc) print(w io.Writer, survey *volume.Survey) error {
	t := cli.NewTable(w)
	d, v, x := &s.Device, &s.Volume, &s.Contents
	if d.ReadOnly {
		d.is += ", read-only"
	}
	fmt.Fprintf(t, "device\t%s: %s\n", cli.QuoteFor(w, d.Address), d.is)
	if d.Portal != "" {
		fmt.Fprintf(t, "path\t%s, %s; %s of depth %d, up to %s a command; digests: header %s, data %s\n", d.Portal, d.Path,
			cli.Count(d.Queues, "queue"), d.Depth, cli.Bytes(int64(d.MaxTransfer)), onOff(d.HeaderDigest), onOff(d.DataDigest))
	}
	us := func(n float64) time.Duration { return time.Duration(n * float64(time.Microsecond)) }
	fmt.Fprintf(t, "reads\t%d of 4 KiB: %v, %v, %v (least, median, most)\n", d.Latencies.Reads,
		us(d.Latencies.Least), us(d.Latencies.Median), us(d.Latencies.Most))
	fmt.Fprintf(t, "volume\t%s, label %q, format %d, made %s\n", v.ID, v.Label, v.Format, v.Created)
	for _, harm := range s.Harm {
		fmt.Fprintf(t, "harm\t%s\n", harm)
	}
	fmt.Fprintf(t, "cluster\t%.8s, %s\n", v.Cluster, s.whose)
	fmt.Fprintf(t, "segments\t%d of %s in %s: %d free, %d closed, %d open\n", v.Segments, cli.Bytes(v.Segment),
		cli.Count(v.Ranges, "range"), x.Free, x.Closed, x.Open)
	if survey.Unread > 0 {
		fmt.Fprintf(t, "unread\t%s, whose blocks are not counted: %s\n", cli.Count(survey.Unread, "segment"),
			cli.QuoteFor(w, survey.Cause.Error()))
	}
	fmt.Fprintf(t, "blocks\t%d of %s\n", x.Blocks, cli.Bytes(x.Bytes))
	if x.Oldest != nil {
		fmt.Fprintf(t, "written\tgenerations %d to %d; segment %d at %s to segment %d at %s\n", x.Generations[0],
			x.Generations[1], x.Oldest.Segment, x.Oldest.Began, x.Newest.Segment, x.Newest.Began)
	}
	for _, n := range survey.Writers {
		fmt.Fprintf(t, "by\tnode %x: %s\n", n.Node[:4], cli.Count(n.Segments, "segment"))
	}
	return t.Flush()
}

func onOff(b bool) string {
	if b {
		return "on"
	}
	return "off"
}
