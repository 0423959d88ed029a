package admin

import (
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestWhoMayAsk(t *testing.T) {
	// Root and the node's own user may ask. A stranger may not, nor a client without credentials.
	if of(&unix.Ucred{Uid: 0}).Rank != Owner || of(&unix.Ucred{Uid: uint32(os.Geteuid()), Gid: 12345}).Rank != Owner {
		t.Error("root or the own user is refused")
	}
	if a := of(&unix.Ucred{Uid: 4_000_000_001, Gid: 4_000_000_001}); a.Rank != stranger || a.UID != 4_000_000_001 {
		t.Errorf("a stranger is let in: %+v", a)
	}
	if a := of(nil); a != (Asker{}) {
		t.Errorf("without credentials: %+v", a)
	}
}

// askRights answers a request of an asker. An empty answer means that the request reached its handler.
func askRights(t *testing.T, mux *http.ServeMux, who Asker, pattern string) string {
	t.Helper()
	method, path, _ := strings.Cut(pattern, " ")
	said := ""
	h := Check(mux, func(w http.ResponseWriter, err error) {
		if !errors.Is(err, fs.ErrPermission) {
			t.Errorf("%s: %v is no refusal", pattern, err)
		}
		w.WriteHeader(http.StatusForbidden)
		said = err.Error()
	})
	r := httptest.NewRequest(method, path, nil)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r.WithContext(With(r.Context(), who)))
	if (said == "") != (w.Code == http.StatusOK) {
		t.Errorf("%s: %d, %q", pattern, w.Code, said)
	}
	return said
}

func TestEveryRouteHasItsRight(t *testing.T) {
	// Strangers reach no handler, members reach theirs, and owners reach all that are listed. Nobody gets
	// anything from a route that is not listed, in whatever spelling.
	mux := http.NewServeMux()
	for pattern := range table() {
		mux.HandleFunc(pattern, func(http.ResponseWriter, *http.Request) {})
	}
	mux.HandleFunc("GET /debug/pprof/", func(http.ResponseWriter, *http.Request) { t.Error("an unlisted route answered") })
	member, owner := Asker{Member, 1000}, Asker{Owner, 0}
	for pattern, right := range table() {
		if askRights(t, mux, Asker{}, pattern) == "" || askRights(t, mux, Asker{stranger, 1000}, pattern) == "" {
			t.Errorf("%s answers strangers", pattern)
		}
		if said := askRights(t, mux, owner, pattern); said != "" {
			t.Errorf("%s refuses owners: %s", pattern, said)
		}
		said := askRights(t, mux, member, pattern)
		if (said == "") != (right.Least == Member) {
			t.Errorf("%s of the group: %q", pattern, said)
		}
		if said != "" && (!strings.Contains(said, right.What) || !strings.Contains(said, "root") || strings.Contains(said, "\n")) {
			t.Errorf("%s of the group says not what and the cure: %q", pattern, said)
		}
	}
	for _, pattern := range []string{"GET /debug/pprof/", "GET /debug/pprof/heap", "PUT /v1/mounts", "GET /", "POST /v1", "GET /v1/jobs/1/2/3"} {
		if askRights(t, mux, owner, pattern) == "" || askRights(t, mux, member, pattern) == "" {
			t.Errorf("%s is answered", pattern)
		}
	}
	for _, pattern := range []string{"POST /v1//mounts", "POST //v1/mounts", "POST /v1/x/../mounts", "POST /v1/%6dounts", "POST /v1/mounts?x", "HEAD /v1/goroutines"} {
		if askRights(t, mux, member, pattern) == "" {
			t.Errorf("%s of the group is answered", pattern)
		}
	}
}

func TestWhoMayEndWhat(t *testing.T) {
	// Everybody may end their own work. Root and the node's user may end all. Work without a maker is root's.
	own := uint32(os.Geteuid())
	for _, x := range []struct {
		uid, by uint32
		may     bool
	}{{1000, 1000, true}, {1000, 1001, false}, {1000, 0, false}, {0, 1000, true}, {own, 1000, true}} {
		if MayEnd(x.uid, x.by) != x.may {
			t.Errorf("the user %d of what %d made: %v", x.uid, x.by, !x.may)
		}
	}
}
