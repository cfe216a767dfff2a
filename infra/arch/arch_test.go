// Package arch holds the project to its layout: which package may know which,
// and how files and tests are kept.
package arch

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/opsplane/opsplane/"

// root is the repository.
var root = filepath.Join("..", "..")

// domain are the packages that know no AWS, no SQL, no Kubernetes and serve no
// HTTP. What they stand on may not either.
var domain = []string{
	"operation", "event", "alert", "fleet", "workload", "admission", "control", "registry", "agentapi", "relay", "sweep",
	"planrun", "retention", "verify", "export", "record", "protocol", "id", "ledger", "queue", "bus", "react",
}

// statusOnly are domain packages that may use net/http for the names of methods
// and status codes, which are part of what a call is recorded as.
var statusOnly = []string{"shared/control", "shared/react", "shared/registry"}

// layer tells how high a package is: arrows point down. 0 is the domain, 1 the
// adapters (engines of the seams, HTTP), 2 the programs.
func layer(path string) int {
	parts := strings.Split(path, "/")
	switch {
	case path == "infra/docs/runbooks": // text alone, which the API serves
		return 0
	case parts[0] != "shared":
		return 2
	case parts[1] == "cloud" || parts[1] == "worker": // what the functions' mains share
		return 2
	case parts[1] == "httpapi" || len(parts) == 2 && (parts[1] == "client" || parts[1] == "gateway"):
		return 1
	case len(parts) > 2 && slices.Contains([]string{"ledger", "queue", "bus"}, parts[1]):
		return 1
	}
	return 0
}

// pkg is what go list tells of a package.
type pkg struct {
	ImportPath string
	Name       string
	Dir        string
	Imports    []string
	Deps       []string
	GoFiles    []string
}

// path is the package's path in the repository.
func (p pkg) path() string { return strings.TrimPrefix(p.ImportPath, module) }

// list asks go list.
func list(t *testing.T, args ...string) map[string]pkg {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Name,Dir,Imports,Deps,GoFiles"}, args...)...)
	cmd.Dir = root
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	pkgs := map[string]pkg{}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		pkgs[p.ImportPath] = p
	}
	if len(pkgs) == 0 {
		t.Fatal("go list found no package")
	}
	return pkgs
}

// within tells whether the import is one of the packages or below one of them.
func within(imp string, packages ...string) bool {
	return slices.ContainsFunc(packages, func(p string) bool {
		p = strings.TrimSuffix(p, "/")
		return imp == p || strings.HasPrefix(imp, p+"/")
	})
}

// foreign is what the domain must not stand on, directly or through others.
var foreign = []string{
	"github.com/aws", "modernc.org/sqlite", "maragu.dev/goqite", "github.com/mattn/go-sqlite3", "k8s.io", "sigs.k8s.io",
	"github.com/danielgtaylor/huma", "github.com/NVIDIA",
}

func TestDomainStandsOnNothingForeign(t *testing.T) {
	t.Parallel()
	pkgs := list(t, "./...")
	for _, name := range domain {
		p, ok := pkgs[module+"shared/"+name]
		if !ok {
			continue // not made yet
		}
		for _, d := range p.Deps {
			if within(d, foreign...) || d == "database/sql" { // its driver's interfaces are no database
				t.Errorf("%s stands on %s", p.path(), d)
			}
			if strings.HasPrefix(d, module) && layer(strings.TrimPrefix(d, module)) > 0 {
				t.Errorf("%s stands on %s, which is above it", p.path(), d)
			}
		}
		if !slices.Contains(p.Imports, "net/http") {
			continue
		}
		if !slices.Contains(statusOnly, p.path()) {
			t.Errorf("%s imports net/http", p.path())
			continue
		}
		for _, f := range p.GoFiles {
			for _, used := range httpNames(t, filepath.Join(p.Dir, f)) {
				if !strings.HasPrefix(used, "Status") && !strings.HasPrefix(used, "Method") {
					t.Errorf("%s/%s uses http.%s: it may name methods and status codes, no more", p.path(), f, used)
				}
			}
		}
	}
}

// httpNames are the names of net/http that a file uses.
func httpNames(t *testing.T, file string) []string {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	ast.Inspect(f, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := s.X.(*ast.Ident); ok && x.Name == "http" {
				out = append(out, s.Sel.Name)
			}
		}
		return true
	})
	return out
}

// TestArrowsPointOneWay: programs stand on adapters, adapters on the domain, and
// no adapter on another.
func TestArrowsPointOneWay(t *testing.T) {
	t.Parallel()
	for _, p := range list(t, "./...") {
		for _, imp := range p.Imports {
			if !strings.HasPrefix(imp, module) {
				continue
			}
			from, to := p.path(), strings.TrimPrefix(imp, module)
			if layer(to) > layer(from) {
				t.Errorf("%s imports %s, which is above it", from, to)
			}
			if layer(from) == 1 && layer(to) == 1 && !within(to, from) && !suite(from) {
				t.Errorf("adapter %s imports adapter %s", from, to)
			}
			if within(from, "agent") && within(to, "functions", "infra") || within(from, "functions") && within(to, "agent", "infra") {
				t.Errorf("program %s imports %s", from, to)
			}
		}
	}
}

