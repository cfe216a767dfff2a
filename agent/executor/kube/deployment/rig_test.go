//go:build kubetest

package deployment

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// slow is the time a test gives the cluster for what it does by itself.
const slow = 60 * time.Second

// site is a namespace of a real cluster and what the test asks of it.
type site struct {
	t       *testing.T
	rig     *kuberig.Rig
	admin   kubernetes.Interface
	dynamic dynamic.Interface // the admin's
	ns      string
	node    *corev1.Node // where its pods run
	c       *cluster.Cluster
}

func setup(t *testing.T, r *kuberig.Rig, user string, o cluster.Options) *site {
	t.Helper()
	o.Kubeconfig = r.Kubeconfig(user)
	c, err := cluster.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	admin, err := cluster.Open(cluster.Options{Kubeconfig: r.Kubeconfig("admin")})
	if err != nil {
		t.Fatal(err)
	}
	return &site{t: t, rig: r, admin: admin.Client, dynamic: admin.Dynamic, ns: r.Namespace(), node: r.Node(""), c: c}
}

func (s *site) ctx() context.Context {
	ctx, cancel := context.WithTimeout(s.t.Context(), slow)
	s.t.Cleanup(cancel)
	return ctx
}

// lease is one holder's right to an operation, as the loops give it.
type lease struct {
	*protocol.Assignment
	typ       cluster.Type
	cancelled chan struct{}
	fence     func(ctx context.Context) (context.Context, context.CancelFunc, error)
	mu        sync.Mutex
	commands  []string
	progress  []string
	blocked   [][]protocol.Blocker
	told      chan struct{} // what is told wakes the test
}

func (s *site) lease(typ cluster.Type, kind, name, uid, undo string) *lease {
	a := &protocol.Assignment{Operation: id.New(id.Operation, time.Now()), Run: 1, Generation: 1, Type: "deployment.roll", CorrelationID: "cor-1",
		TargetID: "dep_1", TargetName: "deployment:" + s.ns + "/" + name, TargetUID: uid, Payload: json.RawMessage(fmt.Sprintf(`{"undo":%q}`, undo))}
	for _, step := range []string{"preflight", "restart", "wait", "confirm", "undo"} {
		a.Steps = append(a.Steps, protocol.Step{PlanStep: operation.PlanStep{ID: "stp_" + step, Name: step, Required: step != "undo", Cleanup: step == "undo", Resources: []string{"dep_1"}}})
	}
	return &lease{Assignment: a, typ: typ, cancelled: make(chan struct{}), told: make(chan struct{}, 1), fence: held}
}

// held is the fence of a lease that holds.
func held(ctx context.Context) (context.Context, context.CancelFunc, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	return ctx, cancel, nil
}

// next is the lease of the next generation, or of another run.
func (l *lease) next(typ cluster.Type, run int) *lease {
	a := *l.Assignment
	a.Generation++
	a.Run = run
	return &lease{Assignment: &a, typ: typ, cancelled: make(chan struct{}), told: make(chan struct{}, 1), fence: held}
}

func (l *lease) task(step string) *executor.Task {
	i := slices.IndexFunc(l.Steps, func(s protocol.Step) bool { return s.Name == step })
	return &executor.Task{
		Assignment: l.Assignment, Step: l.Steps[i], Attempt: 1, Cancelled: l.cancelled,
		Fence: l.fence,
		Progress: func(done, total int, unit, message string) {
			l.note(func() { l.progress = append(l.progress, fmt.Sprintf("%d/%d %s", done, total, unit)) })
		},
		Blocked:   func(now []protocol.Blocker) { l.note(func() { l.blocked = append(l.blocked, now) }) },
		Note:      func(string, string) {},
		Remaining: func() time.Duration { return slow },
		Begin: func(name, resource string) (string, func(string, string)) {
			return "cmd_1", func(category, output string) { l.note(func() { l.commands = append(l.commands, name+": "+category) }) }
		},
	}
}

