package disk

import (
	"os"
	"strconv"
	"testing"
)

func TestHolders(t *testing.T) {
	// This process knows itself, and no process of the same id in another container.
	self := selfHolder()
	pid := strconv.Itoa(os.Getpid())
	if h := ParseLockHolder(self.String()); h != self || !h.IsSelf() || h.Ends || h.Defunct() {
		t.Errorf("%+v of %q", h, self)
	}
	self.Ends = true
	if h := ParseLockHolder(self.String()); h != self || !h.Ends {
		t.Errorf("%+v of %q", h, self)
	}
	if h := ParseLockHolder(pid + "\n"); !h.IsSelf() {
		t.Errorf("an id alone: %+v", h)
	}
	if h := ParseLockHolder(pid + " pid:[1] ends\n"); h.IsSelf() || !h.Ends || h.PID != pid {
		t.Errorf("of another container: %+v", h)
	}
	if h := ParseLockHolder(""); h.IsSelf() || h.PID == "" {
		t.Errorf("of nobody: %+v", h)
	}
}
