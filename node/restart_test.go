package node

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/disk"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/node/state"
)

func TestNodeIDsOutliveTheirDatabase(t *testing.T) {
	// The namespace's database is lost. A kernel that still holds an inode of the first run never sees its
	// number mean something else in the second.
	url, cache := bucket(t, map[string]string{"a": "hello"}), filepath.Join(t.TempDir(), "c")
	disk := func(c *Config) {
		c.Cache.NoDisk, c.Cache.Disks, c.Cache.FreeFloor = false, []Disk{{Path: cache, Size: Size{Bytes: 64 << 20}}}, Size{Bytes: 1}
	}
	n := start(t, url, disk)
	first, err := client(t, n).Stat(t.Context(), "/a")
	if err != nil {
		t.Fatal(err)
	}
	where := n.Status(t.Context()).Names.Where
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	if upTo := state.FirstNodeID([]string{cache}); upTo <= first.Inode {
		t.Fatalf("noted %d, given out %d", upTo, first.Inode)
	}
	if err := os.RemoveAll(where); err != nil {
		t.Fatal(err)
	}
	again, err := client(t, start(t, url, disk)).Stat(t.Context(), "/a")
	if err != nil || again.Inode <= first.Inode {
		t.Errorf("inode %d after %d, %v", again.Inode, first.Inode, err)
	}
}

func TestOneNodePerCacheDirectory(t *testing.T) {
	// A second node with the same cache directory is refused, and the message says which process has it.
	cache := filepath.Join(t.TempDir(), "c")
	disk := func(c *Config) {
		c.Cache.NoDisk, c.Cache.Disks, c.Cache.FreeFloor = false, []Disk{{Path: cache, Size: Size{Bytes: 64 << 20}}}, Size{Bytes: 1}
	}
	start(t, bucket(t, nil), disk)
	c := Config{Admin: Admin{Socket: "-", Listen: "-"}}
	disk(&c)
	n, err := New(t.Context(), c)
	if err == nil {
		_ = n.Close()
		t.Fatal("two nodes share a cache directory")
	}
	t.Log(err)
}

func TestClosedWhileItLists(t *testing.T) {
	// The look-up of an absent name has its directory listed in the background. The node ends meanwhile,
	// while node ids are still given out and noted.
	url := bucket(t, map[string]string{"a": "1", "b/c": "2"})
	for range 20 {
		n := start(t, url, nil)
		if _, err := client(t, n).Stat(t.Context(), "/none"); err == nil {
			t.Fatal("it is there")
		}
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAfterAKilledNodeThatCannotEnd(t *testing.T) {
	// A killed node that cannot end still holds its cache directory and its metrics' port. The directory is
	// tried first, and its error tells what is wrong. The user who starts a node then has the killed one
	// cut off.
	killed := exec.Command("true")
	if err := killed.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = killed.Wait() }()
	pid := strconv.Itoa(killed.Process.Pid)
	if !hearthtest.Eventually(t.Context(), 10*time.Second, disk.ParseLockHolder(pid).Defunct) { // not waited for: a zombie
		t.Fatal("it lives on")
	}
	dir := t.TempDir()
	lock, err := os.OpenFile(filepath.Join(dir, disk.LockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		defer func() { _ = lock.Close() }()
		_, err = lock.WriteString(pid + "\n")
	}
	if err == nil {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	port, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer port.Close()
	n, err := New(t.Context(), Config{Cache: Cache{RAM: Size{Bytes: hearth.MinRAM}, Disks: []Disk{{Path: dir, Size: Size{Bytes: 64 << 20}}}},
		Admin: Admin{Socket: filepath.Join(t.TempDir(), "s"), Listen: port.Addr().String()}})
	if !errors.Is(err, disk.ErrHung) {
		t.Errorf("%v, %v", n, err)
	}
}
