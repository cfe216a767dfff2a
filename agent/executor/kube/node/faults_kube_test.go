//go:build kubetest

package node

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	"github.com/opsplane/opsplane/shared/operation"
)

// once fails the test unless each of n pods saw exactly one accepted eviction.
func once(t *testing.T, r *kuberig.Rig, user string, n int) {
	t.Helper()
	accepted := map[types.UID]int{}
	for _, e := range r.Audit(user) {
		if e.Subresource == "eviction" && e.Code > 0 && e.Code < 300 && !strings.Contains(string(e.Request), "dryRun") {
			accepted[e.PreconditionUID()]++
		}
	}
	if len(accepted) != n {
		t.Errorf("evictions of %d pods were accepted, not %d", len(accepted), n)
	}
	for uid, times := range accepted {
		if times != 1 || uid == "" {
			t.Errorf("pod %q saw %d accepted evictions", uid, times)
		}
	}
}

// TestAnswersLost breaks the connection around evictions, cordon and watches: what
// became of a call is read before it is repeated.
func TestAnswersLost(t *testing.T) {
	t.Parallel()
	faults := map[string]kuberig.Fault{
		"evictions done, answers lost": {Match: kuberig.On(http.MethodPost, "/eviction"), Times: 3, Drop: true},
		"evictions never sent":         {Match: kuberig.On(http.MethodPost, "/eviction"), Times: 3, Cut: true},
		"cordon done, answer lost":     {Match: kuberig.On(http.MethodPatch, "/nodes/"), Times: 1, Drop: true},
		"cordon never sent":            {Match: kuberig.On(http.MethodPatch, "/nodes/"), Times: 1, Cut: true},
		"cordon busy":                  {Match: kuberig.On(http.MethodPatch, "/nodes/"), Times: 1, Status: http.StatusTooManyRequests, RetryAfter: time.Second},
		"evictions busy":               {Match: kuberig.On(http.MethodPost, "/eviction"), Times: 4, Status: http.StatusTooManyRequests, RetryAfter: time.Second},
		"evictions unavailable":        {Match: kuberig.On(http.MethodPost, "/eviction"), Times: 4, Status: http.StatusServiceUnavailable},
		"evictions in error":           {Match: kuberig.On(http.MethodPost, "/eviction"), Times: 4, Status: http.StatusInternalServerError},
		"watches broken":               {Match: kuberig.Watches, Times: 2, Cut: true},
		"watches expired":              {Match: kuberig.Watches, Times: 2, Status: http.StatusGone},
		"reads unavailable":            {Match: kuberig.On(http.MethodGet, "/nodes/"), Times: 3, Status: http.StatusServiceUnavailable},
	}
	for name, fault := range faults {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			r := kuberig.Shared(t)
			n, ns := r.Node("lost"), r.Namespace()
			r.Deployment(ns, "web", 4, kuberig.OnNode(n.Name))
			user := r.User("agent")
			grant(r, user)
			p := r.Proxy(user)
			in := p.Inject(fault)
			a := agentOf(t, p.Kubeconfig(), nil)
			j := newJob(r, "node.drain", n, `{}`)
			begin := time.Now()
			a.mustRun(j)
			if in.Hits() == 0 {
				t.Fatal("the fault was never met")
			}
			once(t, r, user, 4)
			if _, d := a.observe(j); d.Counts.Gone != 4 {
				t.Errorf("counts %+v", d.Counts)
			}
			t.Logf("%d faults, %s, commands %q", in.Hits(), time.Since(begin), j.commands)
		})
	}
}

// TestEvictionRefused: a policy that denies evictions is named, in the dry run and
// while the drain waits; lifted, the drain goes on.
func TestEvictionRefused(t *testing.T) {
	t.Parallel()
	r := kuberig.Shared(t)
	n, ns := r.Node("denied"), r.Namespace()
	r.Deployment(ns, "web", 2, kuberig.OnNode(n.Name))
	lift := deny(t, r, ns)
	a := newAgent(t, r, nil)
	j := newJob(r, "node.drain", n, `{}`)
	r.Await("the policy is in force", func(context.Context) (bool, error) {
		a := newAgent(t, r, nil) // one that remembers nothing
		return slices.Contains(codes(preview(t, a, "node.drain", n, `{}`)), "eviction_refused"), nil
	})
	result := make(chan error, 1)
	go func() {
		step, o := a.run(context.Background(), j)
		if step != "" {
			result <- fmt.Errorf("at %s with %+v", step, o)
		}
		result <- nil
	}()
	j.await(t, "the refusal is named", func() bool { return j.blocked("eviction_refused") && len(j.progress) > 0 })
	j.mu.Lock()
	last := j.blockers[len(j.blockers)-1]
	j.mu.Unlock()
	if b := last[0]; !strings.HasPrefix(b.Rule, "policy/deny-") || !strings.Contains(b.Detail, "not on a Monday") || !strings.HasPrefix(b.Resource, "pod/"+ns) {
		t.Errorf("blocker %+v", b)
	}
	lift()
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	t.Logf("%q", j.commands)
}

