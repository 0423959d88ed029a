package hearth

import (
	"fmt"
	"go/ast"
	"go/token"
	"slices"
	"strings"
	"unicode"
)

// empty are the words that say nothing about a thing beside its name.
var empty = strings.Fields(`a an the this that these it its of for to in on by with and or as one which
	is are be was has have does do holds contains
	return returns get gets set sets give gives provide provides represent represents implement implements define defines
	create creates make makes build builds new
	type struct interface func function method field value object instance variable constant package`)

// checkDecls refuses init, package-level state, exported names without a comment, and
// comments that only repeat the name. Tests may keep state and need no comments.
func checkDecls(r *report, set *token.FileSet, files []source) {
	described := map[string]bool{}
	for _, s := range files {
		if !s.test {
			described[s.folder] = described[s.folder] || s.file.Doc.Text() != ""
		}
		for _, d := range s.file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				checkFunc(r, s, d)
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					checkSpec(r, s, d, spec)
				}
			}
		}
	}
	for folder, has := range described {
		if !has {
			r.fault("%s: no package comment", folder)
		}
	}
}

func checkFunc(r *report, s source, d *ast.FuncDecl) {
	where := s.path + " " + d.Name.Name
	if d.Name.Name == "init" && d.Recv == nil {
		r.fault("%s: init", where)
	}
	receiver, exported := receiver(d)
	checkDoc(r, s, where, exported && d.Name.IsExported(), []string{d.Name.Name, receiver}, d.Doc)
}

// receiver names the type whose method d is, and tells whether others can call it.
func receiver(d *ast.FuncDecl) (name string, exported bool) {
	if d.Recv == nil {
		return "", true
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
			return y.Name, y.IsExported()
		default:
			return "", false
		}
	}
}

func checkSpec(r *report, s source, d *ast.GenDecl, spec ast.Spec) {
	switch spec := spec.(type) {
	case *ast.TypeSpec:
		checkDoc(r, s, s.path+" "+spec.Name.Name, spec.Name.IsExported(), []string{spec.Name.Name}, spec.Doc, d.Doc)
		checkMembers(r, s, spec)
	case *ast.ValueSpec:
		for i, name := range spec.Names {
			where := s.path + " " + name.Name
			exported := name.IsExported() && spec.Comment.Text() == ""
			checkDoc(r, s, where, exported, []string{name.Name}, spec.Doc, d.Doc)
			if d.Tok == token.VAR && !s.test && !stateless(name, spec, i) {
				r.fault("%s: package-level state", where)
			}
		}
	}
}

// checkMembers looks at the comments above fields and an interface's methods. They need none,
// and one behind a field goes on from its name: it may be as short as "of the writer".
func checkMembers(r *report, s source, spec *ast.TypeSpec) {
	var members *ast.FieldList
	switch x := spec.Type.(type) {
	case *ast.StructType:
		members = x.Fields
	case *ast.InterfaceType:
		members = x.Methods
	default:
		return
	}
	for _, f := range members.List {
		for _, name := range f.Names {
			checkDoc(r, s, fmt.Sprintf("%s %s.%s", s.path, spec.Name.Name, name.Name), false,
				[]string{name.Name, spec.Name.Name}, f.Doc)
		}
	}
}

// checkDoc judges a declaration's comments, of which the first that there is counts. The
// names are its own and its type's.
func checkDoc(r *report, s source, where string, exported bool, names []string, docs ...*ast.CommentGroup) {
	for _, doc := range docs {
		if text := doc.Text(); text != "" {
			if repeats(text, append(names, s.pkg)) {
				r.fault("%s: the comment says what the name says: %q", where, strings.TrimSpace(text))
			}
			return
		}
	}
	if exported && !s.test && s.pkg != "main" {
		r.fault("%s: exported and not documented", where)
	}
}

// repeats tells whether nothing is left of a comment but words of the names and empty words.
// What is quoted is news: Delimiter is "/" or "".
func repeats(text string, names []string) bool {
	if strings.Contains(text, `"`) {
		return false
	}
	known := slices.Clone(empty)
	for _, name := range names {
		for _, w := range words(name) {
			known = append(known, stem(w))
		}
	}
	return !slices.ContainsFunc(words(text), func(w string) bool {
		return !slices.Contains(known, w) && !slices.Contains(known, stem(w))
	})
}

// words splits at all but letters and digits, and at an upper-case letter behind a lower-case
// one or before it: ReadAt, HTTPServer.
func words(text string) []string {
	var b strings.Builder
	runes := []rune(text)
	for i, c := range runes {
		lower := func(k int) bool { return k >= 0 && k < len(runes) && unicode.IsLower(runes[k]) }
		switch {
		case !unicode.IsLetter(c) && !unicode.IsDigit(c):
			c = ' '
		case unicode.IsUpper(c) && (lower(i-1) || lower(i+1)):
			b.WriteRune(' ')
		}
		b.WriteRune(unicode.ToLower(c))
	}
	return strings.Fields(b.String())
}

// stem takes the plural's and the verb's endings off, as far as names and their comments
// differ by them: closes, closing and closed are close.
func stem(w string) string {
	for _, end := range []string{"ing", "ed", "es", "s"} {
		if short, ok := strings.CutSuffix(w, end); ok && len(short) >= 3 {
			w = short
			break
		}
	}
	if n := len(w); n > 3 && w[n-1] == w[n-2] && !strings.ContainsRune("aeiousl", rune(w[n-1])) {
		w = w[:n-1] // stopping
	}
	return strings.TrimSuffix(w, "e")
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
