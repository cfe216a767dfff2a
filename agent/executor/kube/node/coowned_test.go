package node

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// apply has a person apply that the node is closed, which an operation has closed.
func (b *outcomeBench) apply(manager string) {
	b.t.Helper()
	n := b.node()
	n.ManagedFields = nil
	for who, how := range map[string]metav1.ManagedFieldsOperationType{manager: metav1.ManagedFieldsOperationApply, fieldManager: metav1.ManagedFieldsOperationUpdate} {
		n.ManagedFields = append(n.ManagedFields, metav1.ManagedFieldsEntry{Manager: who, Operation: how, APIVersion: "v1", FieldsType: "FieldsV1",
			FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:unschedulable":{}}}`)})
	}
	if err := b.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("nodes"), n, ""); err != nil {
		b.t.Fatal(err)
	}
}

// close has a person cordon the node with tools of their own.
func (b *outcomeBench) close(manager string) {
	b.t.Helper()
	n := b.node()
	n.Spec.Unschedulable = true
	n.ManagedFields = []metav1.ManagedFieldsEntry{bookedBy(manager, `{"f:spec":{"f:unschedulable":{}}}`)}
	if err := b.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("nodes"), n, ""); err != nil {
		b.t.Fatal(err)
	}
}

// bookedBy is an entry of the API server's books.
func bookedBy(manager, fields string) metav1.ManagedFieldsEntry {
	return metav1.ManagedFieldsEntry{Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields)}
}

// A person who applies the cordon that an operation placed has it: no operation lifts it
// unless asked to, be it a restore or an uncordon.
func TestCordonThatAPersonAppliedToo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		defer time.Sleep(2 * linger)
		b := outcomeSetup(t, aPod("a"))
		b.versioned()
		for _, step := range []string{"preflight", "cordon"} {
			if o := b.run(b.e, step); o.Class != operation.OutcomeDone {
				t.Fatalf("%s: %+v", step, o)
			}
		}
		b.apply("alice")
		restore := b.e.drain().Steps["restore"]
		if f := restore.Probe(t.Context(), b.task); f.Phase != operation.StepSucceeded {
			t.Errorf("restore probed: %+v", f)
		}
		if o := restore.Execute(t.Context(), b.task); o.Class != operation.OutcomeDone || !o.Nothing || !strings.Contains(o.Detail, "which is cordoned by external alice") {
			t.Errorf("restore: %+v", o)
		}
		if list := b.preview("node.uncordon", `{}`); len(list) != 1 || list[0].Code != "cordon_not_owned" || !strings.Contains(list[0].Detail, "external alice") {
			t.Errorf("the dry run shows %+v", list)
		}
		if o := b.e.uncordon(t.Context(), b.task); o.ErrorCode != "cordon_not_owned" || o.Class != operation.OutcomePermanent || !strings.Contains(o.Detail, "external alice") {
			t.Errorf("uncordon: %+v", o)
		}
		if end, _ := b.observe(b.e); !b.node().Spec.Unschedulable || !strings.Contains(strings.Join(end.Verified, "\n"), "the cordon is not this operation's: external alice") {
			t.Errorf("the node is left %+v, verified %q", b.node().Spec, end.Verified)
		}
		b.task.Assignment.Payload = []byte(`{"take_over":true}`)
		noted := ""
		b.task.Note = func(code, detail string) { noted += code + ": " + detail }
		if o := b.e.uncordon(t.Context(), b.task); o.Class != operation.OutcomeDone || b.node().Spec.Unschedulable || !strings.Contains(noted, "cordon_taken_over: the cordon that was lifted: owner external, by alice") {
			t.Errorf("uncordon that takes over: %+v, noted %q", o, noted)
		}
	})
}

// A restore that had nothing to restore says so, and one that lifted its cordon does not,
// also where the answer to that was lost.
func TestRestoreOfNothing(t *testing.T) {
	t.Parallel()
	uncordoned := func(b *outcomeBench) {
		n := b.node()
		n.Spec.Unschedulable = false
		if err := b.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("nodes"), n, ""); err != nil {
			b.t.Fatal(err)
		}
	}
	restored := func(b *outcomeBench) {
		b.e.drain().Steps["restore"].Execute(b.t.Context(), b.task)
		synctest.Wait() // the event is told by then
	}
	for name, tt := range map[string]struct {
		before  func(b *outcomeBench)
		nothing bool
		events  int // after the cordon's
	}{
		"its own cordon":               {func(*outcomeBench) {}, false, 1},
		"its own, lifted a moment ago": {restored, false, 2},
		"its own, lifted, and somebody else's now": {func(b *outcomeBench) {
			restored(b)
			b.close("alice")
		}, false, 1},
		"somebody else uncordoned it": {uncordoned, true, 0},
		"somebody else's":             {func(b *outcomeBench) { b.apply("alice") }, true, 0},
		"its own, lifted in an earlier run": {func(b *outcomeBench) {
			restored(b)
			b.task.Assignment.Run++
		}, true, 1},
		"its own, lifted in an earlier run, and somebody else's since": {func(b *outcomeBench) {
			restored(b)
			b.task.Assignment.Run++
			b.close("alice")
			time.Sleep(time.Second)
			b.task.Step = executor.StepNamed(b.task.Assignment, "cordon")
			if o := b.e.cordon(b.t.Context(), b.task, &placing{}); o.Class != operation.OutcomeDone || !strings.Contains(o.Detail, "stays theirs") {
				b.t.Errorf("%+v", o)
			}
			synctest.Wait() // the event is told by then
			uncordoned(b)
			b.task.Step = protocol.Step{PlanStep: operation.PlanStep{Name: "restore", Cleanup: true}}
		}, true, 2},
		"of a node that is gone": {func(b *outcomeBench) {
			if err := b.client.CoreV1().Nodes().Delete(b.t.Context(), "n", metav1.DeleteOptions{}); err != nil {
				b.t.Fatal(err)
			}
		}, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				defer time.Sleep(2 * linger)
				b := outcomeSetup(t, aPod("a"))
				b.versioned()
				if o := b.run(b.e, "cordon"); o.Class != operation.OutcomeDone {
					t.Fatalf("%+v", o)
				}
				b.task.Step = protocol.Step{PlanStep: operation.PlanStep{Name: "restore", Cleanup: true}}
				time.Sleep(time.Second) // events are named by their time
				tt.before(b)
				time.Sleep(time.Second)
				synctest.Wait() // events are told by then
				restore := b.agent().drain().Steps["restore"]
				switch f := restore.Probe(t.Context(), b.task); {
				case name == "its own cordon":
					if f.Phase != operation.StepPending {
						t.Errorf("a successor finds %+v", f)
					}
				case f.Phase != operation.StepSucceeded || f.Nothing != tt.nothing || f.Detail == "":
					t.Errorf("a successor finds %+v", f)
				}
				o := b.e.drain().Steps["restore"].Execute(t.Context(), b.task)
				if o.Class != operation.OutcomeDone || o.Nothing != tt.nothing {
					t.Errorf("%+v", o)
				}
				synctest.Wait()
				if events, err := b.client.CoreV1().Events("").List(t.Context(), metav1.ListOptions{}); err != nil || len(events.Items) != 1+tt.events {
					t.Errorf("events %+v, %v", events.Items, err)
				}
			})
		})
	}
}