// suite tells whether the package is a conformance suite.
func suite(path string) bool { return strings.HasSuffix(path, "test") }

// TestProgramsCarryOnlyTheirOwn: what a program must not be compiled with.
func TestProgramsCarryOnlyTheirOwn(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern string
		without []string
		why     string
	}{
		{"./infra/local", []string{"k8s.io", "github.com/aws"}, "the one-machine engine needs neither a cluster nor a cloud"},
		{"./infra/local/opsplane", []string{"k8s.io"}, "the build of make up stays small"},
		{"./agent", []string{module + "shared/ledger/", "github.com/aws/aws-sdk-go-v2/service/dynamodb"}, "an agent never reaches the ledger"},
		{"./agent/...", []string{module + "shared/ledger/sqlite", module + "shared/ledger/dynamo", module + "shared/httpapi", "github.com/aws/aws-sdk-go-v2/service/dynamodb"},
			"an agent never reaches the ledger"},
		{"./functions/...", []string{"k8s.io", "modernc.org/sqlite", "database/sql"}, "a function talks to AWS alone"},
		{"./functions/...", []string{"github.com/prometheus"}, "nobody scrapes a function"},
	} {
		dir := filepath.Join(root, strings.TrimSuffix(c.pattern, "/..."))
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			continue // not made yet
		}
		for _, p := range list(t, c.pattern) {
			for _, d := range p.Deps {
				if !within(d, c.without...) || d == module+"shared/ledger" || d == "database/sql/driver" { // interfaces alone, of ulid
					continue
				}
				t.Errorf("%s is compiled with %s: %s", p.path(), d, c.why)
			}
		}
	}
}

func TestPackageNames(t *testing.T) {
	t.Parallel()
	for _, p := range list(t, "./...") {
		for _, part := range append(strings.Split(p.path(), "/"), p.Name) {
			if slices.Contains([]string{"common", "util", "utils", "type", "types", "helper", "helpers", "misc", "base", "lib"}, part) {
				t.Errorf("%s: %q says nothing about what is in it", p.path(), part)
			}
			if part != strings.ToLower(part) {
				t.Errorf("%s: %q is not lower case", p.path(), part)
			}
		}
	}
}

const (
	maxLines     = 400
	maxMainLines = 80
)

// TestFileSizes: a file past the limit wants splitting. Tests and conformance
// suites may be longer.
func TestFileSizes(t *testing.T) {
	t.Parallel()
	for _, file := range goFiles(t) {
		b, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		lines := bytes.Count(b, []byte("\n"))
		dir, name := filepath.ToSlash(filepath.Dir(file)), filepath.Base(file)
		switch {
		case strings.HasSuffix(name, "_test.go") || suite(dir) || generated(b):
		case lines > maxLines:
			t.Errorf("%s has %d lines, the limit is %d: split it", file, lines, maxLines)
		}
		if within(dir, "functions") && name == "main.go" && lines > maxMainLines {
			t.Errorf("%s has %d lines, the limit of a function's main is %d", file, lines, maxMainLines)
		}
	}
}

func generated(b []byte) bool {
	head, _, _ := bytes.Cut(b, []byte("\npackage "))
	return bytes.Contains(head, []byte("Code generated ")) && bytes.Contains(head, []byte("DO NOT EDIT."))
}

// TestNoTestIsSkipped: what cannot run in CI is a failure there, not a skip.
// Tests named ...Child are run by others, in processes of their own, and a
// conformance suite skips what the seam leaves open.
func TestNoTestIsSkipped(t *testing.T) {
	t.Parallel()
	for _, file := range goFiles(t) {
		if !strings.HasSuffix(file, "_test.go") {
			continue
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, filepath.Join(root, file), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if fn, ok := n.(*ast.FuncDecl); ok && strings.HasSuffix(fn.Name.Name, "Child") {
				return false
			}
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			s, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || !slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, s.Sel.Name) {
				return true
			}
			if x, ok := s.X.(*ast.Ident); ok && slices.Contains([]string{"t", "b", "f", "tb", "rt"}, x.Name) {
				t.Errorf("%s: %s.%s", fset.Position(call.Pos()), x.Name, s.Sel.Name)
			}
			return true
		})
	}
}

// goFiles are the repository's Go files, but for other modules within it.
func goFiles(t *testing.T) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			name := d.Name()
			if rel != "." && (strings.HasPrefix(name, ".") || name == "testdata" || name == "vendor" || name == "node_modules" || name == "data" || name == "bin") {
				return filepath.SkipDir
			}
			if _, err := os.Stat(filepath.Join(path, "go.mod")); rel != "." && err == nil {
				return filepath.SkipDir
			}
			return nil
		}
		if strings.HasSuffix(rel, ".go") {
			out = append(out, filepath.ToSlash(rel))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(out) == 0 {
		t.Fatal("no Go file found")
	}
	return out
}
