package machine

import (
	"fmt"
	"io"
	"os"
	"time"
)

// monitorSlack is how late the runtime's monitor (sysmon) may be woken. From the moment that something
// runs, it looks every 20 us whether a thread is stuck in the kernel with its processor. With the kernel's
// usual 50 us on top, that makes 14,000 looks a second. In an epoch of small files, where each request
// finds its node idle (bench, W6 epoch), this is a tenth of what a ring's nodes spend. With 250 us it is a
// quarter of that. With a millisecond it was no less, and a stuck processor was missed for longer: the
// slowest hundredth of reads took half as long again. A thread that the monitor starts in place of a stuck
// one inherits the slack, so its timers come as late.
const monitorSlack = 250 * time.Microsecond

// easeMonitor has the kernel wake the runtime's monitor up to 250 us late, so that it runs less often. It takes
// CAP_SYS_NICE. The error says why it failed.
func easeMonitor() error {
	id, err := monitor()
	if err == nil {
		err = os.WriteFile("/proc/"+id+"/timerslack_ns", fmt.Append(nil, monitorSlack.Nanoseconds()), 0)
	}
	if err != nil {
		return fmt.Errorf("ease the runtime's monitor: %w", err)
	}
	return nil
}

// monitor returns the id of the monitor's thread. The runtime starts it before any other and never ends it, and
// the kernel lists a process's threads by age.
func monitor() (id string, err error) {
	threads, err := os.Open("/proc/self/task")
	if err != nil {
		return "", err
	}
	defer func() { _ = threads.Close() }() // it was only read
	oldest, err := threads.Readdirnames(2)
	if err == nil && len(oldest) < 2 {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return "", err
	}
	return oldest[1], nil
}
