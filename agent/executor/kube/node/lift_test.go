package node

import (
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// unsigned leaves of a lift what agents of before wrote: whose doing it was, and of no run.
func (b *outcomeBench) unsigned() {
	b.t.Helper()
	n := b.node()
	text, err := json.Marshal(LiftOf(n))
	if err != nil {
		b.t.Fatal(err)
	}
	n.Annotations[cluster.AnnotationUncordon] = string(text)
	if err := b.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("nodes"), n, "", metav1.UpdateOptions{FieldManager: fieldManager}); err != nil {
		b.t.Fatal(err)
	}
}

// A retry that placed no cordon has none to lift, and says so, whatever mark it leaves on
// the node: an earlier run of the operation had lifted its own.
func TestRestoreAfterAnEarlierRun(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		same    bool // the run, under a later lease
		before  bool // an agent of before had lifted it
		strips  bool // the retry's cordon does not come to be
		cordons bool // it does
		nothing bool
		events  int // of the restore
	}{
		"it never cordoned the node":                 {nothing: true},
		"its cordon was taken out":                   {strips: true, nothing: true},
		"it cordoned the node":                       {cordons: true, events: 1},
		"the same run":                               {same: true, events: 1},
		"the same run, lifted by an agent of before": {same: true, before: true, events: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				defer time.Sleep(2 * linger)
				b := outcomeSetup(t, aPod("a"))
				b.versioned()
				events := func() int {
					synctest.Wait() // they are told by then
					list, err := b.client.CoreV1().Events("").List(t.Context(), metav1.ListOptions{})
					if err != nil {
						t.Fatal(err)
					}
					time.Sleep(time.Second) // they are named by their time
					return len(list.Items)
				}
				restore := func(e *drainer) executor.Outcome {
					b.task.Step = protocol.Step{PlanStep: operation.PlanStep{Name: "restore", Cleanup: true}}
					return e.drain().Steps["restore"].Execute(t.Context(), b.task)
				}
				cordon := func() executor.Outcome {
					b.task.Step = executor.StepNamed(b.task.Assignment, "cordon")
					return b.e.cordon(t.Context(), b.task, &placing{})
				}
				if o := cordon(); o.Class != operation.OutcomeDone {
					t.Fatalf("%+v", o)
				}
				_ = events()
				if o := restore(b.e); o.Class != operation.OutcomeDone || o.Nothing {
					t.Fatalf("%+v", o)
				}
				_ = events()
				if tt.before {
					b.unsigned()
				}
				if b.task.Assignment.Generation++; !tt.same {
					b.task.Assignment.Run++
				}
				if tt.strips {
					b.versioned(func(n *corev1.Node) { n.Spec.Unschedulable = false })
				}
				if tt.strips || tt.cordons {
					_ = events()
					if o := cordon(); (o.Class == operation.OutcomeDone) != tt.cordons {
						t.Errorf("the cordon: %+v", o)
					}
				}
				told := events()
				for _, e := range []*drainer{b.e, b.agent()} { // one that remembers, and one that does not
					if o := restore(e); o.Class != operation.OutcomeDone || o.Nothing != tt.nothing {
						t.Errorf("%+v", o)
					}
					if n := events(); n != told+tt.events {
						t.Errorf("%d events of the restore", n-told)
					}
					told += tt.events
				}
			})
		})
	}
}
