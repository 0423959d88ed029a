package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// examples runs each example of every verb's help as it stands, by a shell, as the
// machine's root would: sockets, caches and mount points lie where they lie by
// default. Only the internet is missing: its public bucket stands at our server.
func examples(e *env) {
	o := e.origin()
	o.Bucket(e.T, "noaa-ghcn-pds")
	_, err := o.PutBytes(e.ctx, "noaa-ghcn-pds", "csv/by_year/1750.csv", []byte("ITE00100554,17500101,TMAX\n"))
	e.must(err, "put an object")
	e.public(o, "noaa-ghcn-pds")
	e.tools()
	e.machine()
	e.documents()
	verbs := regexp.MustCompile(`(?m)^  ([a-z]+)  `)
	lines := map[string][]string{"": e.examplesOf(o, "")}
	for _, v := range verbs.FindAllStringSubmatch(e.sh(o, "hearth --help"), -1) {
		lines[v[1]] = e.examplesOf(o, v[1])
		_, below, _ := strings.Cut(e.sh(o, "hearth "+v[1]+" --help"), "Available Commands:")
		for _, w := range verbs.FindAllStringSubmatch(below, -1) {
			lines[v[1]+" "+w[1]] = e.examplesOf(o, v[1]+" "+w[1])
		}
	}
	if len(lines) < 15 {
		e.Fatalf("the help lists the verbs %v", lines)
	}
	for _, line := range lines["up"] {
		node := e.background(o, line)
		node.waitFor("serving at")
		for _, verb := range []string{"status", "explain", "refresh", "warmup", "jobs"} {
			for _, line := range lines[verb] {
				e.sh(o, line)
			}
		}
		for _, line := range append(slices.Concat(lines["drafts"], lines["drafts ls"]), lines["drafts publish"][1]) {
			e.sh(o, "sh -c '"+line+" && echo listed'") // a list in lines is empty
		}
		for i, line := range lines["jobs retry"] {
			e.sh(o, line)
			e.sh(o, lines["jobs wait"][i])
		}
		for _, line := range lines["jobs cancel"] {
			e.sh(o, "hearth warmup --check / --rate 1B/s --detach") // which takes days
			e.sh(o, line)
		}
		for i, line := range lines["unpin"] {
			e.sh(o, lines["pin"][1])
			e.sh(o, lines["pin"][0])
			e.sh(o, line)
			e.sh(o, lines["evict"][i])
		}
		e.sh(o, lines["volume format"][0]+" --force") // the second example of each names a target
		for _, verb := range []string{"attach", "list", "detach", "stat", "check"} {
			e.sh(o, lines["volume "+verb][0])
		}
		e.sh(o, lines["volume list"][1])
		e.sh(o, lines["upgrade"][0]) // the second example names another version
		if code := node.terminate(os.Interrupt); code != 0 {
			e.Errorf("%s: exit %d after Ctrl-C:\n%s", line, code, node.out)
		}
	}
	before := len(mountsBelow("/mnt"))
	for i, line := range slices.Concat(lines["mount"], lines["keep"], lines[""][1:]) {
		node := e.background(o, line)
		node.waitFor("mounted /mnt")
		if names, err := os.ReadDir("/mnt"); err != nil || len(names) == 0 {
			e.Errorf("%s: %d names, %v", line, len(names), err)
		}
		e.sh(o, lines["umount"][i%2])
		if code := node.exit(30 * time.Second); code != 0 || len(mountsBelow("/mnt")) != before {
			e.Errorf("%s: exit %d, mounts after the umount: %v\n%s", line, code, mountsBelow("/mnt"), node.out)
		}
	}
	for _, line := range lines["gateway"] {
		node := e.background(o, line)
		node.waitFor("answering S3 clients at")
		if code := node.terminate(os.Interrupt); code != 0 {
			e.Errorf("%s: exit %d after Ctrl-C:\n%s", line, code, node.out)
		}
	}
	for verb, examples := range lines {
		switch verb {
		case "gateway", "up", "status", "explain", "warmup", "pin", "unpin", "evict", "refresh", "jobs", "jobs wait", "jobs retry", "jobs cancel", "mount", "umount", "keep", "upgrade":
		case "ring", "ring ls", "ring owners": // of a node that is in a ring
		case "volume", "volume format", "volume list", "volume stat", "volume check", "volume attach", "volume detach":
		case "drafts", "drafts ls", "drafts publish", "drafts drop": // the paths need a bucket that refuses writes: drafts-verb
		case "":
			e.sh(o, examples[0])
		default:
			for _, line := range examples {
				e.sh(o, line)
			}
		}
	}
	// The caches are kept, and nothing else but the empty directory of the socket, which the node after an upgrade has not made.
	for dir, kept := range map[string]string{"/run": "hearth", "/run/hearth": "", "/mnt": "", "/srv": "volume", "/tmp": "", "/var/cache": "hearth", "/var/tmp": "hearth " + filepath.Base(e.base)} {
		entries, err := os.ReadDir(dir)
		e.must(err, "read %s", dir)
		var names []string
		for _, x := range entries {
			names = append(names, x.Name())
		}
		if got := strings.Join(names, " "); got != kept {
			e.Errorf("%s holds %q after all, expected %q", dir, got, kept)
		}
	}
}

