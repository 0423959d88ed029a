package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/hearthfs/hearth/cache/check"
	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/cmd/hearth/settings"
	"github.com/hearthfs/hearth/node/fsck"
	"github.com/hearthfs/hearth/volume"
)

// checkSum is what a check says at its end.
type checkSum struct {
	Segments int     `json:"segments"`
	Free     int     `json:"free"`
	Closed   int     `json:"closed"`
	Open     int     `json:"open"`
	Changed  int     `json:"changed"`
	Good     int64   `json:"good"`
	Damaged  int64   `json:"damaged"`
	Bytes    int64   `json:"bytes"`
	Bad      int64   `json:"bad"`
	Repaired int64   `json:"repaired"`
	Seconds  float64 `json:"seconds"`
}

func volumeCheckCommand() *cobra.Command {
	var repair bool
	cmd := &cobra.Command{
		Use: "check DEVICE", Short: "Read a whole volume and compare its checksums",
		Long: "Read both superblocks, and of each segment the header, the index and all blocks. Print a line for\n" +
			"each thing that is not as it was written, and a sum. Nodes may use the volume meanwhile: what they\n" +
			"write over is no damage. A damaged block is a miss for them, and its room is written anew in time.\n" +
			"So nothing has to be repaired but a superblock, which --repair writes anew from the other one.\n" +
			"Exit code 6: something is damaged, and was not repaired.",
		Example: "  hearth volume check /srv/volume\n  hearth volume check --repair -o json /dev/nvme1n1",
		Args:    cli.Exactly("DEVICE"),
	}
	c := cli.AddCommon(cmd)
	cli.AddOutput(cmd, c)
	d := addDevice(cmd)
	cmd.Flags().BoolVar(&repair, "repair", false, "write a damaged superblock anew")
	cmd.RunE = volumeVerb(c, d, "check", func(ctx context.Context, cmd *cobra.Command, _ *settings.Settings) error {
		dev, err := d.open(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = dev.Close() }() // a repair flushes
		p := &checkPrinter{c: c, out: cli.Out(cmd)}
		if !c.Quiet && cli.IsTerminal(os.Stderr) {
			p.terminal = os.Stderr
		}
		var sum volume.Checked
		err = fsck.Watch(repair, func(r *check.Run) (err error) {
			sum, err = volume.Check(ctx, dev, d.address.String(), r)
			return err
		}, p.tell)
		p.clear()
		if err = errors.Join(err, p.err); err != nil {
			return err
		}
		return p.end(&sum)
	})
	return cmd
}

// checkPrinter prints what a check tells.
type checkPrinter struct {
	c             *cli.Common
	out, terminal io.Writer // a nil terminal sees no progress
	findings      []check.Finding
	sum           fsck.Summary
	shown         bool // a line of progress stands on the terminal
	err           error
}

func (p *checkPrinter) tell(e fsck.Event) {
	switch {
	case e.Finding != nil && p.c.Output == "json":
		p.findings = append(p.findings, *e.Finding)
	case e.Finding != nil && p.c.Output == "jsonl":
		p.err = errors.Join(p.err, json.NewEncoder(p.out).Encode(e))
	case e.Finding != nil:
		p.clear()
		_, err := fmt.Fprintln(p.out, cli.QuoteFor(p.out, e.Finding.String()))
		p.err = errors.Join(p.err, err)
	case e.Progress != nil && p.terminal != nil:
		p.shown = true
		_, _ = fmt.Fprintf(p.terminal, "\r\x1b[K%s, %s, %s read, %s/s", cli.Count(e.Progress.Files, "segment"),
			cli.Count(e.Progress.Blocks, "block"), cli.Bytes(e.Progress.Bytes), cli.Bytes(e.Progress.Rate())) // it ends no check
	case e.Done != nil:
		p.sum = *e.Done
	}
}

func (p *checkPrinter) clear() {
	if p.shown {
		_, _ = fmt.Fprint(p.terminal, "\r\x1b[K") // as above
		p.shown = false
	}
}

// end prints the sum.
func (p *checkPrinter) end(x *volume.Checked) (err error) {
	sum := checkSum{Segments: x.Free + x.Closed + x.Open, Free: x.Free, Closed: x.Closed, Open: x.Open, Changed: x.Changed,
		Good: x.Good, Damaged: x.Damaged, Bytes: p.sum.Bytes, Bad: p.sum.Bad, Repaired: p.sum.Repaired, Seconds: p.sum.Seconds}
	switch p.c.Output {
	case "json":
		err = p.c.PrintJSON(p.out, struct {
			Findings []check.Finding `json:"findings"`
			Summary  checkSum        `json:"summary"`
		}{append([]check.Finding{}, p.findings...), sum})
	case "jsonl":
		err = p.c.PrintJSON(p.out, struct {
			Done checkSum `json:"done"`
		}{sum})
	default:
		changed := ""
		if x.Changed > 0 {
			changed = fmt.Sprintf(", %d of them written anew meanwhile", x.Changed)
		}
		_, err = fmt.Fprintf(p.out, "%s: %d free, %d closed, %d open%s; %s good, %d damaged; "+
			"%s read, %s/s; %d bad, %d repaired\n",
			cli.Count(sum.Segments, "segment"), x.Free, x.Closed, x.Open, changed, cli.Count(x.Good, "block"), x.Damaged,
			cli.Bytes(sum.Bytes), cli.Bytes(p.sum.Rate()), sum.Bad, sum.Repaired)
	}
	if err == nil && sum.Bad > sum.Repaired {
		err = &cli.ExitError{Code: cli.ExitUnhealthy}
	}
	return err
}
