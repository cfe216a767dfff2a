package node

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// aPod is a ready pod of a ReplicaSet, changed.
func aPod(name string, change ...func(p *corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"app": "web"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "rs", Controller: ptr.To(true)}}}}
	p.Status.Phase = corev1.PodRunning
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	for _, f := range change {
		f(p)
	}
	return p
}

func ownedBy(kind string) func(p *corev1.Pod) {
	return func(p *corev1.Pod) {
		p.OwnerReferences[0].Kind = kind
		if kind == "" {
			p.OwnerReferences = nil
		}
	}
}

func emptyDir(p *corev1.Pod) {
	p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
}

func scratch(volumes string) func(p *corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations = map[string]string{AnnotationScratch: volumes} }
}

func phase(ph corev1.PodPhase) func(p *corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.Phase = ph }
}

func deleted(p *corev1.Pod) { p.DeletionTimestamp = ptr.To(metav1.Now()) }

func unready(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse }

func mirror(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} }

func thePayload(t *testing.T, raw string) payload {
	t.Helper()
	p, err := readPayload(&protocol.Assignment{Payload: []byte(raw)})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestJudge(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		pod     *corev1.Pod
		payload string
		orphan  bool
		want    string // "kind code", "" is left alone
	}{
		{name: "plain", pod: aPod("a"), want: "evict "},
		{name: "daemonset", pod: aPod("a", ownedBy("DaemonSet"))},
		{name: "daemonset of another group", pod: aPod("a", ownedBy("DaemonSet"), func(p *corev1.Pod) { p.OwnerReferences[0].APIVersion = "example.com/v1" }), want: "evict "},
		{name: "daemonset with local data", pod: aPod("a", ownedBy("DaemonSet"), emptyDir)},
		{name: "orphan", pod: aPod("a", ownedBy("DaemonSet")), orphan: true, want: "evict orphaned_daemonset_pod"},
		{name: "orphan and force", pod: aPod("a", ownedBy("DaemonSet")), orphan: true, payload: `{"force":true}`, want: "evict "},
		{name: "orphan with data and force", pod: aPod("a", ownedBy("DaemonSet"), emptyDir), orphan: true, payload: `{"force":true}`, want: "evict local_data"},
		{name: "finished of a daemonset", pod: aPod("a", ownedBy("DaemonSet"), phase(corev1.PodFailed))},
		{name: "mirror", pod: aPod("a", mirror, ownedBy("Node"))},
		{name: "finished", pod: aPod("a", ownedBy(""), emptyDir, phase(corev1.PodSucceeded)), want: "finished "},
		{name: "failed and deleted", pod: aPod("a", phase(corev1.PodFailed), deleted), want: "stopping "},
		{name: "succeeded and deleted, unmanaged, with data", pod: aPod("a", ownedBy(""), emptyDir, phase(corev1.PodSucceeded), deleted), want: "stopping "},
		{name: "failed and deleted of a daemonset", pod: aPod("a", ownedBy("DaemonSet"), phase(corev1.PodFailed), deleted)},
		{name: "failed and deleted orphan", pod: aPod("a", ownedBy("DaemonSet"), phase(corev1.PodFailed), deleted), orphan: true, want: "stopping "},
		{name: "stopping, unmanaged, with data", pod: aPod("a", ownedBy(""), emptyDir, deleted), want: "stopping "},
		{name: "unmanaged", pod: aPod("a", ownedBy("")), want: "evict unmanaged_pod"},
		{name: "owned but not controlled", pod: aPod("a", func(p *corev1.Pod) { p.OwnerReferences[0].Controller = nil }), want: "evict unmanaged_pod"},
		{name: "unmanaged with data", pod: aPod("a", ownedBy(""), emptyDir), want: "evict unmanaged_pod local_data"},
		{name: "orphan with data", pod: aPod("a", ownedBy("DaemonSet"), emptyDir), orphan: true, want: "evict orphaned_daemonset_pod local_data"},
		{name: "unmanaged and force", pod: aPod("a", ownedBy("")), payload: `{"force":true}`, want: "evict "},
		{name: "local data", pod: aPod("a", emptyDir), want: "evict local_data"},
		{name: "shared memory", pod: aPod("a", func(p *corev1.Pod) {
			emptyDir(p)
			p.Spec.Volumes[0].EmptyDir.Medium = corev1.StorageMediumMemory
		}), want: "evict "},
		{name: "scratch", pod: aPod("a", emptyDir, scratch("v")), want: "evict "},
		{name: "scratch among others", pod: aPod("a", emptyDir, scratch("tmp, v,cache")), want: "evict "},
		{name: "another volume is scratch", pod: aPod("a", emptyDir, scratch("vv")), want: "evict local_data"},
		{name: "one of two is scratch", pod: aPod("a", emptyDir, func(p *corev1.Pod) {
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "data", VolumeSource: p.Spec.Volumes[0].VolumeSource})
		}, scratch("v")), want: "evict local_data"},
		{name: "local data allowed", pod: aPod("a", emptyDir), payload: `{"delete_emptydir_data":true}`, want: "evict "},
		{name: "selected", pod: aPod("a"), payload: `{"pod_selector":"app=web"}`, want: "evict "},
		{name: "not selected", pod: aPod("a", emptyDir), payload: `{"pod_selector":"app notin (web)"}`},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			payload := tc.payload
			if payload == "" {
				payload = `{}`
			}
			got := ""
			if v := thePayload(t, payload).judge([]*corev1.Pod{tc.pod}, map[types.UID]bool{tc.pod.UID: tc.orphan}); len(v) == 1 {
				var codes []string
				for _, o := range v[0].objections {
					codes = append(codes, o.code)
				}
				got = v[0].kind + " " + strings.Join(codes, " ")
			}
			if got != tc.want {
				t.Errorf("judged %q, not %q", got, tc.want)
			}
		})
	}
}

