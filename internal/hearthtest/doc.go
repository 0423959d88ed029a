// Package hearthtest holds what the tests of several packages share. It starts real S3 servers as
// processes, and makes data that a reader can check without a reference copy. It has the data sets of
// BENCH, a loader for them, and conformance suites.
//
// Data: byte i of version v of a path is a pure function of (path, i, v). Each page of 4 KiB begins
// with a header that names its version, sealed with the path and the page's place. The rest is a
// pseudo-random stream seeded by the three. So a reader of any range can tell right bytes from
// wrong ones. It can also tell bytes of another version, file or offset from noise.
//
// Servers: each runs with random keys on a free loopback port over a directory of its own. It ends
// with the process that started it, even if that is killed. Tmpfs is a small file system, for tests
// of a full one.
//
// Stores: StoreSuite states what every hearth.Store does. An implementation passes it in one line.
package hearthtest
