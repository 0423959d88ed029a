package main

import (
	"context"
	"fmt"
	"regexp"
	"strings"
)

// mostForgiven is how many failures of one run may be chance. More are a fault.
const mostForgiven = 3

// again runs failed tests once more, each in a fresh process with its seed. A test that passes then
// is flaky and no failure.
func (r *run) again(ctx context.Context) {
	if len(r.failures) > mostForgiven || ctx.Err() != nil {
		return
	}
	failed := r.failures
	r.failures = nil
	for _, f := range failed {
		why, seed := unforgivable(f), seedOf(f)
		if why == "" {
			why = r.once(ctx, f, seed)
		}
		if why != "" {
			f.said += why + "\n"
			r.failures = append(r.failures, f)
			continue
		}
		r.passed++
		last := strings.TrimSpace(lastWords(f.said))
		r.flaky = append(r.flaky, fmt.Sprintf("FLAKY %s %s %s", f, strings.Join(seed, ","), strings.Join(strings.Fields(last), " ")))
	}
}

// once runs a failed test again. It returns why it stays a failure, or "" if it passed.
func (r *run) once(ctx context.Context, f failure, seed []string) string {
	p := f.part
	p.name, p.begin, p.kept = "again: "+f.String(), nil, nil
	p.env = append(p.env[:len(p.env):len(p.env)], seed...)
	if p.binary {
		p.tests = []string{"-test.count", "1", "-test.run", pattern(f.test)}
	} else {
		p.tests = []string{"-count", "1", "-run", pattern(f.test), f.pkg}
	}
	second := &run{out: r.out}
	second.part(ctx, p)
	r.parts = append(r.parts, second.parts...)
	switch {
	case len(second.failures) > 0:
		return "and it failed again, with the same seed"
	case second.passed == 0:
		return "and it did not run again"
	}
	return ""
}

// pattern is the -run pattern of one test or scenario.
func pattern(test string) string {
	parts := strings.Split(test, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	return strings.Join(parts, "/")
}

// faults are words in the output of failures that no second run excuses. Package hearthtest prints
// the last three; e2e prints "watchdog" if a scenario hangs.
func faults() map[string]string {
	return map[string]string{
		"WARNING: DATA RACE":             "a data race",
		"race detected during execution": "a data race",
		"panic: ":                        "a panic",
		"fatal error: ":                  "a panic",
		timedOut:                         "a hang",
		"watchdog: ":                     "a hang",
		"found unexpected goroutines":    "a leak",
		"hearth: left behind: ":          "a leak",
		"Views were never released":      "a leak",
		" differs at byte ":              "wrong bytes",
		" have sums ":                    "wrong bytes",
		"not this file's page":           "wrong bytes",
	}
}

// unforgivable returns why no second run can excuse a failure. "" means that one can.
func unforgivable(f failure) string {
	if f.test == "" {
		return "and what is no single test's failure is never forgiven"
	}
	for words, what := range faults() {
		if strings.Contains(f.said, words) {
			return "and " + what + " is never forgiven"
		}
	}
	return ""
}

// seedOf returns the variables by which a failed test draws the same again. Its output names them,
// otherwise they are those of its part.
func seedOf(f failure) []string {
	var seed []string
	if m := regexp.MustCompile(`HEARTH_SEED=\d+`).FindString(f.said); m != "" {
		seed = append(seed, m)
	}
	if m := regexp.MustCompile(`-rapid\.seed=(\d+)`).FindStringSubmatch(f.said); m != nil {
		seed = append(seed, "RAPID_SEED="+m[1])
	}
	if len(seed) > 0 {
		return seed
	}
	for _, v := range f.part.env {
		if strings.HasPrefix(v, "HEARTH_SEED=") || strings.HasPrefix(v, "RAPID_SEED=") {
			seed = append(seed, v)
		}
	}
	return seed
}
