package node

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// What had run to its end is evicted past no rule, though nothing starts it again,
// and whichever comes first: the API server's answer, or that the pod is going.
func TestFinishedPodIsNotForced(t *testing.T) {
	t.Parallel()
	finished := func(ph corev1.PodPhase) *corev1.Pod { return aPod("a", ownedBy(""), phase(ph)) }
	for name, tt := range map[string]struct {
		pod    *corev1.Pod
		seen   bool // going, before the answer is taken
		forced bool
	}{
		"succeeded, seen first":   {finished(corev1.PodSucceeded), true, false},
		"succeeded, seen after":   {finished(corev1.PodSucceeded), false, false},
		"failed, seen first":      {finished(corev1.PodFailed), true, false},
		"failed, seen after":      {finished(corev1.PodFailed), false, false},
		"still runs, seen first":  {finished(corev1.PodRunning), true, true},
		"still runs, seen after":  {finished(corev1.PodRunning), false, true},
		"of a Job, seen first":    {aPod("a", phase(corev1.PodSucceeded)), true, false},
		"of a Job, runs on":       {aPod("a"), false, false},
		"of a Job, runs on, seen": {aPod("a"), true, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := chosenSetup(t, func(int, *policyv1.Eviction) error { return nil }, tt.pod)
				notes := ""
				b.task.Note = func(code, text string) { notes += code + ": " + text + "\n" }
				p := &planned{uid: tt.pod.UID, name: key(tt.pod), verdict: verdict{pod: tt.pod, unmanaged: len(tt.pod.OwnerReferences) == 0}}
				p.saw(tt.pod)
				going := tt.pod.DeepCopy()
				deleted(going)
				d := b.e.newDrive(b.task, &session{node: theNode(true), plan: map[types.UID]*planned{p.uid: p}}, payload{DrainPayload: operation.DrainPayload{GracePeriodSeconds: -1}}, true)
				d.start(t.Context(), &look{ready: []*planned{p}, force: map[*planned]int{}})
				r := <-d.results
				if tt.seen {
					p.saw(going)
				}
				d.take(r)
				p.saw(going)
				if len(b.sent) != 1 || (p.forced != "") != tt.forced || strings.Contains(notes, "forced") != tt.forced {
					t.Errorf("%d evictions; forced %q, notes %q", len(b.sent), p.forced, notes)
				}
			})
		})
	}
}

// What refused a pod stands in the way, too, while the pod is asked for again. A
// budget does not: it is known what it allows now.
func TestRefusalStandsWhileAskedAgain(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]int{"eviction_refused": 1, "namespace_terminating": 1, "pdb": 0} {
		p := &planned{name: "ns/a", pod: aPod("a"), inFlight: true, refusal: &refusal{code: code, rule: "rule", why: "no"}}
		l := &look{force: map[*planned]int{}, next: heartbeat, waiting: []*planned{p}}
		var told []protocol.Blocker
		d := &drive{drainer: newDrainer(&cluster.Cluster{Now: time.Now}, Options{}), s: &session{node: theNode(true), plan: map[types.UID]*planned{}}, t: stuckTask(lease("op_1"), &told)}
		if stop := d.lookRules(l); stop != nil || len(l.holds) != want || len(l.ready) != 0 || want == 1 && l.holds[0].rule != "rule" {
			t.Errorf("%s: stop %v, held by %+v, %d to ask for", code, stop, l.holds, len(l.ready))
		}
	}
}
