package hearth

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The layers of DESIGN section 2. A folder imports lower rows only, and none of
// its own row; sub-packages belong to their top folder.
var layers = [][]string{
	{""},
	{"cache", "peer", "namespace", "origin", "volume"},
	{"fuse", "s3gw", "warmup"},
	{"node"},
	{"cmd"},
}

// Helpers below every layer, and the folders that may use anything (tests and tools).
var (
	helpers = []string{"internal/admit", "internal/flight", "internal/piece", "internal/probe", "internal/scatter", "internal/waits", "internal/workers"}
	tools   = []string{"e2e", "internal/hearthtest", "internal/testrun", "internal/faultproxy", "internal/faultfs", "bench"}
)

// owners of libraries: one folder of ours imports each (LIBRARIES); golang.org/x
// and the checksum serve whoever needs them.
var owners = map[string]string{
	"github.com/hashicorp/memberlist":     "peer",
	"github.com/dgraph-io/ristretto/v2":   "cache",
	"github.com/minio/minio-go/v7":        "origin",
	"github.com/hanwen/go-fuse/v2":        "fuse",
	"github.com/moby/sys/mountinfo":       "fuse",
	"github.com/cockroachdb/pebble/v2":    "namespace",
	"github.com/spf13/cobra":              "cmd",
	"github.com/spf13/pflag":              "cmd",
	"go.yaml.in/yaml/v3":                  "cmd",
	"github.com/dustin/go-humanize":       "cmd",
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

// The maxima of STYLE.md.
const (
	maxFileLines    = 500
	maxFuncLines    = 60
	maxParams       = 5
	maxMethods      = 5
	maxFields       = 20
	maxPackageLines = 3000
	maxChain        = 5
	maxVocabulary   = 400 // lines of code in the root package, comments and blank lines aside
)

// exceptions to the maxima and to the rule on package-level state: what, and why.
var exceptions = map[string]string{
	"internal/hearthtest/suite.go CheckGet: parameters": "a test's one line: who, what, and the range",
	"cache/segment: lines in a package":                 "what checks its files knows its formats, which are nobody else's",
	"bench: lines in a package":                         "its figures share one table and one way to alternate sides; what they measure with lies below it",
	"namespace: lines in a package":                     "a tree tells other nodes from the listings, questions and records that it answers its own readers from",
}

type source struct {
	path, folder, pkg string
	test              bool
	lines, code       int // code: without comments and blank lines
	file              *ast.File
}

func TestArchitecture(t *testing.T) {
	// DESIGN's table of folders and STYLE's maxima hold for every file there is.
	set := token.NewFileSet()
	files := load(t, set)
	comments, packages := map[string]bool{}, map[string]int{}
	imports := map[string]map[string]bool{}
	vocabulary := 0
	for _, s := range files {
		checkImports(t, s, imports)
		if s.test {
			continue
		}
		if s.folder == "" {
			vocabulary += s.code
		}
		comments[s.folder] = comments[s.folder] || s.file.Doc != nil
		packages[s.folder] += s.lines
		limit(t, s.path, "lines in a file", s.lines, maxFileLines)
		checkDecls(t, set, s)
	}
	limit(t, "the root package", "lines of code", vocabulary, maxVocabulary)
	for folder, has := range comments {
		if !has {
			t.Errorf("%s: no package comment", folder)
		}
		limit(t, folder, "lines in a package", packages[folder], maxPackageLines)
		limit(t, folder, "packages in the import chain", chain(imports, folder), maxChain)
	}
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
		f, err := parser.ParseFile(set, p, text, parser.ParseComments)
		if err != nil {
			return err
		}
		folder := strings.TrimSuffix(path.Dir(p), ".")
		files = append(files, source{path: p, folder: folder, pkg: f.Name.Name, file: f,
			test: strings.HasSuffix(p, "_test.go"), lines: strings.Count(string(text), "\n"), code: codeLines(string(text))})
		return nil
	})
	if err != nil || len(files) == 0 {
		t.Fatalf("read the sources: %d files, %v", len(files), err)
	}
	return files
}

func codeLines(text string) int {
	n := 0
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "//") {
			n++
		}
	}
	return n
}

func top(folder string) string { return strings.SplitN(folder, "/", 2)[0] }

func row(folder string) int {
	return slices.IndexFunc(layers, func(l []string) bool { return slices.Contains(l, top(folder)) })
}

func isTool(folder string) bool {
	return slices.ContainsFunc(tools, func(p string) bool { return folder == p || strings.HasPrefix(folder, p+"/") })
}