func TestOrder(t *testing.T) {
	t.Parallel()
	at := func(priority int32) func(p *corev1.Pod) { return func(p *corev1.Pod) { p.Spec.Priority = &priority } }
	pods := []*corev1.Pod{aPod("a", at(2_000_000_000)), aPod("b", at(-2_000_000_000)), aPod("c"), aPod("d", at(-2_000_000_000))}
	for order, want := range map[string][]string{"priority": {"b", "d", "c", "a"}, "none": {"a", "b", "c", "d"}} {
		var got []string
		for _, v := range thePayload(t, fmt.Sprintf(`{"order":%q}`, order)).judge(pods, nil) {
			got = append(got, v.pod.Name)
		}
		if !slices.Equal(got, want) {
			t.Errorf("order %s: %q, not %q", order, got, want)
		}
	}
}

func TestTolerations(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		t    corev1.Toleration
		want bool
	}{
		"by name":           {corev1.Toleration{Key: corev1.TaintNodeUnschedulable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}, true},
		"by name, equal":    {corev1.Toleration{Key: corev1.TaintNodeUnschedulable}, true},
		"everything":        {corev1.Toleration{Operator: corev1.TolerationOpExists}, true},
		"all NoExecute":     {corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}, false},
		"something else":    {corev1.Toleration{Key: "gpu", Operator: corev1.TolerationOpExists}, false},
		"no key, not exist": {corev1.Toleration{Operator: corev1.TolerationOpEqual}, false},
	}
	for name, tc := range tests {
		if got := toleratesCordon(aPod("a", func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{tc.t} })); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// aBudget selects app=web.
func aBudget(name string, allowed, healthy, desired, expected int32, change ...func(p *policyv1.PodDisruptionBudget)) *budget {
	p := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, ResourceVersion: "1", Generation: 1},
		Spec:   policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}},
		Status: policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 1, DisruptionsAllowed: allowed, CurrentHealthy: healthy, DesiredHealthy: desired, ExpectedPods: expected}}
	for _, f := range change {
		f(p)
	}
	return newBudget(p)
}

func inFlight(n int) func(p *policyv1.PodDisruptionBudget) {
	return func(p *policyv1.PodDisruptionBudget) {
		p.Status.DisruptedPods = map[string]metav1.Time{}
		for i := range n {
			p.Status.DisruptedPods[fmt.Sprintf("web-%d", i)] = metav1.Now()
		}
	}
}

