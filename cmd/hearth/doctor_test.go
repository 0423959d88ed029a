package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/internal/faultproxy"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/node/doctor"
)

// examined runs doctor and returns its findings by check and subject. Nobody else sees the mounts
// of root's doctor.
func (h *hearth) examined(t *testing.T, args ...string) (found map[string]doctor.Finding, code int) {
	t.Helper()
	apart := *h
	if os.Geteuid() == 0 {
		apart.attr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	}
	stdout, stderr, code := apart.run(append([]string{"doctor", "-o", "json"}, args...)...)
	var doc struct {
		Checks         []doctor.Finding
		OK, Warn, Fail int
	}
	if err := json.Unmarshal([]byte(stdout), &doc); err != nil || doc.OK+doc.Warn+doc.Fail != len(doc.Checks) {
		t.Fatalf("doctor %v: %v: %+v\n%s%s", args, err, doc, stdout, stderr)
	}
	if (doc.Fail > 0) != (code == 6) || code != 0 && code != 6 {
		t.Errorf("doctor %v: exit code %d with %d FAIL", args, code, doc.Fail)
	}
	found = map[string]doctor.Finding{}
	for _, f := range doc.Checks {
		found[strings.TrimSpace(f.Check+" "+f.Subject)] = f
	}
	return found, code
}

func TestDoctorOfAnOrigin(t *testing.T) {
	// A bucket alone: as it is, with the clock an hour off, wrong credentials, and no bucket.
	h := newHearth(t)
	url := h.bucket(t, map[string]string{"a": "hello"})
	for _, c := range []struct {
		url, change, check string
		verdict            doctor.Verdict
		found              string
		code               int
	}{
		{url, "", "origin", doctor.OK, "ranges, If-Match, strong ETags", 0},
		{url, "", "credentials", doctor.OK, "AWS_ACCESS_KEY_ID", 0},
		{url, "", "clock", doctor.OK, "the same", 0},
		{url, "AWS_SECRET_ACCESS_KEY=wrong", "origin", doctor.Fail, "the secret key does not fit the access key", 6},
		{url, "AWS_ACCESS_KEY_ID=NOBODY", "origin", doctor.Fail, "does not know the access key", 6},
		{"s3://nosuch", "", "origin", doctor.Fail, "there is no bucket nosuch", 6},
		{url + "/nothing", "", "origin", doctor.Warn, "has no object there", 0},
		{"file:///nowhere", "", "origin", doctor.Fail, "nowhere", 6},
	} {
		h := &hearth{bin: h.bin, env: append(h.env[:len(h.env):len(h.env)], c.change)}
		found, code := h.examined(t, c.url)
		if f := found[c.check+" "+c.url]; f.Verdict != c.verdict || !strings.Contains(f.Found, c.found) || code != c.code {
			t.Errorf("%s %s: exit code %d, %+v, want %+v", c.url, c.change, code, found, c)
		}
		for _, f := range found {
			for _, v := range h.env {
				if secret, ok := strings.CutPrefix(v, "AWS_SECRET_ACCESS_KEY="); ok && strings.Contains(f.Found+f.Cure, secret) {
					t.Errorf("a secret is shown: %+v", f)
				}
			}
		}
	}
	stdout, _, code := h.run("doctor", url)
	if lines := strings.Split(strings.TrimSpace(stdout), "\n"); code != 0 || len(lines) != 5 || !strings.HasPrefix(lines[0], "OK  credentials  "+url+": from ") ||
		lines[4] != "3 checks: 3 OK, 0 WARN, 0 FAIL" {
		t.Errorf("exit code %d\n%s", code, stdout)
	}
	if stdout, _, _ := h.run("doctor", "-o", "jsonl", url); strings.Count(stdout, "\n") != 3 || !strings.HasPrefix(stdout, `{"check":"credentials"`) {
		t.Errorf("jsonl: %s", stdout)
	}
	if _, stderr, code := h.run("doctor", "bucket"); code != 2 || !strings.Contains(stderr, "is no origin") {
		t.Errorf("no URL: exit code %d, %s", code, stderr)
	}
}

