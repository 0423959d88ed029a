// Package powercut shows a test what a power cut may leave of the files that the code
// under test wrote: the crash model.
//
// Record runs a scenario in a child process, whose system calls the kernel tells the
// test of before it does them (seccomp's user notification). So every write, punch,
// truncation, creation, rename, removal and sync of files below one directory is seen,
// whichever package or library makes it, and the code under test knows nothing of it.
//
// A Trace is these operations in their order, with the scenario's own marks between
// them: "Sync has answered". A cut of it at an operation makes a directory such as a
// file system may show after the power failed there:
//
//   - What a file was given since its last fsync or fdatasync is there or not: each
//     write or punch by itself, in pages of 4 KiB, or in pages whose older state came
//     to the device after a newer one was lost.
//   - A file's size is any that it had since then, whatever became of its pages.
//   - Each creation, rename and removal since the directory's last fsync is there or
//     not, in any combination: a renamed file may be empty, a removed one back.
//   - syncfs and sync make all durable. sync_file_range makes nothing durable.
//
// O_DIRECT is no sync: the device has a cache. Pages are not torn. A call counts though
// it fails, so scenarios are for devices that are well. Not seen, and refused: links,
// renamed directories, O_TMPFILE, copies within the kernel. Not seen at all: mmap.
package powercut
