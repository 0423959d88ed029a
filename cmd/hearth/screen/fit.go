package screen

import "fmt"

// fit puts sections below each other, on one screen less the line of the prompt; a height
// of 0 has room for all.
func fit(all []section, height int) (lines []string) {
	shown := make([]int, len(all))
	used, gaps := 0, -1
	for i, s := range all {
		shown[i] = len(s.rows)
		if n := len(s.head) + len(s.rows); n > 0 {
			used, gaps = used+n, gaps+1
		}
	}
	room := height - 1
	spaced := height == 0 || used+gaps <= room
	for height > 0 && used > room {
		most := -1
		for i, s := range all {
			// Of a section that is whole, two rows at least must go, for the line that says so.
			worth := shown[i] > 2 || shown[i] > 1 && shown[i] < len(s.rows)
			if worth && (most < 0 || shown[i] > shown[most]) {
				most = i
			}
		}
		if most < 0 {
			break
		}
		if shown[most] == len(all[most].rows) {
			used++ // the line that says how many more
		}
		shown[most]--
		used--
	}
	for i, s := range all {
		if spaced && i > 0 && len(s.head)+len(s.rows) > 0 {
			lines = append(lines, "")
		}
		lines = append(append(lines, s.head...), s.rows[:shown[i]]...)
		if more := len(s.rows) - shown[i]; more > 0 {
			lines = append(lines, fmt.Sprintf("... and %d more (-o json)", more))
		}
	}
	if height > 0 && len(lines) > room { // a terminal of a few lines, or many problems
		lines = append(lines[:max(0, room-1)], fmt.Sprintf("... and %d lines more (-o json)", len(lines)-room+1))
	}
	return lines
}
