package e2e

import (
	"fmt"
	"slices"
	"time"

	"github.com/hearthfs/hearth/internal/faultfs"
)

// scenarios in the order of the table. Those from core on are part of `make
// test`; what takes longer comes with `make soak`.
func scenarios() []scenario {
	const s3, behind = "versitygw", "versitygw behind the fault proxy"
	by := func(small, reduced, whole string) func(level) string {
		return func(l level) string {
			return map[level]string{core: small + " (REDUCED)", all: reduced + " (REDUCED)", full: whole}[l]
		}
	}
	is := func(text string) func(level) string { return func(level) string { return text } }
	list := []scenario{
		{name: "epochs-none", from: core, limit: 4 * time.Minute, origin: behind, size: by("300 files", "2,000 files", "20,000 files"), run: epochs("none")},
		{name: "epochs-passthrough", from: all, limit: 4 * time.Minute, origin: behind, size: by("300 files", "2,000 files", "20,000 files"), run: epochs("passthrough")},
		{name: "large-random-none", from: all, limit: 4 * time.Minute, origin: behind, size: by("96 MiB", "512 MiB", "5 GiB"), run: largeRandom("none")},
		{name: "large-random-passthrough", from: core, limit: 4 * time.Minute, origin: behind, size: by("96 MiB", "512 MiB", "5 GiB"), run: largeRandom("passthrough")},
		{name: "cold-lookups", from: core, limit: 2 * time.Minute, origin: s3, size: by("2,000 files", "10,000 files", "20,000 files"), run: coldLookups},
		{name: "kill-9-while-filling", from: core, limit: 4 * time.Minute, origin: behind, size: by("2 kills", "4 kills", "10 kills"), run: killed},
		{name: "wide-directory", from: core, limit: 4 * time.Minute, origin: behind, size: by("5,000 names", "5,000 names", "100,000 names"), run: wideDirectory},
		{name: "find", from: core, limit: 4 * time.Minute, origin: behind, size: by("1,000 files", "5,000 files", "20,000 files"), run: find},
		{name: "two-links", from: core, limit: time.Minute, origin: s3, size: by("20 files", "200 files", "20,000 files"), run: twoLinks},
		{name: "silent-origin", from: all, limit: 2 * time.Minute, origin: s3, size: is("20 files"), run: silentOrigin},
		{name: "changes-by-aws", from: core, limit: 2 * time.Minute, origin: s3, size: is("3 changes"), run: changes},
		{name: "strict", from: core, limit: time.Minute, origin: s3, size: is("5 versions"), run: strict},
		{name: "readers-none", from: core, limit: time.Minute, origin: s3, size: is("4 files"), run: readersOfEveryKind("--open", "none")},
		{name: "readers-passthrough", from: all, limit: time.Minute, origin: s3, size: is("4 files"), run: readersOfEveryKind("--open", "passthrough")},
		{name: "readers-all-masked", from: core, limit: time.Minute, origin: s3, size: is("4 files"),
			run: readersOfEveryKind("--fuse-without", "all")},
		{name: "epochs-all-masked", from: all, limit: 4 * time.Minute, origin: behind, size: by("300 files", "2,000 files", "20,000 files"), run: epochsMasked},
		{name: "unprivileged-user", root: true, from: core, limit: time.Minute, origin: s3, size: is("40 files"), run: asNobody},
		{name: "group-hearth", root: true, from: core, limit: time.Minute, origin: s3, size: is("30 commands"), run: groupHearth},
		{name: "other-users", root: true, from: core, limit: time.Minute, origin: s3, size: is("10 files"), run: otherUsers},
		{name: "two-mounts", from: core, limit: time.Minute, origin: s3, size: by("40 files", "200 files", "20,000 files"), run: twoMounts},
		{name: "budgets", root: true, from: core, limit: 4 * time.Minute, origin: s3, size: by("10 x 48 MiB", "10 x 128 MiB", "10 x 256 MiB"), run: budgets},
		{name: "wired-volume-and-ring", root: true, from: core, limit: 2 * time.Minute, origin: behind, size: by("300 files", "2,000 files", "20,000 files"), run: wired},
		{name: "commands", from: core, limit: time.Minute, origin: s3, size: by("20 files", "80 files", "20,000 files"), run: commands},
		{name: "examples", root: true, from: all, limit: 6 * time.Minute, origin: s3, size: is("every help"), run: examples},
		{name: "daemon", from: core, limit: time.Minute, origin: s3, size: is("2 daemons"), run: daemon},
		{name: "dead-mount-point", from: core, limit: time.Minute, origin: s3, size: is("6 mounts"), run: deadMountPoint},
		{name: "fstab", root: true, from: core, limit: time.Minute, origin: s3, size: is("40 files"), run: fstab},
		{name: "automount", root: true, from: core, limit: time.Minute, origin: s3, size: is("4 accesses"), run: automount},
		{name: "hangup", from: core, limit: time.Minute, origin: s3, size: is("4 hangups"), run: hangup},
		{name: "wrong-set-ups", from: core, limit: time.Minute, origin: behind, size: is("6 set-ups"), run: wrongSetUps},
		{name: "demo", root: true, from: core, limit: 6 * time.Minute, origin: s3, size: by("200 images", "3,000 images", "3,000 images"), run: demonstration},
		{name: "demo-kept", root: true, from: core, limit: 2 * time.Minute, origin: s3, size: is("41 files; 12 of one's own"), run: demoKept},
	}
	list = append(list, neverWrong(is, by)...)
	list = append(list, observed(is)...)
	list = append(list, warmUps(by)...)
	list = append(list, docPages(is)...)
	for i := range list {
		if list[i].issue == "" {
			list[i].issue = "mount"
		}
		if list[i].run == nil {
			panic(fmt.Sprintf("scenario %s has nothing to run", list[i].name))
		}
	}
	for _, sc := range sickScenarios() {
		sc.issue = "never-wrong"
		list = append(list, sc)
	}
	return slices.Concat(list, volumeScenarios(), keeperScenarios(), writeScenarios(), warmUpChecks(), rings(), s3Scenarios())
}

