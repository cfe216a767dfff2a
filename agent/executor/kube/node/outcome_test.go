package node

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// outcomeBench is an agent with a drain on a node of 8 GPUs.
type outcomeBench struct {
	t      *testing.T
	client *fake.Clientset
	e      *drainer
	task   *executor.Task
}

func outcomeSetup(t *testing.T, pods ...*corev1.Pod) *outcomeBench {
	t.Helper()
	n := theNode(false)
	n.Status.Capacity = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")}
	objects := []runtime.Object{n}
	for _, p := range pods {
		p.Spec.NodeName = "n"
		objects = append(objects, p)
	}
	client := fake.NewClientset(objects...)
	permit(client)
	b := &outcomeBench{t: t, client: client}
	var told []protocol.Blocker
	b.task = stuckTask(lease("op_1"), &told)
	b.task.Assignment.Type = "node.drain"
	for _, name := range []string{"preflight", "cordon", "evict", "wait", "confirm"} {
		b.task.Assignment.Steps = append(b.task.Assignment.Steps, protocol.Step{PlanStep: operation.PlanStep{ID: "stp_" + name, Name: name, Required: true}, Phase: operation.StepPending})
	}
	b.e = b.agent()
	return b
}

// agent is another agent on the same cluster, which remembers nothing.
func (b *outcomeBench) agent() *drainer {
	e := newDrainer(openFake(b.t, b.client), Options{})
	e.send = func(context.Context, *policyv1.Eviction) error { return nil }
	return e
}

// run executes a step of the drain and keeps what became of it.
func (b *outcomeBench) run(e *drainer, step string) executor.Outcome {
	b.task.Step = executor.StepNamed(b.task.Assignment, step)
	o := e.drain().Steps[step].Execute(b.t.Context(), b.task)
	for i := range b.task.Assignment.Steps {
		if s := &b.task.Assignment.Steps[i]; s.Name == step {
			s.Phase, s.Detail = operation.StepFailed, o.Detail
			if o.Class == operation.OutcomeDone {
				s.Phase = operation.StepSucceeded
			}
		}
	}
	return o
}

func (b *outcomeBench) observe(e *drainer) (executor.Ending, details) {
	var end executor.Ending
	e.observeDrain(b.t.Context(), b.task.Assignment, &end)
	var d details
	if len(end.Details) > 0 {
		if err := json.Unmarshal(end.Details, &d); err != nil {
			b.t.Fatal(err)
		}
	}
	return end, d
}

// A drain whose cordon was refused took nothing out of service and left nothing
// behind, whoever tells.
func TestDrainThatNeverCordoned(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		defer time.Sleep(2 * linger)
		b := outcomeSetup(t, aPod("a"))
		b.client.PrependReactor("patch", "nodes", func(a ktesting.Action) (bool, runtime.Object, error) {
			return !dryRuns(a), nil, apierrors.NewForbidden(nodeResource, "n", errors.New("ValidatingAdmissionPolicy 'freeze' with binding 'b' denied request: since now"))
		})
		if o := b.run(b.e, "preflight"); o.Class != operation.OutcomeDone {
			t.Fatalf("%+v", o)
		}
		time.Sleep(time.Hour) // the plane has other things to do
		if o := b.run(b.e, "cordon"); o.ErrorCode != "admission_refused" {
			t.Fatalf("%+v", o)
		}
		for who, e := range map[string]*drainer{"the agent": b.e, "another": b.agent()} {
			end, d := b.observe(e)
			if d.Planned != nil || d.GPUs == nil || *d.GPUs != 0 || d.GPUHours == nil || *d.GPUHours != 0 || d.Counts.Planned != 0 || len(d.Pods) != 0 || len(end.Residual) != 0 ||
				end.Message != "node is schedulable, no pod was evicted: it did not get past its step cordon" {
				t.Errorf("%s tells %q, left %+v, %s", who, end.Message, end.Residual, end.Details)
			}
		}
	})
}