func TestRule(t *testing.T) {
	t.Parallel()
	always := func(p *policyv1.PodDisruptionBudget) {
		p.Spec.UnhealthyPodEvictionPolicy = ptr.To(policyv1.AlwaysAllow)
	}
	stale := func(p *policyv1.PodDisruptionBudget) { p.Generation = 2 }
	none := func(p *policyv1.PodDisruptionBudget) { p.Spec.Selector = nil }
	every := func(p *policyv1.PodDisruptionBudget) { p.Spec.Selector = &metav1.LabelSelector{} }
	elsewhere := func(p *policyv1.PodDisruptionBudget) { p.Namespace = "other" }
	tests := []struct {
		name    string
		pod     *corev1.Pod
		budgets []*budget
		code    string
		why     string
	}{
		{name: "none", pod: aPod("a")},
		{name: "allowed", pod: aPod("a"), budgets: []*budget{aBudget("b", 1, 3, 2, 3)}},
		{name: "not allowed", pod: aPod("a"), budgets: []*budget{aBudget("b", 0, 2, 2, 3)}, code: "pdb", why: "PDB ns/b allows 0 disruptions (healthy 2, needed 2): 1 of the 3 pods that it expects is not ready, or not there"},
		{name: "wants all", pod: aPod("a"), budgets: []*budget{aBudget("b", 0, 3, 3, 3)}, code: "pdb",
			why: "PDB ns/b allows 0 disruptions (healthy 3, needed 3): it needs every one of its 3 pods, so it never allows any"},
		{name: "evictions in flight", pod: aPod("a"), budgets: []*budget{aBudget("b", 0, 108, 108, 120, inFlight(12))}, code: "pdb",
			why: "PDB ns/b allows 0 disruptions (healthy 108, needed 108): it counts 12 evictions in flight, each until its pod is seen to stop or for 2 min"},
		{name: "an eviction in flight that explains nothing", pod: aPod("a"), budgets: []*budget{aBudget("b", 0, 1, 2, 3, inFlight(1))}, code: "pdb",
			why: "PDB ns/b allows 0 disruptions (healthy 1, needed 2): 2 of the 3 pods that it expects are not ready, or not there"},
		{name: "not judged yet", pod: aPod("a"), budgets: []*budget{aBudget("b", 1, 3, 2, 3, stale)}, code: "pdb", why: "PDB ns/b was changed and the cluster has not judged it yet"},
		{name: "counts no pods", pod: aPod("a", ownedBy("")), budgets: []*budget{aBudget("b", 0, 1, 0, 0, condition(policyv1.InsufficientPodsReason, ""))}, code: "pdb",
			why: "PDB ns/b allows 0 disruptions (healthy 1, needed 0): InsufficientPods, for it expects 0 pods: with maxUnavailable, or a percentage, it counts those that the pods' controllers want, and pods without one not at all"},
		{name: "cannot count", pod: aPod("a"), budgets: []*budget{aBudget("b", 0, 0, 0, 0, stale, condition(policyv1.SyncFailedReason, `found no controllers for pod "a"`))}, code: "pdb",
			why: `PDB ns/b allows no disruptions, for the cluster cannot count its pods (SyncFailed): found no controllers for pod "a"`},
		{name: "more pods than are needed and not enough ready", pod: aPod("a"), budgets: []*budget{aBudget("b", 0, 6, 6, 8, condition(policyv1.InsufficientPodsReason, ""))}, code: "pdb",
			why: "PDB ns/b allows 0 disruptions (healthy 6, needed 6): 2 of the 8 pods that it expects are not ready, or not there"},
		{name: "another reason", pod: aPod("a"), budgets: []*budget{aBudget("b", 0, 3, 2, 4, condition("Frozen", ""))}, code: "pdb", why: "PDB ns/b allows 0 disruptions (healthy 3, needed 2): Frozen"},
		{name: "two", pod: aPod("a"), budgets: []*budget{aBudget("c", 1, 3, 2, 3), aBudget("b", 1, 3, 2, 3)}, code: "two_pdbs",
			why: "pod ns/a is selected by two disruption budgets, ns/b and ns/c: the cluster evicts no such pod"},
		{name: "two on a pod that has not started", pod: aPod("a", phase(corev1.PodPending)), budgets: []*budget{aBudget("c", 0, 0, 1, 1), aBudget("b", 0, 0, 1, 1)}},
		{name: "stopping", pod: aPod("a", deleted), budgets: []*budget{aBudget("b", 0, 2, 2, 3)}},
		{name: "finished", pod: aPod("a", phase(corev1.PodSucceeded)), budgets: []*budget{aBudget("b", 0, 2, 2, 3)}},
		{name: "not ready, others healthy", pod: aPod("a", unready), budgets: []*budget{aBudget("b", 0, 2, 2, 3)}},
		{name: "not ready, broken", pod: aPod("a", unready), budgets: []*budget{aBudget("b", 0, 1, 2, 3)}, code: "pdb",
			why: "PDB ns/b allows 0 disruptions (healthy 1, needed 2): 2 of the 3 pods that it expects are not ready, or not there, and the pod is not ready: its PDB's unhealthyPodEvictionPolicy IfHealthyBudget keeps it"},
		{name: "not ready, nothing needed", pod: aPod("a", unready), budgets: []*budget{aBudget("b", 0, 0, 0, 1)}, code: "pdb",
			why: "PDB ns/b allows 0 disruptions (healthy 0, needed 0): 1 of the 1 pods that it expects is not ready, or not there, and the pod is not ready: its PDB's unhealthyPodEvictionPolicy IfHealthyBudget keeps it"},
		{name: "not ready, always", pod: aPod("a", unready), budgets: []*budget{aBudget("b", 0, 1, 2, 3, always)}},
		{name: "selects none", pod: aPod("a"), budgets: []*budget{aBudget("b", 0, 1, 2, 3, none)}},
		{name: "selects every one", pod: aPod("a", func(p *corev1.Pod) { p.Labels = nil }), budgets: []*budget{aBudget("b", 0, 1, 2, 3, every)}, code: "pdb",
			why: "PDB ns/b allows 0 disruptions (healthy 1, needed 2): 2 of the 3 pods that it expects are not ready, or not there"},
		{name: "of another namespace", pod: aPod("a"), budgets: []*budget{aBudget("b", 0, 1, 2, 3, elsewhere)}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			h := rule(tc.budgets, tc.pod)
			if h == nil {
				h = &hold{}
			}
			if h.code != tc.code || h.why != tc.why {
				t.Errorf("%q: %s", h.code, h.why)
			}
		})
	}
}

