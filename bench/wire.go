package main

import (
	"fmt"
	"os"
	"slices"
	"text/tabwriter"

	"github.com/hearthfs/hearth/bench/remote"
)

// remoteReads is W6's blocks: reads of another node's memory, over a link of their own.
func (b *bench) remoteReads() error {
	if !b.wanted("W6 blocks") {
		return nil
	}
	return overLink(b.blocks)
}

// overLink measures over a link of its own, with this program at both ends.
func overLink(measure func(l *link, self string) error) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	l, err := newLink()
	if err != nil {
		return err
	}
	defer l.close()
	return measure(l, self)
}

func (b *bench) blocks(l *link, self string) error {
	for _, size := range []int{4 << 10, 100 << 10, 1 << 20} {
		for _, inFlight := range []int{1, 32} {
			for _, tls := range []bool{false, true} {
				w := remote.Work{Size: size, InFlight: inFlight, Connections: 1, TLS: tls}
				w.Reads = max(100, int(float64(readsOf(w))*b.scale))
				f := figure{name: "W6 blocks " + workName(w), threads: inFlight, unit: "read", remote: true}
				switch {
				case tls || inFlight == 1:
				case size == 4<<10:
					f.coreTargets = []float64{0, 2}
				case size == 100<<10:
					f.targets = []float64{0.8}
				}
				err := b.compare(f,
					func(_ *build, r round) (side, error) {
						mine := w
						mine.Check = r.last
						s, err := l.run([]string{self, remoteProgram, "wire"}, mine)
						s.Connections = 0 // it opens them as it needs them
						return s, err
					},
					b.rivals(l, self, w)...)
				if err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// readsOf is how many reads take some seconds.
func readsOf(w remote.Work) int {
	reads := map[int]int{4 << 10: 400_000, 100 << 10: 40_000, 1 << 20: 5_000}[w.Size]
	if w.InFlight == 1 {
		reads = map[int]int{4 << 10: 60_000, 100 << 10: 20_000, 1 << 20: 4_000}[w.Size]
	}
	return reads
}

func workName(w remote.Work) string {
	name := fmt.Sprintf("%d KiB %d in flight", w.Size>>10, w.InFlight)
	if w.Size >= 1<<20 {
		name = fmt.Sprintf("%d MiB %d in flight", w.Size>>20, w.InFlight)
	}
	if w.TLS {
		return name + " TLS"
	}
	return name + " plaintext"
}

// rivals are what else could carry the reads.
func (b *bench) rivals(l *link, self string, w remote.Work) []baseline {
	all := []baseline{b.plainTCP(l, self, w), b.grpc(l, w)}
	if w.InFlight > 1 {
		w.InOrder = true
		all = append(all, b.grpc(l, w))
	}
	return all
}

// plainTCP is the same bytes as fast as one or four connections carry them.
func (b *bench) plainTCP(l *link, self string, w remote.Work) baseline {
	what := "the bytes copied, best of 1 and 4 connections"
	if w.InFlight == 1 {
		what = "ask, answer"
	}
	return baseline{
		Name: "plain TCP", Command: "bench remote tcp serve|read ADDRESS WORK: " + what, Version: fmt.Sprint(b.common["commit"]),
		run: func(round) (side, error) { return l.best([]string{self, remoteProgram, "tcp"}, w, 4) },
	}
}

// grpc is streams with a codec that hands bytes on: one for each read in flight, so that
// none waits for another's block, as with Hearth; or in order, one for each connection.
func (b *bench) grpc(l *link, w remote.Work) baseline {
	tool, version, err := versioned("grpcreads")
	name := "gRPC, a stream a reader"
	if w.InOrder {
		name = "gRPC, one stream in order"
	}
	return baseline{
		Name: name, Command: "grpcreads serve|read ADDRESS WORK, best of 1 and 8 connections", Version: version,
		run: func(round) (side, error) {
			if err != nil {
				return side{}, err
			}
			return l.best([]string{tool}, w, 8)
		},
	}
}

// best runs a program with one connection and with many, where there are reads for them.
// The seconds and all else are of the faster one; what serving costs is compared with
// the thriftier one.
func (l *link) best(program []string, w remote.Work, many int) (best side, err error) {
	tried, cpu := map[int]float64{}, map[int]float64{}
	for _, n := range []int{1, many} {
		if w.Connections = n; n > w.InFlight {
			continue
		}
		s, err := l.run(program, w)
		if err != nil {
			return s, err
		}
		if tried[n], cpu[n] = s.Seconds, s.DaemonCPU; best.Seconds == 0 || s.Seconds < best.Seconds {
			best = s
		}
	}
	best.Tried, best.TriedCPU = tried, cpu
	return best, nil
}

// perRead is the CPU time that serving one took, in seconds; of a program that was tried with
// several numbers of connections, the least.
func (s side) perRead() float64 {
	cpu := s.DaemonCPU
	for _, c := range s.TriedCPU {
		cpu = min(cpu, c)
	}
	return cpu / float64(max(1, s.Units))
}

// remotes are the figures of remote reads, a row for each baseline.
func (b *bench) remotes(w *tabwriter.Writer) {
	fmt.Fprint(w, "| figure\t| of\t| ratio\t| spread\t| wanted\t| per server core\t| spread\t| wanted\t| reads/s, its\t| MiB/s\t| server CPU s per 10,000, its\t| reader CPU s per 10,000, its\t| server CPU s per GiB, its\t| allocations per read, its\t| origin requests\t| p50 / p99 / max us\t| connections\t| wrong bytes\t|\n")
	fmt.Fprint(w, "|---\t|---\t|--:\t|--:\t|--:\t|--:\t|--:\t|--:\t|--:\t|--:\t|--:\t|--:\t|--:\t|--:\t|--:\t|--:\t|--:\t|--:\t|\n")
	rate := func(s side) float64 { return float64(s.Units) / s.Seconds }
	served := func(s side) float64 { return s.DaemonCPU / float64(s.Units) * 1e4 }
	read := func(s side) float64 { return s.ReaderCPU / float64(s.Units) * 1e4 }
	allocs := func(s side) float64 { return s.Allocs }
	perGiB := func(s side) float64 { return s.DaemonCPU / float64(max(1, s.Bytes)) * (1 << 30) }
	most := func(rounds []side) (n int64) {
		for _, s := range rounds {
			n = max(n, s.OriginRequests)
		}
		return n
	}
	for _, f := range b.kind(remotely) {
		for i, base := range f.baselines {
			cores := make([]float64, len(f.ours))
			for round := range f.ours {
				cores[round] = f.perCore(i, round)
			}
			fmt.Fprintf(w, "| %s\t| %s\t| %.2f\t| %.2f-%.2f\t| %s\t| %.2f\t| %.2f-%.2f\t| %s\t| %.0f, %.0f\t| %.0f\t| %.3f, %.3f\t| %.3f, %.3f\t| %.2f, %.2f\t| %.2f, %.2f\t| %d\t| %.0f / %.0f / %.0f\t| %s\t| %d\t|\n", b.shown(f.name), base.Name,
				median(f.ratios[i], same), slices.Min(f.ratios[i]), slices.Max(f.ratios[i]), least(f.wanted(i)),
				median(cores, same), slices.Min(cores), slices.Max(cores), least(f.wantedPerCore(i)),
				median(f.ours, rate), median(f.sides[i], rate), median(f.ours, func(s side) float64 { return float64(s.Bytes) / s.Seconds / (1 << 20) }),
				median(f.ours, served), median(f.sides[i], served), median(f.ours, read), median(f.sides[i], read), median(f.ours, perGiB), median(f.sides[i], perGiB), median(f.ours, allocs), median(f.sides[i], allocs), most(f.ours),
				median(f.ours, func(s side) float64 { return s.P50us }), median(f.ours, func(s side) float64 { return s.P99us }), median(f.ours, func(s side) float64 { return s.MaxUs }),
				connections(f.sides[i]), f.ours[len(f.ours)-1].Wrong)
		}
	}
}

// least is a ratio that is wanted.
func least(ratio float64) string {
	if ratio == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", ratio)
}
