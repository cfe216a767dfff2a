package inventory

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/protocol"
)

// clock is a clock that a test moves.
type clock struct {
	mu sync.Mutex
	at time.Time
}

func newClock() *clock { return &clock{at: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)} }

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	c.at = c.at.Add(d)
	c.mu.Unlock()
}

// external is the cordon of a node that nobody's annotation is on.
func external(o *corev1.Node) *protocol.Cordon {
	if op := o.Annotations["op"]; op != "" {
		return &protocol.Cordon{Owner: "opsplane", Operation: op}
	}
	return &protocol.Cordon{Owner: "external"}
}

// world is a model fed by hand.
type world struct {
	*model
	hands   *clock
	version int64

	nodes, pods, deployments, sets, daemons, budgets, hosts, slices store
	lws, graphs                                                     store
}

func newWorld(o Options) *world {
	c := newClock()
	if o.Cordon == nil {
		o.Cordon = external
	}
	if o.FoldWindow == 0 {
		o.FoldWindow = time.Minute
	}
	if o.Exclude == nil {
		o.Exclude = []string{"kube-system"}
	}
	m := newModel(&o, c.now)
	w := &world{model: m, hands: c, version: 100}
	w.nodes = newFeed(m, m.stripNode, m.applyNode, nil)
	w.pods = newFeed(m, m.stripPod, m.applyPod, nil)
	w.deployments = newFeed(m, stripDeployment, m.applyWorkload, nil)
	w.sets = newFeed(m, stripStatefulSet, m.applyWorkload, nil)
	w.daemons = newFeed(m, stripDaemonSet, m.applyWorkload, nil)
	w.budgets = newFeed(m, stripBudget, m.applyBudget, nil)
	w.hosts = newFeed(m, m.stripHost, m.applyHost, nil)
	w.slices = newFeed(m, stripSlice, m.applySlice, nil)
	w.lws = newFeed(m, stripLeaderWorkerSet, m.applyWorkload, nil)
	w.graphs = newFeed(m, stripDynamoGraph, m.applyWorkload, nil)
	return w
}

// start ends the first lists, with what the stores got so far left as it is.
func (w *world) start(t testing.TB) *world {
	t.Helper()
	for _, s := range []store{w.nodes, w.pods, w.deployments, w.sets, w.daemons, w.budgets, w.hosts, w.slices, w.lws, w.graphs} {
		w.list(t, s)
	}
	w.settle()
	w.raise(w.version)
	w.begin()
	return w
}

// next stamps an object with the next resourceVersion.
func (w *world) next(o metav1.Object) {
	w.version++
	o.SetResourceVersion(strconv.FormatInt(w.version, 10))
}

func (w *world) put(t testing.TB, s store, objects ...metav1.Object) {
	t.Helper()
	for _, o := range objects {
		w.next(o)
		if err := s.Update(o); err != nil {
			t.Fatal(err)
		}
	}
}

func (w *world) remove(t testing.TB, s store, o metav1.Object) {
	t.Helper()
	w.next(o)
	if err := s.Delete(o); err != nil {
		t.Fatal(err)
	}
}

func (w *world) list(t testing.TB, s store, objects ...any) {
	t.Helper()
	w.version++
	if err := s.Replace(objects, strconv.FormatInt(w.version, 10)); err != nil {
		t.Fatal(err)
	}
}

// told takes all that is to be told.
func (w *world) told() (all executor.Delta) {
	for {
		d, more := w.take(7)
		all.Events = append(all.Events, d.Events...)
		all.Gone = append(all.Gone, d.Gone...)
		all.Objects.Nodes = append(all.Objects.Nodes, d.Objects.Nodes...)
		all.Objects.Devices = append(all.Objects.Devices, d.Objects.Devices...)
		all.Objects.Deployments = append(all.Objects.Deployments, d.Objects.Deployments...)
		all.Objects.Components = append(all.Objects.Components, d.Objects.Components...)
		if !more {
			return all
		}
	}
}

// events words what was told: type and name.
func (w *world) happened() []string {
	var out []string
	for _, e := range w.told().Events {
		out = append(out, e.Type+" "+e.Subject.Name)
	}
	slices.Sort(out)
	return out
}

func named(namespace, name, uid string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(uid), Labels: map[string]string{}, Annotations: map[string]string{}, Generation: 1}
}