// examplesOf are the two lines that a verb's help shows.
func (e *env) examplesOf(o *server, verb string) []string {
	e.Helper()
	help := e.sh(o, "hearth "+verb+" --help")
	_, text, _ := strings.Cut(help, "Examples:\n")
	text, _, _ = strings.Cut(text, "\n\n")
	var lines []string
	for line := range strings.Lines(text) {
		lines = append(lines, strings.TrimSpace(line))
	}
	if len(lines) != 2 {
		e.Fatalf("hearth %s --help shows the examples %q, expected two", verb, lines)
	}
	return lines
}

// public lets everybody read and list a bucket, so that requests need no
// signature.
func (e *env) public(o *server, bucket string) {
	e.Helper()
	e.aws(o, "s3api", "put-bucket-policy", "--bucket", bucket, "--policy", strings.ReplaceAll(`{"Version": "2012-10-17", "Statement": [
		{"Effect": "Allow", "Principal": "*", "Action": "s3:ListBucket", "Resource": "arn:aws:s3:::BUCKET"},
		{"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::BUCKET/*"}]}`, "BUCKET", bucket))
}

// tools copies the demo's server to where it is seen in any case: the checkout may
// lie in a directory that machine covers.
func (e *env) tools() {
	e.Helper()
	from, err := hearthtest.Tool("versitygw")
	e.must(err, "find the demo's server")
	program, err := os.ReadFile(from)
	e.must(err, "read the demo's server")
	e.must(os.Mkdir(e.path("tools"), 0o755), "make a directory for it")
	e.must(os.WriteFile(filepath.Join(e.path("tools"), "versitygw"), program, 0o755), "copy the demo's server")
}

// machine puts empty directories in the place of those that Hearth uses by
// default, or that an example names.
func (e *env) machine() {
	e.Helper()
	for _, dir := range []string{"/run", "/mnt", "/srv", "/tmp", "/var/cache"} {
		e.private(dir)
	}
	// The run's own directory stays where it is in a /var/tmp of the scenario's.
	own, err := os.Open(e.base)
	e.must(err, "open the run's directory")
	defer func() { _ = own.Close() }()
	e.private("/var/tmp")
	e.must(os.Mkdir(e.base, 0o755), "make the run's directory again")
	e.must(unix.Mount(fmt.Sprintf("/proc/self/fd/%d", own.Fd()), e.base, "", unix.MS_BIND, ""), "show it in its place")
}

// documents puts files of 4 MiB into the place of one of the directories of /usr/share/doc,
// so that however little a machine has of these, a check of it takes its time.
func (e *env) documents() {
	e.Helper()
	const all = "/usr/share/doc"
	entries, err := os.ReadDir(all)
	e.must(err, "read %s", all)
	i := slices.IndexFunc(entries, os.DirEntry.IsDir)
	if i < 0 {
		e.Fatalf("%s has no directory", all)
	}
	own := filepath.Join(all, entries[i].Name())
	e.private(own)
	for i := range 4 {
		e.must(os.WriteFile(filepath.Join(own, fmt.Sprintf("document-%d", i)), make([]byte, 1<<20), 0o644), "write a document")
	}
	e.eventually("documents that nobody changes: their ETag is weak for two seconds", func() bool {
		info, err := os.Stat(filepath.Join(own, "document-3"))
		return err == nil && time.Since(info.ModTime()) > 3*time.Second
	})
}

// shell is a command line as a user's shell runs it, with the binary in its PATH
// and our server as AWS.
func (e *env) shell(o *server, line string) *exec.Cmd {
	cmd := exec.CommandContext(e.ctx, "sh", "-c", "exec "+line)
	cmd.Env = append(e.environ(nil), "PATH="+filepath.Dir(e.hearth)+":"+os.Getenv("PATH"), "AWS_ENDPOINT_URL="+o.endpoint,
		"HEARTH_TOOLS="+e.path("tools"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// sh runs a command line; it must end with 0.
func (e *env) sh(o *server, line string) string {
	e.Helper()
	out, err := e.shell(o, line).CombinedOutput()
	if err != nil || len(out) == 0 && !strings.HasPrefix(line, "hearth umount") {
		e.Errorf("%s: %v, it printed %q", line, err, out)
	}
	return string(out)
}

// background starts a command line that serves until it is ended.
func (e *env) background(o *server, line string) *process {
	e.Helper()
	return e.start(e.shell(o, line))
}
