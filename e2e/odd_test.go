package e2e

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// odd are keys that no file system has as names, or that look like what a mount
// makes of others.
func odd() []string {
	return []string{
		"a", "a/b", "a%F", "x//y", "x/y", "x///y", "/lead", "//two", "///", "t/", "full/", "u/", "u/v",
		"./p", "../etc/passwd", "up/../../down", ".", "..", ".../dots", "%", "%_", "%2E", "%2F", "a%2Fb", "100%25", "%25", "~",
		"new\nline", "two\n\nlines/in\nit", "tab\tand\rreturn", "bell\x07", "\x1b[31mred", "del\x7f", "c\x01/below",
		"caf\u00e9", "cafe\u0301", "\u2028line", "\ufeffmark", " space ", "plus+and space", "quote'\"`$(id)&<>", "-rf", "back\\slash",
		strings.Repeat("n", 300), strings.Repeat("n", 299) + "m", strings.Repeat("\u00fc", 200), strings.Repeat("d", 300) + "/in", strings.Repeat("d/", 100) + "e", strings.Repeat("k", 1024),
		"not\xffUTF-8", "\xc3/split",
	}
}

// hidden are those of them that are not shown: the server's XML garbles control
// characters, and what is not UTF-8 has no name.
func hidden() []string {
	return []string{"bell\x07", "\x1b[31mred", "c\x01/below", "not\xffUTF-8", "\xc3/split"}
}

// oddKeys are reachable by hearth ls and hearth cat byte for byte; in the mount
// each has a name that leads back to it, or is counted and reported.
func oddKeys(e *env) {
	s := hearthtest.StartFakeS3(e.T)
	o := &server{Server: s, endpoint: s.Endpoint, access: s.AccessKey, secret: s.SecretKey, bucket: s.Bucket(e.T, "odd")}
	keys := odd()
	for _, key := range keys {
		_, err := o.PutBytes(e.ctx, o.bucket, key, oddBytes(key))
		e.must(err, "put %q", key)
	}
	if _, err := o.PutBytes(e.ctx, o.bucket, strings.Repeat("k", 1025), nil); err == nil || !strings.Contains(err.Error(), "KeyTooLong") {
		e.Errorf("the server takes a key of more than 1,024 bytes (%v): it belongs to those that are read", err)
	}
	h := e.mount(o, settings{})
	url := "s3://" + o.bucket + "/"
	listed, complaint := e.hearthOut(o, "ls", "--config", h.config, "-R", "-0", url)
	seen := map[string]bool{}
	for line := range strings.SplitSeq(strings.TrimSuffix(listed, "\x00"), "\x00") {
		seen[line] = true
	}
	var missing []string
	for _, key := range keys {
		if !seen[key] {
			missing = append(missing, key)
		}
		if got, problem := e.hearthOut(o, "cat", "--config", h.config, url+key); got != string(oddBytes(key)) {
			e.Errorf("cat of %q: %q %s", key, got, problem)
		}
		if got, problem := e.hearthOut(o, "ls", "--config", h.config, "-0", url+key); !strings.HasSuffix(key, "/") &&
			!slices.Contains(strings.Split(got, "\x00"), key[strings.LastIndexByte(key, '/')+1:]) {
			e.Errorf("ls of %q: %q %s", key, got, problem)
		}
	}
	if refused := h.status().Names.Figures["refused"]; int(refused) != len(missing) || !slices.Equal(missing, hidden()) ||
		!strings.Contains(complaint, "not shown") {
		e.Errorf("not listed are %q, status counts %d, ls says %q", missing, refused, complaint)
	}
	e.oddMount(h, keys, len(missing))
	e.oddAlone(o, url)
	h.quit()
}

// oddBytes of a key; the marker of an empty directory is empty.
func oddBytes(key string) []byte {
	if key == "t/" || key == "u/" {
		return nil
	}
	return []byte("bytes of " + key)
}

