package hearth

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/token"
	"path"
	"strconv"
	"strings"
	"unicode/utf8"
)

// The maxima of STYLE.md.
const (
	maxFileLines   = 500
	maxFuncLines   = 60
	maxParams      = 5
	maxMethods     = 5
	maxFields      = 20
	maxPackageCode = 3500 // lines of code: comments and blank lines aside
	minPackageCode = 150  // of a package that one other imports
	maxChain       = 7
	maxColumns     = 120 // a tab is four
)

// building is what the maxima need to know of all packages of ours, tests aside.
type building struct {
	imports   map[string]map[string]bool
	importers map[string]int
	code      map[string]int
	chains    map[string]int     // what chain found
	types     map[string]written // by folder.Name
}

// written is a type where its file says it.
type written struct {
	s    source
	expr ast.Expr
}

// checkMaxima warns of what is over a maximum. Of tests it measures the columns alone.
func checkMaxima(r *report, set *token.FileSet, files []source) {
	checkColumns(r, files)
	b := survey(files)
	for _, s := range files {
		if s.test {
			continue
		}
		limit(r, s.path, "lines in a file", strings.Count(s.text, "\n"), maxFileLines)
		for _, d := range s.file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				checkSize(r, set, s, d)
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if spec, ok := spec.(*ast.TypeSpec); ok {
						b.checkType(r, s, spec)
					}
				}
			}
		}
	}
	for folder, code := range b.code {
		limit(r, folder, "lines of code in a package", code, maxPackageCode)
		limit(r, folder, "packages in the import chain", b.chain(folder), maxChain)
		if code < minPackageCode && b.importers[folder] == 1 {
			r.warn("%s: %d lines of code for one importer, at least %d", folder, code, minPackageCode)
		}
	}
}

func survey(files []source) building {
	b := building{map[string]map[string]bool{}, map[string]int{}, map[string]int{}, map[string]int{}, map[string]written{}}
	for _, s := range files {
		if s.test {
			continue
		}
		if b.imports[s.folder] == nil {
			b.imports[s.folder] = map[string]bool{}
		}
		folders, _ := imported(s)
		for _, f := range folders {
			if !b.imports[s.folder][f] {
				b.imports[s.folder][f] = true
				b.importers[f]++
			}
		}
		b.code[s.folder] += codeLines(s.text)
		for _, d := range s.file.Decls {
			if d, ok := d.(*ast.GenDecl); ok {
				for _, spec := range d.Specs {
					if spec, ok := spec.(*ast.TypeSpec); ok {
						b.types[s.folder+"."+spec.Name.Name] = written{s, spec.Type}
					}
				}
			}
		}
	}
	return b
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

// chain is the number of packages on the longest path of imports from folder.
func (b building) chain(folder string) int {
	if b.chains[folder] == 0 {
		longest := 0
		for next := range b.imports[folder] {
			longest = max(longest, b.chain(next))
		}
		b.chains[folder] = 1 + longest
	}
	return b.chains[folder]
}

func limit(r *report, where, what string, got, most int) {
	if got > most {
		r.warn("%s: %d %s, at most %d", where, got, what, most)
	}
}

// checkColumns counts the long lines below each top folder, and names the file with most.
func checkColumns(r *report, files []source) {
	type count struct {
		lines, files, most int
		path               string
	}
	counts := map[string]count{}
	for _, s := range files {
		long := 0
		for line := range strings.Lines(s.text) {
			if utf8.RuneCountInString(strings.TrimRight(line, "\n"))+3*strings.Count(line, "\t") > maxColumns {
				long++
			}
		}
		c := counts[top(s.folder)]
		if long > c.most {
			c.most, c.path = long, s.path
		}
		c.lines, c.files = c.lines+long, c.files+min(long, 1)
		counts[top(s.folder)] = c
	}
	for folder, c := range counts {
		if c.lines > 0 {
			r.warn("%s: %d lines over %d columns in %d files, most in %s: %d",
				cmp.Or(folder, "."), c.lines, maxColumns, c.files, c.path, c.most)
		}
	}
}

func checkSize(r *report, set *token.FileSet, s source, d *ast.FuncDecl) {
	where := s.path + " " + d.Name.Name
	limit(r, where, "lines in a function", set.Position(d.End()).Line-set.Position(d.Pos()).Line+1, maxFuncLines)
	limit(r, where, "parameters", d.Type.Params.NumFields(), maxParams)
}

// checkType counts methods and fields. A field that is a func is a method in disguise, and
// what a type embeds of ours counts as if it were written there: neither makes it smaller.
func (b building) checkType(r *report, s source, spec *ast.TypeSpec) {
	where := s.path + " " + spec.Name.Name
	switch x := spec.Type.(type) {
	case *ast.InterfaceType:
		limit(r, where, "methods in an interface", b.methods(written{s, x}), maxMethods)
	case *ast.StructType:
		fields, funcs := b.fields(written{s, x})
		limit(r, where, "func fields in a struct", funcs, maxMethods)
		limit(r, where, "fields in a struct", fields, maxFields)
	}
}

func (b building) methods(w written) int {
	n := 0
	for _, f := range w.expr.(*ast.InterfaceType).Methods.List {
		n++
		if t := b.resolve(written{w.s, f.Type}); len(f.Names) == 0 && isType[*ast.InterfaceType](t) {
			n += b.methods(t) - 1
		}
	}
	return n
}

// fields counts a struct's fields, and those of them that are funcs.
func (b building) fields(w written) (all, funcs int) {
	for _, f := range w.expr.(*ast.StructType).Fields.List {
		t := b.resolve(written{w.s, f.Type})
		switch {
		case len(f.Names) == 0 && isType[*ast.StructType](t):
			more, moreFuncs := b.fields(t)
			all, funcs = all+more, funcs+moreFuncs
			continue
		case isType[*ast.FuncType](t):
			funcs += max(1, len(f.Names))
		}
		all += max(1, len(f.Names))
	}
	return all, funcs
}

func isType[T ast.Expr](w written) bool {
	_, ok := w.expr.(T)
	return ok
}

// resolve follows a type's name to what is written there, if a package of ours declares it.
func (b building) resolve(w written) written {
	for {
		name := ""
		switch x := w.expr.(type) {
		case *ast.StarExpr:
			w.expr = x.X
			continue
		case *ast.IndexExpr:
			w.expr = x.X
			continue
		case *ast.Ident:
			name = w.s.folder + "." + x.Name
		case *ast.SelectorExpr:
			name = b.named(w.s, fmt.Sprint(x.X)) + "." + x.Sel.Name
		}
		next, ok := b.types[name]
		if !ok {
			return w
		}
		w = next
	}
}

// named is the folder that a file imports by that name.
func (b building) named(s source, name string) string {
	for _, spec := range s.file.Imports {
		p, _ := strconv.Unquote(spec.Path.Value)
		folder := strings.TrimPrefix(strings.TrimPrefix(p, module), "/")
		if spec.Name != nil && spec.Name.Name == name || spec.Name == nil && (path.Base(p) == name) {
			return folder
		}
	}
	return "?"
}
