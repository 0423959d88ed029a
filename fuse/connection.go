package fuse

import (
	"os"
	"path/filepath"
	"strconv"
)

// connection opens the file by which the kernel aborts a mount's connection. nil means that there
// is no fusectl here, or that this process may not use it. It is opened while the mount stands, and
// then belongs to that mount for good. The connection's number does not: the kernel gives it to the
// next file system, of any user, as soon as the last user of ours has left. A read-ahead of theirs
// may wait for the origin here long after.
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

// Abort has the kernel abort the mount's connection: whoever still uses the mount gets ENOTCONN. It
// does nothing once the mount has gone. It returns false where the kernel cannot be asked.
func (s *Server) Abort() bool {
	if s.connection == nil {
		return false
	}
	_, err := s.connection.WriteString("1")
	return err == nil
}
