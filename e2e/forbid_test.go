package e2e

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// forbidVariable names system calls that the kernel shall refuse to the program
// that this process becomes: direct, which is O_DIRECT at open, answered EINVAL as
// file systems do that do not know it; mount, answered EACCES as AppArmor does.
const forbidVariable = "HEARTH_E2E_FORBID"

// forbid is what to put before a program, and into its environment.
func (e *env) forbid(calls string) (wrap, environ []string) {
	e.Helper()
	self, err := os.Executable()
	e.must(err, "find this test")
	return []string{self}, []string{forbidVariable + "=" + calls}
}

// beForbidden becomes the program that its arguments name, under a filter.
func beForbidden(calls string) int {
	const number, third = 0, 32 // where struct seccomp_data has the call, and its third argument
	load := func(at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
	}
	end := func(with uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: with} }
	filter := map[string][]unix.SockFilter{
		"direct": {load(number), {Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_OPENAT, Jf: 3},
			load(third), {Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: unix.O_DIRECT, Jf: 1},
			end(unix.SECCOMP_RET_ERRNO | uint32(unix.EINVAL)), end(unix.SECCOMP_RET_ALLOW)},
		"mount": {load(number), {Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_MOUNT, Jf: 1},
			end(unix.SECCOMP_RET_ERRNO | uint32(unix.EACCES)), end(unix.SECCOMP_RET_ALLOW)},
	}[calls]
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: unsafe.SliceData(filter)}
	// The filter is the thread's, and so is the exec.
	err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0)
	if err == nil {
		var environ []string
		for _, v := range os.Environ() {
			if !strings.HasPrefix(v, forbidVariable+"=") {
				environ = append(environ, v)
			}
		}
		err = syscall.Exec(os.Args[1], os.Args[1:], environ)
	}
	fmt.Fprintln(os.Stderr, "forbid "+calls+":", err)
	return 1
}
