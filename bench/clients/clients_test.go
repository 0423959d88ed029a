package clients

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// work is GETs of a server that has the right bytes for all keys but "wrong".
func work(t *testing.T, asks ...Ask) *Work {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "" || r.URL.Path == "/b/none" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		body := make([]byte, 6000)
		hearthtest.Fill(body, r.URL.Path[len("/b/"):], 0, 0)
		if r.URL.Path == "/b/wrong" {
			body[5500]++
		}
		status := http.StatusOK
		if r.Header.Get("Range") == "bytes=5000-5999" {
			status, body = http.StatusPartialContent, body[5000:]
		}
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		w.WriteHeader(status)
		_, _ = w.Write(body)
	}))
	t.Cleanup(s.Close)
	return &Work{Account: hearthtest.S3{Endpoint: s.URL, Region: "us-east-1", AccessKey: "a", SecretKey: "s"}, Bucket: "b", Connections: 2, Asks: asks, Requests: 2 * len(asks)}
}

func TestClientsTellWrongBytes(t *testing.T) {
	// Whole objects and ranges are counted, and those that are not right found out if they are
	// looked at.
	w := work(t, Ask{Key: "k"}, Ask{Key: "k", Off: 5000, Len: 1000}, Ask{Key: "wrong"})
	for _, check := range []bool{false, true} {
		w.Check = check
		sum, err := w.Do(t.Context())
		if err != nil || sum.Requests != 6 || sum.Bytes != 26000 || check != (sum.Wrong == 2) {
			t.Errorf("checked %v: %+v, %v", check, sum, err)
		}
	}
}

func TestClientsFailWhereTheServerDoes(t *testing.T) {
	// A refusal and a range of another length are no answers.
	for _, a := range []Ask{{Key: "none"}, {Key: "k", Off: 1, Len: 1000}} {
		if _, err := work(t, a).Do(t.Context()); err == nil {
			t.Errorf("%+v: no error", a)
		}
	}
}

func TestACrowdStaysUntilItIsToldToGo(t *testing.T) {
	// All clients have begun when the crowd stands, and none fails while it does.
	for _, kind := range []string{"idle", "slow"} {
		w := work(t, Ask{Key: "k"})
		w.Crowd, w.Connections = kind, 20
		ctx, cancel := context.WithCancel(t.Context())
		if stayed, err := w.Stay(ctx, cancel); err != nil || ctx.Err() == nil || stayed != 20 {
			t.Errorf("%s: %d of 20, %v", kind, stayed, err)
		}
	}
}

func TestWhoIsTurnedAwayIsCounted(t *testing.T) {
	// A server ends every other connection, or says that it is busy: the others stay.
	var asked atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		switch asked.Add(1) % 4 {
		case 1:
			panic(http.ErrAbortHandler)
		case 2:
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			w.Header().Set("Content-Length", "3")
			_, _ = io.WriteString(w, "abc")
		}
	}))
	defer s.Close()
	w := work(t, Ask{Key: "k"})
	w.Account.Endpoint, w.Crowd, w.Connections = s.URL, "slow", 20
	ctx, cancel := context.WithCancel(t.Context())
	if stayed, err := w.Stay(ctx, cancel); err != nil || stayed != 10 {
		t.Errorf("%d of 10, %v", stayed, err)
	}
}

func TestACrowdEndsWithWhoIsKeptWaiting(t *testing.T) {
	// A server answers seven clients and no more: the crowd is of those.
	leave := make(chan struct{})
	var asked atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked.Add(1) > 7 {
			<-leave
		}
		w.Header().Set("Content-Length", "3")
		_, _ = io.WriteString(w, "abc")
	}))
	defer s.Close()
	defer close(leave)
	for _, kind := range []string{"idle", "slow"} {
		asked.Store(0)
		w := work(t, Ask{Key: "k"})
		w.Account.Endpoint, w.Crowd, w.Connections, w.patience = s.URL, kind, 20, 500*time.Millisecond
		ctx, cancel := context.WithCancel(t.Context())
		if stayed, err := w.Stay(ctx, cancel); err != nil || stayed != 7 || asked.Load() != 8 {
			t.Errorf("%s: %d of 7 stayed, %d came, %v", kind, stayed, asked.Load(), err)
		}
	}
}

func TestABareServerSendsWhatIsAskedFor(t *testing.T) {
	// Small objects, and ranges that end within a block and behind all that it has in memory.
	ctx, end := context.WithCancel(t.Context())
	r, w := io.Pipe()
	ended := make(chan error, 1)
	const size = 8 * bareBlock
	go func() { ended <- bare(ctx, w, size) }()
	at, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range []Ask{{Key: "k", Len: 3<<20 + 5, Off: size - bareBlock - 7}, {Key: "k", Len: 1, Off: 1 << 40}, {Key: "k"}} {
		w := work(t, a)
		w.Account.Endpoint = "http://" + strings.TrimSpace(at)
		sum, err := w.Do(t.Context())
		if want := sum.Requests * cmp.Or(a.Len, smallSize); err != nil || sum.Bytes != want {
			t.Errorf("%+v: %d bytes, want %d, %v", a, sum.Bytes, want, err)
		}
	}
	end()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestACrowdThatIsKeptWaitingFails(t *testing.T) {
	// A server answers nobody: the crowd does not wait for it longer than a client's patience.
	leave := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-leave }))
	defer s.Close()
	defer close(leave)
	for _, kind := range []string{"idle", "slow"} {
		w := work(t, Ask{Key: "k"})
		w.Account.Endpoint, w.Crowd, w.patience = s.URL, kind, 50*time.Millisecond
		if _, err := w.Stay(t.Context(), func() { t.Error("it stands") }); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: %v", kind, err)
		}
	}
}
