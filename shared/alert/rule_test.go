package alert

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const goodRule = `
name: node-not-ready
description: |
  A node is not ready.
  It has been so for a while.
severity: error
labels: {team: fleet}
on: [node.not_ready, "device.*"]
when: event.severity != "info" && event.detail.?reason.orValue("") != "maintenance"
group_by: {node: event.subject.name}
count: 3
window: 10m
distinct: event.actor.id
for: 90s
resolve_when: {on: [node.ready]}
keep_firing_for: 1h30m
flap: {changes: 4, window: 7d}
inhibited_by:
  - rule: cluster-down
    equal: [node]
on_change: keep
`

// A rule reads the same from YAML and from JSON, and is written as it was read.
func TestRuleInYAMLAndJSON(t *testing.T) {
	t.Parallel()
	r, err := ParseRule([]byte(goodRule))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Compile(*r, "rul_x", 1); err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	again, err := ParseRule(b)
	if err != nil {
		t.Fatalf("%v: %s", err, b)
	}
	if d := cmp.Diff(r, again); d != "" {
		t.Errorf("read back (-want +got):\n%s", d)
	}
	if r.Window.D() != 10*time.Minute || r.Flap.Window.D() != 7*24*time.Hour || r.For.D() != 90*time.Second || !strings.HasSuffix(r.Description, "while.\n") {
		t.Errorf("read %+v", r)
	}
}

// faults compiles what text says and tells what is wrong with it.
func faults(t *testing.T, text string) Faults {
	t.Helper()
	r, err := ParseRule([]byte(text))
	if err == nil {
		_, err = Compile(*r, "rul_x", 1)
	}
	if err == nil {
		return nil
	}
	var f Faults
	if !errors.As(err, &f) || !errors.Is(err, ErrInvalid) {
		t.Fatalf("%v is no Faults", err)
	}
	return f
}

