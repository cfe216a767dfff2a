//go:build kubetest

package inventory

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/host/report"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	nodeop "github.com/opsplane/opsplane/agent/executor/kube/node"
	"github.com/opsplane/opsplane/shared/protocol"
)

// follower is an inventory of a rig with a Watch on it, and what was told.
type follower struct {
	*Inventory
	t  *testing.T
	mu sync.Mutex
	// told is everything; turn is closed and made anew when more comes.
	told []executor.Delta
	turn chan struct{}
}

func connect(t *testing.T, r *kuberig.Rig, user, namespace string) *cluster.Cluster {
	t.Helper()
	c, err := cluster.Open(cluster.Options{Kubeconfig: r.Kubeconfig(user), Namespace: namespace, Version: "test", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func follow(t *testing.T, r *kuberig.Rig, user, namespace string) *follower {
	t.Helper()
	return followWith(t, Options{Cluster: connect(t, r, user, namespace)})
}

func followWith(t *testing.T, o Options) *follower {
	t.Helper()
	o.Cordon, o.Lift, o.LocalData = nodeop.CordonOf, nodeop.LiftOf, nodeop.HasLocalData
	o.Judge, o.FoldWindow, o.LookEvery, o.ShortageHold = nodeop.Blockers(time.Now), 2*time.Second, time.Second, 2*time.Second
	i, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	f := &follower{Inventory: i, t: t, turn: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	t.Cleanup(func() {
		cancel()
		<-done
		if err := i.Close(); err != nil {
			t.Error(err)
		}
	})
	select {
	case <-i.Synced():
	case <-time.After(time.Minute):
		t.Fatalf("the first lists were not read: %v", i.Healthy())
	}
	go func() {
		defer close(done)
		_ = i.Watch(ctx, func(d executor.Delta) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.told = append(f.told, d)
			close(f.turn)
			f.turn = make(chan struct{})
		})
	}()
	return f
}

// await waits until what was told so far is enough.
func (f *follower) await(what string, ok func(all []executor.Delta) bool) {
	f.t.Helper()
	late := time.NewTimer(time.Minute)
	defer late.Stop()
	for {
		f.mu.Lock()
		enough, turn := ok(f.told), f.turn
		f.mu.Unlock()
		if enough {
			return
		}
		select {
		case <-turn:
		case <-late.C:
			f.t.Fatalf("%s was not told within a minute; healthy: %v", what, f.Healthy())
		}
	}
}

// of counts the events of a type and subject.
func of(all []executor.Delta, typ, name string) (n int, last protocol.Event) {
	for _, d := range all {
		for _, e := range d.Events {
			if e.Type == typ && e.Subject.Name == name {
				n, last = n+1, e
			}
		}
	}
	return n, last
}

// event waits for an event and returns it. It must have been told n times.
func (f *follower) event(typ, name string, n int) (e protocol.Event) {
	f.t.Helper()
	f.await(fmt.Sprintf("%s of %s", typ, name), func(all []executor.Delta) bool {
		have, last := of(all, typ, name)
		e = last
		return have >= n
	})
	f.mu.Lock()
	defer f.mu.Unlock()
	if have, _ := of(f.told, typ, name); have != n {
		f.t.Errorf("%s of %s was told %d times, want %d", typ, name, have, n)
	}
	return e
}

// node waits until a node is told as wanted.
func (f *follower) node(name, what string, ok func(n protocol.Node) bool) (found protocol.Node) {
	f.t.Helper()
	f.await("node "+name+" "+what, func(all []executor.Delta) bool {
		for _, d := range all {
			for _, n := range d.Objects.Nodes {
				if n.Name == name && ok(n) {
					found = n
					return true
				}
			}
		}
		return false
	})
	return found
}

func (f *follower) snapshot() protocol.Inventory {
	f.t.Helper()
	s, err := f.Snapshot(context.Background())
	if err != nil {
		f.t.Fatal(err)
	}
	return s
}

func patch(t *testing.T, c kubernetes.Interface, name, text string) {
	t.Helper()
	if _, err := c.CoreV1().Nodes().Patch(t.Context(), name, types.StrategicMergePatchType, []byte(text), metav1.PatchOptions{FieldManager: "kubectl-cordon"}); err != nil {
		t.Fatal(err)
	}
}

// What a person does with kubectl to a node is told, once, with whose it is.
func TestRigNode(t *testing.T) {
	t.Parallel()
	r := kuberig.Shared(t)
	c := r.Client(kuberig.Admin)
	f := follow(t, r, kuberig.Admin, r.Namespace())
	o := r.Node("inv")
	f.event("node.joined", o.Name, 1)
	patch(t, c, o.Name, `{"spec":{"unschedulable":true}}`)
	if e := f.event("node.cordoned", o.Name, 1); !strings.Contains(string(e.Detail), `"owner":"external"`) || !strings.Contains(string(e.Detail), `"by":"kubectl-cordon"`) {
		t.Errorf("cordoned: %s", e.Detail)
	}
	told := f.node(o.Name, "cordoned", func(n protocol.Node) bool { return n.Cordon != nil })
	if told.Cordon.Owner != "external" || time.Since(told.Cordon.Since) > time.Minute || told.Schedulable || told.GPUs != 8 {
		t.Errorf("told as %+v, cordon %+v", told, told.Cordon)
	}
	patch(t, c, o.Name, `{"spec":{"unschedulable":null}}`)
	if e := f.event("node.uncordoned", o.Name, 1); !strings.HasPrefix(string(e.Detail), `{"owner":"external","was":{"by":"kubectl-cordon"`) {
		t.Errorf("uncordoned: %s", e.Detail)
	}

	// Another node under the old name.
	if err := c.CoreV1().Nodes().Delete(t.Context(), o.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if e := f.event("node.left", o.Name, 1); e.Subject.UID != string(o.UID) {
		t.Errorf("left: %+v", e.Subject)
	}
	again := o.DeepCopy()
	again.ObjectMeta = metav1.ObjectMeta{Name: o.Name, Labels: o.Labels, Annotations: o.Annotations}
	made, err := c.CoreV1().Nodes().Create(t.Context(), again, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if e := f.event("node.joined", o.Name, 2); e.Subject.UID != string(made.UID) || made.UID == o.UID {
		t.Errorf("joined: %+v", e.Subject)
	}
	f.await("the old node gone", func(all []executor.Delta) bool {
		return slices.ContainsFunc(all, func(d executor.Delta) bool { return slices.Contains(d.Gone, "node/"+string(o.UID)) })
	})
	for _, n := range f.snapshot().Nodes {
		if n.Name == o.Name && n.UID != string(made.UID) {
			t.Errorf("the snapshot has the old node: %+v", n)
		}
	}
}

// A node that would not drain says so before anybody asks.
func TestRigBlockers(t *testing.T) {
	t.Parallel()
	r := kuberig.Shared(t)
	ns := r.Namespace()
	f := follow(t, r, kuberig.Admin, ns)
	o := r.Node("inv")
	r.Deployment(ns, "web", 1, kuberig.OnNode(o.Name))
	r.PDB(ns, "web", "web", kuberig.MinAvailable("1"))
	n := f.node(o.Name, "with a blocker", func(n protocol.Node) bool {
		return slices.ContainsFunc(n.Blockers, func(b protocol.Blocker) bool { return b.Code == "pdb" && strings.Contains(b.Detail, "needed 1") })
	})
	if b := n.Blockers[0]; b.Rule != "pdb/"+ns+"/web" || !strings.HasPrefix(b.Resource, "pod/"+ns+"/web-") || b.Since == nil || n.Pods != 1 {
		t.Errorf("told %+v", n)
	}
	if err := r.Client(kuberig.Admin).PolicyV1().PodDisruptionBudgets(ns).Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	revision := n.Revision
	f.node(o.Name, "without blockers", func(n protocol.Node) bool { return n.Revision > revision && len(n.Blockers) == 0 })
}

// Containers that are killed for want of memory, and that crash, are told of the
// deployment, folded.
func TestRigTroubles(t *testing.T) {
	t.Parallel()
	r := kuberig.Shared(t)
	ns := r.Namespace()
	f := follow(t, r, kuberig.Admin, ns)
	o := r.Node("inv")
	r.Deployment(ns, "web", 2, kuberig.OnNode(o.Name))
	f.event("deployment.created", ns+"/web", 1)
	f.event("deployment.available", ns+"/web", 1)
	c := r.Client(kuberig.Admin)
	fail := func(pod *corev1.Pod, restarts int32, looping bool) {
		t.Helper()
		now := metav1.NewTime(time.Now().Add(time.Duration(restarts) * time.Second))
		pod.Status.ContainerStatuses[0].RestartCount = restarts
		pod.Status.ContainerStatuses[0].LastTerminationState = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled", FinishedAt: now}}
		if looping {
			pod.Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
		}
		out, err := c.CoreV1().Pods(ns).UpdateStatus(t.Context(), pod, metav1.UpdateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		*pod = *out
	}
	pods := r.Pods(ns, "web")
	fail(&pods[0], 1, false)
	if e := f.event("deployment.oom", ns+"/web", 1); !strings.Contains(string(e.Detail), `"count":1,`) {
		t.Errorf("oom: %s", e.Detail)
	}
	for i := range int32(3) {
		fail(&pods[1], i+1, false)
	}
	fail(&pods[0], 2, true)
	f.event("deployment.crash_loop", ns+"/web", 1)
	if e := f.event("deployment.oom", ns+"/web", 2); !strings.Contains(string(e.Detail), `"count":4,`) {
		t.Errorf("four more in the window: %s", e.Detail)
	}
}

// GPUs that a DRA driver publishes, and then the host's own report: one device
// each, found under every name.
func TestRigDevices(t *testing.T) {
	t.Parallel()
	r := kuberig.Shared(t)
	ns := r.Namespace()
	f := follow(t, r, kuberig.Admin, ns)
	o := r.Node("inv", kuberig.GPUs(2))
	f.event("node.joined", o.Name, 1)
	c := r.Client(kuberig.Admin)
	name := r.Name("slice")
	id := func(n int) string { return fmt.Sprintf("GPU-0%s-%04d-4b1c-8a11-0123456789ab", name[len(name)-7:], n) }
	s := aSlice(name, o.Name, map[string]string{"uuid": strings.ToUpper(id(0)), "type": "gpu", "pciBusID": "00000000:3B:00.0"}, map[string]string{"uuid": id(1), "type": "gpu", "pciBusID": "0000:5e:00.0"})
	s.ObjectMeta = metav1.ObjectMeta{Name: name}
	made, err := c.ResourceV1().ResourceSlices().Create(t.Context(), s, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.ResourceV1().ResourceSlices().Delete(context.Background(), name, metav1.DeleteOptions{}) })
	devices := func() (out []protocol.Device) {
		for _, d := range f.snapshot().Devices {
			if d.NodeName == o.Name {
				out = append(out, d)
			}
		}
		return out
	}
	f.await("the devices identified", func([]executor.Delta) bool {
		d := devices()
		return len(d) == 2 && d[0].UID == id(0) && d[1].UID == id(1)
	})
	f.mu.Lock()
	for _, typ := range []string{"device.joined", "device.left"} {
		if n, _ := of(f.told, typ, id(0)); n != 0 {
			t.Errorf("%s was told of a device that was there", typ)
		}
	}
	f.mu.Unlock()
	made.Spec.Pool.Generation++
	made.Spec.Devices = made.Spec.Devices[:1]
	if _, err := c.ResourceV1().ResourceSlices().Update(t.Context(), made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	f.event("device.left", id(1), 1)
	cm := reportAt(t, time.Now(), o.Name, report.Device{UUID: id(0), PCI: "0000:3b:00.0", Product: "H100", Health: report.HealthUnusable, Detail: "fallen off the bus",
		XIDs: []report.XID{{Code: 79, Class: report.ClassHardware, Count: 1, Last: time.Now()}}})
	cm.ObjectMeta = metav1.ObjectMeta{Name: cm.Name, Labels: cm.Labels}
	if _, err := c.CoreV1().ConfigMaps(ns).Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	f.event("device.degraded", id(0), 1)
	f.event("device.xid", id(0), 1)
	if d := devices(); len(d) != 1 || d[0].Health != "unusable" || !contains(d[0].Aliases, o.Name+"/0") || !contains(d[0].Aliases, o.Name+"/0000:3b:00.0") {
		t.Errorf("devices %+v", d)
	}
}
