package node

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/utils/ptr"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/follow"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// named is that who made the pod put it on its node by name.
func named(p *corev1.Pod) {
	p.ManagedFields = []metav1.ManagedFieldsEntry{
		{Manager: "kubelet", Subresource: "status", FieldsV1: metav1.NewFieldsV1(`{"f:status":{}}`)},
		{Manager: "kube-controller-manager", FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{},"f:spec":{"f:nodeName":{},"f:containers":{}}}`)}}
}

func TestNamesNode(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(p *corev1.Pod)
		want   bool
	}{
		"no books": {func(*corev1.Pod) {}, false},
		"named":    {named, true},
		"a label's name": {func(p *corev1.Pod) {
			p.ManagedFields = books(`{"f:metadata":{"f:labels":{"f:nodeName":{}}},"f:spec":{}}`, "")
		}, false},
		"by a subresource": {func(p *corev1.Pod) {
			p.ManagedFields = books(`{"f:spec":{"f:nodeName":{}}}`, "binding")
		}, false},
		"books that nobody can read": {func(p *corev1.Pod) { p.ManagedFields = books(`{"f:nodeName"`, "") }, false},
	} {
		p := aPod("a", tt.change)
		if got := namesNode(p); got != tt.want {
			t.Errorf("%s: %t", name, got)
		}
		if _, p = takePod(p); namesNode(p) != tt.want || len(p.ManagedFields) > 1 {
			t.Errorf("%s: kept %v", name, p.ManagedFields)
		}
	}
}

func books(fields, subresource string) []metav1.ManagedFieldsEntry {
	return []metav1.ManagedFieldsEntry{{FieldsV1: metav1.NewFieldsV1(fields), Subresource: subresource}}
}

// Who plans a drain is told of pods whose successors come to the node as well.
func TestNamedNodeIsToldBefore(t *testing.T) {
	t.Parallel()
	pods := []*corev1.Pod{aPod("named", named), aPod("placed"), aPod("bare", named, ownedBy("")), aPod("tolerant", named, func(p *corev1.Pod) {
		p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	})}
	var got []string
	for _, b := range Blockers(time.Now)(theNode(false), pods, nil) {
		got = append(got, b.Code+" "+b.Resource+" "+b.Rule)
	}
	want := "unmanaged_pod pod/ns/bare , pods_return pod/ns/named replicaset/ns/web, tolerates_cordon pod/ns/tolerant toleration/node.kubernetes.io/unschedulable"
	if strings.Join(got, ", ") != want {
		t.Errorf("told %q", got)
	}
}

// Pods of one controller that come back to the cordoned node are evicted at a pace that
// backs off, in the force window as well, and at the deadline they are the cause. A first
// one that a scheduler placed may only not have known of the cordon, however often its
// eviction has to be asked for.
//
// The pace has no jitter. From when the first came back they are evicted at 0, 1, 3, 7,
// 15, 31, 61 and 91 s, and not at 121 s, which is past the two minutes: eight, beside
// those that were there, and beside as many that may not have known of the cordon.
func TestPodsThatComeBack(t *testing.T) {
	t.Parallel()
	denies := status(400, `admission webhook "guard.example.com" denied the request: not now`)
	for name, tt := range map[string]struct {
		pods    int
		change  func(p *corev1.Pod)
		payload string
		rounds  int // of successors, until none comes any more; 0: they always do
		// answer is of the first so many evictions of each successor, which come to nothing.
		answer error
		fails  int
		want   int // evictions and deletions in two minutes
		// code and says are of what keeps it at the end.
		code, says string
	}{
		"named":             {pods: 1, change: named, want: 1 + 8, code: codeReturns, says: "ReplicaSet ns/web brings its pods back to this node, though it is cordoned, for they name it (spec.nodeName)"},
		"named, and force":  {pods: 1, change: named, payload: `{"on_deadline":"force","force_window_seconds":60}`, want: 1 + 8, code: codeReturns, says: "brings its pods back"},
		"several":           {pods: 4, change: named, want: 4 + 8, code: codeReturns, says: "brings its pods back"},
		"a blind scheduler": {pods: 1, change: func(p *corev1.Pod) { p.Spec.SchedulerName = "blind" }, want: 1 + 1 + 8, code: codeReturns, says: "what places them (scheduler blind) does not heed that"},
		"late for once":     {pods: 12, change: func(*corev1.Pod) {}, rounds: 1, want: 12 + 12},
		"late, and denied": {pods: 1, change: func(*corev1.Pod) {}, rounds: 1, want: 2,
			answer: denies, fails: 3},
		"late, and denied to the end": {pods: 1, change: func(*corev1.Pod) {}, rounds: 1, want: 1,
			answer: denies, fails: 1000, code: "eviction_refused", says: "guard.example.com"},
		"late, denied, and force": {pods: 1, change: func(*corev1.Pod) {}, payload: `{"on_deadline":"force","force_window_seconds":60}`, rounds: 1, want: 2,
			answer: denies, fails: 1000},
		"late, and unanswered": {pods: 1, change: func(*corev1.Pod) {}, rounds: 1, want: 2,
			answer: apierrors.NewTimeoutError("request did not complete within requested timeout", 0), fails: 1},
		"for some rounds": {pods: 1, change: named, rounds: 4, want: 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				defer time.Sleep(2 * linger)
				var pods []*corev1.Pod
				for i := range tt.pods {
					pods = append(pods, aPod(fmt.Sprintf("p%d-0", i), tt.change))
				}
				b := outcomeSetup(t, pods...)
				b.task.Assignment.Payload = []byte(tt.payload)
				var mu sync.Mutex
				succeed, removed := b.succeeds(tt.change, tt.rounds)
				met := map[string]int{}
				b.e.send = func(_ context.Context, ev *policyv1.Eviction) error {
					if len(ev.DeleteOptions.DryRun) > 0 {
						return nil
					}
					mu.Lock()
					met[ev.Name]++
					fails := !strings.HasSuffix(ev.Name, "-0") && met[ev.Name] <= tt.fails
					mu.Unlock()
					if fails {
						return tt.answer
					}
					succeed(ev.Name)
					return nil
				}
				b.e.c.Client = deletesPods{b.e.c.Client, succeed}
				for _, step := range []string{"preflight", "cordon"} {
					if o := b.run(b.e, step); o.Class != operation.OutcomeDone {
						t.Fatalf("%s: %+v", step, o)
					}
				}
				told := map[string]protocol.Blocker{}
				b.task.Blocked = func(now []protocol.Blocker) {
					for _, x := range now {
						told[x.Code] = x
					}
				}
				ctx, cancel := b.until(2 * time.Minute)
				defer cancel()
				b.task.Step = executor.StepNamed(b.task.Assignment, "evict")
				o := b.e.drain().Steps["evict"].Execute(ctx, b.task)
				if o.Class == operation.OutcomeDone {
					b.task.Step = executor.StepNamed(b.task.Assignment, "wait")
					o = b.e.drain().Steps["wait"].Execute(ctx, b.task)
				}
				if o.ErrorCode != tt.code || !strings.Contains(o.Detail, tt.says) || tt.code == codeReturns && o.ActionCode != operation.ActRestoreDependency {
					t.Errorf("%+v", o)
				}
				if got := removed(); got != tt.want {
					t.Errorf("%d pods were told to go, not %d", got, tt.want)
				}
				if x, back := told[codeReturns]; back && tt.fails > 0 {
					t.Errorf("one that was late for once, told %+v", x)
				}
				if x := told[codeReturns]; tt.code == codeReturns && (x.Rule != "replicaset/ns/web" || x.Since == nil || !strings.Contains(x.Detail, tt.says)) {
					t.Errorf("told %+v", told)
				}
			})
		})
	}
}

// succeeds has a controller make the next of its pods ("NAME-1" after "NAME-0") on the node
// for each that is told to go, so many rounds; 0: always. It counts those that are.
func (b *outcomeBench) succeeds(change func(p *corev1.Pod), rounds int) (succeed func(name string), removed func() int) {
	var mu sync.Mutex
	n := 0
	succeed = func(name string) {
		mu.Lock()
		defer mu.Unlock()
		n++
		line, round, _ := strings.Cut(name, "-")
		var nr int
		if _, err := fmt.Sscan(round, &nr); err != nil {
			b.t.Error(err)
		}
		// It is told to stop before its controller makes the next one.
		pods := corev1.SchemeGroupVersion.WithResource("pods")
		o, err := b.client.Tracker().Get(pods, "ns", name)
		if err != nil {
			b.t.Error(err)
			return
		}
		stopping := o.(*corev1.Pod).DeepCopy()
		stopping.DeletionTimestamp = ptr.To(metav1.Now())
		if err := b.client.Tracker().Update(pods, stopping, "ns"); err != nil {
			b.t.Error(err)
		}
		if nr++; (rounds == 0 || nr <= rounds) && n < 100 { // far more than any pace allows
			next := aPod(fmt.Sprintf("%s-%d", line, nr), change)
			next.Spec.NodeName = "n"
			if err := b.client.Tracker().Add(next); err != nil {
				b.t.Error(err)
			}
		}
		if err := b.client.Tracker().Delete(pods, "ns", name); err != nil {
			b.t.Error(err)
		}
	}
	return succeed, func() int {
		mu.Lock()
		defer mu.Unlock()
		return n
	}
}

// Who takes a drain over knows by their names that pods came back, and goes on at the pace
// that they may have been evicted at since the cordon, which is not told as a count. Those
// that a scheduler may have placed before it knew of the cordon are none of them.
func TestPodsThatCameBackUnderAnEarlierLease(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		line   string        // its ReplicaSet is web
		after  time.Duration // the cordon, the lease is taken over
		change func(p *corev1.Pod)
		want   int // evictions in 110 s
		says   string
	}{
		"long after":              {"web", 10 * time.Minute, named, 4, "4 that came back were evicted under this lease"}, // at 0, 30, 60 and 90 s
		"by a blind scheduler":    {"web", 10 * time.Minute, func(*corev1.Pod) {}, 4, "does not heed that; 4 that came back were evicted under this lease"},
		"a moment after":          {"web", 5 * time.Second, named, 8, "8 that came back were evicted"},
		"a moment after, by late": {"web", 5 * time.Second, func(*corev1.Pod) {}, 1 + 8, "9 that came back were evicted"},
		"named otherwise":         {"db", 10 * time.Minute, named, 1 + 4, "4 that came back were evicted under this lease"}, // the first is not known to be back
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				defer time.Sleep(2 * linger)
				b := outcomeSetup(t, aPod(tt.line+"-0", tt.change))
				for _, step := range []string{"preflight", "cordon"} {
					if o := b.run(b.e, step); o.Class != operation.OutcomeDone {
						t.Fatalf("%s: %+v", step, o)
					}
				}
				succeed, removed := b.succeeds(tt.change, 0)
				succeed(tt.line + "-0") // under the first lease
				time.Sleep(tt.after)
				synctest.Wait() // events are told by then
				heir := b.agent()
				heir.send = func(_ context.Context, ev *policyv1.Eviction) error {
					if len(ev.DeleteOptions.DryRun) == 0 {
						succeed(ev.Name)
					}
					return nil
				}
				ctx, cancel := b.until(110 * time.Second)
				defer cancel()
				b.task.Assignment.Generation = 2
				b.task.Step = executor.StepNamed(b.task.Assignment, "evict")
				o := heir.drain().Steps["evict"].Execute(ctx, b.task)
				if o.Class == operation.OutcomeDone {
					b.task.Step = executor.StepNamed(b.task.Assignment, "wait")
					o = heir.drain().Steps["wait"].Execute(ctx, b.task)
				}
				if o.ErrorCode != codeReturns || !strings.Contains(o.Detail, tt.says) {
					t.Errorf("%+v", o)
				}
				if got := removed() - 1; got != tt.want {
					t.Errorf("%d evictions, not %d", got, tt.want)
				}
			})
		})
	}
}

// deletesPods is a client whose deletions of pods are deleted's: a reactor may not change
// what the fake keeps, for that has the fake's lock.
type deletesPods struct {
	kubernetes.Interface
	deleted func(name string)
}

func (c deletesPods) CoreV1() typedcorev1.CoreV1Interface {
	return deletingCore{c.Interface.CoreV1(), c.deleted}
}

type deletingCore struct {
	typedcorev1.CoreV1Interface
	deleted func(name string)
}

func (c deletingCore) Pods(namespace string) typedcorev1.PodInterface {
	return deletingPods{c.CoreV1Interface.Pods(namespace), c.deleted}
}

type deletingPods struct {
	typedcorev1.PodInterface
	deleted func(name string)
}

func (c deletingPods) Delete(_ context.Context, name string, _ metav1.DeleteOptions) error {
	c.deleted(name)
	return nil
}

// A successor is known by the controller of a pod that was told to go.
func TestCameBack(t *testing.T) {
	t.Parallel()
	other := func(p *corev1.Pod) { p.OwnerReferences[0].UID = "other" }
	s := &session{plan: map[types.UID]*planned{
		"uid-a": {uid: "uid-a", pod: aPod("a"), isGone: true},
		"uid-b": {uid: "uid-b", pod: aPod("b", other)},
		"uid-c": {uid: "uid-c", isGone: true},
	}}
	on := map[types.UID]*corev1.Pod{"uid-b": s.plan["uid-b"].pod}
	for p, want := range map[*corev1.Pod]bool{aPod("x"): true, aPod("a"): false, aPod("x", other): false, aPod("x", ownedBy("")): false,
		aPod("x", func(p *corev1.Pod) { p.OwnerReferences[0].Controller = ptr.To(false) }): false} {
		if got := s.cameBack(p, on); got != want {
			t.Errorf("%s of %v: %t", p.Name, p.OwnerReferences, got)
		}
	}
}

// A pod that comes back is known, and paced, also when the plan was not told yet of the
// one before it, nor the eviction of that answered.
func TestComesBackBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	here := func(p *corev1.Pod) { p.Spec.NodeName = "n" }
	for name, tt := range map[string]struct {
		found []*corev1.Pod
		back  bool
	}{
		"the one before it stops":     {[]*corev1.Pod{aPod("a", here, deleted), aPod("b", here)}, true},
		"the one before it is gone":   {[]*corev1.Pod{aPod("b", here)}, true},
		"none was told to go":         {[]*corev1.Pod{aPod("a", here), aPod("b", here)}, false},
		"one of another's told to go": {[]*corev1.Pod{aPod("a", here, deleted), aPod("b", here, func(p *corev1.Pod) { p.OwnerReferences[0].UID = "other" })}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := theNode(true)
			s := &session{node: n, pods: follow.New(follow.Source{}, takePod), came: map[types.UID]string{},
				plan: map[types.UID]*planned{"uid-a": {uid: "uid-a", name: "ns/a", pod: aPod("a", here), inFlight: true}}}
			var found []runtime.Object
			for i, p := range tt.found {
				p.ResourceVersion = fmt.Sprint(2 + i)
				found = append(found, p)
			}
			s.pods.Seed(found, "9")
			d := newDrainer(&cluster.Cluster{Client: fake.NewClientset(n), Now: time.Now}, Options{}).newDrive(&executor.Task{
				Assignment: lease("op_1"), Remaining: func() time.Duration { return time.Hour }, Note: func(string, string) {}}, s, thePayload(t, `{}`), false)
			d.t.Assignment.NodeName = n.Name
			if stop := d.lookPods(t.Context(), &look{force: map[*planned]int{}, next: heartbeat}); stop != nil {
				t.Fatalf("%+v", *stop)
			}
			b := s.plan["uid-b"]
			if b == nil || b.back != tt.back {
				t.Fatalf("%+v", b)
			}
		})
	}
}
