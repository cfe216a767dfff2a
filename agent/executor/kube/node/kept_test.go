package node

import (
	"strings"
	"testing"
	"testing/synctest"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// A cordon that was there before stays its owner's: the operation's end says whose it
// is, and an event on the node that a drain began there all the same.
func TestCordonThatWasThere(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		typ       string
		cordoned  bool
		by        string // the annotation's operation; empty: a person's
		says      string // among what is verified
		otherwise string // the node's event
	}{
		"a cordon over a person's":  {typ: "node.cordon", cordoned: true, says: "the cordon is not this operation's"},
		"a drain over a person's":   {typ: "node.drain", cordoned: true, says: "the cordon is not this operation's", otherwise: "CordonKept"},
		"a drain over another's":    {typ: "node.drain", cordoned: true, by: "op_0", says: "op_0", otherwise: "CordonKept"},
		"a cordon of a node":        {typ: "node.cordon", otherwise: "Cordoned"},
		"a drain of a node as well": {typ: "node.drain", otherwise: "Cordoned"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				n := theNode(tt.cordoned)
				if tt.by != "" {
					n.Annotations = map[string]string{cluster.AnnotationCordon: `{"owner":"opsplane","operation":"` + tt.by + `"}`}
				}
				client := fake.NewClientset(n)
				e := newDrainer(openFake(t, client), Options{})
				var told []protocol.Blocker
				task := stuckTask(lease("op_1"), &told)
				task.Assignment.Type = tt.typ
				if o := e.cordon(t.Context(), task, &placing{}); o.Class != operation.OutcomeDone {
					t.Fatalf("%+v", o)
				}
				synctest.Wait()
				list, err := client.CoreV1().Events(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{})
				reasons := ""
				for _, ev := range list.Items {
					reasons += ev.Reason
				}
				if err != nil || reasons != tt.otherwise {
					t.Errorf("events %q, %v", reasons, err)
				}
				var end executor.Ending
				e.nodes.observe(t.Context(), task.Assignment, &end)
				if said := strings.Join(end.Verified, "\n"); !strings.Contains(said, tt.says) || tt.says == "" && strings.Contains(said, "not this") {
					t.Errorf("verified %q", said)
				}
			})
		})
	}
}

// Whoever owns a pod that was deleted past a rule sees it on the pod.
func TestForcedPodHasAnEvent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		pod := aPod("a")
		b := chosenSetup(t, func(int, *policyv1.Eviction) error { return nil }, pod)
		p := &planned{uid: pod.UID, name: key(pod), pod: pod, verdict: verdict{pod: pod}, heldBy: "PDB ns/b allows 0 disruptions"}
		d := b.e.newDrive(b.task, &session{node: theNode(true), plan: map[types.UID]*planned{p.uid: p}}, payload{DrainPayload: operation.DrainPayload{GracePeriodSeconds: -1}}, true)
		d.start(t.Context(), &look{ready: []*planned{p}, force: map[*planned]int{p: withGrace}})
		d.take(<-d.results)
		synctest.Wait()
		list, err := b.client.CoreV1().Events("ns").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != 1 {
			t.Fatalf("%d events, %v", len(list.Items), err)
		}
		if e := list.Items[0]; e.InvolvedObject.UID != pod.UID || e.Type != "Warning" || e.Reason != "Forced" || !strings.Contains(e.Message, "PDB ns/b allows 0 disruptions (operation op_1") {
			t.Errorf("%+v", e)
		}
	})
}
