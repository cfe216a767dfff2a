package alert

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// patternForms are the ways to ask whether the subject's name matches.
var patternForms = map[string]string{
	"method":             "event.subject.name.matches(%s)",
	"function":           "matches(event.subject.name, %s)",
	"root's function":    ".matches(event.subject.name, %s)",
	"in a list's walk":   "[event.subject.name].exists(x, x.matches(%s))",
	"of what is no text": "matches(dyn(event.subject.name), %s)",
}

// TestPatternsMatch: what is small compiles, counted repetitions too, in both forms of
// matches and in a silence, and matches what it should.
func TestPatternsMatch(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ pattern, match, differ string }{
		{`^gpu-node-[0-9]{2}$`, "gpu-node-07", "gpu-node-7"},
		{`^\d{3}$`, "123", "12"},
		{`^a{0,1}$`, "a", "aa"},
		{`^[0-9]{1,}$`, "12345", "x"},
		{`^(a{2}){2,3}$`, "aaaaaa", "aaaaa"},
		{`^(?i:rack-[a-f]{1,3})$`, "RACK-ABC", "rack-abcd"},
		{`^(gpu|cpu)-n{0}[0-9]+$`, "cpu-12", "cpu-n12"},
		{`^a{400}$`, strings.Repeat("a", 400), strings.Repeat("a", 399)},
	} {
		for form, f := range patternForms {
			r := rule(t, "name: x\non: [x.a]\nwhen: |-\n  "+fmt.Sprintf(f, "r'"+c.pattern+"'")+"\n")
			for name, want := range map[string]int{c.match: 1, c.differ: 0} {
				if got := play(t, []*Compiled{r}, 0, fact(0, "x.a", name)); len(got) != want {
					t.Errorf("%s in the form %s and %q: told %q, want %d", c.pattern, form, name, got, want)
				}
			}
		}
		re, err := compileRegexp(c.pattern)
		if err != nil || !re.MatchString(c.match) || re.MatchString(c.differ) {
			t.Errorf("%s in a silence: %v, or it matches the wrong one of %q and %q", c.pattern, err, c.match, c.differ)
		}
	}
}

