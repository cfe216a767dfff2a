//go:build kubetest

package device

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/host/gpu"
	"github.com/opsplane/opsplane/agent/executor/host/recorded"
	"github.com/opsplane/opsplane/agent/executor/host/report"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	"github.com/opsplane/opsplane/agent/executor/kube/node"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

const testUUID = "GPU-8f3c0a6e-1111-2222-3333-444455556666"

// bench is a node with a recorded GPU, and an agent that may reset it.
type bench struct {
	t    *testing.T
	r    *kuberig.Rig
	ns   string // of the agent
	node string
	root string // of the node's file system
	user string
	c    *cluster.Cluster
	cfg  Config
	typ  cluster.Type
	kube *kuberig.Kubelet

	kubeconfig string
}

type benchOptions struct {
	rig      *kuberig.Rig // nil: the shared one
	device   recorded.Device
	rights   []cluster.Right // nil: Rights
	kubelet  bool
	config   func(c *Config)
	pause    func(point string, t *executor.Task)
	fault    *kuberig.Fault // on the agent's way to the API server
	nodeOpts []kuberig.NodeOption
}

func setup(t *testing.T, o benchOptions) *bench {
	t.Helper()
	b := &bench{t: t, r: o.rig, root: t.TempDir()}
	if b.r == nil {
		b.r = kuberig.Shared(t)
	}
	b.ns, b.node, b.user = b.r.Namespace(), b.r.Node("gpu", o.nodeOpts...).Name, b.r.User("agent")
	if o.rights == nil {
		o.rights = Rights
	}
	for _, right := range o.rights {
		ns := ""
		if right.Namespace == cluster.OwnNamespace {
			ns = b.ns
		}
		b.r.Grant(b.user, ns, rule(right))
	}
	b.record(o.device)
	b.cfg = Config{Enabled: true, Image: "opsplane-host:test", Recorded: "/var/lib/recorded", LookTimeout: time.Minute, ResetTimeout: 20 * time.Second}
	if o.config != nil {
		o.config(&b.cfg)
	}
	b.kubeconfig = b.r.Kubeconfig(b.user)
	if o.fault != nil {
		p := b.r.Proxy(b.user)
		p.Inject(*o.fault)
		b.kubeconfig = p.Kubeconfig()
	}
	b.c = b.open(o.pause)
	b.typ = Reset(b.c, b.cfg, node.NewDrains(b.c, node.Options{}))
	if o.kubelet {
		b.startKubelet()
	}
	return b
}

func rule(r cluster.Right) rbacv1.PolicyRule {
	return kuberig.Rule(r.Group, r.Resource, []string{r.Verb})
}

func (b *bench) startKubelet() {
	b.kube = b.r.Kubelet(kuberig.KubeletOptions{Nodes: []string{b.node}, HostRoot: b.root,
		Programs: map[string]string{"opsplane-host": b.r.Program("./agent/executor/host/opsplane-host")}})
}

// open is another agent process of the same user.
func (b *bench) open(pause func(point string, t *executor.Task)) *cluster.Cluster {
	b.t.Helper()
	c, err := cluster.Open(cluster.Options{Kubeconfig: b.kubeconfig, Namespace: b.ns, Version: "test", Pause: pause})
	if err != nil {
		b.t.Fatal(err)
	}
	return c
}

func (b *bench) recording() string { return filepath.Join(b.root, "var/lib/recorded", b.node+".json") }

// record writes what the node's host answers.
func (b *bench) record(d recorded.Device) {
	b.t.Helper()
	if d.UUID == "" {
		d.UUID, d.PCI, d.Product, d.Architecture = testUUID, "0000:3b:00.0", "NVIDIA H100 80GB HBM3", "hopper"
	}
	raw, err := json.Marshal(recorded.File{Driver: "580.65.06", Devices: []recorded.Device{d}})
	if err != nil {
		b.t.Fatal(err)
	}
	for _, dir := range []string{"var/lib/recorded", "var/lib/opsplane-host", "var/log/pods", "var/lib/kubelet/pod-resources"} {
		if err := os.MkdirAll(filepath.Join(b.root, dir), 0o755); err != nil {
			b.t.Fatal(err)
		}
	}
	tmp := b.recording() + ".new"
	if err := os.WriteFile(tmp, raw, 0o600); err != nil {
		b.t.Fatal(err)
	}
	if err := os.Rename(tmp, b.recording()); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) resets() int {
	b.t.Helper()
	n, err := recorded.Resets(b.recording(), testUUID)
	if err != nil {
		b.t.Fatal(err)
	}
	return n
}

