package node

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hearthfs/hearth/draft"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/node/admin"
)

func TestOptionsOfAMountAreKeptOrRefused(t *testing.T) {
	// An option may be what a mount is anyway, or what the kernel takes. An option that a mount never has,
	// or that nobody knows, is refused by name.
	for options, says := range map[string]string{
		"": "", "nodev": "", "ro,nosuid,nodev,noexec": "", "rw": "", "nodev,rw": "", "rw,ro": "say one", "suid": `"suid" is none of`, "nodev, noexec": `" noexec" is none of`,
	} {
		err := validateMount(Mount{Dir: "/mnt", Options: strings.Split(options, ",")})
		switch {
		case says == "" && err != nil:
			t.Errorf("%q: %v", options, err)
		case says != "" && (err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "/mnt")):
			t.Errorf("%q: %v, expected %q", options, err, says)
		}
	}
}

func TestWhatCannotBeWrittenIsRefused(t *testing.T) {
	// A configuration that asks for a writable mount where there can be none is refused with the cure, whether the mount says so
	// or its link. A mount that says ro is read-only also below a link that says write.
	bucket, dir := Origin{URL: "s3://b"}, Origin{URL: "file:///d"}
	kms := Origin{URL: "s3://b", Write: OriginWrite{KMSKey: "k"}}
	many := Origin{URL: "s3://b", Connections: 10, Write: OriginWrite{Connections: 6}}
	for name, c := range map[string]struct {
		link Link
		m    Mount
		says string
	}{
		"read-only":            {Link{Origin: bucket}, Mount{Open: "none"}, ""},
		"the mount writes":     {Link{Origin: bucket}, Mount{Write: "through"}, ""},
		"the link writes":      {Link{Origin: bucket, Write: "through", Fsync: "bucket"}, Mount{}, ""},
		"but not this mount":   {Link{Origin: bucket, Write: "through"}, Mount{Open: "none", Options: []string{"ro"}}, ""},
		"nor this":             {Link{Origin: bucket, Write: "through"}, Mount{Open: "passthrough", Write: "off"}, ""},
		"a directory":          {Link{Origin: dir}, Mount{Options: []string{"rw"}}, "file:///d cannot be written, only buckets can (s3://): leave write out, or say ro"},
		"a link to one":        {Link{Origin: dir, Write: "through"}, Mount{Write: "off"}, "link /: write: file:///d cannot be written"},
		"none":                 {Link{Origin: bucket}, Mount{Write: "through", Open: "none"}, "open=none is for read-only mounts"},
		"passthrough":          {Link{Origin: bucket, Write: "through"}, Mount{Open: "passthrough"}, "leave open out, or say ro"},
		"both":                 {Link{Origin: bucket}, Mount{Write: "through", Options: []string{"ro"}}, "say one"},
		"both, the other way":  {Link{Origin: bucket}, Mount{Write: "off", Options: []string{"rw"}}, "say one"},
		"another word":         {Link{Origin: bucket}, Mount{Write: "back"}, "none of through, off"},
		"a link's other word":  {Link{Origin: bucket, Write: "back"}, Mount{}, "none of through, off"},
		"another fsync":        {Link{Origin: bucket}, Mount{Fsync: "never"}, "none of disk, bucket"},
		"a key without kms":    {Link{Origin: kms}, Mount{}, "origin.write.kms_key is for write.sse"},
		"too many connections": {Link{Origin: many}, Mount{}, "origin.write.connections is 6: 1 to 5"},
		"temporary names":      {Link{Origin: bucket, Staging: Staging{Patterns: []string{"*.part"}, Age: time.Second}}, Mount{}, ""},
		"no temporary names":   {Link{Origin: bucket, Staging: Staging{Patterns: []string{}}}, Mount{}, ""},
		"a wrong pattern":      {Link{Origin: bucket, Staging: Staging{Patterns: []string{"a/b"}}}, Mount{}, `link /: staging: "a/b" has a slash`},
		"too often":            {Link{Origin: bucket, Staging: Staging{Every: time.Millisecond}}, Mount{}, "link /: publish_every: 1ms is below 1s, the least"},
		"too short an age":     {Link{Origin: bucket, Staging: Staging{Age: time.Millisecond}}, Mount{}, "link /: staging_age: 1ms is below 1s, the least"},
	} {
		c.link.Path, c.m.Dir = "/", "/mnt"
		err := (&Config{Links: []Link{c.link}, Mounts: []Mount{c.m}}).Validate()
		switch {
		case c.says == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)):
			t.Errorf("%s: %v, expected %q", name, err, c.says)
		}
	}
}

func TestWhichLinksAreWritten(t *testing.T) {
	// A link is written if a mount below it is, or if it says so itself.
	a, b, c := Link{Path: "/", Origin: Origin{URL: "s3://a"}}, Link{Path: "/b", Origin: Origin{URL: "s3://b"}}, Link{Path: "/c", Origin: Origin{URL: "s3://c"}, Write: "through"}
	config := Config{Links: []Link{a, b, c}, Mounts: []Mount{{Dir: "/1", Prefix: "/b/x", Options: []string{"rw"}}, {Dir: "/2", Write: "off"}}}
	got := ""
	for _, l := range config.Written() {
		got += l.Path + l.Write + " "
	}
	if got != "/ /bthrough /cthrough " || config.Links[1].Write != "" {
		t.Errorf("%s, and the configuration %+v", got, config.Links)
	}
}

