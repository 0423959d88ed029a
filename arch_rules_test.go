package hearth

import (
	"fmt"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// tree is a small code base: text by path. A line "import x" stands for a folder of ours.
type tree map[string]string

// judgeTree gives a code base the package comments that its files lack, and judges it.
func judgeTree(t *testing.T, code tree) report {
	t.Helper()
	set := token.NewFileSet()
	var files []source
	for path, text := range code {
		if !strings.Contains(text, "package ") {
			text = "// Package p is complete.\npackage p\n" + text
		}
		for _, f := range []string{"cache", "node", "namespace", "internal", "s3gw", "fuse", "warmup", "draft", "origin", "e2e"} {
			text = strings.ReplaceAll(text, `import "`+f, `import "`+module+"/"+f)
		}
		s, err := parse(set, path, text)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, s)
	}
	return judge(set, files)
}

func TestArchitectureRefuses(t *testing.T) {
	// Each rule refuses the code base that breaks it, by one fault, and no rule refuses its neighbour.
	for _, c := range []struct {
		story string
		code  tree
		fault string // begins so; "": none
	}{
		{"an import upwards", tree{"cache/a.go": `import "node"`}, `cache/a.go may not import "node"`},
		{"an import downwards", tree{"node/a.go": `import "cache/disk"`}, ""},
		{"an import of the same row", tree{"cache/a.go": `import "namespace"`}, "cache/a.go may not import"},
		{"a draft that knows names", tree{"draft/a.go": `import "namespace"`}, "draft/a.go may not import"},
		{"a draft that knows an origin", tree{"draft/a.go": `import "origin"`}, "draft/a.go may not import"},
		{"a mount that has drafts", tree{"fuse/a.go": `import "draft"`}, ""},
		{"a test's import of the same row", tree{"cache/a_test.go": `import "namespace"`}, ""},
		{"a helper that knows a layer", tree{"internal/flight/a.go": `import "cache"`}, "internal/flight/a.go may not"},
		{"a test tool in the product", tree{"node/a.go": `import "internal/hearthtest"`}, "node/a.go imports the test tool"},
		{"a test tool in a test", tree{"node/a_test.go": `import "internal/hearthtest"`}, ""},

		{"another's library", tree{"node/a.go": `import "github.com/minio/minio-go/v7/pkg/tags"`}, "node/a.go imports github.com/minio"},
		{"its owner", tree{"origin/a.go": `import "github.com/minio/minio-go/v7"`}, ""},
		{"a library that nobody listed", tree{"node/a.go": `import "example.com/x"`}, "node/a.go imports example.com/x, which is not"},
		{"a test's library in the product", tree{"node/a.go": `import "pgregory.net/rapid"`}, "node/a.go imports pgregory.net/rapid"},
		{"a test's library in a test", tree{"node/a_test.go": `import "pgregory.net/rapid"`}, ""},

		{"two folders that import each other", tree{"cache/a/x/x.go": `import "cache/b"`, "cache/b/y/y.go": `import "cache/a"`},
			"folders import each other: cache/a imports cache/b in cache/a/x/x.go, cache/b imports cache/a in cache/b/y/y.go"},
		{"three, one of them by its test", tree{"cache/a/x.go": `import "cache/b/x"`, "cache/b/b.go": `import "cache/c/x"`, "cache/c/c_test.go": `import "cache/a/x"`},
			"folders import each other: cache/a imports cache/b"},
		{"three deep down", tree{"node/r/a/x/x.go": `import "node/r/b"`, "node/r/b/y/y.go": `import "node/r/c"`, "node/r/c/z/z.go": `import "node/r/a"`},
			"folders import each other: node/r/a imports node/r/b"},
		{"top folders, by their tests", tree{"cache/a_test.go": `import "namespace"`, "namespace/a_test.go": `import "cache"`},
			"folders import each other: cache imports namespace"},
		{"a package and one below it, which a third imports", tree{"cache/a.go": `import "cache/b"`, "cache/c/c.go": `import "cache"`}, ""},
		{"a package and one below it", tree{"cache/a.go": `import "cache/b"`, "cache/b/c/c.go": `import "cache"`},
			"folders import each other: cache imports cache/b"},
		{"a test that drives its room through the house", tree{"node/a.go": `import "node/ring"`, "node/ring/a_test.go": `import "node"`}, ""},
		{"a tool and a test of what it uses", tree{"internal/hearthtest/a.go": `import "cache"`, "cache/a_test.go": `import "internal/hearthtest"`}, ""},
		{"neighbours in internal", tree{"internal/waits/a.go": `import "internal/flight"`, "cache/a.go": `import "internal/waits"`}, ""},

		{"a second ring", tree{"node/a.go": "type ring struct{}"}, "node/a.go ring: the type of that name is package peer's"},
		{"the ring", tree{"peer/a.go": "// Ring is some nodes.\ntype Ring struct{}"}, ""},
		{"a test's ring", tree{"node/a_test.go": "type ring struct{}"}, ""},

		{"init", tree{"cache/a.go": `func init() {}`}, "cache/a.go init: init"},
		{"init in a test", tree{"cache/a_test.go": `func init() {}`}, "cache/a_test.go init: init"},
		{"a method of that name", tree{"cache/a.go": `func (x y) init() {}`}, ""},
		{"state", tree{"cache/a.go": `var n int`}, "cache/a.go n: package-level state"},
		{"state that somebody set", tree{"cache/a.go": `var n = f(1)`}, "cache/a.go n: package-level state"},
		{"an error", tree{"cache/a.go": "import \"errors\"\nvar errFull = errors.New(\"full\")"}, ""},
		{"an assertion", tree{"cache/a.go": `var _ x = y{}`}, ""},
		{"a test's table", tree{"cache/a_test.go": `var n int`}, ""},

		{"no package comment", tree{"cache/a.go": "package p"}, "cache: no package comment"},
		{"a package comment in one of its files", tree{"cache/a.go": "package p", "cache/b.go": "// Package p waits.\npackage p"}, ""},
		{"a function", tree{"cache/a.go": `func Open() {}`}, "cache/a.go Open: exported and not documented"},
		{"a directive is no comment", tree{"cache/a.go": "//go:noinline\nfunc Open() {}"}, "cache/a.go Open: exported and not"},
		{"a method", tree{"cache/a.go": `func (s *Set[T]) Add() {}`}, "cache/a.go Add: exported and not documented"},
		{"a method of a hidden type", tree{"cache/a.go": `func (s *set) Add() {}`}, ""},
		{"a type", tree{"cache/a.go": `type Set struct{}`}, "cache/a.go Set: exported and not documented"},
		{"a constant", tree{"cache/a.go": `const Most = 3`}, "cache/a.go Most: exported and not documented"},
		{"a constant with a word behind it", tree{"cache/a.go": `const Most = 3 // readers`}, ""},
		{"one comment for a block", tree{"cache/a.go": "// What may be held.\nconst (\n\tMost = 3\n\tLeast = 1\n)"}, ""},
		{"a program", tree{"cmd/hearth/a.go": "// Command hearth is it.\npackage main\n\nfunc Run() {}"}, ""},

		{"Close closes", repeated("Close closes."), "cache/a.go Close: the comment says what the name says"},
		{"Close closes it", repeated("Close closes the Set."), "cache/a.go Close: the comment says"},
		{"Close, to the end", repeated("Close closes the Set. Whoever waits in Add returns ErrClosed."), ""},
		{"Stats returns stats", doc("Stats returns stats.", "func Stats() int { return 0 }"), "cache/a.go Stats: the comment says"},
		{"Stats counted since when", doc("Stats returns the counts since the start.", "func Stats() int { return 0 }"), ""},
		{"Options are options", doc("Options are options.", "type Options struct{}"), "cache/a.go Options: the comment says"},
		{"Options of the package", doc("Options are the options of a P.", "type Options struct{}"), "cache/a.go Options: the comment says"},
		{"a long name's words", doc("ReadHTTPHeader reads an HTTP header.", "func ReadHTTPHeader() {}"), "cache/a.go ReadHTTPHeader: the"},
		{"stopping", doc("Stop is for stopping.", "func Stop() {}"), "cache/a.go Stop: the comment says"},
		{"a hidden function, in a test, too", tree{"cache/a_test.go": "// fill fills.\nfunc fill() {}"}, "cache/a_test.go fill: the comment says"},
		{"a field", doc("Set holds keys.", "type Set struct {\n\t// Max is the max.\n\tMax int\n}"), "cache/a.go Set.Max: the comment says"},
		{"a field's unit", doc("Set holds keys.", "type Set struct {\n\t// Max is in bytes.\n\tMax int\n}"), ""},
		{"a word behind a field", doc("Set holds keys.", "type Set struct {\n\tMax int // of it\n}"), ""},
		{"an interface's method", doc("Set holds keys.", "type Set interface {\n\t// Add adds.\n\tAdd()\n}"), "cache/a.go Set.Add: the comment says"},
		{"a value that is quoted", doc(`Sep is "/".`, "const Sep = '/'"), ""},
	} {
		r := judgeTree(t, c.code)
		if c.fault == "" && len(r.faults) > 0 || c.fault != "" && (len(r.faults) != 1 || !strings.HasPrefix(r.faults[0], c.fault)) {
			t.Errorf("%s: %q, want %q", c.story, r.faults, c.fault)
		}
	}
}