// heldBy is a device that pods are on.
func heldBy(pods ...corev1.Pod) recorded.Device {
	d := recorded.Device{Device: report.Device{UUID: testUUID, PCI: "0000:3b:00.0", Product: "NVIDIA H100 80GB HBM3", Architecture: "hopper"}}
	for i, p := range pods {
		d.Processes = append(d.Processes, gpu.Process{PID: 4000 + i, Name: "python3", Pod: &report.Pod{Namespace: p.Namespace, Name: p.Name, UID: string(p.UID)}})
	}
	return d
}

// followPods keeps the recording to the pods that are there, as processes end
// with their pods.
func (b *bench) followPods(namespace, app string) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.t.Context()))
	var wg sync.WaitGroup
	wg.Go(func() {
		w, err := b.r.Client(kuberig.Admin).CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{LabelSelector: "app=" + app})
		if err != nil {
			return
		}
		defer w.Stop()
		for range w.ResultChan() {
			list, err := b.r.Client(kuberig.Admin).CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + app})
			if err != nil {
				return
			}
			b.record(heldBy(slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.Spec.NodeName != b.node })...))
		}
	})
	b.t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
}

// told is what a task told.
type told struct {
	mu       sync.Mutex
	commands []string
	notes    []string
	blockers [][]protocol.Blocker
	blocked  chan struct{} // closed when something is in the way for the first time
	progress []string
}

// task makes a step's task. fenced, if not nil, is asked by the fence.
func (b *bench) task(step string, op string, run int, generation int64, payload string, fenced func() error) (*executor.Task, *told) {
	tell := &told{blocked: make(chan struct{})}
	deadline := time.Now().Add(2 * time.Minute)
	var once sync.Once
	interruptible := step != "reset"
	return &executor.Task{
		Assignment: &protocol.Assignment{Operation: op, Run: run, Generation: generation, Type: "device.reset", TargetID: "dev_1", TargetUID: testUUID,
			TargetName: "device:" + testUUID, NodeName: b.node, Payload: json.RawMessage(payload), CorrelationID: "cor-1", Actor: operation.Actor{ID: "tester"}},
		Step:    protocol.Step{PlanStep: operation.PlanStep{ID: "stp_" + step, Name: step, Interruptible: interruptible}},
		Attempt: 1,
		Fence: func(ctx context.Context) (context.Context, context.CancelFunc, error) {
			if fenced != nil {
				if err := fenced(); err != nil {
					return nil, func() {}, err
				}
			}
			ctx, cancel := context.WithDeadline(ctx, deadline)
			return ctx, cancel, nil
		},
		Progress: func(done, total int, unit, message string) {
			tell.mu.Lock()
			defer tell.mu.Unlock()
			tell.progress = append(tell.progress, message)
		},
		Blocked: func(now []protocol.Blocker) {
			tell.mu.Lock()
			defer tell.mu.Unlock()
			if len(now) > 0 {
				tell.blockers = append(tell.blockers, now)
				once.Do(func() { close(tell.blocked) })
			}
		},
		Begin: func(name, resource string) (string, func(string, string)) {
			return "cmd_" + name, func(category, output string) {
				tell.mu.Lock()
				defer tell.mu.Unlock()
				tell.commands = append(tell.commands, fmt.Sprintf("%s: %s", name, category))
			}
		},
		Note: func(code, detail string) {
			tell.mu.Lock()
			defer tell.mu.Unlock()
			tell.notes = append(tell.notes, code)
		},
		Cancelled: make(chan struct{}),
		Remaining: func() time.Duration { return time.Until(deadline) },
	}, tell
}

// run executes a step under a lease.
func (b *bench) run(step, op string, run int, generation int64, payload string) (executor.Outcome, *told) {
	b.t.Helper()
	task, tell := b.task(step, op, run, generation, payload, nil)
	ctx, cancel := context.WithTimeout(b.t.Context(), 90*time.Second)
	defer cancel()
	for {
		o := b.typ.Steps[step].Execute(ctx, task)
		if o.Class != operation.OutcomeWaiting || o.ErrorCode != "forbidden" { // else it is not believed yet
			return o, tell
		}
		select {
		case <-time.After(o.After):
		case <-ctx.Done():
			return o, tell
		}
	}
}

// probe probes a step under a lease, for as long as the loop would.
func (b *bench) probe(step, op string, run int, generation int64) executor.Finding {
	b.t.Helper()
	task, _ := b.task(step, op, run, generation, `{}`, func() error { return executor.ErrFenced })
	ctx, cancel := context.WithTimeout(b.t.Context(), 10*time.Second)
	defer cancel()
	return b.typ.Steps[step].Probe(ctx, task)
}

func want(t *testing.T, o executor.Outcome, class, code string) {
	t.Helper()
	if o.Class != class || o.ErrorCode != code {
		t.Fatalf("outcome %s %s: %s; want %s %s", o.Class, o.ErrorCode, o.Detail, class, code)
	}
}
