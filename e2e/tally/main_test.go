package main

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestTheSumIsOfAllRuns(t *testing.T) {
	// Two runs end in one table and one sum; what took longer than allowed from the
	// first event on fails, and so does a run without a test.
	const run = `not an event
{"Action":"start","Package":"p"}
{"Action":"output","Package":"p","Test":"TestScenarios","Output":"TABLE a\t2 files\tS3\t1.0s\tok\n"}
{"Action":"pass","Package":"p","Test":"TestScenarios/a"}
`
	for name, c := range map[string]struct {
		input string
		most  time.Duration
		ok    bool
		says  string
	}{
		"in time":  {run + strings.Replace(run, "TABLE a", "TABLE longer", 1), 11 * time.Minute, true, "took 10m0s\n2 passed, 0 failed, 0 skipped\n"},
		"no limit": {run, 0, true, "took 10m0s\n1 passed"},
		"too late": {run, 9 * time.Minute, false, "took 10m0s: TOO LONG, at most 9m0s"},
		"failed":   {run + `{"Action":"fail","Package":"p","Test":"TestX"}`, time.Hour, false, "1 passed, 1 failed"},
		"nothing":  {"", 0, false, "took 0s\n0 passed"},
	} {
		synctest.Test(t, func(t *testing.T) {
			tally := &tally{output: map[string]*strings.Builder{}}
			tally.read(&slow{strings.NewReader(c.input)}, false)
			var out strings.Builder
			if ok := tally.sum(&out, c.most); ok != c.ok || !strings.Contains(out.String(), c.says) {
				t.Errorf("%s: %v\n%s", name, ok, &out)
			}
			if rows := strings.Count(out.String(), "2 files  S3"); rows != strings.Count(c.input, "TABLE") || strings.Count(out.String(), "scenario") != min(1, rows) {
				t.Errorf("%s: the table:\n%s", name, &out)
			}
		})
	}
}

// slow is an input that ends ten minutes after it was read.
type slow struct{ *strings.Reader }

func (s *slow) Read(p []byte) (int, error) {
	if s.Len() == 0 {
		time.Sleep(10 * time.Minute)
	}
	return s.Reader.Read(p)
}
