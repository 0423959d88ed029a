package s3gw

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

func TestALineIsOneLine(t *testing.T) {
	odd := AccessLine{Agent: "a\nb\r\x7f\"", Bucket: "x y", Request: "GET /\u2028 \xff HTTP/1.1", ID: "a b"}
	if l := string(odd.Append(nil)); strings.Count(l, "\n") != 1 || strings.ContainsAny(l[:len(l)-1], "\r\x7f") || strings.Contains(l, "x y") {
		t.Errorf("an odd line: %q", l)
	}
}

func TestFile(t *testing.T) {
	// Lines go to the file; one that was moved away is begun anew, a disk that is full loses lines
	// and is told of, and never keeps a client waiting; what waits at the end is written.
	dir := t.TempDir()
	name := filepath.Join(dir, "log")
	var mu sync.Mutex
	var told []error
	pool := hearthtest.Pool(t, 64<<20)
	a, err := openAccessLog(name, pool, func(err error) { mu.Lock(); told = append(told, err); mu.Unlock() })
	if err != nil {
		t.Fatal(err)
	}
	has := func(file, text string) bool {
		got, err := os.ReadFile(file)
		return err == nil && strings.Contains(string(got), text)
	}
	a.Take(AccessLine{ID: "first"})
	if !hearthtest.Eventually(t.Context(), 10*time.Second, func() bool { return has(name, " first ") }) {
		t.Error("the first line is not written")
	}
	if err := os.Rename(name, name+".1"); err != nil {
		t.Fatal(err)
	}
	if !hearthtest.Eventually(t.Context(), 20*time.Second, func() bool { a.Take(AccessLine{ID: "second"}); return has(name, " second ") }) {
		t.Error("the file is not begun anew")
	}
	a.Take(AccessLine{ID: "last"})
	a.Close()
	if !has(name, " last ") || len(told) != 0 {
		t.Errorf("the last line: %v, told %v", has(name, " last "), told)
	}

	full, err := openAccessLog("/dev/full", pool, func(err error) { mu.Lock(); told = append(told, err); mu.Unlock() })
	if err != nil {
		t.Fatal(err)
	}
	for range 3 * mostLines {
		full.Take(AccessLine{})
	}
	full.Close()
	if mu.Lock(); len(told) == 0 {
		t.Error("nobody is told of a full disk")
	}
	mu.Unlock()
	if _, err := openAccessLog(filepath.Join(dir, "none", "log"), pool, nil); err == nil {
		t.Error("a log in no directory")
	}

	a = &accessLog{lines: make(chan AccessLine, 1), pool: pool} // whose disk stands still
	for range 5 {
		a.Take(AccessLine{})
	}
	if used := a.waiting.Load(); used != lineCost {
		t.Errorf("%d bytes wait in a line", used)
	}
	<-a.lines
	pool.Unreserve(lineCost)
	if got := a.told(nil); !bytes.HasPrefix(got, []byte("# 4 lines are missing")) || len(a.told(nil)) != 0 {
		t.Errorf("what was lost: %s", got)
	}
}

func TestAnAccessLogOnADiskThatStandsStill(t *testing.T) {
	// The log's disk takes nothing any more while requests go on: their lines are kept up to a bound that
	// the Pool counts, the rest is counted, and the endpoint's end waits no longer than it should.
	name := filepath.Join(t.TempDir(), "log")
	if err := syscall.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
	disk, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = disk.Close() }()
	pool := hearthtest.Pool(t, 64<<20)
	var mu sync.Mutex
	var told []error
	a, err := openAccessLog(name, pool, func(err error) { mu.Lock(); told = append(told, err); mu.Unlock() })
	if err != nil {
		t.Fatal(err)
	}
	a.within = 50 * time.Millisecond
	for range mostLines {
		a.Take(AccessLine{Request: strings.Repeat("x", 16<<10)})
	}
	if used := pool.Stats().Used; used > mostWaiting || used < mostWaiting-(32<<10) {
		t.Errorf("%d bytes wait", used)
	}
	if a.mu.Lock(); a.lost < mostLines/2 {
		t.Errorf("%d lines are counted as lost", a.lost)
	}
	a.mu.Unlock()
	a.Close()
	if mu.Lock(); len(told) != 1 || !strings.Contains(told[0].Error(), "does not take the last lines") {
		t.Errorf("told: %v", told)
	}
	mu.Unlock()
	ended := make(chan struct{})
	go func() { // the disk is back; this ends with it
		defer close(ended)
		_, _ = io.Copy(io.Discard, disk)
	}()
	<-a.done
	if err := disk.Close(); err != nil {
		t.Fatal(err)
	}
	<-ended
	if used := pool.Stats().Used; used != 0 {
		t.Errorf("%d bytes are still counted", used)
	}
}