// neverWrong are the scenarios of "one node that is never wrong and never stuck".
func neverWrong(is func(string) func(level) string, by func(small, reduced, whole string) func(level) string) []scenario {
	const s3, behind = "versitygw", "versitygw behind the fault proxy"
	lasts := by("3 s of changes", "6 s of changes", "1 minute of changes")
	briefly := by("", "2 s of changes", "10 s of changes")
	list := []scenario{
		{name: "versions-bounded-none", from: core, limit: 2 * time.Minute, origin: behind, size: lasts, run: versions("bounded(1s)", "none", "none", longChanges)},
		{name: "versions-bounded-passthrough", from: all, limit: 2 * time.Minute, origin: behind, size: lasts, run: versions("bounded(1s)", "passthrough", "passthrough", longChanges)},
		{name: "versions-bounded-auto", from: all, limit: 2 * time.Minute, origin: behind, size: lasts, run: versions("bounded(1s)", "auto", "passthrough", longChanges)},
		{name: "versions-strict-plain", from: all, limit: 2 * time.Minute, origin: behind, size: lasts, run: versions("strict", "auto", "plain", longChanges)},
		{name: "versions-strict-passthrough", from: core, limit: 2 * time.Minute, origin: behind, size: lasts, run: versions("strict", "passthrough", "passthrough", longChanges)},
		{name: "versions-bounded-plain", from: all, limit: 2 * time.Minute, origin: behind, size: briefly, run: versions("bounded(1s)", "plain", "plain", shortChanges)},
		{name: "versions-immutable-none", from: all, limit: 2 * time.Minute, origin: behind, size: briefly, run: versions("immutable", "none", "none", shortChanges)},
		{name: "versions-immutable-passthrough", from: all, limit: 2 * time.Minute, origin: behind, size: briefly, run: versions("immutable", "passthrough", "passthrough", shortChanges)},
		{name: "versions-immutable-plain", from: all, limit: 2 * time.Minute, origin: behind, size: briefly, run: versions("immutable", "plain", "plain", shortChanges)},
		{name: "versions-no-if-match", from: all, limit: 2 * time.Minute, origin: behind, size: lasts, run: versionsWithoutIfMatch},
		{name: "changed-behind-none", from: all, limit: time.Minute, origin: behind, size: is("3 objects"), run: changedBehind("none", false)},
		{name: "changed-behind-passthrough", from: all, limit: time.Minute, origin: behind, size: is("3 objects"), run: changedBehind("passthrough", false)},
		{name: "no-if-match-none", from: core, limit: time.Minute, origin: behind, size: is("3 objects (core: one bound)"), run: changedBehind("none", true)},
		{name: "no-if-match-passthrough", from: all, limit: time.Minute, origin: behind, size: is("3 objects"), run: changedBehind("passthrough", true)},
		{name: "readers-and-signals", from: core, limit: time.Minute, origin: behind, size: is("5 readers"), run: readersAndSignals},
		{name: "overlay", root: true, from: all, limit: time.Minute, origin: s3, size: is("1 change"), run: overlay},
		{name: "detached-mount", from: core, limit: time.Minute, origin: s3, size: is("4 mounts"), run: detachedMount},
		{name: "busy-mount", from: core, limit: time.Minute, origin: s3, size: is("3 mounts"), run: busyMount},
		{name: "aborted", root: true, from: core, limit: time.Minute, origin: behind, size: is("1 abort"), run: aborted},
		{name: "number-taken", root: true, from: all, limit: 2 * time.Minute, origin: behind, size: is("2 nodes"), run: numberTaken},
		{name: "cut-off", root: true, from: all, limit: time.Minute, origin: s3, size: is("1 mount"), run: cutOff},
		{name: "restart-during-outage", from: core, limit: 2 * time.Minute, origin: behind, size: is("20 files"), run: restartDuringOutage},
		{name: "odd-keys", from: core, limit: time.Minute, origin: "gofakes3", size: is("50 keys"), run: oddKeys},
		{name: "service-unit", root: true, from: all, limit: time.Minute, origin: "none", size: is("1 unit, 1 line of fstab"), run: serviceUnit},
		{name: "service-systemd", root: true, from: all, limit: 3 * time.Minute, origin: s3, size: is("2 machines, 40 files"), run: serviceSystemd},
		{name: "service", root: true, from: all, limit: 2 * time.Minute, origin: s3, size: is("7 starts, 40 files"), run: service},
		{name: "dist", root: true, static: true, from: full, limit: 3 * time.Minute, origin: s3, size: is("1 .deb, 1 image"), run: dist},
		{name: "eviction", from: all, limit: 4 * time.Minute, origin: behind, size: by("", "2,000 files, half cached", "20,000 files, half cached"), run: eviction},
		{name: "crash-matrix", root: true, from: all, limit: 4 * time.Minute, origin: behind, size: by("", "15 kills", "200 kills"), run: crashMatrix},
	}
	list = append(list, scenario{name: "chaos", root: true, from: all, limit: chaosLimit(), origin: behind, size: by("", "a slice", "the whole run"), run: chaosRun})
	list = append(list, sickDisks(by)...)
	list = append(list, containers(by)...)
	list = append(list, limits(by)...)
	for i := range list {
		list[i].issue = "never-wrong"
	}
	return list
}

