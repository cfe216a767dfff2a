package node

import (
	"context"
	"encoding/json"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// stripped tells whether a code, a rule and a detail are of a change that admission
// took out.
func stripped(code, rule, detail string) bool {
	return code == codeRefused && rule == "admission" && strings.Contains(detail, "mutates nodes took it out")
}

// preview is a dry run of an operation on the node.
func (b *outcomeBench) preview(typ, payload string) []protocol.Blocker {
	b.t.Helper()
	ask := b.e.nodes.preview
	if typ == "node.drain" {
		ask = b.e.previewDrain
	}
	list, err := ask(b.t.Context(), protocol.PreviewRequest{Type: typ, TargetName: "node:n", NodeName: "n", Payload: []byte(payload)})
	if err != nil {
		b.t.Fatal(err)
	}
	return list
}

func (b *outcomeBench) node() *corev1.Node {
	b.t.Helper()
	n, err := b.client.CoreV1().Nodes().Get(context.Background(), "n", metav1.GetOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	return n
}

// Admission that mutates nodes takes a cordon out of the patch: nobody uncordoned the node,
// which never was cordoned, and nothing tells of a cordon.
func TestCordonThatAdmissionStrips(t *testing.T) {
	t.Parallel()
	for _, typ := range []string{"node.cordon", "node.drain"} {
		t.Run(typ, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				defer time.Sleep(2 * linger)
				b := outcomeSetup(t, aPod("a"))
				b.versioned(func(n *corev1.Node) { n.Spec.Unschedulable = false })
				if list := b.preview(typ, `{}`); len(list) != 1 || !stripped(list[0].Code, list[0].Rule, list[0].Detail) {
					t.Errorf("the dry run shows %+v", list)
				}
				b.task.Assignment.Type = typ
				var told []protocol.Blocker
				b.task.Blocked = func(now []protocol.Blocker) { told = now }
				o := b.run(b.e, "preflight")
				if typ == "node.drain" {
					o = b.run(b.e, "cordon")
				} else {
					o = b.e.cordon(t.Context(), b.task, &placing{})
				}
				if o.Class != operation.OutcomePermanent || o.CommandID == "" || !stripped(o.ErrorCode, "admission", o.Detail) || !strings.Contains(o.ActionText, "mutating admission webhook or policy") {
					t.Errorf("%+v", o)
				}
				if len(told) != 1 || !stripped(told[0].Code, told[0].Rule, told[0].Detail) {
					t.Errorf("shown %+v", told)
				}
				if diff := cmp.Diff(map[string]string{cluster.AnnotationMark: "op_1/1/1"}, b.node().Annotations); diff != "" {
					t.Errorf("left on the node: %s", diff)
				}
				time.Sleep(time.Hour)
				for who, e := range map[string]*drainer{"the agent": b.e, "another": b.agent()} {
					if end, d := b.observe(e); typ == "node.drain" && (d.Planned != nil || d.GPUs == nil || *d.GPUs != 0 || d.GPUHours == nil || *d.GPUHours != 0 || len(end.Residual) != 0) {
						t.Errorf("%s tells %q, left %+v, %s", who, end.Message, end.Residual, end.Details)
					}
				}
				synctest.Wait()
				events, err := b.client.CoreV1().Events("").List(t.Context(), metav1.ListOptions{})
				if err != nil || len(events.Items) > 0 {
					t.Errorf("events %+v, %v", events, err)
				}
			})
		})
	}
}

