package alert

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"cel.dev/cel-go/cel"

	"github.com/opsplane/opsplane/shared/operation"
)

// Compiled is a rule that is ready to judge.
type Compiled struct {
	Rule    Rule
	ID      string // rul_...
	Version int64  // grows at each change
	// Digest tells whether the rule's meaning changed: groups of another one
	// begin anew.
	Digest string

	former                             string // Digest as earlier versions had it, where that was another
	match, expect, begin, end, resolve clause
	keys                               []string // of GroupBy, sorted
	details                            []string // keys of the detail that the summary shows
	group                              []*program
	distinct, each                     *program
	clusters                           map[string]bool // nil: all
	rank                               int             // behind its inhibitors
}

// clause is a compiled Clause.
type clause struct {
	on   []string
	when *program
}

// Compile checks a rule whole and makes it ready. The error is Faults, and with it
// there is no rule.
func Compile(r Rule, ruleID string, version int64) (*Compiled, error) {
	return compileRule(r, ruleID, version, false)
}

// CompileMetered is Compile of a rule all of whose expressions count their cost.
func CompileMetered(r Rule, ruleID string, version int64) (*Compiled, error) {
	return compileRule(r, ruleID, version, true)
}

func compileRule(r Rule, ruleID string, version int64, metered bool) (*Compiled, error) {
	var f Faults
	if err := r.Validate(); err != nil {
		f = err.(Faults) //nolint:errorlint // Validate returns nothing else
	}
	if b, err := json.Marshal(r); err == nil && len(b) > MaxRuleBytes {
		f.add("", CodeRange, "has %d bytes, the limit is %d", len(b), MaxRuleBytes)
	}
	c := &Compiled{Rule: r, ID: ruleID, Version: version, Digest: Digest(&r)}
	if len(r.InhibitedBy) > 0 {
		c.former = digest(r, r.InhibitedBy)
	}
	cond := func(pointer string, cl Clause) clause {
		return clause{on: cl.On, when: compile(&f, pointer, cl.When, cel.BoolType, metered)}
	}
	c.match = cond("/when", Clause{On: r.On, When: r.When})
	c.keys, c.details = slices.Sorted(maps.Keys(r.GroupBy)), detailsOf(r.Summary)
	for _, k := range c.keys {
		p := compile(&f, "/group_by/"+operation.EscapePointer(k), r.GroupBy[k], cel.StringType, metered)
		if p == nil && r.GroupBy[k] == "" {
			f.add("/group_by/"+operation.EscapePointer(k), CodeRequired, "must be an expression that gives a string")
		}
		c.group = append(c.group, p)
	}
	c.distinct = compile(&f, "/distinct", r.Distinct, cel.StringType, metered)
	if a := r.Absence; a != nil {
		c.expect = cond("/absence/expect/when", a.Expect)
	}
	if w := r.While; w != nil {
		c.begin, c.end = cond("/while/begin/when", w.Begin), cond("/while/end/when", w.End)
		c.each = compile(&f, "/while/each", w.Each, cel.StringType, metered)
	}
	if w := r.ResolveWhen; w != nil {
		c.resolve = cond("/resolve_when/when", *w)
	}
	if len(r.Clusters) > 0 {
		c.clusters = map[string]bool{}
		for _, x := range r.Clusters {
			c.clusters[x] = true
		}
	}
	if err := f.orNil(); err != nil {
		return nil, err // a condition that did not compile would hold for everything
	}
	return c, nil
}

// Digest tells one meaning of a rule from another. What is only shown (texts,
// labels, severity), whether it is told (inhibitors) and the state of being enabled
// are no part of it.
func Digest(r *Rule) string { return digest(*r, nil) }

func digest(m Rule, inhibitors []Inhibitor) string {
	m.Description, m.Summary, m.Runbook, m.Severity, m.Labels, m.Enabled, m.OnChange, m.Clusters = "", "", "", "", nil, nil, "", nil
	m.InhibitedBy = inhibitors
	b, err := json.Marshal(m)
	if err != nil {
		panic(fmt.Sprintf("encode rule %s: %v", m.Name, err)) // strings and numbers
	}
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:8])
}

// Estimate is the most that judging one event by the rule is estimated to cost,
// in CEL's units.
func (c *Compiled) Estimate() uint64 {
	var n uint64
	c.programs(func(p *program) { n += p.estimate })
	return n
}

// NeedsSpec tells whether an expression asks for more of the operation than its
// events tell.
func (c *Compiled) NeedsSpec() bool {
	needs := false
	c.programs(func(p *program) { needs = needs || p.needsSpec })
	return needs
}

func (c *Compiled) programs(f func(*program)) {
	for _, p := range append([]*program{c.match.when, c.expect.when, c.begin.when, c.end.when, c.resolve.when, c.distinct, c.each}, c.group...) {
		if p != nil {
			f(p)
		}
	}
}

// Covers tells whether the rule looks at the stream.
func (c *Compiled) Covers(stream string) bool {
	return c.Rule.IsEnabled() && (c.clusters == nil || c.clusters[stream]) // the plane's stream is named as PlaneCluster
}

// severity is the rule's, or the default.
func (c *Compiled) severity() string {
	if c.Rule.Severity == "" {
		return "warning"
	}
	return c.Rule.Severity
}

// roles are what an event is to a rule.
type roles uint8

const (
	roleMatch roles = 1 << iota
	roleExpect
	roleResolve
	roleBegin
	roleEnd
)

// clauses are the rule's clauses with their roles.
func (c *Compiled) clauses() map[roles]*clause {
	return map[roles]*clause{roleMatch: &c.match, roleExpect: &c.expect, roleResolve: &c.resolve, roleBegin: &c.begin, roleEnd: &c.end}
}

// look tells what the event is to the rule, and which group it belongs to.
func (c *Compiled) look(may roles, v *Vars, m *Meter) (is roles, values []string) {
	for _, x := range [...]struct {
		role roles
		cl   *clause
	}{{roleMatch, &c.match}, {roleExpect, &c.expect}, {roleResolve, &c.resolve}, {roleBegin, &c.begin}, {roleEnd, &c.end}} {
		if may&x.role != 0 && x.cl.when.bool(v, m) {
			is |= x.role
		}
	}
	if is == 0 {
		return 0, nil
	}
	for _, p := range c.group {
		values = append(values, bound(p.string(v, m)))
	}
	return is, values
}

// maxValue bounds a value of a group's key, in bytes.
const maxValue = 256

// bound shortens a value that is too long, and keeps it apart from others.
func bound(s string) string {
	if len(s) <= maxValue {
		return s
	}
	h := sha256.Sum256([]byte(s))
	return cut(s, maxValue-17) + "~" + hex.EncodeToString(h[:8])
}

// maxSample bounds a value that is counted, in bytes.
const maxSample = 40

// brief is bound for values of which there may be many.
func brief(s string) string {
	if len(s) <= maxSample {
		return s
	}
	h := sha256.Sum256([]byte(s))
	return hex.EncodeToString(h[:16])
}

// cut shortens s to at most n bytes of whole characters.
func cut(s string, n int) string {
	for n > 0 && s[n]&0xC0 == 0x80 {
		n--
	}
	return s[:n]
}