// sickDisks are the scenarios of cache directories that fail, fill up and rot.
func sickDisks(by func(small, reduced, whole string) func(level) string) []scenario {
	const s3, behind = "versitygw", "versitygw behind the fault proxy"
	return []scenario{
		{name: "disk-stalls", root: true, from: core, limit: 3 * time.Minute, origin: behind, size: by("160 files", "800 files", "2,000 files"), run: sickDisk(faultfs.Stall, "none")},
		{name: "disk-fails", root: true, from: all, limit: 3 * time.Minute, origin: behind, size: by("160 files", "800 files", "2,000 files"), run: sickDisk(faultfs.IOError, "none")},
		{name: "disk-fails-passthrough", root: true, from: all, limit: 3 * time.Minute, origin: behind, size: by("160 files", "800 files", "2,000 files"), run: sickDisk(faultfs.IOError, "passthrough")},
		{name: "disk-read-only", root: true, from: all, limit: 3 * time.Minute, origin: behind, size: by("160 files", "800 files", "2,000 files"), run: readOnlyDisk},
		{name: "disk-full", root: true, from: all, limit: 3 * time.Minute, origin: s3, size: by("160 files", "800 files", "2,000 files"), run: fullDisk},
		{name: "flips-none", from: core, limit: 3 * time.Minute, origin: s3, size: by("20 flips", "60 flips", "300 flips"), run: flips("none")},
		{name: "flips-passthrough", root: true, from: all, limit: 3 * time.Minute, origin: s3, size: by("", "60 flips", "300 flips"), run: flips("passthrough")},
		{name: "flips-plain", from: all, limit: 3 * time.Minute, origin: s3, size: by("", "60 flips", "300 flips"), run: flips("plain")},
		{name: "cache-damaged-passthrough", root: true, from: all, limit: 3 * time.Minute, origin: s3, size: by("", "800 files", "2,000 files"), run: damaged("passthrough")},
		{name: "cache-damaged", from: all, limit: 3 * time.Minute, origin: s3, size: by("160 files", "800 files", "2,000 files"), run: damaged("none")},
		{name: "cache-removed", from: all, limit: 3 * time.Minute, origin: s3, size: by("160 files", "800 files", "2,000 files"), run: removedDirectory},
		{name: "fsck-stopped", from: all, limit: 3 * time.Minute, origin: behind, size: by("12 flips", "12 flips, 800 files", "12 flips, 2,000 files"), run: fsckStopped},
		{name: "fsck-running", from: all, limit: 3 * time.Minute, origin: behind, size: by("12 flips", "12 flips, 800 files", "12 flips, 2,000 files"), run: fsckRunning},
		{name: "scrub", from: all, limit: 3 * time.Minute, origin: behind, size: by("8 flips", "8 flips, 800 files", "8 flips, 2,000 files"), run: scrubbed},
	}
}

