// Package powercut shows a test what a power cut may leave of the files that the code
// under test wrote: the crash model.
//
// Record runs a scenario in a child process. The kernel tells the test of the child's
// system calls before it does them (seccomp's user notification). So every write, punch,
// truncation, creation, rename, removal and sync of files below one directory is seen,
// whichever package or library makes it. The code under test knows nothing of it.
//
// A Trace is these operations in their order, with the scenario's own marks between
// them: "Sync has answered". A cut of it at an operation makes a directory such as a
// file system may show after the power failed there:
//
//   - What was written to a file since its last fsync or fdatasync is there or not: each
//     write or punch by itself, or each page of 4 KiB by itself. Such a page has any
//     state that it had since then.
//   - A file's size is any that it had since then, whatever became of its pages.
//   - Each creation, rename and removal since the directory's last fsync is there or
//     not, in any combination: a renamed file may be empty, a removed one back.
//   - syncfs and sync make everything durable. sync_file_range makes nothing durable.
//
// O_DIRECT is no sync: the device has a cache. Pages are not torn. A call counts even if
// it fails, so scenarios are for healthy devices. Links, renamed directories, O_TMPFILE
// and copies within the kernel are refused. mmap is not seen at all.
package powercut
