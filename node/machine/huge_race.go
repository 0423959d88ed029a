//go:build race

package machine

// hugeHeap does nothing: the race detector would fill a shadow of the bytes, four times as large.
func hugeHeap(int64) {}
