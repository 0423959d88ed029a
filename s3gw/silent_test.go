package s3gw

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/namespace"
)

func TestAnOriginThatHangs(t *testing.T) {
	// The origin's process stands still, its connections open: what is not known here is answered
	// by 503 all the same, the operator hears which endpoint it is, and what is cached is answered.
	const timeout = 300 * time.Millisecond
	s := newStand(t, nil, shownLink{bucket: "bucket", timeout: timeout, freshness: namespace.Freshness{Mode: namespace.Immutable}})
	s.put("bucket", "k", "kept")
	s.gets(200, "<Key>k</Key>", "root", "GET", "/bucket?list-type=2", "")
	s.gets(200, "kept", "root", "GET", "/bucket/k", "")
	if err := s.server.Command.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.server.Command.Process.Signal(syscall.SIGCONT) }()
	if !hearthtest.Eventually(t.Context(), 20*time.Second, func() bool { return hearthtest.Stopped(s.server.Command.Process.Pid) }) {
		t.Fatal("the origin does not stop")
	}
	for _, target := range []string{"/bucket/none", "/bucket?uploads=", "/bucket/k?partNumber=1"} {
		s.gets(503, "ServiceUnavailable", "root", "GET", target, "") // while it stands still; how soon, origin tests
	}
	s.gets(200, "", "root", "HEAD", "/bucket/k", "") // its bytes are in no cache here
	s.gets(200, "<Key>k</Key>", "root", "GET", "/bucket?list-type=2", "")
	s.mu.Lock()
	defer s.mu.Unlock()
	if told := strings.Join(s.told, ""); !strings.Contains(told, "origin does not answer") || !strings.Contains(told, "bucket/none") {
		t.Errorf("the operator hears %q", told)
	}
}
