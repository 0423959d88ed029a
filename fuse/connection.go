package fuse

import (
	"os"
	"path/filepath"
	"strconv"
)

// connection is the file by which the kernel cuts a mount's connection; nil: there is
// no fusectl here, or it is not ours to use. It is opened while the mount stands and is
// that mount's for good. Its number is not: the kernel gives that to the next file
// system, of whomever, as soon as the last user of ours has left, while a read-ahead of
// theirs may wait for the origin here for long.
func (p *place) connection() *os.File {
	f, err := os.OpenFile(filepath.Join("/sys/fs/fuse/connections", strconv.Itoa(p.minor), "abort"), os.O_WRONLY, 0)
	if err != nil {
		return nil
	}
	if _, stands := p.find(); !stands {
		_ = f.Close() // nothing was written
		return nil
	}
	return f
}

// Abort has the kernel cut the mount's connection: who still uses it gets ENOTCONN. It
// does nothing once the mount has gone. false: the kernel cannot be asked.
func (s *Server) Abort() bool {
	if s.connection == nil {
		return false
	}
	_, err := s.connection.WriteString("1")
	return err == nil
}
