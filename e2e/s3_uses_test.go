package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/minio/minio-go/v7/pkg/s3utils"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// s3Use is what clients do with an endpoint, whatever its origin is.
type s3Use struct {
	name string
	from level
	size func(level) string
	run  func(*env, *server)
	soak bool // as of a scenario
}

// s3Uses are run over versitygw, and at level full over MinIO; rclone, mc and s5cmd, as MinIO,
// are there at level full alone. boto3 stands for all clients in the runs that hold up a change: what
// differs between clients lies in them, and what Hearth answers is compared with what S3 answers.
func s3Uses() []s3Use {
	is := func(text string) func(level) string { return func(level) string { return text } }
	return []s3Use{
		{"s3-boto3", core, is("7 kinds of use"), s3Boto, false},
		{"s3-buckets", all, is("a bucket made and removed twice, 3 ways to read, 5 refusals"), s3Buckets, false},
		{"s3-commands", all, is("aws, s3cmd and curl"), s3Commands, true},
		{"s3-gateway", all, is("2 nodes, 10 wrong set-ups, 6 transfers at their ends"), s3Gateway, false},
		{"s3-batch", all, is("docs/s3.md's commands and program, 500 files"), s3Batch, false},
		{"s3-rclone", full, is("100 files, 15 new directories"), s3Rclone, true},
		{"s3-mc", full, is("100 files, 5 new directories"), s3Mc, true},
		{"s3-a-rename", all, is(fmt.Sprintf("%d files, as Hadoop 3.2 and 3.4 ask", s3aFiles)), s3aRename, true},
		{"s3-s5cmd", full, is("100 files, 15 new directories, 200 commands at once"), s3S5cmd, true},
		{"s3-many-keys", all, func(l level) string { return fmt.Sprintf("%d keys", manyKeys(l)) }, s3ManyKeys, true},
		{"s3-downloads", all, func(l level) string { return fmt.Sprintf("%d MiB", downloadSize(l)>>20) }, s3Downloads, true},
		{"s3-uploads", all, func(l level) string { return fmt.Sprintf("%d MiB", uploadSize(l)>>20) }, s3Uploads, true},
	}
}

// overBoth are the scenarios of the uses.
func overBoth(uses []s3Use) (list []scenario) {
	for _, u := range uses {
		list = append(list,
			scenario{name: u.name, from: u.from, limit: 3 * time.Minute, origin: "versitygw", size: u.size, soak: u.soak, run: func(e *env) { u.run(e, e.exclusive()) }},
			scenario{name: u.name + "-minio", from: full, limit: 3 * time.Minute, origin: "MinIO", size: u.size, run: func(e *env) { u.run(e, e.minio()) }})
	}
	return list
}

// minio starts MinIO over a directory of the scenario. It listens before it can be used.
func (e *env) minio() *server {
	e.Helper()
	dir := e.path("minio")
	e.must(os.MkdirAll(dir, 0o755), "make the origin's directory")
	s := hearthtest.Start(e.T, hearthtest.ServerOptions{Dir: dir, MinIO: true})
	var err error
	e.eventually("a bucket of MinIO's", func() bool {
		err = s.CreateBucket(e.ctx, "data")
		return err == nil || !strings.Contains(err.Error(), "503")
	})
	e.must(err, "make a bucket of MinIO's")
	return &server{Server: s, endpoint: s.Endpoint, access: s.AccessKey, secret: s.SecretKey, bucket: "data"}
}

// aws runs the aws CLI with the endpoint's key.
func (p *endpoint) aws(o *server, args ...string) string {
	p.Helper()
	return p.uses(o, "/usr/bin/aws", append([]string{"--endpoint-url", p.url, "--no-cli-pager"}, args...)...)
}

// s3cmd runs s3cmd with the endpoint's key.
func (p *endpoint) s3cmd(o *server, args ...string) string {
	p.Helper()
	_, host, _ := strings.Cut(p.url, "://")
	way := []string{"--no-ssl"}
	if p.ca != "" {
		way = []string{"--ssl", "--ca-certs", p.ca}
	}
	return p.uses(o, "/usr/bin/s3cmd", append(way, append([]string{"--host", host, "--host-bucket", host, "--access_key", p.access, "--secret_key", p.secret, "--config", p.path("none")}, args...)...)...)
}

// rclone runs rclone, to which the endpoint is "hearth:".
func (p *endpoint) rclone(o *server, args ...string) string {
	p.Helper()
	return p.uses(o, p.tool("rclone"), args...)
}

// mc runs MinIO's client, to which the endpoint is "hearth".
func (p *endpoint) mc(o *server, args ...string) string {
	p.Helper()
	return p.uses(o, p.tool("mc"), args...)
}

// boto runs a program with boto3: list, get, put or rm of a bucket, with what belongs to it.
func (p *endpoint) boto(o *server, args ...string) string {
	p.Helper()
	script, err := filepath.Abs("testdata/s3_transfer.py")
	p.must(err, "find the program")
	return p.uses(o, "/usr/bin/python3", append([]string{script, p.url, o.bucket}, args...)...)
}

func (p *endpoint) tool(name string) string {
	p.Helper()
	path, err := hearthtest.Tool(name)
	p.must(err, "find a client")
	return path
}

