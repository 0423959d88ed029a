package fuse

import (
	"syscall"
	"testing"

	"github.com/hearthfs/hearth/namespace"
)

// What somebody has open for writing, and what its name means meanwhile.

func TestANameIsItsDraftsWhileThatIsPublished(t *testing.T) {
	// The tree hears of an object before its draft does, and has the kernel ask for the name again: whoever looks it up then has the
	// same file as its writer.
	w := newWriter(t)
	node, handle := w.opened("a", "hello", syscall.O_WRONLY|syscall.O_APPEND)
	for at, data := range map[int]string{5: "!", 6: "?"} {
		w.is("write", w.put(node, at, data), ok)
		var seen uint64
		var names string
		end := w.tree.Subscribe(func(namespace.Change) { seen, names = w.look("a"), w.names(1) })
		w.is("close", w.flush(node), ok)
		end()
		w.is("the name as it is published", seen, node)
		w.is("names", names, "a")
	}
	w.release(node, handle)
}

func TestTwoOpensEmptyAFile(t *testing.T) {
	// Two opens with O_TRUNC, or one and a first write, meet: the second finds the other's draft, and empties it.
	w := newWriter(t)
	node, _ := w.opened("a", "hello", syscall.O_RDWR)
	w.is("write", w.put(node, 0, "J"), ok)
	for range 2 {
		if _, err := w.empty(node); err != nil {
			t.Error(err)
		}
		w.is("read", w.read(node), "")
	}
}
