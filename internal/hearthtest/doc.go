// Package hearthtest holds what the tests of several packages share: real S3
// servers as processes, data that a reader can check without a reference copy,
// the data sets of BENCH, a loader for them, and conformance suites.
//
// Data: byte i of version v of a path is a pure function of (path, i, v). Each
// page of 4 KiB begins with a header that names its version, sealed with the
// path and the page's place; the rest is a pseudo-random stream seeded by the
// three. So a reader of any range can tell right bytes from wrong ones, and
// bytes of another version, another file or another offset from noise.
//
// Servers: each runs with random keys on a free loopback port over a directory
// of its own, and ends with the process that started it, killed or not.
// Tmpfs is a small file system, for what happens when one is full.
//
// Stores: StoreSuite states what every hearth.Store does; an implementation
// passes it in one line.
package hearthtest