// TestBadRules: what is wrong is told with its place and its kind.
func TestBadRules(t *testing.T) {
	t.Parallel()
	with := func(lines ...string) string {
		return "name: x\non: [node.left]\n" + strings.Join(lines, "\n") + "\n"
	}
	when := func(expr string) string { return with("when: '" + strings.ReplaceAll(expr, "'", "''") + "'") }
	bomb := "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\n"
	for _, c := range []struct {
		name, text string
		want       string // pointer line:column code
		says       string
	}{
		{"no YAML", "name: [x\non: 1", " 2:1 syntax", ""},
		{"no JSON", `{"name": "x", "on": ["node.left"`, " 1:33 syntax", "EOF"},
		{"unknown field", with("windw: 5m"), "/windw 3:1 unknown_field", "not a field"},
		{"half of a surrogate pair in JSON", "{\"name\": \"x\",\n \"when\": \"event.id == 'k-\\ud800'\"}", "/when 2:10 format", "surrogate"},
		{"unknown field in JSON", "{\"name\": \"x\",\n \"flap\": {\"change\": 4}}", "/flap/change 2:11 unknown_field", ""},
		{"twice", with("count: 1", "count: 2"), "", ""},
		{"aliases", bomb, "/a 1:4 syntax", "aliases"},
		{"deep", "name: " + strings.Repeat("[", 20) + strings.Repeat("]", 20), "/name" + strings.Repeat("/0", 12) + " 1:19 syntax", "deeply"},
		{"deep without end", strings.Repeat("[", 32<<10), " 1:25 syntax", "deeply"},
		{"deep lists", strings.Repeat("- ", 16<<10), " 1:49 syntax", "deeply"},
		{"another type", with("count: many"), "/count 3:8 type", "whole number"},
		{"a list", with("group_by: [event.subject.id]"), "/group_by 3:11 type", "map"},
		{"too long", with("description: " + strings.Repeat("x", MaxRuleBytes)), " 0:0 range", "32768"},
		{"bad name", "name: X y\non: [node.left]", "/name 0:0 format", ""},
		{"no on", "name: x\n", "/on 0:0 required", ""},
		{"on alerts", "name: x\non: [alert.*]", "/on/0 0:0 range", "set itself off"},
		{"no type", "name: x\non: [Node]", "/on/0 0:0 format", "node.left"},
		{"window 0", with("count: 2"), "/window 0:0 required", ""},
		{"window 0s", with("count: 2", "window: 0s"), "/window 0:0 required", ""},
		{"window a year", with("count: 2", "window: 365d"), "/window 0:0 range", "1s to 31d"},
		{"window of nothing", with("count: 2", "window: 5ms"), "/window 0:0 range", ""},
		{"negative", with("for: -5m"), "/for 0:0 range", ""},
		{"no duration", with("for: soon"), "/for 3:6 format", "5m"},
		{"a number", with("for: 5"), "/for 3:6 type", "5m"},
		{"count", with("count: 100001", "window: 1m"), "/count 0:0 range", "100000"},
		{"distinct count", with("count: 1001", "window: 1m", "distinct: event.id"), "/count 0:0 range", "1000"},
		{"flap", with("flap: {changes: 1, window: 1m}"), "/flap/changes 0:0 range", ""},
		{"inhibits itself", with("inhibited_by: [{rule: x}]"), "/inhibited_by/0/rule 0:0 cycle", ""},
		{"inhibition by no key", with("inhibited_by: [{rule: y, equal: [node]}]"), "/inhibited_by/0/equal/0 0:0 format", ""},
		{"absence and count", with("count: 2", "window: 1m", "absence: {expect: {on: [a.b]}, within: 1m}"), "/absence 0:0 conflict", ""},
		{"CEL syntax", when(`event.type ==`), "/when 1:14 syntax", ""},
		{"CEL on its second line", with("when: |-", "  event.type == \"x\"", "  && event.tpye == \"y\""), "/when 2:9 type", "undefined field"},
		{"CEL type", when(`event.type == 1`), "/when 1:12 type", "no matching overload"},
		{"not a condition", when(`event.type`), "/when 1:1 type", "bool"},
		{"no such field", when(`operation.colour == "red"`), "/when 1:10 type", "undefined field 'colour'"},
		{"no such variable", when(`node.name == "a"`), "/when 1:1 type", "undeclared reference"},
		{"not a string", with("group_by: {n: event.timestamp}"), "/group_by/n 1:1 type", "string"},
		{"regex of the event's own", when(`event.subject.name.matches(event.id)`), "/when 1:27 cost", "written out"},
		{"no number", when(`int("x") == 1`), "/when 1:4 type", "conversion"},
		{"too dear", when(`event.detail.a.all(x, event.detail.b.all(y, event.detail.c.all(z, x != y && y != z)))`), "/when 1:41 cost", "may cost"},
		{"too long an expression", when(strings.Repeat("true || ", 600) + "true"), "/when 0:0 range", "4096"},
		{"too deep an expression", when(strings.Repeat("(", 200) + "true" + strings.Repeat(")", 200)), "/when ", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := faults(t, c.text)
			if len(f) == 0 {
				t.Fatal("it was taken")
			}
			got := fmt.Sprintf("%s %d:%d %s", f[0].Pointer, f[0].Line, f[0].Column, f[0].Code)
			if !strings.HasPrefix(got, c.want) || !strings.Contains(f[0].Detail, c.says) {
				t.Errorf("told %s %q, want %s %q", got, f[0].Detail, c.want, c.says)
			}
		})
	}
}

// A circle of inhibitions is found from each of its rules, and from no other.
func TestCircleOfInhibitions(t *testing.T) {
	t.Parallel()
	r := func(name string, by ...string) *Rule {
		x := &Rule{Name: name}
		for _, b := range by {
			x.InhibitedBy = append(x.InhibitedBy, Inhibitor{Rule: b})
		}
		return x
	}
	rules := []*Rule{r("a", "b"), r("b", "c", "missing"), r("c", "a"), r("d", "a"), r("e", "d", "f"), r("f")}
	for name, want := range map[string]bool{"a": true, "b": true, "c": true, "d": false, "e": false, "f": false} {
		if err := Cycle(rules, name); (err != nil) != want {
			t.Errorf("rule %s: %v", name, err)
		}
	}
}

