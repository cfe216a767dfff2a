package sim

import "fmt"

// allowance is what a disruption budget allows at the moment.
type allowance struct {
	pdb             *PDB
	healthy, needed int
}

func (a allowance) allowed() int { return max(a.healthy-a.needed, 0) }

func (a allowance) String() string {
	return fmt.Sprintf("PDB %s allows %d disruptions (healthy %d, needed %d)", a.pdb.Key(), a.allowed(), a.healthy, a.needed)
}

// act is what a person can do about a budget that allows nothing.
func (a allowance) act() string {
	return fmt.Sprintf("raise the budget of PDB %s or add replicas, then drain again", a.pdb.Key())
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
