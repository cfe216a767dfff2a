package alert

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var docsFile = filepath.Join("..", "..", "infra", "docs", "alerts.md")

const docsMark = "do not edit below. -->\n"

// docs is the page as it was before any test wrote it.
var docs = sync.OnceValues(func() ([]byte, error) { return os.ReadFile(docsFile) })

func readDocs(t *testing.T) (text, generated string) {
	t.Helper()
	raw, err := docs()
	if err != nil {
		t.Fatal(err)
	}
	text, generated, ok := strings.Cut(string(raw), docsMark)
	if !ok {
		t.Fatalf("%s has no mark where the generated part begins", docsFile)
	}
	return text, generated
}

// TestDiagramOfRules compares the page of alerts with the variables of expressions
// and the shipped rules; OPSPLANE_WRITE=1 writes it.
func TestDiagramOfRules(t *testing.T) {
	t.Parallel()
	text, generated := readDocs(t)
	var b strings.Builder
	b.WriteString("\n## Variables\n\n| variable | type |\n| --- | --- |\n")
	var walk func(prefix, typ string)
	walk = func(prefix, typ string) {
		for _, name := range slices.Sorted(maps.Keys(fields[typ])) {
			f := fields[typ][name]
			if _, object := fields[f.typ.String()]; object {
				walk(prefix+"."+name, f.typ.String())
				continue
			}
			fmt.Fprintf(&b, "| `%s.%s` | %s |\n", prefix, name, f.typ)
		}
	}
	walk("event", eventType)
	walk("operation", operationType)
	b.WriteString("\nThose of `operation` are of the operation that the event belongs to, and empty without one. `phase`, `from` and `code` are of the transition, `reason` is why it was asked for. Of an event that belongs to an operation without being a transition of it (`node.cordoned`), `phase`, `from`, `code` and `generation` are empty.\n")
	b.WriteString("\n## Shipped rules\n\n| rule | severity | on | what it says |\n| --- | --- | --- | --- |\n")
	for _, s := range ShippedRules() {
		r := s.Rule
		fmt.Fprintf(&b, "| [`%s`](runbooks/%s.md) | %s | `%s` | %s |\n", r.Name, r.Name, r.Severity, strings.Join(r.On, "`, `"), r.Description)
	}
	if os.Getenv("OPSPLANE_WRITE") != "" {
		if err := os.WriteFile(docsFile, []byte(text+docsMark+b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if d := cmp.Diff(b.String(), generated); d != "" {
		t.Errorf("%s is not what the code says, run `make diagrams` (-code +page):\n%s", docsFile, d)
	}
}

// TestDocsNameEveryField: the page has a row for each field of a rule, and no other.
func TestDocsNameEveryField(t *testing.T) {
	t.Parallel()
	text, _ := readDocs(t)
	var want []string
	var walk func(prefix string, typ reflect.Type)
	walk = func(prefix string, typ reflect.Type) {
		for f := range typ.Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			inner := f.Type
			for inner.Kind() == reflect.Pointer || inner.Kind() == reflect.Slice {
				inner = inner.Elem()
			}
			if inner.Kind() == reflect.Struct {
				walk(prefix+name+".", inner)
				continue
			}
			want = append(want, prefix+name)
		}
	}
	walk("", reflect.TypeFor[Rule]())
	_, table, _ := strings.Cut(text, "\n| field | ")
	table, _, _ = strings.Cut(table, "\n\n")
	var got []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_.]+)` \\|").FindAllStringSubmatch(table, -1) {
		got = append(got, m[1])
	}
	slices.Sort(want)
	slices.Sort(got)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("fields (-code +page):\n%s", d)
	}
	var override []string
	for f := range reflect.TypeFor[Override]().Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		override = append(override, "`"+name+"`")
	}
	if want := "of " + strings.Join(override[:4], ", ") + ",\n" + strings.Join(override[4:], ", ") + ";"; !strings.Contains(text, want) {
		t.Errorf("of an override the page does not say %s", want)
	}
}

// TestDocsNameTheLimits: what the page says in numbers is what the code has.
func TestDocsNameTheLimits(t *testing.T) {
	t.Parallel()
	text, _ := readDocs(t)
	for _, want := range []string{
		fmt.Sprintf("at most %d KB", MaxRuleBytes>>10), fmt.Sprintf("At most %s rules", thousands(MaxRules)), fmt.Sprintf("required, %d bytes", MaxNameBytes),
		fmt.Sprintf("what it means | %d KB", MaxTextBytes>>10), fmt.Sprintf("begins with `/` | %d KB", MaxShortBytes>>10), fmt.Sprintf("%d, values of %d KB", MaxLabels, MaxShortBytes>>10),
		fmt.Sprintf("all; %d |", MaxClusters), fmt.Sprintf("required, %d |", MaxOn), fmt.Sprintf("all; %d KB", MaxExprBytes>>10), fmt.Sprintf("%d keys", MaxKeys),
		fmt.Sprintf("1; %s |", thousands(MaxCount)), fmt.Sprintf("at most %s |", thousands(MaxDistinct)), fmt.Sprintf("2 to %d", MaxChanges), fmt.Sprintf("not told | %d |", MaxInhibitors),
		fmt.Sprintf("from %d s to %d d", int(MinSpan.Seconds()), int(MaxSpan.Hours()/24)), fmt.Sprintf("longer of %d m", int(DefaultQuiet.Minutes())), fmt.Sprintf("at most %s of CEL's", thousands(MaxCost)),
		fmt.Sprintf("may cost %s", thousands(RunCost)), fmt.Sprintf("at most %d instructions", maxRegexProgram), fmt.Sprintf("no more than %d minutes before", int(Lateness.Minutes())),
		fmt.Sprintf("%s groups of a rule", thousands(DefaultGroups)), fmt.Sprintf("first %d and last %d events", keptEvidence, keptEvidence), fmt.Sprintf("last %d.", keptHistory-1),
		fmt.Sprintf("1 to %d matchers", MaxMatchers), fmt.Sprintf("at most %d d", int(MaxSilence.Hours()/24)), fmt.Sprintf("%s at a time", thousands(MaxSilences)),
		fmt.Sprintf("%d rules ship", len(ShippedRules())),
	} {
		if !strings.Contains(strings.ReplaceAll(text, "\n", " "), want) && !strings.Contains(strings.ReplaceAll(strings.ReplaceAll(text, "\n  ", " "), "\n", " "), want) {
			t.Errorf("the page does not say %q", want)
		}
	}
}

// TestTheRuleOfTheDocs is taken as it stands there.
func TestTheRuleOfTheDocs(t *testing.T) {
	t.Parallel()
	text, _ := readDocs(t)
	_, rule, _ := strings.Cut(text, "```yaml\n")
	rule, _, _ = strings.Cut(rule, "```")
	r, err := ParseRule([]byte(rule))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Compile(*r, "rul_1", 1); err != nil {
		t.Fatal(err)
	}
}

func thousands(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%d,%03d", n/1000, n%1000)
}