func (l *lease) note(f func()) {
	l.mu.Lock()
	f()
	l.mu.Unlock()
	select {
	case l.told <- struct{}{}:
	default:
	}
}

// blockers are those that were told last.
func (l *lease) blockers() []protocol.Blocker {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.blocked) == 0 {
		return nil
	}
	return l.blocked[len(l.blocked)-1]
}

// count is how often it was told how far it is.
func (l *lease) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.progress)
}

func (l *lease) run(ctx context.Context, step string) executor.Outcome {
	return l.typ.Steps[step].Execute(ctx, l.task(step))
}

func (l *lease) probe(ctx context.Context, step string) executor.Finding {
	return l.typ.Steps[step].Probe(ctx, l.task(step))
}

// must runs steps that have to come through.
func (s *site) must(l *lease, steps ...string) {
	s.t.Helper()
	for _, step := range steps {
		if o := l.run(s.ctx(), step); o.Class != operation.OutcomeDone {
			s.t.Fatalf("%s: %s %s: %s\ncommands %v\nprogress %v", step, o.Class, o.ErrorCode, o.Detail, l.commands, l.progress)
		}
	}
}

// await waits until the lease was told of a blocker that ok likes.
func (s *site) await(l *lease, ok func(protocol.Blocker) bool) protocol.Blocker {
	s.t.Helper()
	end := time.After(slow)
	for {
		l.mu.Lock()
		for _, set := range l.blocked {
			for _, b := range set {
				if ok(b) {
					l.mu.Unlock()
					return b
				}
			}
		}
		l.mu.Unlock()
		select {
		case <-l.told:
		case <-end:
			s.t.Fatalf("no such blocker was told; blockers %+v progress %v", l.blocked, l.progress)
		}
	}
}

// template makes pods that no simulated kubelet starts: hands does it.
func (s *site) template(app string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app, "rig.opsplane.io/ready": "never"}},
		Spec: corev1.PodSpec{NodeSelector: map[string]string{kuberig.LabelRig: s.node.Labels[kuberig.LabelRig]},
			Containers:  []corev1.Container{{Name: "server", Image: "registry.example/server:1"}},
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, TerminationGracePeriodSeconds: ptr.To[int64](5)},
	}
}

func (s *site) deployment(name string, replicas int32, change func(*appsv1.Deployment)) *appsv1.Deployment {
	s.t.Helper()
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: s.ns}, Spec: appsv1.DeploymentSpec{
		Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}, Template: s.template(name)}}
	if change != nil {
		change(d)
	}
	d, err := s.admin.AppsV1().Deployments(s.ns).Create(s.ctx(), d, metav1.CreateOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	s.settled("deployments", name)
	return d
}

func (s *site) statefulSet(name string, replicas int32, change func(*appsv1.StatefulSet)) *appsv1.StatefulSet {
	s.t.Helper()
	d := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: s.ns}, Spec: appsv1.StatefulSetSpec{
		Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}, Template: s.template(name)}}
	if change != nil {
		change(d)
	}
	d, err := s.admin.AppsV1().StatefulSets(s.ns).Create(s.ctx(), d, metav1.CreateOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	s.settled("statefulsets", name)
	return d
}

// settled waits until all replicas of an object are ready.
func (s *site) settled(resource, name string) {
	s.t.Helper()
	k := map[string]*kind{"deployments": deployments, "statefulsets": statefulSets}[resource]
	w, err := s.dynamic.Resource(k.resources[0]).Namespace(s.ns).Watch(s.ctx(), metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		s.t.Fatal(err)
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		d, err := read(k, k.resources[0], unstructuredOf(s.t, e.Object))
		if err != nil {
			s.t.Fatal(err)
		}
		if d.settled() {
			return
		}
	}
	s.t.Fatalf("%s %s did not get ready", resource, name)
}

