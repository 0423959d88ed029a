package powercut

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// watched are the system calls that change files, their sizes or their names, or that sync them.
// The three with numbers are of amd64 alone: unix.Rename uses one of them.
func watched() []uint32 {
	calls := []uint32{unix.SYS_OPENAT, unix.SYS_WRITE, unix.SYS_PWRITE64, unix.SYS_WRITEV, unix.SYS_PWRITEV, unix.SYS_PWRITEV2,
		unix.SYS_FTRUNCATE, unix.SYS_TRUNCATE, unix.SYS_FALLOCATE, unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2, unix.SYS_UNLINKAT, unix.SYS_MKDIRAT,
		unix.SYS_FSYNC, unix.SYS_FDATASYNC, unix.SYS_SYNCFS, unix.SYS_SYNC,
		unix.SYS_LINKAT, unix.SYS_SYMLINKAT, unix.SYS_COPY_FILE_RANGE, unix.SYS_SENDFILE, unix.SYS_SPLICE}
	if runtime.GOARCH == "amd64" {
		calls = append(calls, oldOpen, oldRename, oldUnlink)
	}
	return calls
}

const (
	oldOpen   = 2
	oldRename = 82
	oldUnlink = 87
)

// listen has the kernel tell the parent of the system calls of all threads of this process, from
// now on. It cannot be undone.
func listen() error {
	var code []unix.SockFilter
	calls := watched()
	code = append(code, unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}) // the call's number
	for i, nr := range calls {
		code = append(code, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: nr, Jt: uint8(len(calls) - i)})
	}
	code = append(code, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF})
	runtime.LockOSThread() // which gets the right first, and gives the others theirs
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("give up privileges: %w", err)
	}
	filter := unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
	const flags = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_TSYNC | unix.SECCOMP_FILTER_FLAG_TSYNC_ESRCH
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&filter)))
	if errno != 0 {
		return fmt.Errorf("install the filter (Linux 5.7 has it): %w", errno)
	}
	if err := unix.Sendmsg(listener, []byte{0}, unix.UnixRights(int(fd)), nil, 0); err != nil {
		return fmt.Errorf("send the descriptor: %w", err)
	}
	return unix.Close(int(fd))
}

func socketpair() (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	return os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs"), nil
}
