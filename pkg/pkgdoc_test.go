package pkg_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// Every package says what it is.
func TestPackagesAreDocumented(t *testing.T) {
	t.Parallel()
	type pkg struct{ name, doc string }
	found := map[string]pkg{} // by folder
	for _, root := range []string{".", "../migrations", "../services"} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && d.Name() == "testdata":
				return fs.SkipDir
			case !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
				return nil
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.PackageClauseOnly|parser.ParseComments)
			if err != nil {
				return err
			}
			at := found[filepath.Dir(path)]
			at.name = file.Name.Name
			if file.Doc != nil && !ast.IsGenerated(file) {
				at.doc += file.Doc.Text()
			}
			found[filepath.Dir(path)] = at
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(found) < 10 {
		t.Fatalf("found only %d packages", len(found))
	}
	for dir, p := range found {
		want := "Package " + p.name + " "
		if p.name == "main" {
			want = "Command " + filepath.Base(dir) + " "
		}
		if !strings.HasPrefix(p.doc, want) {
			t.Errorf("%s: the package comment must begin with %q, not %.40q", dir, want, p.doc)
		}
	}
}