// checkImports holds the table of layers and the one owner of each library, and
// notes what imports what for the chain.
func checkImports(t *testing.T, s source, imports map[string]map[string]bool) {
	if imports[s.folder] == nil {
		imports[s.folder] = map[string]bool{}
	}
	for _, spec := range s.file.Imports {
		name, _ := strconv.Unquote(spec.Path.Value)
		own, ours := strings.CutPrefix(name, "github.com/hearthfs/hearth")
		own = strings.TrimPrefix(own, "/")
		switch {
		case !ours && strings.Contains(strings.SplitN(name, "/", 2)[0], "."):
			checkOwner(t, s, name)
		case !ours || s.test || isTool(s.folder):
		case isTool(own):
			// The demo starts a real S3 server and makes its data as the tests do.
			if exceptions[s.path+" imports "+own] == "" {
				t.Errorf("%s imports the test tool %s", s.path, own)
			}
		default:
			imports[s.folder][own] = true
			if !mayImport(s.folder, own) {
				t.Errorf("%s may not import %q", s.path, own)
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

func checkOwner(t *testing.T, s source, name string) {
	for lib, owner := range owners {
		if name != lib && !strings.HasPrefix(name, lib+"/") {
			continue
		}
		if owner != "" && owner != top(s.folder) && !isTool(s.folder) && !(owner == "test" && s.test) {
			t.Errorf("%s imports %s, which belongs to %s", s.path, name, owner)
		}
		return
	}
	t.Errorf("%s imports %s, which is not in the list of libraries", s.path, name)
}

// chain is the number of packages on the longest path of imports from folder.
func chain(imports map[string]map[string]bool, folder string) int {
	longest := 0
	for next := range imports[folder] {
		longest = max(longest, chain(imports, next))
	}
	return 1 + longest
}

// limit prints a warning: a maximum says where to look for a concept without a name.
func limit(t *testing.T, where, what string, got, most int) {
	if got > most && exceptions[where+": "+what] == "" {
		t.Logf("warning: "+"%s: %d %s, at most %d", where, got, what, most)
	}
}

func checkDecls(t *testing.T, set *token.FileSet, s source) {
	for _, d := range s.file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			checkFunc(t, set, s, d)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				checkSpec(t, s, d, spec)
			}
		}
	}
}

func checkFunc(t *testing.T, set *token.FileSet, s source, d *ast.FuncDecl) {
	where := s.path + " " + d.Name.Name
	if d.Name.Name == "init" && d.Recv == nil {
		t.Errorf("%s: init", where)
	}
	if d.Name.IsExported() && exportedReceiver(d) && d.Doc == nil && s.pkg != "main" {
		t.Errorf("%s: exported and not documented", where)
	}
	lines := set.Position(d.End()).Line - set.Position(d.Pos()).Line + 1
	limit(t, where, "lines in a function", lines, maxFuncLines)
	params := 0
	for _, f := range d.Type.Params.List {
		params += max(1, len(f.Names))
	}
	limit(t, where, "parameters", params, maxParams)
}

func exportedReceiver(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return true
	}
	x := d.Recv.List[0].Type
	for {
		switch y := x.(type) {
		case *ast.StarExpr:
			x = y.X
		case *ast.IndexExpr:
			x = y.X
		case *ast.IndexListExpr:
			x = y.X
		case *ast.Ident:
			return y.IsExported()
		default:
			return false
		}
	}
}

func checkSpec(t *testing.T, s source, d *ast.GenDecl, spec ast.Spec) {
	switch spec := spec.(type) {
	case *ast.TypeSpec:
		where := s.path + " " + spec.Name.Name
		if spec.Name.IsExported() && d.Doc == nil && spec.Doc == nil && s.pkg != "main" {
			t.Errorf("%s: exported and not documented", where)
		}
		switch x := spec.Type.(type) {
		case *ast.InterfaceType:
			limit(t, where, "methods in an interface", x.Methods.NumFields(), maxMethods)
		case *ast.StructType:
			limit(t, where, "fields in a struct", x.Fields.NumFields(), maxFields)
		}
	case *ast.ValueSpec:
		for i, name := range spec.Names {
			where := s.path + " " + name.Name
			if name.IsExported() && d.Doc == nil && spec.Doc == nil && spec.Comment == nil && s.pkg != "main" {
				t.Errorf("%s: exported and not documented", where)
			}
			if d.Tok == token.VAR && !stateless(name, spec, i) && exceptions[where] == "" {
				t.Errorf("%s: package-level state", where)
			}
		}
	}
}

// stateless tells an error, or an assertion that a type has an interface, from state.
func stateless(name *ast.Ident, spec *ast.ValueSpec, i int) bool {
	if name.Name == "_" {
		return true
	}
	if i >= len(spec.Values) {
		return false
	}
	call, ok := spec.Values[i].(*ast.CallExpr)
	if !ok {
		return false
	}
	f := fmt.Sprint(call.Fun)
	if sel, ok := call.Fun.(*ast.SelectorExpr); ok {
		f = fmt.Sprint(sel.X, ".", sel.Sel.Name)
	}
	return f == "errors.New" || f == "fmt.Errorf"
}
