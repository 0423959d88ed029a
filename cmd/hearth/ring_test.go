package main

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/node/status"
	"github.com/hearthfs/hearth/peer/secret"
)

// ringNode answers about a ring as a node does. nil means that it is in none.
func ringNode(t *testing.T, ring *status.RingStatus) (address string) {
	t.Helper()
	say := func(w http.ResponseWriter, v any, err *admin.Error) {
		if err != nil {
			w.WriteHeader(admin.HTTPStatus(err.Kind))
			v = err
		}
		_ = json.NewEncoder(w).Encode(v)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/status", func(w http.ResponseWriter, _ *http.Request) { say(w, status.Status{Says: "ok"}, nil) })
	if ring == nil {
		mux.HandleFunc("/v1/ring", func(w http.ResponseWriter, _ *http.Request) {
			say(w, nil, &admin.Error{Kind: admin.KindRefused, Message: "this node is in no ring"})
		})
		mux.HandleFunc("/v1/ring/owners", func(w http.ResponseWriter, _ *http.Request) {
			say(w, nil, &admin.Error{Kind: admin.KindRefused, Message: "this node is in no ring"})
		})
	} else {
		mux.HandleFunc("/v1/ring", func(w http.ResponseWriter, _ *http.Request) { say(w, ring, nil) })
		mux.HandleFunc("/v1/ring/owners", func(w http.ResponseWriter, r *http.Request) {
			path := r.URL.Query().Get("path")
			if strings.Contains(path, "absent") {
				say(w, nil, &admin.Error{Kind: admin.KindNotFound, Message: path + ": no such file or directory"})
				return
			}
			say(w, status.Owned{Path: path, Size: 40 << 20, Extents: []status.OwnedExtent{{Owners: []string{"a", "b"}}, {Offset: 16 << 20, Owners: []string{"a", "b"}}, {Offset: 32 << 20, Owners: []string{"b", "a"}}}}, nil)
		})
	}
	return fakeNode(t, mux)
}

func TestRingVerbs(t *testing.T) {
	// ring is ring ls; owners takes many paths and says which are not there; a node in no ring, and none at all, have their codes and cures.
	h := newHearth(t)
	in := ringNode(t, &status.RingStatus{Self: "1", Cluster: "prod", Encryption: "on", Members: []status.Member{
		{ID: "2", Name: "b", State: "active", Health: "alive", Share: 0.5}, {ID: "1", Name: "a", State: "active", Health: "alive", Share: 0.5, MemberFigures: status.MemberFigures{Version: "1.0"}}}})
	alone := ringNode(t, nil)
	for _, c := range []struct {
		args, stdout, stderr string
		code                 int
	}{
		{"ring --node " + in, "ring prod, encryption on, as a sees it\nNODE   ZONE ", "", 0},
		{"ring ls --node " + in, "\na      -     ", "", 0},
		{"ring ls -o json --node " + in, `"cluster": "prod"`, "", 0},
		{"ring -o jsonl --node " + in, `{"id":"2","name":"b",`, "", 0},
		{"ring owners /x /y --node " + in, "/x    0-33554432         a, b\n/x    33554432-41943040  b, a\n/y ", "", 0},
		{"ring owners -o jsonl /x --node " + in, `{"path":"/x","size":41943040,"extents":[{"offset":0,"owners":["a","b"]},`, "", 0},
		{"ring owners -o json /x /absent --node " + in, `"path": "/x"`, "/absent: no such file or directory", 3},
		{"ring owners -o json /absent /absent2 --node " + in, "[]", "/absent2: no such file or directory", 4},
		{"ring owners /absent --node " + in, "", "/absent: no such file or directory", 4},
		{"ring owners", "", "PATH is missing: hearth ring owners PATH...", 2},
		{"ring --node " + alone, "", "this node is in no ring", 8},
		{"ring owners /x --node " + alone, "", "this node is in no ring", 8},
		{"ring", "", "hearth up", 5},
		{"ring owners /x", "", "hearth up", 5},
		{"ring ls -o xml", "", "not one of table, json, jsonl", 2},
		{"ring drain gpu-1", "", "not in this version", 2},
		{"ring lss", "", "the nearest is ls", 2},
		{"up --cluster-encryption maybe s3://b", "", `--cluster-encryption: "maybe" is neither on nor off`, 2},
		{"up --listen 10.0.0.5 s3://b", "", "node.listen: 10.0.0.5 without a cluster key", 2},
		{"up --cluster-key-file /none s3://b", "", "cluster.key_file: this node is in no ring", 2},
		{"up --join 10.0.0.5 --cluster-key-file /none s3://b", "", "make one: hearth ring key > /none", 2},
		{"mount --listen 127.0.0.1:65535 s3://b /mnt", "", "node.listen: port 65535 has none above it", 2},
	} {
		stdout, stderr, code := h.run(strings.Fields(c.args)...)
		if code != c.code || !strings.Contains(stdout, c.stdout) || !strings.Contains(stderr, c.stderr) || strings.Contains(stderr, "exit code") {
			t.Errorf("hearth %s: exit code %d, want %d\n%s%s", c.args, code, c.code, stdout, stderr)
		}
	}
	first, _, code := h.run("ring", "key")
	second, _, _ := h.run("ring", "key")
	if _, err := secret.Parse(first); err != nil || code != 0 || first == second || strings.Count(first, "\n") != 1 {
		t.Errorf("ring key: exit code %d, %v, equal %v", code, err, first == second)
	}
}
