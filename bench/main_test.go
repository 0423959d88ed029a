package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/bench/scaling"
)

func TestWastedBytesAreFoundWhereverTheStatusHasThem(t *testing.T) {
	// A node that counts none is not one that has wasted none.
	for text, want := range map[string]string{
		`{"says":"ok","jobs":[]}`:         "null",
		`{"prefetch":{"wasted_bytes":0}}`: "0",
		`{"a":[{"wasted_bytes":3},{"b":1}],"wasted_bytes":4,"c":{"wasted_bytes":5}}`: "12",
	} {
		var status any
		if err := json.Unmarshal([]byte(text), &status); err != nil {
			t.Fatal(err)
		}
		if got, _ := json.Marshal(wastedIn(status)); string(got) != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

func TestAFigureIsTakenByItsFirstWords(t *testing.T) {
	// D1 is not D1s; a group is prepared if any of its figures is asked for.
	for _, c := range []struct {
		only, group string
		want        bool
	}{
		{"", "warm-up D1", true}, {"warm-up", "warm-up D1", true}, {"warm-up D1", "warm-up D1", true}, {"warm-up D1", "warm-up D1s", false},
		{"W1 D1 disk", "W1 D1", true}, {"W1", "cold W1 D1", false}, {"readers of W1 D1 disk while D2 is warmed up", "readers of W1 D1 disk", true},
	} {
		if got := (&bench{only: c.only}).wanted(c.group); got != c.want {
			t.Errorf("-only %q and %q: %v", c.only, c.group, got)
		}
	}
}

func TestAScaleIsThatOfTheBytes(t *testing.T) {
	// Small files stay as they are and are fewer; of the large ones two are left, and
	// smaller where that is still too much.
	for scale, want := range map[float64]struct{ files, large int64 }{0.5: {10000, 2 << 30}, 0.25: {5000, 1 << 30}, 0.05: {1000, 204 << 20}} {
		b := &bench{scale: scale}
		files, _ := b.scaled("D1").Count()
		if _, large := b.scaled("D2").Count(); int64(files) != want.files || large != want.large {
			t.Errorf("%v: %d files of D1, %d bytes of D2, want %+v", scale, files, large, want)
		}
		if size := b.scaled("D2").Groups[0].Min; size%hearth.BlockSize != 0 {
			t.Errorf("%v: files of %d bytes", scale, size)
		}
	}
}

func TestTheBestOfSeveralIsTheHarderToBeat(t *testing.T) {
	// Of gRPC with one and with eight connections the faster one's seconds count, and
	// the CPU time of whichever serves for less.
	grpc := side{Seconds: 2, Units: 100, DaemonCPU: 3, TriedCPU: map[int]float64{1: 1, 8: 3}}
	f := figure{ours: []side{{Seconds: 1, Units: 100, DaemonCPU: 0.5}}, sides: [][]side{{grpc}}}
	if got := f.perCore(0, 0); got != 2 {
		t.Errorf("%v times the reads per server core, want 2", got)
	}
	delete(grpc.TriedCPU, 1)
	if got := f.perCore(0, 0); got != 6 {
		t.Errorf("%v times the reads per server core, want 6", got)
	}
}

func TestFiguresAreInOneTable(t *testing.T) {
	// Each figure is in the table of its kind, and in no other.
	b := &bench{table: []figure{
		{name: "a", baselines: []baseline{{Name: "ext4"}}}, {name: "b", baselines: []baseline{{Name: "plain downloader"}}},
		{name: "c", remote: true, baselines: []baseline{{Name: "plain TCP"}}},
	}}
	for kind, want := range map[int]string{locally: "a", distantly: "b", remotely: "c"} {
		if got := b.kind(kind); len(got) != 1 || got[0].name != want {
			t.Errorf("kind %d: %v, want %s", kind, got, want)
		}
	}
}

func TestAModelStandsBesideWhatWasMeasured(t *testing.T) {
	// Both passes count, and an error is of what was measured.
	m := scaling.Measured{Nodes: 2, IdleSeconds: 10, IdleGossip: 4000}
	m.Cold.Origin.List.Requests, m.Again.Origin.List.Requests, m.Cold.PeerBytes, m.Again.PeerBytes = 4, 1, 70, 10
	rows := besides(m, scaling.Predicted{Lists: 4, PeerBytes: 100, Gossip: 180})
	for i, want := range map[int]predicted{1: {2, "LISTs of directories", 4, 5}, 3: {2, "bytes between nodes", 100, 80}, 4: {2, "gossip, bytes a second and node", 180, 200}} {
		if rows[i] != want {
			t.Errorf("%+v, want %+v", rows[i], want)
		}
	}
	if got := rows[3].err(); got != 0.25 || !rows[3].wrong() {
		t.Errorf("an error of %v, want 0.25, which is too much", got)
	}
	// One that is wrong says nothing of larger rings.
	for _, c := range []struct {
		rows []predicted
		says bool
	}{{rows[4:], true}, {rows[3:], false}, {[]predicted{{2, "nothing", 0, 0}}, false}} {
		var out strings.Builder
		(&bench{scale: 1, predicted: c.rows}).scalings(&out)
		if strings.Contains(out.String(), "| 1000\t|") != c.says {
			t.Errorf("%+v: %s", c.rows, &out)
		}
	}
}
