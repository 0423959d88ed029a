package fuse

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// A mount is busy for the moment in which somebody asks for its size, which no process is seen to do: an unmount waits for that,
// and for nobody that it can name.
func TestAnUnmountWaitsForWhoAsksForTheSize(t *testing.T) {
	nobody := func() ([]string, int) { return nil, 0 }
	somebody := func() ([]string, int) { return []string{"vim (process 7: open /mnt/a)"}, 1 }
	for name, c := range map[string]struct {
		busy  int // how many tries find it so
		users func() ([]string, int)
		after error
		tries int
		says  string // "": it succeeds
		takes time.Duration
	}{
		"asked meanwhile":     {busy: 3, users: nobody, tries: 4, takes: 3 * askedFor / 50},
		"used, and not shown": {busy: 100, users: nobody, tries: 51, says: "unmount lazily", takes: askedFor},
		"used":                {busy: 100, users: somebody, tries: 1, says: "used by vim (process 7: open /mnt/a) and 1 more"},
		"another error":       {busy: 1, users: nobody, after: unix.EPERM, tries: 2, says: "not permitted", takes: askedFor / 50},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start, tries := time.Now(), 0
				err := patiently(func() error {
					if tries++; tries <= c.busy {
						return errBusy
					}
					return c.after
				}, c.users)
				if took := time.Since(start); tries != c.tries || took != c.takes {
					t.Errorf("%d tries in %v, not %d in %v", tries, took, c.tries, c.takes)
				}
				if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
					t.Errorf("%v, expected %q", err, c.says)
				}
				if errors.Is(err, errBusy) != (c.busy == 100) {
					t.Errorf("%v is errBusy, or is not and should be", err)
				}
			})
		})
	}
}