// A node that is deleted while it is drained was out of service until then, with the
// GPUs that it had: by the agent's memory, or by the journal. What nobody knows is
// not 0.
func TestGPUHoursOfANodeThatWent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		defer time.Sleep(2 * linger)
		b := outcomeSetup(t, aPod("a"))
		for _, step := range []string{"preflight", "cordon"} {
			if o := b.run(b.e, step); o.Class != operation.OutcomeDone {
				t.Fatalf("%s: %+v", step, o)
			}
		}
		cordoned := time.Now()
		time.Sleep(30 * time.Minute)
		heir := b.agent()
		synctest.Wait() // events are told by then
		b.task.Assignment.Generation = 2
		b.e.sessions[sessionKey(b.task.Assignment)] = b.e.sessions["op_1/1/1"] // its own lease goes on
		if err := b.client.CoreV1().Nodes().Delete(t.Context(), "n", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if o := b.run(b.e, "evict"); o.ErrorCode != "node_gone" {
			t.Fatalf("%+v", o)
		}
		time.Sleep(time.Hour) // until it is asked what became of it
		end, d := b.observe(b.e)
		if d.GPUs == nil || *d.GPUs != 8 || d.GPUHours == nil || *d.GPUHours != 4 || d.Planned == nil || !d.Planned.Equal(cordoned) {
			t.Errorf("the agent tells %s", end.Details)
		}
		end, d = b.observe(heir)
		if d.GPUs == nil || *d.GPUs != 8 || d.GPUHours != nil || d.Planned == nil || !d.Planned.Equal(cordoned) || !strings.Contains(strings.Join(end.NotVerified, "\n"), "for how long") {
			t.Errorf("by the journal another tells %s, not verified %q", end.Details, end.NotVerified)
		}
		for i := range b.task.Assignment.Steps {
			b.task.Assignment.Steps[i].Detail = ""
		}
		end, d = b.observe(b.agent())
		if d.GPUs != nil || d.GPUHours != nil || d.Planned != nil || strings.Contains(string(end.Details), "gpu") {
			t.Errorf("what nobody knows is told: %s", end.Details)
		}
	})
}

// A successor that the annotation told goes on with what was known at the cordon,
// whatever the node has by then.
func TestGPUsAreThoseOfTheCordon(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		defer time.Sleep(2 * linger)
		b := outcomeSetup(t)
		for _, step := range []string{"preflight", "cordon"} {
			_ = b.run(b.e, step)
		}
		n, err := b.client.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		n.Status.Capacity = nil // its device plugin went
		if _, err := b.client.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(15 * time.Minute)
		heir := b.agent()
		synctest.Wait() // events are told by then
		b.task.Assignment.Generation = 2
		if end, d := b.observe(heir); d.GPUs == nil || *d.GPUs != 8 || d.GPUHours == nil || *d.GPUHours != 2 {
			t.Errorf("%s", end.Details)
		}
		_ = b.client.CoreV1().Nodes().Delete(t.Context(), "n", metav1.DeleteOptions{})
		if f := heir.probeCordon(t.Context(), b.task); f.ErrorCode != "node_gone" {
			t.Errorf("%+v", f)
		}
	})
}

func TestAccount(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	for name, r := range map[string]record{"counted": {Planned: at, GPUs: ptr.To(8)}, "none": {Planned: at, GPUs: ptr.To(0)}, "not counted": {Planned: at}} {
		got := readAccount("cordon of node n accepted" + r.account())
		if got == nil || !got.Planned.Equal(at) || (got.GPUs == nil) != (r.GPUs == nil) || got.GPUs != nil && *got.GPUs != *r.GPUs {
			t.Errorf("%s: %q read as %+v", name, r.account(), got)
		}
	}
	for _, text := range []string{"", "cordon of node n accepted", "; the drain counts from yesterday, 8 GPUs"} {
		if got := readAccount(text); got != nil {
			t.Errorf("%q read as %+v", text, got)
		}
	}
}

