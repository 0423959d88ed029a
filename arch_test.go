package hearth

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/hearthfs/hearth"

// The layers of DESIGN's picture. A folder imports lower rows only, and none of
// its own row; sub-packages belong to their top folder.
var layers = [][]string{
	{""},
	{"cache", "draft", "peer", "namespace", "origin"},
	{"fuse", "s3gw", "warmup", "volume"},
	{"node"},
	{"cmd"},
}

// Helpers below every layer, and the folders that may use anything (tests and tools).
var (
	helpers = []string{"internal/admit", "internal/device", "internal/flight", "internal/piece", "internal/waits"}
	tools   = []string{"e2e", "internal/hearthtest", "internal/testrun", "internal/faultproxy", "internal/faultfs", "internal/fakenvmet", "bench"}
)

// owners of libraries: one folder of ours imports each (LIBRARIES); golang.org/x
// and the checksum serve whoever needs them.
var owners = map[string]string{
	"github.com/hashicorp/memberlist":     "peer",
	"github.com/dgraph-io/ristretto/v2":   "cache",
	"github.com/aws/aws-sdk-go-v2":        "origin",
	"github.com/aws/smithy-go":            "origin", // the SDK's errors and middleware
	"github.com/minio/minio-go/v7":        "origin",
	"github.com/google/btree":             "draft",
	"github.com/hanwen/go-fuse/v2":        "fuse",
	"github.com/moby/sys/mountinfo":       "fuse",
	"github.com/cockroachdb/pebble/v2":    "namespace",
	"github.com/spf13/cobra":              "cmd",
	"github.com/spf13/pflag":              "cmd",
	"go.yaml.in/yaml/v3":                  "cmd",
	"github.com/dustin/go-humanize":       "cmd",
	"github.com/rivo/uniseg":              "cmd",
	"golang.org/x/term":                   "cmd",
	"github.com/prometheus/client_golang": "node",
	"google.golang.org/grpc":              "bench", // in a module of its own, which Hearth does not know
	"github.com/coreos/go-systemd/v22":    "node",
	"github.com/zeebo/xxh3":               "",
	"golang.org/x/sync":                   "",
	"golang.org/x/sys":                    "",
	"golang.org/x/time":                   "",
	"pgregory.net/rapid":                  "test",
	"go.uber.org/goleak":                  "test",
}

// concepts have one type, of one folder, by their names in small letters: who looks for it
// finds no other. Tests may have what they want.
var concepts = map[string]string{"ring": "peer"}

type source struct {
	path, folder, pkg string
	test              bool
	text              string
	file              *ast.File
}

// report is what the rules found. A fault fails the test; a warning says where to look
// for a concept without a name.
type report struct{ faults, warnings []string }

func (r *report) fault(format string, args ...any) {
	r.faults = append(r.faults, fmt.Sprintf(format, args...))
}

func (r *report) warn(format string, args ...any) {
	r.warnings = append(r.warnings, fmt.Sprintf(format, args...))
}

func TestArchitecture(t *testing.T) {
	// DESIGN's layers and the rules of CONTRIBUTING hold for every file there is, and
	// what is over one of STYLE's maxima is printed.
	set := token.NewFileSet()
	r := judge(set, load(t, set))
	if len(r.warnings) > 0 {
		t.Logf("%d warnings: over a maximum of STYLE.md; which concept is missing its name?\n%s",
			len(r.warnings), strings.Join(r.warnings, "\n"))
	}
	for _, f := range r.faults {
		t.Error(f)
	}
}

// judge applies every rule. What it reports is sorted, each once.
func judge(set *token.FileSet, files []source) report {
	r := &report{}
	checkImports(r, files)
	checkCycles(r, files)
	checkConcepts(r, files)
	checkDecls(r, set, files)
	checkMaxima(r, set, files)
	for _, list := range []*[]string{&r.faults, &r.warnings} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	return *r
}

func load(t *testing.T, set *token.FileSet) []source {
	var files []source
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && p != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata") {
			return fs.SkipDir
		}
		if !strings.HasSuffix(p, ".go") {
			return nil
		}
		text, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		s, err := parse(set, p, string(text))
		files = append(files, s)
		return err
	})
	if err != nil || len(files) == 0 {
		t.Fatalf("read the sources: %d files, %v", len(files), err)
	}
	return files
}

func parse(set *token.FileSet, p, text string) (source, error) {
	f, err := parser.ParseFile(set, p, text, parser.ParseComments)
	if err != nil {
		return source{}, err
	}
	return source{path: p, folder: strings.TrimSuffix(path.Dir(p), "."), pkg: f.Name.Name, file: f, text: text,
		test: strings.HasSuffix(p, "_test.go")}, nil
}

func top(folder string) string { return strings.SplitN(folder, "/", 2)[0] }

func row(folder string) int {
	return slices.IndexFunc(layers, func(l []string) bool { return slices.Contains(l, top(folder)) })
}

func isTool(folder string) bool {
	return slices.ContainsFunc(tools, func(p string) bool { return folder == p || strings.HasPrefix(folder, p+"/") })
}

