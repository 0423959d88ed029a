package e2e

import (
	"path"
	"slices"
	"strings"
	"testing"
)

// area is a folder, and the scenarios that tell whether it works.
type area struct {
	folder    string // of all below, too; of files whose names begin so, for e2e
	scenarios string // patterns of path.Match, with spaces between them
}

// areas is how CI finds the scenarios of what was changed. A folder that is not here has
// none; a scenario that is in no area is found by TestEveryScenarioHasAnArea.
func areas() []area {
	const (
		reading  = "epochs-* large-* readers-* find two-* cold-lookups wide-directory strict"
		mounts   = "busy-mount detached-mount overlay aborted cut-off dead-mount-point daemon fstab automount hangup number-taken other-users unprivileged-user user-namespace no-right-to-mount readers-and-signals open-handles-* kept-* write-* drafts-verb"
		fresh    = "versions-* changes-by-aws changed-behind-* no-if-match-* strict"
		faulty   = "silent-origin sick-* killed-* away-* restart-during-outage"
		disks    = "volume-* budgets eviction disk-* flips-* cache-* kill-9-while-filling others-fill-the-disk memory-limit wired-volume-and-ring crash-matrix chaos fsck-* scrub pins ring-lent kept-million kept-cannot-start write-*"
		observed = "dashboard metric-labels alert-rules doctor* explain status-* drafts-verb"
		first    = "quickstart commands examples daemon hangup wrong-set-ups demo* recipe-* service* dist container"
		loading  = "warmup-* prefetch pins"
	)
	return []area{
		{"cache", disks + " epochs-* large-*"},
		{"fuse/keep", "kept-*"},
		{"draft", "drafts-verb"},
		{"fuse", reading + " " + mounts + " demo"},
		{"namespace", reading + " " + fresh + " " + faulty + " odd-keys million-names ring-news ring-listings"},
		{"origin", fresh + " " + faulty + " odd-keys wrong-set-ups"},
		{"peer", "ring-*"},
		{"s3gw", "s3-*"},
		{"volume", "volume-* ring-volumes"},
		{"internal/fakenvmet", "volume-tcp ring-volumes"},
		{"warmup", loading},
		{"node/ring", "ring-*"},
		{"node/admin", "group-hearth s3-attacks ring-strangers*"},
		{"node/jobs", loading},
		{"node/fsck", "fsck-* scrub"},
		{"node/doctor", "doctor*"},
		{"node", observed + " " + mounts + " group-hearth service* ring-end volume-* ring-volumes"},
		{"internal/admit", "s3-attacks ring-strangers*"},
		{"internal/flight", reading + " ring-cold*"},
		{"cmd", first + " group-hearth status-*"},
		{"deploy", "dist dashboard alert-rules recipe-* service*"},
		{"volume", "warmup-volume"},
		{"docs", "quickstart recipe-* examples"},
		{"e2e/ring", "ring-*"},
		{"e2e/s3", "s3-*"},
		{"e2e/volume", "volume-*"},
		{"e2e/warmup", "warmup-*"},
		{"e2e/sick", "sick-* killed-* away-*"},
		{"e2e/versions", "versions-*"},
		{"e2e/crash", "crash-matrix kill-9-while-filling"},
		{"e2e/chaos", "chaos"},
		{"e2e/disks", "disk-*"},
		{"e2e/damage", "cache-damaged* flips-*"},
		{"e2e/fsck", "fsck-* scrub"},
		{"e2e/status", "status-*"},
		{"e2e/evict", "eviction"},
		{"e2e/prefetch", "prefetch"},
		{"e2e/containers", "memory-limit cache-on-* cache-without-* no-right-to-mount user-namespace container"},
	}
}

// inAreas tells whether a scenario is of one of some folders: by the longest folder of the
// table that one is in. "." stands for everything.
func inAreas(name string, folders []string) bool {
	return slices.ContainsFunc(folders, func(folder string) bool {
		var best area
		for _, a := range areas() {
			if strings.HasPrefix(folder, a.folder) && len(a.folder) > len(best.folder) {
				best = a
			}
		}
		return folder == "." || slices.ContainsFunc(strings.Fields(best.scenarios), func(pattern string) bool {
			ok, _ := path.Match(pattern, name) // TestEveryScenarioHasAnArea has seen it
			return ok
		})
	})
}

func TestEveryScenarioHasAnArea(t *testing.T) {
	// No scenario is forgotten when a folder changes, and no pattern of the table names
	// what there is no more.
	all := scenarios()
	for _, sc := range all {
		if !slices.ContainsFunc(areas(), func(a area) bool { return inAreas(sc.name, []string{a.folder}) }) {
			t.Errorf("scenario %s is in no area", sc.name)
		}
	}
	for _, a := range areas() {
		for _, pattern := range strings.Fields(a.scenarios) {
			if !slices.ContainsFunc(all, func(sc scenario) bool { ok, err := path.Match(pattern, sc.name); return ok && err == nil }) {
				t.Errorf("area %s: no scenario is called %s", a.folder, pattern)
			}
		}
	}
	if inAreas("ring-cold", []string{"cache/disk", "nowhere"}) || !inAreas("ring-cold", []string{"cache", "peer/wire"}) || !inAreas("ring-cold", []string{"."}) {
		t.Error("ring-cold is of peer, not of cache")
	}
}
