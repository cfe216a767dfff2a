package dynamo

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/opsplane/opsplane/shared/ledger"
)

// page is the documentation of the table.
const page = "../../../infra/docs/ledger.md"

func readPage(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// keyFunctions are the functions of package record that make keys and partitions.
func keyFunctions(t *testing.T) map[string]bool {
	t.Helper()
	files, err := filepath.Glob("../../record/*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files of package record: %v", err)
	}
	makes := regexp.MustCompile(`^([A-Za-z]+(Key|PK)|Inventory(List|Scope|Name))$`)
	text := map[string]bool{"seqKey": true, "timeKey": true} // parts of keys
	out := map[string]bool{}
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && makes.MatchString(fn.Name.Name) && !text[fn.Name.Name] && !strings.HasSuffix(file, "_test.go") {
				out[fn.Name.Name] = true
			}
		}
	}
	return out
}

// TestPageNamesEveryKey: the access patterns name each kind of key, and no kind
// that is gone.
func TestPageNamesEveryKey(t *testing.T) {
	t.Parallel()
	text := readPage(t)
	keys := keyFunctions(t)
	if len(keys) < 20 {
		t.Fatalf("only %d functions found", len(keys))
	}
	for name := range keys {
		if !strings.Contains(text, "`"+name+"`") {
			t.Errorf("%s does not say who asks for %s", page, name)
		}
	}
	for _, m := range regexp.MustCompile("`([A-Za-z]+(?:Key|PK))`").FindAllStringSubmatch(text, -1) {
		if !keys[m[1]] {
			t.Errorf("%s names %s, which package record does not have", page, m[1])
		}
	}
}

// TestPageHasLimits: the limits of the page are those of the code.
func TestPageHasLimits(t *testing.T) {
	t.Parallel()
	text := readPage(t)
	for _, want := range []string{
		fmt.Sprintf("`MaxWrites` %d |", ledger.MaxWrites),
		fmt.Sprintf("`MaxItemBytes` %d KB |", ledger.MaxItemBytes>>10),
		fmt.Sprintf("`MaxCommitBytes` %d MB |", ledger.MaxCommitBytes>>20),
		fmt.Sprintf("`MaxKeyBytes` %d,%03d bytes |", ledger.MaxKeyBytes/1000, ledger.MaxKeyBytes%1000),
		fmt.Sprintf("`MaxIndexBytes` %d,%03d bytes |", ledger.MaxIndexBytes/1000, ledger.MaxIndexBytes%1000),
		fmt.Sprintf("`MaxPage` %d,%03d, and %d MB |", ledger.MaxPage/1000, ledger.MaxPage%1000, maxPageBytes>>20),
		fmt.Sprintf("from %d bytes on", packFrom),
		fmt.Sprintf("| %d h |", int(streamKept.Hours())),
		fmt.Sprintf("up to %d seconds", int(defaultPauses.budget.Seconds())),
		fmt.Sprintf("stops after %d seconds", int((defaultPauses.budget + defaultPauses.attempt).Seconds())),
		fmt.Sprintf("over %d parts", DefaultShards),
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%s does not say %q", page, want)
		}
	}
	for _, in := range Schema("t").AttributeDefinitions {
		if !strings.Contains(text, "`"+*in.AttributeName+"`") {
			t.Errorf("%s does not name the attribute %s", page, *in.AttributeName)
		}
	}
}
