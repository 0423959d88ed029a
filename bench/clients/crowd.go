package clients

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

const (
	// CrowdSize clients come at once, and are looked at while they stay for crowdFor.
	CrowdSize = 1000
	crowdFor  = 5 * time.Second
)

// Crowd is what 1,000 clients cost a server that do next to nothing.
type Crowd struct {
	Name string `json:"figure"`
	// Kind is idle or slow.
	Kind   string `json:"kind"`
	Server string `json:"server"`
	PID    int    `json:"-"` // the server's
	Round  int    `json:"round"`
	// Before and Most are resident bytes: as the clients came, and the most while they stayed.
	Before int64 `json:"resident_before"`
	Most   int64 `json:"resident_most"`
	// Stayed are the clients that the server did not turn away.
	Stayed int `json:"stayed"`
}

// Measure has a crowd come by a process of clients, looks at the server while it stays, and has
// it go.
func (c *Crowd) Measure(cmd *exec.Cmd, at hearthtest.S3, d *Data) error {
	w := Work{Account: at, Bucket: Bucket, Connections: CrowdSize, Asks: d.Gets(uint64(c.Round)), Crowd: c.Kind}
	if c.Kind == "slow" {
		w.Asks = d.Ranges(64<<20, uint64(c.Round))
	}
	text, err := json.Marshal(w)
	if err != nil {
		return err
	}
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	c.Before = resident(c.PID)
	if err := hearthtest.Spawn(cmd); err != nil {
		return err
	}
	lines := bufio.NewReader(out)
	if _, err = in.Write(text); err == nil {
		_, err = lines.ReadString('\n')
	}
	for begun := time.Now(); err == nil && time.Since(begun) < crowdFor; time.Sleep(100 * time.Millisecond) {
		c.Most = max(c.Most, resident(c.PID))
	}
	_ = in.Close()
	if err == nil {
		_, err = fmt.Fscan(lines, &c.Stayed)
	}
	_, _ = io.Copy(io.Discard, lines)
	return cmp.Or(cmd.Wait(), err)
}

// resident is what a process has in memory now, in bytes, what it shares with files aside.
func resident(pid int) int64 {
	text, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(v), "kB")), 10, 64)
			return n << 10
		}
	}
	return 0
}

// Crowded is the table of crowds, medians of their rounds.
func Crowded(w *tabwriter.Writer, all []Crowd) {
	fmt.Fprint(w, "| clients\t| of\t| served\t| MiB before\t| MiB more\t|\n|---\t|---\t|--:\t|--:\t|--:\t|\n")
	type row struct{ name, server string }
	rounds, order := map[row][]Crowd{}, []row{}
	for _, c := range all {
		r := row{c.Name, c.Server}
		if rounds[r] == nil {
			order = append(order, r)
		}
		rounds[r] = append(rounds[r], c)
	}
	for _, r := range order {
		list := rounds[r]
		slices.SortFunc(list, func(a, b Crowd) int { return cmp.Compare(a.Most-a.Before, b.Most-b.Before) })
		c := list[len(list)/2]
		fmt.Fprintf(w, "| %s\t| %s\t| %d\t| %.1f\t| %.1f\t|\n", r.name, r.server, c.Stayed, float64(c.Before)/(1<<20), float64(c.Most-c.Before)/(1<<20))
	}
}