// pods are the living pods of an app by name and UID.
func (s *site) pods(app string) map[string]types.UID {
	s.t.Helper()
	list, err := s.admin.CoreV1().Pods(s.ns).List(s.ctx(), metav1.ListOptions{LabelSelector: "app=" + app})
	if err != nil {
		s.t.Fatal(err)
	}
	m := map[string]types.UID{}
	for _, p := range list.Items {
		m[p.Name] = p.UID
	}
	return m
}

// hands are the test's own kubelet: how says what becomes of a pod that has a
// node, or (nil) leaves it.
type hands struct {
	mu  sync.Mutex
	how func(*corev1.Pod) *corev1.PodStatus
}

func (h *hands) set(how func(*corev1.Pod) *corev1.PodStatus) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.how = how
}

func (s *site) hands() *hands {
	s.t.Helper()
	h := &hands{how: running}
	ctx, cancel := context.WithCancel(s.t.Context())
	done := make(chan struct{})
	s.t.Cleanup(func() { cancel(); <-done })
	w, err := s.admin.CoreV1().Pods(s.ns).Watch(ctx, metav1.ListOptions{LabelSelector: "rig.opsplane.io/ready=never"})
	if err != nil {
		s.t.Fatal(err)
	}
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			for e := range w.ResultChan() {
				p, ok := e.Object.(*corev1.Pod)
				if !ok || p.Spec.NodeName == "" || p.DeletionTimestamp != nil || len(p.Status.ContainerStatuses) > 0 {
					continue
				}
				h.mu.Lock()
				status := h.how(p)
				h.mu.Unlock()
				if status == nil {
					continue
				}
				p.Status = *status
				_, _ = s.admin.CoreV1().Pods(s.ns).UpdateStatus(ctx, p, metav1.UpdateOptions{}) // one that is gone meanwhile needs none
			}
			for ctx.Err() == nil { // the API server may be away
				if w, err = s.admin.CoreV1().Pods(s.ns).Watch(ctx, metav1.ListOptions{LabelSelector: "rig.opsplane.io/ready=never"}); err == nil {
					break
				}
				time.Sleep(50 * time.Millisecond)
			}
		}
	}()
	return h
}

func statusOf(p *corev1.Pod, phase corev1.PodPhase, ready corev1.ConditionStatus, state corev1.ContainerStatus) *corev1.PodStatus {
	st := p.Status.DeepCopy()
	st.Phase = phase
	now := metav1.Now()
	for _, typ := range []corev1.PodConditionType{corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
		v := ready
		if typ == corev1.PodInitialized {
			v = corev1.ConditionTrue
		}
		st.Conditions = append(st.Conditions, corev1.PodCondition{Type: typ, Status: v, LastTransitionTime: now})
	}
	state.Name, state.Image, state.Ready = p.Spec.Containers[0].Name, p.Spec.Containers[0].Image, ready == corev1.ConditionTrue
	st.ContainerStatuses = []corev1.ContainerStatus{state}
	return st
}

// untouched leaves a pod pending.
func untouched(*corev1.Pod) *corev1.PodStatus { return nil }

func running(p *corev1.Pod) *corev1.PodStatus {
	return statusOf(p, corev1.PodRunning, corev1.ConditionTrue, corev1.ContainerStatus{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}})
}

func stuckIn(reason, message string) func(*corev1.Pod) *corev1.PodStatus {
	return func(p *corev1.Pod) *corev1.PodStatus {
		return statusOf(p, corev1.PodPending, corev1.ConditionFalse, corev1.ContainerStatus{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}})
	}
}

func crashing(p *corev1.Pod) *corev1.PodStatus {
	return statusOf(p, corev1.PodRunning, corev1.ConditionFalse, corev1.ContainerStatus{RestartCount: 4,
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off 40s"}},
		LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 139, Reason: "Error",
			Message: "CUDA error: out of memory", FinishedAt: metav1.Now()}}})
}

func has(list []string, part string) bool {
	return slices.ContainsFunc(list, func(s string) bool { return strings.Contains(s, part) })
}
