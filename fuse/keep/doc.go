// Package keep is the process that holds a node's mounts, so that they outlive the node.
//
// A mount dies with the last descriptor of its FUSE connection. The keeper has a copy of each. It starts the node as its
// child, and starts it again when it ends: by kill -9, a panic, the kernel's OOM killer, or for another version. Users of
// a mount wait meanwhile. The new node takes the mounts over (fuse.Kept), and serves what the last one had left.
//
//	keeper                                  node
//	  fork, exec; descriptor 3 is a socket ->
//	  each mount that it has, with its descriptors ->
//	  begin: why and when the last node ended ->
//	                                      <- keep: a mount was made, with its descriptors
//	                                      <- drop: a mount is gone
//	                                      <- tell: a socket, for notifications of a mount
//	                                      <- serving: all mounts are served
//	                                      <- ending: the node takes its mounts away, and ends for good
//	                                      <- become: another program takes the keeper's place
//	begin, from that program; or failed ->
//
// The socket is one of packets (SOCK_SEQPACKET). A packet is JSON, with descriptors beside it.
//
// The keeper itself touches no mount: it opens no file there, reads no directory, and works in "/". So it can never wait
// for the node that it has to start. Only a thread that passes a notification on to the kernel may (fuse.Tell); the next
// node's answers end that. It does no I/O besides, and has little memory.
//
// A node that ends before it has served, while the keeper has no mount, has said why: the keeper ends with its exit code.
// Else it is started again, at once and then with pauses. Users wait up to the patience. Then the keeper has the kernel end
// the connections, so that they get an error.
//
// A keeper may itself be replaced (succeed.go). If it was killed, the node starts another one and gives it the mounts. For
// another version it becomes that program by exec, as the same process.
package keep