// A lift that is taken out leaves the cordon to whom it belongs.
func TestUncordonThatAdmissionStrips(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"uncordon", "restore"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				defer time.Sleep(2 * linger)
				b := outcomeSetup(t, aPod("a"))
				strips := false
				b.versioned(func(n *corev1.Node) { n.Spec.Unschedulable = n.Spec.Unschedulable || strips })
				for _, step := range []string{"preflight", "cordon"} {
					if o := b.run(b.e, step); o.Class != operation.OutcomeDone {
						t.Fatalf("%s: %+v", step, o)
					}
				}
				strips = true
				before := b.node()
				if list := b.preview("node.uncordon", `{}`); len(list) != 1 || !stripped(list[0].Code, list[0].Rule, list[0].Detail) {
					t.Errorf("the dry run shows %+v", list)
				}
				do := b.e.uncordon
				if step == "restore" {
					b.task.Assignment.Steps = append(b.task.Assignment.Steps, protocol.Step{PlanStep: operation.PlanStep{ID: "stp_restore", Name: "restore", Cleanup: true}})
					do = b.e.drain().Steps["restore"].Execute
				}
				if o := do(t.Context(), b.task); o.Class != operation.OutcomePermanent || !stripped(o.ErrorCode, "admission", o.Detail) {
					t.Errorf("%+v", o)
				}
				n := b.node()
				if !maps.Equal(n.Annotations, before.Annotations) || !ours(CordonOf(n), "op_1") {
					t.Errorf("the node is left with %v, was %v", n.Annotations, before.Annotations)
				}
				if end, _ := b.observe(b.e); len(end.Residual) == 0 || end.Residual[0].Detail != "node n is left cordoned by this operation" {
					t.Errorf("left %+v", end.Residual)
				}
			})
		})
	}
}

// The API server's books forget who had closed a node once a lift is in them, also where
// admission then takes that lift out. The cordon stays whose it was: nothing that is left on
// the node makes it another's.
func TestStrippedLiftLeavesTheOwner(t *testing.T) {
	t.Parallel()
	const said = `{"owner":"opsplane","operation":"op_old","by":"tok_old","since":"2026-01-02T03:04:05Z"}`
	at := metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	books := func(manager, set string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", FieldsType: "FieldsV1", Time: &at, FieldsV1: metav1.NewFieldsV1(set)}
	}
	const closes, notes = `{"f:spec":{"f:unschedulable":{}}}`, `{"f:metadata":{"f:annotations":{"f:opsplane.io/cordon":{}}}}`
	for name, tt := range map[string]struct {
		annotation string
		books      []metav1.ManagedFieldsEntry
		want       protocol.Cordon // after the lift
		says       string          // of the refusal
	}{
		"a person's, over what an operation left": {said, []metav1.ManagedFieldsEntry{books("kubectl-cordon", closes), books(fieldManager, notes)},
			protocol.Cordon{Owner: "external"}, "still that of external kubectl-cordon since 2026-01-02T03:04:05Z"},
		"a person's": {"", []metav1.ManagedFieldsEntry{books("kubectl-cordon", closes)}, protocol.Cordon{Owner: "external"}, "still that of external kubectl-cordon"},
		"an operation's": {said, []metav1.ManagedFieldsEntry{books(fieldManager, closes), books(fieldManager, notes)},
			protocol.Cordon{Owner: "opsplane", Operation: "op_old", By: "tok_old", Since: at.UTC()}, ""},
		"an operation's, of which somebody else wrote": {said, []metav1.ManagedFieldsEntry{books(fieldManager, closes), books("kubectl-annotate", notes)},
			protocol.Cordon{Owner: "opsplane", Since: at.UTC()}, ""},
		"an operation's, of which nothing is said": {"", []metav1.ManagedFieldsEntry{books(fieldManager, closes)}, protocol.Cordon{Owner: "opsplane", Since: at.UTC()}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				defer time.Sleep(2 * linger)
				b := outcomeSetup(t)
				b.versioned()
				stored := b.node()
				stored.ResourceVersion, stored.Spec.Unschedulable = "1", true
				if _, err := b.client.CoreV1().Nodes().Update(t.Context(), stored, metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
				read, why := stored.DeepCopy(), &refusal{}
				read.ManagedFields = tt.books
				if tt.annotation != "" {
					read.Annotations = map[string]string{cluster.AnnotationCordon: tt.annotation}
				}
				n := b.e.takeBack(t.Context(), b.task, read, stored, lift(), why).DeepCopy()
				n.ManagedFields = nil // the fake's own
				if diff := cmp.Diff(&tt.want, CordonOf(n)); diff != "" {
					t.Error(diff)
				}
				if !strings.Contains(why.why, tt.says) || (tt.says == "") != (why.why == "") {
					t.Errorf("the refusal says %q", why.why)
				}
			})
		})
	}
}

