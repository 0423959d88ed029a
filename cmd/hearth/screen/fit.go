package screen

import "fmt"

// section is a part of the screen. Its rows may be cut, its head and foot may not. The rows of a
// spare section are cut before those of any other.
type section struct {
	head, rows, foot []string
	spare            bool
}

func (s *section) lines() int { return len(s.head) + len(s.rows) + len(s.foot) }

// fit puts sections below each other, on one screen less the line of the prompt. A height of 0 has
// room for everything.
func fit(all []section, height int) (lines []string) {
	used, gaps := 0, -1
	for _, s := range all {
		if n := s.lines(); n > 0 {
			used, gaps = used+n, gaps+1
		}
	}
	room := height - 1
	spaced := height == 0 || used+gaps <= room
	shown := cutRows(all, height, used-room)
	for i, s := range all {
		if spaced && i > 0 && s.lines() > 0 {
			lines = append(lines, "")
		}
		lines = append(append(lines, s.head...), s.rows[:shown[i]]...)
		if more := len(s.rows) - shown[i]; more > 0 {
			lines = append(lines, fmt.Sprintf("... and %d more (-o json)", more))
		}
		lines = append(lines, s.foot...)
	}
	if height > 0 && len(lines) > room { // a terminal of a few lines, or many problems
		lines = append(lines[:max(0, room-1)], fmt.Sprintf("... and %d lines more (-o json)", len(lines)-room+1))
	}
	return lines
}

// cutRows returns how many rows of each section are shown, to save over lines if possible. With a
// height of 0 all rows are shown.
func cutRows(all []section, height, over int) []int {
	shown := make([]int, len(all))
	for i, s := range all {
		shown[i] = len(s.rows)
	}
	for height > 0 && over > 0 {
		most := -1
		for i, s := range all {
			// A whole section loses at least two rows, since one line says how many are missing.
			cut := shown[i] < len(s.rows)
			switch worth := shown[i] > 2 || shown[i] > 1 && (cut || s.spare) || shown[i] > 0 && cut && s.spare; {
			case !worth:
			case most < 0, s.spare && !all[most].spare, s.spare == all[most].spare && shown[i] > shown[most]:
				most = i
			}
		}
		if most < 0 {
			break
		}
		if shown[most] == len(all[most].rows) {
			over++ // the line that says how many more
		}
		shown[most]--
		over--
	}
	return shown
}
