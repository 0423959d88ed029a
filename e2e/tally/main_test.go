package main

import (
	"fmt"
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

func TestTheLastWordsOfWhatFailed(t *testing.T) {
	// What a test said last stands at the end of all, without what its processes printed.
	var all strings.Builder
	for i := range 20 {
		fmt.Fprintf(&all, "    x_test.go:%d: said %d\n", i, i)
	}
	all.WriteString("    x_test.go:99: it is wrong\n    env_test.go:182: output of hearth-1 [mount]:\n        mounted\n--- FAIL: TestX (1.00s)\n")
	tally := &tally{output: map[string]*strings.Builder{"p TestX": &all}}
	tally.take(event{Action: "fail", Package: "p", Test: "TestX"}, false)
	tally.take(event{Action: "fail", Package: "q", Test: "TestSilent"}, false)
	var out strings.Builder
	tally.sum(&out, 0)
	want := "\nfailed: p TestX\n"
	for i := 13; i < 20; i++ {
		want += fmt.Sprintf("    x_test.go:%d: said %d\n", i, i)
	}
	want += "    x_test.go:99: it is wrong\n\nfailed: q TestSilent\n"
	if !strings.Contains(out.String(), want) {
		t.Errorf("%s\nwant %s", &out, want)
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
