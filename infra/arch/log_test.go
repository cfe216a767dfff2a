package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// logCalls are the functions and methods of log/slog that take attributes.
var logCalls = []string{"Debug", "Info", "Warn", "Error", "DebugContext", "InfoContext", "WarnContext", "ErrorContext", "Log", "LogAttrs", "With",
	"Any", "String"}

// TestErrorsAreLoggedByOneName: whoever looks for errors in the logs asks for
// "err", and misses none that goes by another name.
func TestErrorsAreLoggedByOneName(t *testing.T) {
	t.Parallel()
	named := 0
	for _, p := range list(t, "./...") {
		for _, name := range p.GoFiles {
			fset := token.NewFileSet()
			f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(f, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				sel, ok := call.Fun.(*ast.SelectorExpr)
				if !ok || !slices.Contains(logCalls, sel.Sel.Name) {
					return true
				}
				for _, arg := range call.Args {
					lit, ok := arg.(*ast.BasicLit)
					if !ok || lit.Kind != token.STRING {
						continue
					}
					switch s, _ := strconv.Unquote(lit.Value); strings.ToLower(s) {
					case "err":
						named++
					case "error":
						t.Errorf("%s: an error is logged as %q: name it \"err\"", fset.Position(lit.Pos()), s)
					}
				}
				return true
			})
		}
	}
	if named == 0 {
		t.Error("no log call names an error: the test looks past them")
	}
}
