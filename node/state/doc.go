// Package state has the small files that a node keeps in its cache directories beside the cache. To begin
// without what they hold would be slow, or wrong. Each is written completely and then renamed into place. A
// file that cannot be read counts as missing.
package state
