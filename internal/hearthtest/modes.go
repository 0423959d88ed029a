package hearthtest

import (
	"errors"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// ObeyingModes runs do on a thread that is bound by file modes, which root is not. It holds for
// what do calls, and not for goroutines that do starts.
func ObeyingModes(do func() error) error {
	failed := errors.New("ended before its end")
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // the thread, without its privileges, ends with the goroutine
		if os.Getuid() == 0 {
			hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			var caps [2]unix.CapUserData
			if failed = unix.Capget(&hdr, &caps[0]); failed != nil {
				return
			}
			caps[0].Effective &^= 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH
			if failed = unix.Capset(&hdr, &caps[0]); failed != nil {
				return
			}
		}
		failed = do()
	}()
	<-done
	return failed
}
