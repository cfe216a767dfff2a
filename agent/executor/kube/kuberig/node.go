//go:build kubetest

package kuberig

import (
	"context"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// LabelRig is on every node that a rig makes, with the rig's own value, and pods
// that a rig makes run on such nodes alone: two tests never share a node.
const LabelRig = "rig.opsplane.io/rig"

// GPU is the resource that NVIDIA's device plugin offers.
const GPU corev1.ResourceName = "nvidia.com/gpu"

// labelKubelet with the value dead makes kwok let go of a node.
const labelKubelet = "rig.opsplane.io/kubelet"

// NodeOption says what a node is like.
type NodeOption func(*corev1.Node)

// GPUs is how many GPUs a node has, 8 unless said.
func GPUs(n int) NodeOption {
	return func(node *corev1.Node) {
		q := *resource.NewQuantity(int64(n), resource.DecimalSI)
		node.Status.Capacity[GPU], node.Status.Allocatable[GPU] = q, q
		node.Labels["nvidia.com/gpu.count"] = strconv.Itoa(n)
	}
}

// NodeLabel puts a label on a node.
func NodeLabel(key, value string) NodeOption {
	return func(node *corev1.Node) { node.Labels[key] = value }
}

// NodeAnnotation puts an annotation on a node.
func NodeAnnotation(key, value string) NodeOption {
	return func(node *corev1.Node) { metav1.SetMetaDataAnnotation(&node.ObjectMeta, key, value) }
}

// Taint puts a taint on a node.
func Taint(key, value string, effect corev1.TaintEffect) NodeOption {
	return func(node *corev1.Node) {
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: key, Value: value, Effect: effect})
	}
}

// Cordoned makes a node that takes no pods, by somebody else than an operation.
func Cordoned() NodeOption { return func(node *corev1.Node) { node.Spec.Unschedulable = true } }

// newNode is a GPU host of the kind that the demo's fleet has.
func newNode(name, rig string, opts []NodeOption) *corev1.Node {
	room := func() corev1.ResourceList {
		return corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("192"), corev1.ResourceMemory: resource.MustParse("2Ti"),
			corev1.ResourceEphemeralStorage: resource.MustParse("8Ti"), corev1.ResourcePods: resource.MustParse("110"),
		}
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			LabelRig: rig, "type": "kwok", corev1.LabelHostname: name, corev1.LabelArchStable: "amd64", corev1.LabelOSStable: "linux",
			corev1.LabelTopologyRegion: "sim-1", corev1.LabelTopologyZone: "sim-1a", corev1.LabelInstanceTypeStable: "sim.h100x8",
			"nvidia.com/gpu.present": "true", "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
		}},
		Spec: corev1.NodeSpec{ProviderID: "kwok://" + name},
		Status: corev1.NodeStatus{
			Capacity: room(), Allocatable: room(), Phase: corev1.NodeRunning,
			NodeInfo: corev1.NodeSystemInfo{
				KubeletVersion: "v1.37.2", OperatingSystem: "linux", Architecture: "amd64", ContainerRuntimeVersion: "containerd://2.2.0",
				KernelVersion: "6.12.0", OSImage: "sim", BootID: "boot-1", MachineID: name, SystemUUID: name,
			},
		},
	}
	GPUs(8)(node)
	for _, o := range opts {
		o(node)
	}
	return node
}

// Node makes a node and returns it once it is Ready. An empty name is made up; on
// the shared control plane a name gets an ending that nobody else has. It is
// deleted with the test.
func (r *Rig) Node(name string, opts ...NodeOption) *corev1.Node {
	r.t.Helper()
	switch {
	case name == "":
		name = r.Name("node")
	case r.shared:
		name = r.Name(name)
	}
	node, err := r.admin().CoreV1().Nodes().Create(r.t.Context(), newNode(name, r.id, opts), metav1.CreateOptions{})
	if err != nil {
		r.t.Fatalf("make node %s: %v", name, err)
	}
	r.afterwards(func(ctx context.Context) { _ = r.admin().CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{}) })
	r.await(fmt.Sprintf("node %s is Ready", name), func(ctx context.Context) (bool, error) {
		if node, err = r.admin().CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{}); err != nil {
			return false, err
		}
		// The scheduler leaves a node alone until its first taints are gone.
		return ready(node) && !tainted(node, corev1.TaintNodeNotReady), nil
	})
	return node
}

// NodeNow is the node as it is now.
func (r *Rig) NodeNow(name string) *corev1.Node {
	r.t.Helper()
	node, err := r.admin().CoreV1().Nodes().Get(r.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		r.t.Fatalf("read node %s: %v", name, err)
	}
	return node
}

// KillKubelet makes a node's kubelet do nothing more: no heartbeats, and pods
// that are deleted stay Terminating. The node is NotReady after the grace of
// nodes, see Options.
func (r *Rig) KillKubelet(node string) {
	r.t.Helper()
	r.patchNode(node, fmt.Sprintf(`{"metadata":{"labels":{%q:"dead"}}}`, labelKubelet))
}

// ReviveKubelet undoes KillKubelet.
func (r *Rig) ReviveKubelet(node string) {
	r.t.Helper()
	r.patchNode(node, fmt.Sprintf(`{"metadata":{"labels":{%q:null}}}`, labelKubelet))
}

func (r *Rig) patchNode(name, patch string) {
	r.t.Helper()
	if _, err := r.admin().CoreV1().Nodes().Patch(r.t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		r.t.Fatalf("patch node %s: %v", name, err)
	}
}

// AwaitNode waits until the node is as ok says, and returns it.
func (r *Rig) AwaitNode(name, what string, ok func(*corev1.Node) bool) (node *corev1.Node) {
	r.t.Helper()
	r.await(fmt.Sprintf("node %s %s", name, what), func(ctx context.Context) (_ bool, err error) {
		if node, err = r.admin().CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{}); err != nil {
			return false, err
		}
		return ok(node), nil
	})
	return node
}

// Ready tells whether a node says that it is.
func Ready(node *corev1.Node) bool { return ready(node) }

func ready(node *corev1.Node) bool {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func tainted(node *corev1.Node, key string) bool {
	for _, t := range node.Spec.Taints {
		if t.Key == key {
			return true
		}
	}
	return false
}
