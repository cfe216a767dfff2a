package device

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/host/report"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster/clustertest"
	"github.com/opsplane/opsplane/agent/executor/kube/node"
	"github.com/opsplane/opsplane/shared/protocol"
)

const (
	fakeUUID = "GPU-8f3c0a6e-1111-2222-3333-444455556666"
	fakeNode = "gpu-1"
	fakeNS   = "ops"
)

// fakes are the devices of a cluster of objects, whose watches of pods tell what the
// test says and nothing else.
func fakes(t *testing.T, objects ...runtime.Object) (*devices, *fake.Clientset, *watch.FakeWatcher) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	config := `{"apiVersion":"v1","kind":"Config","current-context":"c","clusters":[{"name":"c","cluster":{"server":"http://127.0.0.1:1"}}],
		"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],"users":[{"name":"u","user":{}}]}`
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := cluster.Open(cluster.Options{Kubeconfig: file, Namespace: fakeNS, Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	client := fake.NewClientset(append(objects, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fakeNode, UID: "uid-of-the-node"}})...)
	pods := watch.NewFakeWithChanSize(16, false)
	client.PrependWatchReactor("pods", func(ktesting.Action) (bool, watch.Interface, error) { return true, pods, nil })
	c.Client, c.Pulse = clustertest.BeforeJobs(client, nil), nil
	cfg, err := Config{Enabled: true, Image: "host:1"}.check()
	if err != nil {
		t.Fatal(err)
	}
	return &devices{c: c, cfg: cfg, drains: node.NewDrains(c, node.Options{}), last: map[string]*outcome{}}, client, pods
}

// stepTask is a task whose effects are let through.
func stepTask(op string, run int, generation int64) *executor.Task {
	return &executor.Task{
		Assignment: &protocol.Assignment{Operation: op, Run: run, Generation: generation, Type: "device.reset", TargetUID: fakeUUID, NodeName: fakeNode},
		Attempt:    1, Cancelled: make(chan struct{}),
		Fence: func(ctx context.Context) (context.Context, context.CancelFunc, error) {
			ctx, cancel := context.WithCancel(ctx)
			return ctx, cancel, nil
		},
		Begin:    func(string, string) (string, func(string, string)) { return "cmd", func(string, string) {} },
		Progress: func(int, int, string, string) {}, Note: func(string, string) {},
		Remaining: func() time.Duration { return 10 * time.Minute },
	}
}

// blockers keeps what stood in a task's way.
type blockers struct {
	mu  sync.Mutex
	all []protocol.Blocker
	now []protocol.Blocker
}

func (b *blockers) of(t *executor.Task) *blockers {
	t.Blocked = func(now []protocol.Blocker) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.all, b.now = append(b.all, now...), now
	}
	return b
}

func (b *blockers) has(code string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, x := range b.all {
		if x.Code == code {
			return true
		}
	}
	return false
}

// worker is a pod of a ReplicaSet on the node.
func worker(name string) *corev1.Pod {
	yes := true
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "serve", Name: name, UID: types.UID("uid-" + name),
		OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "rs", Controller: &yes}}},
		Spec: corev1.PodSpec{NodeName: fakeNode}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
}

// asked is a Job of the run that was made for a verb; over: it ended then.
func asked(e *devices, t *executor.Task, verb string, made time.Time, over time.Time) *batchv1.Job {
	j := e.job(t, target{fakeUUID, fakeNode}, verb, looking(cluster.MarkOf(t), verb))
	j.UID, j.CreationTimestamp = types.UID("uid-"+j.Name), metav1.NewTime(made)
	if !over.IsZero() {
		j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(over)}}
	}
	return j
}

// podOf is a Job's pod, in a status.
func podOf(j *batchv1.Job, s corev1.PodStatus) *corev1.Pod {
	yes := true
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: j.Namespace, Name: j.Name + "-x", UID: "uid-pod-" + j.UID, Labels: map[string]string{labelJobName: j.Name},
		OwnerReferences: []metav1.OwnerReference{{Kind: "Job", Name: j.Name, UID: j.UID, Controller: &yes}}},
		Spec: corev1.PodSpec{NodeName: fakeNode}, Status: s}
}

func said(a report.Answer) corev1.PodStatus {
	return corev1.PodStatus{Phase: corev1.PodSucceeded, ContainerStatuses: []corev1.ContainerStatus{{Name: container,
		State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed", Message: string(a.Message())}}}}}
}

func pullFails(reason string) corev1.PodStatus {
	return corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{Name: container,
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: "Back-off pulling image"}}}}}
}

// yes is an answer that says so.
func yes(t *executor.Task, verb string) report.Answer {
	a := t.Assignment
	return report.Answer{Verb: verb, Operation: a.Operation, Run: a.Run, Generation: a.Generation, Node: fakeNode, OK: true, Detail: "done", At: time.Now(),
		Source: report.SourceRecorded, Device: &report.Device{UUID: fakeUUID, Health: report.HealthOK}}
}

// made counts what was created.
func made(c *fake.Clientset, resource, subresource string) (n int) {
	for _, a := range c.Actions() {
		if a.GetVerb() == "create" && a.GetResource().Resource == resource && a.GetSubresource() == subresource {
			n++
		}
	}
	return n
}
