package sim

import (
	"fmt"
	"strings"
)

// allowance is what a disruption budget allows at the moment.
type allowance struct {
	pdb             *PDB
	healthy, needed int
}

func (a allowance) allowed() int { return max(a.healthy-a.needed, 0) }

func (a allowance) String() string {
	return fmt.Sprintf("PDB %s allows %d disruptions (healthy %d, needed %d)", a.pdb.Key(), a.allowed(), a.healthy, a.needed)
}

// budgets finds the disruption budgets that select the pod, and what each
// allows now.
func budgets(w *World, ix *index, p *Pod) []allowance {
	var found []allowance
	for _, key := range sortedKeys(w.PDBs) {
		b := w.PDBs[key]
		if b.Namespace != p.Namespace || !matchLabels(b.Selector, p.Labels) {
			continue
		}
		a := allowance{pdb: b}
		expected, counted := 0, map[string]bool{}
		for _, q := range ix.podsBySpace[b.Namespace] {
			if q.Completed || !matchLabels(b.Selector, q.Labels) {
				continue
			}
			if q.Healthy() {
				a.healthy++
			}
			if d := w.Deployments[q.OwnerUID]; d == nil {
				expected++
			} else if !counted[d.UID] {
				counted[d.UID] = true
				expected += d.Desired
			}
		}
		switch {
		case b.MinAvailable != nil:
			a.needed = *b.MinAvailable
		case b.MaxUnavailable != nil:
			a.needed = max(expected-*b.MaxUnavailable, 0)
		}
		found = append(found, a)
	}
	return found
}

// selector is a label selector in the form of kubectl: "a=b,c!=d,e,!f".
// https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/
type selector []func(labels map[string]string) bool

func parseSelector(text string) (selector, error) {
	var s selector
	for _, term := range strings.Split(text, ",") {
		term = strings.TrimSpace(term)
		if term == "" {
			if strings.TrimSpace(text) == "" {
				return nil, nil
			}
			return nil, fmt.Errorf("pod_selector %q has an empty term", text)
		}
		if k, v, found := strings.Cut(term, "!="); found {
			k, v = strings.TrimSpace(k), strings.TrimSpace(v)
			s = append(s, func(l map[string]string) bool { return l[k] != v })
		} else if k, v, found := strings.Cut(term, "="); found {
			k, v = strings.TrimSpace(k), strings.TrimSpace(strings.TrimPrefix(v, "="))
			s = append(s, func(l map[string]string) bool { return l[k] == v && hasKey(l, k) })
		} else if k, found := strings.CutPrefix(term, "!"); found {
			s = append(s, func(l map[string]string) bool { return !hasKey(l, strings.TrimSpace(k)) })
		} else if strings.ContainsAny(term, " ()") {
			return nil, fmt.Errorf("pod_selector term %q is not of the form a=b, a!=b, a or !a", term)
		} else {
			s = append(s, func(l map[string]string) bool { return hasKey(l, term) })
		}
	}
	return s, nil
}

func hasKey(l map[string]string, k string) bool {
	_, found := l[k]
	return found
}

func (s selector) match(labels map[string]string) bool {
	for _, f := range s {
		if !f(labels) {
			return false
		}
	}
	return true
}