// Of a pod that was evicted without grace nobody waits for the kubelet: that its
// processes ended is not verified, and it is not gone before it was evicted.
func TestNoGraceIsTold(t *testing.T) {
	t.Parallel()
	none := func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](0) }
	for name, tt := range map[string]struct {
		payload string
		change  []func(p *corev1.Pod)
		unseen  bool
	}{
		"the payload's":                 {`{"grace_period_seconds":0}`, nil, true},
		"the pod's own":                 {`{}`, []func(p *corev1.Pod){none}, true},
		"the payload's over the pod's":  {`{"grace_period_seconds":5}`, []func(p *corev1.Pod){none}, false},
		"the default":                   {`{}`, nil, false},
		"the payload's, of a short one": {`{"grace_period_seconds":1}`, nil, false},
		"a pod that had ended":          {`{"grace_period_seconds":0}`, []func(p *corev1.Pod){phase(corev1.PodSucceeded)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				defer time.Sleep(2 * linger)
				b := outcomeSetup(t, aPod("a", tt.change...))
				b.task.Assignment.Payload = []byte(tt.payload)
				b.e.send = func(_ context.Context, ev *policyv1.Eviction) error {
					if len(ev.DeleteOptions.DryRun) > 0 {
						return nil
					}
					_ = b.client.CoreV1().Pods(ev.Namespace).Delete(context.Background(), ev.Name, metav1.DeleteOptions{})
					time.Sleep(100 * time.Millisecond) // the watch is ahead of the answer
					return nil
				}
				for _, step := range []string{"preflight", "cordon", "evict", "wait", "confirm"} {
					if o := b.run(b.e, step); o.Class != operation.OutcomeDone {
						t.Fatalf("%s: %+v", step, o)
					}
				}
				for who, e := range map[string]*drainer{"the agent": b.e, "another": b.agent()} {
					end, d := b.observe(e)
					if got := slices.ContainsFunc(end.NotVerified, func(s string) bool { return strings.Contains(s, "that the processes of 1 pods ended") }); got != tt.unseen && (who == "the agent" || !strings.Contains(name, "had ended")) {
						t.Errorf("%s: not verified %q", who, end.NotVerified)
					}
					for _, p := range d.Pods {
						if p.Evicted != nil && p.Gone != nil && p.Gone.Before(*p.Evicted) {
							t.Errorf("gone at %s, evicted at %s", p.Gone, p.Evicted)
						}
					}
				}
			})
		})
	}
}

// Whatever is left says why: a budget, a refusal, a wave before it, or what the rules
// say to whoever was not there.
func TestWhyPodsAreLeft(t *testing.T) {
	t.Parallel()
	other := func(p *corev1.Pod) { p.Labels = nil }
	high := func(p *corev1.Pod) { other(p); p.Spec.Priority = ptr.To[int32](10) }
	synctest.Test(t, func(t *testing.T) {
		defer time.Sleep(2 * linger)
		b := outcomeSetup(t, aPod("held"), aPod("refused", other), aPod("later", high))
		if err := b.client.Tracker().Add(&policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "b", UID: "b"},
			Spec:   policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}},
			Status: policyv1.PodDisruptionBudgetStatus{CurrentHealthy: 1, DesiredHealthy: 1, ExpectedPods: 1}}); err != nil {
			t.Fatal(err)
		}
		b.e.send = func(_ context.Context, ev *policyv1.Eviction) error {
			if len(ev.DeleteOptions.DryRun) > 0 {
				return nil
			}
			return status(400, `admission webhook "guard.example.com" denied the request: no`)
		}
		for _, step := range []string{"preflight", "cordon"} {
			_ = b.run(b.e, step)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		b.task.Step = executor.StepNamed(b.task.Assignment, "evict")
		if o := b.e.drain().Steps["evict"].Execute(ctx, b.task); o.Class != operation.OutcomeWaiting {
			t.Fatalf("%+v", o)
		}
		known := map[string]string{"ns/held": "PDB ns/b allows 0 disruptions (healthy 1, needed 1)", "ns/refused": "guard.example.com", "ns/later": "its turn did not come"}
		heirs := map[string]string{"ns/held": "PDB ns/b allows 0 disruptions (healthy 1, needed 1)", "ns/refused": "no eviction of it was taken", "ns/later": "no eviction of it was taken"}
		for who, e := range map[string]*drainer{"the agent": b.e, "another": b.agent()} {
			end, d := b.observe(e)
			want := known
			if who == "another" {
				want = heirs
			}
			if len(d.Pods) != 3 || len(end.Residual) != 2 {
				t.Fatalf("%s: %s, left %+v", who, end.Details, end.Residual)
			}
			for _, p := range d.Pods {
				if p.Outcome != outcomeLeft || !strings.Contains(p.Detail, want[p.Pod]) || !strings.Contains(end.Residual[1].Detail, "pod "+p.Pod+" ("+p.Detail) {
					t.Errorf("%s: %+v, left %s", who, p, end.Residual[1].Detail)
				}
			}
		}
	})
}