// imported lists what a file imports: folders of ours, and libraries of others.
func imported(s source) (folders, libraries []string) {
	for _, spec := range s.file.Imports {
		name, _ := strconv.Unquote(spec.Path.Value)
		own, ours := strings.CutPrefix(name, module)
		switch {
		case ours:
			folders = append(folders, strings.TrimPrefix(own, "/"))
		case strings.Contains(strings.SplitN(name, "/", 2)[0], "."):
			libraries = append(libraries, name)
		}
	}
	return folders, libraries
}

// checkImports holds the table of layers and the one owner of each library.
func checkImports(r *report, files []source) {
	for _, s := range files {
		folders, libraries := imported(s)
		for _, lib := range libraries {
			checkOwner(r, s, lib)
		}
		if s.test || isTool(s.folder) {
			continue
		}
		for _, f := range folders {
			switch {
			case isTool(f):
				r.fault("%s imports the test tool %s", s.path, f)
			case !mayImport(s.folder, f):
				r.fault("%s may not import %q", s.path, f)
			}
		}
	}
}

func mayImport(from, to string) bool {
	if slices.Contains(helpers, to) {
		return from != ""
	}
	if slices.Contains(helpers, from) {
		return false
	}
	a, b := row(from), row(to)
	return a >= 0 && b >= 0 && (a > b || top(from) == top(to))
}

func checkOwner(r *report, s source, name string) {
	for lib, owner := range owners {
		if name != lib && !strings.HasPrefix(name, lib+"/") {
			continue
		}
		if owner != "" && owner != top(s.folder) && !isTool(s.folder) && !(owner == "test" && s.test) {
			r.fault("%s imports %s, which belongs to %s", s.path, name, owner)
		}
		return
	}
	r.fault("%s imports %s, which is not in the list of libraries", s.path, name)
}

// checkConcepts refuses a second type of a concept's name.
func checkConcepts(r *report, files []source) {
	for _, s := range files {
		for _, d := range s.file.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || s.test {
				continue
			}
			for _, spec := range g.Specs {
				if x, ok := spec.(*ast.TypeSpec); ok {
					if folder, one := concepts[strings.ToLower(x.Name.Name)]; one && folder != s.folder {
						r.fault("%s %s: the type of that name is package %s's: call this what it is", s.path, x.Name.Name, folder)
					}
				}
			}
		}
	}
}

// rooms are the folders that stand in one folder, and that folder's own package, with
// one import as the evidence for each pair.
type rooms map[string]map[string]string

// checkCycles refuses a ring of imports among the folders that stand in one folder, at
// every depth. Go refuses rings of packages alone: where a/b/x imports a/c, and a/c/y
// imports a/b, neither b nor c can be understood, moved or left out without the other.
// Tests count, with two liberties: tools may use anything and be used by any test, and a
// test may drive its room through the package of the folder that it stands in.
func checkCycles(r *report, files []source) {
	houses := map[string]rooms{}
	for _, s := range files {
		folders, _ := imported(s)
		for _, f := range folders {
			if f == s.folder || isTool(f) && !isTool(s.folder) {
				continue
			}
			house, from, to := apart(s.folder, f)
			if s.test && to == cmp.Or(house, ".") {
				continue
			}
			if houses[house] == nil {
				houses[house] = rooms{}
			}
			if houses[house][from] == nil {
				houses[house][from] = map[string]string{}
			}
			if old := houses[house][from][to]; old == "" || s.path < old {
				houses[house][from][to] = s.path
			}
		}
	}
	for _, h := range houses {
		done := map[string]bool{}
		for _, from := range slices.Sorted(maps.Keys(h)) {
			h.walk(r, nil, from, done)
		}
	}
}

// walk follows the imports of the last room of way, and reports each way back into it.
func (h rooms) walk(r *report, way []string, room string, done map[string]bool) {
	if at := slices.Index(way, room); at >= 0 {
		var links []string
		ring := append(slices.Clone(way[at:]), room)
		for i, from := range ring[:len(ring)-1] {
			links = append(links, fmt.Sprintf("%s imports %s in %s", from, ring[i+1], h[from][ring[i+1]]))
		}
		r.fault("folders import each other: %s", strings.Join(links, ", "))
		return
	}
	if done[room] {
		return
	}
	way = append(way, room)
	for _, next := range slices.Sorted(maps.Keys(h[room])) {
		h.walk(r, way, next, done)
	}
	done[room] = true
}

// apart names the folder that two folders stand in, and where in it each of them is:
// of a/b/x and a/c these are a, a/b and a/c. The folder internal is no concept: what
// stands in it counts as standing beside the top folders.
func apart(x, y string) (house, from, to string) {
	a, b := strings.Split(x, "/"), strings.Split(y, "/")
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	if n == 1 && a[0] == "internal" {
		n = 0
	}
	within := func(parts []string) string {
		k := n + 1
		if n == 0 && parts[0] == "internal" {
			k++
		}
		return strings.Join(parts[:min(k, len(parts))], "/")
	}
	return strings.Join(a[:n], "/"), cmp.Or(within(a), "."), cmp.Or(within(b), ".")
}
