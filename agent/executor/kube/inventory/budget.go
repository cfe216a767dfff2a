package inventory

import (
	"maps"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// budget is what is kept of a PodDisruptionBudget.
type budget struct {
	head
	generation int64
	spec       policyv1.PodDisruptionBudgetSpec
	status     policyv1.PodDisruptionBudgetStatus
	selector   labels.Selector
	failed     string // why its pods cannot be counted
}

func stripBudget(obj any) (*budget, bool) {
	o, ok := obj.(*policyv1.PodDisruptionBudget)
	if !ok {
		return nil, false
	}
	b := &budget{head: headOf(o), generation: o.Generation, spec: o.Spec, selector: labels.Nothing()}
	b.status = policyv1.PodDisruptionBudgetStatus{ObservedGeneration: o.Status.ObservedGeneration, DisruptionsAllowed: o.Status.DisruptionsAllowed,
		CurrentHealthy: o.Status.CurrentHealthy, DesiredHealthy: o.Status.DesiredHealthy, ExpectedPods: o.Status.ExpectedPods}
	for _, c := range o.Status.Conditions {
		if c.Type == policyv1.DisruptionAllowedCondition && c.Status == metav1.ConditionFalse && c.Reason == policyv1.SyncFailedReason {
			b.failed = c.Message
			b.status.Conditions = []metav1.Condition{c}
		}
	}
	if s, err := metav1.LabelSelectorAsSelector(o.Spec.Selector); err == nil { // the API server takes no other
		b.selector = s
	}
	return b, true
}

// applyBudget takes a budget as it is now: every node that carries a pod of it is
// judged again.
func (m *model) applyBudget(was, is *budget) {
	if was != nil {
		delete(m.budgets[was.namespace], was)
		if len(m.budgets[was.namespace]) == 0 {
			delete(m.budgets, was.namespace)
		}
	}
	if is != nil {
		if m.budgets[is.namespace] == nil {
			m.budgets[is.namespace] = map[*budget]struct{}{}
		}
		m.budgets[is.namespace][is] = struct{}{}
	}
	if m.opts.Judge == nil || was != nil && is != nil && sameBudget(was, is) {
		return
	}
	for name, pods := range m.pods {
		s := m.nodeNames[name]
		if s == nil || s.unjudged {
			continue
		}
		for p := range pods {
			if covers(was, p) || covers(is, p) {
				s.unjudged = true
				break
			}
		}
	}
}

func covers(b *budget, p *pod) bool {
	return b != nil && b.namespace == p.namespace && b.selector.Matches(labels.Set(p.labels))
}

func sameBudget(a, b *budget) bool {
	return a.selector.String() == b.selector.String() && a.failed == b.failed && samePointed(a.spec.UnhealthyPodEvictionPolicy, b.spec.UnhealthyPodEvictionPolicy) &&
		(a.status.ObservedGeneration >= a.generation) == (b.status.ObservedGeneration >= b.generation) && a.status.DisruptionsAllowed == b.status.DisruptionsAllowed &&
		a.status.CurrentHealthy == b.status.CurrentHealthy && a.status.DesiredHealthy == b.status.DesiredHealthy &&
		a.status.ExpectedPods == b.status.ExpectedPods && samePointed(a.spec.MinAvailable, b.spec.MinAvailable) && samePointed(a.spec.MaxUnavailable, b.spec.MaxUnavailable)
}

func samePointed[T comparable](a, b *T) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

// budgetsOf lists the budgets of the namespaces that the pods are in.
func (m *model) budgetsOf(pods map[*pod]struct{}) []*budget {
	seen := map[*budget]struct{}{}
	for p := range pods {
		maps.Copy(seen, m.budgets[p.namespace])
	}
	out := make([]*budget, 0, len(seen))
	for b := range seen {
		out = append(out, b)
	}
	return out
}
