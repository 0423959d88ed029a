package e2e

import "time"

// rings are the scenarios of many nodes with one cache.
func rings() []scenario {
	const behind = "versitygw behind the fault proxy"
	by := func(reduced, whole string) func(level) string {
		return func(l level) string {
			if l == full {
				return whole
			}
			return reduced + " (REDUCED)"
		}
	}
	is := func(text string) func(level) string { return func(level) string { return text } }
	list := []scenario{
		{name: "ring-cold", size: by("5 nodes, 800 files", "5 nodes, 20,000 files"), run: ringCold("D1")},
		{name: "ring-cold-16k", size: by("5 nodes, 800 files", "5 nodes, 20,000 files"), run: ringCold("D1s")},
		{name: "ring-listings", size: is("5 nodes, 800 files"), run: ringListings},
		{name: "ring-news", size: is("5 nodes, 20 files"), run: ringNews},
		{name: "ring-large", size: by("5 nodes, 128 MiB", "5 nodes, 1 GiB"), run: ringLarge},
		{name: "ring-warmup", size: by("5 nodes, 402 files", "5 nodes, 20,004 files"), run: ringWarmUp},
		{name: "ring-owner-killed", size: by("5 nodes, 400 files", "5 nodes, 20,000 files"), run: ringOwnerKilled},
		{name: "ring-midst", size: is("5 nodes, 2 files of 8 MiB"), run: ringMidst},
		{name: "ring-stopped", size: by("5 nodes, 400 files", "5 nodes, 20,000 files"), run: ringStopped},
		{name: "ring-cut", size: by("6 nodes, 400 files", "6 nodes, 20,000 files, 3 minutes"), run: ringCut},
		{name: "ring-third", size: by("5 nodes, 2,000 files", "8 nodes, 20,000 files"), run: ringThird},
		{name: "ring-slow-origin", size: by("5 nodes, 20 files", "5 nodes, 200 files"), run: ringSlowOrigin},
		{name: "ring-join-leave", size: by("6 nodes, 2,000 files", "6 nodes, 20,000 files"), run: ringJoinLeave},
		{name: "ring-restart", size: by("5 nodes, 400 files", "5 nodes, 20,000 files"), run: ringRestart},
		{name: "ring-kept", size: is("3 nodes, 600 files, 6 kills"), run: ringKept},
		{name: "ring-back", size: by("5 nodes, 1,000 files", "5 nodes, 20,000 files"), run: ringBack},
		{name: "ring-clocks", size: is("5 nodes, 201 files, 4 jumps"), run: ringClocks},
		{name: "ring-one-file", size: is("5 nodes, 30 files"), run: ringOneFile},
		{name: "ring-end", size: is("5 nodes, 40 files"), run: ringEnd},
		{name: "ring-lent", size: is("2 nodes, 3 files of 18 MiB"), run: ringLent},
		{name: "ring-strangers", size: is("3 nodes, 5 strangers"), run: ringStrangers(false)},
		{name: "ring-strangers-plain", from: full, size: is("3 nodes, 5 strangers"), run: ringStrangers(true)},
		{name: "ring-capture", size: is("3 nodes, 30 files"), run: ringCapture},
		{name: "ring-volumes", size: by("3 nodes, 2 volumes, 2,400 files", "3 nodes, 2 volumes, 20,000 files"), run: ringVolumes},
		{name: "ring-owners", size: by("5 nodes, 2,000 files", "5 nodes, 20,000 files"), run: ringOwners},
	}
	for i := range list {
		list[i].issue, list[i].from, list[i].origin = "ring", max(list[i].from, all), behind
		// A network needs root, and a limit holds for a machine that does other work besides.
		list[i].root, list[i].limit = true, 4*time.Minute
	}
	return list
}
