package alert

import (
	"strings"
	"testing"

	"cel.dev/cel-go/cel"
)

// TestDearestPart: what costs too much is told with its place: that of the smallest part
// that alone does - of nested walks the innermost but one - and else of the whole. "^"
// stands in front of it.
func TestDearestPart(t *testing.T) {
	t.Parallel()
	walk := func(list, variable, inner string) string {
		return "event.detail." + list + ".all^(" + variable + ", " + inner + ")"
	}
	plain := func(s string) string { return strings.ReplaceAll(s, "^", "") }
	three := plain("event.detail.a.all(x, ") + walk("b", "y", plain(walk("c", "z", "x != y && y != z"))) + ")"
	half := plain(walk("a", "x", "x.matches('[a-z]$') && x != 'p'"))
	for name, marked := range map[string]string{
		"nested walks":         three,
		"behind what is cheap": "event.subject.name == 'a' && event.detail.a.exists(x, x == 1) && " + three,
		"on its second line":   "event.subject.name == 'a'\n  && " + three,
		"in a choice":          "event.severity == 'error' ? " + three + " : true",
		"both together":        "(" + half + " || " + half + ") ^&& (" + half + " || " + half + ")",
	} {
		f := &Faults{}
		if p := compile(f, "/when", plain(marked), cel.BoolType, false); p != nil {
			f.tooCostly("/when", p.dearest, p.estimate)
		}
		before, _, _ := strings.Cut(marked, "^")
		lines := strings.Split(before, "\n")
		if x := (*f)[0]; len(*f) != 1 || x.Code != CodeCost || x.Line != len(lines) || x.Column != len(lines[len(lines)-1])+1 {
			t.Errorf("%s: %+v, want line %d, column %d", name, *f, len(lines), len(lines[len(lines)-1])+1)
		}
	}
}