// containers are the scenarios of limits, file systems and rights as containers have them.
func containers(by func(small, reduced, whole string) func(level) string) []scenario {
	const s3, behind = "versitygw", "versitygw behind the fault proxy"
	size := by("180 files", "180 files", "820 files")
	return []scenario{
		{name: "memory-limit", root: true, static: true, from: all, limit: 3 * time.Minute, origin: s3, size: by("", "4 x the limit of 128 MiB", "16 x the limit of 128 MiB"), run: memoryLimit},
		{name: "cache-on-tmpfs-none", root: true, from: all, limit: 2 * time.Minute, origin: behind, size: size, run: cacheOn("tmpfs", "none", "")},
		{name: "cache-on-tmpfs-passthrough", root: true, from: all, limit: 2 * time.Minute, origin: behind, size: size, run: cacheOn("tmpfs", "passthrough", "")},
		{name: "cache-without-o-direct-none", root: true, from: all, limit: 2 * time.Minute, origin: behind, size: size, run: cacheOn("tmpfs", "none", "direct")},
		{name: "cache-without-o-direct-passthrough", root: true, from: all, limit: 2 * time.Minute, origin: behind, size: size, run: cacheOn("tmpfs", "passthrough", "direct")},
		{name: "cache-on-overlay-none", root: true, from: all, limit: 2 * time.Minute, origin: behind, size: size, run: cacheOn("overlay", "none", "")},
		{name: "cache-on-overlay-passthrough", root: true, from: all, limit: 2 * time.Minute, origin: behind, size: size, run: cacheOn("overlay", "passthrough", "")},
		{name: "no-right-to-mount", root: true, from: all, limit: time.Minute, origin: s3, size: func(level) string { return "7 ways" }, run: noRightToMount},
		{name: "user-namespace", root: true, from: all, limit: time.Minute, origin: s3, size: by("40 files", "40 files", "40 files"), run: userNamespace},
		{name: "container", root: true, static: true, from: all, limit: time.Minute, origin: s3, size: by("40 files", "40 files", "40 files"), run: container},
	}
}

// epochsMasked is the core of reading with everything masked that the kernel
// offers beyond the oldest one we support.
func epochsMasked(e *env) {
	o := e.origin()
	list := e.load(o, e.set("D1", 5, 60, 20, 100))
	p := e.proxy(o)
	h := e.mount(o, settings{endpoint: p.endpoint, mount: []string{"--fuse-without", "all"}})
	e.good("cold", epoch(h.dir, list, 1, 8, 0))
	before := p.gets()
	e.good("again", epoch(h.dir, list, 2, 8, 0))
	if again := p.gets() - before; again != 0 {
		e.Errorf("reading again asked the origin %d times", again)
	}
	h.quit()
}
