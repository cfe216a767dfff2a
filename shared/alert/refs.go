package alert

import (
	"fmt"
	"slices"
	"strings"
)

// References tells what a rule and others say of each other without effect: rules
// named in inhibited_by that inhibit nothing, and rules that name it though it is
// disabled. all are the rules that there are; it may be among them.
func (r *Rule) References(all []*Rule) []string {
	var out []string
	for _, in := range r.InhibitedBy {
		why := "which there is not"
		if i := slices.IndexFunc(all, func(o *Rule) bool { return o.Name == in.Rule }); i >= 0 {
			why = all[i].inert(r, in.Equal)
		}
		if why != "" {
			out = append(out, fmt.Sprintf("inhibited_by names rule %s, %s: it inhibits nothing", in.Rule, why))
		}
	}
	if !r.IsEnabled() {
		if by := dependents(r.Name, all); len(by) > 0 {
			out = append(out, fmt.Sprintf("it is disabled, and named in inhibited_by of %s: it inhibits nothing", some(by)))
		}
	}
	return out
}

// ClustersWithout tells which clusters the rule names that there are not, of the ids of
// those that there are.
func (r *Rule) ClustersWithout(ids []string) []string {
	var gone []string
	for _, c := range r.Clusters {
		if c != PlaneCluster && !slices.Contains(ids, c) {
			gone = append(gone, c)
		}
	}
	if len(gone) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("clusters names %s, which there is not", some(gone))}
}

// inert tells why a rule cannot inhibit alerts of another, "" where it can.
func (r *Rule) inert(of *Rule, equal []string) string {
	if !r.IsEnabled() {
		return "which is disabled"
	}
	for _, k := range equal {
		if _, ok := r.GroupBy[k]; !ok {
			return "whose group_by has no key " + k
		}
	}
	both := func(c string) bool { return slices.Contains(of.Clusters, c) }
	if len(r.Clusters) > 0 && len(of.Clusters) > 0 && !slices.ContainsFunc(r.Clusters, both) {
		return "which is for other clusters"
	}
	return ""
}

// dependents are the names of the rules that name one in inhibited_by.
func dependents(name string, all []*Rule) []string {
	var out []string
	for _, o := range all {
		if slices.ContainsFunc(o.InhibitedBy, func(in Inhibitor) bool { return in.Rule == name }) {
			out = append(out, o.Name)
		}
	}
	return out
}

// Chooser is what chooses alerts by matchers: a silence, a receiver.
type Chooser struct {
	Name     string // "silence sil_..."
	Matchers []Match
}

// LeftBehind tells what still names a rule that is not there any more; nothing where
// there is one of the name, such as one that ships and whose override was taken back.
func LeftBehind(name string, all []*Rule, choosers []Chooser) []string {
	if slices.ContainsFunc(all, func(r *Rule) bool { return r.Name == name }) {
		return nil
	}
	var out []string
	if by := dependents(name, all); len(by) > 0 {
		out = append(out, fmt.Sprintf("inhibited_by of %s names %s: it inhibits nothing any more", some(by), name))
	}
	var by []string
	for _, x := range choosers {
		var naming []func(*Rule) bool // its matchers that name rules
		for _, m := range x.Matchers {
			if m.Field == "rule" && m.Op != OpNotEqual {
				naming = append(naming, m.allows())
			}
		}
		named := func(r *Rule) bool {
			return slices.ContainsFunc(naming, func(names func(*Rule) bool) bool { return names(r) })
		}
		if named(&Rule{Name: name}) && !slices.ContainsFunc(all, named) {
			by = append(by, x.Name)
		}
	}
	if len(by) > 0 {
		out = append(out, fmt.Sprintf("of the rules that there are, none is named any more by %s", some(by)))
	}
	return out
}

// some lists the first of many names.
func some(names []string) string {
	const most = 10
	if n := len(names) - most; n > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), n)
	}
	return strings.Join(names, ", ")
}