// Of a change that was taken out, what somebody has written over since stays theirs.
func TestTakeBackSparesWhatCameAfter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		defer time.Sleep(2 * linger)
		b := outcomeSetup(t)
		b.versioned(func(n *corev1.Node) { n.Spec.Unschedulable = false })
		text := "ours"
		set := change{annotations: map[string]*string{cluster.AnnotationCordon: &text, annotationDrain: &text}}
		read, stored, late := b.node(), b.node(), b.node()
		stored.ResourceVersion, stored.Annotations = "1", map[string]string{cluster.AnnotationCordon: text, annotationDrain: text}
		late.ResourceVersion, late.Annotations = "2", map[string]string{cluster.AnnotationCordon: "theirs", annotationDrain: text}
		if _, err := b.client.CoreV1().Nodes().Update(t.Context(), late, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		n := b.e.takeBack(t.Context(), b.task, read, stored, set, &refusal{})
		want := map[string]string{cluster.AnnotationCordon: "theirs", cluster.AnnotationMark: "op_1/1/1"}
		if diff := cmp.Diff(want, n.Annotations); diff != "" {
			t.Error(diff)
		}
	})
}

// booked keeps the books of what the agent sets, as the API server does: before admission
// mutates, so that what it takes out stays in them.
func (b *outcomeBench) booked(admission func(n *corev1.Node)) {
	b.versioned(func(n *corev1.Node) {
		o, err := b.client.Tracker().Get(corev1.SchemeGroupVersion.WithResource("nodes"), "", n.Name)
		if err != nil {
			b.t.Error(err)
			return
		}
		old := o.(*corev1.Node)
		set := n.Spec.Unschedulable && !old.Spec.Unschedulable
		stays := n.Spec.Unschedulable == old.Spec.Unschedulable && closedBy(old).manager == fieldManager
		owns := map[string]any{}
		for k := range n.Annotations {
			owns["f:"+k] = map[string]any{}
		}
		fields := map[string]any{"f:metadata": map[string]any{"f:annotations": owns}}
		if set || stays {
			fields["f:spec"] = map[string]any{"f:unschedulable": map[string]any{}}
		}
		text, err := json.Marshal(fields)
		if err != nil {
			b.t.Error(err)
		}
		n.ManagedFields = []metav1.ManagedFieldsEntry{bookedBy(fieldManager, string(text))}
		admission(n)
	})
}

// dying has the agent die of its nth patch, once that is stored.
func (b *outcomeBench) dying(nth int) (stored func()) {
	fence, n := b.task.Fence, 0
	b.task.Fence = func(ctx context.Context) (context.Context, context.CancelFunc, error) {
		if n++; n > nth {
			return nil, func() {}, executor.ErrFenced
		}
		return fence(ctx)
	}
	return func() { b.task.Fence = fence }
}

