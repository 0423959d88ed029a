package machine

import (
	"fmt"
	"io"
	"os"
	"time"
)

// monitorSlack is how late the runtime's monitor may be woken. It looks every 20 us whether a
// thread is stuck in the kernel with its processor, from the moment on that something runs, and
// the kernel's usual 50 us on top make 14,000 looks a second: a tenth of what a ring's nodes
// spend on an epoch of small files, where one request after the other finds its node idle (bench,
// W6 epoch). With 250 us it is a quarter of that. With a millisecond it was no less, and a
// processor was missed for longer: the slowest hundredth of reads took half as long again. A
// thread that the monitor begins, in place of one that is stuck, has it as well: its timers, if
// it waits for one, come as late.
const monitorSlack = 250 * time.Microsecond

// easeMonitor has the kernel wake the runtime's monitor (sysmon) up to 250 us late, which
// saves it from coming so often. An error says why not: it takes CAP_SYS_NICE.
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

// monitor is the thread that the runtime begins before any other, and that never ends: the
// kernel lists a process's threads by age.
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