// TestPatternsThatAreTooLarge: a pattern whose program is too large is refused, with
// the limit and its place, in both forms and in each expression of a rule, and one that
// is none with the parser's reason.
func TestPatternsThatAreTooLarge(t *testing.T) {
	t.Parallel()
	fields := map[string]struct{ text, expr string }{
		"/when":                {"when: |-\n  %s\n", "%s"},
		"/group_by/g":          {"group_by:\n  g: |-\n    %s\n", "string(%s)"},
		"/distinct":            {"count: 2\nwindow: 1m\ndistinct: |-\n  %s\n", "string(%s)"},
		"/absence/expect/when": {"absence:\n  within: 1m\n  expect:\n    on: [x.b]\n    when: |-\n      %s\n", "%s"},
		"/while/begin/when":    {"for: 1m\nwhile:\n  begin:\n    on: [x.b]\n    when: |-\n      %s\n  end: {on: [x.c]}\n  each: event.id\n", "%s"},
		"/while/end/when":      {"for: 1m\nwhile:\n  begin: {on: [x.b]}\n  end:\n    on: [x.c]\n    when: |-\n      %s\n  each: event.id\n", "%s"},
		"/while/each":          {"for: 1m\nwhile:\n  begin: {on: [x.b]}\n  end: {on: [x.c]}\n  each: |-\n    %s\n", "string(%s)"},
		"/resolve_when/when":   {"resolve_when:\n  on: [x.b]\n  when: |-\n    %s\n", "%s"},
	}
	for _, c := range []struct{ pattern, code, says string }{
		{`(a{1,300}){1,3}`, CodeCost, "the limit is 500"},
		{`a{600}`, CodeCost, "the limit is 500"},
		{`((a{1,10}){1,10}){1,10}`, CodeCost, "the limit is 500"},
		{`([a-z]{1,1000}[0-9]{1,1000}){1,1}`, CodeCost, "the limit is 500"},
		{strings.Repeat("(.{1000}.{1000}.{1000})", 100), CodeCost, "about 600201 instructions"}, // which are never made
		{strings.Repeat("ab", 250), CodeCost, "the limit is 500"},
		{`((a{1,30}){1,30}){1,30}`, CodeType, "invalid repeat count"}, // RE2's own bound
		{`a{1001}`, CodeType, "invalid repeat count: {1001}: the limit is 1000"},
		{`(` + strings.Repeat("b", 300), CodeType, "missing closing ): (" + strings.Repeat("b", 63) + "…"},
		{`(`, CodeType, "missing closing"},
		{`(a`, CodeType, "missing closing"},
		{`a**`, CodeType, "invalid nested repetition operator"},
	} {
		for pointer, in := range fields {
			for form, f := range patternForms {
				expr := fmt.Sprintf(in.expr, fmt.Sprintf(f, "'"+c.pattern+"'"))
				want := Fault{Pointer: pointer, Line: 1, Column: 1 + strings.Index(in.expr, "%s") + strings.Index(f, "%s"), Code: c.code}
				got := faults(t, "name: x\non: [x.a]\n"+fmt.Sprintf(in.text, expr))
				if len(got) != 1 {
					t.Errorf("%.40s in %s in the form %s: told %v", c.pattern, pointer, form, got)
					continue
				}
				says := got[0].Detail
				if got[0].Detail = ""; got[0] != want || !strings.Contains(says, c.says) {
					t.Errorf("%.40s in %s in the form %s: told %+v %q, want %+v %q", c.pattern, pointer, form, got[0], says, want, c.says)
				}
			}
		}
		s := Silence{Matchers: []Match{{Field: "rule", Op: OpMatch, Value: c.pattern}}, StartsAt: t0, EndsAt: t0.Add(time.Hour), Reason: "work"}
		_, err := CompileSilence(s)
		f, _ := errors.AsType[Faults](err)
		if len(c.pattern) <= maxMatcherBytes && (len(f) != 1 || f[0].Pointer != "/matchers/0/value" || !strings.Contains(f[0].Detail, c.says)) {
			t.Errorf("%s in a silence: %v, want %q", c.pattern, err, c.says)
		}
	}
}

// TestPatternsOfTheEvent: a pattern that is not written out is refused in both forms,
// and so are many bad ones, of which the first are told.
func TestPatternsOfTheEvent(t *testing.T) {
	t.Parallel()
	for form, f := range patternForms {
		for _, pattern := range []string{"event.id", "'a' + 'b'", "string(1)", "dyn('(')", "(true ? 'a' : 'b')"} {
			got := faults(t, "name: x\non: [x.a]\nwhen: |-\n  "+fmt.Sprintf(f, pattern)+"\n")
			if len(got) != 1 || got[0].Code != CodeCost || got[0].Line != 1 || !strings.Contains(got[0].Detail, "written out") {
				t.Errorf("%s in the form %s: told %v", pattern, form, got)
			}
		}
	}
	many := strings.Repeat("event.id.matches('(') || ", 20) + "true"
	if got := faults(t, "name: x\non: [x.a]\nwhen: |-\n  "+many+"\n"); len(got) != maxFound || got[0].Column == got[1].Column {
		t.Errorf("told %v, want %d", got, maxFound)
	}
}

// TestPanicsOfCompilation: one is a fault of the expression.
func TestPanicsOfCompilation(t *testing.T) {
	t.Parallel()
	var f Faults
	func() {
		defer f.caught("/when")
		panic("regexp: unhandled case in compile")
	}()
	if len(f) != 1 || f[0].Pointer != "/when" || f[0].Code != CodeType || !strings.Contains(f[0].Detail, "unhandled case") {
		t.Errorf("told %v", f)
	}
}
