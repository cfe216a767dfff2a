package node

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// budget is a disruption budget as its status tells it: the API server judges an
// eviction by the same numbers.
type budget struct {
	namespace, name           string
	version                   string // resourceVersion
	selector                  labels.Selector
	allowed, healthy, desired int32
	expected                  int32
	disrupted                 int  // evictions that it took and whose pods are not seen to stop yet
	observed                  bool // the status is of the newest spec
	always                    bool // unhealthyPodEvictionPolicy: AlwaysAllow
	// number: minAvailable is a number. Else the controllers of the pods say how many
	// there should be, and pods without one do not count.
	// https://kubernetes.io/docs/tasks/run-application/configure-pdb/#arbitrary-controllers-and-selectors
	number bool
	// failed is why the cluster cannot count its pods, and reason its own word for why
	// it allows none; empty: none is given.
	failed, reason string
}

func newBudget(p *policyv1.PodDisruptionBudget) *budget {
	b := &budget{namespace: p.Namespace, name: p.Name, version: p.ResourceVersion,
		allowed: p.Status.DisruptionsAllowed, healthy: p.Status.CurrentHealthy, desired: p.Status.DesiredHealthy, expected: p.Status.ExpectedPods,
		disrupted: len(p.Status.DisruptedPods),
		observed:  p.Status.ObservedGeneration >= p.Generation,
		number:    p.Spec.MinAvailable != nil && p.Spec.MinAvailable.Type == intstr.Int,
		always:    p.Spec.UnhealthyPodEvictionPolicy != nil && *p.Spec.UnhealthyPodEvictionPolicy == policyv1.AlwaysAllow}
	var err error
	if b.selector, err = metav1.LabelSelectorAsSelector(p.Spec.Selector); err != nil {
		b.selector = labels.Nothing() // the API server takes none that cannot be read
	}
	for _, c := range p.Status.Conditions {
		if c.Type != policyv1.DisruptionAllowedCondition || c.Status != metav1.ConditionFalse {
			continue
		}
		if b.reason = c.Reason; c.Reason == policyv1.SyncFailedReason {
			b.failed = cmp.Or(c.Message, "it does not say why")
		}
	}
	return b
}

func (b *budget) key() string { return b.namespace + "/" + b.name }

// uncounted tells that the budget allows nothing since it counts no pods.
func (b *budget) uncounted() bool {
	return b.allowed == 0 && b.expected == 0 && !b.number && b.observed
}

// never tells that the budget allows nothing however healthy its pods are.
func (b *budget) never() bool { return b.allowed == 0 && b.expected > 0 && b.desired >= b.expected }

// inFlight tells that it is evictions under way that the budget has no room beside.
func (b *budget) inFlight() bool {
	return b.allowed == 0 && b.disrupted > 0 && int(b.healthy)+b.disrupted > int(b.desired)
}

// String says what the budget allows, and why no more. An eviction that was taken
// counts against it from then on, also one that came to nothing.
// https://kubernetes.io/docs/reference/kubernetes-api/policy-resources/pod-disruption-budget-v1/#PodDisruptionBudgetStatus
func (b *budget) String() string {
	s := fmt.Sprintf("PDB %s allows %d disruptions (healthy %d, needed %d)", b.key(), b.allowed, b.healthy, b.desired)
	switch {
	case b.failed != "": // of a spec that was never judged as well
		return fmt.Sprintf("PDB %s allows no disruptions, for the cluster cannot count its pods (%s): %s", b.key(), policyv1.SyncFailedReason, b.failed)
	case !b.observed:
		return fmt.Sprintf("PDB %s was changed and the cluster has not judged it yet", b.key())
	case b.uncounted():
		return fmt.Sprintf("%s: %s, for it expects 0 pods: with maxUnavailable, or a percentage, it counts those that the pods' controllers want, and pods without one not at all",
			s, cmp.Or(b.reason, policyv1.InsufficientPodsReason))
	case b.inFlight():
		return fmt.Sprintf("%s: it counts %s in flight, each until its pod is seen to stop or for 2 min", s, evictions(b.disrupted))
	case b.never():
		return fmt.Sprintf("%s: it needs every one of its %d pods, so it never allows any", s, b.expected)
	case b.allowed == 0 && b.reason != "" && b.reason != policyv1.InsufficientPodsReason:
		return s + ": " + b.reason
	case b.allowed == 0 && b.healthy < b.expected:
		return s + ": " + b.unready()
	}
	return s
}

// unready says how many of the pods that the budget expects do not count as healthy. A
// pod that its controller wants and could not make is expected as well.
func (b *budget) unready() string {
	are := "are"
	if b.expected-b.healthy == 1 {
		are = "is"
	}
	return fmt.Sprintf("%d of the %d pods that it expects %s not ready, or not there", b.expected-b.healthy, b.expected, are)
}

func evictions(n int) string {
	if n == 1 {
		return "1 eviction"
	}
	return fmt.Sprintf("%d evictions", n)
}