// Pods that came late are in the outcomes, with what became of the drain by them.
func TestLatePodsAreInTheOutcomes(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		late    *corev1.Pod
		code    string // that the drain ends with
		outcome string
		says    string
	}{
		"one that nothing starts again": {aPod("late", ownedBy(""), emptyDir), "unmanaged_pod", outcomeLeft, "it came after the plan and has no controller: nothing would start it again; keeps data in an emptyDir"},
		"one that tolerates the cordon": {aPod("late", func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}} }), "", outcomeCame, "it was left alone"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				defer time.Sleep(2 * linger)
				b := outcomeSetup(t)
				for _, step := range []string{"preflight", "cordon"} {
					_ = b.run(b.e, step)
				}
				time.Sleep(2 * watchLingers)
				tt.late.Spec.NodeName = "n"
				if err := b.client.Tracker().Add(tt.late); err != nil {
					t.Fatal(err)
				}
				if o := b.run(b.e, "evict"); o.ErrorCode != tt.code {
					t.Fatalf("%+v", o)
				}
				for who, e := range map[string]*drainer{"the agent": b.e, "another": b.agent()} {
					end, d := b.observe(e)
					if len(d.Pods) != 1 || d.Pods[0].Pod != "ns/late" || d.Pods[0].Outcome != tt.outcome || !strings.Contains(d.Pods[0].Detail, tt.says) || d.Counts.Stayed != 0 {
						t.Errorf("%s: %s", who, end.Details)
					}
					if tt.code != "" && (len(end.Residual) != 2 || !strings.Contains(end.Residual[1].Detail, "pod ns/late (it came after the plan and has no controller")) {
						t.Errorf("%s: left %+v", who, end.Residual)
					}
				}
				if tt.code == "" {
					return
				}
				// It is uncordoned: the agent still knows, and pods are welcome there.
				n, _ := b.client.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{})
				n.Spec.Unschedulable = false
				_, _ = b.client.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{})
				if _, d := b.observe(b.agent()); len(d.Pods) != 0 {
					t.Errorf("of a node that is open again: %+v", d.Pods)
				}
			})
		})
	}
}

// Every rule on a pod is named, and that there are more pods.
func TestRefusalNamesEveryRule(t *testing.T) {
	t.Parallel()
	both := []*budget{aBudget("b", 1, 3, 2, 3), aBudget("c", 1, 3, 2, 3), aBudget("d", 1, 3, 2, 3)}
	alone := func(p *corev1.Pod) { p.Labels = nil }
	for name, tt := range map[string]struct {
		pods      []*corev1.Pod
		code, why string
	}{
		"one":          {[]*corev1.Pod{aPod("a", alone, ownedBy(""))}, "unmanaged_pod", "pod ns/a has no controller: nothing would start it again"},
		"two":          {[]*corev1.Pod{aPod("a", alone, ownedBy(""), emptyDir)}, "unmanaged_pod", "pod ns/a has no controller: nothing would start it again; keeps data in an emptyDir, which would be lost"},
		"and budgets":  {[]*corev1.Pod{aPod("a", emptyDir)}, "local_data", "pod ns/a keeps data in an emptyDir, which would be lost; is selected by 3 disruption budgets, ns/b, ns/c and 1 more: the cluster evicts no such pod"},
		"budgets last": {[]*corev1.Pod{aPod("a"), aPod("b", alone, emptyDir), aPod("c", alone)}, "local_data", "pod ns/b keeps data in an emptyDir, which would be lost; and 1 more pods are refused"},
		"three pods":   {[]*corev1.Pod{aPod("a", alone, emptyDir), aPod("b", alone, emptyDir), aPod("c", alone, emptyDir)}, "local_data", "pod ns/a keeps data in an emptyDir, which would be lost; and 2 more pods are refused"},
		"none":         {[]*corev1.Pod{aPod("a", alone)}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := thePayload(t, `{}`)
			s := &survey{pods: tt.pods, budgets: both, verdicts: p.judge(tt.pods, nil)}
			if code, why := s.refusal(p); code != tt.code || why != tt.why {
				t.Errorf("%s: %s", code, why)
			}
		})
	}
	pod := aPod("a", ownedBy(""), emptyDir)
	s := &survey{pods: []*corev1.Pod{pod}, budgets: []*budget{aBudget("b", 0, 1, 1, 1)}, verdicts: thePayload(t, `{}`).judge([]*corev1.Pod{pod}, nil)}
	refused := map[types.UID]*refusal{pod.UID: {code: "eviction_refused", rule: "webhook/guard", why: "no"}}
	var got []string
	for _, b := range s.blockers(theNode(false), time.Now, refused) {
		got = append(got, b.Code)
	}
	if want := []string{"unmanaged_pod", "local_data", "eviction_refused", "pdb"}; !slices.Equal(got, want) {
		t.Errorf("blockers %q", got)
	}
}
