// Package state is the small files that a node keeps in its cache directories beside what is
// cached: what it would be slow, or wrong, to begin without. Each is written whole and renamed
// into place; one that cannot be read is as if it were not there.
package state