// TestDeletionRefused: a policy that denies deletions, of a pod that a budget holds, is
// named in the window in which the drain goes past the budget, and asked again at a pace.
func TestDeletionRefused(t *testing.T) {
	t.Parallel()
	r := kuberig.Shared(t)
	n, ns := r.Node("kept"), r.Namespace()
	r.Deployment(ns, "web", 1, kuberig.OnNode(n.Name))
	r.PDB(ns, "web", "web", kuberig.MinAvailable("1"))
	denyCalls(t, r, ns, admissionv1.Delete, "pods")
	pod := r.Pods(ns, "web")[0].Name
	r.Await("the policy is in force", func(ctx context.Context) (bool, error) {
		err := r.Client(kuberig.Admin).CoreV1().Pods(ns).Delete(ctx, pod, metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
		return apierrors.IsInvalid(err), nil
	})
	user := r.User("agent")
	grant(r, user)
	a := agentOf(t, r.Kubeconfig(user), nil)
	j := newJob(r, "node.drain", n, `{"on_deadline":"force","force_window_seconds":8}`).within(10 * time.Second)
	if step, o := a.run(t.Context(), j); step != "evict" || o.ErrorCode != "eviction_refused" {
		t.Errorf("it ended at %q with %+v", step, o)
	}
	asked := 0
	for _, e := range r.Audit(user) {
		if e.Verb == "delete" && e.Resource == "pods" {
			asked++
		}
	}
	if asked < 2 || asked > 6 {
		t.Errorf("asked for %d deletions in 8 s", asked)
	}
	last := j.blockers[len(j.blockers)-1]
	if len(last) != 1 || !strings.HasPrefix(last[0].Rule, "policy/deny-") || last[0].Resource != "pod/"+ns+"/"+pod {
		t.Errorf("blockers %+v", last)
	}
	t.Logf("%d deletions, commands %q", asked, j.commands)
}

// deny refuses evictions in a namespace by an admission policy.
func deny(t *testing.T, r *kuberig.Rig, ns string) (lift func()) {
	t.Helper()
	return denyCalls(t, r, ns, admissionv1.Create, "pods/eviction")
}

func denyCalls(t *testing.T, r *kuberig.Rig, ns string, what admissionv1.OperationType, resource string) (lift func()) {
	t.Helper()
	admin := r.Client(kuberig.Admin).AdmissionregistrationV1()
	name := r.Name("deny")
	fail := admissionv1.Fail
	_, err := admin.ValidatingAdmissionPolicies().Create(t.Context(), &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{FailurePolicy: &fail,
			MatchConstraints: &admissionv1.MatchResources{
				NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": ns}},
				ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
					Operations: []admissionv1.OperationType{what},
					Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{resource}}}}}},
			Validations: []admissionv1.Validation{{Expression: "false", Message: "not on a Monday"}}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = admin.ValidatingAdmissionPolicyBindings().Create(t.Context(), &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	lift = func() {
		_ = admin.ValidatingAdmissionPolicyBindings().Delete(context.Background(), name, metav1.DeleteOptions{})
		_ = admin.ValidatingAdmissionPolicies().Delete(context.Background(), name, metav1.DeleteOptions{})
	}
	t.Cleanup(lift)
	return lift
}