// condition is that the cluster allows no disruption, and why.
func condition(reason, message string) func(p *policyv1.PodDisruptionBudget) {
	return func(p *policyv1.PodDisruptionBudget) {
		p.Status.Conditions = []metav1.Condition{{Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse, Reason: reason, Message: message}}
	}
}

// What there is to do about a budget helps with what keeps it from allowing any.
func TestWhatToDoAboutABudget(t *testing.T) {
	t.Parallel()
	number := func(p *policyv1.PodDisruptionBudget) { p.Spec.MinAvailable = ptr.To(intstr.FromInt32(1)) }
	for name, tt := range map[string]struct {
		b    *budget
		says string
		not  string
	}{
		"needs all, by a number":     {aBudget("b", 0, 1, 1, 1, number), "lower minAvailable of PDB ns/b or add replicas", ""},
		"needs all, by a percentage": {aBudget("b", 0, 3, 3, 3), "let PDB ns/b go without a pod", "add replicas"},
		"counts no pods":             {aBudget("b", 0, 1, 0, 0), "set minAvailable of PDB ns/b to a number, or give its pods a controller", "add replicas"},
		"expects none, by a number":  {aBudget("b", 0, 0, 1, 0, number), "raise the budget of PDB ns/b or add replicas", ""},
		"cannot count":               {aBudget("b", 0, 3, 2, 3, condition(policyv1.SyncFailedReason, "no scale")), "give the pods of PDB ns/b a controller that tells how many", "add replicas"},
		"not judged":                 {aBudget("b", 0, 3, 2, 3, func(p *policyv1.PodDisruptionBudget) { p.Generation = 2 }), "controller manager does not judge PDB ns/b", "add replicas"},
		"evictions in flight":        {aBudget("b", 0, 108, 108, 120, inFlight(12)), "wait for the evictions that PDB ns/b counts", "add replicas"},
		"pods that are not ready":    {aBudget("b", 0, 2, 2, 3), "get the pods of PDB ns/b ready (2 of 3 are)", ""},
	} {
		if got := tt.b.act(); !strings.Contains(got, tt.says) || tt.not != "" && strings.Contains(got, tt.not) || !strings.HasSuffix(got, ", then drain again") {
			t.Errorf("%s: %s", name, got)
		}
	}
}

