package fuse

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"unsafe"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Drain ends the work of this process for a mount that another one is to take over: no more requests are taken, and it
// returns once all are answered that were. What the kernel asks meanwhile waits for the other process. The mount does not
// end for this one: Ended stays open, and what the kernel was lent stays lent. It returns an error if ctx ends before, or if
// the mount does.
//
// Before Linux 6.9 nobody can ask again for what a process took and did not answer (Kept.Resends). So this is how a mount
// outlives its process there, where that ends on purpose.
func (s *Server) Drain(ctx context.Context) error {
	if s.draining.Swap(true) {
		return errors.New("it is drained already")
	}
	if err := takeNoMore(s.raw); err != nil {
		return err
	}
	go s.wake()
	select {
	case <-s.drained:
		return nil
	case <-s.ended:
		return ErrGone
	case <-ctx.Done():
		return fmt.Errorf("requests are still being answered: %w", context.Cause(ctx))
	}
}

// wake has each goroutine that waits for a request get one, after which it takes no other. The kernel makes a request of each
// question for the root directory's pages. It has none of them, and asks nobody. The last one may find nobody here: the next
// process gets it, which drops it.
func (s *Server) wake() {
	for page := make([]byte, 1); ; {
		select {
		case <-s.drained:
			return
		default:
		}
		switch _, st := s.raw.InodeRetrieveCache(gofuse.FUSE_ROOT_ID, 0, page); st {
		case gofuse.OK, gofuse.EIO:
		case gofuse.EINVAL: // a kernel that has such pages of files alone
			_ = unix.Statfs(s.place.now(), new(unix.Statfs_t)) // a detached mount has users, who ask
		default:
			return // all have left, or the mount has ended
		}
	}
}

// unexpected is what go-fuse says of a request that wake made for another process.
const unexpected = "notify reply: unexpected unique"

// takeNoMore has go-fuse's readers leave instead of reading once more. go-fuse has no call for it, but lets a reader leave
// where there are more than maxReaders.
func takeNoMore(raw *gofuse.Server) error {
	server := reflect.ValueOf(raw).Elem()
	most := server.FieldByName("maxReaders")
	fd := server.FieldByName("fuseFD")
	if most.IsValid() && most.Type() == reflect.TypeFor[int]() && fd.Kind() == reflect.Pointer {
		mu := fd.Elem().FieldByName("reqMu")
		if mu.IsValid() && mu.Type() == reflect.TypeFor[sync.Mutex]() {
			lock := (*sync.Mutex)(unsafe.Pointer(mu.UnsafeAddr()))
			lock.Lock()
			defer lock.Unlock()
			*(*int)(unsafe.Pointer(most.UnsafeAddr())) = -1
			return nil
		}
	}
	return errors.New("this go-fuse cannot be told to take no more requests")
}