// MatchersWithout tells what matchers name that there is not, of the rules that there
// are: it may be a slip, or be made later.
func MatchersWithout(ms []Match, all []*Rule) []string {
	var out []string
	allow := make([]func(*Rule) bool, len(ms))
	for i, m := range ms {
		allow[i] = m.allows()
		known := slices.ContainsFunc(all, m.known)
		if !known && m.holdsForNothing() { // a slip here matches all, not nothing
			out = append(out, fmt.Sprintf("no rule that there is has %s: %s %q holds for every alert", m.Field, m.Op, m.Value))
			continue
		}
		if slices.ContainsFunc(all, allow[i]) {
			continue
		}
		switch {
		case m.Op == OpNotEqual: // it holds for none of what there is, as there is nothing
		case m.Field == "rule" && m.Op == OpEqual:
			out = append(out, fmt.Sprintf("there is no rule %s", m.Value))
		default:
			out = append(out, fmt.Sprintf("no rule that there is has %s %s %q", m.Field, m.Op, m.Value))
		}
	}
	for _, m := range ms {
		if m.Field == "rule" && m.Op == OpNotEqual && !slices.ContainsFunc(all, func(r *Rule) bool { return r.Name == m.Value }) {
			out = append(out, fmt.Sprintf("there is no rule %s: != holds for all that there are", m.Value))
		}
	}
	together := func(r *Rule) bool {
		return !slices.ContainsFunc(allow, func(allows func(*Rule) bool) bool { return !allows(r) })
	}
	if len(out) == 0 && len(ms) > 1 && !slices.ContainsFunc(all, together) {
		out = append(out, "no rule that there is makes an alert for which all of the matchers hold")
	}
	return out
}

// ClustersWithout tells what matchers name that there is not, of the ids of the clusters
// that there are: one that was deleted.
func ClustersWithout(ms []Match, ids []string) []string {
	var out []string
	for i, m := range ms {
		if m.Field != "cluster" {
			continue
		}
		x, _ := CompileSilence(Silence{Matchers: ms[i : i+1]}) // its times are told of elsewhere
		there := m.Value == "" || m.Value == PlaneCluster || slices.Contains(ids, m.Value)
		switch {
		case m.Op == OpMatch:
			if !x.holds(0, PlaneCluster) && !slices.ContainsFunc(ids, func(c string) bool { return x.holds(0, c) }) {
				out = append(out, fmt.Sprintf("no cluster's id matches %q", m.Value))
			}
		case !there && m.Op == OpEqual:
			out = append(out, fmt.Sprintf("there is no cluster %s", m.Value))
		case !there:
			out = append(out, fmt.Sprintf("there is no cluster %s: != holds for all that there are", m.Value))
		}
	}
	return out
}

// MatchersOfNothing tells that matchers, all of which are of labels and of keys of
// groups, hold for alerts that have none of these, too. An Alertmanager refuses such a
// silence: https://prometheus.io/docs/alerting/latest/alertmanager/#silences.
func MatchersOfNothing(ms []Match, all []*Rule) []string {
	if slices.ContainsFunc(ms, func(m Match) bool { return !m.holdsForNothing() }) {
		return nil
	}
	n := 0
	for _, r := range all {
		if !slices.ContainsFunc(ms, func(m Match) bool { return m.known(r) }) {
			n++
		}
	}
	if n == 0 || n == len(all) { // none, or each matcher is told of by MatchersWithout
		return nil
	}
	return []string{fmt.Sprintf("it holds for alerts that have none of what the matchers name, too: those of %d of the %d rules that there are", n, len(all))}
}

// known tells whether alerts of the rule have what the matcher is of: each has a
// rule, a severity and a cluster.
func (m Match) known(r *Rule) bool {
	if k, ok := strings.CutPrefix(m.Field, "group."); ok {
		_, has := r.GroupBy[k]
		return has
	}
	if k, ok := strings.CutPrefix(m.Field, "labels."); ok {
		_, has := r.Labels[k]
		return has
	}
	return true
}

// holdsForNothing tells whether the matcher is of a label or of a key of groups, and
// holds for alerts that do not have it.
func (m Match) holdsForNothing() bool {
	if !strings.HasPrefix(m.Field, "group.") && !strings.HasPrefix(m.Field, "labels.") {
		return false
	}
	return m.allows()(&Rule{})
}

// allows returns what tells whether the matcher may hold for an alert of a rule: of a
// key of its groups only the events tell, and which clusters there are is held against
// the fleet. A pattern that is none may hold for all: it is told otherwise.
func (m Match) allows() func(r *Rule) bool {
	x, _ := CompileSilence(Silence{Matchers: []Match{m}}) // its times are told of elsewhere
	key, ofGroup := strings.CutPrefix(m.Field, "group.")
	return func(r *Rule) bool {
		if _, has := r.GroupBy[key]; ofGroup && has {
			return true
		}
		if m.Field == "cluster" {
			return len(r.Clusters) == 0 || slices.ContainsFunc(r.Clusters, func(c string) bool { return x.holds(0, c) })
		}
		return m.Op == OpMatch && x.patterns[0] == nil || x.Matches(&Alert{Rule: r.Name, Severity: (&Compiled{Rule: *r}).severity(), Labels: r.Labels})
	}
}