func doc(text, decl string) tree { return tree{"cache/a.go": "// " + text + "\n" + decl} }

func repeated(text string) tree { return doc(text, "func (s *Set) Close() {}") }

func TestArchitectureWarns(t *testing.T) {
	// Each maximum is printed for what is one over it, not for what reaches it, and fails nothing.
	lines := func(n int) string { return strings.Repeat("\tf()\n", n) }
	fields := func(n int, kind string) string {
		text := ""
		for i := range n {
			text += fmt.Sprintf("\tf%d %s\n", i, kind)
		}
		return text
	}
	structs := func(text string) tree { return tree{"cache/a.go": "type x struct {\n" + text + "}"} }
	long := func(n int) tree { return tree{"cache/a_test.go": "\t//" + strings.Repeat("ä", n-6)} }
	for _, c := range []struct {
		story    string
		at, over tree
		warning  string
	}{
		{"a file", tree{"cache/a.go": strings.Repeat("\n", 498)}, tree{"cache/a.go": strings.Repeat("\n", 499)}, "cache/a.go: 501 lines in a file"},
		{"a function", tree{"cache/a.go": "func f() {\n" + lines(58) + "}"}, tree{"cache/a.go": "func f() {\n" + lines(59) + "}"}, "cache/a.go f: 61 lines"},
		{"parameters", tree{"cache/a.go": "func f(a, b, c, d, e int) {}"}, tree{"cache/a.go": "func f(a, b, c, d, e int, g string) {}"}, "cache/a.go f: 6 parameters"},
		{"columns", long(120), long(121), "cache: 1 lines over 120 columns in 1 files, most in cache/a_test.go: 1"},
		{"fields", structs(fields(20, "int")), structs(fields(21, "int")), "cache/a.go x: 21 fields"},
		{"func fields", structs(fields(5, "func()")), structs(fields(6, "func()")), "cache/a.go x: 6 func fields"},
		{"funcs by another name", structs(fields(5, "h")), tree{"cache/a.go": "type x struct {\n" + fields(6, "h") + "}\ntype h func()"}, "cache/a.go x: 6 func"},
		{"what is embedded", tree{"cache/a.go": "type x struct {\n\ty\n" + fields(18, "int") + "}\ntype y struct { a, b int }"},
			tree{"cache/a.go": "type x struct {\n\t*y\n" + fields(19, "int") + "}\ntype y struct { a, b int }"}, "cache/a.go x: 21 fields"},
		{"what is embedded from elsewhere", structs("\tsync.Mutex\n" + fields(19, "int")), structs("\tsync.Mutex\n" + fields(20, "int")), "cache/a.go x: 21 fields"},
		{"methods", tree{"cache/a.go": "type x interface { A(); B(); C(); D(); E() }"}, tree{"cache/a.go": "type x interface { A(); B(); C(); D(); E(); F() }"}, "cache/a.go x: 6 methods"},
		{"methods of another package", tree{"cache/a.go": "import \"cache/b\"\ntype x interface { b.Y; B(); C(); D(); E() }"},
			tree{"cache/a.go": "import \"cache/b\"\ntype x interface { b.Y; B(); C(); D(); E() }", "cache/b/b.go": "// Y is two.\ntype Y interface { A(); F() }"}, "cache/a.go x: 6 methods"},
		{"code in a package", tree{"cache/a.go": "func f() {\n}\n" + code(3497)}, tree{"cache/a.go": "func f() {\n}\n" + code(3498)}, "cache: 3501 lines of code in a package"},
		{"comments in a package", tree{"cache/a.go": code(100)}, tree{"cache/a.go": code(100) + strings.Repeat("// x\n\n", 2000)}, ""},
		{"a small package's one importer", importers(tree{"cache/b/b.go": code(149)}, 1), importers(tree{"cache/b/b.go": code(148)}, 1), "cache/b: 149 lines of code for one importer"},
		{"a small package's importers", importers(tree{"cache/b/b.go": code(10)}, 2), importers(tree{"cache/b/b.go": code(10)}, 1), "cache/b: 11 lines of code for one importer"},
		{"the chain", line(7), line(8), "cache/p7: 8 packages in the import chain"},
	} {
		at, over := judgeTree(t, c.at), judgeTree(t, c.over)
		begins := func(w string) bool { return c.warning != "" && strings.HasPrefix(w, c.warning) }
		if slices.ContainsFunc(at.warnings, begins) || slices.ContainsFunc(over.warnings, begins) != (c.warning != "") {
			t.Errorf("%s: %q, and over it %q, want %q", c.story, at.warnings, over.warnings, c.warning)
		}
		if len(at.faults)+len(over.faults) > 0 {
			t.Errorf("%s: %q %q", c.story, at.faults, over.faults)
		}
	}
}

func code(n int) string { return strings.Repeat("const c = 1\n", n) }

// importers adds packages that import cache/b.
func importers(t tree, n int) tree {
	for i := range n {
		t[fmt.Sprintf("cache/i%d/i.go", i)] = `import "cache/b"`
	}
	return t
}

// line is packages each of which imports the one before.
func line(n int) tree {
	t := tree{"cache/p0/p.go": ""}
	for i := 1; i < n; i++ {
		t[fmt.Sprintf("cache/p%d/p.go", i)] = fmt.Sprintf(`import "cache/p%d"`, i-1)
	}
	return t
}