// oddMount finds every key in the mount but those that are reported, each once
// and with its own bytes.
func (e *env) oddMount(h *hearth, keys []string, hidden int) {
	found := map[string]string{}
	err := filepath.WalkDir(h.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		key := make([]byte, 2048)
		n, err := unix.Getxattr(path, "user.hearth.key", key)
		if err != nil {
			return err
		}
		if old, twice := found[string(key[:n])]; twice {
			e.Errorf("%q has two names: %q and %q", key[:n], old, path)
		}
		found[string(key[:n])] = path
		data, err := os.ReadFile(path)
		if err == nil && !bytes.Equal(data, oddBytes(string(key[:n]))) {
			e.Errorf("%q, the file %q, holds %q", key[:n], path, data)
		}
		return err
	})
	e.must(err, "find")
	for _, marker := range []string{"t/", "u/"} { // they are their directories
		if info, err := os.Stat(filepath.Join(h.dir, marker)); err != nil || !info.IsDir() {
			e.Errorf("%s: %v", marker, err)
		}
		found[marker] = marker
	}
	for _, key := range keys {
		delete(found, key)
	}
	if len(found) > 0 {
		e.Errorf("names of keys that there are not: %q", found)
	}
	if n := len(keys) - hidden; e.countNames(h)+2 != n {
		e.Errorf("find has %d files and 2 markers; with %d that are reported there should be %d", e.countNames(h), hidden, len(keys))
	}
	if _, err := os.Stat(filepath.Join(h.dir, "etc/passwd")); err == nil {
		e.Error("../etc/passwd came out as etc/passwd")
	}
}

func (e *env) countNames(h *hearth) int {
	out, code := e.run("find", h.dir, "-type", "f", "-printf", ".")
	if code != 0 {
		e.Errorf("find: exit code %d: %s", code, out)
	}
	return len(out)
}

// oddAlone reads keys where no node runs, and has them on a terminal and in JSON.
func (e *env) oddAlone(o *server, url string) {
	alone := []string{"--node", "unix://" + e.path("nobody.sock"), "--endpoint", o.endpoint, "--path-style", "on"}
	for _, key := range []string{"a", "a/b", "x//y", "/lead", "//two", "./p", "../etc/passwd", "full/", "t/", "new\nline", "c\x01/below", "not\xffUTF-8"} {
		if got, problem := e.hearthOut(o, append([]string{"cat", url + key}, alone...)...); got != string(oddBytes(key)) {
			e.Errorf("cat of %q without a node: %q %s", key, got, problem)
		}
	}
	for args, want := range map[string]string{
		"ls|" + url + "x/":                      "/\ny\n",
		"ls|" + url + "/":                       "/\nlead\n",
		"ls|" + url + "a":                       "a\na/\n",
		"ls|" + url + "a/":                      "b\n",
		"ls|" + url + "..":                      "..\n../\n",
		"du|-o|jsonl|" + url + "u":              `"files":1,"dirs":0`,
		"stat|-o|jsonl|" + url + "not\xffUTF-8": `"key_base64":"bm90/1VURi04"`,
		"stat|" + url + "new\nline":             `new'$'\n''line'`,
	} {
		if got, problem := e.hearthOut(o, append(strings.Split(args, "|"), alone...)...); !strings.Contains(got, want) ||
			strings.HasPrefix(args, "ls") && got != want {
			e.Errorf("%q without a node: %q %s", args, got, problem)
		}
	}
	if _, problem := e.hearthOut(o, append([]string{"cat", url + "no\x1b[31m\nsuch"}, alone...)...); strings.Count(problem, "\n") != 1 ||
		strings.Contains(problem, "\x1b") {
		e.Errorf("an error shows a terminal what is in a key: %q", problem)
	}
}

// hearthOut runs hearth and returns what it printed, and what it complained of.
func (e *env) hearthOut(o *server, args ...string) (out, problems string) {
	e.Helper()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(e.ctx, e.hearth, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = e.environ(o), &stdout, &stderr
	_ = cmd.Run() // what it printed tells
	return stdout.String(), stderr.String()
}
