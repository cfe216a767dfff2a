package node

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	ktesting "k8s.io/client-go/testing"

	"github.com/opsplane/opsplane/shared/operation"
)

// What the drain removed past a rule is told as that, also where the answer was lost, and
// who had told a pod to stop before is no matter of how it went in the end.
func TestForcedByWhom(t *testing.T) {
	t.Parallel()
	const lost, before = "; the answer to that was lost", "; somebody else had told it to stop before"
	podResource := corev1.SchemeGroupVersion.WithResource("pods")
	gone := func(*corev1.Pod) *corev1.Pod { return nil }
	same := func(p *corev1.Pod) *corev1.Pod { return p }
	sooner := func(p *corev1.Pod) *corev1.Pod { ago(2 * time.Second)(p); return p }
	for name, tt := range map[string]struct {
		stops bool // somebody told it to stop a second ago
		alone bool // it has no controller, and is evicted
		lost  bool // the answer
		comes func(p *corev1.Pod) *corev1.Pod
		want  string // what is told once it is gone
		by    int    // somebody else
		says  string // of its end
	}{
		"answered":                           {comes: gone, want: outcomeForced},
		"lost, and gone":                     {lost: true, comes: gone, want: outcomeForced, says: lost},
		"lost, and it stops":                 {lost: true, comes: sooner, want: outcomeForced, says: lost},
		"lost, and nothing came of it":       {lost: true, comes: same, want: outcomeGone, by: 1, says: "deleted by somebody else"},
		"it stopped":                         {stops: true, comes: gone, want: outcomeForced, by: 1, says: before},
		"it stopped; lost, and gone":         {stops: true, lost: true, comes: gone, want: outcomeForced, by: 1, says: lost + before},
		"it stopped; lost, and sooner":       {stops: true, lost: true, comes: sooner, want: outcomeForced, by: 1, says: lost + before},
		"it stopped; lost, and for nothing":  {stops: true, lost: true, comes: same, want: outcomeGone, by: 1, says: "deleted by somebody else"},
		"without a controller":               {alone: true, comes: gone, want: outcomeForced, says: "it has no controller"},
		"without one; lost, and gone":        {alone: true, lost: true, comes: gone, want: outcomeForced, says: lost},
		"without one; lost, and for nothing": {alone: true, lost: true, comes: same, want: outcomeGone, by: 1, says: "deleted by somebody else"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				pod := aPod("a")
				if tt.stops {
					ago(time.Second)(pod)
				}
				var b *chosenBench
				noted := ""
				comes := func() error {
					if p := tt.comes(pod.DeepCopy()); p == nil {
						_ = b.client.Tracker().Delete(podResource, pod.Namespace, pod.Name)
					} else if err := b.client.Tracker().Update(podResource, p, pod.Namespace); err != nil {
						t.Error(err)
					}
					if tt.lost {
						return apierrors.NewTimeoutError("request did not complete within requested timeout", 0)
					}
					return nil
				}
				b = chosenSetup(t, func(int, *policyv1.Eviction) error { return comes() }, pod)
				b.client.PrependReactor("delete", "pods", func(ktesting.Action) (bool, runtime.Object, error) { return true, nil, comes() })
				b.task.Note = func(code, text string) { noted += code + ": " + text + "\n" }
				p := &planned{uid: pod.UID, name: key(pod), pod: pod, verdict: verdict{pod: pod, unmanaged: tt.alone}, heldBy: "PDB ns/b"}
				d := b.e.newDrive(b.task, &session{node: theNode(true), plan: map[types.UID]*planned{p.uid: p}}, payload{DrainPayload: operation.DrainPayload{GracePeriodSeconds: -1}}, true)
				stage := withGrace
				if tt.alone {
					stage = 0
				}
				call := func() {
					d.start(t.Context(), &look{ready: []*planned{p}, force: map[*planned]int{p: stage}})
					d.take(<-d.results)
				}
				if call(); tt.lost { // it is read then
					call()
				}
				if left, err := b.client.Tracker().Get(podResource, pod.Namespace, pod.Name); err == nil && tt.want == outcomeForced {
					at := &details{}
					at.add(p, left.(*corev1.Pod), &reading{node: theNode(true), at: time.Now()}, false)
					if o := at.Pods[0]; o.Outcome != outcomeStopping || o.Forced || !strings.Contains(o.Detail, "though it was deleted past its rules") {
						t.Errorf("of one that is still there: %+v", o)
					}
				}
				if p.forced != "" && strings.Count(noted, "forced: pod ns/a (uid-a): "+p.forced) != 1 {
					t.Errorf("noted %q", noted)
				}
				for who, told := range map[string]func(d *details){
					"by what is there":       func(d *details) { d.add(p, nil, &reading{node: theNode(true), at: time.Now()}, false) },
					"of a node that is gone": func(d *details) { p.isGone = true; d.lost(p, false) },
				} {
					d := &details{}
					told(d)
					o, forced := d.Pods[0], tt.want == outcomeForced
					if o.Outcome != tt.want || o.Forced != forced || (d.Counts.Forced == 1) != forced || d.Counts.Gone != 1 || d.Counts.Others != tt.by || !strings.HasSuffix(o.Detail, tt.says) && !strings.Contains(o.Detail, tt.says+",") {
						t.Errorf("%s: %+v, %+v", who, o, d.Counts)
					}
					if tt.by > 0 && o.Evicted != nil {
						t.Errorf("%s: evicted at %s", who, o.Evicted)
					}
				}
			})
		})
	}
}
