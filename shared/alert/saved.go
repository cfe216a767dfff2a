package alert

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// CheckSaved holds a rule to what is asked of one that is saved, beyond Validate:
// that it says nothing without effect, and no secret. Rules that were saved before go on as they
// are. names are those of all rules that there are. The error is Faults.
func (r *Rule) CheckSaved(names []string) error {
	f := &Faults{}
	details := 0
	for _, w := range words(r.Summary) {
		if strings.HasPrefix(w, detailPrefix) {
			details++
		} else if _, ok := r.GroupBy[w]; !ok && w != "subject" {
			f.add("/summary", CodeFormat, "{%s} is neither a key of group_by nor {subject} or {detail.KEY}", w)
		}
	}
	if details > maxDetails {
		f.add("/summary", CodeRange, "shows %d keys of the detail, the limit is %d", details, maxDetails)
	}
	if u, err := url.Parse(r.Runbook); r.Runbook != "" && (err != nil || !link(u)) {
		f.add("/runbook", CodeFormat, "must be an http or https URL, or a path that begins with /")
	}
	if r.Window != 0 && r.Count == 0 && r.Distinct == "" {
		f.add("/window", CodeConflict, "means nothing without count or distinct")
	}
	for i, in := range r.InhibitedBy {
		if in.Rule != r.Name && !slices.Contains(names, in.Rule) {
			f.add(fmt.Sprintf("/inhibited_by/%d/rule", i), "not_found", "there is no rule %.63s", in.Rule)
		}
	}
	r.secrets(f)
	return f.orNil()
}

// CheckCost holds the estimates of a rule's expressions to MaxCost, as CheckSaved
// does the rest. The error is Faults.
func (c *Compiled) CheckCost() error {
	f := &Faults{}
	c.programs(func(p *program) {
		if p.estimate > MaxCost {
			f.tooCostly(p.pointer, p.dearest, p.estimate)
		}
	})
	return f.orNil()
}

func (f *Faults) tooCostly(pointer string, at place, cost uint64) {
	*f = append(*f, Fault{Pointer: pointer, Line: at.line, Column: at.column, Code: CodeCost,
		Detail: fmt.Sprintf("may cost %d, the limit is %d: nested walks through lists and maps make it so", cost, MaxCost)})
}

// Types are the types and families that the rule's clauses name, each once.
func (r *Rule) Types() []string {
	out := slices.Clone(r.On)
	if a := r.Absence; a != nil {
		out = append(out, a.Expect.On...)
	}
	if w := r.While; w != nil {
		out = append(append(out, w.Begin.On...), w.End.On...)
	}
	if c := r.ResolveWhen; c != nil {
		out = append(out, c.On...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// link tells whether a URL is one that people can follow.
func link(u *url.URL) bool {
	switch u.Scheme {
	case "http", "https":
		return u.Hostname() != ""
	case "":
		return u.Host == "" && strings.HasPrefix(u.Path, "/")
	}
	return false
}

// Check holds an override to the shipped rule that it changes: each of its members
// must change something. The error is Faults.
func (o *Override) Check(r *Rule) error {
	f := &Faults{}
	switch {
	case o.empty():
		f.add("", CodeRequired, "changes nothing; DELETE of the rule takes an override back")
	case o.Within != 0 && r.Absence == nil:
		f.add("/within", CodeConflict, "rule %s has no absence", r.Name)
	}
	return f.orNil()
}

func (o *Override) empty() bool {
	return o.Enabled == nil && o.Severity == "" && len(o.Clusters) == 0 && o.Count == 0 && o.Window == 0 && o.Within == 0 && o.For == nil &&
		o.ResolveAfter == 0 && o.KeepFiringFor == nil && o.OnChange == ""
}