func TestAllowances(t *testing.T) {
	t.Parallel()
	var a allowances
	now := time.Now()
	two := aBudget("b", 2, 4, 2, 4)
	all := []*budget{two}
	take := func(name string, p *corev1.Pod, want bool) {
		t.Helper()
		if got := a.take(now, all, p); got != want {
			t.Errorf("%s: %t", name, got)
		}
	}
	take("first", aPod("a"), true)
	take("second", aPod("b"), true)
	take("third", aPod("c"), false)
	take("one that is not ready", aPod("d", unready), true)
	take("one that has not started", aPod("e", phase(corev1.PodPending)), true)
	take("one of nobody's", aPod("f", func(p *corev1.Pod) { p.Labels = nil }), true)
	counted := aBudget("b", 1, 3, 2, 4)
	counted.version = "2"
	all = []*budget{counted}
	take("after the budget was counted anew", aPod("c"), true)
	take("and its one is taken", aPod("g"), false)
	now = now.Add(refill + time.Second)
	take("after nobody used it", aPod("g"), true)
	now = now.Add(refill + time.Second)
	a.empty(now, counted)
	if l := a.left[counted.key()]; l.left != 0 {
		t.Errorf("refused, and still %d left", l.left)
	}
	now, all = now.Add(time.Hour), []*budget{aBudget("new", 1, 3, 2, 4)}
	take("of another budget", aPod("h"), true)
	if len(a.left) != 1 {
		t.Errorf("%d budgets are remembered", len(a.left))
	}
}

func TestMercy(t *testing.T) {
	t.Parallel()
	p := payload{DrainPayload: operation.DrainPayload{GracePeriodSeconds: -1, OnDeadline: "force", ForceWindowSeconds: 60}}
	short := p
	short.GracePeriodSeconds = 5
	for _, tc := range []struct {
		p    payload
		own  int64
		left time.Duration
		want int64
	}{{p, 300, time.Minute, 50}, {p, 30, time.Minute, 30}, {p, 300, 8 * time.Second, 0}, {short, 300, time.Minute, 5}, {short, 1, time.Minute, 5}} {
		if got := tc.p.mercy(tc.own, tc.left); got != tc.want {
			t.Errorf("own grace %d, %s left: %d, not %d", tc.own, tc.left, got, tc.want)
		}
	}
}

func TestReadPayload(t *testing.T) {
	t.Parallel()
	p := thePayload(t, ``)
	want := operation.DrainPayload{GracePeriodSeconds: -1, OnDeadline: "stop", OnCancel: "leave", Order: "priority", ForceWindowSeconds: 30}
	if diff := cmp.Diff(want, p.DrainPayload); diff != "" {
		t.Error(diff)
	}
	if p := thePayload(t, `{"grace_period_seconds":90}`); p.ForceWindowSeconds != 120 || p.window() != 0 {
		t.Errorf("window of %d s, %s", p.ForceWindowSeconds, p.window())
	}
	for _, bad := range []string{`{"pod_selector":"a in b"}`, `{"force":1}`, `[`} {
		if _, err := readPayload(&protocol.Assignment{Payload: []byte(bad)}); err == nil {
			t.Errorf("%s was taken", bad)
		}
	}
}