// An agent that dies before it has taken back what came with a cordon that admission took
// out leaves nobody to blame: the next lease asks again, and tells what it meets. A person
// who uncordoned the node in between is told as ever.
func TestCordonStrippedAndItsAgentDied(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		strips bool // still, under the next lease
		person bool // has opened the node, of which the cordon was kept
		code   string
	}{
		"still stripped": {strips: true, code: codeRefused},
		"no longer":      {},
		"by a person":    {person: true, code: "uncordoned_externally"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				defer time.Sleep(2 * linger)
				b := outcomeSetup(t, aPod("a"))
				strips := !tt.person
				b.booked(func(n *corev1.Node) { n.Spec.Unschedulable = n.Spec.Unschedulable && !strips })
				revive := b.dying(1)
				_ = b.run(b.e, "preflight")
				_ = b.run(b.e, "cordon")
				revive()
				if n := b.node(); n.Annotations[cluster.AnnotationCordon] == "" || n.Annotations[annotationDrain] == "" || n.Spec.Unschedulable != tt.person {
					t.Fatalf("the node is %+v, %v", n.Spec, n.Annotations)
				}
				if tt.person {
					n := b.node()
					n.Spec.Unschedulable, n.ManagedFields = false, []metav1.ManagedFieldsEntry{bookedBy(fieldManager, `{"f:metadata":{"f:annotations":{"f:opsplane.io/cordon":{}}}}`)}
					if err := b.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("nodes"), n, ""); err != nil {
						t.Fatal(err)
					}
				}
				synctest.Wait() // events are told by then
				strips = tt.strips
				heir := b.agent()
				b.task.Assignment.Generation = 2
				for i := range b.task.Assignment.Steps {
					b.task.Assignment.Steps[i].Phase = operation.StepPending
				}
				if end, d := b.observe(heir); !tt.person && (d.Planned != nil || len(end.Residual) > 0) {
					t.Errorf("of a cordon that never was it tells %s, left %+v", end.Details, end.Residual)
				}
				if f := heir.drain().Steps["restore"].Probe(t.Context(), b.task); f.Phase != operation.StepSucceeded || !f.Nothing {
					t.Errorf("to restore it finds %+v", f)
				}
				time.Sleep(time.Hour)
				if o := b.run(heir, "cordon"); o.ErrorCode != tt.code || tt.strips && !stripped(o.ErrorCode, "admission", o.Detail) {
					t.Errorf("%+v", o)
				}
				switch n := b.node(); {
				case tt.strips:
					if diff := cmp.Diff(map[string]string{cluster.AnnotationMark: "op_1/1/2"}, n.Annotations); diff != "" {
						t.Errorf("left on the node: %s", diff)
					}
				case !tt.person:
					r, c := readRecord(n, b.task.Assignment), CordonOf(n)
					if r == nil || c == nil || !r.Planned.Equal(time.Now()) || !c.Since.Equal(time.Now()) {
						t.Errorf("cordoned by %+v, recorded %+v", c, r)
					}
				}
			})
		})
	}
}

// A lift that admission took out, and whose agent died, left the cordon to whom it belongs.
func TestLiftStrippedAndItsAgentDied(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"uncordon", "restore"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				defer time.Sleep(2 * linger)
				b := outcomeSetup(t, aPod("a"))
				strips := false
				b.booked(func(n *corev1.Node) { n.Spec.Unschedulable = n.Spec.Unschedulable || strips })
				for _, step := range []string{"preflight", "cordon"} {
					if o := b.run(b.e, step); o.Class != operation.OutcomeDone {
						t.Fatalf("%s: %+v", step, o)
					}
				}
				before := CordonOf(b.node())
				strips = true
				revive := b.dying(1)
				do := func(e *drainer) executor.Outcome {
					if step == "uncordon" {
						return e.uncordon(t.Context(), b.task)
					}
					return e.drain().Steps["restore"].Execute(t.Context(), b.task)
				}
				b.task.Step = protocol.Step{PlanStep: operation.PlanStep{Name: step, Cleanup: step == "restore"}}
				_ = do(b.e)
				revive()
				synctest.Wait() // events are told by then
				n := b.node()
				if n.Annotations[cluster.AnnotationCordon] != "" || LiftOf(n) == nil {
					t.Fatalf("the node has %v", n.Annotations)
				}
				if diff := cmp.Diff(before, CordonOf(n)); diff != "" {
					t.Errorf("whose cordon it is: %s", diff)
				}
				heir := b.agent()
				b.task.Assignment.Generation = 2
				if f := heir.drain().Steps[step]; step == "restore" {
					if f := f.Probe(t.Context(), b.task); f.Phase != operation.StepPending {
						t.Errorf("it finds %+v", f)
					}
				}
				if o := do(heir); !stripped(o.ErrorCode, "admission", o.Detail) {
					t.Errorf("still stripped: %+v", o)
				}
				if n := b.node(); LiftOf(n) != nil || n.Annotations[cluster.AnnotationCordon] == "" || !cmp.Equal(before, CordonOf(n)) {
					t.Errorf("left on the node: %v", n.Annotations)
				}
				strips = false
				if o := do(heir); o.Class != operation.OutcomeDone || o.Nothing || b.node().Spec.Unschedulable {
					t.Errorf("no longer: %+v", o)
				}
				synctest.Wait()
			})
		})
	}
}
