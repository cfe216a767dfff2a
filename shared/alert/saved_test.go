package alert

import (
	"errors"
	"testing"
)

// What a rule says without effect is refused when it is saved, with its place.
func TestRulesThatSayTooMuch(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ text, pointer string }{
		{"summary: '{nokey} is hot'\n", "/summary"},
		{"summary: '{g}, {subject}: {\"a\"}'\n", ""},
		{"summary: '{detail.xid} of {detail.node}, {g}'\n", ""},
		{"summary: '{detail.a}{detail.b}{detail.c}{detail.d}{detail.e}{detail.f}{detail.g}{detail.h}{detail.a}'\n", ""},
		{"summary: '{detail.a}{detail.b}{detail.c}{detail.d}{detail.e}{detail.f}{detail.g}{detail.h}{detail.i}'\n", "/summary"},
		{"runbook: javascript:alert(1)\n", "/runbook"},
		{"runbook: books/hot\n", "/runbook"},
		{"runbook: //books.example/hot\n", "/runbook"},
		{"runbook: https://books.example/hot\n", ""},
		{"runbook: /docs/runbooks/fatal-xid.md\n", ""},
		{"window: 5m\n", "/window"},
		{"window: 5m\ncount: 1\n", ""},
		{"inhibited_by: [{rule: nobody}]\n", "/inhibited_by/0/rule"},
		{"inhibited_by: [{rule: other}]\n", ""},
	} {
		r := rule(t, "name: hot\non: [x.a]\ngroup_by: {g: event.subject.name}\n"+tt.text).Rule
		err := r.CheckSaved([]string{"other"})
		f, _ := errors.AsType[Faults](err)
		if tt.pointer == "" && err != nil || tt.pointer != "" && (len(f) != 1 || f[0].Pointer != tt.pointer) {
			t.Errorf("%q: %v", tt.text, err)
		}
	}
	var r Rule
	f, _ := errors.AsType[Faults](Decode([]byte("name: hot\non: [x.a]\ncount: 0\n"), &r))
	if len(f) != 1 || f[0].Pointer != "/count" {
		t.Errorf("count 0: %v", f)
	}
}

// An override changes something.
func TestOverridesThatChangeNothing(t *testing.T) {
	t.Parallel()
	plain, absent := rule(t, "name: a\non: [x.a]\n").Rule, rule(t, "name: b\non: [x.a]\nabsence: {expect: {on: [x.b]}, within: 5m}\n").Rule
	for _, tt := range []struct {
		o       Override
		r       *Rule
		pointer string // "-": it is taken
	}{
		{Override{}, &plain, ""}, {Override{Within: Duration(MinSpan)}, &plain, "/within"}, {Override{Within: Duration(MinSpan)}, &absent, "-"}, {Override{Severity: "error"}, &plain, "-"},
	} {
		err := tt.o.Check(tt.r)
		f, _ := errors.AsType[Faults](err)
		if tt.pointer == "-" && err != nil || tt.pointer != "-" && (len(f) != 1 || f[0].Pointer != tt.pointer) {
			t.Errorf("%+v of %s: %v", tt.o, tt.r.Name, err)
		}
	}
}

// A rule that an earlier version took with a higher estimate goes on; it is not
// saved again so.
func TestRulesFromBeforeTheLimit(t *testing.T) {
	t.Parallel()
	const nested = "when: event.detail.a.all(x, string(x).matches('^(node|gpu|disk|fan|link|port)-[0-9]+-(north|south|east|west|upper|lower)-[0-9]+$'))\n"
	for _, tt := range []struct {
		text    string
		pointer string // "-": it is taken
	}{
		{"on: [x.a]\n" + nested, "/when"},
		{"on: [x.a]\nresolve_when:\n  on: [x.b]\n  " + nested, "/resolve_when/when"},
		{"on: [x.a]\nwhen: event.detail.a.all(x, x != 'p')\n", "-"},
	} {
		c := rule(t, "name: hot\n"+tt.text)
		if e := c.Estimate(); tt.pointer != "-" && (e <= MaxCost || e > keptCost) {
			t.Fatalf("%s is estimated at %d", tt.text, e)
		}
		f, _ := errors.AsType[Faults](c.CheckCost())
		if tt.pointer == "-" && f != nil || tt.pointer != "-" && (len(f) != 1 || f[0].Pointer != tt.pointer || f[0].Code != CodeCost) {
			t.Errorf("%s: %v", tt.text, f)
		}
	}
}