// act is what a person can do about a budget that allows nothing.
func (b *budget) act() string {
	do := fmt.Sprintf("raise the budget of PDB %s or add replicas", b.key())
	switch {
	case b.failed != "":
		do = fmt.Sprintf("give the pods of PDB %s a controller that tells how many there should be, or set its minAvailable to a number", b.key())
	case !b.observed:
		do = fmt.Sprintf("find out why the cluster's controller manager does not judge PDB %s", b.key())
	case b.uncounted():
		do = fmt.Sprintf("set minAvailable of PDB %s to a number, or give its pods a controller", b.key())
	case b.inFlight():
		do = fmt.Sprintf("wait for the evictions that PDB %s counts", b.key())
	case b.never() && b.number:
		do = fmt.Sprintf("lower minAvailable of PDB %s or add replicas", b.key())
	case b.never():
		do = fmt.Sprintf("let PDB %s go without a pod: more replicas do not help where it needs all of them", b.key())
	case b.healthy < b.expected:
		do = fmt.Sprintf("get the pods of PDB %s ready (%d of %d are), raise its budget or add replicas", b.key(), b.healthy, b.expected)
	}
	return do + ", then drain again"
}

// selecting picks the budgets that select the pod, in the order of their names.
func selecting(all []*budget, p *corev1.Pod) []*budget {
	var found []*budget
	for _, b := range all {
		if b.namespace == p.Namespace && b.selector.Matches(labels.Set(p.Labels)) {
			found = append(found, b)
		}
	}
	slices.SortFunc(found, func(a, b *budget) int { return strings.Compare(a.name, b.name) })
	return found
}

// hold is what keeps a pod from being evicted now.
type hold struct {
	code string // of a blocker
	rule string
	why  string
	act  string
	// since is when it began, where that is known.
	since *time.Time
}

// rule finds what the disruption budgets say to an eviction of the pod, as the
// API server judges it; nil: nothing. A pod that has not started, or is stopping,
// is asked no budget; one that is not ready only a budget that is broken already.
// https://kubernetes.io/docs/tasks/run-application/configure-pdb/#unhealthy-pod-eviction-policy
func rule(all []*budget, p *corev1.Pod) *hold {
	if isFinished(p) || p.Status.Phase == corev1.PodPending || p.DeletionTimestamp != nil {
		return nil
	}
	found := selecting(all, p)
	switch {
	case len(found) == 0:
		return nil
	case len(found) > 1:
		return &hold{code: "two_pdbs", rule: "pdb/" + found[0].key(), why: twoPDBs(p, found)}
	}
	b := found[0]
	h := &hold{code: "pdb", rule: "pdb/" + b.key(), why: b.String(), act: b.act()}
	if !isReady(p) {
		if b.always || b.healthy >= b.desired && b.desired > 0 {
			return nil
		}
		if b.allowed <= 0 && b.observed {
			h.why += ", and the pod is not ready: its PDB's unhealthyPodEvictionPolicy IfHealthyBudget keeps it"
			h.act = fmt.Sprintf("set unhealthyPodEvictionPolicy of PDB %s to AlwaysAllow or repair its pods, then drain again", b.key())
		}
	}
	if b.observed && b.allowed > 0 {
		return nil
	}
	return h
}

// twoPDBs words what the eviction API answers with a 500.
// https://kubernetes.io/docs/concepts/scheduling-eviction/api-eviction/
func twoPDBs(p *corev1.Pod, b []*budget) string {
	if len(b) < 2 { // the API server knows one that is not known here yet
		return fmt.Sprintf("pod %s is selected by two disruption budgets: the cluster evicts no such pod", key(p))
	}
	s := fmt.Sprintf("pod %s is selected by two disruption budgets, %s and %s: the cluster evicts no such pod", key(p), b[0].key(), b[1].key())
	if len(b) > 2 {
		s = fmt.Sprintf("pod %s is selected by %d disruption budgets, %s, %s and %d more: the cluster evicts no such pod", key(p), len(b), b[0].key(), b[1].key(), len(b)-2)
	}
	return s
}

func twoPDBsRule(p *corev1.Pod, b []*budget) string {
	if len(b) == 0 {
		return "pdb/" + p.Namespace
	}
	return "pdb/" + b[0].key()
}

func isReady(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// allowances share out, among all drains of this agent, what the budgets allow: an
// eviction that is bound to be refused is not asked for. What is allowed is counted
// anew whenever a budget's status changes.
type allowances struct {
	mu    sync.Mutex
	left  map[string]allowance
	swept time.Time
}

type allowance struct {
	version string
	left    int32
	since   time.Time
}

// refill is after what time what was taken counts as not used: an accepted
// eviction changes the status at once.
const refill = 5 * time.Second

// take takes one eviction from what the budgets that guard the pod allow.
func (a *allowances) take(now time.Time, all []*budget, p *corev1.Pod) bool {
	found := selecting(all, p)
	if len(found) != 1 || p.Status.Phase == corev1.PodPending || !isReady(p) {
		return true // no budget counts it
	}
	b := found[0]
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.left == nil {
		a.left = map[string]allowance{}
	}
	if now.Sub(a.swept) > time.Minute { // budgets come and go
		a.swept = now
		maps.DeleteFunc(a.left, func(_ string, l allowance) bool { return now.Sub(l.since) > refill })
	}
	l, ok := a.left[b.key()]
	if !ok || l.version != b.version || now.Sub(l.since) > refill {
		l = allowance{version: b.version, left: b.allowed, since: now}
	}
	if l.left <= 0 {
		return false
	}
	l.left--
	a.left[b.key()] = l
	return true
}

// empty records that the API server refused what the status seemed to allow.
func (a *allowances) empty(now time.Time, b *budget) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if l := a.left[b.key()]; l.version == b.version {
		a.left[b.key()] = allowance{version: b.version, since: now}
	}
}