func TestDoctorNamesItsSubjectOnce(t *testing.T) {
	// If an origin's error begins with the finding's subject, the subject is printed once. And one
	// check is not called "checks".
	h := newHearth(t)
	url := h.bucket(t, map[string]string{"a": "hello"})
	h.env = append(h.env, "AWS_SECRET_ACCESS_KEY=wrong")
	for of, want := range map[string]string{
		"file:///nowhere": "FAIL  origin  file:///nowhere: open /nowhere: no such file or directory; ",
		"s3://nosuch/p":   "FAIL  origin       s3://nosuch/p: the secret key does not fit",
		url + "/p/":       "FAIL  origin       " + url + "/p/: the secret key does not fit",
	} {
		stdout, _, _ := h.run("doctor", of)
		if !strings.Contains(stdout, want) {
			t.Errorf("%s", stdout)
		}
		for line := range strings.Lines(stdout) {
			if strings.Count(line, "://") > 1 {
				t.Errorf("twice: %s", line)
			}
		}
		if of == "file:///nowhere" && !strings.HasSuffix(stdout, "\n1 check: 0 OK, 0 WARN, 1 FAIL\n") {
			t.Errorf("%s", stdout)
		}
	}
	var out bytes.Buffer
	if err := printFindings(&out, &cli.Common{Output: "table"}, []doctor.Finding{{Check: "metrics address", Subject: "127.0.0.1:9", Verdict: doctor.Warn, Found: "listen tcp 127.0.0.1:9: in use"}}); err != nil || strings.Count(out.String(), "127.0.0.1:9") != 1 {
		t.Errorf("%v: %s", err, &out)
	}
}

func TestDoctorFindsAClockThatIsOff(t *testing.T) {
	// The origin's Date is an hour behind this machine's clock. And an origin that does not answer
	// costs the verb its time limit, not a hang.
	h := newHearth(t)
	url := h.bucket(t, map[string]string{"a": "hello"})
	proxy, err := faultproxy.Start(faultproxy.Options{Target: endpoint(t, h)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	for ahead, want := range map[time.Duration]doctor.Verdict{5 * time.Minute: doctor.Warn, time.Hour: doctor.Fail} {
		proxy.ClearRules()
		proxy.AddRule(faultproxy.Rule{Header: map[string]string{"Date": time.Now().Add(-ahead).UTC().Format(http.TimeFormat)}})
		found, _ := h.examined(t, "--endpoint", proxy.URL(), url)
		if f := found["clock "+url]; f.Verdict != want || !strings.Contains(f.Found, "ahead of the origin") || !strings.Contains(f.Cure, "timedatectl set-ntp true") {
			t.Errorf("%v ahead: %+v", ahead, found)
		}
	}
	proxy.ClearRules()
	proxy.AddRule(faultproxy.Rule{Delay: faultproxy.Duration(time.Hour)})
	began := time.Now()
	found, code := h.examined(t, "--endpoint", proxy.URL(), "--origin-timeout", "200ms", url)
	if took := time.Since(began); code != 6 || !strings.Contains(found["origin "+url].Found, "does not answer") || took > time.Minute { // a watchdog: node/doctor holds its 20 s in virtual time
		t.Errorf("exit code %d after %v: %+v", code, took, found)
	}
}

// endpoint is the S3 server that hearth's environment names.
func endpoint(t *testing.T, h *hearth) string {
	t.Helper()
	for _, v := range h.env {
		if e, ok := strings.CutPrefix(v, "AWS_ENDPOINT_URL="); ok {
			return e
		}
	}
	t.Fatal("no endpoint")
	return ""
}

func TestDoctorOfTheMachine(t *testing.T) {
	// Without a node doctor only tests whether the cache directory can be made; a read-only one
	// FAILs. With a node it names the node, and the directory and the socket are the node's own.
	h := newHearth(t)
	url := h.bucket(t, map[string]string{"a": "hello"})
	home := h.home
	cache := filepath.Join(home, "cache")
	found, _ := h.examined(t, "--origin", url)
	for _, want := range []string{"kernel", "open files", "memory", "processors", "cache space " + cache, "cache device " + cache, "origin " + url} {
		if f := found[want]; f.Verdict == "" || f.Verdict == doctor.Fail {
			t.Errorf("%s: %+v", want, f)
		}
	}
	if f := found["cache directory "+cache]; f.Verdict != doctor.OK || !strings.Contains(f.Found, "can be made") {
		t.Errorf("%+v", f)
	}
	if names, err := filepath.Glob(filepath.Join(home, "*")); err != nil || fmt.Sprint(names) != fmt.Sprint([]string{filepath.Join(home, "hearth.yaml")}) {
		t.Errorf("it left %v, %v", names, err)
	}
	sick := hearthtest.Tmpfs(t, "ro,size=1m")
	found, code := h.examined(t, "--origin", url, "--cache-disks", sick)
	if f := found["cache directory "+sick]; code != 6 || f.Verdict != doctor.Fail || !strings.Contains(f.Found, "read-only file system") || !strings.Contains(f.Cure, "--cache-disks") {
		t.Errorf("exit code %d, %+v", code, f)
	}
	node := h.up(t, url, "--no-keeper")
	found, _ = h.examined(t, "--origin", url)
	process := fmt.Sprintf("process %d", node.Process.Pid)
	for check, want := range map[string]string{"node": process + ", answers that all is well", "cache content " + cache: "in use by the node, " + process} {
		if f := found[check]; f.Verdict != doctor.OK || !strings.Contains(f.Found, want) {
			t.Errorf("%s: %+v", check, f)
		}
	}
}
