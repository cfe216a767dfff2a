package operation

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestDiagram compares the page of states with the tables.
func TestDiagram(t *testing.T) {
	t.Parallel()
	golden(t, filepath.Join("..", "..", "infra", "docs", "states.md"), Diagram())
}

// TestDiagramIsWhole: every phase and every waiting code has its line.
func TestDiagramIsWhole(t *testing.T) {
	t.Parallel()
	for _, p := range Phases {
		if phaseTexts[p] == "" {
			t.Errorf("phase %s has no text", p)
		}
	}
	page := Diagram()
	for _, code := range constants(t, "Wait") {
		if !strings.Contains(page, "| "+code+" |") {
			t.Errorf("waiting code %s is not in the registry", code)
		}
	}
}

// constants returns the values of the package's string constants whose names
// begin so.
func constants(t *testing.T, prefix string) []string {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "operation.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	ast.Inspect(f, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok || len(v.Names) != 1 || len(v.Values) != 1 || !strings.HasPrefix(v.Names[0].Name, prefix) {
			return true
		}
		if lit, ok := v.Values[0].(*ast.BasicLit); ok {
			s, err := strconv.Unquote(lit.Value)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, s)
		}
		return true
	})
	if len(out) == 0 {
		t.Fatalf("no constants begin with %s", prefix)
	}
	return out
}