func TestWritableMountsThatAreRefused(t *testing.T) {
	// A node without a cache disk, a second writable mount of a link, and one of a directory are refused with the cure.
	s := hearthtest.StartS3(t)
	bucket := s.Bucket(t, "written")
	s.Client.CloseIdleConnections()
	for _, v := range s.Env() {
		name, value, _ := strings.Cut(v, "=")
		t.Setenv(name, value)
	}
	n := start(t, "s3://"+bucket, nil)
	l, err := n.links.forMount("/")
	if err != nil {
		t.Fatal(err)
	}
	first := &mounted{Mount: Mount{Dir: "/1", Write: "through"}, link: l}
	if _, err := n.writing(first); admin.KindOf(err) != admin.KindRefused || !strings.Contains(err.Error(), "needs a cache disk") || !strings.Contains(err.Error(), "--cache-disks") {
		t.Errorf("without a disk: %v", err)
	}
	n.mounts.left[first] = true
	second := &mounted{Mount: Mount{Dir: "/2", Write: "through"}, link: l}
	if _, err := n.writing(second); admin.KindOf(err) != admin.KindRefused || !strings.Contains(err.Error(), "mount /2: /1 is a writable mount of the same origin") || !strings.Contains(err.Error(), "(ro)") {
		t.Errorf("a second one: %v", err)
	}
	delete(n.mounts.left, first)
	files := start(t, "file://"+t.TempDir(), nil)
	_, err = files.Mount(t.Context(), admin.MountRequest{Mount: Mount{Dir: t.TempDir(), Write: "through"}})
	if admin.KindOf(err) != admin.KindUsage || !strings.Contains(err.Error(), "only buckets can") {
		t.Errorf("a directory: %v", err)
	}
}

func TestAnOlderVersionDoesNotGetDrafts(t *testing.T) {
	// A version that does not know drafts may take the place of a node that has none, and is refused by one that may have some.
	old := filepath.Join(t.TempDir(), "hearth")
	formats := Formats()
	formats["cache directory"]--
	text, err := json.Marshal(map[string]any{"version": "0.1", "formats": formats})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(old, []byte("#!/bin/sh\necho '"+string(text)+"'\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	n := start(t, "file://"+t.TempDir(), func(c *Config) {
		c.Cache.NoDisk, c.Cache.Disks = false, []Disk{{Path: t.TempDir(), Size: Size{Bytes: 64 << 20}}}
	})
	if err := readsAll(t.Context(), old, n.formats()); err != nil {
		t.Errorf("without drafts: %v", err)
	}
	if _, err := n.openDrafts(); err != nil {
		t.Fatal(err)
	}
	if err := readsAll(t.Context(), old, n.formats()); admin.KindOf(err) != admin.KindRefused || !strings.Contains(err.Error(), "its format of the cache directory is 1, and this one's 2") {
		t.Errorf("with drafts: %v", err)
	}
}

func TestTemporaryNamesOfALinkThatAMountMakes(t *testing.T) {
	// A mount of an origin that no link covers makes its link with the temporary names that it asks for, also where the request went
	// through JSON, in which none and not set are two things. A mount of a link that has others is refused with the cure, and one
	// that asks for nothing is not.
	n := start(t, "file://"+t.TempDir(), nil)
	asked := admin.MountRequest{Origin: &Origin{URL: "file://" + t.TempDir()}, Staging: Staging{Patterns: []string{}, Age: time.Minute}}
	text, err := json.Marshal(asked)
	if err != nil {
		t.Fatal(err)
	}
	var r admin.MountRequest
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	l, _, err := n.linkTo(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	if staged, _ := l.temporary.Match("a.tmp"); staged || l.Staging.After() != time.Minute {
		t.Errorf("%s made %+v", text, l.Staging)
	}
	usual, err := n.links.forMount("/")
	if err != nil {
		t.Fatal(err)
	}
	if _, final := usual.temporary.Match("a.tmp"); final != "a" {
		t.Errorf("a link that says nothing foretells %q", final)
	}
	for _, c := range []struct {
		asks, has Staging
		says      string
	}{
		{Staging{}, l.Staging, ""},
		{Staging{Patterns: draft.DefaultTemporary(), Age: 10 * time.Minute}, Staging{}, ""},
		{Staging{Patterns: []string{}}, l.Staging, ""},
		{Staging{Patterns: []string{}}, Staging{}, "staging none differs from *.tmp,"},
		{Staging{Patterns: []string{"*.a", "b"}}, l.Staging, "staging *.a,b differs from none"},
		{Staging{Age: time.Second}, Staging{}, "staging_age 1s differs from 10m0s"},
		{Staging{Every: -1}, Staging{}, "publish_every 0s differs from 30s"},
	} {
		if got := c.asks.Differs(c.has); c.says == "" && got != "" || !strings.HasPrefix(got, c.says) {
			t.Errorf("%+v of %+v: %q", c.asks, c.has, got)
		}
	}
	_, err = n.Mount(t.Context(), admin.MountRequest{Mount: Mount{Dir: t.TempDir()}, Staging: Staging{Patterns: []string{"*.part"}}})
	if admin.KindOf(err) != admin.KindRefused || !strings.Contains(err.Error(), "staging *.part differs from *.tmp,") || !strings.Contains(err.Error(), "its link / has: leave it out") {
		t.Errorf("other patterns: %v", err)
	}
	_, err = n.Mount(t.Context(), admin.MountRequest{Mount: Mount{Dir: t.TempDir()}, Staging: Staging{Patterns: []string{"a/b"}}})
	if admin.KindOf(err) != admin.KindUsage || !strings.Contains(err.Error(), `staging: "a/b" has a slash`) {
		t.Errorf("a wrong pattern: %v", err)
	}
}
