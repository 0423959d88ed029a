package node

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
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

func TestAMountOfSeveralLinksWritesThoseThatSaySo(t *testing.T) {
	// A mount above several links changes those that say write: through, in whatever order they stand, and is read-only if none does.
	// Its own word is for the link that it lies in, or the only one, and for no other: not for one below, nor for one that is made at
	// run time, nor for a directory.
	_, _, c := outage(t, "immutable")
	dir := Origin{URL: "file://" + t.TempDir()}
	at := func(path, write string) Link {
		l := c.Links[0]
		l.Path, l.Write = path, write
		return l
	}
	data, results, files := at("/data", ""), at("/results", "through"), Link{Path: "/files", Origin: dir, Freshness: "immutable"}
	none := "mount /mnt: it shows several links, and none says that it is written: say write: through of those that are to be, such as /data, or mount each by itself"
	for name, x := range map[string]struct {
		links  []Link
		m      Mount
		writes string
		says   string
	}{
		"one of three":          {[]Link{data, files, results}, Mount{}, "/results", ""},
		"the other way":         {[]Link{results, files, data}, Mount{Write: "through"}, "/results", ""},
		"none":                  {[]Link{data, files}, Mount{}, "", ""},
		"none, and it asks":     {[]Link{data, files}, Mount{Options: []string{"rw"}}, "", none},
		"none, read-only":       {[]Link{results, data}, Mount{Options: []string{"ro"}}, "", ""},
		"both":                  {[]Link{results, at("/data", "through")}, Mount{}, "/data /results", ""},
		"the only one":          {[]Link{data}, Mount{Write: "through"}, "/data", ""},
		"above, and a link":     {[]Link{at("/", "through"), data}, Mount{}, "/", ""},
		"below a link":          {[]Link{at("/", ""), results, data}, Mount{Write: "through"}, "/ /results", ""},
		"the link's word":       {[]Link{at("/", ""), results}, Mount{}, "", ""},
		"the one that it is of": {[]Link{at("/", "through"), data, results}, Mount{Prefix: "/data/x", Write: "through"}, "/data", ""},
		"how it opens files":    {[]Link{data, results}, Mount{Open: "none"}, "", "open=none is for read-only mounts"},
		"the only directory":    {[]Link{files}, Mount{Write: "through"}, "", "cannot be written, only buckets can"},
	} {
		x.m.Dir = "/mnt"
		config := Config{Links: x.links, Mounts: []Mount{x.m}}
		if err := config.Validate(); (err == nil) != (x.says == "") || err != nil && !strings.Contains(err.Error(), x.says) {
			t.Errorf("%s: the configuration: %v", name, err)
		}
		n := start(t, "", func(o *Config) { o.Links, o.Cache = x.links, c.Cache })
		if _, _, err := n.linkTo(t.Context(), admin.MountRequest{Origin: &Origin{URL: "file://" + t.TempDir()}, Mount: Mount{Freshness: "immutable"}}); err != nil {
			t.Fatal(err)
		}
		m := &mounted{Mount: x.m}
		m.Prefix = cleanPath(m.Prefix)
		link, err := n.links.forMount(m.Prefix)
		if err != nil {
			t.Fatal(err)
		}
		of := ""
		m.link = link
		if m.Mount, of, err = n.links.writes(m.Mount, link); err == nil {
			err = checkWrites(m.Mount, "mount /mnt", of)
		}
		if (err == nil) != (x.says == "") || err != nil && !strings.Contains(err.Error(), x.says) {
			t.Errorf("%s: %v", name, err)
		}
		var written []string
		if err == nil && m.Write != "" {
			m.writes = n.links.written(m)
			n.mounts.left[m] = true
			for _, l := range n.links.list() {
				if !m.writes[l.name] {
					continue
				}
				_, err := n.writing(&mounted{Mount: Mount{Dir: "/2", Prefix: l.Path, Write: "through"}, link: l})
				if admin.KindOf(err) != admin.KindRefused || !strings.Contains(err.Error(), "mount /2: /mnt is a writable mount of the same origin") {
					t.Errorf("%s: a second mount of %s: %v", name, l.Path, err)
				}
			}
			delete(n.mounts.left, m)
			w, err := n.writing(m)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			for _, l := range n.links.list() {
				if w.Writes(l.name) {
					written = append(written, l.Path)
				}
			}
		}
		slices.Sort(written)
		if got := strings.Join(written, " "); got != x.writes {
			t.Errorf("%s: it writes %q, expected %q", name, got, x.writes)
		}
		tried := ""
		for _, l := range config.Written() {
			if l.Write != "" && x.says == "" && slices.Contains(written, l.Path) {
				tried += l.Path
			}
		}
		if want := strings.ReplaceAll(x.writes, " ", ""); x.says == "" && len(tried) != len(want) {
			t.Errorf("%s: doctor tries %q", name, tried)
		}
		if err := n.Close(); err != nil {
			t.Error(err)
		}
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
