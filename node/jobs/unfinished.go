package jobs

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hearthfs/hearth/warmup"
)

const (
	// toldFor is how long a job that did not load all is shown. It is for a person who comes to see why the
	// job that needs the data is slow.
	toldFor = time.Hour
	// mostTold bounds the jobs that are shown, so that a screen has room for the rest.
	mostTold = 3
)

// Unfinished returns warnings about jobs that ended without all that they were asked for, the latest first, for
// as long as nobody did anything about it.
func (j *Jobs) Unfinished(now time.Time) []string { return unfinished(j.engine.List(), now) }

func unfinished(all []warmup.View, now time.Time) (warnings []string) {
	slices.SortStableFunc(all, func(a, b warmup.View) int { return cmp.Compare(age(&a, now), age(&b, now)) })
	decided := map[string]bool{} // by a later job
	more := 0
	for i := range all {
		v := &all[i]
		what := about(v)
		if v.DryRun || v.State == warmup.Cancelled || decided[what] {
			continue
		}
		decided[what] = true
		switch old := age(v, now); {
		case v.State != warmup.Failed && v.State != warmup.Partly || old > toldFor:
		case len(warnings) == mostTold:
			more++
		default:
			warnings = append(warnings, says(v, old))
		}
	}
	if more > 0 {
		warnings[mostTold-1] += fmt.Sprintf("; and %d more: hearth jobs", more)
	}
	return warnings
}

// age returns how long ago a job ended. It is 0 for a job that is not over.
func age(v *warmup.View, now time.Time) time.Duration {
	if !v.State.Over() || v.Ended == nil {
		return 0
	}
	return max(0, now.Sub(*v.Ended))
}

// about returns what a job has in common with a later one about the same, also a check with a warm-up. A list
// without an absolute path has nothing in common with another: its name does not say where it lies.
func about(v *warmup.View) string {
	on := ""
	if v.ToVolume {
		on = warmup.OnVolumes
	}
	switch {
	case v.List != "" && !filepath.IsAbs(v.List):
		return v.ID
	case v.MetadataOnly:
		return "names of " + v.List + strings.Join(v.Targets, "\n")
	}
	return on + v.List + "\n" + strings.Join(v.Targets, "\n")
}

// says returns a warning with its cure.
func says(v *warmup.View, old time.Duration) string {
	what := v.Request
	if len(what.Targets) > 1 {
		what.As, what.Targets = nil, []string{what.Shown()[0], fmt.Sprintf("and %d more", len(what.Targets)-1)}
	}
	begin := fmt.Sprintf("the warm-up %s of %s", v.ID, what.What())
	if v.Check {
		what.Check = false
		begin = fmt.Sprintf("the check %s of %s", v.ID, what.What())
	}
	ago := fmt.Sprintf("%d min ago", int(old.Minutes()))
	switch {
	case v.State == warmup.Failed:
		return fmt.Sprintf("%s failed %s: %s; hearth jobs retry %s begins it again", begin, ago, v.Error, v.ID)
	case v.Check:
		return fmt.Sprintf("%s found %s that not all is there and whole; hearth jobs %s says what, a warm-up loads it", begin, ago, v.ID)
	}
	return fmt.Sprintf("%s ended %s without all of it; hearth jobs %s says what is missing, hearth jobs retry %s loads it", begin, ago, v.ID, v.ID)
}