// TestNamespaceTerminating: no eviction is taken in a namespace that is being
// deleted; its pods go with it, and the drain waits for that.
func TestNamespaceTerminating(t *testing.T) {
	t.Parallel()
	r := kuberig.Shared(t)
	n, ns := r.Node("ending"), r.Namespace()
	r.Pod(ns, "slow", kuberig.OnNode(n.Name), kuberig.Shutdown(3*time.Second))
	admin := r.Client(kuberig.Admin).CoreV1().Namespaces()
	a := newAgent(t, r, nil)
	j := newJob(r, "node.drain", n, `{"force":true}`)
	for _, step := range []string{"preflight", "cordon"} {
		if o := a.execute(t.Context(), j, step); o.Class != operation.OutcomeDone {
			t.Fatalf("%s: %+v", step, o)
		}
	}
	if err := admin.Delete(t.Context(), ns, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	a.mustRun(j)
	t.Logf("%q", j.commands)
}

// TestRights takes each right away in turn: the drain names the one that is missing.
func TestRights(t *testing.T) {
	t.Parallel()
	optional := map[string]string{ // what is told without these, and that is all
		"endpointslices": "forbidden: whether pods of namespace",
		"events":         "",
	}
	for _, right := range Rights {
		t.Run(right.Verb+"_"+strings.ReplaceAll(right.Resource, "/", "."), func(t *testing.T) {
			t.Parallel()
			r := kuberig.Shared(t)
			n, ns := r.Node("rights"), r.Namespace()
			r.Deployment(ns, "web", 1, kuberig.OnNode(n.Name), kuberig.Grace(20), kuberig.Shutdown(2500*time.Millisecond))
			r.DaemonSet(ns, "exporter", claimed(t, r, ns))
			user := r.User("agent")
			grant(r, user, right)
			p := r.Proxy(user)
			var armed atomic.Bool                                // the preflight's rehearsal is over
			if right.Verb == "get" && right.Resource == "pods" { // is only asked for when an answer was lost
				p.Inject(kuberig.Fault{Match: func(q *http.Request) bool {
					return kuberig.On(http.MethodPost, "/eviction")(q) && armed.Load()
				}, Times: 1, Cut: true})
			}
			if right.Resource == "volumeattachments" {
				attach(t, r, n.Name, ns+"-moving")
			}
			a := agentOf(t, p.Kubeconfig(), nil)
			payload := `{"await_volume_detach":true}`
			within := 12 * time.Second
			if right.Verb == "delete" {
				payload, within = `{"on_deadline":"force","force_window_seconds":7}`, 8*time.Second
				r.PDB(ns, "web", "web", kuberig.MinAvailable("1"))
			}
			j := newJob(r, "node.drain", n, payload).within(within)
			if o := a.execute(t.Context(), j, "preflight"); o.Class == operation.OutcomeDone {
				armed.Store(true)
			}
			step, o := a.run(t.Context(), j)
			if told, is := optional[right.Resource]; is {
				notes := strings.Join(j.notes, "\n")
				if step != "" || !strings.Contains(notes, told) {
					t.Fatalf("without the right the drain ended at %s with %+v, notes %q", step, o, j.notes)
				}
				return
			}
			// Without a watch the drain is read again and again while the right's absence
			// is not believed yet: it may get through, and says so.
			named := fmt.Sprintf("cannot %s resource %q", right.Verb, right.Resource)
			if step == "" && right.Verb != "get" && (right.Resource == "nodes" || right.Resource == "pods") && strings.Contains(strings.Join(j.notes, "\n"), named) {
				return
			}
			if o.ErrorCode != "forbidden" || o.Class != operation.OutcomePermanent || !strings.Contains(o.Detail, right.Verb) || !strings.Contains(o.Detail, right.Resource) {
				t.Fatalf("without the right to %s %s the drain ended at %q with %+v", right.Verb, right.Resource, step, o)
			}
			t.Logf("at %s: %s", step, o.Detail)
		})
	}
}

// TestLongNames: 253 characters with dots, of node and pods.
func TestLongNames(t *testing.T) {
	t.Parallel()
	r := kuberig.Shared(t)
	long := func(prefix string, n int) string {
		s := prefix + strings.Repeat(".ab-cd9", 40)
		return strings.TrimRight(s[:n], ".-")
	}
	n, ns := r.Node(long("n", 244), kuberig.NodeLabel("kubernetes.io/hostname", "short")), r.Namespace() // and an ending of 9
	if len(n.Name) < 250 || len(n.Name) > 253 {
		t.Fatalf("the node's name has %d characters", len(n.Name))
	}
	r.Pod(ns, long("p", 253), kuberig.OnNode(n.Name), kuberig.Spec(func(meta *metav1.ObjectMeta, _ *podSpec) { meta.Labels = nil }))
	a := newAgent(t, r, nil)
	j := newJob(r, "node.drain", n, `{"force":true}`)
	a.mustRun(j)
	if _, d := a.observe(j); d.Counts.Gone != 1 || len(d.Pods[0].Pod) < 253 {
		t.Errorf("details %+v", d)
	}
	a.mustRun(newJob(r, "node.uncordon", n, `{}`))
}

// TestWaves: pods of a lower priority are gone before those of a higher one are
// asked to go, unless the payload says otherwise.
func TestWaves(t *testing.T) {
	t.Parallel()
	for _, order := range []string{"priority", "none"} {
		t.Run(order, func(t *testing.T) {
			t.Parallel()
			r := kuberig.Shared(t)
			n, ns := r.Node("waves"), r.Namespace()
			low, high := r.PriorityClass("low", 10), r.PriorityClass("high", 1000)
			r.Deployment(ns, "a-high", 2, kuberig.OnNode(n.Name), kuberig.Priority(high))
			r.Deployment(ns, "low", 2, kuberig.OnNode(n.Name), kuberig.Priority(low), kuberig.Shutdown(time.Second))
			a := newAgent(t, r, nil)
			j := newJob(r, "node.drain", n, fmt.Sprintf(`{"order":%q}`, order))
			a.mustRun(j)
			var evicted []string
			for _, c := range j.commands {
				if strings.HasPrefix(c, "evict ") {
					evicted = append(evicted, c)
				}
			}
			_, d := a.observe(j)
			var lowGone, highAsked time.Time
			for _, p := range d.Pods {
				if strings.Contains(p.Pod, "/low") && p.Gone.After(lowGone) {
					lowGone = *p.Gone
				}
				if strings.Contains(p.Pod, "/a-high") && (highAsked.IsZero() || p.Evicted.Before(highAsked)) {
					highAsked = *p.Evicted
				}
			}
			if waited := !highAsked.Before(lowGone); waited != (order == "priority") {
				t.Errorf("in waves: %t; the last low pod was gone at %s, the first high one asked at %s: %q", waited, lowGone, highAsked, evicted)
			}
		})
	}
}

// TestOwnNode: the agent's own pod goes last, and not by its own hand as long as
// another agent may do it.
func TestOwnNode(t *testing.T) {
	t.Parallel()
	r := kuberig.Shared(t)
	n, ns := r.Node("own"), r.Namespace()
	r.Deployment(ns, "web", 2, kuberig.OnNode(n.Name))
	r.Deployment(ns, "agent", 1, kuberig.OnNode(n.Name))
	own := r.Pods(ns, "agent")[0]
	a := newAgent(t, r, func(o *cluster.Options) { o.PodUID, o.NodeName, o.PodName = string(own.UID), n.Name, own.Name })
	j := newJob(r, "node.drain", n, `{}`)
	step, o := a.run(t.Context(), j)
	if step != "evict" || o.Class != executor.ClassHandBack || o.ErrorCode != "own_node" {
		t.Fatalf("at %s with %+v", step, o)
	}
	if now := r.Pods(ns, "agent"); len(now) == 0 || !slices.ContainsFunc(r.PodsOn(n.Name), func(p pod) bool { return p.UID == own.UID && p.DeletionTimestamp == nil }) {
		t.Fatal("the agent's own pod went")
	}
	t.Run("another agent", func(t *testing.T) {
		heir := j.generation(2)
		if step, o := newAgent(t, r, nil).takeOver(t.Context(), heir); step != "" {
			t.Fatalf("at %s with %+v", step, o)
		}
	})
	t.Run("nobody else", func(t *testing.T) {
		n := r.Node("alone")
		r.Deployment(ns, "lone", 1, kuberig.OnNode(n.Name))
		own := r.Pods(ns, "lone")[0]
		a := newAgent(t, r, func(o *cluster.Options) { o.PodUID = string(own.UID) })
		j := newJob(r, "node.drain", n, `{}`)
		if step, o := a.run(t.Context(), j); step != "evict" || o.ErrorCode != "own_node" {
			t.Fatalf("at %s with %+v", step, o)
		}
		if step, o := a.takeOver(t.Context(), j.generation(2)); step != "" {
			t.Fatalf("the agent got it back and ended at %s with %+v", step, o)
		}
	})
}