// clientVariables tell rclone, s5cmd and mc of the endpoint, mc of the origin too, and of no file of the machine.
func (p *endpoint) clientVariables(o *server) []string {
	host := func(url, access, secret string) string {
		scheme, at, _ := strings.Cut(url, "://")
		return scheme + "://" + access + ":" + secret + "@" + at
	}
	all := []string{"RCLONE_CONFIG=" + os.DevNull, "RCLONE_CONFIG_HEARTH_TYPE=s3", "RCLONE_CONFIG_HEARTH_PROVIDER=Other", "RCLONE_CONFIG_HEARTH_ENDPOINT=" + p.url,
		"RCLONE_CONFIG_HEARTH_ACCESS_KEY_ID=" + p.access, "RCLONE_CONFIG_HEARTH_SECRET_ACCESS_KEY=" + p.secret, "RCLONE_CONFIG_HEARTH_REGION=us-east-1", "S3_ENDPOINT_URL=" + p.url,
		"MC_CONFIG_DIR=" + p.path("mc"), "MC_HOST_hearth=" + host(p.url, p.access, p.secret), "MC_HOST_origin=" + host(o.endpoint, o.access, o.secret)}
	if p.ca != "" {
		all = append(all, "AWS_CA_BUNDLE="+p.ca, "RCLONE_CA_CERT="+p.ca)
	}
	return all
}

// client signs requests by the endpoint's key.
func (p *endpoint) client() *s3Client { return newS3Client(p.env, p.url, p.access, p.secret) }

// direct signs requests to the origin itself.
func (e *env) direct(o *server) *s3Client {
	e.Helper()
	return newS3Client(e, o.endpoint, o.access, o.secret)
}

// listed are the sizes of all keys that begin with a prefix, by key, as pages of 1,000 tell them.
func (e *env) listed(c *s3Client, bucket, prefix string) map[string]int64 {
	e.Helper()
	all, token := map[string]int64{}, ""
	for {
		q := "list-type=2&prefix=" + url.QueryEscape(prefix)
		if token != "" {
			q += "&continuation-token=" + url.QueryEscape(token)
		}
		var p struct {
			Contents []struct {
				Key  string
				Size int64
			}
			NextContinuationToken string
		}
		e.must(xml.Unmarshal(e.wants(c, http.StatusOK, s3Ask{method: "GET", bucket: bucket, query: q}).body, &p), "read a listing")
		for _, o := range p.Contents {
			if _, twice := all[o.Key]; twice {
				e.Errorf("%s is listed twice", o.Key)
			}
			all[o.Key] = o.Size
		}
		if token = p.NextContinuationToken; token == "" {
			return all
		}
	}
}

// fetched are the hashes of all objects below a prefix, by what follows it.
func (e *env) fetched(c *s3Client, bucket, prefix string) map[string]string {
	e.Helper()
	all := map[string]string{}
	for key, size := range e.listed(c, bucket, prefix) {
		got := e.wants(c, http.StatusOK, s3Ask{method: "GET", bucket: bucket, path: s3utils.EncodePath("/" + key)})
		if int64(len(got.body)) != size {
			e.Errorf("%s: %d bytes, listed with %d", key, len(got.body), size)
		}
		sum := sha256.Sum256(got.body)
		all[strings.TrimPrefix(key, prefix)] = hex.EncodeToString(sum[:])
	}
	return all
}

// hashes are those of all files below a directory, by their names from there on.
func (e *env) hashes(dir string) map[string]string {
	e.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		sum := sha256.New()
		if _, err := io.Copy(sum, f); err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, name)
		all[filepath.ToSlash(rel)] = hex.EncodeToString(sum.Sum(nil))
		return err
	})
	if err != nil && !os.IsNotExist(err) {
		e.Errorf("read what lies below %s: %v", dir, err)
	}
	return all
}

// holds compares what lies below a prefix, which is "" or ends in "/", with what must be there:
// as the endpoint has it, the mount, and the origin.
func (p *endpoint) holds(what, prefix string, o *server, h *hearth, want map[string]string) {
	p.Helper()
	here := p.client()
	defer here.http.CloseIdleConnections() // the node shall be idle at its end
	same(p.env, what+", at the origin", p.fetched(p.direct(o), o.bucket, prefix), want)
	same(p.env, what+", at the endpoint", p.fetched(here, o.bucket, prefix), want)
	same(p.env, what+", in the mount", p.hashes(filepath.Join(h.dir, prefix)), want)
}

// same compares two sets of names and what is known of each.
func same[V comparable](e *env, what string, got, want map[string]V) {
	e.Helper()
	var wrong []string
	for name, v := range want {
		switch has, ok := got[name]; {
		case !ok:
			wrong = append(wrong, "no "+name)
		case has != v:
			wrong = append(wrong, "another "+name)
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			wrong = append(wrong, "also "+name)
		}
	}
	if slices.Sort(wrong); len(wrong) > 0 {
		e.Errorf("%s: %d wrong of %d: %s", what, len(wrong), len(want), strings.Join(wrong[:min(5, len(wrong))], ", "))
	}
}

// sameNames compares what a client listed, in any order, with the names that there are.
func sameNames[V comparable](e *env, what string, got []string, want map[string]V) {
	e.Helper()
	have := map[string]V{}
	for _, name := range got {
		if _, twice := have[name]; twice {
			e.Errorf("%s: %s twice", what, name)
		}
		have[name] = want[name]
	}
	same(e, what, have, want)
}

// lines are those of a client's output that are not empty.
func lines(out string) (all []string) {
	for line := range strings.Lines(out) {
		if line = strings.TrimRight(line, "\r\n"); line != "" {
			all = append(all, line)
		}
	}
	return all
}

// makeFile writes a version of a file of a data set below a directory.
func (e *env) makeFile(dir string, f hearthtest.File, version int) string {
	e.Helper()
	name := filepath.Join(dir, f.Path)
	e.must(os.MkdirAll(filepath.Dir(name), 0o755), "make a directory")
	to, err := os.Create(name)
	e.must(err, "make a file")
	_, err = io.Copy(to, f.Reader(version))
	e.must(err, "write a file")
	e.must(to.Close(), "write a file")
	return name
}
