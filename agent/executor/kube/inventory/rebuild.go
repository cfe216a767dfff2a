package inventory

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/protocol"
)

// What a judge is given is made anew of what is kept: of a node its name, UID,
// labels that are reported, spec.unschedulable and the Ready condition; of a pod
// its metadata (labels, controller, finalizers, deletion, the mirror annotation),
// whether it has data that a drain loses (one emptyDir volume stands for all), its
// priority, whether it tolerates the cordon, its phase and the Ready condition; of
// a budget the spec, the counts of its status and why its pods cannot be counted.

func (s *nodeState) rebuild() *corev1.Node {
	status := corev1.ConditionFalse
	switch {
	case s.ready:
		status = corev1.ConditionTrue
	case s.unreachable:
		status = corev1.ConditionUnknown
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: s.name, UID: types.UID(s.uid), Labels: s.labels},
		Spec:       corev1.NodeSpec{Unschedulable: !s.schedulable},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: status, Reason: s.why, LastTransitionTime: metav1.NewTime(s.readySince)},
		}},
	}
}

func (p *pod) rebuild() *corev1.Pod {
	o := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: p.name, UID: types.UID(p.uid), Labels: p.labels, Finalizers: p.finalizers},
		Spec:       corev1.PodSpec{NodeName: p.node, Priority: ptr.To(p.priority)},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}}},
	}
	if p.ready {
		o.Status.Conditions[0].Status = corev1.ConditionTrue
	}
	if p.pending {
		o.Status.Phase = corev1.PodPending
	}
	if p.owner.UID != "" {
		owner := p.owner
		owner.Controller = ptr.To(true)
		o.OwnerReferences = []metav1.OwnerReference{owner}
	}
	if p.mirror {
		o.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "mirror"}
	}
	if p.localData {
		o.Spec.Volumes = []corev1.Volume{{Name: "local", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	}
	if p.staysCordoned {
		o.Spec.Tolerations = []corev1.Toleration{{Key: corev1.TaintNodeUnschedulable, Operator: corev1.TolerationOpExists}}
	}
	if !p.deletion.IsZero() {
		at := metav1.NewTime(p.deletion)
		o.DeletionTimestamp, o.DeletionGracePeriodSeconds = &at, ptr.To(p.grace)
	}
	return o
}

func (b *budget) rebuild() *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: b.name, UID: types.UID(b.uid), ResourceVersion: b.GetResourceVersion(), Generation: b.generation},
		Spec:       b.spec, Status: b.status,
	}
}

// question is what a judge is asked of one node.
type question struct {
	of      *nodeState
	node    *corev1.Node
	pods    []*corev1.Pod
	budgets []*policyv1.PodDisruptionBudget
}

const (
	judgeSome  = 500         // nodes that are judged in one go of the clock
	judgeAgain = time.Minute // for a node that is not ready
)

// due lists nodes of which something changed since they were judged, and whose
// last judgement is old enough.
func (m *model) due() []question {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []question
	now := m.now()
	for _, s := range m.nodes {
		stale := !s.ready && now.Sub(s.judged) >= judgeAgain // how long it is not ready counts
		if !s.unjudged && !stale || now.Sub(s.judged) < m.opts.JudgeEvery || len(out) == judgeSome {
			continue
		}
		s.unjudged, s.judged = false, now
		q := question{of: s, node: s.rebuild()}
		for p := range m.pods[s.name] {
			q.pods = append(q.pods, p.rebuild())
		}
		for _, b := range m.budgetsOf(m.pods[s.name]) {
			q.budgets = append(q.budgets, b.rebuild())
		}
		slices.SortFunc(q.pods, func(a, b *corev1.Pod) int {
			return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
		})
		slices.SortFunc(q.budgets, func(a, b *policyv1.PodDisruptionBudget) int {
			return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
		})
		out = append(out, q)
	}
	return out
}

// judge looks at what stands in the way of drains, outside of the lock.
func (m *model) judge() {
	if m.opts.Judge == nil {
		return
	}
	for _, q := range m.due() {
		found := m.opts.Judge(q.node, q.pods, q.budgets)
		if len(found) > fleet.MaxBlockers {
			found = found[:fleet.MaxBlockers]
		}
		m.mu.Lock()
		if !slices.Equal(timeless(q.of.blockers), timeless(found)) && m.nodes[q.of.uid] == q.of {
			m.tick(0)
			q.of.blockers = since(q.of.blockers, found, m.now())
			q.of.changed = m.mark(kindNode, q.of.uid)
			m.signal()
		}
		m.mu.Unlock()
	}
}

// timeless are the blockers without the times since which they stand.
func timeless(in []protocol.Blocker) []protocol.Blocker {
	out := slices.Clone(in)
	for i := range out {
		out[i].Since = nil
	}
	return out
}

// since keeps, of a blocker that was there before, since when it stands.
func since(old, now []protocol.Blocker, at time.Time) []protocol.Blocker {
	for i := range now {
		b := &now[i]
		if b.Since == nil {
			b.Since = ptr.To(at.UTC())
		}
		for _, o := range old {
			if o.Code == b.Code && o.Resource == b.Resource && o.Rule == b.Rule && o.Since != nil {
				b.Since = o.Since
			}
		}
	}
	return now
}
