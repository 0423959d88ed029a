package sim

import (
	"fmt"
	"strings"
)

// Row is one line of the table: a load, the capacity, and what is shown of it.
type Row struct {
	// Name says it in the table.
	Name string
	// Load makes the requests.
	Load func() []Request
	// Capacity in bytes for a load.
	Capacity func(load []Request) int64
	// From and To are the phases whose share of hits is shown.
	From, To int
}

// Contender is one column.
type Contender struct {
	Name string
	Make Maker
	// Loose: not fixed by the seed.
	Loose bool
}

// Contenders are the columns, ours first.
func Contenders() []Contender {
	return []Contender{
		{Name: "Hearth", Make: Ours}, {Name: "LRU", Make: LRU}, {Name: "S3-FIFO", Make: S3FIFO},
		{Name: "ristretto", Make: Ristretto, Loose: true}, {Name: "no replacement", Make: NoReplacement}, {Name: "Belady", Make: Belady},
	}
}

const (
	keys     = 4000 // of a set
	seed     = 20
	fixed    = 100 << 10
	zipfKeys = 20_000
	zipfAsks = 120_000
)

func variable() Sizes { return Between(60<<10, 160<<10) }

// share is a capacity in percent of the first n keys' bytes.
func share(percent int64, sizes Sizes, n uint32) func([]Request) int64 {
	return func([]Request) int64 {
		var sum int64
		for k := range n {
			sum += sizes(k)
		}
		return sum * percent / 100
	}
}

// Rows are the lines of the table.
func Rows() []Row {
	var rows []Row
	for _, percent := range []int64{25, 50, 75, 90} {
		for _, s := range []struct {
			name  string
			sizes Sizes
		}{{"100 KiB", Fixed(fixed)}, {"60-160 KiB", variable()}} {
			rows = append(rows, Row{Name: fmt.Sprintf("epochs, cache %d %%, %s", percent, s.name), Capacity: share(percent, s.sizes, keys), From: 3, To: 4,
				Load: func() []Request { return NewLoad(seed, s.sizes).Epochs(0, keys, 4).Requests }})
		}
	}
	half := share(50, variable(), keys)
	rows = append(rows,
		Row{Name: "two jobs share a set, 50 %", Capacity: half, From: 2, To: 6,
			Load: func() []Request { return NewLoad(seed, variable()).TwoJobs(keys, 6).Requests }},
		Row{Name: "epochs after a scan of twice the cache, 50 %", Capacity: half, From: 5, To: 6,
			Load: func() []Request {
				return NewLoad(seed, variable()).Epochs(0, keys, 4).Scan(1<<20, keys).Epochs(0, keys, 1).Requests
			}},
		Row{Name: "another set, its third epoch, 50 %", Capacity: half, From: 6, To: 7,
			Load: func() []Request {
				return NewLoad(seed, variable()).Epochs(0, keys, 4).Epochs(1<<20, keys, 4).Requests
			}},
		Row{Name: "another set, its fourth epoch, 50 %", Capacity: half, From: 7, To: 8,
			Load: func() []Request {
				return NewLoad(seed, variable()).Epochs(0, keys, 4).Epochs(1<<20, keys, 4).Requests
			}})
	for _, s := range []float64{0.8, 1.0} {
		for _, percent := range []int64{5, 20} {
			rows = append(rows, Row{Name: fmt.Sprintf("Zipf %.1f, cache %d %%, 100 KiB", s, percent), Capacity: share(percent, Fixed(fixed), zipfKeys), To: 1,
				Load: func() []Request { return NewLoad(seed, Fixed(fixed)).Zipf(zipfKeys, zipfAsks, s).Requests }})
		}
	}
	return append(rows, Row{Name: "Zipf 0.9 of models with small files between, 10 %", Capacity: share(10, Models, zipfKeys), To: 1,
		Load: func() []Request { return NewLoad(seed, Models).Zipf(zipfKeys, zipfAsks, 0.9).Requests }})
}

// Cell is a result: hits in percent, and bytes written per unique byte.
type Cell struct{ Hits, Written float64 }

// Do runs a contender over a row.
func (r *Row) Do(c Contender) Cell {
	load := r.Load()
	cache := c.Make(r.Capacity(load), load)
	o := Run(cache, load)
	if closer, ok := cache.(interface{ Close() }); ok {
		closer.Close()
	}
	return Cell{Hits: 100 * o.Share(r.From, r.To), Written: float64(o.Written) / float64(o.Unique)}
}

// String is the cell in the table.
func (c Cell) String() string { return fmt.Sprintf("%.1f (%.1f)", c.Hits, c.Written) }

// Header is the table's head.
func Header() string {
	line, rule := "| load |", "|---|"
	for _, c := range Contenders() {
		line += " " + c.Name + " |"
		rule += "--:|"
	}
	return line + "\n" + rule
}

// Line is a row of the table.
func Line(name string, cells []string) string {
	return "| " + name + " | " + strings.Join(cells, " | ") + " |"
}