// aNode is a ready node with GPUs.
func aNode(name, uid string, gpus int) *corev1.Node {
	o := &corev1.Node{ObjectMeta: named("", name, uid)}
	o.Labels["nvidia.com/gpu.product"] = "H100"
	o.Status.Capacity = corev1.ResourceList{"nvidia.com/gpu": *resource.NewQuantity(int64(gpus), resource.DecimalSI)}
	setReady(o, corev1.ConditionTrue)
	return o
}

func setReady(o *corev1.Node, s corev1.ConditionStatus) {
	setCondition(o, corev1.NodeCondition{Type: corev1.NodeReady, Status: s, Reason: "Told"})
}

func setCondition(o *corev1.Node, c corev1.NodeCondition) {
	o.Status.Conditions = slices.DeleteFunc(o.Status.Conditions, func(x corev1.NodeCondition) bool { return x.Type == c.Type })
	o.Status.Conditions = append(o.Status.Conditions, c)
}

// aPod is a pod of the deployment's ReplicaSet (an empty name: of nothing).
func aPod(name, node, deployment string) *corev1.Pod {
	o := &corev1.Pod{ObjectMeta: named("default", name, "uid-"+name), Spec: corev1.PodSpec{NodeName: node}}
	o.Status.Phase = corev1.PodRunning
	if deployment != "" {
		o.Labels["pod-template-hash"] = "abc"
		yes := true
		o.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: deployment + "-abc", UID: "rs", Controller: &yes}}
	}
	return o
}

func aDeployment(namespace, name string, replicas int) *appsv1.Deployment {
	n := int32(replicas)
	o := &appsv1.Deployment{ObjectMeta: named(namespace, name, "uid-"+name), Spec: appsv1.DeploymentSpec{Replicas: &n}}
	o.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: "main:1"}}
	o.Annotations["deployment.kubernetes.io/revision"] = "1"
	setStatus(o, replicas, replicas, "NewReplicaSetAvailable")
	return o
}

// setStatus makes ready and updated replicas of a deployment, and what its
// controller says of its progress.
func setStatus(o *appsv1.Deployment, ready, updated int, progress string) {
	desired := int(*o.Spec.Replicas)
	available := corev1.ConditionFalse
	if ready >= desired {
		available = corev1.ConditionTrue
	}
	o.Status = appsv1.DeploymentStatus{ObservedGeneration: o.Generation, Replicas: int32(max(ready, updated)), ReadyReplicas: int32(ready), AvailableReplicas: int32(ready),
		UpdatedReplicas: int32(updated), Conditions: []appsv1.DeploymentCondition{
			{Type: appsv1.DeploymentAvailable, Status: available},
			{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue, Reason: progress, Message: "so says the controller"},
		}}
}

func aBudget(name string, selector map[string]string, allowed int) *policyv1.PodDisruptionBudget {
	o := &policyv1.PodDisruptionBudget{ObjectMeta: named("default", name, "uid-"+name)}
	o.Spec.Selector = &metav1.LabelSelector{MatchLabels: selector}
	o.Status.DisruptionsAllowed, o.Status.ObservedGeneration = int32(allowed), 1
	return o
}

func uuid(n int) string { return fmt.Sprintf("GPU-%08d-aaaa-bbbb-cccc-0123456789ab", n) }

// aSlice offers GPUs by their attributes.
func aSlice(name, node string, devices ...map[string]string) *resourcev1.ResourceSlice {
	o := &resourcev1.ResourceSlice{ObjectMeta: named("", name, "uid-"+name)}
	o.Spec.Driver, o.Spec.NodeName = "gpu.nvidia.com", &node
	o.Spec.Pool = resourcev1.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1}
	for i, attributes := range devices {
		d := resourcev1.Device{Name: "gpu-" + strconv.Itoa(i), Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{}}
		for k, v := range attributes {
			if n, ok := strings.CutPrefix(v, "#"); ok {
				i, _ := strconv.ParseInt(n, 10, 64)
				d.Attributes[resourcev1.QualifiedName(k)] = resourcev1.DeviceAttribute{IntValue: &i}
				continue
			}
			d.Attributes[resourcev1.QualifiedName(k)] = resourcev1.DeviceAttribute{StringValue: &v}
		}
		o.Spec.Devices = append(o.Spec.Devices, d)
	}
	return o
}