// A condition that asks for what an event does not have does not hold, and is
// counted; one that costs too much when it runs is ended.
func TestConditionsThatFail(t *testing.T) {
	t.Parallel()
	c := rule(t, "name: x\non: [x.a]\nwhen: event.detail.n > 3")
	dear := rule(t, "name: y\non: [x.a]\nwhen: event.detail.list.all(a, a >= 0 && a < 1000000)")
	s := NewStream(testStream, NewSet([]*Compiled{c, dear}, nil), Position{}, nil)
	long := make([]int, 12_000)
	for i := range long {
		long[i] = i
	}
	got := playOn(t, s, time.Hour, fact(0, "x.a", "a"), fact(0, "x.a", "b", "n", "text"), fact(0, "x.a", "c", "n", 4), fact(0, "x.a", "d", "list", long))
	if d := cmp.Diff([]string{"0s firing x{} condition_holds", "5m0s resolved x{} quiet"}, got); d != "" {
		t.Errorf("told (-want +got):\n%s", d)
	}
	// Two of x, all four of y, and x of the last.
	if s.Meter.Errors != 7 || s.Meter.Cost < RunCost || s.Meter.Cost > 2*RunCost {
		t.Errorf("%d errors, cost %d", s.Meter.Errors, s.Meter.Cost)
	}
}

// Fields that has() asks for are there or not, and an operation's are empty where
// there is none.
func TestVariables(t *testing.T) {
	t.Parallel()
	for expr, want := range map[string]bool{
		`event.operation_id == "" && operation.type == "" && operation.generation == 0 && operation.resources == []`: true,
		`has(event.operation_id) || has(operation.phase) || has(event.detail.no)`:                                    false,
		`has(event.subject) && has(event.detail.n) && event.detail.n == 79`:                                          true,
		`event.detail.n in [48, 79] && string(event.detail.n) == "79"`:                                               true,
		`event.timestamp < event.received_at + duration("1s")`:                                                       true,
		`event.received_at.getHours() == 12`:                                                                         true,
		`event.detail[?"no"].hasValue()`:                                                                             false,
		`operation.actor.id == "" && operation.reason == "" && size(operation.payload) == 0`:                         true,
		`event.subject.name.matches("^n[0-9]+$")`:                                                                    true,
	} {
		s := NewStream(testStream, NewSet([]*Compiled{rule(t, "name: x\non: [x.a]\nwhen: '"+strings.ReplaceAll(expr, "'", "''")+"'")}, nil), Position{}, nil)
		got := len(playOn(t, s, 0, fact(0, "x.a", "n1", "n", 79))) > 0
		if got != want || s.Meter.Errors > 0 {
			t.Errorf("%s: %v with %d errors, want %v", expr, got, s.Meter.Errors, want)
		}
	}
}

// The operation's own part is read where a rule asks for it, and only there.
func TestNeedsSpec(t *testing.T) {
	t.Parallel()
	a := rule(t, "name: a\non: [operation.failed]\nwhen: operation.type == 'node.drain' && operation.phase != ''")
	b := rule(t, "name: b\non: [operation.*]\ngroup_by: {by: operation.actor.id}")
	c := rule(t, "name: c\non: [operation.timed_out]\nwhen: operation.deadline < event.timestamp")
	if a.NeedsSpec() || !b.NeedsSpec() || !c.NeedsSpec() {
		t.Errorf("needs the spec: %v %v %v, want only the last two", a.NeedsSpec(), b.NeedsSpec(), c.NeedsSpec())
	}
	set := NewSet([]*Compiled{a, c}, nil)
	if set.NeedsSpec("operation.failed") || !set.NeedsSpec("operation.timed_out") {
		t.Error("the index does not tell which types need it")
	}
}
